"""The simulator held against real bills, one call after the other.

A prediction knows only what came before it: the calls, and what those were billed. Beside it stands
the simplest one there is: a call reads what the call before it read and wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec

from anaphora import catalog
from anaphora.cache.simulator import Outcome, Simulator

from .causes import Cause, cause_of
from .form import Trace, TraceUsage
from .playing import Playing
from .prompts import Anchors, prompt_of

Verdict: TypeAlias = Literal["hit", "partial", "miss"]
"""Of what the call before left in the cache: all, some or none was read."""


_Place: TypeAlias = tuple[str, str, str | None]
"""Provider, model and wire: what has rules of its own."""


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """One call: what was expected and what was billed."""

    trace: str
    call: int
    provider: str
    model: str
    wire: str | None = None
    at: float | None
    gap: float | None
    """Seconds since the call before it in its conversation began."""
    in_loop: bool
    """Nothing but answers of tools since the call before."""
    outcome: Outcome
    billed: TraceUsage | None
    """What it was billed where it was had, even when it is played elsewhere."""
    baseline: int | None
    """What the call before it read and wrote; None for a first call."""
    older: bool = False
    """What was read is what some earlier call of the conversation had left."""
    ends_only: bool = False
    """When it began is not recorded."""
    implicit: bool = False
    granule: int = 1
    delay: float = 0.0
    """Seconds in which a write may not be visible yet."""

    @property
    def exact(self) -> bool:
        return self.billed is not None and self.outcome.read == self.billed.cache_read

    @property
    def expected(self) -> Verdict | None:
        return self._verdict(self.outcome.read)

    @property
    def happened(self) -> Verdict | None:
        return None if self.billed is None else self._verdict(self.billed.cache_read)

    @property
    def baseline_says(self) -> Verdict | None:
        return None if self.baseline is None else self._verdict(self.baseline)

    @property
    def is_pair(self) -> bool:
        """There is a bill, and one before it that left something to read."""
        return self.billed is not None and self.baseline is not None

    @property
    def cause(self) -> Cause | None:
        return cause_of(self)

    def _verdict(self, read: int) -> Verdict | None:
        if self.baseline is None:
            return None
        if read == 0:
            return "miss"
        return "hit" if read >= self.baseline else "partial"


class Predictor:
    """Plays conversations in the order they happened, those of one group together."""

    def __init__(self, *, elsewhere: tuple[str, str] | None = None) -> None:
        """`elsewhere` is a provider and model to play everything on instead of its own. There the
        bills tell how long the prompts are, and nothing of the cache."""
        self._elsewhere = elsewhere
        self._simulators: dict[_Place, Simulator] = {}
        self._anchors: dict[_Place, Anchors] = {}

    def play(self, traces: Iterable[Trace]) -> Iterator[Predicted]:
        """A prediction for every call. What cannot be played is an error before anything is."""
        conversations = [Playing(trace, self._elsewhere) for trace in traces]
        moments = [
            (conversation.scope, at, order, index, conversation)
            for order, conversation in enumerate(conversations)
            for index, at in enumerate(conversation.times())
        ]
        moments.sort(key=lambda moment: moment[:4])
        for _, at, _, index, conversation in moments:
            yield self._predict(conversation, index, at)

    def _predict(self, conversation: Playing, index: int, at: float) -> Predicted:
        trace, call = conversation.trace, conversation.trace.calls[index]
        place = conversation.provider, conversation.model, conversation.wire
        simulator = self._simulators.get(place)
        if simulator is None:
            simulator = self._simulators[place] = Simulator(catalog.rules(*place))
            self._anchors[place] = Anchors()
        anchors, rules = self._anchors[place], simulator.rules
        blocks, keys = conversation.sent(call)
        if self._elsewhere is not None and call.usage is not None and keys:
            conversation.measure(keys, call.usage, anchors)
        estimates = conversation.blocks.estimates(blocks)
        sizes = anchors.sizes(keys, estimates)
        before = conversation.before(index)
        in_loop = before is not None and conversation.only_tools(before, call)
        cache_params = conversation.cache_params(call, in_loop=in_loop)
        scope, first = conversation.scope, conversation.blocks.first
        # Of a beginning that is not in the trace a marker is assumed once a bill has shown one.
        unknown = trace.system_tokens_unknown and self._elsewhere is None
        lead = not unknown or anchors.knows(keys[first - 1 : first])
        prompt = prompt_of(call, blocks, first, sizes, rules, cache_params, lead, conversation.ttls)
        outcome = simulator.predict(prompt, at=at, scope=scope)
        billed, older = call.usage, False
        if billed is not None and keys and self._elsewhere is None:
            if unknown and billed.cache_read > outcome.read == 0:
                # Others of the same account begin alike: that much is the system prompt.
                anchors.learn(keys[first - 1], billed.cache_read)
                lead = True
            until = conversation.learn_ttls(billed)
            if unknown and until is not None:
                anchors.learn(keys[first - 1], until)
                lead = True
            older = conversation.remembers(billed)
            conversation.learn(keys, billed, anchors, rules)
            # What it left in the cache is as long as the bill says.
            sizes = anchors.sizes(keys, estimates)
            prompt = prompt_of(
                call, blocks, first, sizes, rules, cache_params, lead, conversation.ttls
            )
        simulator.call(prompt, at=at, scope=scope)
        known = before.usage if before is not None else None
        began = before.at if before is not None else None
        return Predicted(
            trace=trace.id,
            call=index,
            provider=conversation.provider,
            model=conversation.model,
            wire=conversation.wire,
            at=call.at,
            gap=None if began is None or call.at is None else call.at - began,
            in_loop=in_loop,
            outcome=outcome,
            billed=billed,
            baseline=None if known is None else known.cached or None,
            older=older,
            ends_only=call.t is None and call.dur is None,
            implicit=rules.mechanism.value == "implicit" or not rules.slots.value,
            granule=rules.granule_tokens.value,
            delay=rules.visibility_delay.value,
        )
