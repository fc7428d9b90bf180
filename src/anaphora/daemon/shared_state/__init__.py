"""What the nodes of one installation share beside the store: rates and limits of the last minute,
what planner and verdict know of a conversation, open circuit breakers, explanations of calls.

    shared = LocalState()                                               one node
    shared = RedisState.of("redis://…", password, nodes=lambda: 3)      Redis or Valkey
    await shared.start()
    taken = await shared.take("app notes", MinuteLimit(requests=60), tokens)

Never money, keys or text of prompts: losing all of it costs cache hits and a minute of exact
limits. Nothing here raises because the server is gone: then each node counts its share of a limit,
and knows the conversations that it served itself.
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
#: Bytes of a record's id, and of what is known of one chunk of a prompt.
ID_BYTES, DIGEST_BYTES = 8, 16

Listener: TypeAlias = Callable[[bytes, float], None]
"""Gets the news of another node, and how many seconds old they are."""


class SavedRecord(msgspec.Struct, eq=False):
    """What a node saved of a conversation."""

    id: bytes
    """Another one once two nodes have continued it: `save` sets it."""
    version: bytes
    """Of the last call; the next one names it, so that two continuations become two records."""
    data: bytes


class SharedState(ABC):
    """One node's view of what all nodes share. Used from one event loop. Without a server nothing
    is saved and nothing found, and each node counts for itself."""

    alone = False
    """No other node reads what is saved here: nothing has to be saved."""

    async def start(self) -> None:  # noqa: B027
        """Connects, as far as the server can be reached."""

    async def close(self) -> None:  # noqa: B027
        """Sends what waits, and disconnects."""

    @property
    def problem(self) -> str:
        """Why nothing is shared at the moment; empty where it is."""
        return ""

    async def probe(self) -> None:  # noqa: B027
        """Finds out whether the server answers; `problem` tells afterwards."""

    # ── Limits ───────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    async def take(
        self, name: str, limit: MinuteLimit, tokens: int, *, seconds: float = 0.0
    ) -> Taken:
        """Counts a call where the limit allows it; `Taken.wait` says how long to wait otherwise.
        Where running calls are limited it counts as one until `release`, or for `seconds`."""

    @abstractmethod
    def correct(self, taken: Taken, tokens: int) -> None:
        """Counts the tokens that a call really took; 0 where it was not sent."""

    @abstractmethod
    def release(self, taken: Taken) -> None:
        """A call that counted as running has ended."""

    def count(self, name: str, at: float) -> None:  # noqa: B027
        """Counts a call that nothing limits; `at` is the Unix time."""

    # ── Conversations ────────────────────────────────────────────────────────────────────────────

    async def find(
        self,
        keys: Sequence[bytes],  # noqa: ARG002
        counted: str = "",  # noqa: ARG002
        at: float = 0.0,  # noqa: ARG002
    ) -> tuple[list[tuple[int, SavedRecord]], int]:
        """The records that were saved under any of these keys, each with the index of its first
        key, in their order; and the calls of the minute before `at` that were counted under a
        name."""
        return [], 0

    def save(  # noqa: B027
        self,
        record: SavedRecord,
        before: bytes,
        keys: Sequence[bytes],
        digests: Callable[[int], bytes],
        first: int,
    ) -> None:
        """Saves a record under keys. `before` is the version it replaces; where another node has
        replaced that, it becomes a record of its own. `digests` returns those of the prompt's
        chunks from a chunk on; those before the chunk `first` are saved already."""

    async def digests(self, record: SavedRecord) -> bytes:  # noqa: ARG002
        """The digests of a record's chunks; empty where they are not known."""
        return b""

    # ── Values and news ──────────────────────────────────────────────────────────────────────────

    async def get(self, name: str) -> bytes | None:  # noqa: ARG002
        return None

    def put(self, name: str, value: bytes) -> None:  # noqa: B027
        """Keeps a value for `get` of any node."""

    def tell(self, news: bytes) -> None:  # noqa: B027
        """Tells the other nodes, within a second."""

    def listen(self, listener: Listener) -> None:  # noqa: B027
        """Calls `listener` with what other nodes tell."""


class LocalState(SharedState):
    """For a daemon of one node, or of `nodes` that share nothing: each counts its share of a limit,
    and nothing has to be saved for others."""

    alone = True

    def __init__(
        self, *, nodes: Callable[[], int] = lambda: 1, clock: Callable[[], float] = monotonic
    ) -> None:
        self._nodes = nodes
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
        return self._windows.take(name, limit.share(self._nodes()), tokens, self._clock())

    def correct(self, taken: Taken, tokens: int) -> None:
        self._windows.correct(taken, tokens)

    def release(self, taken: Taken) -> None:
        self._windows.release(taken)
