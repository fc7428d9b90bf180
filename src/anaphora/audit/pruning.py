"""Deleting old rows so that the rest can still be verified."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import msgspec

from .chains import prune_chains
from .envelope import ChainMark
from .log import open_writer
from .log_postgres import PostgresLog
from .reading import open_log, update_anchor, verify


class PruneResult(msgspec.Struct, frozen=True, kw_only=True):
    log: str
    through: int
    """The last row that was pruned; 0: none was old enough."""
    hash: str
    """Its hash, which is now in a row of the log."""
    segments: int
    """How many were deleted."""
    chains: tuple[ChainMark, ...] | msgspec.UnsetType = msgspec.UNSET
    """Of a log in PostgreSQL: the last row of each chain that was pruned."""


def prune(
    path: str | Path | PostgresLog,
    *,
    keep_days: float,
    anchor: str | Path | None = None,
    row_key: bytes = b"",
) -> PruneResult:
    """Deletes the rows of earlier days; of a folder, whole segments. A row with the hash of the
    last of them is written first. Raises `Io` while a process writes the log: its own `keep_days`
    prunes it. A log in PostgreSQL can be written meanwhile; an `anchor` is verified before, and
    follows. `row_key` is that of a log whose rows have MACs."""
    if isinstance(path, PostgresLog):
        return _prune_chains(path, keep_days, None if anchor is None else Path(anchor))
    open_log(Path(path))  # raises where there is none: a writer would begin one
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
    through = prune_chains(log, keep_days=keep_days, by=platform.node())
    if anchor is not None:
        update_anchor(anchor, verify(log))
    return PruneResult(log=str(log), through=0, hash="", segments=0, chains=tuple(through))
