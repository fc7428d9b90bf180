"""The files of a fleet's logs, local or in an object store, cut into slices that are read alone.

    for part in slices_of(["logs/*.jsonl", "s3://bucket/logs/"]):
        for place, fields in objects_in(part): ...

Local JSON lines need nothing but Python; URLs and Parquet need the extra `fleet`.
"""

from __future__ import annotations

import glob
import gzip
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

import msgspec

from anaphora.errors import InvalidRequest, Io, MissingExtra
from anaphora.usage.bounded_files import MOST_LINE, lines_in, most_unpacked, too_long, unpacked

_LINES = (".jsonl", ".ndjson", ".json", ".log")
_SUFFIXES = (*_LINES, *(f"{each}.gz" for each in _LINES), ".parquet")
#: Bytes of JSON lines that one slice has, and rows of Parquet.
SLICE_BYTES, SLICE_ROWS = 32 * 1024 * 1024, 20_000
#: Files of one JSON value that are read whole; larger ones are read line by line.
_MOST_WHOLE = MOST_LINE
_ROWS_AT_ONCE = 500
#: Bytes of rows that are decoded at once, and of a line that is skipped.
_DECODED, _SKIPPED = 64 * 1024 * 1024, 1024 * 1024
#: What an unreadable value of a Parquet file raises.
_UNREADABLE = (ArithmeticError, LookupError, NotImplementedError, TypeError, ValueError)

#: A place, a decoded object or why it cannot be read, and its bytes.
ReadLine: TypeAlias = "tuple[str, dict[str, Any] | str, bytes]"


class LogSlice(msgspec.Struct, frozen=True, array_like=True):
    """A part of a file: the lines that begin between two bytes, or rows of a Parquet file."""

    url: str
    start: int = 0
    end: int | None = None
    """None: up to the end of the file."""
    size: int = 0
    """Bytes, as far as known."""
    line: int = 1
    """The number of its first line; 0: unknown, since the file is not here."""


def missing(what: str) -> MissingExtra:
    return MissingExtra(f"{what}; install it with: pip install 'anaphora[fleet]'", extra="fleet")


def slices_of(urls: Iterable[str]) -> list[LogSlice]:
    """The slices of all files. Raises `InvalidRequest` for a URL without files."""
    return [part for url in urls for file, size in _files(url) for part in _cut(file, size)]


def _files(url: str) -> list[tuple[str, int]]:
    if is_remote(url):
        system, path = _filesystem(url)
        if "*" in path:
            found = system.glob(path)
        else:
            found = system.find(path) if system.isdir(path) else [path]
        names = sorted(name for name in found if name == path or name.endswith(_SUFFIXES))
        try:
            sizes = [(system.unstrip_protocol(name), system.size(name)) for name in names]
        except FileNotFoundError:
            sizes = []
        return _some(sizes, url)
    path = url.removeprefix("file://")
    matched = sorted(glob.glob(path, recursive=True)) if not os.path.exists(path) else [path]
    files: list[str] = []
    for each in matched:
        inside = sorted(Path(each).rglob("*")) if os.path.isdir(each) else []
        files += [str(one) for one in inside if one.name.endswith(_SUFFIXES) and one.is_file()]
        files += [each] if os.path.isfile(each) else []
    return _some([(file, os.path.getsize(file)) for file in files], url)


def _some(found: list[tuple[str, int]], url: str) -> list[tuple[str, int]]:
    if not found:
        raise InvalidRequest(f"no log file found; names end with {', '.join(_SUFFIXES)}", path=url)
    return found


def _cut(file: str, size: int) -> Iterator[LogSlice]:
    if file.endswith(".parquet"):
        with _parquet(file) as parquet:
            rows = _checked_rows(parquet.metadata, file, size)
        for start in range(0, rows, SLICE_ROWS):
            end = min(rows, start + SLICE_ROWS)
            yield LogSlice(file, start, end, size * (end - start) // max(1, rows))
    elif file.endswith((".gz", ".json")):
        yield LogSlice(file, 0, None, size)
    else:
        lines = 1
        for start in range(0, size, SLICE_BYTES):
            end = min(size, start + SLICE_BYTES)
            yield LogSlice(file, start, end, end - start, 0 if start and is_remote(file) else lines)
            if end < size and not is_remote(file):
                lines += _newlines(file, start, end)


def _newlines(file: str, start: int, end: int) -> int:
    with open(file.removeprefix("file://"), "rb") as opened:
        opened.seek(start)
        return sum(opened.read(1 << 20).count(b"\n") for _ in range(start, end, 1 << 20))


def objects_in(part: LogSlice) -> Iterator[ReadLine]:
    """Each object, or why it cannot be read, with its place."""
    if part.url.endswith(".parquet"):
        yield from _rows(part)
        return
    try:
        with _opened(part.url, part.size) as file:
            if part.url.endswith(".json") and part.size <= _MOST_WHOLE:
                yield from _whole(part.url, file.read())
            else:
                yield from _lines(part, file)
    except (EOFError, gzip.BadGzipFile) as problem:
        raise Io(f"{part.url}: the file is cut off or damaged: {problem}") from None
    except OSError as problem:
        raise Io(f"{part.url}: cannot be read: {problem.strerror or problem}") from None


_decode = msgspec.json.Decoder(dict[str, Any]).decode


_NO_OBJECT = "not a JSON object"


def _decoded(data: bytes) -> dict[str, Any] | str:
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _NO_OBJECT


def _lines(part: LogSlice, file: IO[bytes]) -> Iterator[ReadLine]:
    at, first = part.start, part.line
    if at:  # the line that contains the byte before belongs to the slice before
        at -= 1
        file.seek(at)
        while piece := file.readline(_SKIPPED):
            at += len(piece)
            if piece.endswith(b"\n"):
                break
            if part.end is not None and at >= part.end:
                return
        first += at > part.start
    for number, (line, size) in enumerate(lines_in(file), first):
        if part.end is not None and at >= part.end:
            break
        place = f"{part.url}:{number}" if part.line else f"{part.url} (byte {at:,})"
        if size > len(line):
            yield place, too_long(), b""
        elif not line.isspace():
            yield place, _decoded(line), line
        at += size


def _whole(url: str, data: bytes) -> Iterator[ReadLine]:
    """A file with one object or a list of objects; else its lines."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        yield from _lines(LogSlice(url), io.BytesIO(data))
        return
    for number, each in enumerate(value if isinstance(value, list) else [value], 1):
        found = each if isinstance(each, dict) else _NO_OBJECT
        yield f"{url}:{number}", found, msgspec.json.encode(each)


def _rows(part: LogSlice) -> Iterator[ReadLine]:
    """The rows of a Parquet file between two. Names of columns are keys, and nothing else."""
    with _parquet(part.url) as parquet:
        groups: list[int] = []
        number, end, left = 0, part.end or 0, most_unpacked(part.size)
        for group, rows in enumerate(_rows_of_groups(parquet.metadata)):
            if not groups and number + rows <= part.start:
                number += rows
            else:
                groups.append(group)
        for batch in parquet.iter_batches(_ROWS_AT_ONCE, groups, use_threads=False):
            first = max(0, part.start - number)
            found = _objects(_with_seconds(batch.slice(first)))
            for row, (fields, data) in enumerate(found, number + first):
                if row >= end:
                    return
                place = f"{part.url}:{row + 1}"
                if (left := left - len(data)) < 0:
                    yield place, "this row and those after it: they unpack to too much", b""
                    return
                yield place, too_long() if len(data) > MOST_LINE else fields, data
            number += batch.num_rows


def _rows_of_groups(metadata: Any) -> list[int]:
    return [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]


def _checked_rows(metadata: Any, file: str, size: int) -> int:
    """The number of rows. Raises `Io` if the file unpacks to too much."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    rows, most = sum(_rows_of_groups(metadata)), most_unpacked(size)
    if sum(column.total_uncompressed_size for column in columns) > most:
        raise Io(f"{file}: it unpacks to more than {most:,} bytes")
    values = max([rows, *(column.num_values for column in columns)])
    if values > size + SLICE_ROWS:  # calls have times and ids: no row is like the others
        raise Io(f"{file}: damaged: {values:,} rows or values in {size:,} bytes")
    return rows


def _with_seconds(batch: Any) -> Any:
    """With numbers in place of times: Python's own need a package for time zones."""
    import pyarrow as pa

    for index, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type):
            unit = {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}[field.type.unit]
            count = batch.column(index).cast(pa.int64()).to_pylist()
            times = [None if one is None else one / unit for one in count]
            batch = batch.set_column(index, field.name, pa.array(times, pa.float64()))
    return batch


def _objects(batch: Any) -> Iterator[tuple[dict[str, Any] | str, bytes]]:
    """The rows of a batch and their JSON, or why one cannot be read. A value may be repeated
    without bytes of its own: a few rows are decoded at once."""
    some = max(1, _DECODED // max(1, batch.nbytes))
    if batch.num_rows > some:
        for start in range(0, batch.num_rows, some):
            yield from _objects(batch.slice(start, some))
        return
    try:
        rows = batch.to_pylist(maps_as_pydicts="lossy")
        found = [(row, msgspec.json.encode(row)) for row in rows]
    except _UNREADABLE:
        if batch.num_rows == 1:
            yield "a value cannot be read", b""
            return
        found = [one for at in range(batch.num_rows) for one in _objects(batch.slice(at, 1))]
    yield from found


@contextmanager
def _parquet(url: str) -> Iterator[Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise missing("Parquet needs pyarrow") from None
    try:
        with _opened(url, 0) as file:
            columns = pq.read_metadata(file).schema
            texts = [one.path for one in columns if one.physical_type == "BYTE_ARRAY"]
            # Texts as dictionaries: a value that many rows share is in memory once.
            yield pq.ParquetFile(file, read_dictionary=texts, pre_buffer=False, buffer_size=1 << 16)
    except (pa.ArrowException, OSError) as problem:
        raise Io(f"{url}: cannot be read: {str(problem)[:500]}") from None


def is_remote(url: str) -> bool:
    return "://" in url and not url.startswith("file://")


def _filesystem(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ModuleNotFoundError:
        raise missing(f"{url.partition(':')[0]}:// needs fsspec") from None
    try:
        found: tuple[Any, str] = url_to_fs(url)
        return found
    except ImportError as problem:
        raise missing(f"{url.partition(':')[0]}:// needs a package ({problem})") from None
    except ValueError as problem:
        raise InvalidRequest(str(problem), path=url) from None


@contextmanager
def _opened(url: str, size: int) -> Iterator[IO[bytes]]:
    if is_remote(url):
        system, path = _filesystem(url)
        # Buffered: fsspec's own files read no line up to a size.
        opened = io.BufferedReader(system.open(path, "rb"), 1 << 20)
    else:
        opened = open(url.removeprefix("file://"), "rb")  # noqa: SIM115
    with opened as file:
        yield unpacked(file, size) if url.endswith(".gz") else file
