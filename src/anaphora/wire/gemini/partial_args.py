"""Arguments that come in pieces, each with the path of the value it belongs to.

Vertex streams them so when it is asked to. A text may go on over several pieces.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from anaphora.canonical import dumps
from anaphora.errors import Parse
from anaphora.values import Extras, ToolCall
from anaphora.wire.fields import Fields
from anaphora.wire.replies import ARGUMENTS_LIMIT

from .naming import WIRE

_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d{1,6})\]|\[(?:'([^']*)'|"([^"]*)")\]""")
_PLACE = "stream.parts.functionCall.partialArgs"


class _Piece(msgspec.Struct, frozen=True, rename="camel"):
    json_path: str
    string_value: str | None = None
    number_value: float | int | None = None
    bool_value: bool | None = None


class Pieces(msgspec.Struct, frozen=True):
    """What a chunk says of a call in pieces."""

    more: tuple[_Piece, ...]
    goes_on: bool


def pieces_of(call: ToolCall) -> Pieces | None:
    """The pieces in a call, as it was read; None for a whole one."""
    came = (call.extras or {}).get(WIRE)
    if came is None or ('"partialArgs"' not in came and '"willContinue"' not in came):
        return None
    inner = Fields(came, "stream.parts").nested("functionCall")
    if inner is None:
        return None
    more = inner.maybe("partialArgs", tuple[_Piece, ...]) or ()
    return Pieces(more, bool(inner.maybe("willContinue", bool)))


class OpenArguments:
    """A call whose arguments are still coming."""

    __slots__ = ("_args", "_left", "call")

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self._args: dict[str, Any] = {}
        self._left = ARGUMENTS_LIMIT

    def add(self, pieces: tuple[_Piece, ...]) -> None:
        for piece in pieces:
            self._left -= len(piece.json_path) + len(piece.string_value or "") + 8
            if self._left < 0:
                raise Parse(f"arguments of more than {ARGUMENTS_LIMIT} characters", path=_PLACE)
            _put(self._args, _steps(piece.json_path), _value(piece))

    def finish(self) -> ToolCall:
        """The call as if it had come whole."""
        text = dumps(self._args, path=_PLACE).decode()
        return msgspec.structs.replace(self.call, arguments=text, extras=_rest(self.call.extras))


def _value(piece: _Piece) -> Any:
    values = (piece.string_value, piece.number_value, piece.bool_value)
    return next((value for value in values if value is not None), None)


def _steps(path: str) -> list[str | int]:
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            break
        name, index, *quoted = found.groups()
        word = next((q for q in quoted if q is not None), name)
        steps.append(int(index) if index is not None else str(word))
        at = found.end()
    if not steps or path[:1] != "$" or at < len(path) or not isinstance(steps[0], str):
        raise Parse(f"{path!r} is no path to an argument", path=_PLACE)
    return steps


def _put(holder: Any, steps: list[str | int], value: Any) -> None:
    """Sets the value a path leads to; a text goes on where it was left."""
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if isinstance(step, int):
            if not isinstance(holder, list) or step > len(holder):
                raise Parse("a piece of a list that is not there", path=_PLACE)
            if step == len(holder):
                holder.append(_empty(following))
        elif not isinstance(holder, dict):
            raise Parse("a piece of an object that is not there", path=_PLACE)
        else:
            holder.setdefault(step, _empty(following))
        if following is None:
            before = holder[step]
            goes_on = isinstance(before, str) and isinstance(value, str)
            holder[step] = before + value if goes_on else value
        else:
            holder = holder[step]


def _empty(following: str | int | None) -> Any:
    if following is None:
        return None
    return [] if isinstance(following, int) else {}


def _rest(extras: Extras | None) -> Extras | None:
    """What came along, less the pieces."""
    left = dict(extras or {})
    fields = Fields(left.pop(WIRE, "{}"), f"extras.{WIRE}")
    inner = fields.nested("functionCall")
    if inner is not None:
        inner.raw("partialArgs")
        inner.raw("willContinue")
        if rest := inner.rest():
            fields.put("functionCall", b"{" + rest + b"}")
    return {**left, **(fields.rest_for(WIRE) or {})} or None
