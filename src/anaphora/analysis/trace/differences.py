"""Why a bill differs from its prediction: what was not recorded, estimated or certain.

A verdict says why tokens that had been cached were not read; see `cache.verdict`. This says why the
prediction was wrong, and never names a loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .predict import Predicted

#: The likely causes of a difference between prediction and bill.
CAUSE_TEXTS: dict[str, str] = {
    "written_by_others": "written by a call that is not recorded: others have the same beginning",
    "unrecorded_write": "more was cached than was billed before: aborted calls also write",
    "began_earlier": "only the end of the call is recorded; it began before the entry expired",
    "expired": "idle for longer than entries live by the rules, which is not certain",
    "outlived": "the entry was read after its TTL",
    "prompt_changed": "fewer tokens were sent than before: the beginning was edited or dropped",
    "out_of_order": "the clock ran backwards: calls of two branches, or out of order",
    "not_visible_yet": "an older entry was read seconds after a write that was not readable yet",
    "older_entry": "an older entry was read: another branch, or a changed message",
    "messages_voided": "only the beginning was read: a parameter or an early message changed",
    "within_granule": "within one granule: the length was estimated",
    "length_estimated": "the same entry with another count: its length was estimated",
    "routing": "an implicit cache found less: another server, evicted, or a changed beginning",
    "unexplained": "not explained by the recording: lost at the provider, or changed by the client",
}


def why_different(call: Predicted) -> str | None:
    """The most likely cause, a key of `CAUSE_TEXTS`; None when there is no difference or no
    bill."""
    if call.billed is None or call.exact:
        return None
    read = call.billed.cache_read
    return _more(call, read) if read > call.outcome.read else _less(call, read)


def _more(call: Predicted, read: int) -> str:
    expired = any(span.reason == "expired" for span in call.outcome.spans)
    if call.baseline is None:
        return "written_by_others"
    if call.granule > 1 and read - call.outcome.read <= call.granule:
        return "within_granule"
    if expired and not call.older:
        return "written_by_others"
    if expired:
        return "began_earlier" if call.ends_only else "outlived"
    if call.older:
        return "older_entry"
    if call.implicit:
        return "written_by_others" if call.outcome.read == 0 else "length_estimated"
    return "unrecorded_write"


def _less(call: Predicted, read: int) -> str:
    assert call.billed is not None
    if read and call.granule > 1 and call.outcome.read - read <= call.granule:
        return "within_granule"
    if call.gap is not None and call.gap < 0:
        return "out_of_order"
    if call.baseline is not None and call.billed.total < call.baseline:
        return "prompt_changed"
    if call.lapsed is not None and read <= call.lapsed.read:
        return "expired"
    if call.implicit:
        return "routing"
    if read and call.older:
        soon = call.gap is not None and call.gap <= call.delay
        return "not_visible_yet" if soon else "older_entry"
    return "messages_voided" if read else "unexplained"
