"""The read model of past calls, for the pages and the reports of `audit` and `watch`.

Tables in SQLite, in memory or in a file. A file is derived: it may be deleted at any time, and is
rebuilt from the audit log. A thread follows the log and adds new rows, in one transaction with the
position reached.

    calls       the latest calls, with the place of each row in the log; `call_ids`: their ids
    sums        calls by step, set of block labels (-1: all calls), app, provider and model
    causes      those that lost tokens, by the cause; `outcomes`: those that failed, by the error
    blocks      tokens, reads, cost and breaks by label; `changes`: breaks by the kind of change
    latency     seconds to the first byte, as a histogram for each provider
    tags        for reports: by label of the application; `changed`: by the block that changed
    conversations

The latest 1,000,000 calls are kept one by one, with their conversations; all are in the sums.
Steps are weeks, thirds of a day and hours; for the last 26 hours also quarters of an hour and
minutes. The current hour is summed by minutes only, until it is over. The partial steps at the
ends of a range are summed over the calls; before the earliest call that is kept, the range is
widened to whole hours. Blocks and latency are always widened to whole steps.
"""
