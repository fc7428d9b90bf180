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
from typing import IO, Any, TypeAlias, cast

import msgspec

from anaphora.errors import InvalidRequest, Io, MissingExtra

_LINES = (".jsonl", ".ndjson", ".json", ".log")
_SUFFIXES = (*_LINES, *(f"{each}.gz" for each in _LINES), ".parquet")
#: Bytes of JSON lines that one slice has, and rows of Parquet.
SLICE_BYTES, SLICE_ROWS = 32 * 1024 * 1024, 20_000
#: Files of one JSON value that are read whole; larger ones are read line by line.
_MOST_WHOLE = 64 * 1024 * 1024
_ROWS_AT_ONCE = 500
#: Of DuckDB.
_MEMORY = "128MB"

#: A decoded object, or why the line is none.
ReadLine: TypeAlias = "tuple[str, dict[str, Any] | None, bytes]"


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
        rows = _parquet(file, "SELECT count(*) FROM read_parquet(?)").fetchone()[0]
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
    """Each object with its place: decoded, and its bytes; None if it is not a JSON object."""
    if part.url.endswith(".parquet"):
        yield from _rows(part)
        return
    try:
        with _opened(part.url) as file:
            if part.url.endswith(".json") and part.size <= _MOST_WHOLE:
                yield from _whole(part.url, file.read())
            else:
                yield from _lines(part, file)
    except (EOFError, gzip.BadGzipFile) as problem:
        raise Io(f"{part.url}: the file is cut off or damaged: {problem}") from None
    except OSError as problem:
        raise Io(f"{part.url}: cannot be read: {problem.strerror or problem}") from None


_decode = msgspec.json.Decoder(dict[str, Any]).decode


def _decoded(data: bytes) -> dict[str, Any] | None:
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _lines(part: LogSlice, file: IO[bytes]) -> Iterator[ReadLine]:
    at, first = part.start, part.line
    if at:  # the line that contains the byte before belongs to the slice before
        file.seek(at - 1)
        skipped = len(file.readline()) - 1
        at, first = at + skipped, first + bool(skipped)
    for number, line in enumerate(file, first):
        if part.end is not None and at >= part.end:
            break
        if not line.isspace():
            place = f"{part.url}:{number}" if part.line else f"{part.url} (byte {at:,})"
            yield place, _decoded(line), line
        at += len(line)


def _whole(url: str, data: bytes) -> Iterator[ReadLine]:
    """A file with one object or a list of objects; else its lines."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        yield from _lines(LogSlice(url), io.BytesIO(data))
        return
    for number, each in enumerate(value if isinstance(value, list) else [value], 1):
        found = each if isinstance(each, dict) else None
        yield f"{url}:{number}", found, msgspec.json.encode(each)


def _rows(part: LogSlice) -> Iterator[ReadLine]:
    """The rows of a Parquet file. A table may be wide: a few rows are in memory at once."""
    columns = _parquet(part.url, "SELECT * FROM read_parquet(?) LIMIT 0").description
    # Times in seconds: DuckDB's own values need a package for time zones.
    times = [name for name, kind, *_ in columns if str(kind).startswith(("TIMESTAMP", "DATETIME"))]
    epochs = ", ".join(f'epoch("{name}") AS "{name}"' for name in times)
    found = _parquet(
        part.url,
        f"SELECT *{f' REPLACE ({epochs})' if times else ''}"
        " FROM read_parquet(?, file_row_number=true)"
        f" WHERE file_row_number >= {part.start} AND file_row_number < {part.end}",
    )
    names = [column[0] for column in found.description]
    while rows := found.fetchmany(_ROWS_AT_ONCE):
        for row in rows:
            fields = dict(zip(names, row, strict=True))
            place = f"{part.url}:{fields.pop('file_row_number') + 1}"
            yield place, fields, b""


def _parquet(url: str, query: str) -> Any:
    try:
        import duckdb
    except ModuleNotFoundError:
        raise missing("Parquet needs DuckDB") from None
    database = duckdb.connect(config={"memory_limit": _MEMORY, "threads": 1})
    try:
        if is_remote(url):
            database.register_filesystem(_filesystem(url)[0])
        return database.execute(query, [url])
    except duckdb.Error as problem:
        raise Io(f"{url}: cannot be read: {problem}") from None


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
def _opened(url: str) -> Iterator[IO[bytes]]:
    if is_remote(url):
        system, path = _filesystem(url)
        opened = system.open(path, "rb")
    else:
        opened = open(url.removeprefix("file://"), "rb")  # noqa: SIM115
    with opened as file:
        yield cast(IO[bytes], gzip.GzipFile(fileobj=file)) if url.endswith(".gz") else file
