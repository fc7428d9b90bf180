"""What nodes share, in memory and in Redis: the same laws; and Redis gone, hanging, emptied, back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from support.servers import RedisServer
from support.shared_memory import MemoryState
from support.waiting import PATIENCE, until

from anaphora.daemon.shared_state import MinuteLimit, SavedRecord, SharedState
from anaphora.daemon.shared_state.redis import RedisState
from anaphora.daemon.shared_state.redis_connection import RedisAddress

T = TypeVar("T")
Nodes = tuple[SharedState, SharedState, SharedState]
OpenNodes = Callable[[], AbstractAsyncContextManager[Nodes]]


async def until_connected(node: SharedState) -> None:
    async def connected() -> bool:
        return not node.problem

    await until(connected, "the node is connected again")


@asynccontextmanager
async def redis_nodes(url: str, timeout: float = 10.0) -> AsyncIterator[Nodes]:
    """With time for replies on a busy machine."""
    address = RedisAddress.parse(url)
    a, b, c = nodes = [RedisState(address, nodes=lambda: 3, timeout=timeout) for _ in range(3)]
    try:
        for node in nodes:
            await node.start()
        yield a, b, c
    finally:
        for node in nodes:
            await node.close()


@asynccontextmanager
async def memory_nodes() -> AsyncIterator[Nodes]:
    shared = MemoryState()
    yield shared, shared, shared


@pytest.fixture(params=["memory", "redis"])
def nodes(request: pytest.FixtureRequest) -> OpenNodes:
    if request.param == "memory":
        return memory_nodes
    url = request.getfixturevalue("redis_url")
    return lambda: redis_nodes(url)


def entries(first: int) -> bytes:
    return b"".join(bytes([index]) * 16 for index in range(first, 4))


def record(data: bytes = b"data", version: bytes = b"one") -> SavedRecord:
    return SavedRecord(b"12345678", version, data)


class TestLimits:
    def test_requests_of_all_nodes_count_together(self, nodes: OpenNodes) -> None:
        async def main() -> None:
            async with nodes() as (a, b, c):
                limit = MinuteLimit(requests=4)
                waits = [(await node.take("app", limit, 10)).wait for node in (a, b, c, a)]
                assert waits == [0.0] * 4
                refused = await b.take("app", limit, 10)
                assert refused.by == "requests"
                assert 0 < refused.wait <= 60.25
                assert not (await b.take("other app", limit, 10)).wait

        asyncio.run(main())

    def test_tokens_are_corrected_on_every_node(self, nodes: OpenNodes) -> None:
        async def main() -> None:
            async with nodes() as (a, b, c):
                limit = MinuteLimit(tokens=100)
                taken = await a.take("app", limit, 90)
                refused = await b.take("app", limit, 20)
                assert refused.by == "tokens"
                a.correct(taken, 30)

                async def fits() -> bool:
                    return not (await b.take("app", limit, 70)).wait

                await until(fits, "the correction is seen on another node")
                assert (await c.take("app", limit, 1)).by == "tokens"

        asyncio.run(main())

    def test_running_calls_are_limited_over_all_nodes(self, nodes: OpenNodes) -> None:
        async def main() -> None:
            async with nodes() as (a, b, c):
                limit = MinuteLimit(running=2)
                first = await a.take("provider", limit, 0, seconds=600)
                await b.take("provider", limit, 0, seconds=600)
                refused = await c.take("provider", limit, 0, seconds=600)
                assert (refused.by, refused.wait > 0) == ("running", True)
                a.release(first)

                async def free() -> bool:
                    return not (await c.take("provider", limit, 0, seconds=600)).wait

                await until(free, "the released place is seen on another node")

        asyncio.run(main())

    def test_calls_are_counted_over_all_nodes(self, nodes: OpenNodes) -> None:
        async def main() -> None:
            async with nodes() as (a, b, c):
                for at in (1000.0, 1001.0, 1030.0, 1065.0):
                    for node in (a, b):
                        node.count("calls", at)
                        await node.get("anything")  # it has arrived
                assert (await c.find([], "calls", 1065.0))[1] == 4

        asyncio.run(main())


class TestConversations:
    def test_record_is_found_by_any_of_its_names(self, nodes: OpenNodes) -> None:
        async def main() -> None:
            async with nodes() as (a, b, _):
                a.save(record(), b"", [b"x", b"y"], entries, 0)
                await until(lambda: found(b, b"x"), "the record")
                rows, _calls = await b.find([b"none", b"y", b"x"])
                assert [(index, each.data, each.version) for index, each in rows] == [
                    (1, b"data", b"one")
                ]
                assert await b.digests(rows[0][1]) == entries(0)

        asyncio.run(main())

    def test_next_call_replaces_the_record_and_adds_its_blocks(self, nodes: OpenNodes) -> None:
        async def main() -> None:
            async with nodes() as (a, b, _):
                a.save(record(), b"", [b"x"], lambda first: entries(first)[:32], 0)
                (kept,) = await until(lambda: found(b, b"x"), "the record")
                b.save(record(b"new", b"two"), kept.version, [b"z"], entries, 2)
                (newer,) = await until(lambda: found(a, b"z"), "the new record")
                assert (newer.id, newer.data) == (kept.id, b"new")
                assert await a.digests(newer) == entries(0)

        asyncio.run(main())

    def test_two_continuations_become_two_records(self, nodes: OpenNodes) -> None:
        async def main() -> None:
            async with nodes() as (a, b, c):
                a.save(record(), b"", [b"x"], entries, 0)
                (kept,) = await until(lambda: found(b, b"x"), "the record")
                a.save(record(b"by a", b"two"), kept.version, [b"a"], entries, 4)
                await until(lambda: found(b, b"a"), "the continuation")
                mine = record(b"by b", b"three")
                b.save(mine, kept.version, [b"b"], entries, 4)
                (other,) = await until(lambda: found(c, b"b"), "the other continuation")
                (first,) = await found(c, b"a")
                assert (first.data, other.data) == (b"by a", b"by b")
                assert other.id == mine.id != first.id
                assert await c.digests(other) == entries(0)

        asyncio.run(main())

    def test_values_are_shared(self, nodes: OpenNodes) -> None:
        async def main() -> None:
            async with nodes() as (a, b, _):
                a.put("explanation", b"why")
                assert await until(lambda: b.get("explanation"), "the value") == b"why"
                assert await b.get("another") is None

        asyncio.run(main())


async def found(node: SharedState, name: bytes) -> list[SavedRecord]:
    rows, _ = await node.find([name])
    return [each for _, each in rows]


def test_news_reach_the_other_nodes(redis_url: str) -> None:
    async def main() -> None:
        async with redis_nodes(redis_url) as (a, b, _):
            heard: list[tuple[bytes, float]] = []
            own: list[bytes] = []
            a.listen(lambda news, _: own.append(news))
            b.listen(lambda news, age: heard.append((news, age)))
            a.tell(b"news")

            async def received() -> list[tuple[bytes, float]]:
                return heard

            ((news, age),) = await until(received, "the news")
            assert (news, own) == (b"news", [])
            assert 0 <= age < PATIENCE

    asyncio.run(main())


def test_what_another_program_wrote_as_news_ends_nothing(
    redis_server: RedisServer, redis_url: str
) -> None:
    async def main() -> None:
        async with redis_nodes(redis_url) as (a, b, _):
            heard: list[bytes] = []

            def listener(news: bytes, _: float) -> None:
                heard.append(news)
                if news == b"bad":
                    raise ValueError("of another version")

            b.listen(listener)
            redis_server.command("XADD", "anaphora1:news", "*", "of", "another program")
            a.tell(b"bad")
            a.tell(b"news")

            async def received() -> bool:
                return b"news" in heard

            await until(received, "the news after those that cannot be read")
            assert heard == [b"bad", b"news"]

    asyncio.run(main())


@pytest.mark.parametrize("ahead", [-40 * 365 * 86_400.0, 40 * 365 * 86_400.0])
def test_a_clock_that_is_years_wrong_does_not_keep_redis_busy(
    redis_server: RedisServer, redis_url: str, ahead: float
) -> None:
    """It would look at five thousand million quarters of seconds, one by one."""

    async def main() -> None:
        async with redis_nodes(redis_url) as (a, b, c):
            now = time.time()
            for node, at in ((a, now), (b, now + ahead), (c, now), (a, now)):
                node.count("calls", at)
                await node.get("anything")  # it has arrived
            assert (await c.find([], "calls", now))[1] == 2
            # Nor does a window that another program has spoiled.
            for wrong in ("-inf", "nan", "-1e300"):
                redis_server.command("HSET", "anaphora1:w:calls", "f", wrong)
                assert (await c.find([], "calls", now))[1] == 0

    asyncio.run(main())


class TestRedisGone:
    """Each node falls back to its share, and takes part again by itself."""

    def check(
        self, server: RedisServer, lose: Callable[[], None], back: Callable[[], None]
    ) -> None:
        async def main() -> None:
            async with redis_nodes(server.url, 0.2) as nodes:
                a = nodes[0]
                limit = MinuteLimit(requests=6, tokens=600)
                assert not (await a.take("app", limit, 10)).wait
                lose()
                # The share of one of three nodes is 2 calls, of which one was made.
                waits = [(await a.take("app", limit, 10)).wait for _ in range(2)]
                assert [wait > 0 for wait in waits] == [False, True]
                assert a.problem
                assert (await a.find([b"x"], "calls", 1.0)) == ([], 0)
                assert await a.get("value") is None
                a.put("value", b"1")
                a.save(record(), b"", [b"x"], entries, 0)
                a.correct(await a.take("other", limit, 10), 5)
                back()
                await until_connected(a)
                a.put("value", b"2")
                assert await until(lambda: nodes[1].get("value"), "a shared value") == b"2"
                # For a minute its own share holds as well.
                assert (await a.take("app", limit, 10)).wait > 0

        asyncio.run(main())

    def test_killed(self, redis_url: str, redis_server: RedisServer) -> None:
        self.check(redis_server, redis_server.kill, redis_server.start)

    def test_hanging(self, redis_url: str, redis_server: RedisServer) -> None:
        self.check(redis_server, redis_server.pause, redis_server.resume)

    def test_not_there_at_start(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with redis_nodes(f"unix://{tmp_path}/none.sock") as (a, *_):
                assert "FileNotFoundError" in a.problem
                limit = MinuteLimit(requests=3)
                waits = [(await a.take("app", limit, 10)).wait for _ in range(2)]
                assert [wait > 0 for wait in waits] == [False, True]

        asyncio.run(main())

    def test_closing_is_cancelled(self, redis_url: str) -> None:
        """The connection ends all the same."""

        async def main() -> None:
            node = RedisState(RedisAddress.parse(redis_url), timeout=10.0)
            await node.start()
            connection = node._connection
            assert connection is not None
            closing = asyncio.create_task(node.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert not connection.is_open

        asyncio.run(main())

    def test_flush_is_noticed(self, redis_url: str, redis_server: RedisServer) -> None:
        """What was counted is lost; from the next call on the node's own share holds as well."""

        async def main() -> None:
            async with redis_nodes(redis_url) as (a, b, _):
                limit = MinuteLimit(requests=6)
                for _ in range(4):
                    assert not (await a.take("app", limit, 0)).wait
                redis_server.flush()
                assert not (await a.take("app", limit, 0)).wait
                assert (await a.take("app", limit, 0)).wait > 0
                assert not (await b.take("app", limit, 0)).wait

        asyncio.run(main())

    def test_scripts_that_the_server_forgot_are_sent_again(
        self, redis_url: str, redis_server: RedisServer
    ) -> None:
        async def main() -> None:
            async with redis_nodes(redis_url) as (a, b, _):
                redis_server.command("SCRIPT", "FLUSH")
                limit = MinuteLimit(requests=1)
                assert not (await a.take("app", limit, 0)).wait
                assert (await b.take("app", limit, 0)).wait > 0
                assert not a.problem

        asyncio.run(main())

    @pytest.mark.long
    def test_server_that_refuses_counts_as_gone(
        self, redis_url: str, redis_server: RedisServer
    ) -> None:
        async def main() -> None:
            async with redis_nodes(redis_url) as (a, *_):
                redis_server.command("CONFIG", "SET", "maxmemory", "1")
                try:
                    limit = MinuteLimit(requests=3)
                    waits = [(await a.take("app", limit, 0)).wait for _ in range(2)]
                    assert [wait > 0 for wait in waits] == [False, True]
                finally:
                    redis_server.command("CONFIG", "SET", "maxmemory", "0")
                await until_connected(a)

        asyncio.run(main())
