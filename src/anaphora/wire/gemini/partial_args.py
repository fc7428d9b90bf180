"""Arguments of calls in pieces. Vertex streams them on request, each piece with the JSON path of
its value; a string may span several pieces."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, TypeAlias

import msgspec

from anaphora.canonical import dumps
from anaphora.errors import Parse
from anaphora.values import ToolCall
from anaphora.wire.lenient import Unknown
from anaphora.wire.reading import Members, decode_value, encode_members, reply_error
from anaphora.wire.replies import ARGUMENTS_LIMIT

_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d{1,6})\]|\[(?:'([^']*)'|"([^"]*)")\]""")
_PATH = "stream.parts.functionCall.partialArgs"


class PartialArg(msgspec.Struct, frozen=True):
    jsonPath: str
    stringValue: str | None = None
    numberValue: float | int | None = None
    boolValue: bool | None = None

    @property
    def value(self) -> Any:
        values = (self.stringValue, self.numberValue, self.boolValue)
        return next((value for value in values if value is not None), None)


class PartialArgs(msgspec.Struct, frozen=True):
    """The pieces in one chunk."""

    partialArgs: tuple[PartialArg, ...] | None = None
    willContinue: bool | None = None


def take_pieces(unknown: Unknown) -> PartialArgs | None:
    """The pieces among the unknown members of a call; None for a complete call."""
    inner = unknown.members.get("functionCall")
    if not isinstance(inner, Unknown):
        return None
    sent: Members = {}
    for name in ("partialArgs", "willContinue"):
        if isinstance(raw := inner.members.pop(name, None), msgspec.Raw):
            sent[name] = raw
    path = "stream.parts"
    return decode_value(encode_members(sent), PartialArgs, path, reply_error) if sent else None


#: Strings in several pieces, by the object or list that each is in (its `id`) and its place there.
_Texts: TypeAlias = dict[tuple[int, str | int], tuple[Any, list[str]]]


class PartialCall:
    """A call whose arguments are not complete."""

    def __init__(self, call: ToolCall, in_pieces: bool) -> None:
        self._call = call
        self._args: dict[str, Any] | None = {} if in_pieces else None
        self._texts: _Texts = {}
        self._left = ARGUMENTS_LIMIT

    def add(self, pieces: tuple[PartialArg, ...]) -> None:
        for arg in pieces:
            self._left -= len(arg.jsonPath) + len(arg.stringValue or "") + 8
            if self._left < 0:
                raise Parse(f"arguments of more than {ARGUMENTS_LIMIT} characters", path=_PATH)
            _put(self._args, _steps(arg.jsonPath), arg.value, self._texts)

    def arguments(self) -> str:
        if self._args is None:
            return self._call.arguments
        for (_, step), (holder, pieces) in self._texts.items():
            holder[step] = "".join(pieces)
        self._texts = {}
        return dumps(self._args, path=_PATH).decode()

    def finish(self, _: str) -> ToolCall:
        return msgspec.structs.replace(self._call, arguments=self.arguments())


def _steps(path: str) -> list[str | int]:
    steps: list[str | int] = []
    position = 1
    while match := _STEP.match(path, position):
        name, index, *quoted = match.groups()
        word = next((text for text in quoted if text is not None), name)
        steps.append(word if index is None else int(index))
        position = match.end()
    if not steps or path[:1] != "$" or position < len(path) or not isinstance(steps[0], str):
        raise Parse(f"{path!r} is not a path to an argument", path=_PATH)
    return steps


def _put(holder: Any, steps: list[str | int], value: Any, texts: _Texts) -> None:
    """Sets the value at a path; a string is appended to the one already there, in `texts`."""
    for step, following in pairwise(steps):
        holder = _child(holder, step, [] if isinstance(following, int) else {})
    step = steps[-1]
    before, place = _child(holder, step, None), (id(holder), step)
    if isinstance(before, str) and isinstance(value, str):
        texts.setdefault(place, (holder, [before]))[1].append(value)
    else:
        holder[step] = value
        texts.pop(place, None)


def _child(holder: Any, step: str | int, new: Any) -> Any:
    """The value at a step; `new` if there is none."""
    if isinstance(step, str):
        if not isinstance(holder, dict):
            raise Parse("a piece of an object that does not exist", path=_PATH)
        return holder.setdefault(step, new)
    if not isinstance(holder, list) or step > len(holder):
        raise Parse("a piece of a list that does not exist", path=_PATH)
    if step == len(holder):
        holder.append(new)
    return holder[step]
