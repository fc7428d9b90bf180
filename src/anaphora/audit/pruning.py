"""Deletes old rows; the rest can still be verified."""

from __future__ import annotations

import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from anaphora.postgres.connection import transaction
from anaphora.postgres.lane import PostgresLink

from .chain import ChainHead
from .envelope import ChainMark, PrunedChainsRow, decode
from .log import open_writer
from .log_postgres import ANCHORS, PAGE, PostgresLog, append_signed, write_anchor
from .reading import open_log, update_anchor, verify

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection

_DAY = 86_400.0


class PruneResult(msgspec.Struct, frozen=True, kw_only=True):
    log: str
    through: int
    """The last pruned row; 0 if none was old enough."""
    hash: str
    """Its hash, which is now in a row of the log."""
    segments: int
    """Number of deleted rows."""
    chains: tuple[ChainMark, ...] | msgspec.UnsetType = msgspec.UNSET
    """For a log in PostgreSQL: the last pruned row of each chain."""


def prune(
    path: str | Path | PostgresLog,
    *,
    keep_days: float,
    anchor: str | Path | None = None,
    row_key: bytes = b"",
) -> PruneResult:
    """Deletes the rows of earlier days; of a folder, whole segments. A row with the hash of the
    last deleted row is written first. Raises `Io` while a process writes the log: its own
    `keep_days` prunes it. A log in PostgreSQL can be written meanwhile; an `anchor` is verified
    before and updated after. `row_key` is for a log whose rows have MACs."""
    if isinstance(path, PostgresLog):
        return _prune_chains(path, keep_days, None if anchor is None else Path(anchor))
    open_log(Path(path))  # raises if there is none: a writer would begin one
    writer = open_writer(
        Path(path),
        node=platform.node(),
        anchor=None if anchor is None else Path(anchor),
        row_key=row_key,
    )
    try:
        boundaries = writer.prune(keep_days, time.time())
    finally:
        writer.close()
    last = boundaries[-1] if boundaries else None
    return PruneResult(
        log=str(path),
        through=0 if last is None else last.through,
        hash="" if last is None else last.hash,
        segments=len(boundaries),
    )


def _prune_chains(log: PostgresLog, keep_days: float, anchor: Path | None) -> PruneResult:
    if anchor is not None and anchor.exists():
        verify(log, anchor=anchor)
    through = _delete_old_rows(log, keep_days=keep_days, by=platform.node())
    if anchor is not None:
        update_anchor(anchor, verify(log))
    return PruneResult(log=str(log), through=0, hash="", segments=0, chains=tuple(through))


def _delete_old_rows(log: PostgresLog, *, keep_days: float, by: str) -> list[ChainMark]:
    """Deletes the rows of earlier days, including anchors. A row with the last hash of each chain
    is committed to the chain of anchors first. Nodes may write meanwhile."""
    before = datetime.fromtimestamp(time.time() - keep_days * _DAY, UTC)

    async def mark(connection: Connection) -> list[ChainMark]:
        async with transaction(connection):
            await connection.execute("SET LOCAL statement_timeout TO 0")
            await connection.execute("SELECT 1 FROM audit_chains ORDER BY id FOR UPDATE")
            found = await connection.fetch(_PRUNABLE, before)
            through = [ChainMark(chain, seq, decode(line).hash) for chain, seq, line in found]
            if not any(one.chain for one in through):
                return []
            row = PrunedChainsRow(
                at=time.time(), keep_days=float(keep_days), through=tuple(through)
            )
            query = "SELECT last_seq, last_hash FROM audit_chains WHERE id = $1"
            head = ChainHead(*await connection.fetchrow(query, ANCHORS))
            await append_signed(connection, row, head, log.key)
            for one in through:
                await connection.execute(_PRUNE, one.chain, one.seq, one.hash)
            # Deleted anchors may name rows that stay.
            await write_anchor(connection, node=by, key=log.key, all_chains=True)
            return [one for one in through if one.chain]

    async def delete(connection: Connection) -> bool:
        return str(await connection.execute(_DELETE, PAGE * 10)) != "DELETE 0"

    link = PostgresLink(log.address, "audit prune")
    try:
        through = link.run(mark, seconds=600.0)
        while link.run(delete):  # including rows left by a pruning that was killed
            pass
    finally:
        link.close()
    return through


_PRUNABLE = """
SELECT chains.id, rows.seq, rows.line
FROM audit_chains chains CROSS JOIN LATERAL (
    SELECT seq, line FROM audit_rows WHERE chain = chains.id AND seq < coalesce((
        SELECT min(seq) FROM audit_rows WHERE chain = chains.id AND at >= $1), 1::bigint << 62)
    ORDER BY seq DESC LIMIT 1
) rows
ORDER BY chains.id
"""
_PRUNE = "UPDATE audit_chains SET start_seq = $2, start_hash = $3 WHERE id = $1"
_DELETE = """
DELETE FROM audit_rows WHERE ctid = ANY(ARRAY(
    SELECT rows.ctid FROM audit_chains chains
    JOIN audit_rows rows ON chain = chains.id AND seq <= start_seq LIMIT $1))
"""
