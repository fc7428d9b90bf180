"""Messages as Ollama says them, read into parts. Requests and answers share it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from anaphora.canonical import string
from anaphora.values import Opaque, Part, Text, Thinking, ToolCall
from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS, ErrorFactory, reply_error

from .carried import MESSAGE_FIELDS, WIRE, Put, carried, joined_members
from .images import read_image


class WireMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message with all its usual fields and no others."""

    role: str = ""
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[msgspec.Raw] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class _Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: msgspec.Raw
    index: int | None = None


class _Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    function: _Function
    id: str = ""
    type: Literal["function"] = "function"


_usual = msgspec.json.Decoder(WireMessage).decode
_usual_call = msgspec.json.Decoder(_Call).decode
_encode = msgspec.json.Encoder().encode

_TYPES: dict[str, Any] = {
    field.name: field.type for field in msgspec.structs.fields(WireMessage) if field.name != "role"
}
#: What each role's messages are made of; elsewhere these fields are carried along.
_PLACES: Mapping[str, frozenset[str]] = {
    "system": frozenset({"content", "images"}),
    "user": frozenset({"content", "images"}),
    "assistant": frozenset({"content", "images", "thinking", "tool_calls"}),
    "tool": frozenset({"content", "images", "tool_name", "tool_call_id"}),
}


def read_message(
    raw: msgspec.Raw | bytes, path: str, fail: ErrorFactory
) -> tuple[WireMessage, bytes]:
    """A message by its fields, and what has no name or no place here as members of an object.
    The server reads roles in any case, and so do we."""
    rest: list[bytes] = []
    try:
        said = _usual(raw)
        role = said.role.lower()
    except DECODE_ERRORS:
        fields = Fields(raw, path, fail)
        role = (fields.maybe("role", str) or "").lower()
        known = {name: fields.maybe(name, kind) for name, kind in _TYPES.items()}
        said = WireMessage(role, **known)
        fields.drop_nulls()
        rest = [fields.rest()]
    here = _PLACES.get(role, _PLACES["assistant"])
    misplaced = {
        name: value
        for name in _TYPES
        if name not in here and (value := getattr(said, name)) is not None
    }
    rest += [string(name) + b":" + _encode(value) for name, value in misplaced.items()]
    if misplaced or role != said.role:
        said = msgspec.structs.replace(said, role=role, **dict.fromkeys(misplaced))
    return said, b",".join(member for member in rest if member)


def read_parts(
    said: WireMessage, rest: bytes, calls: list[ToolCall], *, answer: bool
) -> tuple[Part, ...]:
    """Reasoning, pictures, text, calls, and last the fields that have no name here.

    An empty text beside anything else says nothing; alone, it is what a request says.
    """
    parts: list[Part] = []
    if said.thinking:
        parts.append(Thinking(said.thinking, provider=WIRE))
    parts += [read_image(image) for image in said.images or ()]
    if said.content or (not answer and not parts and not calls):
        parts.append(Text(said.content or ""))
    return (*parts, *calls, *fields_part(rest))


def fields_part(rest: bytes) -> list[Part]:
    """Fields of a message that have no name here, as a part that other wires leave out."""
    return [Opaque(WIRE, MESSAGE_FIELDS, (b"{" + rest + b"}").decode())] if rest else []


def read_call(
    raw: msgspec.Raw, path: str, fail: ErrorFactory, made_up: str, moment: str | None = None
) -> ToolCall:
    """A call with its arguments as they were written. One without an id gets `made_up`, and it is
    remembered that it had none."""
    try:
        call = _usual_call(raw)
        call_id, function, rest = call.id, call.function, b""
    except DECODE_ERRORS:
        call_id, function, rest = _read_fields(Fields(raw, path, fail))
    arguments = _arguments(bytes(function.arguments), f"{path}.function.arguments", fail)
    put = Put(index=function.index)
    if not call_id:
        call_id, put = made_up, Put(("id",), function.index, moment)
    return ToolCall(call_id, function.name, arguments, carried(rest, put))


def _read_fields(fields: Fields) -> tuple[str, _Function, bytes]:
    """The same, field by field."""
    call_id = fields.maybe("id", str) or ""
    fields.known("type", Literal["function"])  # type: ignore[arg-type]
    inside = fields.nested("function")
    if inside is None:
        raise fields.fail("is missing", "function")
    name = inside.take("name", str)
    index = inside.known("index", int)
    arguments = msgspec.Raw(inside.raw("arguments") or b"null")
    fields.drop_nulls()
    inside.drop_nulls()
    rest = joined_members(fields.rest(), inside.rest())
    return call_id, _Function(name, arguments, index), rest


def _arguments(raw: bytes, path: str, fail: ErrorFactory) -> str:
    if raw[:1] == b"{":
        return raw.decode()
    if raw == b"null":
        return "{}"
    if raw[:1] == b'"' and fail is reply_error:
        # Hosts that speak like Ollama, and give the text instead of the object.
        return str(msgspec.json.decode(raw))
    raise fail("expected an object", path)


def prefix(moment: str | None) -> str:
    """What the ids of calls in an answer begin with when it gives none. Answers have no ids here;
    when they were made tells them apart."""
    told = re.sub("[^0-9A-Za-z]", "", moment or "")
    return f"call_{told}" if told else "call"
