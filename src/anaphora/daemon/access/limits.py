"""Limits of an app beside its spend: requests and tokens a minute over all nodes; calls at the same
time, and the memory of bodies that are not read yet, on this one.

    admission = await rates.admit(app, tokens)     raises GrantRateLimited
    rates.correct(admission, billed)               when the call's tokens are known

    exchange.account = unread.account(app.id)
    account.add(len(piece))         as it arrives; raises StoreUnavailable
    account.end()                   the body has been decoded, or its connection has ended
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import monotonic

from anaphora.daemon.shared_state import MinuteLimit, SharedState, Taken
from anaphora.daemon.values import App
from anaphora.errors import GrantRateLimited, NotGranted, StoreUnavailable

#: Bytes of each body that do not count.
FREE_BYTES = 64 * 1024
#: Seconds after which a caller may try again.
_RETRY_SECONDS = 2.0


class GrantRates:
    """The rates of all apps of a daemon."""

    def __init__(self, shared: SharedState, clock: Callable[[], float] = monotonic) -> None:
        self._shared = shared
        self._clock = clock
        self._used_up: dict[str, tuple[int, float]] = {}
        """By app: the limit of requests that refused a call, and until when it refuses others."""

    def check(self, app: App) -> None:
        """Raises `GrantRateLimited` where the requests of this minute were used up before: without
        counting, and without asking other nodes."""
        if not self._used_up or (found := self._used_up.get(app.id)) is None:
            return
        limit, until = found
        wait = until - self._clock()
        if wait <= 0 or limit != app.grant.llm.requests_per_minute:
            del self._used_up[app.id]
            return
        raise _refusal("requests_per_minute", limit, wait)

    async def admit(self, app: App, tokens: int) -> Taken:
        """Counts a call of so many tokens, estimated input and largest output together. Raises
        `GrantRateLimited` with the exact time to wait, and counts nothing then; `NotGranted` for
        more tokens than the grant allows in any minute."""
        grant = app.grant.llm
        requests, most = grant.requests_per_minute, grant.tokens_per_minute
        if most is not None and tokens > most:
            raise NotGranted(
                f"the call may take {tokens} tokens; tokens_per_minute of the grant is {most}"
            )
        if requests == 0:
            raise NotGranted("requests_per_minute of the grant is 0")
        limit = MinuteLimit(requests=requests, tokens=most)
        taken = await self._shared.take(f"app {app.id}", limit, tokens)
        if not taken.wait:
            return taken
        if taken.by == "requests" and requests is not None:
            self._used_up[app.id] = requests, self._clock() + taken.wait
        value = requests if taken.by == "requests" else most
        raise _refusal(f"{taken.by}_per_minute", value, taken.wait)

    def correct(self, taken: Taken, tokens: int) -> None:
        """Counts the tokens that a call really took; 0 where it was not sent."""
        self._shared.correct(taken, tokens)


def _refusal(name: str, value: int | None, wait: float) -> GrantRateLimited:
    reason = f"{name} of the grant is {value}; try again in {wait:.2f} s"
    return GrantRateLimited(reason, limit=name, retry_after=wait)


class CallSlots:
    """At most so many running calls of each app, over endpoints and JSON-RPC together. A batch is
    as many calls as it holds."""

    def __init__(
        self, most: int, refused: Callable[[str, GrantRateLimited], None] = lambda *_: None
    ) -> None:
        """`refused` is called with the app of each call that there is no slot for."""
        self._most = most
        self._refused = refused
        self._running: Counter[str] = Counter()
        self.begun = 0
        """Calls since the start."""

    @property
    def count(self) -> int:
        """Calls that run now."""
        return self._running.total()

    def running(self, app: str) -> TakenSlot:
        """A running call, for `with`. Raises `GrantRateLimited` where too many run already."""
        if self._running[app] >= self._most:
            refusal = GrantRateLimited(
                f"{self._most} calls of this app are running: wait until one has ended",
                limit="max_streams_per_app",
                retry_after=1.0,
            )
            self._refused(app, refusal)
            raise refusal
        self.begun += 1
        return TakenSlot(self._running, app)

    def keep(self, app: str) -> Callable[[], None]:
        """Counts a call that runs already as running on, until the result is called."""
        self._running[app] += 1

        def release() -> None:
            self._running[app] -= 1

        return release


class TakenSlot:
    """Counts a call of an app while the block runs."""

    __slots__ = ("_app", "_running")

    def __init__(self, running: Counter[str], app: str) -> None:
        self._running = running
        self._app = app

    def __enter__(self) -> None:
        self._running[self._app] += 1

    def __exit__(self, *exc_info: object) -> None:
        self._running[self._app] -= 1


# ── Bodies ────────────────────────────────────────────────────────────────────────────────────────


class UnreadBytes:
    """At most `most` bytes of unread bodies over all endpoints, half of them of one app.

    Bodies count as they arrive, so that a size that is only announced keeps nothing from others,
    and compressed ones as they are decompressed. The first bytes of each are free: an ordinary call
    is accepted while large bodies of others fill the budget. Connections limit how many that can
    be.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.most_of_app = most // 2
        self.total = 0
        self.largest = 0
        """The most that there were at once."""
        self._of_app: Counter[str] = Counter()

    def account(self, app: str) -> UnreadAccount:
        return UnreadAccount(self, app)

    def of_app(self, app: str) -> int:
        return self._of_app[app]

    def change(self, app: str, size: int) -> None:
        """Raises `StoreUnavailable`, and counts nothing then."""
        if size > 0:
            if self._of_app[app] + size > self.most_of_app:
                raise _full("of this app ", self.most_of_app)
            if self.total + size > self.most:
                raise _full("", self.most)
        self.total += size
        self.largest = max(self.largest, self.total)
        self._of_app[app] += size
        if not self._of_app[app]:
            del self._of_app[app]


def _full(whose: str, most: int) -> StoreUnavailable:
    reason = f"request bodies {whose}that are not read yet exceed {most:,} bytes: send it again"
    return StoreUnavailable(reason, retry_after=_RETRY_SECONDS)


class UnreadAccount:
    """What one body takes of the budget."""

    __slots__ = ("_app", "_budget", "_counted", "_size")

    def __init__(self, budget: UnreadBytes, app: str) -> None:
        self._budget = budget
        self._app = app
        self._size = self._counted = 0

    def add(self, size: int) -> None:
        """More of the body has arrived, or was decompressed. Raises `StoreUnavailable`."""
        self._size += size
        if self._size > FREE_BYTES:
            more = self._size - FREE_BYTES - self._counted
            self._budget.change(self._app, more)
            self._counted += more

    def end(self) -> None:
        """It takes nothing any more. May be called more than once."""
        if self._counted:
            self._budget.change(self._app, -self._counted)
        self._size = self._counted = 0
