"""How many calls of one app run at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from anaphora.errors import GrantRateLimited


class CallSlots:
    """At most so many running calls of each app, over endpoints and JSON-RPC together. A batch is
    as many calls as it holds."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: Counter[str] = Counter()

    @contextmanager
    def running(self, app: str) -> Iterator[None]:
        """Raises `GrantRateLimited` where too many run already."""
        if self._running[app] >= self._most:
            raise GrantRateLimited(
                f"{self._most} calls of this app are running: wait until one has ended",
                limit="max_streams_per_app",
                retry_after=1.0,
            )
        self._running[app] += 1
        try:
            yield
        finally:
            self._running[app] -= 1
