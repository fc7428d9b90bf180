"""From slices of logs to partitions, and from partitions to sums: two functions that run in this
process, in others, or as tasks of Ray.

    runs_of(slice, buckets)      records by bucket, sorted by conversation and time
    judge_runs(job, runs)        the sums and rows of one bucket

A bucket holds the partitions whose keys begin alike. Between the two, records are in files that
only this user can read (`Spill`), or in Ray's object store.
"""

from __future__ import annotations

import heapq
import io
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import msgspec

from anaphora.catalog.pricing import PriceBook

from .parquet import values_of, write_parquet
from .partition import FleetRow, LogRecord, SetAside, judge_partition, records_in
from .sources import LogSlice, objects_in
from .sums import MOST_PROBLEMS, FleetJob, FleetSums, losses_in

#: Bytes of records that a process holds before it writes them.
_MOST_HELD = 32 * 1024 * 1024
#: Bytes that are read at once of all runs of a bucket together.
_MOST_READ = 32 * 1024 * 1024
_SPILL = "anaphora-fleet-"
_LENGTH = struct.Struct("<I")
_decode = msgspec.msgpack.Decoder(LogRecord).decode

Run: TypeAlias = Iterable[LogRecord]


class SpilledRun(NamedTuple):
    """Where the records of one bucket are in a file."""

    path: str
    start: int
    size: int


class SlicedRecords(NamedTuple):
    """What came of a slice."""

    runs: dict[int, list[Any]]
    """By bucket: a `SpilledRun`, or the bytes of a run."""
    records: int
    problems: list[SetAside]
    """The first broken records."""
    others: list[int]
    """How many more are broken, and how many have no bill."""
    size: int


class BucketResult(NamedTuple):
    sums: FleetSums
    table: bytes
    """Parquet; empty if no rows were asked for."""


def runs_of(
    part: LogSlice, buckets: int, keep: Callable[[dict[int, bytes]], dict[int, Any]]
) -> SlicedRecords:
    """Reads a slice. `keep` gets runs by bucket, and returns what stands for each."""
    found = SlicedRecords({}, 0, [], [0, 0], part.size)
    held: dict[int, list[LogRecord]] = {}
    size = records = 0

    def flush() -> None:
        ready = {bucket: encoded(sorted(each)) for bucket, each in sorted(held.items())}
        for bucket, run in keep(ready).items():
            found.runs.setdefault(bucket, []).append(run)
        held.clear()

    for record in records_in(objects_in(part)):
        if isinstance(record, SetAside):
            if record.broken and len(found.problems) < MOST_PROBLEMS:
                found.problems.append(record)
            else:
                found.others[not record.broken] += 1
            continue
        records += 1
        held.setdefault(int.from_bytes(record.key[:4]) % buckets, []).append(record)
        size += len(record.data) + 200
        if size > _MOST_HELD:
            flush()
            size = 0
    flush()
    return found._replace(records=records)


def encoded(records: list[LogRecord]) -> bytes:
    encode = msgspec.msgpack.encode
    each = [encode(record) for record in records]
    return b"".join([part for one in each for part in (_LENGTH.pack(len(one)), one)])


def judge_runs(job: FleetJob, runs: list[Run]) -> BucketResult:
    """Judges the partitions of a bucket, one after the other."""
    sums, prices = FleetSums.of(job), PriceBook(job.now)
    rows = _judged(heapq.merge(*runs), sums, prices)
    if not job.rows:
        for _ in rows:
            pass
        return BucketResult(sums, b"")
    table = io.BytesIO()
    write_parquet((values_of(row.call) | dict(losses_in(row)) for row in rows), table)
    return BucketResult(sums, table.getvalue())


def _judged(records: Iterable[LogRecord], sums: FleetSums, prices: PriceBook) -> Iterator[FleetRow]:
    for _, partition in groupby(records, key=lambda record: record.key):
        for row in judge_partition(partition, prices):
            if isinstance(row, SetAside):
                sums.set_aside(row)
            elif sums.add(row):
                yield row


def records_of(run: IO[bytes]) -> Iterator[LogRecord]:
    """The records of a run."""
    while head := run.read(_LENGTH.size):
        yield _decode(run.read(*_LENGTH.unpack(head)))


class _RunFile(io.RawIOBase):
    """A run in a file, which is closed between two reads: a bucket may have many runs."""

    def __init__(self, run: SpilledRun) -> None:
        self._path, self._at, self._end = run.path, run.start, run.start + run.size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: self._end - self._at]
        with open(self._path, "rb", buffering=0) as file:
            file.seek(self._at)
            count = file.readinto(view)
        self._at += count
        return count


class Spill:
    """A folder of runs that is removed at the end; if the process was killed, by the next one."""

    def __init__(self) -> None:
        for left in Path(tempfile.gettempdir()).glob(f"{_SPILL}*-*"):
            pid = left.name.removeprefix(_SPILL).partition("-")[0]
            if pid.isdigit() and not _runs(int(pid)):
                shutil.rmtree(left, ignore_errors=True)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{_SPILL}{os.getpid()}-"))  # 0700

    def __enter__(self) -> Spill:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def spill_slice(part: LogSlice, buckets: int, folder: str) -> SlicedRecords:
    """`runs_of` into a file of its own: what a killed process leaves is never read."""
    descriptor, path = tempfile.mkstemp(dir=folder)  # 0600
    with os.fdopen(descriptor, "wb") as file:

        def keep(ready: dict[int, bytes]) -> dict[int, SpilledRun]:
            kept = {}
            for bucket, data in ready.items():
                kept[bucket] = SpilledRun(path, file.tell(), len(data))
                file.write(data)
            return kept

        return runs_of(part, buckets, keep)


def judge_spilled(job: FleetJob, runs: list[SpilledRun]) -> BucketResult:
    size = max(4096, min(256 * 1024, _MOST_READ // max(1, len(runs))))
    return judge_runs(job, [records_of(io.BufferedReader(_RunFile(run), size)) for run in runs])
