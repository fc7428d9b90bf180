"""Lines of a file with their places, and what becomes of them."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import msgspec

from anaphora.analysis.trace.form import Trace


class Line(NamedTuple):
    place: str
    """File and line, as `file:12`."""
    data: bytes


class Source(NamedTuple):
    """A conversation, and where it was found."""

    place: str
    trace: Trace


class Problem(NamedTuple):
    """What is wrong, and where."""

    place: str
    reason: str
    harmless: bool = False
    """Nothing is wrong with the file; there is only nothing to hold against a bill."""

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


Entry: TypeAlias = Source | Problem


def numbered(lines: Iterable[bytes], file: str) -> Iterator[Line]:
    """The lines that hold anything."""
    for number, data in enumerate(lines, 1):
        if data.strip():
            yield Line(f"{file}:{number}", data)


_decode = msgspec.json.Decoder(dict[str, Any]).decode


def objects(lines: Iterable[Line]) -> Iterator[tuple[str, dict[str, Any]] | Problem]:
    """Each line's JSON object."""
    for line in lines:
        try:
            yield line.place, _decode(line.data)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
            yield Problem(line.place, str(problem))


def seconds(stamp: object) -> float | None:
    """A time in unix seconds: a number of them (or of milliseconds), or as ISO 8601 says it."""
    if isinstance(stamp, bool):
        return None
    if isinstance(stamp, int | float):
        return stamp / 1000 if stamp > 1e11 else float(stamp)
    if not isinstance(stamp, str):
        return None
    try:
        moment = datetime.datetime.fromisoformat(stamp)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp()


def count(usage: dict[str, Any], name: str) -> int:
    """A number of tokens; nothing said is none, and what is no count is an error."""
    value = usage.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"usage.{name} is no number of tokens")
    if value < 0:
        raise ValueError(f"usage.{name} is {value}, and no count is negative")
    return value
