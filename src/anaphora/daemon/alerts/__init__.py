"""Alerts for operators, as the section `alerts` of extensions.yaml asks for.

    conditions   what there is to tell: used limits, cache reads, providers that are down
    delivery     each alert to each target, once, over restarts and nodes
    targets      one attempt: a webhook, a command, a line of the log

Nothing here runs while a call is answered.
"""
