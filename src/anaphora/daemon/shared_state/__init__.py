"""State that the nodes of one installation share besides the store: rates of the last minute,
planner and verdict state of conversations, open circuit breakers, explanations of calls.

    shared = LocalState()                                               one node
    shared = RedisState.of("redis://…", password, nodes=lambda: 3)      Redis or Valkey
    await shared.start()
    taken = await shared.take("app notes", MinuteLimit(requests=60), tokens)

Never money, keys or text of prompts: losing all of it costs cache hits and a minute of exact
limits. Nothing here raises if the server is unreachable: then each node counts its share of a
limit, and knows only the conversations that it served itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TypeAlias

import msgspec

from .windows import MINUTE, MinuteLimit, MinuteWindows, Taken

__all__ = [
    "MINUTE",
    "LocalState",
    "MinuteLimit",
    "MinuteWindows",
    "SavedRecord",
    "SharedState",
    "Taken",
]

#: Seconds that conversations and explanations are kept after their last use.
KEPT = 6 * 3600
#: Bytes of a record's id, and of the digest of one chunk.
ID_BYTES, DIGEST_BYTES = 8, 16

Listener: TypeAlias = Callable[[bytes, float], None]
"""Gets the news of another node and its age in seconds."""


class SavedRecord(msgspec.Struct, eq=False):
    """A saved conversation."""

    id: bytes
    """`save` changes it if two nodes have continued the conversation."""
    version: bytes
    """Version of the last call. The next call names it, so that two continuations become two
    records."""
    data: bytes


class SharedState(ABC):
    """One node's view of the shared state. Used from one event loop. Without a server nothing is
    saved or found, and each node counts for itself."""

    alone = False
    """No other node reads this state, so nothing has to be saved."""

    async def start(self) -> None:  # noqa: B027
        """Connects, if the server can be reached."""

    async def close(self) -> None:  # noqa: B027
        """Sends what is queued and disconnects."""

    @property
    def problem(self) -> str:
        """Why nothing is shared at the moment; empty if it is."""
        return ""

    async def probe(self) -> None:  # noqa: B027
        """Checks that the server responds; `problem` has the result."""

    # ── Limits ───────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    async def take(
        self, name: str, limit: MinuteLimit, tokens: int, *, seconds: float = 0.0
    ) -> Taken:
        """Counts a call if the limit allows it; otherwise `Taken.wait` says how long to wait. If
        running calls are limited, it counts as one until `release`, or for `seconds`."""

    @abstractmethod
    def correct(self, taken: Taken, tokens: int) -> None:
        """Replaces the estimate by the tokens that the call used, 0 if it was not sent."""

    @abstractmethod
    def release(self, taken: Taken) -> None:
        """Ends a call that counted as running."""

    def count(self, name: str, at: float) -> None:  # noqa: B027
        """Counts a call without a limit; `at` is the Unix time."""

    # ── Conversations ────────────────────────────────────────────────────────────────────────────

    async def find(
        self,
        keys: Sequence[bytes],  # noqa: ARG002
        counted: str = "",  # noqa: ARG002
        at: float = 0.0,  # noqa: ARG002
    ) -> tuple[list[tuple[int, SavedRecord]], int]:
        """The records saved under any of these keys, each with the index of its first key, in that
        order; and the number of calls counted under a name in the minute before `at`."""
        return [], 0

    def save(  # noqa: B027
        self,
        record: SavedRecord,
        before: bytes,
        keys: Sequence[bytes],
        digests: Callable[[int], bytes],
        first: int,
    ) -> None:
        """Saves a record under keys. `before` is the version it replaces; if another node has
        replaced that, it becomes a new record. `digests` returns those of the prompt's chunks from
        a chunk on; those before the chunk `first` are already saved."""

    async def digests(self, record: SavedRecord) -> bytes:  # noqa: ARG002
        """The digests of a record's chunks; empty if unknown."""
        return b""

    # ── Values and news ──────────────────────────────────────────────────────────────────────────

    async def get(self, name: str) -> bytes | None:  # noqa: ARG002
        return None

    def put(self, name: str, value: bytes) -> None:  # noqa: B027
        """Stores a value for `get` on any node."""

    def tell(self, news: bytes) -> None:  # noqa: B027
        """Sends news to the other nodes, within a second."""

    def listen(self, listener: Listener) -> None:  # noqa: B027
        """Calls `listener` with news of other nodes."""


class LocalState(SharedState):
    """State of a single node, or of `nodes` that share nothing: each counts its share of a limit,
    and nothing is saved for others."""

    alone = True

    def __init__(
        self,
        *,
        nodes: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.nodes = nodes
        self._clock = clock
        self._windows = MinuteWindows()

    async def take(
        self,
        name: str,
        limit: MinuteLimit,
        tokens: int,
        *,
        seconds: float = 0.0,  # noqa: ARG002
    ) -> Taken:
        return self._windows.take(name, limit.share(self.nodes()), tokens, self._clock())

    def correct(self, taken: Taken, tokens: int) -> None:
        self._windows.correct(taken, tokens)

    def release(self, taken: Taken) -> None:
        self._windows.release(taken)
