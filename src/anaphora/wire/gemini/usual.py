"""Contents with nothing unusual in them, which is nearly all of them: read in one pass."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from anaphora.values import Extras, Part, Role, Text, Thinking, ToolCall, ToolResult
from anaphora.wire.reading import DECODE_ERRORS

from .naming import WIRE
from .results import read_response

#: Missing, which says the same.
NULL = Raw(b"null")


class Unusual(Exception):
    """To be read field by field."""


class UsualCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    name: str
    args: Raw = NULL
    id: str = ""


class UsualResponse(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    name: str
    response: Raw
    id: str = ""


class UsualPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False, rename="camel"):
    """One of text, call and response; a signature goes with the first two, and only a text is a
    thought or none."""

    text: str | None = None
    function_call: UsualCall | None = None
    function_response: UsualResponse | None = None
    thought: bool | UnsetType = UNSET
    thought_signature: Raw = NULL
    """As it was written: it goes back that way."""


class UsualContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    role: Literal["user", "model"]
    parts: list[UsualPart]


_one = msgspec.json.Decoder(UsualContent).decode
_text = msgspec.json.Decoder(str).decode

ROLES: dict[str, Role] = {"user": "user", "model": "assistant"}

#: Who speaks, and what.
Read: TypeAlias = tuple[Role, list[Part]]


def try_content(raw: Raw) -> Read | None:
    """One content, when it is a usual one. Ids that are missing stay empty."""
    try:
        content = _one(raw)
        return ROLES[content.role], [read_usual(part) for part in content.parts]
    except (*DECODE_ERRORS, Unusual):
        return None


def read_usual(part: UsualPart) -> Part:
    text, call, response = part.text, part.function_call, part.function_response
    if (text, call, response).count(None) != 2 or (text is None and part.thought is not UNSET):
        raise Unusual
    signature = part.thought_signature
    if text is not None and part.thought:
        return Thinking(text, None if signature is NULL else _text(signature), provider=WIRE)
    if text is not None:
        return Text(text, signed(signature))
    if call is not None:
        return ToolCall(call.id, call.name, arguments_of(call), signed(signature))
    if response is None or signature is not NULL:
        raise Unusual
    answer, error, form = read_response(str(response.response, "utf-8"))
    return ToolResult(response.id, answer, error, response.name, form)


def arguments_of(call: UsualCall) -> str:
    written = str(call.args, "utf-8")
    return "{}" if written == "null" else written


def signed(signature: Raw) -> Extras | None:
    if signature is NULL:
        return None
    written = str(signature, "utf-8")
    if written[0] != '"':
        raise Unusual
    return {WIRE: '{"thoughtSignature":' + written + "}"}
