"""What an app's earlier calls left at the provider, and how often each beginning comes back."""

from __future__ import annotations

import copy
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from typing import TypeAlias

import msgspec

from anaphora.cache.simulator import Outcome, Prompt, Simulator
from anaphora.catalog import CacheRules
from anaphora.rendered import Rendered

from .gaps import SOME, Gaps
from .prices import Lifetimes

#: Beginnings whose use is remembered.
_MOST = 4096
#: Prefixes that may be read again. Where every block is one, they are 60 conversations of 300
#: blocks; where only markers are, one or two come with each call, and mostly the last one is read.
_BLOCKS, _MARKERS = 20_000, 10_000
#: Open conversations from which the usual length is learned.
_OPEN = 1024
#: Single calls whose continuation is recognised: how many, and how many bytes of prompts.
_SINGLE, _SINGLE_BYTES = 256, 4_000_000
#: Single calls that wait to be simulated: only sessions ask for predictions.
_UNSIMULATED = 8
#: A conversation without a call for this many seconds counts as ended.
_SILENCE = 600.0
#: How many conversations with the same beginning the average of the app is worth.
_PRIOR = 0.03


_Shape: TypeAlias = tuple[str, int, int]
"""Of a prompt: its wire, its chunks and its bytes."""


class ConversationState(msgspec.Struct):
    """What the planner remembers of one conversation: small, and without any text."""

    number: int
    gaps: Gaps = msgspec.field(default_factory=Gaps)
    written: tuple[int, Hashable, float] | None = None
    """The deepest chunk written so far, its key, and when that entry expires. No key: the prompt
    is known to begin alike."""
    cache_key: str | None = None
    """The key chosen for providers that route requests by one."""
    counted: bool = False
    """Its calls count towards the usual length of a conversation."""

    def fork(self, number: int) -> ConversationState:
        return ConversationState(
            number, copy.deepcopy(self.gaps), self.written, self.cache_key, counted=False
        )


class _Length:
    """How many calls conversations have: how often one continued, for each that ended."""

    __slots__ = ("continued", "ended")

    def __init__(self) -> None:
        self.continued = 0
        self.ended = 0


class _Beginning(_Length):
    """The conversations that begin alike."""

    __slots__ = ("gaps",)

    def __init__(self) -> None:
        super().__init__()
        self.gaps = Gaps()


class AppMemory:
    """One provider, model and account: shared by all conversations there. Bounded."""

    def __init__(self, rules: CacheRules) -> None:
        self.rules = rules
        unmarked = rules.automatic_breakpoint.value in ("granules", "units")
        self.lifetimes = Lifetimes(rules)
        self.simulator = Simulator(rules, most=_BLOCKS if unmarked else _MARKERS)
        self._beginnings: OrderedDict[Hashable, _Beginning] = OrderedDict()
        self._open: OrderedDict[int, tuple[float, Hashable]] = OrderedDict()
        """Conversations that may continue: the time of the last call, and the beginning."""
        self._single: OrderedDict[_Shape, tuple[bytes, ConversationState]] = OrderedDict()
        """Single calls: the next one may continue the prompt."""
        self._single_bytes = 0
        self._unsimulated: deque[tuple[Prompt, float, float | None]] = deque(maxlen=_UNSIMULATED)
        self._lately: deque[float] = deque(maxlen=_MOST)
        self._length = _Length()
        self._started = 0

    def start(self) -> ConversationState:
        """A new conversation."""
        self._started += 1
        return ConversationState(self._started)

    def fork(self, state: ConversationState) -> ConversationState:
        self._started += 1
        return state.fork(self._started)

    def usual_calls(self, beginning: Hashable = None) -> float:
        """How many calls a conversation has: those that began alike, else all of the app."""
        app = (self._length.continued + SOME) / (self._length.ended + 1)
        same = self._beginnings.get(beginning)
        if same is None:
            return 1 + app
        return 1 + (same.continued + _PRIOR * app) / (same.ended + _PRIOR)

    def calls_per_minute(self, at: float) -> int:
        while self._lately and self._lately[0] < at - 60:
            self._lately.popleft()
        return len(self._lately)

    def seen(self, beginning: Hashable) -> bool:
        """Whether an earlier call began like this."""
        return beginning in self._beginnings

    def uses(self, beginning: Hashable) -> Gaps:
        """When all conversations with this beginning made their calls."""
        same = self._beginnings.get(beginning)
        return Gaps() if same is None else same.gaps

    def call(
        self,
        prompt: Prompt,
        shared: int | None,
        state: ConversationState,
        at: float,
        began: float | None,
    ) -> Outcome:
        """Records a call of a conversation, and simulates it."""
        beginning = self._record(prompt, shared, at)
        self._continue(state, beginning, at)
        self._simulate_pending()
        return self.simulator.call(prompt, at=at, began=began)

    def predict(self, prompt: Prompt, at: float) -> Outcome:
        """What a call would read and write now; nothing is recorded."""
        self._simulate_pending()
        return self.simulator.predict(prompt, at=at)

    def single_call(
        self, prompt: Prompt, shared: int | None, state: ConversationState, at: float
    ) -> None:
        """Records a call outside any session: over, unless a later one continues its prompt."""
        beginning = self._record(prompt, shared, at)
        if beginning is not None:
            same = self._beginnings[beginning]
            if state.gaps.count:
                same.continued += 1
            else:
                same.ended += 1

    def simulate_later(self, prompt: Prompt, at: float, began: float | None) -> None:
        """A single call that wrote to the cache: simulated when a session asks for a prediction."""
        self._unsimulated.append((prompt, at, began))

    def keep_single(self, rendered: Rendered, state: ConversationState) -> None:
        """Keeps the prompt of a single call, as far as a later call may continue it. Bytes are
        compared, since hashing each prompt would cost more."""
        data = rendered.cacheable_data()
        shape = rendered.wire, rendered.cacheable, len(data)
        before = self._single.pop(shape, None)
        if before is not None:
            self._single_bytes -= len(before[0])
        if len(data) > _SINGLE_BYTES:
            return
        self._single[shape] = data, state
        self._single_bytes += len(data)
        while len(self._single) > _SINGLE or self._single_bytes > _SINGLE_BYTES:
            _, (oldest, _) = self._single.popitem(last=False)
            self._single_bytes -= len(oldest)

    def continued(self, rendered: Rendered, ends: Iterable[int]) -> ConversationState | None:
        """The state of the single call whose prompt this one continues or repeats, if that prompt
        ended with one of these chunks."""
        for end in ends:
            shape = rendered.wire, end + 1, rendered.offset(end + 1)
            earlier = self._single.get(shape)
            if earlier is not None and earlier[0] == rendered.data(end + 1):
                return earlier[1]
        return None

    def _simulate_pending(self) -> None:
        while self._unsimulated:
            prompt, at, began = self._unsimulated.popleft()
            self.simulator.call(prompt, at=at, began=began)

    def _record(self, prompt: Prompt, shared: int | None, at: float) -> Hashable:
        self._lately.append(at)
        self.calls_per_minute(at)
        if shared is None:
            return None
        beginning = prompt.key(shared)
        same = self._beginnings.get(beginning)
        if same is None:
            same = self._beginnings[beginning] = _Beginning()
            if len(self._beginnings) > _MOST:
                self._beginnings.popitem(last=False)
        else:
            self._beginnings.move_to_end(beginning)
        same.gaps.use(at)
        return beginning

    def _continue(self, state: ConversationState, beginning: Hashable, at: float) -> None:
        """Learns how long conversations are: one that pauses has ended until it calls again."""
        calls = self._open
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
        elif len(calls) >= _OPEN:
            return
        state.counted = True
        calls[state.number] = at, beginning
        calls.move_to_end(state.number)

    def _lengths(self, beginning: Hashable) -> list[_Length]:
        same = self._beginnings.get(beginning)
        return [self._length] if same is None else [self._length, same]
