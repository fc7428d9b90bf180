"""Compare simulated calls with real bills, one call after the other.

A prediction uses only the calls before it and their bills. The baseline is the simplest prediction:
a call reads what the previous call read and wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec

from anaphora import catalog
from anaphora.cache.simulator import Outcome, Simulator
from anaphora.tokens import bytes_in, tokens_in

from .format import Trace, TraceCall, TraceUsage
from .prompts import BilledLengths, Replay

HitClass: TypeAlias = Literal["hit", "partial", "miss"]
"""Whether all, some or none of what the previous call left in the cache was read."""

#: The likely causes of a difference between prediction and bill.
CAUSE_TEXTS: dict[str, str] = {
    "written_by_others": "written by a call that is not recorded: others have the same beginning",
    "unrecorded_write": "more was cached than was billed before: aborted calls also write",
    "began_earlier": "only the end of the call is recorded; it began before the entry expired",
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

_Place: TypeAlias = tuple[str, str, str | None]
"""Provider, model and wire: each has its own rules."""


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """One call: what was predicted and what was billed."""

    trace: str
    call: int
    provider: str
    model: str
    wire: str | None = None
    at: float | None
    gap: float | None
    """Seconds since the previous call of the conversation began."""
    in_loop: bool
    """Only tool results since the previous call."""
    outcome: Outcome
    billed: TraceUsage | None
    """The original bill, even when the call is replayed elsewhere."""
    baseline: int | None
    """What the previous call read and wrote; None for a first call."""
    older: bool = False
    """What was read is what some earlier call of the conversation had left."""
    ends_only: bool = False
    """Its start is not recorded."""
    implicit: bool = False
    granule: int = 1
    delay: float = 0.0
    """Seconds in which a write may not be visible yet."""

    @property
    def exact(self) -> bool:
        return self.billed is not None and self.outcome.read == self.billed.cache_read

    @property
    def expected(self) -> HitClass | None:
        return self._class(self.outcome.read)

    @property
    def happened(self) -> HitClass | None:
        return None if self.billed is None else self._class(self.billed.cache_read)

    @property
    def baseline_class(self) -> HitClass | None:
        return None if self.baseline is None else self._class(self.baseline)

    @property
    def is_pair(self) -> bool:
        """Whether there is a bill, and one before it that left something to read."""
        return self.billed is not None and self.baseline is not None

    @property
    def cause(self) -> str | None:
        """The most likely cause of a difference, from what the recording shows; None when there is
        no difference or no bill."""
        if self.billed is None or self.exact:
            return None
        read = self.billed.cache_read
        return _more(self, read) if read > self.outcome.read else _less(self, read)

    def _class(self, read: int) -> HitClass | None:
        if self.baseline is None:
            return None
        if read == 0:
            return "miss"
        return "hit" if read >= self.baseline else "partial"


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
    if call.implicit:
        return "routing"
    if read and call.older:
        soon = call.gap is not None and call.gap <= call.delay
        return "not_visible_yet" if soon else "older_entry"
    return "messages_voided" if read else "unexplained"


def _gap(before: TraceCall | None, call: TraceCall) -> float | None:
    began = None if before is None else before.at
    return None if began is None or call.at is None else call.at - began


class Predictor:
    """Replays conversations in the order they happened, those of one group together."""

    def __init__(self, *, elsewhere: tuple[str, str] | None = None) -> None:
        """`elsewhere` is a provider and model to replay everything on instead of its own. The bills
        then give the lengths of the prompts, and nothing about the cache."""
        self._elsewhere = elsewhere
        self._simulators: dict[_Place, tuple[Simulator, BilledLengths]] = {}

    def play(self, traces: Iterable[Trace]) -> Iterator[Predicted]:
        """A prediction for every call. Unsupported traces raise before the first one."""
        replays = [Replay(trace, self._elsewhere) for trace in traces]
        moments = [
            (replay.scope, at, order, index)
            for order, replay in enumerate(replays)
            for index, at in enumerate(replay.times())
        ]
        for _, at, order, index in sorted(moments):
            yield self._predict(replays[order], index, at)

    def _predict(self, replay: Replay, index: int, at: float) -> Predicted:
        trace, call = replay.trace, replay.trace.calls[index]
        place = replay.provider, replay.model, replay.wire
        if place not in self._simulators:
            self._simulators[place] = Simulator(catalog.rules(*place)), BilledLengths()
        simulator, lengths = self._simulators[place]
        rules, scope, first = simulator.rules, replay.scope, replay.blocks.first
        blocks, keys = replay.sent(call)
        if self._elsewhere is not None and call.usage is not None and keys:
            # The bill tells how long the prompt is, in another model's tokens.
            per_token, billed_per_token = replay.per_token
            size = bytes_in(call.usage.total, billed_per_token)
            lengths[keys[-1]] = tokens_in(size, per_token)
        estimates = replay.blocks.estimates(blocks)
        before = next((one for one in reversed(trace.calls[:index]) if one.usage is not None), None)
        in_loop = before is not None and replay.only_tools(before, call)
        params = replay.cache_params(call, in_loop=in_loop)
        # On a beginning that is not recorded, a marker is assumed once a bill has shown one.
        unknown = trace.system_tokens_unknown and self._elsewhere is None
        mark_lead = not unknown or all(key in lengths for key in keys[first - 1 : first])
        sizes = lengths.sizes(keys, estimates)
        prompt = replay.prompt(call, blocks, sizes, rules, params, mark_lead)
        outcome = simulator.predict(prompt, at=at, scope=scope)
        billed, older = call.usage, False
        if billed is not None and keys and self._elsewhere is None:
            if unknown and billed.cache_read > outcome.read == 0:
                # Other calls of the account begin the same: that much is the system prompt.
                lengths[keys[first - 1]] = billed.cache_read
                mark_lead = True
            lead = replay.learn_ttls(billed)
            if unknown and lead is not None:
                lengths[keys[first - 1]] = lead
                mark_lead = True
            older = billed.cache_read in replay.left
            replay.learn_length(keys, billed, lengths, rules)
            # What it left in the cache is as long as the bill says.
            sizes = lengths.sizes(keys, estimates)
            prompt = replay.prompt(call, blocks, sizes, rules, params, mark_lead)
        answered, ended = replay.answered(index)
        reasoning = None if billed is None else billed.reasoning
        simulator.call(prompt, at=at, began=answered, ended=ended, reasoning=reasoning, scope=scope)
        left = None if before is None or before.usage is None else before.usage.cached or None
        return Predicted(
            trace=trace.id,
            call=index,
            provider=replay.provider,
            model=replay.model,
            wire=replay.wire,
            at=call.at,
            gap=_gap(before, call),
            in_loop=in_loop,
            outcome=outcome,
            billed=billed,
            baseline=left,
            older=older,
            ends_only=call.t is None and call.dur is None,
            implicit=rules.mechanism.value == "implicit" or not rules.slots.value,
            granule=rules.granule_tokens.value,
            delay=rules.visibility_delay.value,
        )
