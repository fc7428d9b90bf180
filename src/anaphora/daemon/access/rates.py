"""Requests and tokens a minute of each app, counted by this process.

taken = rates.admit(app, tokens)        raises GrantRateLimited
rates.correct(taken, billed)            when the call's tokens are known

A sliding window: no period of 60 seconds has more than the grant's limit.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic

import msgspec

from anaphora.daemon.values import App
from anaphora.errors import GrantRateLimited, NotGranted

MINUTE = 60.0
#: Length of a slot in seconds. Its calls are counted together and expire with the last of them.
_SLOT = 0.25
#: Maximum number of apps; the least recently used is dropped first, once its minute is over.
_MOST_APPS = 10_000


class TakenRate(msgspec.Struct, eq=False):
    """A call that was counted."""

    app: str
    slot: int
    tokens: int


class _Slot(msgspec.Struct):
    number: int
    requests: int = 0
    tokens: int = 0

    @property
    def expires(self) -> float:
        return (self.number + 1) * _SLOT + MINUTE


class _Window(msgspec.Struct):
    """The last minute of one app: at most 241 slots."""

    slots: deque[_Slot]
    requests: int = 0
    tokens: int = 0

    def expire(self, now: float) -> None:
        while self.slots and self.slots[0].expires <= now:
            slot = self.slots.popleft()
            self.requests -= slot.requests
            self.tokens -= slot.tokens

    def add(self, number: int, tokens: int) -> None:
        if not self.slots or self.slots[-1].number != number:
            self.slots.append(_Slot(number))
        last = self.slots[-1]
        last.requests += 1
        last.tokens += tokens
        self.requests += 1
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


class GrantRates:
    """The rates of all apps of a daemon. Used from one event loop."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._windows: OrderedDict[str, _Window] = OrderedDict()
        self.used_up: dict[str, tuple[int, float]] = {}
        """By app: the request limit that refused a call, and the time until which it refuses
        more."""

    def check(self, app: App) -> None:
        """Raises `GrantRateLimited` if an earlier call used up the requests of this minute. Counts
        nothing."""
        if (found := self.used_up.get(app.id)) is None:
            return
        limit, until = found
        wait = until - self._clock()
        if wait <= 0 or limit != app.grant.llm.requests_per_minute:
            del self.used_up[app.id]
            return
        raise _refusal("requests_per_minute", limit, wait)

    def admit(self, app: App, tokens: int) -> TakenRate:
        """Counts a call with its tokens: estimated input plus maximum output. Raises
        `GrantRateLimited` with the exact time to wait, or `NotGranted` for more tokens than the
        grant allows in any minute; then nothing is counted."""
        grant = app.grant.llm
        requests, most = grant.requests_per_minute, grant.tokens_per_minute
        if most is not None and tokens > most:
            raise NotGranted(
                f"the call may take {tokens} tokens; tokens_per_minute of the grant is {most}"
            )
        if requests == 0:
            raise NotGranted("requests_per_minute of the grant is 0")
        now = self._clock()
        window = self._window(app.id, now)
        if window.slots:
            now = max(now, window.slots[-1].number * _SLOT)
        window.expire(now)
        room = None if requests is None else requests - 1
        wait = window.fits_at(room, None if most is None else most - tokens) - now
        if wait > 0:
            if requests is not None and window.requests >= requests:
                self.used_up[app.id] = requests, self._clock() + wait
                raise _refusal("requests_per_minute", requests, wait)
            raise _refusal("tokens_per_minute", most, wait)
        number = int(now // _SLOT)
        window.add(number, tokens)
        return TakenRate(app.id, number, tokens)

    def correct(self, taken: TakenRate, tokens: int) -> None:
        """Replaces the estimate by the tokens that the call used, 0 if it was not sent. Does
        nothing once the call has expired."""
        change, taken.tokens = tokens - taken.tokens, tokens
        window = self._windows.get(taken.app)
        if window is None:
            return
        for slot in reversed(window.slots):
            if slot.number <= taken.slot:
                if slot.number == taken.slot:
                    slot.tokens += change
                    window.tokens += change
                return

    def _window(self, app: str, now: float) -> _Window:
        window = self._windows.get(app)
        if window is None:
            window = self._windows[app] = _Window(deque())
            while len(self._windows) > _MOST_APPS:
                oldest = next(iter(self._windows.values()))
                oldest.expire(now)
                if oldest.slots:
                    break
                self._windows.popitem(last=False)
        self._windows.move_to_end(app)
        return window


def _refusal(name: str, value: int | None, wait: float) -> GrantRateLimited:
    reason = f"{name} of the grant is {value}; try again in {wait:.2f} s"
    return GrantRateLimited(reason, limit=name, retry_after=wait)
