"""The simulator held against real bills, one call after the other.

A prediction knows only what came before it: the calls, and what those were billed. Beside it stands
the simplest one there is: a call reads what the call before it read and wrote.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec

from anaphora import catalog
from anaphora.cache.simulator import Outcome, Simulator
from anaphora.catalog import CacheRules
from anaphora.errors import InvalidRequest

from .form import Trace, TraceCall, TraceUsage
from .prompts import Anchors, Blocks, prompt_of

#: The least time between a call and the next that sends its answer back.
_MOMENT = 0.001

Verdict: TypeAlias = Literal["hit", "partial", "miss"]
"""Of what the call before left in the cache: all, some or none was read."""


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """One call: what was expected and what was billed."""

    trace: str
    call: int
    provider: str
    model: str
    at: float | None
    gap: float | None
    """Seconds since the call before it in its conversation began."""
    in_loop: bool
    """Nothing but answers of tools since the call before."""
    outcome: Outcome
    billed: TraceUsage | None
    baseline: int | None
    """What the call before it read and wrote; None for a first call."""

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

    def _verdict(self, read: int) -> Verdict | None:
        if self.baseline is None:
            return None
        if read == 0:
            return "miss"
        return "hit" if read >= self.baseline else "partial"


class Predictor:
    """Plays conversations in the order they happened, those of one group together."""

    def __init__(self, *, elsewhere: tuple[str, str] | None = None) -> None:
        """`elsewhere` is a provider and model to play everything on instead of its own."""
        self._elsewhere = elsewhere
        self._simulators: dict[tuple[str, str], Simulator] = {}
        self._anchors: dict[tuple[str, str], Anchors] = {}

    def play(self, traces: Iterable[Trace]) -> Iterator[Predicted]:
        """A prediction for every call. What cannot be played is an error before anything is."""
        conversations = [_Conversation(trace, *self._model(trace)) for trace in traces]
        moments = [
            (group, at, order, index, conversation)
            for order, conversation in enumerate(conversations)
            for group in [conversation.trace.group or conversation.trace.id]
            for index, at in enumerate(conversation.times())
        ]
        moments.sort(key=lambda moment: moment[:4])
        for _, at, _, index, conversation in moments:
            yield self._predict(conversation, index, at)

    def _model(self, trace: Trace) -> tuple[str, str]:
        return self._elsewhere or (trace.provider, trace.model)

    def _predict(self, conversation: _Conversation, index: int, at: float) -> Predicted:
        trace, call = conversation.trace, conversation.trace.calls[index]
        place = conversation.provider, conversation.model
        simulator = self._simulators.get(place)
        if simulator is None:
            simulator = self._simulators[place] = Simulator(catalog.rules(*place))
            self._anchors[place] = Anchors()
        anchors = self._anchors[place]
        keys = conversation.keys(call)
        sizes = anchors.sizes(keys, conversation.blocks.sizes[: len(keys)], conversation.scale)
        knobs = {"model": conversation.model.encode()}
        rules, scope = simulator.rules, trace.group or ""
        prompt = prompt_of(call, conversation.blocks, sizes, rules, knobs)
        outcome = simulator.predict(prompt, at=at, scope=scope)
        before = conversation.before(index)
        billed = call.usage if self._elsewhere is None else None
        if billed is not None and keys:
            leading = conversation.blocks.first - 1
            if trace.system_tokens_unknown and billed.cache_read > outcome.read == 0:
                # Others of the same account begin alike: that much is the system prompt.
                anchors.learn(keys[leading], billed.cache_read)
            conversation.learn(keys, billed, anchors, rules, sum(sizes))
            # What it left in the cache is as long as the bill says.
            sizes = anchors.sizes(keys, conversation.blocks.sizes[: len(keys)], 1.0)
            prompt = prompt_of(call, conversation.blocks, sizes, rules, knobs)
        simulator.call(prompt, at=at, scope=scope)
        known = before.usage if before is not None else None
        began = before.at if before is not None else None
        return Predicted(
            trace=trace.id,
            call=index,
            provider=conversation.provider,
            model=conversation.model,
            at=call.at,
            gap=None if began is None or call.at is None else call.at - began,
            in_loop=before is not None and conversation.only_tools(before, call),
            outcome=outcome,
            billed=billed,
            baseline=None if known is None else known.cached or None,
        )


class _Conversation:
    """A trace while it is played."""

    def __init__(self, trace: Trace, provider: str, model: str) -> None:
        self.trace = trace
        self.provider = provider
        self.model = model
        try:
            profile = catalog.profile(provider, model)
        except InvalidRequest as problem:
            raise problem.within(f"{trace.id}.provider") from None
        self.blocks = Blocks(trace, profile.bytes_per_token.value)
        self.scale = 1.0
        """How many tokens were billed for each that was estimated."""
        self._keys: list[Hashable] = []

    def times(self) -> list[float]:
        """When each call started, or ended where nobody knows more. A call follows the one whose
        answer it sends back, whatever the clock says."""
        times: list[float] = []
        for call in self.trace.calls:
            at = call.at
            if times:
                at = max(times[-1] + _MOMENT, times[-1] + 1.0 if at is None else at)
            times.append(at or 0.0)
        return times

    def keys(self, call: TraceCall) -> list[Hashable]:
        """The identities of the prefixes that a call sent."""
        count = self.blocks.upto(call)
        if count:
            self._key(count - 1)
        return self._keys[:count]

    def _key(self, position: int) -> Hashable:
        for at in range(len(self._keys), position + 1):
            last = self._keys[at - 1] if at else 0
            self._keys.append(hash((last, self.blocks.identities[at])))
        return self._keys[position]

    def _answers(self, position: int) -> bool:
        return position < len(self.blocks.spoken) and self.blocks.spoken[position]

    def before(self, index: int) -> TraceCall | None:
        """The call before that was billed."""
        for earlier in range(index - 1, -1, -1):
            if self.trace.calls[earlier].usage is not None:
                return self.trace.calls[earlier]
        return None

    def only_tools(self, before: TraceCall, call: TraceCall) -> bool:
        new = range(before.messages, call.messages)
        first = self.blocks.first
        return bool(new) and all(
            self.blocks.spoken[first + at] or self.blocks.kinds[first + at].value == "tool_result"
            for at in new
        )

    def learn(
        self,
        keys: list[Hashable],
        billed: TraceUsage,
        anchors: Anchors,
        rules: CacheRules,
        estimated: int,
    ) -> None:
        """What a bill tells of the prompt's length."""
        marked = rules.mechanism.value != "implicit" and rules.slots.value > 0
        anchors.learn(keys[-1], billed.cached if marked and billed.cached else billed.total)
        along = rules.output_cached is not None and rules.output_cached.value
        if along and billed.output and self._answers(len(keys)):
            # The answer is cached along, with whatever reasoning is in it.
            anchors.learn(self._key(len(keys)), billed.total + billed.output)
        if estimated:
            # Slowly, so that one odd bill does not spoil it.
            self.scale *= (billed.total / estimated) ** 0.5 if billed.total else 1.0
            self.scale = min(4.0, max(0.25, self.scale))
