"""Shared by readers of logs: lines with their places, problems in the input, and checks of the
conversations that were found."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from anaphora.canonical import dumps
from anaphora.wire.reading import decode_reason
from anaphora.wording import counted

from .format import Breakpoint, Trace, TraceCall, recorded_marker

#: Limit of messages over all branches of a session: a number, plus a multiple of its messages.
_BRANCH_MESSAGES, _BRANCHES = 100_000, 20
#: Larger numbers are no times, in whatever unit.
_MOST_SECONDS = 1e18
#: Levels of nested values that can be written as well as read.
_MOST_NESTED = 50
#: Calls that are named in a sentence about several.
_NAMED_CALLS = 5


class LogLine(NamedTuple):
    place: str
    """File and line, as `file:12`."""
    data: bytes


class Answer(NamedTuple):
    """Identifies the answer to a call and its copies in other files; see `answers`."""

    key: bytes
    untimed: bytes = b""
    """The same without its time, if files that copy it change the time."""
    copied: bool = False
    """The file says that it begins with another session: `untimed` is enough."""


class FoundTrace(NamedTuple):
    place: str
    trace: Trace
    answers: tuple[Answer, ...] = ()
    """One for each call, in files that may repeat answers of others; else empty."""
    began: float | None = None
    """The first time in the file."""


#: Invalid input that is left out; a conversation that cannot be played; valid input
#: without a bill to compare with; a note about the input.
ProblemKind: TypeAlias = Literal["skipped", "rejected", "not_compared", "notice"]


class Problem(NamedTuple):
    place: str
    reason: str
    kind: ProblemKind = "skipped"

    @property
    def harmless(self) -> bool:
        """The input is valid."""
        return self.kind in ("not_compared", "notice")

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


TraceEntry: TypeAlias = FoundTrace | Problem


class Leaf(Protocol):
    """The last message of a branch."""

    depth: int
    """The messages up to here."""


L = TypeVar("L", bound=Leaf)


class BranchBudget:
    """How many branches of a session are read. Each is a conversation with all its messages from
    the beginning on, so a file with a branch at each message would grow with the square of its
    length."""

    def __init__(self) -> None:
        self._left = _BRANCH_MESSAGES
        self._left_out = 0

    def add(self, messages: int) -> None:
        """Adds to the number of messages of the session."""
        self._left += _BRANCHES * messages

    def take(self, messages: int) -> bool:
        """Whether a branch with this number of messages is read."""
        taken = messages <= self._left
        self._left -= messages if taken else 0
        self._left_out += not taken
        return taken

    def kept(self, leaves: list[L]) -> list[L]:
        """The leaves whose branches are read: the longest are taken first."""
        longest = sorted(leaves, key=lambda leaf: -leaf.depth)
        kept = {id(leaf) for leaf in longest if self.take(leaf.depth)}
        return [leaf for leaf in leaves if id(leaf) in kept]

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
            fields = _decode_fields(line.data)
            if line.data.count(b"[") + line.data.count(b"{") > _MOST_NESTED:
                _check_depth(fields)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
            yield Problem(line.place, decode_reason(problem, line.data))
        else:
            yield line.place, fields


def _check_depth(value: object) -> None:
    """Raises `RecursionError` for a value that can be read here, but is nested too deeply for code
    that writes it later, deeper in the call stack."""
    for _ in range(_MOST_NESTED):
        value = [value]
    dumps(value)


def seconds(stamp: object) -> float | None:
    """A time in unix seconds: from seconds, milliseconds or ISO 8601."""
    if isinstance(stamp, bool):
        return None
    if isinstance(stamp, int | float):
        if not -_MOST_SECONDS < stamp < _MOST_SECONDS:
            return None
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
    """A number of tokens; None if it is missing."""
    value = usage.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"usage.{name} is not a number of tokens")
    if value < 0:
        raise ValueError(f"usage.{name} is negative: {value}")
    return value


def checked(found: FoundTrace) -> Iterator[TraceEntry]:
    """The conversation, and problems of its calls. A marker on something that was not sent
    is left out."""
    calls: list[TraceCall] = []
    unreliable: dict[str, list[int]] = {}
    clock = _Clock()
    for index, call in enumerate(found.trace.calls):
        call = clock.read(index, call)
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
    yield from (Problem(found.place, reason, "notice") for reason in clock.notices())
    for why, indexes in unreliable.items():
        reason = f"usage_unreliable at {_named_calls(indexes)}"
        yield Problem(found.place, reason + (f": {why}" if why else ""), "not_compared")
    yield found._replace(trace=replace(found.trace, calls=tuple(calls)))


def _named_calls(indexes: list[int]) -> str:
    """Counted from 1, as the turns of a conversation are."""
    some = ", ".join(str(index + 1) for index in indexes[:_NAMED_CALLS])
    more = f" and {len(indexes) - _NAMED_CALLS} more" if len(indexes) > _NAMED_CALLS else ""
    return f"{counted(len(indexes), 'call')} ({some}{more})"


class _Clock:
    """The times of a conversation's calls. If the clock stepped back, the time since the call
    before is unknown; that call and all after it are moved by the step, so that the times between
    them stay what they are."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._moved = 0.0
        self._steps: dict[int, float] = {}
        self._ended_before: list[int] = []

    def read(self, index: int, call: TraceCall) -> TraceCall:
        if call.t is not None and call.t_end is not None and call.t_end < call.t:
            self._ended_before.append(index)
            call = replace(call, t=None, dur=None)
        if call.at is None:
            return call
        back = 0.0 if self._last is None else self._last - (call.at + self._moved)
        # Sums of floats may differ in the last digits.
        if back > 1e-6:
            self._steps[index] = back
            self._moved += back
            call = replace(call, gap_unknown=True)
        if self._moved:
            names = ("t", "t_end", "t_first")
            times = {name: time for name in names if (time := getattr(call, name)) is not None}
            call = replace(call, **{name: time + self._moved for name, time in times.items()})
        self._last = call.at
        return call

    def notices(self) -> Iterator[str]:
        if self._steps:
            calls, most = _named_calls([*self._steps]), max(self._steps.values())
            yield (
                f"the clock stepped back before {calls}, by {most:.1f} s at most: the time since"
                " the call before is unknown, and later times are moved by the step"
            )
        if self._ended_before:
            calls = _named_calls(self._ended_before)
            yield f"the clock stepped back within {calls}: when they began is unknown"


def _was_sent(written: Breakpoint, call: TraceCall, trace: Trace) -> bool:
    marker = recorded_marker(written)
    if isinstance(marker.where, int):
        return marker.where < call.messages
    return marker.tool is None or not trace.tools or marker.tool < len(trace.tools)


T = TypeVar("T")


class LineOrder(Generic[T]):
    """Returns each line after its parent. Lines whose parent is not in the file come last: each
    follows the line before it in the file, as after a line that was not written or not readable."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._waiting: dict[str, list[tuple[int, str, T]]] = {}
        """By the id of the parent: line number, id and line."""
        self._number = 0
        self.moved = 0
        """How many lines came before their parents."""
        self._last = ""
        self._before: dict[str, str] = {}
        """By the id of a parent that was not read yet: the line before the one that waits."""
        self._missing: dict[str, str] = {}
        """The same, of parents that are not in the file."""

    def add(self, id: object, parent: object, line: T, *, aside: bool = False) -> list[T]:
        """The lines that can be read now: this one, if its parent was read or it has none, and
        those that waited for it. `aside` is a line of another conversation of the file, which
        follows none but its parent."""
        self._number += 1
        known = id if isinstance(id, str) else ""
        if isinstance(parent, str) and parent not in self._known and self._last and not aside:
            self._before.setdefault(parent, self._last)
        self._last = known if known and not aside else self._last
        return self._add((self._number, known, line), parent)

    def parent(self, named: object) -> str:
        """The id of the line that one follows which names this parent."""
        return self._missing.get(str(named), str(named))

    def _add(self, one: tuple[int, str, T], parent: object) -> list[T]:
        if isinstance(parent, str) and parent not in self._known and parent != one[1]:
            self._waiting.setdefault(parent, []).append(one)
            return []
        ready, read = [one], []
        while ready:
            _, id, line = ready.pop()
            read.append(line)
            if id and id not in self._known:
                self._known.add(id)
                children = self._waiting.pop(id, [])
                self.moved += len(children)
                ready += reversed(children)
        return read

    def problems(self, file: str) -> Iterator[Problem]:
        if self.moved:
            lines = f"{counted(self.moved, 'line')} before their parent"
            yield Problem(file, f"{lines}: put in order", "notice")
        if self._missing:
            lines = f"{counted(len(self._missing), 'line')} that others follow not in the file"
            yield Problem(file, f"{lines}: these follow the lines before them", "notice")

    def rest(self) -> Iterator[T]:
        """The lines whose parents are missing, and their descendants."""
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            ids = {id for lines in waiting.values() for _, id, _ in lines}
            # Lines that are each other's parents keep their order.
            missing = waiting.keys() - ids
            self._missing |= {id: self._before[id] for id in missing & self._before.keys()}
            self._known |= missing or waiting.keys()
            again = [(line, parent) for parent, lines in waiting.items() for line in lines]
            for line, parent in sorted(again, key=lambda pair: pair[0][0]):
                yield from self._add(line, parent)
