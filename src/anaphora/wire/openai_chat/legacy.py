"""Function calls as they were before tools: `function_call` in an assistant message, and the result
as a message with the role `function`. They are read as a tool call and its result."""

from __future__ import annotations

import msgspec

from anaphora.values import Opaque, Part, Role, ToolCall
from anaphora.wire.parts import fields_part, is_fields_part
from anaphora.wire.reading import DECODE_ERRORS, decode_members

from .types import MESSAGE_FIELDS, WIRE

_FIELD = "function_call"


class _LegacyCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str = "{}"


_decode_call = msgspec.json.Decoder(_LegacyCall).decode


def link_call(messages: list[tuple[Role, tuple[Part, ...]]]) -> str:
    """The id of the call that a `function` message behind these messages answers. The call, a field
    of the last message, becomes a tool call with that id: its place in the conversation."""
    call_id = f"call_{max(0, len(messages) - 1)}"
    if messages and messages[-1][0] == "assistant":
        parts: list[Part] = []
        for part in messages[-1][1]:
            parts += _with_call(part, call_id)
        messages[-1] = "assistant", tuple(parts)
    return call_id


def _with_call(part: Part, call_id: str) -> list[Part]:
    """The fields of a message without the call in them, and the call; another part as it is."""
    if not isinstance(part, Opaque) or not is_fields_part(part, (WIRE,), MESSAGE_FIELDS):
        return [part]
    members = decode_members(part.json.encode())
    try:
        call = _decode_call(members[_FIELD])
    except (KeyError, *DECODE_ERRORS):
        return [part]
    del members[_FIELD]
    return [ToolCall(call_id, call.name, call.arguments), *fields_part(WIRE, part.kind, members)]
