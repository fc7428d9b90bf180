"""One predicted call beside its bill, and why they differ.

A verdict explains why cached tokens were not read; see `cache.verdict`. A cause here explains why a
prediction was wrong; it is not a loss.
"""

from __future__ import annotations

import msgspec

from anaphora.cache.read_history import BillRange, ReadClass, read_class
from anaphora.cache.simulator import Chance, Outcome
from anaphora.catalog import CacheRules

from .format import TraceUsage

#: The likely causes of a difference between prediction and bill.
CAUSE_TEXTS: dict[str, str] = {
    "written_by_others": "written by a call that is not recorded: others have the same beginning",
    "unrecorded_write": "more was cached than was billed before: aborted calls also write",
    "began_earlier": "only the end of the call is recorded; it began before the entry expired",
    "expired": "idle for longer than the lifetime in the rules, which is uncertain",
    "outlived": "the entry was read after its TTL",
    "prompt_changed": "fewer tokens were sent than before: the beginning was edited or dropped",
    "out_of_order": "the clock ran backwards: calls of two branches, or out of order",
    "not_yet_visible": "an older entry was read seconds after a write that was not readable yet",
    "older_entry": "an older entry was read: another branch, or a changed message",
    "messages_voided": "only the beginning was read: a parameter or an early message changed",
    "within_granule": "within one granule: the length was estimated",
    "length_estimated": "the same entry with another count: its length was estimated",
    "routing": "an implicit cache found less: another server, evicted, or a changed beginning",
    "unexplained": "not explained by the recording: lost at the provider, or changed by the client",
}


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """One call: its prediction and its bill."""

    trace: str
    call: int
    provider: str
    model: str
    recorded_model: str = ""
    """The model that was called, even when the call is replayed elsewhere."""
    wire: str | None = None
    at: float | None
    gap: float | None
    """Seconds since the previous call of the conversation began."""
    in_loop: bool
    """Only tool results since the previous call."""
    outcome: Outcome
    chances: tuple[Chance, ...] = ()
    """The other outcomes that it may have had, and how often."""
    billed: TraceUsage | None
    """The original bill, even when the call is replayed elsewhere."""
    baseline: int | None
    """The previous call's entry: its reads and writes at markers, or else its whole prompt in
    granules. None for a first call, and without an entry."""
    lapsed: Outcome | None = None
    """The outcome with the lifetime of the rules, if that is a stand-in that no bill has confirmed;
    None if it is the same."""
    previous: int | None = None
    """The tokens of the previous billed prompt of the conversation."""
    older: bool = False
    """The read is the entry of some earlier call of the conversation."""
    ends_only: bool = False
    """Its start is not recorded."""
    implicit: bool = False
    rules: CacheRules | None = None
    """The rules of the prediction."""
    granule: int = 1
    bill_range: BillRange | None = None
    """The range that contains nine in ten costs of its input, in input tokens."""
    conversation_range: BillRange | None = None
    """The range that contains nine in ten bills of conversations that end here, as multiples of
    their predicted input cost; None before ten of them."""
    delay: float = 0.0
    """Seconds in which a write may not be visible yet."""

    @property
    def exact(self) -> bool:
        return self.billed is not None and self.outcome.read == self.billed.cache_read

    @property
    def expected(self) -> ReadClass | None:
        return self._class(self.outcome.read)

    @property
    def happened(self) -> ReadClass | None:
        return None if self.billed is None else self._class(self.billed.cache_read)

    @property
    def is_pair(self) -> bool:
        """Whether there is a bill, and an earlier bill with something to read."""
        return self.billed is not None and self.baseline is not None

    @property
    def cause(self) -> str | None:
        """The most likely cause of a difference, from what the recording shows: a key of
        `CAUSE_TEXTS`. None when there is no difference or no bill."""
        if self.billed is None or self.exact:
            return None
        read = self.billed.cache_read
        return _more(self, read) if read > self.outcome.read else _less(self, read)

    def _class(self, read: int) -> ReadClass | None:
        return None if self.baseline is None else read_class(read, self.baseline)


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
        return "not_yet_visible" if soon else "older_entry"
    return "messages_voided" if read else "unexplained"
