"""Files on the command line: opened, recognised by their structure, and read."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from anaphora.analysis.trace import sources
from anaphora.analysis.trace.sources import Entry, Line, Problem

from . import requests

Format: TypeAlias = Literal["trace", "claude_code", "codex", "requests"]
FORMATS: tuple[str, ...] = get_args(Format)

_ENDINGS = (".jsonl", ".jsonl.gz", ".ndjson", ".json", ".log")

#: Lines that are looked at to find out what a file holds.
_LOOKED_AT = 50


def files_in(places: Iterable[Path]) -> list[Path]:
    """The files themselves, and of a folder all that may be logs."""
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            found += sorted(
                file for file in place.rglob("*") if file.is_file() and file.name.endswith(_ENDINGS)
            )
        else:
            found.append(place)
    return found


def read(file: Path, asked: Format | None) -> Iterator[Entry]:
    """The conversations of a file, and what is wrong with it."""
    problems: list[Problem] = []
    lines = list(lines_of(file, problems))
    yield from problems
    format = asked or _detect(lines)
    if format is None:
        if lines:
            hint = "say which with --format"
            yield Problem(str(file), f"neither a trace nor a session nor a request log; {hint}")
        elif not problems:
            yield Problem(str(file), "nothing in it")
    elif format == "requests":
        yield from requests.read(iter(lines))
    else:
        yield from sources.read(format, iter(lines))


def _detect(lines: list[Line]) -> Format | None:
    for one in sources.objects(lines[:_LOOKED_AT]):
        if isinstance(one, Problem):
            continue
        format: Format | None = sources.detect(one[1])
        if format is None and requests.recognises(one[1]):
            format = "requests"
        if format is not None:
            return format
    return None


def lines_of(file: Path, problems: list[Problem]) -> Iterator[Line]:
    with file.open("rb") as begin:
        packed = begin.read(2) == b"\x1f\x8b"
    with gzip.open(file) if packed else file.open("rb") as lines:
        try:
            yield from sources.numbered(lines, str(file))
        except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
            problems.append(Problem(str(file), f"the file is cut off or damaged: {problem}"))
