"""`anaphora store` on PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.ledgers import DAY, NOON, Clock, PostgresPlace, an_app, opened, rows
from support.servers import PostgresServer, run_in_thread

from anaphora.daemon.access.grants import NANO

PAST = NOON - 365 * DAY


async def _fill(place: PostgresPlace) -> None:
    async with opened(place, clock := Clock(PAST)) as ledger:
        for number in range(40):
            hold = await ledger.hold(
                an_app(f"app{number % 3}"), provider="p", model="m", request_id="r", bound=2 * NANO
            )
            await hold.settle(2 * NANO, "billed", labels={"rules": NANO, "history": 5}, saved=3)
            clock.now += DAY / 4


@pytest.fixture
def home(tmp_path: Path, postgres_place: PostgresPlace) -> Path:
    """Of a node whose store has entries."""
    run_in_thread(_fill(postgres_place))
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "llm.yaml").write_text(f"providers: {{}}\ndaemon: {{store: '{postgres_place.url}'}}\n")
    return home


def test_check_and_prune_work_on_postgresql(
    run: Any, home: Path, postgres_place: PostgresPlace, postgres_server: PostgresServer
) -> None:
    checked = run("store", "check", "--home", str(home))
    assert (checked.returncode, "40 entries" in checked.stdout) == (0, True), checked.stderr
    postgres_server.execute("UPDATE anaphora.balances SET spent = spent + 1", postgres_place.url)
    wrong = run("store", "check", "--home", str(home))
    assert wrong.returncode == 1
    assert "balances and the entries differ" in wrong.stdout
    pruned = run("store", "prune", "--keep-days", "90", "--home", str(home))
    assert (pruned.returncode, "40 entries before" in pruned.stdout) == (0, True), pruned.stderr
    checked = run("store", "check", "--home", str(home))
    assert (checked.returncode, "were pruned" in checked.stdout) == (0, True), checked.stdout
    assert rows(postgres_place, "SELECT sum(billed) FROM sums") == [(80 * NANO,)]


def test_an_empty_database_is_named(run: Any, home: Path, postgres_server: PostgresServer) -> None:
    empty = postgres_server.create_database()
    (home / "llm.yaml").write_text(f"providers: {{}}\ndaemon: {{store: '{empty}'}}\n")
    found = run("store", "check", "--home", str(home))
    assert "holds no store of anaphora" in found.stderr
    postgres_server.drop_database(empty)


def test_a_backup_is_for_the_databases_own_program(run: Any, home: Path, tmp_path: Path) -> None:
    done = run("backup", str(tmp_path / "copy"), "--home", str(home))
    assert done.returncode == 0, done.stderr
    assert "without the store: it is at postgresql://" in done.stdout
    assert "back it up with pg_dump" in done.stdout


def test_without_postgresql_a_command_says_where_it_should_be(run: Any, home: Path) -> None:
    (home / "llm.yaml").write_text(
        "providers: {}\ndaemon: {store: 'postgresql://app@127.0.0.1:1/x'}\n"
    )
    done = run("store", "check", "--home", str(home))
    assert "postgresql://127.0.0.1:1/x: cannot be reached: " in done.stderr
    assert "Traceback" not in done.stderr
