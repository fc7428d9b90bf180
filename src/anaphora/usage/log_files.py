"""Files of recorded calls: found in folders, opened, and recognised by their structure."""

from __future__ import annotations

import errno
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from anaphora.analysis import trace
from anaphora.analysis.trace.log_lines import LogLine, Problem, objects
from anaphora.traffic import request_log

from . import opencode_files
from .bounded_files import MOST_LINE, lines_in, too_long, unpacked

LogFormat: TypeAlias = trace.Format | Literal["requests"]

_SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".json", ".log")
#: Databases of opencode; others are no logs.
_DATABASES = ("opencode*.db", "opencode*.db.gz")
#: Files of programs beside their sessions, which are no logs of calls.
_BESIDE = ("log/opencode*.log", "rewind-file-snapshots/*.json")
#: Lines that are read to recognise a format.
DETECT_LINES = 50


def files_in(places: Iterable[Path], problems: list[Problem]) -> list[Path]:
    """The files, and for a folder every file in it that may be a log. The tree of sessions of
    opencode counts as one."""
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            logs = _logs_in(place)
            if not logs:
                problems.append(Problem(str(place), f"no {', '.join(_SUFFIXES)} file in it"))
            found += logs
        else:
            found.append(place)
    return found


def _logs_in(folder: Path) -> list[Path]:
    inside = [folder, *folder.rglob("*")]
    trees = {one for one in inside if one.is_dir() and opencode_files.is_storage(one)}
    files = [
        file
        for file in inside
        if (file.name.endswith(_SUFFIXES) or any(map(file.match, _DATABASES)))
        and not any(map(file.match, _BESIDE))
        and file.is_file()
        and trees.isdisjoint(file.parents)
    ]
    return sorted((*files, *trees))


def records_of(file: Path, problems: list[Problem]) -> Iterator[LogLine]:
    """The lines of a file; a single one if the file is one JSON object."""
    lines = lines_of(file, problems)
    held, size = [*islice(lines, 1)], 0
    if held and held[0].data.strip()[-1:] in b"{[,:":
        for line in lines:
            held.append(line)
            size += len(line.data)
            if size > MOST_LINE:
                reason = f"not read as one JSON object: longer than {MOST_LINE:,} bytes"
                problems.append(Problem(str(file), reason))
                break
        else:
            whole = b"".join(line.data for line in held)
            try:
                if isinstance(msgspec.json.decode(whole), dict):
                    held = [held[0]._replace(data=whole)]
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                pass  # reported line by line
    yield from held
    yield from lines


def lines_of(file: Path, problems: list[Problem]) -> Iterator[LogLine]:
    """The lines up to the first that cannot be read, which is a problem; so are an empty file and
    a line that is too long, which is left out. Of a database or a tree of files of opencode, a line
    for each session."""
    empty = True
    try:
        if file.is_dir():
            yield from opencode_files.storage_lines(file, problems)
            return
        if file.is_char_device() or file.is_block_device():
            raise OSError(errno.EINVAL, "a device")  # /dev/zero does not end
        with file.open("rb") as opened:  # once: a pipe can be read only once
            packed = opened.peek(2).startswith(b"\x1f\x8b")
            lines = unpacked(opened) if packed else opened
            if opencode_files.is_database(lines.peek(16)):
                yield from opencode_files.database_lines(file, problems, packed=packed)
                return
            for number, (line, size) in enumerate(lines_in(lines), 1):
                if line.strip():
                    empty = False
                    yield LogLine(f"{file}:{number}", line)
                elif size > len(line):
                    empty = False
                    problems.append(Problem(f"{file}:{number}", too_long()))
        if empty:
            read = "empty, or a pipe that was already read: pass a single pipe, or files"
            problems.append(Problem(str(file), "the file is empty" if file.is_file() else read))
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        problems.append(Problem(str(file), f"the file is cut off or damaged: {problem}"))
    except OSError as problem:
        problems.append(Problem(str(file), f"cannot be read: {problem.strerror or problem}"))


def detect(
    lines: list[LogLine], is_request: Callable[[dict[str, Any]], bool] = request_log.recognises
) -> LogFormat | None:
    """The format of a file by its first lines."""
    for one in objects(lines[:DETECT_LINES]):
        if isinstance(one, Problem):
            continue
        format_: LogFormat | None = trace.detect(one[1])
        if format_ is not None:
            return format_
        if is_request(one[1]):
            return "requests"
    return None


def unrecognised(lines: list[LogLine], problem: Problem) -> Problem:
    """Why the format of a file is unknown: `problem`, or invalid JSON in its only line."""
    if len(lines) > 1 or not lines[0].data.lstrip().startswith(b"{"):
        return problem
    (found,) = objects(lines)
    return found if isinstance(found, Problem) else problem
