"""Calls that were sent, and are simulated in their order when an outcome is needed.

Most outcomes are never read. A bounded number of calls wait: the oldest is simulated when there are
more, or dropped if nothing that can still be read depends on it and later calls continue it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from itertools import takewhile
from weakref import ref

import msgspec

from anaphora.cache.sent_call import begins_with
from anaphora.cache.simulator import Outcome, PromptView, RenderedPrompt, Simulator

#: Calls that wait, and the bytes of their prompts.
MOST_WAITING, MOST_BYTES = 64, 16_000_000
#: A call reads what the previous one left, whose own outcome depends on the one before that.
_DEPTH = 2


class SentTurn(msgspec.Struct, eq=False, weakref=True):
    """A call of a conversation. Its outcome is computed when it is first read, in any thread."""

    _outcome: Outcome | Exception | None
    _calls: DeferredCalls | None = None
    waiting: _WaitingCall | None = None
    reader: ref[Callable[[], object]] | None = None
    """Called to read the outcome; then the call is not needed any more. Must not raise."""

    @property
    def outcome(self) -> Outcome:
        if (calls := self._calls) is not None:
            with calls.lock:
                if self.waiting is not None:
                    calls.simulate(self.waiting)
        assert self._outcome is not None
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    @property
    def left(self) -> Outcome:
        """The outcome for what follows the call: empty if its simulation failed."""
        try:
            return self.outcome
        except Exception:
            return Outcome(())


class _WaitingCall(msgspec.Struct, eq=False):
    prompt: PromptView
    at: float
    began: float | None
    reasoning: int | None = None
    turn: ref[SentTurn] | None = None
    later: list[_WaitingCall] = []
    """The next call of the conversation, and of its forks."""

    def is_needed(self) -> bool:
        """Whether its outcome, or one of the conversation that depends on it, can still be read; or
        a later call does not begin with its prompt."""
        calls = [self]
        for _ in range(_DEPTH + 1):
            later: list[_WaitingCall] = []
            for call in calls:
                if call.turn is None or call.turn() is not None or not call.later:
                    return True
                later += call.later
            calls = later
        mine = self.prompt
        for call in self.later:
            prompt = call.prompt
            if not isinstance(mine, RenderedPrompt) or not isinstance(prompt, RenderedPrompt):
                return True
            if not begins_with(prompt.rendered, mine.rendered):
                return True
        return False


class DeferredCalls:
    """The calls of an app that wait to be simulated."""

    def __init__(self, simulator: Simulator) -> None:
        self.lock = threading.RLock()
        """Held while the simulator is used."""
        self._simulator = simulator
        self._waiting: deque[_WaitingCall] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add_single(self, prompt: PromptView, at: float, began: float | None) -> None:
        """A call outside any session."""
        self._add(_WaitingCall(prompt, at, began))

    def add_turn(
        self,
        prompt: PromptView,
        at: float,
        began: float | None,
        reasoning: int | None,
        before: SentTurn | None,
    ) -> SentTurn:
        """A call of a conversation; `before` is the previous one."""
        turn = SentTurn(None, self)
        waiting = turn.waiting = _WaitingCall(prompt, at, began, reasoning, ref(turn))
        if before is not None and before.waiting is not None:
            before.waiting.later.append(waiting)
        self._add(waiting)
        return turn

    def simulate(self, last: _WaitingCall | None = None) -> None:
        """Simulates the calls that wait, up to the last one."""
        with self.lock:
            while self._waiting and self._simulate(self._take()) is not last:
                pass

    def _add(self, waiting: _WaitingCall) -> None:
        with self.lock:
            self._waiting.append(waiting)
            self._bytes += waiting.prompt.size
            while len(self._waiting) > MOST_WAITING or self._bytes > MOST_BYTES:
                oldest = self._take()
                if oldest.is_needed() or self._is_read_before(oldest.later[0]):
                    self._simulate(oldest)

    def _is_read_before(self, later: _WaitingCall) -> bool:
        """Whether the outcome of a call before this one can be read: another conversation may have
        read the oldest one's write, which this one repeats."""
        between = takewhile(lambda call: call is not later, self._waiting)
        return any(call.turn is not None and call.turn() is not None for call in between)

    def _take(self) -> _WaitingCall:
        oldest = self._waiting.popleft()
        self._bytes -= oldest.prompt.size
        return oldest

    def _simulate(self, waiting: _WaitingCall) -> _WaitingCall:
        outcome: Outcome | Exception
        try:
            outcome = self._simulator.call(
                waiting.prompt, at=waiting.at, began=waiting.began, reasoning=waiting.reasoning
            )
        except Exception as problem:
            outcome = problem
        turn = None if waiting.turn is None else waiting.turn()
        if turn is not None:
            turn._outcome, turn._calls, turn.waiting = outcome, None, None
            if turn.reader is not None and (reader := turn.reader()) is not None:
                reader()
        return waiting
