"""Sessions of opencode on disk: its database, and the tree of files of older versions. Each session
becomes one line, as `opencode export` writes it; for bills, replies and their steps are enough."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from anaphora.analysis.trace.log_lines import LogLine, Problem
from anaphora.sqlite_files import ForeignRows
from anaphora.wire.reading import decode_reason

from .bounded_files import content_of, unpacked

_MAGIC = b"SQLite format 3\x00"
#: Each is sorted here by its first two columns: SQLite would sort on disk, without a limit.
_SESSIONS = "SELECT time_created, id, parent_id, directory FROM session"
_MESSAGES = "SELECT time_created, id, CAST(data AS BLOB) FROM message WHERE session_id = ?"
_PARTS = "SELECT message_id, id, CAST(data AS BLOB) FROM part WHERE session_id = ?"
_REPLIES = f"""{_MESSAGES} AND time_updated >= ? AND instr(data, '"assistant"')"""
_STEPS = (
    "SELECT message_id, id, CAST(data AS BLOB) FROM part WHERE message_id = ?"
    """ AND instr(data, '"step-finish"')"""
)
_TABLES = ("session", "message", "part")
#: In the header of a database: 2 if changes go to a file of their own, `-wal`.
_READ_VERSION = 19


def is_database(begin: bytes) -> bool:
    """Whether a file that begins so is a database."""
    return begin.startswith(_MAGIC)


def is_database_file(file: Path) -> bool:
    """Whether a file is a database; gzipped, by its name."""
    if file.name.endswith(".db.gz"):
        return True
    try:
        with file.open("rb") as opened:
            return is_database(opened.read(len(_MAGIC)))
    except OSError:
        return False  # reported by who reads it


def is_storage(folder: Path) -> bool:
    """Whether a folder is the tree of an older version."""
    return (folder / "session").is_dir() and (folder / "message").is_dir()


def database_lines(file: Path, problems: list[Problem], *, packed: bool) -> Iterator[LogLine]:
    """The sessions of a database, the oldest first."""
    try:
        with _opened(file, packed=packed) as rows:
            yield from _sessions(rows, str(file), problems)
    except sqlite3.Error as problem:
        problems.append(_no_database(file, problem))


class StoredReply(NamedTuple):
    """A reply in a database, and the steps that it has a bill for."""

    number: int
    """Of the session, as in `database_lines`."""
    session: str
    parent: str | None
    directory: str
    info: bytes
    steps: list[bytes]


def database_replies(
    file: Path, problems: list[Problem], since: float | None = None
) -> Iterator[StoredReply]:
    """The replies of all sessions; with `since`, those that were changed at that time or later."""
    changed = 0 if since is None else int(since * 1000)
    try:
        with _opened(file, packed=file.suffix == ".gz") as rows:
            for number, (_, id, parent, directory) in enumerate(_sorted(rows, _SESSIONS), 1):
                for _, message, info in _sorted(rows, _REPLIES, id, changed):
                    steps = [step for *_, step in _sorted(rows, _STEPS, message)]
                    yield StoredReply(number, id, parent, directory, info, steps)
    except (sqlite3.Error, EOFError, zlib.error, gzip.BadGzipFile) as problem:
        problems.append(_no_database(file, problem))


def _sorted(rows: ForeignRows, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """In SQLite's order of values of several types, by the first two columns."""

    def place(row: tuple[Any, ...]) -> list[tuple[int, Any]]:
        kinds = {type(None): 0, int: 1, float: 1, str: 2}
        return [(kinds.get(type(value), 3), value or 0) for value in row[:2]]

    return sorted(rows.read(query, *values), key=place)


def _no_database(file: Path, problem: Exception) -> Problem:
    return Problem(str(file), f"no database of opencode that can be read: {problem}")


@contextmanager
def _opened(file: Path, *, packed: bool) -> Iterator[ForeignRows]:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "opencode.db"
        address = _unpacked(file, copy) if packed else _address(file, copy)
        with closing(sqlite3.connect(address, uri=True)) as connection:
            # SQLite's own error about a text that is no UTF-8 quotes it.
            connection.text_factory = partial(str, encoding="utf-8", errors="replace")
            parts = [copy] if copy.exists() else [file, _log(file.resolve())]
            size = sum(part.stat().st_size for part in parts if part.is_file())
            yield ForeignRows(connection, size, _TABLES)


def _unpacked(file: Path, copy: Path) -> str:
    with file.open("rb") as opened, copy.open("wb") as target:
        shutil.copyfileobj(unpacked(opened), target)
    return _uri(copy, "mode=ro")


def _address(file: Path, copy: Path) -> str:
    """Opens the database without leaving files beside it: SQLite creates `-wal` and `-shm` for a
    reader as well. If they are missing, no program has the database open."""
    database = file.resolve()
    log, shared = _log(database), database.with_name(f"{database.name}-shm")
    with database.open("rb") as opened:
        logged = opened.read(_READ_VERSION + 1)[_READ_VERSION:] == b"\x02"
    if not logged or (log.is_file() and shared.is_file()):
        return _uri(database, "mode=ro")
    if not log.is_file():
        return _uri(database, "immutable=1")
    shutil.copyfile(database, copy)
    shutil.copyfile(log, copy.with_name(f"{copy.name}-wal"))
    return _uri(copy, "mode=ro")


def _log(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")


def _uri(database: Path, option: str) -> str:
    return f"file:{quote(str(database))}?{option}"


def _sessions(rows: ForeignRows, name: str, problems: list[Problem]) -> Iterator[LogLine]:
    for number, (created, id, parent, directory) in enumerate(_sorted(rows, _SESSIONS), 1):
        place = f"{name}:{number}"
        times = {"created": created}
        info = {"id": id, "parentID": parent, "directory": directory, "time": times}
        try:
            messages = _messages(rows, id)
            line = msgspec.json.encode({"info": info, "messages": messages})
        except (msgspec.DecodeError, TypeError, UnicodeError, RecursionError) as problem:
            reason = f"a message of the session: {decode_reason(problem)}"
            problems.append(Problem(place, reason))
            continue
        yield LogLine(place, line)


def _messages(rows: ForeignRows, session: str) -> list[dict[str, Any]]:
    parts: dict[str, list[dict[str, Any]]] = {}
    for message, _, data in _sorted(rows, _PARTS, session):
        parts.setdefault(message, []).append(_decode(data))
    return [
        {"info": _decode(data) | {"id": message}, "parts": parts.get(message, [])}
        for _, message, data in _sorted(rows, _MESSAGES, session)
    ]


_decode = msgspec.json.Decoder(dict[str, Any]).decode


def storage_lines(storage: Path, problems: list[Problem]) -> Iterator[LogLine]:
    """The sessions of a tree: `session/<project>/<id>.json`, `message/<session>/<id>.json` and
    `part/<message>/<id>.json`."""
    for file in sorted((storage / "session").rglob("*.json")):
        info = _object(file, problems)
        if info is None:
            continue
        messages = [
            {"info": message, "parts": _objects(storage / "part" / own.stem, problems)}
            for own in sorted((storage / "message" / file.stem).glob("*.json"))
            if (message := _object(own, problems)) is not None
        ]
        if messages:
            yield LogLine(f"{file}:1", msgspec.json.encode({"info": info, "messages": messages}))


def storage_files(storage: Path) -> Iterator[Path]:
    """The files of a tree that may change: those of messages."""
    return (storage / "message").glob("*/*.json")


def _objects(folder: Path, problems: list[Problem]) -> list[dict[str, Any]]:
    found = (_object(file, problems) for file in sorted(folder.glob("*.json")))
    return [one for one in found if one is not None]


def _object(file: Path, problems: list[Problem]) -> dict[str, Any] | None:
    try:
        data = content_of(file)
    except OSError as problem:
        problems.append(Problem(str(file), f"cannot be read: {problem.strerror or problem}"))
        return None
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        problems.append(Problem(str(file), decode_reason(problem, data)))
        return None
