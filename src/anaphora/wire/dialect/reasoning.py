"""Whose reasoning it is, where many hosts share a wire.

Chat hosts tell their reasoning as plain text in a field that OpenAI does not have. What one of them
said goes back to that one only: the host's name travels with it.
"""

from __future__ import annotations

import msgspec

from anaphora.catalog import Dialect
from anaphora.prompt import Call
from anaphora.values import Message, Part, Thinking

WIRE = "openai_chat"
_Fields = dict[str, msgspec.Raw]


def own_part(part: Part, dialect: Dialect) -> Part:
    """The part, with the host's name on it if it is reasoning."""
    if dialect.wire != WIRE or not isinstance(part, Thinking) or part.provider != WIRE:
        return part
    extras = part.extras or {}
    fields = msgspec.json.decode(extras.get(WIRE, "{}"), type=_Fields)
    fields["host"] = msgspec.Raw(msgspec.json.encode(dialect.provider))
    said = msgspec.json.encode(fields).decode()
    return msgspec.structs.replace(part, extras={**extras, WIRE: said})


def own_message(message: Message, dialect: Dialect) -> Message:
    if not any(isinstance(part, Thinking) for part in message.parts):
        return message
    parts = tuple(own_part(part, dialect) for part in message.parts)
    return msgspec.structs.replace(message, parts=parts)


def own_call(call: Call, dialect: Dialect) -> Call:
    """A call that was sent to the host: it got back what it had said itself."""
    if dialect.wire != WIRE:
        return call
    ir = call.ir.revised(lambda message: own_message(message, dialect))
    return call if ir is call.ir else msgspec.structs.replace(call, ir=ir)
