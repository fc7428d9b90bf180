"""Where conversations with an id are kept between sessions: in this process, in any mapping, or in
a store such as Redis.

    client = AsyncClient.from_config("llm.yaml", conversations=redis.asyncio.from_url("redis://…"))
    chat = client.session("claude", id="user-42", messages=history)

A value holds the planner's memory of a conversation, and the bytes of its last prompt, to find the
byte that changed. The app keeps the history itself.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeAlias

from anaphora.errors import InvalidRequest, Io

from .dispatch import in_thread

#: Seconds that a store may take for one operation.
TIMEOUT = 2.0
#: Seconds after which a conversation without a turn may be forgotten: no provider caches for longer
#: than a day, and after a weekend the verdict still names what has expired.
LIFETIME = 3 * 24 * 3600
_MOST_ID = 200
_HEAD, _PIECE = "anaphora:conversation:", "anaphora:bytes:"


class ConversationStore(Protocol):
    """Bytes by key. An async Redis client (`redis.asyncio.Redis`) is one."""

    def get(self, key: str, /) -> Awaitable[bytes | None]: ...

    def set(self, key: str, value: bytes, /, *, ex: int) -> Awaitable[Any]:
        """`ex`: the value may be dropped after this many seconds."""

    def delete(self, key: str, /) -> Awaitable[Any]: ...


Conversations: TypeAlias = ConversationStore | MutableMapping[str, bytes]


class InProcessConversations:
    """Conversations in memory, the least recently used dropped first. The default of a client."""

    def __init__(
        self, *, max_conversations: int = 10_000, max_bytes: int = 256 * 1024 * 1024
    ) -> None:
        for name, bound in (("max_conversations", max_conversations), ("max_bytes", max_bytes)):
            if not isinstance(bound, int) or isinstance(bound, bool) or bound < 1:
                raise InvalidRequest(f"must be an int above 0, not {bound!r}", path=name)
        self._most = max_conversations
        self._most_bytes = max_bytes
        self._bytes = 0
        self._conversations: OrderedDict[str, dict[str, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._conversations)

    @property
    def size(self) -> int:
        """The bytes of all values."""
        return self._bytes

    async def get(self, key: str, /) -> bytes | None:
        return self.get_now(key)

    def get_now(self, key: str) -> bytes | None:
        name = _conversation_of(key)
        values = self._conversations.get(name)
        if values is None:
            return None
        self._conversations.move_to_end(name)
        return values.get(key)

    async def set(self, key: str, value: bytes, /, *, ex: int) -> None:  # noqa: ARG002
        name = _conversation_of(key)
        values = self._conversations.setdefault(name, {})
        self._conversations.move_to_end(name)
        self._bytes += len(value) - len(values.get(key, b""))
        values[key] = value
        while len(self._conversations) > self._most or self._bytes > self._most_bytes:
            _, dropped = self._conversations.popitem(last=False)
            self._bytes -= sum(map(len, dropped.values()))

    async def delete(self, key: str, /) -> None:
        name = _conversation_of(key)
        values = self._conversations.get(name, {})
        self._bytes -= len(values.pop(key, b""))
        if not values:
            self._conversations.pop(name, None)


class MappingConversations:
    """The app's mapping as a store. Its methods are called one at a time, in a thread, so that
    a slow one does not block the event loop; a plain dict is used directly."""

    def __init__(self, mapping: MutableMapping[str, bytes]) -> None:
        self._mapping = mapping
        self._plain = type(mapping) is dict
        self._lock = threading.Lock()
        self._late = 0
        """Operations that timed out and have not ended."""

    async def get(self, key: str, /) -> bytes | None:
        value: bytes | None = await self._do(lambda: self._mapping.get(key))
        return value

    async def set(self, key: str, value: bytes, /, *, ex: int) -> None:  # noqa: ARG002
        await self._do(lambda: self._mapping.__setitem__(key, value))

    async def delete(self, key: str, /) -> None:
        await self._do(lambda: self._mapping.pop(key, None))

    async def _do(self, act: Callable[[], Any]) -> Any:
        if self._plain:
            return act()
        if self._late:
            raise Io("an earlier operation of the mapping has not returned yet")

        def locked() -> Any:
            with self._lock:
                return act()

        try:
            return await in_thread(
                locked, "the mapping", name="anaphora conversations", late=self._ended
            )
        except asyncio.CancelledError:
            self._late += 1
            raise

    def _ended(self) -> None:
        self._late -= 1


def store_of(conversations: Any) -> ConversationStore:
    """The store for the value of `conversations=`."""
    if conversations is None:
        return InProcessConversations()
    if isinstance(conversations, MutableMapping):
        return MappingConversations(conversations)
    if isinstance(conversations, type) or not all(
        callable(getattr(conversations, name, None)) for name in ("get", "set", "delete")
    ):
        raise InvalidRequest(
            "must be a mapping of str to bytes, or an object with async get, set and delete"
            f" (such as redis.asyncio.Redis), not {_kind(conversations)}",
            path="conversations",
        )
    store: ConversationStore = conversations
    return store


def id_of(value: Any) -> str | None:
    """The checked `id=` of a session."""
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_ID or not value.isprintable():
        raise InvalidRequest(
            f"must be a text of 1 to {_MOST_ID} printable characters, not {value!r:.60}", path="id"
        )
    return value


def head_key(name: str) -> str:
    return _HEAD + name


def piece_key(name: str, digest: bytes) -> str:
    return f"{_PIECE}{name}:{digest.hex()}"


async def in_time(answer: Awaitable[Any]) -> Any:
    """The result of a store's operation. Raises if it takes too long."""
    if not inspect.isawaitable(answer):
        raise InvalidRequest(
            "get, set and delete must be async (redis.asyncio.Redis, not redis.Redis)",
            path="conversations",
        )
    try:
        async with asyncio.timeout(TIMEOUT):
            return await answer
    except TimeoutError:
        raise Io(f"the store has not answered within {TIMEOUT:g} s") from None


def _conversation_of(key: str) -> str:
    if key.startswith(_HEAD):
        return key.removeprefix(_HEAD)
    return key.removeprefix(_PIECE).rpartition(":")[0]


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
