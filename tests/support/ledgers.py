"""Ledgers for tests: apps, stores, and daemons' ledgers that are killed under load."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar, TypeAlias

import msgspec
from hypothesis.stateful import RuleBasedStateMachine
from support.audit_logs import with_tests
from support.servers import PostgresServer, run_in_thread
from support.temporary import memory_place

from anaphora.daemon.access.grants import AppGrant, LlmGrant
from anaphora.daemon.money.ledger import Ledger
from anaphora.daemon.store import schema
from anaphora.daemon.store.postgres import PostgresStore
from anaphora.daemon.store.postgres import upkeep as upkeep_postgres
from anaphora.daemon.store.sqlite import SqliteStore
from anaphora.daemon.store.upkeep import PrunedStore, check, prune
from anaphora.daemon.values import App
from anaphora.errors import Io
from anaphora.postgres import schema as schema_postgres
from anaphora.postgres.address import PostgresAddress
from anaphora.postgres.connection import connect

#: Noon of 2027-01-15, UTC.
NOON = 1_800_014_400.0
DAY = 86_400.0


def an_app(id: str = "shop", per_day: int | None = None, per_month: int | None = None) -> App:
    llm = LlmGrant(nano_usd_per_day=per_day, nano_usd_per_month=per_month)
    return App(id=id, grant=AppGrant(app=id, llm=llm))


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class PostgresPlace(msgspec.Struct, frozen=True):
    """A database for a store, and where its node keeps its journal."""

    url: str
    folder: Path

    @property
    def address(self) -> PostgresAddress:
        return PostgresAddress.parse(self.url)

    @property
    def journal(self) -> Path:
        return self.folder / "settlements.journal"


StorePlace: TypeAlias = Path | PostgresPlace
"""The file of a store in SQLite, or a database in PostgreSQL."""


class OnPostgres(RuleBasedStateMachine):
    """For a state machine of ledgers: its store is in PostgreSQL."""

    server: ClassVar[PostgresServer]
    root: Path
    place: StorePlace
    store: Any
    loop: asyncio.AbstractEventLoop

    def new_place(self) -> StorePlace:
        return PostgresPlace(self.server.create_database(with_tables), self.root)

    def kill(self) -> None:
        async def end() -> None:
            abandon(self.store)
            await asyncio.sleep(0)

        self.loop.run_until_complete(end())

    def teardown(self) -> None:
        super().teardown()
        assert isinstance(self.place, PostgresPlace)
        self.server.drop_database(self.place.url)


def with_tables(url: str) -> None:
    """Makes the tables: a template for `PostgresServer.create_database`."""
    run_in_thread(_create(PostgresAddress.parse(url)))


async def _create(address: PostgresAddress) -> None:
    connection = await connect(address)
    try:
        await schema_postgres.create(connection)
    finally:
        await connection.close()


async def open_store(
    place: StorePlace, clock: Callable[[], float], *, node: str = "node"
) -> SqliteStore | PostgresStore:
    if isinstance(place, Path):
        return SqliteStore.open(place, clock=clock)
    return await PostgresStore.open(
        place.address, node=node, version="0", journal=place.journal, clock=clock
    )


@asynccontextmanager
async def opened(
    place: StorePlace, clock: Clock | None = None, *, node: str = "node"
) -> AsyncIterator[Ledger]:
    """A ledger as a daemon opens it."""
    clock = clock or Clock()
    store = await open_store(place, clock, node=node)
    try:
        ledger = Ledger(store, clock)
        await ledger.recover()
        yield ledger
    finally:
        await store.close()


def abandon(store: PostgresStore) -> None:
    """Leaves a store as a kill of its process would."""
    store._writer._task.cancel()
    assert store._keeper is not None
    if store._keeper._task is not None:
        store._keeper._task.cancel()
    for lane in (store._writer._lane, store._keeper._lane, store._reads, store._reports):
        lane.drop()
        lane._closed = True


def rows(place: StorePlace, sql: str, *values: Any) -> list[Any]:
    """What the tables hold, read beside the daemon."""
    if isinstance(place, PostgresPlace):
        return run_in_thread(_postgres_rows(place, sql, *values))
    with closing(schema.connect_to_read(place)) as database:
        return database.execute(sql, values).fetchall()


async def _postgres_rows(place: PostgresPlace, sql: str, *values: Any) -> list[Any]:
    connection = await connect(place.address)
    try:
        return [tuple(row) for row in await connection.fetch(sql, *values)]
    finally:
        await connection.close()


def problems_of(place: StorePlace, now: float = NOON) -> tuple[str, ...]:
    """What `anaphora store check` finds."""
    if isinstance(place, PostgresPlace):
        return run_in_thread(upkeep_postgres.check(place.address, now=now)).problems
    return check(place, now=now).problems


def prune_place(place: StorePlace, keep_days: float, now: float | None) -> PrunedStore:
    """What `anaphora store prune` does."""
    if isinstance(place, PostgresPlace):
        return run_in_thread(upkeep_postgres.prune(place.address, keep_days=keep_days, now=now))
    return prune(place, keep_days=keep_days, now=now)


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder in memory where the system has one: for tests of many commits."""
    with tempfile.TemporaryDirectory(dir=memory_place()) as folder:
        yield Path(folder)


def copy_killed(path: Path, target: Path) -> Path:
    """The files as a kill would leave them now, while no commit is under way."""
    target.mkdir()
    for suffix in ("", "-wal"):
        file = path.with_name(path.name + suffix)
        if file.exists():
            (target / file.name).write_bytes(file.read_bytes())
    return target / path.name


def make_store(path: Path, version: int) -> None:
    """An empty store of a schema version."""
    schema.create(path)
    with closing(schema.connect(path)) as database:
        schema.prepare(database, path)
        database.execute(f"PRAGMA user_version={version}")


# ── Kills ────────────────────────────────────────────────────────────────────────────────────────

PER_DAY, PER_MONTH = 3_000_000, 20_000_000
APPS = 3

#: Forks a daemon's ledger under load for each line on standard input, and prints its process id.
#: It prints `h ID BOUND` for a hold and `s ID BILLED KIND` for a settlement that it was told to be
#: on the disk.
_SERVER = """
import asyncio, json, os, random, sys
from pathlib import Path
from support.ledgers import APPS, PER_DAY, PER_MONTH, an_app
from anaphora.daemon.money.ledger import Ledger
from anaphora.daemon.store.sqlite import SqliteStore
from anaphora.errors import GrantExceeded

async def caller(ledger, draw, number):
    app = an_app(f"app{number % APPS}", PER_DAY, PER_MONTH)
    while True:
        bound = draw.randrange(1, 40_000)
        try:
            hold = await ledger.hold(
                app, provider="p", model="m", request_id=f"r{number}", bound=bound
            )
        except GrantExceeded:
            await asyncio.sleep(0.001)
            continue
        os.write(1, f"h {hold.hold.id} {bound}\\n".encode())
        kind = draw.choice(("billed", "billed", "estimated", "free", "bound"))
        billed = {"free": 0, "bound": bound}.get(kind, draw.randrange(bound + 1))
        if draw.random() < 0.3:
            hold.settle_later(billed, kind)
        else:
            await hold.settle(billed, kind, labels={"rules": billed // 2})
            os.write(1, f"s {hold.hold.id} {billed} {kind}\\n".encode())

async def run(path, seed, now):
    draw = random.Random(seed)
    store = SqliteStore.open(Path(path))
    ledger = Ledger(store, lambda: now)
    await ledger.recover()
    await asyncio.gather(*(caller(ledger, draw, number) for number in range(24)))

for line in sys.stdin:
    path, seed, now = json.loads(line)
    child = os.fork()
    if not child:
        try:
            asyncio.run(run(path, seed, now))
        finally:
            os._exit(1)
    os.write(1, b"child %d\\n" % child)
    _, status = os.waitpid(child, 0)
    os.write(1, b"ended %d\\n" % (os.WTERMSIG(status) if os.WIFSIGNALED(status) else -1))
"""


def kill_ledgers(path: Path, kills: int, *, seed: int) -> int:
    """Kills so many daemons' ledgers under load, and checks the store after each: what was
    acknowledged is there, and no limit is exceeded. The clock moves on by some hours for each, and
    sometimes back by days. The number of settlements that were acknowledged."""
    draw, now, settled = random.Random(seed), NOON, 0
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=with_tests(),
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for number in range(kills):
            now += draw.uniform(0, 12) * 3600
            at = now - 2 * DAY if draw.random() < 0.2 else now
            task = json.dumps([str(path), draw.randrange(1 << 30), at])
            server.stdin.write(f"{task}\n".encode())
            server.stdin.flush()
            lines = _killed(server.stdout, draw, at_once=number % 5 == 0)
            settled += _check_killed(path, lines, deep=number % 10 == 9 or number == kills - 1)
    assert server.returncode == 0
    return settled


def _killed(output: IO[bytes], draw: random.Random, *, at_once: bool) -> list[list[str]]:
    """What the child acknowledged until it was killed: at once, or some time after its first hold."""
    word, child = output.readline().split()
    assert word == b"child"
    lines = []
    if not at_once:
        lines.append(output.readline().decode().split())
        time.sleep(draw.random() * 0.05)
    else:
        time.sleep(draw.random() * 0.02)
    os.kill(int(child), signal.SIGKILL)
    while not (line := output.readline()).startswith(b"ended"):
        lines.append(line.decode().split())
    assert line.split()[1] == b"9", "it was killed, and did not fail"
    return lines


def _check_killed(path: Path, lines: list[list[str]], *, deep: bool) -> int:
    try:
        schema.connect_to_read(path).close()
    except Io:  # killed before there were tables
        assert not lines
        return 0
    for app, period, charged in rows(path, "SELECT app, period, spent + held FROM balances"):
        assert charged <= (PER_DAY if len(period) == 10 else PER_MONTH), f"{app} exceeded {period}"
    held = {id for (id,) in rows(path, "SELECT id FROM holds")}
    entries = {
        id: (billed, kind)
        for id, billed, kind in rows(path, "SELECT id, billed, kind FROM entries")
    }
    settled = 0
    for word, id, *figures in lines:
        if word == "h":
            assert id in held or id in entries, f"hold {id} is lost"
        else:
            assert entries[id] == (int(figures[0]), figures[1]), f"settlement of {id} is lost"
            settled += 1
    if deep:
        assert check(path, now=NOON + 1000 * DAY).problems == ()
    return settled
