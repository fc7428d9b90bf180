"""A single answer of Anthropic's, both ways: bytes to `Reply` and back, losing nothing."""

from __future__ import annotations

from typing import Literal

import msgspec

from anaphora.canonical import string
from anaphora.prompt import MarkRequest
from anaphora.values import Message, Notice, Part, Reply, StopReason, Usage
from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS, converts_errors, reply_error

from .blocks import WIRE, block_for, closing
from .incoming import Usual, read_block, read_content
from .usage import read_usage, write_usage

STOPS: dict[str, StopReason] = {
    "end_turn": "end",
    "max_tokens": "length",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_calls",
    "pause_turn": "pause",
    "refusal": "refusal",
    "model_context_window_exceeded": "context_overflow",
}
_SAID = {stop: said for said, stop in STOPS.items()}


class _Usual(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer with nothing in it that has no name here."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Usual]
    usage: msgspec.Raw
    stop_reason: str | None = None
    stop_sequence: str | None = None


_usual = msgspec.json.Decoder(_Usual).decode


@converts_errors(reply_error)
def read_reply(body: bytes) -> Reply:
    """The answer in `body`. `Parse` names the field that is missing or not what it should be."""
    try:
        told = _usual(body)
    except DECODE_ERRORS:
        return _read_any(body)
    marks: list[MarkRequest] = []
    parts = read_content(told.content, 0, reply_error, marks)
    if marks:
        return _read_any(body)
    return Reply(
        id=told.id,
        model=told.model,
        message=Message(id=told.id, role="assistant", parts=parts),
        stop=read_stop(told.stop_reason, told.stop_sequence),
        stop_raw=told.stop_reason,
        stop_sequence=told.stop_sequence,
        usage=read_usage(bytes(told.usage), "$.usage"),
    )


def _read_any(body: bytes) -> Reply:
    """Field by field, so that what has no name is carried along."""
    fields = Fields(body, "$")
    if (kind := fields.take("type", str)) != "message":
        raise fields.fail(f"expected a message, not {kind!r}", "type")
    if (role := fields.take("role", str)) != "assistant":
        raise fields.fail(f"expected the assistant's message, not {role!r}", "role")
    reply_id, model = fields.take("id", str), fields.take("model", str)
    parts = tuple(
        read_block(raw, f"$.content[{at}]", reply_error, (at,), [])
        for at, raw in enumerate(fields.take("content", list[msgspec.Raw]))
    )
    stop, sequence = fields.maybe("stop_reason", str), fields.maybe("stop_sequence", str)
    usage = fields.raw("usage")
    return Reply(
        id=reply_id,
        model=model,
        message=Message(id=reply_id, role="assistant", parts=parts),
        stop=read_stop(stop, sequence),
        stop_raw=stop,
        stop_sequence=sequence,
        usage=read_usage(usage, "$.usage") if usage is not None else Usage(),
        extras=fields.rest_for(WIRE),
    )


def write_reply(reply: Reply) -> bytes:
    """The answer as Anthropic would send it. What it has no block for is left out: ask
    `unsayable` first."""
    content = b",".join(_blocks(reply.message.parts, []))
    return (
        b'{"id":'
        + string(reply.id)
        + b',"type":"message","role":"assistant","model":'
        + string(reply.model)
        + b',"content":['
        + content
        + b'],"stop_reason":'
        + string(write_stop(reply))
        + b',"stop_sequence":'
        + (b"null" if reply.stop_sequence is None else string(reply.stop_sequence))
        + b',"usage":'
        + write_usage(reply.usage)
        + closing(reply.extras)
    )


def unsayable(reply: Reply) -> list[Notice]:
    """What of an answer this wire cannot say."""
    notices: list[Notice] = []
    _blocks(reply.message.parts, notices)
    return notices


def read_stop(said: str | None, sequence: str | None) -> StopReason:
    """Why the model stopped. Some servers name the stop sequence and call it a turn's end."""
    if said == "end_turn" and sequence is not None:
        return "stop_sequence"
    return STOPS.get(said or "", "other")


def write_stop(reply: Reply) -> str:
    if reply.stop_raw is not None and read_stop(reply.stop_raw, reply.stop_sequence) == reply.stop:
        return reply.stop_raw
    return _SAID.get(reply.stop, "end_turn")


def _blocks(parts: tuple[Part, ...], notices: list[Notice]) -> list[bytes]:
    rendered = [block_for(part, spoken=True)[2](part, notices) for part in parts]
    return [block for block in rendered if block is not None]
