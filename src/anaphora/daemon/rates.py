"""The rates of grants: requests and tokens a minute of each app, over a sliding window.

    admission = rates.admit(app, tokens, now)      raises GrantRateLimited
    rates.correct(admission, billed)               when the call's tokens are known

No minute, wherever it begins, holds more than the grant allows. Times come from the caller, by a
clock that does not jump.
"""

from __future__ import annotations

from collections import OrderedDict, deque

import msgspec

from anaphora.errors import GrantRateLimited, NotGranted

from .grants import LlmGrant
from .values import App

MINUTE = 60.0
#: Calls of so many seconds are counted together, and expire together when the last of them would.
_SLOT = 0.25
#: Apps that are remembered; the least recently used goes first, once its minute is over.
_MOST_APPS = 10_000


class _Slot(msgspec.Struct):
    """The calls of a quarter of a second."""

    number: int
    requests: int = 0
    tokens: int = 0

    @property
    def expires(self) -> float:
        return (self.number + 1) * _SLOT + MINUTE


class _Window(msgspec.Struct):
    """One app's last minute: at most 241 slots."""

    slots: deque[_Slot]
    requests: int = 0
    tokens: int = 0

    def expire(self, now: float) -> None:
        while self.slots and self.slots[0].expires <= now:
            slot = self.slots.popleft()
            self.requests -= slot.requests
            self.tokens -= slot.tokens

    def fits_at(self, requests: int | None, tokens: int | None) -> float:
        """When enough has expired for no more than so many to be left; None: any number."""
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


class Admission(msgspec.Struct, eq=False):
    """One admitted call, and the tokens that are counted for it."""

    window: _Window
    slot: _Slot
    tokens: int


class Rates:
    """The rates of all apps of a daemon, in memory."""

    def __init__(self) -> None:
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    def admit(self, app: App, tokens: int, now: float) -> Admission:
        """Counts a call of so many tokens, estimated input and largest output together. Raises
        `GrantRateLimited` with the exact time to wait, and counts nothing then; `NotGranted` for
        more tokens than the grant allows in any minute."""
        grant = app.grant.llm
        most = grant.tokens_per_minute
        if most is not None and tokens > most:
            raise NotGranted(
                f"the call may take {tokens} tokens; tokens_per_minute of the grant is {most}"
            )
        if grant.requests_per_minute == 0:
            raise NotGranted("requests_per_minute of the grant is 0")
        window = self._window(app.id, now)
        last = window.slots[-1] if window.slots else None
        if last is not None:
            now = max(now, last.number * _SLOT)
        window.expire(now)
        _check(window, grant, tokens, now)
        number = int(now // _SLOT)
        if last is None or last.number != number or not window.slots:
            last = _Slot(number)
            window.slots.append(last)
        last.requests += 1
        last.tokens += tokens
        window.requests += 1
        window.tokens += tokens
        return Admission(window, last, tokens)

    def correct(self, admission: Admission, tokens: int) -> None:
        """Counts the tokens that a call really took; 0 where it was not sent. What has expired
        stays so."""
        change = tokens - admission.tokens
        admission.tokens = tokens
        admission.slot.tokens += change
        slots = admission.window.slots
        if slots and slots[0].number <= admission.slot.number:
            admission.window.tokens += change

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


def _check(window: _Window, grant: LlmGrant, tokens: int, now: float) -> None:
    """Raises where one more call of so many tokens exceeds a rate of the grant."""
    requests, most = grant.requests_per_minute, grant.tokens_per_minute
    room = None if requests is None else requests - 1
    room_tokens = None if most is None else most - tokens
    wait = window.fits_at(room, room_tokens) - now
    if wait <= 0:
        return
    by_requests = room is not None and window.requests > room
    name = "requests_per_minute" if by_requests else "tokens_per_minute"
    limit = requests if by_requests else most
    raise GrantRateLimited(
        f"{name} of the grant is {limit}; try again in {wait:.2f} s", limit=name, retry_after=wait
    )
