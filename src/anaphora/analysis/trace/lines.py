"""Lines of log files: JSON objects, timestamps, token counts, and conversations found in them."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from .format import Trace, TraceCall


class LogLine(NamedTuple):
    place: str
    """File and line, as `file:12`."""
    data: bytes


class FoundTrace(NamedTuple):
    place: str
    trace: Trace


class Problem(NamedTuple):
    place: str
    reason: str
    harmless: bool = False
    """The file is in order, but has no bill to compare with."""

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


TraceEntry: TypeAlias = FoundTrace | Problem


def numbered(lines: Iterable[bytes], file: str) -> Iterator[LogLine]:
    """The lines that are not empty."""
    for number, data in enumerate(lines, 1):
        if data.strip():
            yield LogLine(f"{file}:{number}", data)


_decode = msgspec.json.Decoder(dict[str, Any]).decode


def objects(lines: Iterable[LogLine]) -> Iterator[tuple[str, dict[str, Any]] | Problem]:
    for line in lines:
        try:
            yield line.place, _decode(line.data)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
            yield Problem(line.place, str(problem))


def read_objects(
    lines: Iterable[LogLine], read: Callable[[str, dict[str, Any]], None], problems: list[Problem]
) -> str:
    """Feeds each object to `read` and collects problems; gives the name of the file."""
    file = ""
    for one in objects(lines):
        if isinstance(one, Problem):
            problems.append(one)
            continue
        place, fields = one
        file = file or place.rpartition(":")[0]
        try:
            read(place, fields)
        except ValueError as problem:
            problems.append(Problem(place, str(problem)))
    return file


def seconds(stamp: object) -> float | None:
    """A time in unix seconds: from seconds, milliseconds or ISO 8601."""
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
    """A number of tokens; a missing one is 0."""
    value = usage.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"usage.{name} is not a number of tokens")
    if value < 0:
        raise ValueError(f"usage.{name} is negative: {value}")
    return value


def without_clock_errors(found: FoundTrace) -> Iterator[TraceEntry]:
    """The conversation, and a problem for each call whose clock runs backwards. Such a call keeps
    its place, but has no time, and its bill is not compared."""
    calls: list[TraceCall] = []
    last: float | None = None
    for index, call in enumerate(found.trace.calls):
        error = _clock_error(call, last)
        if error is None:
            last = call.at if call.at is not None else last
        else:
            yield Problem(found.place, f"calls[{index}] {error}: the clock runs backwards")
            call = replace(call, t=None, t_end=None, dur=None, usage=None)
        calls.append(call)
    yield FoundTrace(found.place, replace(found.trace, calls=tuple(calls)))


def _clock_error(call: TraceCall, last: float | None) -> str | None:
    if call.t is not None and call.t_end is not None and call.t_end < call.t:
        return f"ends {call.t - call.t_end:.1f} s before it begins"
    if call.at is not None and last is not None and call.at < last:
        return f"is {last - call.at:.1f} s earlier than the call before it"
    return None
