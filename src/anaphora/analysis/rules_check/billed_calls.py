"""Billed calls with their context: the previous call, the time between, and facts about both."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from anaphora import catalog
from anaphora.analysis.trace.format import Trace, TraceCall, TraceMessage, TraceUsage
from anaphora.analysis.trace.replay import Replay, in_order
from anaphora.analysis.trace.sent_blocks import SentBlocks
from anaphora.cache.simulator.prefix_tree import PrefixTree
from anaphora.cache.simulator.view import lookback_steps
from anaphora.cache.verdict.judgement import NEARLY
from anaphora.catalog import CacheRules, LookbackUnit
from anaphora.rendered import Kind
from anaphora.values import TTL_SECONDS, Ttl

#: The longest duration assumed for a call of which only the end is recorded.
_LONGEST_CALL = 600.0

#: Seconds within which a call is a follow-up: a miss then has other reasons than time.
FOLLOW_UP = 300.0

_KINDS: dict[object, Kind] = {"tool_use": Kind.TOOL_CALL, "tool_result": Kind.TOOL_RESULT}


class TimeRange(NamedTuple):
    """A range of seconds."""

    least: float
    most: float


class MarkerPositions:
    """The positions of a conversation as a look-back counts them: blocks, not messages. Computed
    when needed: most calls have no recorded markers."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._tools = max(1, len(trace.tools or ()))

    @functools.cached_property
    def _layout(self) -> tuple[list[Kind], list[int]]:
        """The kind of each position, and the last position of each message. Tools that are not
        recorded are one position."""
        kinds: list[Kind] = [Kind.TOOL] * self._tools
        ends: list[int] = []
        for message in self._trace.messages:
            kinds += _block_kinds(message)
            ends.append(len(kinds) - 1)
        return kinds, ends

    def end(self, call: TraceCall) -> int:
        return self._layout[1][call.messages - 1] if call.messages else self._tools - 1

    def marked(self, call: TraceCall) -> list[int] | None:
        """The markers of a call, in order; None if they are not recorded."""
        if call.breakpoints is None:
            return None
        ends = self._layout[1]
        positions: set[int] = set()
        for where, _, tool in call.markers:
            if where == "automatic":
                positions.add(self.end(call))
            elif where == "tools":
                positions.add(self._tools - 1 if tool is None else min(tool, self._tools - 1))
            elif where < call.messages:
                positions.add(ends[where])
        return sorted(positions)

    def steps(self, marker: int, entry: int, unit: LookbackUnit) -> int:
        """How far before a marker an entry is, the marker's own position counted."""
        kinds = self._layout[0]
        return lookback_steps((kinds[at] for at in range(marker, entry - 1, -1)), unit)


def _block_kinds(message: TraceMessage) -> Iterator[Kind]:
    if message.role == "tool":
        yield Kind.TOOL_RESULT
    elif isinstance(message.content, list):
        yield from (_KINDS.get(name, Kind.TEXT) for name in message.block_types)
    elif message.content or not message.tool_calls:
        yield Kind.TEXT
    for _ in message.tool_calls or ():
        yield Kind.TOOL_CALL


class BilledTraceCall(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    trace: str
    call: int
    provider: str
    model: str
    wire: str | None
    rules: CacheRules
    sent: TraceCall
    billed: TraceUsage
    positions: MarkerPositions
    began: TimeRange | None
    """When it began, in the file's seconds."""
    before: BilledTraceCall | None
    appended: bool
    """By the recording, it begins with the whole prompt of the previous call."""
    same: bool
    """`appended`, and nothing unrecorded can have changed: the system prompt is recorded, or only
    replies and tool results were added."""
    whole: bool
    """The whole prompt is recorded."""
    alone: bool
    """No other recorded call has sent more of this prompt than the previous call did."""
    in_loop: bool
    cache_params: dict[str, bytes]
    noted: bool
    """A change of parameters was noted before this call, so that their old values are known."""
    ttl: Ttl | None
    """The TTL of the last part of its cache entry, by its bills."""
    written: TimeRange | None
    """When its cache entry was written: by itself, or by an earlier call if it has only read."""
    untouched: float | None
    """Minimum of seconds since any recorded call used the whole prompt of the previous call."""
    answer: int | None
    """Estimated tokens of the previous call's reply when it is sent back."""

    @property
    def marked(self) -> bool:
        """Whether entries are at markers."""
        return self.rules.mechanism.value != "implicit" and self.rules.slots.value > 0

    @property
    def gap(self) -> TimeRange | None:
        """Time since the previous call began; None if the clock runs backwards."""
        before = self.before
        if before is None or before.began is None or self.began is None:
            return None
        gap = TimeRange(self.began.least - before.began.most, self.began.most - before.began.least)
        return None if gap.most < 0 else gap

    @property
    def rest(self) -> float | None:
        """Minimum of seconds since the previous call ended."""
        if self.before is None or self.began is None or self.before.sent.t_end is None:
            return None
        return self.began.least - self.before.sent.t_end

    @property
    def life(self) -> float | None:
        """The TTL in seconds; None if the TTLs on record are those of handles."""
        if self.rules.mechanism.value == "both" and not self.rules.slots.value:
            return None
        return None if self.ttl is None else float(TTL_SECONDS[self.ttl])

    @property
    def left(self) -> int:
        """The most tokens that the next call can read, without the reply."""
        return self.billed.cached if self.marked else self.billed.total

    @property
    def floor(self) -> int:
        """The fewest tokens that the next call reads when it finds everything."""
        if self.marked:
            return self.left
        granule = self.rules.granule_tokens.value
        # An implicit cache may leave out the last tokens, up to two granules.
        floor = self.left - 2 * max(granule, 64)
        return max(1, floor if granule > 1 else min(floor, int(self.left * NEARLY)))

    @property
    def markers(self) -> list[int] | None:
        """Positions of its markers, in order; None if they are not recorded."""
        return self.positions.marked(self.sent)

    @property
    def last_entry(self) -> int:
        """Position of its last cache entry."""
        return self.markers[-1] if self.markers else self.positions.end(self.sent)

    def marker_near(self, entry: int) -> int:
        """The nearest marker at or after an entry; the last one if all are before it."""
        marked = self.markers or [self.positions.end(self.sent)]
        return next((position for position in marked if position >= entry), marked[-1])

    @property
    def reachable(self) -> bool:
        """Whether the end of the previous call's entry is certainly looked up, by every published
        way of counting. Without recorded markers, both calls are assumed to mark their end."""
        if not self.marked:
            return True
        before, figure = self.before, self.rules.lookback_positions
        if before is None or not before.billed.cached:
            return False
        if self.markers == [] or before.markers == []:
            return False
        reach = 1 if figure is None else min(figure.published)
        entry = before.last_entry
        if "breakpoints" in self.lookback_units:
            return entry in (self.markers or ())
        return 0 < self.positions.steps(self.marker_near(entry), entry, "blocks") <= reach

    @property
    def lookback_units(self) -> tuple[LookbackUnit, ...]:
        figure = self.rules.lookback_unit
        return () if figure is None else figure.published

    @property
    def expected(self) -> bool:
        """Whether this prompt begins with the previous call's entry, within the look-back."""
        before = self.before
        if before is None or not self.same or not self.reachable:
            return False
        least = self.rules.minimum_tokens.value + self.rules.granule_tokens.value
        return before.left >= max(1, least)

    @property
    def follows(self) -> bool:
        """Whether it comes soon after the previous call, whose prompt is cached, but not so soon
        that the write may be invisible."""
        before, gap = self.before, self.gap
        if before is None or gap is None or not self.expected:
            return False
        life = FOLLOW_UP if before.life is None else before.life
        delay, rest = self.rules.visibility_delay.value, self.rest
        if delay and (rest is None or rest <= delay):
            return False
        return gap.most <= min(life / 2, FOLLOW_UP)

    @property
    def left_earlier(self) -> set[int]:
        """Tokens that each earlier call left in the cache."""
        left: set[int] = set()
        earlier = self.before
        while earlier is not None and len(left) < 50:
            left.add(earlier.billed.cached)
            earlier = earlier.before
        return left - {0}

    @property
    def marks(self) -> bool:
        """Whether the client is known to mark, by the recording or by earlier bills."""
        if self.markers is not None:
            return bool(self.markers)
        return self.before is not None and self.before.billed.cached > 0

    @property
    def marks_end(self) -> bool:
        """Whether the client marks the end. A provider's own breakpoint need not be at the end; and
        OpenAI, which has both kinds, has billed tokens that were not sent (1,549 for a short
        question in pro mode), so that a bill is not the length of the marked prefix."""
        if not self.markers or self.rules.mechanism.value != "explicit":
            return False
        return self.markers[-1] == self.positions.end(self.sent)

    @property
    def uncached_tail(self) -> int:
        figure = self.rules.uncached_tail
        return 0 if figure is None else figure.value

    @property
    def hidden_before(self) -> int | None:
        """Tokens of hidden reasoning in the previous reply; None: not recorded."""
        return None if self.before is None else self.before.billed.reasoning


def billed_calls(traces: Iterable[Trace]) -> Iterator[BilledTraceCall]:
    """Every billed call, in the order they were made; those of one account together."""
    conversations = [_Conversation(trace) for trace in traces]
    accounts: dict[str, _SentPrompts] = {}
    for name, _, order, index in in_order([one.replay for one in conversations]):
        call = conversations[order].next(index, accounts.setdefault(name, _SentPrompts()))
        if call is not None:
            yield call


class _SentPrompts:
    """The prompts of an account's earlier calls, and the latest time at which each was sent."""

    def __init__(self) -> None:
        self._tree = PrefixTree()

    def last_sent(self, prompt: SentBlocks, blocks: int) -> float | None:
        """When a call last sent the first blocks of a prompt."""
        chain = self._tree.chain_of(prompt.key(blocks - 1)) if blocks else None
        when = math.inf if chain is None else chain.last_used(blocks - 1)
        return when if math.isfinite(when) else None

    def add(self, prompt: SentBlocks, when: float | None) -> int:
        """Adds a call, and returns how many of its leading blocks an earlier call has sent."""
        view = prompt.prompt()
        match = self._tree.match(view, view.key)
        # An unknown time may be any time.
        self._tree.add(view, view.key, match, math.inf if when is None else when)
        return match.position + 1


class _Conversation:
    def __init__(self, trace: Trace) -> None:
        self.replay = Replay(trace)
        self._positions = MarkerPositions(trace)
        self._last: BilledTraceCall | None = None
        self._last_end: tuple[int, Hashable] = (0, None)
        """How many blocks the previous billed call sent, and the key of all of them."""
        self._ended: float | None = None
        """When the previous call ended, billed or not."""
        self._noted = False

    def next(self, index: int, prompts: _SentPrompts) -> BilledTraceCall | None:
        """The call, if it was billed."""
        replay, trace = self.replay, self.replay.trace
        call, before = trace.calls[index], self._last
        sent = replay.sent(call)
        began = _began(call, self._ended)
        in_loop = before is not None and replay.blocks.only_tools(before.sent, call)
        params = replay.cache_params(call, in_loop=in_loop)
        model = params["model"].decode()
        length, end = self._last_end
        appended = 0 < length <= len(sent) and sent.key(length - 1) == end
        used = prompts.last_sent(sent, length) if appended else None
        known = prompts.add(sent, _used(call, began, replay.rules))
        billed: BilledTraceCall | None = None
        if call.usage is not None:
            rules = catalog.rules(replay.provider, model, replay.wire)
            reply = sent[length] if length < len(sent) and sent[length].from_model else None
            billed = BilledTraceCall(
                trace=trace.id,
                call=index,
                provider=replay.provider,
                model=catalog.profile(replay.provider, model).id,
                wire=replay.wire,
                rules=rules,
                sent=call,
                billed=call.usage,
                positions=self._positions,
                began=began,
                before=before,
                appended=appended,
                same=before is not None
                and appended
                and (in_loop or not trace.system_tokens_unknown)
                and before.cache_params == params
                and call.usage.total >= before.billed.total,
                whole=not trace.system_tokens_unknown,
                alone=known <= length,
                in_loop=in_loop,
                cache_params=params,
                noted=self._noted,
                ttl=_ttl(call.usage, rules, before),
                written=_written(call.usage, began, before),
                untouched=None if used is None or began is None else began.least - used,
                answer=None if reply is None else reply.size.tokens(replay.per_token[0]),
            )
            self._last = billed
            self._last_end = len(sent), sent.key(len(sent) - 1) if len(sent) else None
        self._noted = self._noted or "_change:" in (call.note or "")
        self._ended = call.t_end if call.t_end is not None else call.at
        return billed


def _ttl(billed: TraceUsage, rules: CacheRules, before: BilledTraceCall | None) -> Ttl | None:
    # Shorter TTLs come last in a prompt, so the shortest is that of its end.
    shortest = next(reversed(billed.by_ttl), None)
    for ttl in rules.ttls.value:
        if ttl == shortest:
            return ttl
    if before is not None and before.ttl in rules.ttls.value:
        return before.ttl
    return None if rules.default_ttl is None else rules.default_ttl.value


def _written(
    billed: TraceUsage, began: TimeRange | None, before: BilledTraceCall | None
) -> TimeRange | None:
    if billed.written:
        return began
    if before is not None and before.billed.cached == billed.cached:
        return before.written
    return None


def _used(call: TraceCall, began: TimeRange | None, rules: CacheRules) -> float | None:
    """The latest time at which a call used its prompt: lifetimes may count from its response."""
    if began is None:
        return None
    from_response = rules.ttl_from.value != "request_start" and call.ended is not None
    return max(began.most, call.ended or began.most) if from_response else began.most


def _began(call: TraceCall, ended: float | None) -> TimeRange | None:
    if call.t is not None:
        return TimeRange(call.t, call.t)
    if call.t_end is None:
        return None
    if call.dur is not None:
        return TimeRange(call.t_end - call.dur, call.t_end - call.dur)
    earliest = call.t_end - _LONGEST_CALL
    # A call begins after the end of the one whose reply it sends back.
    least = earliest if ended is None else min(call.t_end, max(earliest, ended))
    return TimeRange(least, call.t_end)
