"""Requests and tokens of the last minute, and running calls, by name, in memory.

    taken = windows.take("app notes", MinuteLimit(requests=60), tokens, now)
    taken.wait                          0.0: counted; otherwise seconds until the next try
    windows.correct(taken, billed)      when the call's tokens are known
    windows.release(taken)              when the call has ended, if running calls are limited

A sliding window: no period of 60 seconds has more than the limit. The caller passes the times, from
a monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Literal

import msgspec

MINUTE = 60.0
#: Length of a slot in seconds. Its calls are counted together and expire with the last of them.
SLOT = 0.25
#: Seconds after which a call that waits for a running one tries again, since the end of that is
#: unknown.
NEXT_TRY = 0.05
#: Maximum number of names; the least recently used is dropped first, once its minute is over.
_MOST_NAMES = 10_000


class MinuteLimit(msgspec.Struct, frozen=True):
    """Limits of requests and tokens per minute, and of running calls; None: no limit."""

    requests: float | None = None
    tokens: float | None = None
    running: float | None = None

    def share(self, nodes: int) -> MinuteLimit:
        """The share of one of several nodes while it cannot reach the others. At least one call,
        since a node with none would be useless."""
        if nodes <= 1:
            return self
        parts = (self.requests, self.tokens, self.running)
        requests, tokens, running = (None if each is None else each / nodes for each in parts)
        return MinuteLimit(
            requests=None if requests is None else max(1.0, requests),
            tokens=tokens,
            running=None if running is None else max(1.0, running),
        )


NO_LIMIT = MinuteLimit()


class Taken(msgspec.Struct, eq=False):
    """A call that was counted or must wait."""

    name: str
    slot: int
    """The slot in which it is counted."""
    tokens: int
    wait: float = 0.0
    by: Literal["requests", "tokens", "running"] | None = None
    """The limit that it waits for."""
    runs: bool = False
    """Counts as a running call until released."""
    lease: bytes = b""
    """Lease of a running call that other nodes also count."""
    local: Taken | None = None
    """The same call in this node's own count."""


class _Slot(msgspec.Struct):
    """The calls of a quarter of a second."""

    number: int
    requests: int = 0
    tokens: int = 0

    @property
    def expires(self) -> float:
        return (self.number + 1) * SLOT + MINUTE


class _Window(msgspec.Struct):
    """The last minute of one name: at most 241 slots."""

    slots: deque[_Slot]
    requests: int = 0
    tokens: int = 0
    running: int = 0

    def expire(self, now: float) -> None:
        while self.slots and self.slots[0].expires <= now:
            slot = self.slots.popleft()
            self.requests -= slot.requests
            self.tokens -= slot.tokens

    def add(self, number: int, requests: int, tokens: int) -> None:
        last = self.slots[-1] if self.slots else None
        if last is None or last.number != number:
            last = _Slot(number)
            self.slots.append(last)
        last.requests += requests
        last.tokens += tokens
        self.requests += requests
        self.tokens += tokens

    def fits_at(self, requests: float | None, tokens: float | None) -> float:
        """When at most this many requests and tokens will be left; None: no limit."""
        left_requests, left_tokens = self.requests, self.tokens
        at = 0.0
        for slot in self.slots:
            over = requests is not None and left_requests > requests
            if not over and (tokens is None or left_tokens <= tokens):
                break
            left_requests -= slot.requests
            left_tokens -= slot.tokens
            at = slot.expires
        return at


class MinuteWindows:
    """Windows by name. Bounded."""

    def __init__(self) -> None:
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    def take(self, name: str, limit: MinuteLimit, tokens: int, now: float) -> Taken:
        """Counts a call if the limit allows it. A call with more tokens than the limit passes if
        nothing else is counted: waiting would not help."""
        window = self._window(name, now)
        if window.slots:
            now = max(now, window.slots[-1].number * SLOT)
        window.expire(now)
        number = int(now // SLOT)
        if limit.running is not None and window.running >= limit.running:
            return Taken(name, number, tokens, NEXT_TRY, "running")
        room = None if limit.requests is None else limit.requests - 1
        room_tokens = None if limit.tokens is None else max(0.0, limit.tokens - tokens)
        wait = window.fits_at(room, room_tokens) - now
        if wait > 0:
            by_requests = room is not None and window.requests > room
            return Taken(name, number, tokens, wait, "requests" if by_requests else "tokens")
        runs = limit.running is not None
        window.running += runs
        window.add(number, 1, tokens)
        return Taken(name, number, tokens, runs=runs)

    def correct(self, taken: Taken, tokens: int) -> None:
        """Replaces the estimate by the tokens that the call used, 0 if it was not sent. Does
        nothing once the call has expired."""
        change, taken.tokens = tokens - taken.tokens, tokens
        window = self._windows.get(taken.name)
        if window is None or taken.wait:
            return
        for slot in reversed(window.slots):
            if slot.number <= taken.slot:
                if slot.number == taken.slot:
                    slot.tokens += change
                    window.tokens += change
                return

    def undo(self, taken: Taken) -> None:
        """Removes a call that another limit has refused."""
        self.correct(taken, 0)
        self.release(taken)
        window = self._windows.get(taken.name)
        if window is not None and window.slots and window.slots[-1].number == taken.slot:
            window.slots[-1].requests -= 1
            window.requests -= 1

    def release(self, taken: Taken) -> None:
        """Ends a running call."""
        window = self._windows.get(taken.name)
        if window is not None and taken.runs:
            taken.runs = False
            window.running -= 1

    def requests(self, name: str, now: float) -> int:
        """Number of calls in the last minute."""
        window = self._windows.get(name)
        if window is None:
            return 0
        window.expire(now)
        return window.requests

    def _window(self, name: str, now: float) -> _Window:
        window = self._windows.get(name)
        if window is None:
            window = self._windows[name] = _Window(deque())
            while len(self._windows) > _MOST_NAMES:
                oldest = next(iter(self._windows.values()))
                oldest.expire(now)
                if oldest.slots:
                    break
                self._windows.popitem(last=False)
        self._windows.move_to_end(name)
        return window
