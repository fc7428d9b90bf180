"""The calls of a trace as a cache sees them.

What a trace does not record is assumed: tools and system prompt as one block at the beginning,
markers at its end and behind the last message. Token counts are exact where an earlier bill gives
them, and estimated in between.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from itertools import pairwise

import msgspec
from blake3 import blake3

from anaphora import catalog
from anaphora.cache.simulator import Mark, TokenRuns
from anaphora.canonical import dumps
from anaphora.catalog import CacheRules, Profile, tool_overhead
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind
from anaphora.tokens import Size, calibrated, ends, measured
from anaphora.values import Section, Ttl

from .format import RecordedParams, Trace, TraceCall, TraceMessage, TraceUsage

#: The assumed size of a system prompt and tools that are not recorded.
_UNKNOWN = Size(0, 3000)
#: The least time between a call and the next that sends its reply back.
_LEAST_GAP = 0.001


class TraceBlock(msgspec.Struct, eq=False):
    """One message, the tools, or the system prompt."""

    identity: Hashable
    kind: Kind
    section: Section
    size: Size
    from_model: bool = False
    data: bytes = b""
    """What is recorded of it."""
    stripped: TraceBlock | None = None
    """The same without thinking, where it contains any."""


class TraceBlocks:
    """One conversation as blocks: the tools, the system prompt, each message."""

    def __init__(self, trace: Trace, profile: Profile) -> None:
        self._per_token = profile.bytes_per_token.value
        self._strips = profile.strips_thinking.value and profile.strips_thinking.verified
        self.all: list[TraceBlock] = []
        if trace.tools:
            self.all += _tool_blocks(trace)
        if trace.system_tokens_unknown:
            unknown = ("system", trace.group or trace.id)
            self.all.append(TraceBlock(unknown, Kind.SYSTEM, "system", _UNKNOWN))
        self.first = len(self.all)
        self._user_turns: list[int] = []
        """User messages that are not tool results."""
        for message in trace.messages:
            block = self._message(message)
            if message.role == "user" and block.kind is not Kind.TOOL_RESULT:
                self._user_turns.append(len(self.all))
            self.all.append(block)

    def estimates(self, blocks: list[TraceBlock]) -> list[int]:
        """The estimated tokens up to the end of each block."""
        return ends([block.size for block in blocks], self._per_token)

    def sent(self, call: TraceCall) -> list[TraceBlock]:
        """The blocks of a call as the provider hashes them: without thinking before the last user
        turn, where the provider drops it."""
        count = self.first + call.messages
        blocks = self.all[:count]
        if self._strips:
            last = next((turn for turn in reversed(self._user_turns) if turn < count), 0)
            blocks[:last] = [block.stripped or block for block in blocks[:last]]
        return blocks

    def _message(self, message: TraceMessage) -> TraceBlock:
        section: Section = "system" if message.role == "system" else "messages"
        types = message.block_types
        kind = Kind.TEXT
        if message.role == "tool" or "tool_result" in types:
            kind = Kind.TOOL_RESULT
        elif message.tool_calls or "tool_use" in types:
            kind = Kind.TOOL_CALL
        block = _block(message, message.content, kind, section)
        if self._strips and message.has_thinking:
            thinking = ("thinking", "redacted_thinking")
            pairs = zip(message.content, types, strict=True)
            kept = [content for content, kind_name in pairs if kind_name not in thinking]
            block.stripped = _block(message, kept, kind, section)
        return block


def _block(message: TraceMessage, content: object, kind: Kind, section: Section) -> TraceBlock:
    data = dumps([message.role, content, message.tool_calls, message.tool_call_id])
    size = message.size
    if size is None or content is not message.content:
        size = measured(data)
    from_model = message.role in ("assistant", "model")
    return TraceBlock(_identity(data), kind, section, size, from_model, data)


def _identity(data: bytes) -> bytes:
    return blake3(data).digest(16)


def _tool_blocks(trace: Trace) -> list[TraceBlock]:
    """A block for each tool, so that a marker may be on any of them."""
    tools = [dumps(tool) for tool in trace.tools or ()]
    sizes = trace.tools_sizes
    if sizes is None:
        overhead = tool_overhead(trace.wire or "")
        sizes = tuple(Size(len(data), 0 if n else overhead) for n, data in enumerate(tools))
    return [
        TraceBlock(_identity(data), Kind.TOOL, "tools", size, data=data)
        for data, size in zip(tools, sizes, strict=True)
    ]


class BilledLengths(dict[Hashable, int]):
    """Token counts from bills, by prefix. Counts in between are estimated and scaled to fit."""

    def sizes(self, keys: list[Hashable], estimates: list[int]) -> list[int]:
        """The tokens of each block, so that every prefix with a known count has that count."""
        points: list[tuple[int, int]] = []
        for key, end in zip(keys, estimates, strict=True):
            known = self.get(key)
            if known is None:
                continue
            # The deeper the newer: where an older bill is higher, the prompt has changed since.
            while points and (points[-1][1] > known or points[-1][0] == end):
                points.pop()
            points.append((end, known))
        counted = [calibrated(points, end) for end in estimates]
        return [end - start for start, end in pairwise([0, *counted])]


class Replay:
    """A conversation call by call, and what its bills have shown so far."""

    def __init__(self, trace: Trace, elsewhere: tuple[str, str] | None = None) -> None:
        """`elsewhere` is another provider and model to replay it on."""
        self.trace = trace
        home = catalog.provider_named(trace.provider) or trace.provider
        self.provider, self.model = elsewhere or (home, trace.model)
        self.wire = trace.wire if elsewhere is None else None
        self._moved = elsewhere is not None
        try:
            profile = catalog.profile(self.provider, self.model)
        except InvalidRequest as problem:
            raise problem.within(f"{trace.id}.provider") from None
        self.blocks = TraceBlocks(trace, profile)
        per_token = home_per_token = profile.bytes_per_token.value
        if self._moved and home in catalog.shipped().providers:
            home_per_token = catalog.profile(home, trace.model).bytes_per_token.value
        self.per_token = per_token, home_per_token
        """Bytes per token of the model, and of the one that was billed."""
        self.scope = trace.group or trace.id
        self.ttls: tuple[Ttl, Ttl] = ("5m", "5m")
        """The TTLs of assumed markers, by the bills: before the messages, and behind the last."""
        self._params = RecordedParams(trace)
        self._keys: list[tuple[Hashable, Hashable]] = []
        """The last call's blocks: identity, and the key of the prefix each one ends."""
        self.left: set[int] = set()
        """Tokens that each earlier call left in the cache."""
        self._times: list[float] = []

    def times(self) -> list[float]:
        """When each call started, or ended where the start is unknown. A call follows the one whose
        reply it sends back, whatever the clock says."""
        times = self._times
        for call in self.trace.calls[len(times) :]:
            at = call.at
            if times:
                at = max(times[-1] + _LEAST_GAP, times[-1] + 1.0 if at is None else at)
            times.append(at or 0.0)
        return times

    def answered(self, index: int) -> tuple[float | None, float | None]:
        """When the response to a call began and ended, as far as known. The conversation's next
        call was sent after both."""
        call, times = self.trace.calls[index], self.times()
        before = times[index + 1] - _LEAST_GAP if index + 1 < len(times) else math.inf
        moments = (
            None if moment is None else max(times[index], min(moment, before))
            for moment in (call.t_first, call.ended)
        )
        began, ended = moments
        return began, ended

    def cache_params(self, call: TraceCall, *, in_loop: bool) -> dict[str, bytes]:
        params = self._params.after(call, in_loop=in_loop)
        model = self.model if self._moved else self._params.model
        return {**params, "model": catalog.rules(self.provider, model).model.encode()}

    def sent(self, call: TraceCall) -> tuple[list[TraceBlock], list[Hashable]]:
        """The blocks of a call, and the keys of the prefixes that they end."""
        blocks = self.blocks.sent(call)
        known = self._keys
        same = 0
        while same < min(len(known), len(blocks)) and known[same][0] == blocks[same].identity:
            same += 1
        del known[same:]
        for block in blocks[same:]:
            last = known[-1][1] if known else 0
            known.append((block.identity, hash((last, block.identity))))
        return blocks, [key for _, key in known]

    def only_tools(self, before: TraceCall, call: TraceCall) -> bool:
        """Whether only replies and tool results came between two calls."""
        new = range(before.messages, call.messages)
        blocks = (self.blocks.all[self.blocks.first + index] for index in new)
        return bool(new) and all(
            block.from_model or block.kind is Kind.TOOL_RESULT for block in blocks
        )

    def learn_ttls(self, billed: TraceUsage) -> int | None:
        """Learns the TTLs of the markers from a bill. Where they differ ("read A, 1h-write B-A,
        5m-write C-B"), gives the position of the first."""
        if not billed.cache_write_1h:
            self.ttls = (self.ttls[0], "5m") if billed.cache_write_5m else self.ttls
            return None
        if not billed.cache_write_5m:
            self.ttls = ("1h", "1h")
            return None
        self.ttls = ("1h", "5m")
        return billed.cache_read + billed.cache_write_1h

    def learn_length(
        self, keys: list[Hashable], billed: TraceUsage, lengths: BilledLengths, rules: CacheRules
    ) -> None:
        """Learns how long a prompt is from its bill."""
        self.left.add(billed.cached)
        marked = rules.mechanism.value != "implicit" and rules.slots.value > 0
        lengths[keys[-1]] = billed.cached if marked and billed.cached else billed.total
        reply = self.blocks.all[len(keys)] if len(keys) < len(self.blocks.all) else None
        cached = rules.reply_cached(billed.reasoning)
        if cached and billed.output and reply is not None and reply.from_model:
            # The reply is cached with the reasoning in it.
            lengths[hash((keys[-1], reply.identity))] = billed.total + billed.output

    def prompt(
        self,
        call: TraceCall,
        blocks: list[TraceBlock],
        sizes: list[int],
        rules: CacheRules,
        params: dict[str, bytes],
        mark_lead: bool,
    ) -> TokenRuns:
        """Where no markers are recorded, one is assumed behind the last message, and with
        `mark_lead` one before the messages."""
        explicit = rules.mechanism.value == "explicit"
        marked = explicit or bool(call.breakpoints)
        return TokenRuns(
            [(block.identity, size) for block, size in zip(blocks, sizes, strict=True)],
            markers=self._markers(call, blocks, rules, mark_lead) if marked else (),
            automatic=_automatic(call, rules),
            kinds=[block.kind for block in blocks],
            sections=[block.section for block in blocks],
            from_model=[block.from_model for block in blocks],
            cache_params=params,
            texts=[block.data for block in blocks],
        )

    def _markers(
        self, call: TraceCall, blocks: list[TraceBlock], rules: CacheRules, mark_lead: bool
    ) -> tuple[Mark, ...]:
        first = self.blocks.first
        marks: dict[int, Ttl | None] = {}
        tools = [at for at, block in enumerate(blocks[:first]) if block.section == "tools"]
        for where, ttl, tool in call.markers:
            if where == "tools":
                # Tools that are not recorded are part of the block at the beginning.
                marks[tools[-1 if tool is None else tool] if tools else 0] = ttl
            elif isinstance(where, int) and first + where < len(blocks):
                marks[first + where] = ttl
        if call.breakpoints is None:
            lead = sum(block.section != "messages" for block in blocks) - 1
            assumed = zip((lead if mark_lead else -1, len(blocks) - 1), self.ttls, strict=True)
            marks |= {position: ttl for position, ttl in assumed if position >= 0}
        return tuple(
            Mark(position, _lifetime(marks[position], rules)) for position in sorted(marks)
        )


def _automatic(call: TraceCall, rules: CacheRules) -> Ttl | None:
    """The TTL of the marker that the provider places: at every call, or where one was asked for."""
    where = rules.automatic_breakpoint.value
    recorded = [marker.ttl for marker in call.markers if marker.where == "automatic"]
    if where == "last_message" and rules.default_ttl is not None:
        return _lifetime(recorded[0] if recorded else None, rules)
    return _lifetime(recorded[0], rules) if recorded and where == "last_block" else None


def _lifetime(ttl: Ttl | None, rules: CacheRules) -> Ttl:
    """A call may be replayed at another provider: a TTL that it does not have is its default."""
    known = rules.ttls.value
    if ttl is not None and ttl in known:
        return ttl
    return rules.default_ttl.value if rules.default_ttl is not None else known[-1]
