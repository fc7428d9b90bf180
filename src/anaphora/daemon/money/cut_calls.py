"""What becomes of a call at its provider when the connection is closed before the bill has come.

The catalog says which providers stop generating and billing when a stream is cut; `on_abort` of the
provider's entry in llm.yaml replaces that. A request without stream is billed whole everywhere.
"""

from __future__ import annotations

from anaphora.catalog.api_limits import stops_when_cut
from anaphora.client.target import Target


def stops_billing(target: Target, *, stream: bool) -> bool:
    """Whether closing the connection ends the bill."""
    return stream and _is_cancelled(target)


def reads_on(target: Target, *, stream: bool) -> bool:
    """Whether an answer is read on to its usage when the app has gone."""
    if target.endpoint.config.on_abort == "cancel":
        return False
    return not stops_billing(target, stream=stream)


def _is_cancelled(target: Target) -> bool:
    endpoint = target.endpoint
    if endpoint.config.on_abort is not None:
        return endpoint.config.on_abort == "cancel"
    return stops_when_cut(endpoint.system)
