"""Three nodes' ledgers on one PostgreSQL, under load and under faults, and what must hold whatever
happens: no limit is ever exceeded, no acknowledged settlement is lost or changed, and no hold is
left behind."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec
from support.audit_logs import with_tests
from support.ledger_worker import PER_DAY, PER_MONTH, SharedClock, WorkerOptions
from support.ledgers import DAY, NOON
from support.waiting import until

from anaphora.daemon.store.reading import day_of, end_of_month
from anaphora.postgres import schema
from anaphora.postgres.address import PostgresAddress
from anaphora.postgres.connection import connect

if TYPE_CHECKING:
    from support.servers import PostgresServer

    from anaphora.postgres.connection import Connection

NODES = ("a", "b", "c")

#: Records each balance that exceeds its limit, in the transaction that wrote it.
_WATCH = f"""
CREATE TABLE exceeded (app text, period text, charged bigint);
CREATE FUNCTION watch_balance() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.spent + NEW.held >
        (CASE WHEN length(NEW.period) = 10 THEN {PER_DAY} ELSE {PER_MONTH} END) THEN
        INSERT INTO exceeded VALUES (NEW.app, NEW.period, NEW.spent + NEW.held);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER watch_balances AFTER INSERT OR UPDATE ON balances
    FOR EACH ROW EXECUTE FUNCTION watch_balance();
"""


#: Balances that differ from the sums of entries and open holds, and sums that differ from the entries.
_WRONG = """
WITH charge AS (
    SELECT app, day, billed AS spent, 0 AS held FROM entries
    UNION ALL SELECT app, day, 0, bound FROM holds
), expected AS (
    SELECT app, period, sum(spent) AS spent, sum(held) AS held
    FROM charge CROSS JOIN LATERAL (VALUES (day), (left(day, 7))) AS span (period)
    GROUP BY app, period
), billed AS (SELECT day, app, sum(billed) AS billed FROM entries GROUP BY day, app)
SELECT app, period FROM balances FULL JOIN expected USING (app, period)
WHERE balances.spent IS DISTINCT FROM coalesce(expected.spent, 0)
    OR balances.held IS DISTINCT FROM coalesce(expected.held, 0)
UNION ALL
SELECT app, day FROM (SELECT day, app, sum(billed) AS billed FROM sums GROUP BY day, app) AS sums
FULL JOIN billed USING (day, app) WHERE sums.billed IS DISTINCT FROM billed.billed
UNION ALL
SELECT app, day FROM (
    SELECT day, app, sum(billed) AS billed FROM label_sums GROUP BY day, app
) AS sums FULL JOIN (
    SELECT day, app, sum(value::bigint) AS billed
    FROM entries CROSS JOIN LATERAL jsonb_each_text(labels) GROUP BY day, app
) AS labels USING (day, app) WHERE coalesce(sums.billed, 0) <> coalesce(labels.billed, 0)
"""


class KillOutcome(msgspec.Struct, kw_only=True):
    """What happened, so that a test can tell that it did."""

    kills: int = 0
    pauses: int = 0
    woken: int = 0
    """Nodes that were declared dead and went on."""
    postgres_losses: int = 0
    days: int = 0
    settled: int = 0
    """Settlements that were acknowledged."""
    at_bound: int = 0
    """Holds whose settlement never came."""
    refused: int = 0
    unavailable: int = 0


class _Node:
    """A worker, and what its log says."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.pid = 0
        self.node_id = 0
        """That of the process that runs now, and"""
        self.attempts = 0
        """its holds, and those that a limit refused."""
        self._path = folder / f"{name}.log"
        self._read = 0

    def lines(self) -> list[list[str]]:
        """Those that were written since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._read += len(data)
        return [line.split(" ") for line in data.decode().splitlines()]


class LedgerNodes:
    """Runs the nodes, and draws what happens to them."""

    def __init__(self, folder: Path, postgres: PostgresServer, url: str, *, seed: int) -> None:
        self.outcome = KillOutcome()
        self._folder, self._postgres, self._url = folder, postgres, url
        self._draw = random.Random(seed)
        self._now = NOON
        self._clock = SharedClock(folder / "clock")
        self._clock.set(NOON)
        self._nodes = [_Node(name, folder) for name in NODES]
        self._holds: dict[str, tuple[int, int, str]] = {}
        """The bound of each hold that was acknowledged, and how its node will settle it."""
        self._settled: set[str] = set()
        self._latest_day = ""

    async def run(self, kills: int) -> KillOutcome:
        """Ends when at least so many nodes were killed. All checks are assertions."""
        async with self._database() as database:
            await schema.create(database)
            await database.execute(_WATCH)
        with self._workers():
            for node in self._nodes:
                self._start(node)
            for fault in self._faults(kills):
                await fault()
                self._move_clock()
                await self._check_limits()
            await self._end()
        await self._check_entries()
        return self.outcome

    # ── Nodes ────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _workers(self) -> Iterator[None]:
        with subprocess.Popen(
            [sys.executable, "-m", "support.ledger_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=with_tests(),
        ) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            self._input: IO[bytes] = server.stdin
            self._output: IO[bytes] = server.stdout
            try:
                yield
            finally:
                for node in self._nodes:
                    if node.pid:
                        os.kill(node.pid, signal.SIGKILL)

    def _ask(self, command: str, argument: object) -> int:
        self._input.write(json.dumps([command, argument]).encode() + b"\n")
        self._input.flush()
        return int(self._output.readline())

    def _start(self, node: _Node) -> None:
        skews = (0.0, 0.5, -0.5, 60.0, -60.0, 3600.0, -3600.0)
        options = WorkerOptions(
            name=node.name,
            store=self._url,
            folder=str(self._folder),
            seed=self._draw.randrange(1 << 30),
            skew=self._draw.choice(skews),
        )
        node.node_id = node.attempts = 0
        node.pid = self._ask("start", msgspec.to_builtins(options))

    def _kill(self, node: _Node) -> None:
        os.kill(node.pid, signal.SIGKILL)
        assert self._ask("wait", node.pid) == -signal.SIGKILL, "it failed before it was killed"
        node.pid = 0
        self._read()
        self.outcome.kills += 1

    def _read(self) -> None:
        """The outcomes that the nodes got since the last call."""
        for node in self._nodes:
            for word, *rest in node.lines():
                match word:
                    case "o":
                        node.node_id = int(rest[0])
                    case "h":
                        self._holds[rest[0]] = int(rest[1]), int(rest[2]), rest[3]
                    case "s":
                        self._settled.add(rest[0])
                    case "x":
                        self.outcome.refused += 1
                    case "u":
                        self.outcome.unavailable += 1
                    case _:
                        raise AssertionError(f"node {node.name}: {' '.join(rest)}")
                node.attempts += word in "hx"

    async def _until_used(self, *nodes: _Node, anew: bool = False) -> None:
        """Waits until these nodes have held something, or were refused by a limit."""
        if anew:
            for node in nodes:
                node.attempts = 0
        await self._until(lambda: all(node.attempts for node in nodes), "holds of these nodes")

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        def read() -> bool:
            self._read()
            return holds()

        await until(read, what)

    # ── Faults ───────────────────────────────────────────────────────────────────────────────────

    def _faults(self, kills: int) -> list[Callable[[], Awaitable[None]]]:
        """For each ten kills one of the others, and all kinds of them, in an order that is drawn."""
        ways = range(max(3, kills // 10))
        faults: list[Callable[[], Awaitable[None]]] = [self._kill_one] * kills
        faults += [functools.partial(self._pause, killed=way % 3 == 2) for way in ways]
        faults += [functools.partial(self._lose_postgres, way % 3) for way in ways]
        self._draw.shuffle(faults)
        return faults

    async def _kill_one(self) -> None:
        """Mostly some time after its first hold; a fifth of them at any time from the start."""
        node = self._draw.choice(self._nodes)
        if self._draw.random() < 0.8:
            await self._until_used(node)
        await asyncio.sleep(self._draw.uniform(0.0, 0.05))
        self._kill(node)
        self._start(node)

    async def _pause(self, *, killed: bool) -> None:
        """Until the others take a node for dead. Then it goes on, and settles what was charged at
        its bound, or it is killed."""
        node = self._draw.choice(self._nodes)
        await self._until_used(*self._nodes)
        os.kill(node.pid, signal.SIGSTOP)
        self._read()
        swept = node.node_id
        await self._until_none("SELECT COUNT(*) FROM nodes WHERE id = $1 AND ended IS NULL", swept)
        self.outcome.pauses += 1
        if killed:
            self._kill(node)
            self._start(node)
        else:
            os.kill(node.pid, signal.SIGCONT)
            await self._until(lambda: node.node_id != swept, "a new id of a node that woke up")
            await self._until_used(node, anew=True)
            self.outcome.woken += 1

    async def _until_none(self, count: str, *values: object) -> None:
        """Waits until a query counts nothing."""
        async with self._database() as database:

            async def none() -> bool:
                return not await database.fetchval(count, *values)

            await until(none, count)

    async def _lose_postgres(self, way: int) -> None:
        """A stop, a crash, or a server that does not answer for a while."""
        server = self._postgres
        await self._until_used(*self._nodes)
        if way == 2:
            await asyncio.to_thread(server.pause)
        else:
            await asyncio.to_thread(server.kill if way else server.stop)
        self._read()
        before = self.outcome.unavailable
        await self._until(lambda: self.outcome.unavailable > before, "a hold that is refused")
        if self._draw.random() < 0.5:  # its settlements are in the journal
            node = self._draw.choice(self._nodes)
            self._kill(node)
            self._start(node)
        await asyncio.to_thread(server.resume if way == 2 else server.start)
        self.outcome.postgres_losses += 1
        await self._until_used(*self._nodes, anew=True)

    def _move_clock(self) -> None:
        """Mostly some hours, often to a moment before midnight or the end of a month; sometimes
        back."""
        draw, now = self._draw, self._now
        midnight = (now // DAY + 1) * DAY
        chance = draw.random()
        if chance < 0.4:
            now += draw.uniform(0, 6) * 3600
        elif chance < 0.7:
            now = midnight - draw.choice((0.001, 0.3, 1.0)) if now % DAY < DAY - 1 else midnight
        elif chance < 0.8:
            now = end_of_month(day_of(now)) - 0.3
        else:
            self._clock.set(now - draw.choice((1.0, 7200.0, 40 * DAY)))
            return
        self._now = now
        self._clock.set(now)

    # ── What holds ───────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def _database(self) -> AsyncIterator[Connection]:
        database = await connect(PostgresAddress.parse(self._url))
        try:
            yield database
        finally:
            await database.close()

    async def _check_limits(self) -> None:
        """No balance exceeded its limit at any commit, and no earlier day was opened again."""
        async with self._database() as database:
            exceeded = await database.fetch("SELECT app, period, charged FROM exceeded")
            assert not exceeded, f"limits were exceeded: {exceeded}"
            day = await database.fetchval("SELECT latest_day FROM clock")
        assert day >= self._latest_day
        self.outcome.days += day > self._latest_day
        self._latest_day = day

    async def _end(self) -> None:
        """Each node is started once more, so that it writes what its journal holds, and those that
        were killed are swept; then all are stopped."""
        for node in self._nodes:
            await self._until_used(node)
            self._kill(node)
            self._start(node)
        await self._until_used(*self._nodes)
        # Those of the nodes that run are never all gone. On a busy machine one may be declared dead
        # meanwhile, and go on under another id.
        await self._until_none(
            "SELECT COUNT(*) FROM holds LEFT JOIN nodes ON nodes.id = node"
            " WHERE state IS DISTINCT FROM 'alive'"
        )
        for node in self._nodes:
            os.kill(node.pid, signal.SIGTERM)
        for node in self._nodes:
            status, node.pid = self._ask("wait", node.pid), 0
            assert status == 0, f"node {node.name} did not stop cleanly"
        self._read()

    async def _check_entries(self) -> None:
        await self._check_limits()
        async with self._database() as database:
            left = await database.fetchval("SELECT COUNT(*) FROM holds")
            rows = await database.fetch("SELECT id, bound, billed, kind FROM entries")
            wrong = await database.fetch(_WRONG)
        assert left == 0, f"{left} holds were left behind"
        assert not wrong, f"sums differ from the entries: {wrong}"
        entries = {row["id"]: (row["bound"], row["billed"], row["kind"]) for row in rows}
        for id, settled in self._holds.items():
            assert id in entries, f"hold {id} is lost"
            found, bound = entries[id], settled[0]
            at_bound = (bound, bound, "bound")
            expected = [settled] if id in self._settled else [settled, at_bound]
            assert found in expected, f"{id} was settled as {settled}, and is {found}"
        self.outcome.settled = len(self._settled)
        self.outcome.at_bound = sum(1 for _, _, kind in entries.values() if kind == "bound")
