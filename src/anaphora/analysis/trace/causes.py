"""Why a bill is not what was expected: the most likely cause, from what the recording shows.

Nothing here is known for sure. What fits no known cause is called unexplained, and stays that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from .predict import Predicted

Cause: TypeAlias = Literal[
    "written_by_others",
    "unrecorded_write",
    "began_earlier",
    "outlived",
    "prompt_changed",
    "out_of_order",
    "not_visible_yet",
    "older_entry",
    "messages_voided",
    "within_granule",
    "length_estimated",
    "routing",
    "unexplained",
]

MEANING: dict[Cause, str] = {
    "written_by_others": "read although no recorded call can have left it: others begin alike",
    "unrecorded_write": "more was there than was billed before: an aborted call writes, too",
    "began_earlier": "only the ends of calls are recorded; this one began before its entry expired",
    "outlived": "the entry was there after its time was over",
    "prompt_changed": "fewer tokens were sent than before: the beginning was edited or dropped",
    "out_of_order": "the clock ran backwards: the calls are of two branches, or out of order",
    "not_visible_yet": "an older entry was read seconds after a write: it was not visible yet",
    "older_entry": "an older entry was read: another branch, or a message that changed",
    "messages_voided": "only a beginning was read: a parameter or an early message changed",
    "within_granule": "within one granule: the length was estimated",
    "length_estimated": "the same entry by another count: its length was estimated",
    "routing": "an implicit cache found less: another server, dropped, or a beginning that changes",
    "unexplained": "nothing recorded explains it: lost at the provider, or changed by the client",
}


def cause_of(call: Predicted) -> Cause | None:
    """The most likely cause of a difference; None when there is none, or no bill to differ from."""
    if call.billed is None or call.exact:
        return None
    return _more(call) if call.billed.cache_read > call.outcome.read else _less(call)


def _more(call: Predicted) -> Cause:
    """More was read than expected."""
    assert call.billed is not None
    expired = any(span.reason == "expired" for span in call.outcome.spans)
    if call.baseline is None:
        return "written_by_others"
    if call.granule > 1 and call.billed.cache_read - call.outcome.read <= call.granule:
        return "within_granule"
    if expired and not call.older:
        return "written_by_others"
    if expired:
        return "began_earlier" if call.ends_only else "outlived"
    if call.older:
        return "older_entry"
    if call.implicit and call.outcome.read == 0:
        return "written_by_others"
    if call.implicit:
        return "length_estimated"
    return "unrecorded_write"


def _less(call: Predicted) -> Cause:
    """Less was read than expected."""
    assert call.billed is not None
    read = call.billed.cache_read
    if read and call.granule > 1 and call.outcome.read - read <= call.granule:
        return "within_granule"
    if call.gap is not None and call.gap < 0:
        return "out_of_order"
    if call.baseline is not None and call.billed.total < call.baseline:
        return "prompt_changed"
    if call.implicit:
        return "routing"
    if read and call.older:
        soon = call.gap is not None and call.gap <= call.delay
        return "not_visible_yet" if soon else "older_entry"
    return "messages_voided" if read else "unexplained"
