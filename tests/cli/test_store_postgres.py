"""`anaphora store` on PostgreSQL: move, backup, check, migrate, reset-clock."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.audit_logs import envelope
from support.ledgers import DAY, NOON, Clock, PostgresPlace, an_app, opened, problems_of, rows
from support.servers import PostgresServer, run_in_thread

from anaphora.audit.log import AuditLog
from anaphora.audit.log_postgres import PostgresLog
from anaphora.audit.reading import verify
from anaphora.daemon.access.grants import NANO, AppGrant, GroupLimits, LlmGrant
from anaphora.daemon.money.ledger import Ledger
from anaphora.daemon.store import HandleRow, SpendLimits, TokenRow
from anaphora.daemon.values import App
from anaphora.errors import GrantExceeded

PAST = NOON - 365 * DAY


async def spend(ledger: Ledger, app: str, billed: int, **labels: int) -> None:
    hold = await ledger.hold(an_app(app), provider="p", model="m", request_id="r", bound=billed)
    await hold.settle(billed, "billed", labels=labels, saved=3)


async def _fill(home: Path) -> None:
    async with opened(home / "store.sqlite", clock := Clock(PAST)) as ledger:
        for number in range(40):
            await spend(ledger, f"app{number % 3}", 2 * NANO, rules=NANO, history=5)
            clock.now += DAY / 4
        await ledger.store.add_token(TokenRow(id="t", app="app1", digest=b"\x00\xff", created=1.5))
        await ledger.store.add_handle(
            HandleRow(kind="file", id="f", app="app1", provider="p", created=2.5, tokens=7)
        )
        hold = await ledger.hold(
            an_app("app0"), provider="p", model="m", request_id="r", bound=NANO // 2
        )
        hold._settled = True  # stays open, as after a kill
    log = AuditLog(home / "audit", node="one")
    for number in range(25):
        log.append(envelope(number))
    log.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a store in SQLite, an open hold, and an audit log."""
    home = tmp_path_factory.mktemp("home")
    run_in_thread(_fill(home))
    return home


@pytest.fixture
def home(filled: Path, tmp_path: Path, postgres_place: PostgresPlace) -> Path:
    """Configured for PostgreSQL, with the files of before."""
    home = tmp_path / "home"
    shutil.copytree(filled, home)
    home.chmod(0o700)
    (home / "llm.yaml").write_text(f"providers: {{}}\ndaemon: {{store: '{postgres_place.url}'}}\n")
    return home


def sqlite_rows(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(sql).fetchall()


def test_a_store_is_moved_with_its_audit_log_and_nothing_is_lost(
    run: Any, home: Path, postgres_place: PostgresPlace
) -> None:
    before = {name: (home / name).read_bytes() for name in ("store.sqlite",)}
    trial = run("store", "move", "--home", str(home), "--dry-run")
    assert "ok; nothing was moved" in trial.stdout, trial.stderr
    assert rows(postgres_place, "SELECT count(*) FROM entries") == [(0,)]

    source = verify(home / "audit")
    done = run("store", "move", "--home", str(home), "--json")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert value == {
        "source": str(home / "store.sqlite"), "target": str(postgres_place.address),
        "entries": 40, "billed": 80 * NANO, "open_holds": 1, "tokens": 1, "handles": 1,
        "audit_rows": source.rows, "audit_hash": source.hash, "kept": True,
    }  # fmt: skip
    for table in ("tokens", "handles"):
        names = {"tokens": "id, app, digest, created, expires, revoked",
                 "handles": "kind, id, provider, app, created, tokens"}[table]  # fmt: skip
        sql = f"SELECT {names} FROM {table}"
        assert rows(postgres_place, sql) == sqlite_rows(home / "store.sqlite", sql)
    # The open hold is charged at its bound, as a start of the daemon would.
    assert len(rows(postgres_place, "SELECT 1 FROM entries")) == 41
    assert rows(postgres_place, "SELECT billed, kind FROM entries WHERE kind = 'bound'") == [
        (NANO // 2, "bound")
    ]
    assert problems_of(postgres_place) == ()
    assert {name: (home / name).read_bytes() for name in before} == before

    log = PostgresLog(postgres_place.address)
    try:
        checked = verify(log)
        assert checked.rows == source.rows >= 25
    finally:
        log.close()

    again = run("store", "move", "--home", str(home))
    assert again.returncode != 0
    assert "is not empty: balances has" in again.stderr
    assert "move to a new database" in again.stderr


async def _spend_budgets(home: Path) -> None:
    limits = SpendLimits(per_day=NANO, group_per_day=NANO)
    llm = LlmGrant(nano_usd_per_day=NANO)
    team = GroupLimits(nano_usd_per_day=NANO)
    grant = AppGrant(app="app1", llm=llm, group="team", group_limits=team)
    task = App(id="app1", grant=grant, budgets=("kept",), budget_limits=(300,))
    row = TokenRow(
        id="kept", app="app1", digest=b"\x01", created=PAST, expires=PAST + DAY, parent="t",
        nano_usd=300, models=("claude-*",), label="task 7", reserved=True,
    )  # fmt: skip
    async with opened(home / "store.sqlite", Clock(PAST)) as ledger:
        await ledger.store.reserve(row, limits, group="team")
        facts = {"provider": "p", "model": "m", "request_id": "r"}
        await (await ledger.hold(task, bound=100, **facts)).settle(100, "billed")
        left = await ledger.hold(task, bound=50, **facts)
        left._settled = True  # stays open, as after a kill


def test_budgets_are_moved_with_what_they_reserve(
    run: Any, tmp_path: Path, postgres_place: PostgresPlace
) -> None:
    home, place = tmp_path / "home", postgres_place
    home.mkdir()
    run_in_thread(_spend_budgets(home))
    (home / "llm.yaml").write_text(f"providers: {{}}\ndaemon: {{store: '{place.url}'}}\n")
    AuditLog(home / "audit", node="one").close()
    done = run("store", "move", "--home", str(home))
    assert done.returncode == 0, done.stderr
    assert problems_of(place) == ()
    names = "SELECT app, spent, held FROM balances WHERE app LIKE '%:%' ORDER BY app, period"
    assert rows(place, names) == [
        ("budget:kept", 150, 0),
        ("group:team", 150, 0),
        ("group:team", 150, 0),
    ]

    async def left() -> None:
        async with opened(place, Clock(PAST)) as ledger:
            (found,) = await ledger.store.budgets("app1")
            assert (found.spent, found.token.label, found.token.models) == (
                150, "task 7", ("claude-*",),
            )  # fmt: skip
            facts = {"provider": "p", "model": "m", "request_id": "r"}
            with pytest.raises(GrantExceeded, match="usd_per_day"):
                await ledger.hold(an_app("app1", NANO), bound=NANO - 299, **facts)
            (await ledger.hold(an_app("app1", NANO), bound=NANO - 300, **facts)).release()

    run_in_thread(left())


def test_a_source_that_is_not_sound_is_not_moved(
    run: Any, home: Path, postgres_place: PostgresPlace
) -> None:
    with closing(sqlite3.connect(home / "store.sqlite", isolation_level=None)) as database:
        database.execute("UPDATE balances SET spent = spent + 1")
    done = run("store", "move", "--home", str(home))
    assert "is not sound: balances and the entries differ" in done.stderr
    assert done.returncode != 0


def test_an_audit_log_that_was_changed_is_not_moved(
    run: Any, home: Path, postgres_place: PostgresPlace
) -> None:
    (segment,) = (home / "audit").glob("*.jsonl")
    segment.write_bytes(segment.read_bytes().replace(b'"req-7"', b'"req-8"', 1))
    done = run("store", "move", "--home", str(home))
    assert done.returncode != 0
    assert rows(postgres_place, "SELECT count(*) FROM entries") == [(0,)]


def test_move_needs_a_target_and_no_running_node(
    run: Any, home: Path, postgres_place: PostgresPlace
) -> None:
    async def beside_a_node() -> Any:
        async with opened(postgres_place):
            return await asyncio.to_thread(run, "store", "move", "--home", str(home))

    assert "is in use by a node; stop all of them first" in run_in_thread(beside_a_node()).stderr
    (home / "llm.yaml").write_text("providers: {}\n")
    done = run("store", "move", "--home", str(home))
    assert "name the target first: `store: postgresql://…`" in done.stderr


def test_check_and_migrate_and_reset_clock_work_on_postgresql(
    run: Any, home: Path, postgres_place: PostgresPlace, postgres_server: PostgresServer
) -> None:
    done = run("store", "migrate", "--home", str(home), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["before"] == json.loads(done.stdout)["after"]
    assert run("store", "move", "--home", str(home)).returncode == 0
    checked = run("store", "check", "--home", str(home))
    assert (checked.returncode, "41 entries" in checked.stdout) == (0, True), checked.stderr
    postgres_server.execute("UPDATE anaphora.balances SET spent = spent + 1", postgres_place.url)
    postgres_server.execute(
        "UPDATE anaphora.clock SET latest_day = '9999-01-01'", postgres_place.url
    )
    wrong = run("store", "check", "--home", str(home))
    assert wrong.returncode == 1
    assert "balances and the entries differ" in wrong.stdout
    assert "anaphora store reset-clock" in wrong.stdout
    reset = run("store", "reset-clock", "--home", str(home))
    assert "the latest day was 9999-01-01" in reset.stdout
    pruned = run("store", "prune", "--keep-days", "90", "--home", str(home))
    assert (pruned.returncode, "41 entries before" in pruned.stdout) == (0, True), pruned.stderr
    checked = run("store", "check", "--home", str(home))
    assert (checked.returncode, "were pruned" in checked.stdout) == (0, True), checked.stdout

    empty = postgres_server.create_database()
    (home / "llm.yaml").write_text(f"providers: {{}}\ndaemon: {{store: '{empty}'}}\n")
    assert (
        "holds no store of anaphora; make one with"
        in run("store", "check", "--home", str(home)).stderr
    )
    made = run("store", "migrate", "--home", str(home))
    assert "updated from schema_version 0 to" in made.stdout
    postgres_server.drop_database(empty)


def test_without_postgresql_a_command_says_where_it_should_be(run: Any, home: Path) -> None:
    (home / "llm.yaml").write_text(
        "providers: {}\ndaemon: {store: 'postgresql://app@127.0.0.1:1/x'}\n"
    )
    done = run("store", "check", "--home", str(home))
    assert "postgresql://127.0.0.1:1/x: cannot be reached: " in done.stderr
    assert "Traceback" not in done.stderr
