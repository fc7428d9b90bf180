"""A conversation while it is played: what each call sent, and what its bills have told so far."""

from __future__ import annotations

from collections.abc import Hashable

from anaphora import catalog
from anaphora.catalog import CacheRules
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind
from anaphora.tokens import bytes_in, tokens_in
from anaphora.values import Ttl

from .form import Trace, TraceCall, TraceUsage
from .notes import Parameters
from .places import provider_named
from .prompts import Anchors, Block, Blocks

#: The least time between a call and the next that sends its answer back.
_MOMENT = 0.001


class Playing:
    def __init__(self, trace: Trace, elsewhere: tuple[str, str] | None = None) -> None:
        self.trace = trace
        home = provider_named(trace.provider) or trace.provider
        self.provider, self.model = elsewhere or (home, trace.model)
        self.wire = trace.wire if elsewhere is None else None
        self._moved = elsewhere is not None
        try:
            profile = catalog.profile(self.provider, self.model)
        except InvalidRequest as problem:
            raise problem.within(f"{trace.id}.provider") from None
        self.blocks = Blocks(trace, profile)
        self._per_token = profile.bytes_per_token.value
        self._per_token_home = self._per_token
        if self._moved and home in catalog.shipped().providers:
            self._per_token_home = catalog.profile(home, trace.model).bytes_per_token.value
        self.scope = trace.group or trace.id
        self.ttls: tuple[Ttl, Ttl] = ("5m", "5m")
        """How long the assumed markers ask for, by the bills: before the messages, and behind."""
        self._parameters = Parameters(trace)
        self._keys: list[tuple[Hashable, Hashable]] = []
        """Of the last call's blocks: identity, and the key of the prefix that it ends."""
        self._left: set[int] = set()
        """What earlier calls have left in the cache, in tokens."""

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

    def cache_params(self, call: TraceCall, *, in_loop: bool) -> dict[str, bytes]:
        """The parameters of a call that its cache depends on."""
        cache_params = self._parameters.after(call, in_loop=in_loop)
        model = self.model if self._moved else self._parameters.model
        return {**cache_params, "model": catalog.rules(self.provider, model).model.encode()}

    def sent(self, call: TraceCall) -> tuple[list[Block], list[Hashable]]:
        """The blocks that a call sent, and the identities of the prefixes that they end."""
        blocks = self.blocks.sent(self.blocks.upto(call))
        known = self._keys
        same = 0
        while same < min(len(known), len(blocks)) and known[same][0] == blocks[same].identity:
            same += 1
        del known[same:]
        for block in blocks[same:]:
            last = known[-1][1] if known else 0
            known.append((block.identity, hash((last, block.identity))))
        return blocks, [key for _, key in known]

    def before(self, index: int) -> TraceCall | None:
        """The call before that was billed."""
        for earlier in range(index - 1, -1, -1):
            if self.trace.calls[earlier].usage is not None:
                return self.trace.calls[earlier]
        return None

    def only_tools(self, before: TraceCall, call: TraceCall) -> bool:
        """Whether nothing was said between two calls but by the model and its tools."""
        new = range(before.messages, call.messages)
        blocks = (self.blocks[self.blocks.first + at] for at in new)
        return bool(new) and all(block.spoken or block.kind is Kind.TOOL_RESULT for block in blocks)

    def remembers(self, billed: TraceUsage) -> bool:
        """Whether a call reads exactly what some earlier one has left."""
        return billed.cache_read in self._left

    def learn_ttls(self, billed: TraceUsage) -> int | None:
        """What a bill tells of the markers' lifetimes; and where the first stands, when they
        differ: "read A, 1h-write B−A, 5m-write C−B"."""
        if not billed.cache_write_1h:
            self.ttls = (self.ttls[0], "5m") if billed.cache_write_5m else self.ttls
            return None
        if not billed.cache_write_5m:
            self.ttls = ("1h", "1h")
            return None
        self.ttls = ("1h", "5m")
        return billed.cache_read + billed.cache_write_1h

    def measure(self, keys: list[Hashable], billed: TraceUsage, anchors: Anchors) -> None:
        """How long a prompt is in another model's tokens."""
        size = bytes_in(billed.total, self._per_token_home)
        anchors.learn(keys[-1], tokens_in(size, self._per_token))

    def learn(
        self,
        keys: list[Hashable],
        billed: TraceUsage,
        anchors: Anchors,
        rules: CacheRules,
    ) -> None:
        """What a bill tells of the prompt's length."""
        self._left.add(billed.cached)
        marked = rules.mechanism.value != "implicit" and rules.slots.value > 0
        anchors.learn(keys[-1], billed.cached if marked and billed.cached else billed.total)
        along = rules.output_cached is not None and rules.output_cached.value
        answer = self.blocks[len(keys)] if len(keys) < len(self.blocks) else None
        if along and billed.output and answer is not None and answer.spoken:
            # The answer is cached along, with whatever reasoning is in it.
            anchors.learn(hash((keys[-1], answer.identity)), billed.total + billed.output)
