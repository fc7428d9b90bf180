"""What readers of logs share: lines with their places, problems with what was read, and checks of a
conversation that was found."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from anaphora.wire.reading import decode_reason
from anaphora.wording import counted

from .format import Breakpoint, Trace, TraceCall, recorded_marker

#: The messages in all branches of a session that are read: so many, and so often all of its own.
_BRANCH_MESSAGES, _BRANCHES = 100_000, 20
#: Calls that are named in a sentence about several.
_NAMED_CALLS = 5


class LogLine(NamedTuple):
    place: str
    """File and line, as `file:12`."""
    data: bytes


class FoundTrace(NamedTuple):
    place: str
    trace: Trace


#: Invalid input that is left out; a conversation that cannot be played as it is; valid input
#: without a bill to compare with; something to know about what was read.
ProblemKind: TypeAlias = Literal["skipped", "rejected", "not_compared", "notice"]


class Problem(NamedTuple):
    place: str
    reason: str
    kind: ProblemKind = "skipped"

    @property
    def harmless(self) -> bool:
        """The input is in order."""
        return self.kind in ("not_compared", "notice")

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


TraceEntry: TypeAlias = FoundTrace | Problem


class BranchBudget:
    """How many branches of a session are read. Each is a conversation with all its messages from
    the beginning on, so a file with a branch at each message would grow with the square of its
    length."""

    def __init__(self) -> None:
        self._left = _BRANCH_MESSAGES
        self._left_out = 0

    def add(self, messages: int) -> None:
        """The session has so many messages more."""
        self._left += _BRANCHES * messages

    def take(self, messages: int) -> bool:
        """Whether a branch of so many messages is read."""
        taken = messages <= self._left
        self._left -= messages if taken else 0
        self._left_out += not taken
        return taken

    def problems(self, file: str) -> Iterator[Problem]:
        if self._left_out:
            branches = counted(self._left_out, "branch", "branches")
            reason = f"{branches} left out: the session was rewound too often"
            yield Problem(file, reason, "not_compared")


def numbered(lines: Iterable[bytes], file: str) -> Iterator[LogLine]:
    """The lines that are not empty."""
    for number, data in enumerate(lines, 1):
        if data.strip():
            yield LogLine(f"{file}:{number}", data)


_decode_fields = msgspec.json.Decoder(dict[str, Any]).decode


def objects(lines: Iterable[LogLine]) -> Iterator[tuple[str, dict[str, Any]] | Problem]:
    for line in lines:
        try:
            yield line.place, _decode_fields(line.data)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
            yield Problem(line.place, decode_reason(problem, line.data))


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
    return reported_count(usage, name) or 0


def reported_count(usage: dict[str, Any], name: str) -> int | None:
    """A number of tokens; None where it is missing."""
    value = usage.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"usage.{name} is not a number of tokens")
    if value < 0:
        raise ValueError(f"usage.{name} is negative: {value}")
    return value


def checked(found: FoundTrace) -> Iterator[TraceEntry]:
    """The conversation, and what is wrong with its calls. A call whose clock runs backwards keeps
    its place, but has no time, and its bill is not compared. A marker on something that was not
    sent is left out."""
    calls: list[TraceCall] = []
    unreliable: dict[str, list[int]] = {}
    last: float | None = None
    for index, call in enumerate(found.trace.calls):
        error = _clock_error(call, last)
        if error is None:
            last = call.at if call.at is not None else last
        else:
            yield Problem(found.place, f"calls[{index}] {error}: the clock runs backwards")
            call = replace(call, t=None, t_end=None, dur=None, usage=None)
        kept = [one for one in call.breakpoints or () if _was_sent(one, call, found.trace)]
        if len(kept) < len(call.breakpoints or ()):
            wrong = [one for one in call.breakpoints or () if one not in kept]
            shown = msgspec.json.encode(wrong).decode()
            reason = f"calls[{index}].breakpoints {shown} are on nothing that was sent: left out"
            yield Problem(found.place, reason, "notice")
            call = replace(call, breakpoints=tuple(kept))
        if call.usage_unreliable:
            why = call.usage_unreliable if isinstance(call.usage_unreliable, str) else ""
            unreliable.setdefault(why, []).append(index)
        calls.append(call)
    for why, indexes in unreliable.items():
        some = ", ".join(map(str, indexes[:_NAMED_CALLS]))
        more = f" and {len(indexes) - _NAMED_CALLS} more" if len(indexes) > _NAMED_CALLS else ""
        reason = f"usage_unreliable at {counted(len(indexes), 'call')} ({some}{more})"
        yield Problem(found.place, reason + (f": {why}" if why else ""), "not_compared")
    yield FoundTrace(found.place, replace(found.trace, calls=tuple(calls)))


def _was_sent(written: Breakpoint, call: TraceCall, trace: Trace) -> bool:
    marker = recorded_marker(written)
    if isinstance(marker.where, int):
        return marker.where < call.messages
    return marker.tool is None or not trace.tools or marker.tool < len(trace.tools)


def _clock_error(call: TraceCall, last: float | None) -> str | None:
    if call.t is not None and call.t_end is not None and call.t_end < call.t:
        return f"ends {call.t - call.t_end:.1f} s before it begins"
    if call.at is not None and last is not None and call.at < last:
        return f"is {last - call.at:.1f} s earlier than the call before it"
    return None
