"""Copies a store from SQLite to PostgreSQL: `anaphora store move`.

A move is one transaction. It is checked before its commit: the rows of each table are counted,
their amounts summed, all sums compared with the entries, and the chain of the audit log followed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from anaphora.audit.chain import ChainChecker, ChainHead
from anaphora.audit.log_file import check_name, segments_of
from anaphora.audit.moving import copy_log
from anaphora.audit.reading import open_log
from anaphora.daemon.store.budgets import CarvedBudget
from anaphora.daemon.store.schema import connect_to_read
from anaphora.daemon.store.tables import BUDGET_FIELDS
from anaphora.daemon.store.upkeep import POSTGRES_SUMS, check, differences
from anaphora.errors import InvalidConfig, Io
from anaphora.postgres.address import PostgresAddress
from anaphora.postgres.migrations import migrate
from anaphora.sqlite_files import transaction
from anaphora.wording import counted

from .statements import settle_open_holds
from .upkeep import connected

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the name of a table, the rows copied and their total."""

_CHUNK = 2_000

_HOLD = ("id", "app", "provider", "model", "request_id", "day", "at", "bound", "accounts")
_KEY = ("day", "app", "provider", "model")

#: The tables of both stores, with the fields that they share, and the amounts that are summed.
_TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "balances": (("app", "period", "spent", "held"), ("spent", "held")),
    "holds": (_HOLD, ("bound",)),
    "entries": (
        (
            *_HOLD, "settled_at", "billed", "kind", "input", "read", "written", "output", "saved",
            "read_by_others", "labels", "corrects", "confirmed", "reason",
        ),
        ("bound", "billed", "saved", "input", "read", "written", "output", "confirmed"),
    ),
    "sums": (
        (
            *_KEY, "calls", "billed", "estimated", "saved", "input", "read", "written", "output",
            "corrected",
        ),
        ("calls", "billed", "estimated", "saved", "corrected"),
    ),
    "label_sums": ((*_KEY, "label", "calls", "billed"), ("calls", "billed")),
    "app_groups": (("app", "since", "day", "name"), ()),
    "tokens": (("id", "app", "digest", "created", "expires", "revoked"), ()),
    "budgets": (BUDGET_FIELDS, ("nano_usd",)),
    "reservations": (CarvedBudget.__struct_fields__, ("nano_usd",)),
    "handles": (("kind", "id", "provider", "app", "created", "tokens", "bill"), ()),
}  # fmt: skip


class MovedStore(msgspec.Struct, frozen=True, kw_only=True):
    """The copied and verified figures."""

    source: str
    target: str
    entries: int
    billed: int
    """Nano-dollars of all entries."""
    open_holds: int
    """Holds settled at their bound, since none of their calls is running."""
    tokens: int
    handles: int
    audit_rows: int
    audit_hash: str
    """Hash of the last row of the audit log; empty if there is none."""
    kept: bool
    """False after a trial."""


class _Trial(Exception):
    """Rolls back the transaction of a trial move."""


# ── From SQLite to PostgreSQL ─────────────────────────────────────────────────────────────────────


async def move(
    source: Path,
    address: PostgresAddress,
    *,
    audit: Path | None = None,
    audit_key: bytes = b"",
    keep: bool = True,
    progress: Progress | None = None,
) -> MovedStore:
    """Copies a store, and the audit log, into an empty database. The source is not changed; no
    daemon may use it. An anchor, signed with `audit_key`, names the end of the log. If `keep` is
    false, everything is copied and checked, then rolled back. Raises `Io` for a source that is not
    sound, `InvalidConfig` for a target that is not empty."""
    problems = check(source).problems
    if problems:
        raise Io(f"{source}: is not sound: {problems[0]}; see: anaphora store check")
    if audit is not None:
        check_name(audit)
    has_log = audit is not None and bool(segments_of(audit))
    moved: MovedStore | None = None
    with closing(connect_to_read(source)) as database, transaction(database, "BEGIN"):
        async with connected(address) as connection:
            await migrate(connection)
            with suppress(_Trial):
                async with connection.transaction():
                    await _refuse_used(connection, address)
                    copied = await _copy(database, connection, progress or _silent)
                    log = ChainHead(), 0
                    if has_log:
                        assert audit is not None
                        log = await _copy_log(audit, connection, audit_key, progress or _silent)
                    moved = _moved(source, address, copied, *log, keep=keep)
                    if not keep:
                        raise _Trial
    assert moved is not None
    return moved


def _moved(
    source: Path,
    address: PostgresAddress,
    copied: dict[str, tuple[int, ...]],
    head: ChainHead,
    rows: int,
    *,
    keep: bool,
) -> MovedStore:
    return MovedStore(
        source=str(source),
        target=str(address),
        entries=copied["entries"][0],
        billed=copied["entries"][2],
        open_holds=copied["holds"][0],
        tokens=copied["tokens"][0],
        handles=copied["handles"][0],
        audit_rows=rows,
        audit_hash=head.hash if rows else "",
        kept=keep,
    )


def _silent(what: str, count: int, total: int) -> None:
    del what, count, total


async def _refuse_used(connection: Connection, address: PostgresAddress) -> None:
    await connection.execute("LOCK TABLE nodes, entries, holds IN SHARE ROW EXCLUSIVE MODE")
    if await connection.fetchval("SELECT count(*) FROM nodes WHERE state = 'alive'"):
        raise InvalidConfig(f"{address}: is in use by a node; stop all of them first")
    for table in (*_TABLES, "audit_rows"):
        if count := await connection.fetchval(f"SELECT count(*) FROM {table}"):
            raise InvalidConfig(
                f"{address}: is not empty: {table} has {counted(count, 'row')}; move to a new"
                " database"
            )


async def _copy(
    database: sqlite3.Connection, connection: Connection, progress: Progress
) -> dict[str, tuple[int, ...]]:
    """Copies all tables. Returns the count and sums of each, which are the same in both stores."""
    node = await connection.fetchval(
        "INSERT INTO nodes (name, version, state, ended) VALUES ('sqlite', '', 'ended',"
        " clock_timestamp()) RETURNING id"
    )
    copied: dict[str, tuple[int, ...]] = {}
    for table, (fields, amounts) in _TABLES.items():
        expected = _figures(database, table, amounts)
        more = (node,) if table in ("holds", "entries") else ()
        names = [*fields, *(["node"] if more else [])]
        rows = database.execute(f"SELECT {', '.join(fields)} FROM {table}")
        done = 0
        while chunk := rows.fetchmany(_CHUNK):
            records = [(*map(_storable, row), *more) for row in chunk]
            await connection.copy_records_to_table(
                table, schema_name="anaphora", records=records, columns=names
            )
            done += len(chunk)
            progress(table, done, expected[0])
        found = tuple(await connection.fetchrow(_figures_sql(table, amounts)))
        if found != expected:
            raise Io(f"{table}: {found} were copied, and {expected} expected")
        copied[table] = expected
    clock = database.execute("SELECT latest_day, pruned_until FROM clock").fetchone()
    await connection.execute("UPDATE clock SET latest_day = $1, pruned_until = $2", *clock)
    for table, sql in differences(POSTGRES_SUMS):
        if count := await connection.fetchval(sql):
            raise Io(f"{table}: {counted(count, 'row')} differ from the entries after the copy")
    await _copy_unaudited(database, connection, node)
    await settle_open_holds(connection, node)
    return copied


async def _copy_unaudited(database: sqlite3.Connection, connection: Connection, node: int) -> None:
    """Copies the marks of entries without an audit row, including open holds if the daemon had a
    log. A node of the new store writes the rows."""
    marks = database.execute("SELECT request_id, hold, interrupted FROM unaudited").fetchall()
    await connection.executemany(
        "INSERT INTO unaudited (request_id, hold, node, writer, interrupted)"
        " VALUES ($1, $2, $3, $3, $4)",
        [(request_id, hold, node, bool(interrupted)) for request_id, hold, interrupted in marks],
    )
    (epoch,) = database.execute("SELECT audit_epoch FROM clock").fetchone()
    if epoch:
        await connection.execute("UPDATE nodes SET audits = true WHERE id = $1", node)


def _storable(value: Any) -> Any:
    """Removes zero bytes, which PostgreSQL's texts cannot hold."""
    if isinstance(value, str) and ("\0" in value or "\\u0000" in value):
        return value.replace("\0", "\ufffd").replace("\\u0000", "\ufffd")
    return value


def _figures_sql(table: str, amounts: Sequence[str]) -> str:
    sums = "".join(f", CAST(COALESCE(SUM({name}), 0) AS bigint)" for name in amounts)
    return f"SELECT COUNT(*){sums} FROM {table}"


def _figures(database: sqlite3.Connection, table: str, amounts: Sequence[str]) -> tuple[int, ...]:
    found: tuple[int, ...] = database.execute(_figures_sql(table, amounts)).fetchone()
    return found


async def _copy_log(
    path: Path, connection: Connection, key: bytes, progress: Progress
) -> tuple[ChainHead, int]:
    """Copies an audit log as a closed chain. Returns its last row and the number of rows."""

    def copied_rows(rows: int) -> None:
        progress("audit rows", rows, 0)

    start = open_log(path).start()
    copied = await copy_log(connection, path, node="store move", key=key, progress=copied_rows)
    await _check_copied_log(connection, copied.chain, start, copied.head)
    return copied.head, copied.rows


async def _check_copied_log(
    connection: Connection, chain: int, start: ChainHead, head: ChainHead
) -> None:
    """Verifies the chain again, read from PostgreSQL."""
    again = ChainChecker(start)
    cursor = connection.cursor(
        "SELECT line FROM audit_rows WHERE chain = $1 ORDER BY seq", chain, prefetch=_CHUNK
    )
    lines: list[bytes] = []
    async for (line,) in cursor:
        lines.append(line)
        if len(lines) == _CHUNK:
            _follow(again, lines, "copy")
            lines = []
    _follow(again, lines, "copy")
    if again.head != head:
        raise Io(f"the audit log ends with row {again.head.seq:,} after the copy, not {head.seq:,}")


def _follow(checker: ChainChecker, lines: Sequence[bytes], place: str) -> None:
    for _ in checker.check(lines, lambda _: place):
        pass
