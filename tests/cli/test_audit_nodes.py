"""`anaphora audit` on the home of a daemon: in its folder, or in PostgreSQL, over all nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.audit_logs import envelope, written
from support.postgres_logs import execute, fill_chains, in_database, migrated
from support.servers import PostgresServer

from anaphora.audit.log_postgres import PostgresLog, append_rows
from anaphora.daemon.audit import audit_place
from anaphora.daemon.home import Home, init
from anaphora.daemon.home.config import daemon_config


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[str]:
    url = postgres_server.create_database(migrated)
    yield url
    postgres_server.drop_database(url)


def write_home(folder: Path, **daemon: Any) -> Path:
    folder.mkdir(mode=0o700)
    config = {"providers": {"local": {"wire": "openai_chat", "base_url": "http://localhost:1"}}}
    (folder / "llm.yaml").write_bytes(msgspec.json.encode({**config, "daemon": daemon}))
    init(folder)
    return folder


@pytest.fixture
def home(tmp_path: Path, database: str) -> Path:
    """With nine calls of three nodes."""
    home = write_home(tmp_path / "home", store=database)
    place = audit_place(Home.open(home), daemon_config(Home.open(home).config()))
    assert isinstance(place, PostgresLog)
    calls = [envelope(number, app="shop", labels=("checkout",)) for number in range(9)]
    fill_chains(place, calls, nodes=3)
    place.close()
    return home


def test_the_log_of_a_home_without_postgresql_is_its_folder(run: Any, tmp_path: Path) -> None:
    home = write_home(tmp_path / "home")
    written(home / "audit", 3)
    result = run("audit", "verify", str(home))
    assert (result.returncode, result.stderr) == (0, "")
    assert "the chain of 6 rows in 1 segment is whole" in result.stdout


def test_row_that_was_added_by_hand_is_found(run: Any, home: Path, database: str) -> None:
    """Who can write the database knows how rows are hashed, and has no key. No anchor names the
    rows of the last minute yet."""
    [(chain,)] = execute(database, "SELECT max(id) FROM audit_chains")
    assert isinstance(chain, int)
    execute(database, "UPDATE audit_chains SET closed = NULL WHERE id = $1", chain)
    in_database(database, lambda one: append_rows(one, chain, [envelope(99)]))
    result = run("audit", "verify", str(home))
    assert result.returncode == 3
    assert "row 6 has no MAC, and rows have one from row 1 on" in result.stderr


def test_verify_checks_all_chains(run: Any, home: Path) -> None:
    result = run("audit", "verify", str(home))
    assert (result.returncode, result.stderr) == (0, "")
    assert "15 rows in 3 chains: all are whole" in result.stdout
    for name in ("node-0", "node-1", "node-2"):
        [line] = [line for line in result.stdout.splitlines() if name in line]
        assert line.split()[1:] == [name, "stopped", "5", "5", "5", "1"]
    assert "6 anchors" in result.stdout
    value = msgspec.json.decode(run("audit", "verify", str(home), "--json").stdout)
    assert (value["ok"], value["rows"], value["signed_anchors"]) == (True, 15, 6)
    assert [chain["name"] for chain in value["chains"]] == ["node-0", "node-1", "node-2"]


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ("DELETE FROM audit_rows WHERE chain = 2 AND seq = 3", 6, "row 3 (chain 2, node-1)"),
        ("DELETE FROM audit_rows WHERE chain = 2 AND seq = 5", 3, "the log was cut off"),
        ("DELETE FROM audit_chains WHERE id = 2", 3, "chain 2 is missing"),
        ("DELETE FROM audit_rows WHERE chain = 0 AND seq = 3", 6, "row 3 (anchors)"),
    ],
)
def test_verify_finds_what_was_changed(
    run: Any, home: Path, database: str, change: str, code: int, message: str
) -> None:
    execute(database, change)
    result = run("audit", "verify", str(home))
    assert result.returncode == code
    assert message in result.stderr
    value = msgspec.json.decode(run("audit", "verify", str(home), "--json").stdout)
    assert value["ok"] is False
    assert message in value["problem"]


def test_an_anchor_elsewhere_covers_all_chains(
    run: Any, home: Path, database: str, tmp_path: Path
) -> None:
    anchor = str(tmp_path / "anchor.json")
    assert run("audit", "verify", str(home), "--anchor", anchor, "--update").returncode == 0
    result = run("audit", "verify", str(home), "--anchor", anchor)
    assert "the anchor names row 6 of the anchors, which is there" in result.stdout
    execute(database, "TRUNCATE audit_rows")
    execute(database, "DELETE FROM audit_chains WHERE id > 0")
    execute(database, "UPDATE audit_chains SET last_seq = 0, last_hash = repeat('0', 64)")
    assert run("audit", "verify", str(home)).returncode == 0
    result = run("audit", "verify", str(home), "--anchor", anchor)
    assert result.returncode == 3
    assert "cut off" in result.stderr


def test_show_prints_the_newest_calls_of_all_nodes(run: Any, home: Path) -> None:
    rows = msgspec.json.decode(run("audit", "show", str(home), "--last", "4", "--json").stdout)
    assert len(rows) == 4
    assert {row["chain"] for row in rows} <= {1, 2, 3}
    text = run("audit", "show", str(home)).stdout
    assert {f"{chain}:{row}" for chain in (1, 2, 3) for row in (2, 3, 4)} <= {*text.split()}
    [one] = [run("audit", "show", str(home), "--row", "2:3", "--json")]
    found = msgspec.json.decode(one.stdout)
    assert (found["chain"], found["seq"], found["node"]) == (2, 3, "node-1")
    for number, message in (
        ("3", "has several chains: write --row CHAIN:3"),
        ("2:99", "there is no row 99 in chain 2"),
        ("2:x", "'2:x' is not a row number: write 17, or CHAIN:17"),
        ("0", "'0' is not a row number"),
    ):
        result = run("audit", "show", str(home), "--row", number)
        assert result.returncode != 0
        assert message in result.stderr


def test_export_and_report_read_all_nodes(run: Any, home: Path, tmp_path: Path) -> None:
    lines = run("audit", "export", str(home)).stdout.splitlines()
    assert len(lines) == 9
    table = run("audit", "export", str(home), "--format", "csv").stdout.splitlines()
    assert len(table) == 10
    report = msgspec.json.decode(run("audit", "report", str(home), "--json").stdout)
    assert report["total"]["calls"] == 9
    page = tmp_path / "report.html"
    assert run("audit", "report", str(home), "--html", str(page)).returncode == 0
    assert "Audit log db_" in page.read_text()


def test_prune_deletes_rows_of_all_chains(run: Any, home: Path, database: str) -> None:
    result = run("audit", "prune", str(home), "--keep-days", "30")
    assert "no row is older than 30 days" in result.stdout
    execute(database, "UPDATE audit_rows SET at = at - interval '40 days' WHERE chain = 2")
    result = run("audit", "prune", str(home), "--keep-days", "30")
    assert "pruned the rows of chain 2 up to 5" in result.stdout
    result = run("audit", "verify", str(home))
    assert "10 rows in 3 chains: all are whole" in result.stdout


def test_a_database_that_cannot_be_reached_is_named(
    run: Any, home: Path, postgres_server: PostgresServer
) -> None:
    postgres_server.stop()
    result = run("audit", "verify", str(home))
    assert result.returncode != 0
    assert "cannot be reached" in result.stderr
    assert "Traceback" not in result.stderr
    postgres_server.start()
