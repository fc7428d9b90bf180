"""Shared state in Redis or Valkey, with a fallback while the server is unreachable.

A command without a reply within 50 ms ends the connection. From then on the node counts for itself,
up to its share of each limit, and reconnects in the background every second; no call waits for
that. The node's own counts are always kept, so that its share is right from the first call on. For
a minute after a reconnect both counts must allow a call.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from anaphora.errors import MissingExtra

from . import DIGEST_BYTES, ID_BYTES, KEPT, Listener, SavedRecord, SharedState
from .redis_connection import (
    TIMEOUT,
    Argument,
    RedisAddress,
    RedisConnection,
    RedisLost,
    RedisRefused,
)
from .redis_scripts import CORRECT, COUNT, FIND, SAVE, SCRIPTS, TAKE, RedisScript
from .windows import MINUTE, MinuteLimit, MinuteWindows, Taken

if TYPE_CHECKING:
    from anaphora.client.config.secrets import Secret

_log = logging.getLogger("anaphora.daemon")

#: Prefix of every key: the format's version. A node reads only its own version.
PREFIX = "anaphora1:"
#: Seconds between attempts to reconnect.
_SKIPPED = 1.0
#: Seconds between reads of other nodes' news, and how many are kept.
_NEWS_EVERY, _MOST_NEWS = 0.25, 1000
_NOT_YET = "not connected yet"
_NO_LIMIT = MinuteLimit()
_COUNTED = MinuteLimit(running=inf)


class RedisState(SharedState):
    """One node's connection to the shared state."""

    def __init__(
        self,
        address: RedisAddress,
        *,
        nodes: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] = monotonic,
        timeout: float = TIMEOUT,
    ) -> None:
        """`timeout` is for a reply, in seconds: the longest time that a call waits for the
        server."""
        self._address = address
        self._nodes = nodes
        self._clock = clock
        self._timeout = timeout
        self._node = secrets.token_bytes(6)
        self._connection: RedisConnection | None = None
        self._problem = _NOT_YET
        self._windows = MinuteWindows()
        self._window_ids: dict[str, bytes] = {}
        """The server's window in which each name was last counted."""
        self._alone_until: dict[str, float] = {}
        """Until when the node's own share of a limit also applies; the key "" is for all names."""
        self._listeners: list[Listener] = []
        self._news_from = "-"
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @classmethod
    def of(
        cls, url: str, password: Secret | None = None, *, nodes: Callable[[], int] = lambda: 1
    ) -> RedisState:
        """Raises `InvalidConfig`, and `MissingExtra`."""
        if find_spec("hiredis") is None:
            raise MissingExtra(
                "shared state in Redis needs hiredis: pip install 'anaphora[nodes]'", extra="nodes"
            )
        return cls(RedisAddress.parse(url, password), nodes=nodes)

    # ── Life ─────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        await self._connect()
        self._run(self._keep_connected())

    async def close(self) -> None:
        self._closed = True
        try:
            for task in list(self._tasks):  # first: one of them may be connecting
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._connection is not None:
                with suppress(RedisLost, RedisRefused):
                    await self._connection.drain()
        finally:  # even if the caller is cancelled meanwhile
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    @property
    def problem(self) -> str:
        return "" if self._connection is not None else self._problem

    async def probe(self) -> None:
        if self._connection is not None:
            with suppress(RedisLost, RedisRefused):
                await self._connection.send("PING")

    async def _connect(self) -> None:
        try:
            made = await RedisConnection.connect(self._address, self._lost, self._timeout)
            try:
                await self._prepare(made)
            except BaseException:
                made.close("not used")
                raise
        except (RedisLost, RedisRefused) as problem:
            self._note(str(problem))
            return
        except Exception as problem:  # an unreadable certificate, an invalid name
            self._note(f"{type(problem).__name__}: {problem}")
            return
        if self._problem != _NOT_YET:
            self._alone_until = {"": self._clock() + MINUTE}
            _log.info("shared state: connected to %s again", self._address)
        self._problem, self._connection = "", made

    async def _prepare(self, connection: RedisConnection) -> None:
        for script in SCRIPTS:
            connection.post("SCRIPT", "LOAD", script.source)
        if self._news_from == "-":
            newest = await connection.send("XREVRANGE", PREFIX + "news", "+", "-", "COUNT", 1)
            self._news_from = newest[0][0].decode() if newest else "0-0"
        await connection.drain()
        if not connection.is_open:  # it ended with the last reply
            raise RedisLost("the server closed the connection")

    def _note(self, problem: str) -> None:
        if problem != self._problem and not self._closed:
            _log.warning(
                "shared state: %s is gone, this node counts for itself: %s", self._address, problem
            )
        self._problem = problem

    def _lost(self, connection: RedisConnection, reason: str) -> None:
        if connection is self._connection:
            self._connection = None
            self._note(reason)

    async def _keep_connected(self) -> None:
        """Reconnects and reads news."""
        while not self._closed:
            if self._connection is None:
                await asyncio.sleep(_SKIPPED)
                if self._connection is None:
                    await self._connect()
                continue
            await asyncio.sleep(_NEWS_EVERY)
            if self._listeners and self._connection is not None:
                with suppress(RedisLost, RedisRefused):
                    await self._read_news(self._connection)

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, script: RedisScript, keys: Sequence[Argument], *values: Argument) -> Any:
        """The reply of a script. Raises `RedisLost` if there is none."""
        connection = self._connection
        if connection is None:
            raise RedisLost(self._problem)
        try:
            return await connection.send("EVALSHA", script.sha, len(keys), *keys, *values)
        except RedisRefused as problem:
            if not str(problem).startswith("NOSCRIPT"):
                raise self._refused(connection, problem) from None
        try:  # the server has forgotten its scripts
            return await connection.send("EVAL", script.source, len(keys), *keys, *values)
        except RedisRefused as problem:
            raise self._refused(connection, problem) from None

    def _refused(self, connection: RedisConnection, problem: RedisRefused) -> RedisLost:
        """Handles a server that refuses commands (full, a replica, loading) like a lost one."""
        reason = str(problem)[:200]
        connection.close(reason)
        return RedisLost(reason)

    def _post(
        self,
        script: RedisScript,
        keys: Sequence[Argument],
        *values: Argument,
        on_reply: Callable[[Any], None] | None = None,
    ) -> None:
        """`_call` without waiting. Does nothing if the server is unreachable."""
        connection = self._connection
        if connection is None:
            return

        def answered(reply: Any) -> None:
            if isinstance(reply, RedisRefused):
                if str(reply).startswith("NOSCRIPT"):
                    command = ("EVAL", script.source, len(keys), *keys, *values)
                    with suppress(RedisLost):
                        connection.post(*command, on_reply=on_reply)
                else:
                    self._refused(connection, reply)
            elif on_reply is not None:
                on_reply(reply)

        with suppress(RedisLost):
            connection.post("EVALSHA", script.sha, len(keys), *keys, *values, on_reply=answered)

    # ── Limits ───────────────────────────────────────────────────────────────────────────────────

    async def take(
        self, name: str, limit: MinuteLimit, tokens: int, *, seconds: float = 0.0
    ) -> Taken:
        if self._connection is None:
            return self._own(name, limit, tokens)
        now = self._clock()
        local = None
        if now < max(self._alone_until.get("", 0.0), self._alone_until.get(name, 0.0)):
            local = self._own(name, limit, tokens)
            if local.wait:
                return local
        lease = secrets.token_bytes(12) if limit.running is not None else b""
        limits = (limit.requests, limit.tokens, limit.running)
        try:
            wait, by, slot, window = await self._call(
                TAKE,
                (PREFIX + "w:" + name, PREFIX + "r:" + name),
                *("" if each is None else int(each) for each in limits),
                tokens,
                lease,
                int(seconds * 1000),
            )
        except RedisLost:
            return local or self._own(name, limit, tokens)
        if wait:
            if local is not None:
                self._windows.undo(local)
            return Taken(name, slot, tokens, max(wait, 1) / 1000, by.decode())
        if local is None:
            counted = _NO_LIMIT if limit.running is None else _COUNTED
            local = self._windows.take(name, counted, tokens, now)
        known = self._window_ids.get(name)
        if known not in (None, window) and self._windows.requests(name, now) > 1:
            self._alone_until[name] = now + MINUTE  # what was counted is lost: a flush
        if len(self._window_ids) > 10_000:
            self._window_ids.clear()
            self._alone_until = {"": self._alone_until.get("", 0.0)}
        self._window_ids[name] = window
        return Taken(name, slot, tokens, lease=lease, local=local)

    def _own(self, name: str, limit: MinuteLimit, tokens: int) -> Taken:
        """Counts the call against this node's share."""
        share = limit.share(self._nodes())
        return self._windows.take(name, share, tokens, self._clock())

    def correct(self, taken: Taken, tokens: int) -> None:
        if taken.local is None:
            self._windows.correct(taken, tokens)
            return
        change, taken.tokens = tokens - taken.tokens, tokens
        self._windows.correct(taken.local, tokens)
        if change:
            self._post(CORRECT, (PREFIX + "w:" + taken.name,), taken.slot, change)

    def release(self, taken: Taken) -> None:
        self._windows.release(taken.local or taken)
        connection = self._connection
        if taken.lease and connection is not None:
            with suppress(RedisLost):
                connection.post("ZREM", PREFIX + "r:" + taken.name, taken.lease)

    def count(self, name: str, at: float) -> None:
        self._post(COUNT, (PREFIX + "w:" + name,), int(at * 1000))

    # ── Conversations ────────────────────────────────────────────────────────────────────────────

    async def find(
        self, keys: Sequence[bytes], counted: str = "", at: float = 0.0
    ) -> tuple[list[tuple[int, SavedRecord]], int]:
        pointers: list[Argument] = [_POINTER + key for key in keys]
        if counted:
            pointers.append(PREFIX + "w:" + counted)
        try:
            found, calls = await self._call(
                FIND, pointers, _RECORD, int(at * 1000) if counted else ""
            )
        except RedisLost:
            return [], 0
        records = [
            (index, SavedRecord(id=id, version=version, data=data))
            for index, id, version, data in found
        ]
        return records, calls

    def save(
        self,
        record: SavedRecord,
        before: bytes,
        keys: Sequence[bytes],
        digests: Callable[[int], bytes],
        first: int,
    ) -> None:
        def saved(reply: Any) -> None:
            if reply == 0:  # another node continued it, or it was lost
                record.id = secrets.token_bytes(ID_BYTES)
                self._save(record, b"", keys, digests(0), 0)

        self._save(record, before, keys, digests(first), first, saved)

    def _save(
        self,
        record: SavedRecord,
        before: bytes,
        keys: Sequence[bytes],
        digests: bytes,
        first: int,
        on_reply: Callable[[Any], None] | None = None,
    ) -> None:
        names = (_RECORD + record.id, _DIGESTS + record.id, *(_POINTER + key for key in keys))
        values = record.id, before, record.version, record.data, first * DIGEST_BYTES, digests, KEPT
        self._post(SAVE, names, *values, on_reply=on_reply)

    async def digests(self, record: SavedRecord) -> bytes:
        return await self._get(_DIGESTS + record.id) or b""

    # ── Values and news ──────────────────────────────────────────────────────────────────────────

    async def get(self, name: str) -> bytes | None:
        return await self._get(PREFIX + "v:" + name)

    async def _get(self, key: Argument) -> bytes | None:
        connection = self._connection
        if connection is None:
            return None
        try:
            value: bytes | None = await connection.send("GET", key)
        except (RedisLost, RedisRefused):
            return None
        return value

    def put(self, name: str, value: bytes) -> None:
        connection = self._connection
        if connection is not None:
            with suppress(RedisLost):
                connection.post("SET", PREFIX + "v:" + name, value, "EX", KEPT)

    def tell(self, news: bytes) -> None:
        connection = self._connection
        if connection is not None:
            most = ("MAXLEN", "~", _MOST_NEWS)
            with suppress(RedisLost):
                connection.post("XADD", PREFIX + "news", *most, "*", "n", self._node, "d", news)

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    async def _read_news(self, connection: RedisConnection) -> None:
        """Reads news. Their ages are by the server's clock."""
        reading = connection.send("XRANGE", PREFIX + "news", f"({self._news_from}", "+")
        rows, time = await asyncio.gather(reading, connection.send("TIME"))
        now = int(time[0]) * 1000 + int(time[1]) // 1000
        for name, fields in rows:
            self._news_from = name.decode()
            values = dict(zip(fields[::2], fields[1::2], strict=False))
            if values.get(b"n") != self._node and b"d" in values:
                age = max(0.0, (now - int(self._news_from.partition("-")[0])) / 1000)
                for listener in self._listeners:
                    self._hear(listener, values[b"d"], age)

    def _hear(self, listener: Listener, news: bytes, age: float) -> None:
        """Calls the listeners. Invalid news must not end the connection."""
        try:
            listener(news, age)
        except Exception as problem:
            _log.warning("shared state: news of another node: %s", type(problem).__name__)


_POINTER, _RECORD, _DIGESTS = (f"{PREFIX}{kind}:".encode() for kind in "pcd")
