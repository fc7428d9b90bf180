"""How many calls of one app run at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from anaphora.errors import GrantRateLimited


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
