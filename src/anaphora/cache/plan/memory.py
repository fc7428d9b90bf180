"""Memory of an app's earlier calls: their cache writes, and how often beginnings recur."""

from __future__ import annotations

import copy
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence

import msgspec

from anaphora.bounded import BoundedMap
from anaphora.cache.simulator import PromptView, RenderedPrompt, Simulator
from anaphora.cache.simulator.prompt import share_keys
from anaphora.catalog import CacheRules
from anaphora.rendered import Rendered
from anaphora.rendered.chunks import Stretches, same_bytes
from anaphora.values import TTL_SECONDS, Ttl

from .changes import UNKNOWN, SentBoundary
from .deferred import DeferredCalls, SentTurn

#: Prior P(next call within t): most calls follow within minutes.
_PRIOR = ((300.0, 0.9), (3600.0, 0.98))
#: How many observed pauses the prior is worth.
PRIOR_WEIGHT = 0.5
#: Expected number of further uses without any history.
_EXPECTED_USES = 8
#: Pauses that are remembered; old ones predict little.
MOST_GAPS = 64
#: Beginnings whose use is remembered.
_MOST_BEGINNINGS = 4096
#: Prefixes that may be read again. If every block is one, they are 60 conversations of 300
#: blocks; if only markers are, one or two come with each call, and mostly the last one is read.
_MOST_BLOCKS, _MOST_MARKERS = 20_000, 10_000
#: Open conversations from which the usual length is learned.
MOST_OPEN = 1024
#: A conversation without a call for this many seconds counts as ended.
_SILENCE = 600.0
#: How many conversations with the same beginning the average of the app is worth.
_APP_WEIGHT = 0.03
#: Single calls whose continuation is recognised: how many, and how many bytes of prompts; and how
#: many wait to be simulated.
_MOST_CALLS, _MOST_BYTES, _MOST_PENDING = 256, 4_000_000, 8


class Gaps:
    """The pauses between uses of a prefix."""

    __slots__ = ("_sorted", "count", "last", "lengths")

    def __init__(self, lengths: Iterable[float] = ()) -> None:
        # Arrays, since there are many of these objects, and lists take twice the memory.
        self.lengths = array("d", lengths)
        self._sorted = array("d", sorted(self.lengths))
        self.last: float | None = None
        """When the last use was."""
        self.count = 0

    def use(self, at: float) -> None:
        if self.last is not None:
            self.add(max(0.0, at - self.last))
        self.last = at
        self.count += 1

    def add(self, gap: float) -> None:
        """A pause, whenever it was."""
        self.lengths.append(gap)
        insort(self._sorted, gap)
        if len(self.lengths) > MOST_GAPS:
            del self._sorted[bisect_left(self._sorted, self.lengths.pop(0))]

    def until(self, count: int) -> Sequence[float]:
        """The pauses that are remembered of the first `count` uses."""
        return self.lengths[: max(0, len(self.lengths) - max(0, self.count - count))]

    def within(self, seconds: float, at: float) -> float:
        """P(the use after one at `at` comes within this many seconds)."""
        short, count = bisect_right(self._sorted, seconds), len(self.lengths)
        if self.last is not None:
            count += 1
            short += at - self.last <= seconds
        chance = _TTL_PRIORS.get(seconds) or prior(seconds)
        return (PRIOR_WEIGHT * chance + short) / (PRIOR_WEIGHT + count)

    def horizon(self, usual: float | None = None) -> float:
        """The expected number of further uses after the current one: about as many as there were,
        and 8 at first. `usual` is the usual total number of uses, if known; only before the first
        use may it lead to 0."""
        left = _EXPECTED_USES if usual is None else min(_EXPECTED_USES, usual - 1 - self.count)
        return max(left, self.count, 1 if self.count else 0)


def prior(seconds: float) -> float:
    """Linear between the two points of the prior; beyond them towards 1 at 24 hours."""
    (short, some), (long, most) = _PRIOR
    if seconds <= short:
        return some * seconds / short
    if seconds <= long:
        return some + (most - some) * (seconds - short) / (long - short)
    return most + (1 - most) * min(1.0, (seconds - long) / (24 * 3600 - long))


_TTL_PRIORS: dict[float, float] = {seconds: prior(seconds) for seconds in TTL_SECONDS.values()}


class TtlCosts:
    """The expected cost of one token of a prefix for each TTL, in multiples of the input price.

    A marked token is written once, read at every use within its lifetime, and written again after a
    longer pause. An unmarked one is paid at every use, unless the provider caches it anyway.
    """

    def __init__(self, rules: CacheRules) -> None:
        self._read = rules.read_price.value
        # Shortest first: on a tie the shorter one commits to less.
        self._marked = [
            (ttl, TTL_SECONDS[ttl], rules.writing(ttl)) for ttl in reversed(rules.ttls.value)
        ]
        self.unmarked = rules.unmarked_caching

    def by_ttl(
        self, gaps: Gaps, at: float, usual: float | None = None, changes: int = 0
    ) -> dict[Ttl | None, float]:
        """The cost with each TTL, and without a marker. `usual` is how often such a prefix is used
        in all, if that is known; `changes` is how often in a row it was not sent again."""
        uses, read, within = gaps.horizon(usual), self._read, gaps.within
        alike = PRIOR_WEIGHT / (PRIOR_WEIGHT + max(0, changes))
        costs: dict[Ttl | None, float] = {None: 1.0 + uses}
        if self.unmarked is not None:
            seconds, unmarked_read = self.unmarked
            found = alike * within(seconds, at)
            costs[None] = 1.0 + uses * (found * unmarked_read + (1 - found))
        for ttl, seconds, write in self._marked:
            found = alike * within(seconds, at)
            costs[ttl] = write + uses * (found * read + (1 - found) * write)
        return costs

    def best_ttl(self, gaps: Gaps, at: float, usual: float | None = None) -> Ttl | None:
        """The TTL that pays for these pauses; None if no marker does."""
        costs = self.by_ttl(gaps, at, usual)
        return min(costs, key=costs.__getitem__)


class ConversationState(msgspec.Struct):
    """The planner's memory of one conversation: small, and without any text."""

    number: int
    gaps: Gaps = msgspec.field(default_factory=Gaps)
    written: tuple[int, Hashable, float] | None = None
    """The deepest chunk written so far, its key, and when that entry expires. No key: the prompt
    is known to begin the same."""
    cache_key: str | None = None
    """The key chosen for providers that route requests by one."""
    counted: bool = False
    """Whether its calls count towards the usual length of a conversation."""
    changes: tuple[int, ...] = UNKNOWN
    """How often in a row each kind of boundary has changed."""
    sent: tuple[SentBoundary, ...] = ()
    """The boundaries of the last prompts."""


class ConversationUses:
    """Conversations with one beginning, or all of an app: how often they continued, how many
    ended, and the pauses between their calls."""

    __slots__ = ("continued", "ended", "gaps")

    def __init__(self) -> None:
        self.continued = 0
        self.ended = 0
        self.gaps = Gaps()


class SingleCallStore:
    """Prompts of recent single calls. Bytes are compared, since hashing would cost more."""

    def __init__(self) -> None:
        self._prompts = BoundedMap[tuple[str, int, int], tuple[Stretches, ConversationState, int]](
            _MOST_CALLS, most_size=_MOST_BYTES, size_of=lambda kept: kept[2]
        )
        """The prompts by wire, number of chunks and bytes."""
        self.last: RenderedPrompt | None = None
        """The last prompt, whose tools and system blocks are mostly those of the next one."""
        self.pending: deque[tuple[PromptView, float, float | None]] = deque(maxlen=_MOST_PENDING)
        """Calls to be simulated when a session needs a prediction."""
        self.begun = BoundedMap[bytes, ConversationState](_MOST_CALLS)
        """The last state of conversations, by their first message."""

    def keep(self, rendered: Rendered, state: ConversationState) -> None:
        """Keep the part of a call's prompt that a later call may continue."""
        chunks = rendered.cacheable
        size = rendered.offset(chunks)
        shape = rendered.wire, chunks, size
        if size > _MOST_BYTES:
            self._prompts.pop(shape, None)
        else:
            self._prompts[shape] = rendered.stretches(chunks), state, size

    def continued(self, rendered: Rendered, ends: Iterable[int]) -> ConversationState | None:
        """The state of the call whose prompt this one continues or repeats, if that prompt ended
        with one of these chunks."""
        wire, prompts = rendered.wire, self._prompts
        for end in ends:
            earlier = prompts.get((wire, end + 1, rendered.offset(end + 1)))
            if earlier is None:
                continue
            stretches = rendered.stretches(end + 1)
            if same_bytes(earlier[0], stretches):
                share_keys(earlier[0], stretches)
                return earlier[1]
        return None


class AppMemory:
    """One provider, model and account: shared by all conversations there. Bounded."""

    def __init__(self, rules: CacheRules) -> None:
        self.rules = rules
        every_block = rules.automatic_breakpoint.value in ("granules", "units")
        self.costs = TtlCosts(rules)
        self.simulator = Simulator(rules, most=_MOST_BLOCKS if every_block else _MOST_MARKERS)
        self.deferred = DeferredCalls(self.simulator)
        self.lock = self.deferred.lock
        self.beginnings = BoundedMap[Hashable, ConversationUses](_MOST_BEGINNINGS)
        self.open_calls: OrderedDict[int, tuple[float, Hashable]] = OrderedDict()
        """Conversations that may continue: the time of the last call, and the beginning."""
        self.recent: deque[float] = deque(maxlen=_MOST_BEGINNINGS)
        self.single_calls: SingleCallStore | None = None
        self.all_uses = ConversationUses()
        self.pauses = Gaps()
        """Between two calls of one conversation, of all of them."""
        self._started = 0

    def start(self) -> ConversationState:
        self._started += 1
        return ConversationState(self._started)

    def fork(self, state: ConversationState, *, begins: bool = False) -> ConversationState:
        """A copy for another conversation; `begins`: one with prompts of its own, which may have
        other tools, so that its cache key is chosen anew."""
        gaps = copy.deepcopy(state.gaps)
        self._started += 1
        forked = ConversationState(self._started, gaps, state.written)
        if not begins:
            forked.cache_key, forked.changes = state.cache_key, state.changes
            forked.sent = state.sent
        return forked

    def usual_calls(self, beginning: Hashable = None) -> float:
        """How many calls a conversation has: those with the same beginning, else all of the app."""
        app = (self.all_uses.continued + _EXPECTED_USES) / (self.all_uses.ended + 1)
        same = self.beginnings.get(beginning)
        if same is None:
            return 1 + app
        return 1 + (same.continued + _APP_WEIGHT * app) / (same.ended + _APP_WEIGHT)

    def calls_per_minute(self, at: float) -> int:
        while self.recent and self.recent[0] < at - 60:
            self.recent.popleft()
        return len(self.recent)

    def call(
        self,
        prompt: PromptView,
        shared: int | None,
        state: ConversationState,
        at: float,
        began: float | None,
        reasoning: int | None = None,
        before: SentTurn | None = None,
    ) -> SentTurn:
        """Records a call of a conversation, which is simulated when its outcome is read. `before`
        is the previous one."""
        if state.gaps.last is not None:
            self.pauses.add(max(0.0, at - state.gaps.last))
        beginning = self.record(prompt, shared, at)
        self.learn_length(state, beginning, at)
        self._defer_single_calls()
        return self.deferred.add_turn(prompt, at, began, reasoning, before)

    def current(self) -> Simulator:
        """The simulator with all calls so far; to be used with the lock."""
        self._defer_single_calls()
        self.deferred.simulate()
        return self.simulator

    def _defer_single_calls(self) -> None:
        while self.single_calls is not None and self.single_calls.pending:
            self.deferred.add_single(*self.single_calls.pending.popleft())

    def record(self, prompt: PromptView, shared: int | None, at: float) -> Hashable:
        """Record a call; returns the key of the beginning that its prompt shares with others."""
        self.recent.append(at)
        while self.recent[0] < at - 60:
            self.recent.popleft()
        if shared is None:
            return None
        beginning = prompt.key(shared)
        self.beginning(beginning).gaps.use(at)
        return beginning

    def beginning(self, beginning: Hashable) -> ConversationUses:
        same = self.beginnings.use(beginning)
        if same is None:
            same = self.beginnings[beginning] = ConversationUses()
        return same

    def learn_length(self, state: ConversationState, beginning: Hashable, at: float) -> None:
        """Learn how long conversations are: one that pauses counts as ended until its next call."""
        calls = self.open_calls
        while calls and at - next(iter(calls.values()))[0] > _SILENCE:
            _, (_, ended) = calls.popitem(last=False)
            for length in self._lengths(ended):
                length.ended += 1
        if state.number in calls:
            for length in self._lengths(beginning):
                length.continued += 1
        elif state.counted:
            for length in self._lengths(beginning):
                length.continued += 1
                length.ended -= length.ended > 0
        elif len(calls) >= MOST_OPEN:
            return
        state.counted = True
        calls[state.number] = at, beginning
        calls.move_to_end(state.number)

    def _lengths(self, beginning: Hashable) -> list[ConversationUses]:
        same = self.beginnings.get(beginning)
        return [self.all_uses] if same is None else [self.all_uses, same]
