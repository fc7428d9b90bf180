"""Deletes old rows; the rest can still be verified."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import msgspec

from .log import open_writer
from .reading import open_log


class PruneResult(msgspec.Struct, frozen=True, kw_only=True):
    log: str
    through: int
    """The last pruned row; 0 if none was old enough."""
    hash: str
    """Its hash, which is now in a row of the log."""
    segments: int
    """Number of deleted segments."""


def prune(
    path: str | Path,
    *,
    keep_days: float,
    anchor: str | Path | None = None,
    row_key: bytes = b"",
) -> PruneResult:
    """Deletes the segments of earlier days. A row with the hash of the last deleted row is written
    first. Raises `Io` while a process writes the log: its own `keep_days` prunes it. `row_key` is
    for a log whose rows have MACs."""
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
