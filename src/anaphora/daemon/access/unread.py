"""The memory that bodies of requests take before they are read, over all endpoints.

    exchange.account = unread.account(app.id)
    account.add(len(piece))         as it arrives; raises StoreUnavailable
    account.end()                   the body has been decoded, or its connection has ended

Bodies count as they arrive, so that a size that is only announced keeps nothing from others, and
compressed ones as they are decompressed. The first bytes of each are free: an ordinary call is
accepted while large bodies of others fill the budget. Connections limit how many that can be.
"""

from __future__ import annotations

from collections import Counter

from anaphora.errors import StoreUnavailable

#: Bytes of each body that do not count.
FREE_BYTES = 64 * 1024
#: Seconds after which a caller may try again.
_RETRY_SECONDS = 2.0


class UnreadBytes:
    """At most `most` bytes of unread bodies, half of them of one app."""

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
