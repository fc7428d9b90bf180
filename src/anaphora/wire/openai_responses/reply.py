"""A single answer of OpenAI's, both ways: bytes to `Reply` and back, losing nothing."""

from __future__ import annotations

from typing import Literal

import msgspec

from anaphora.canonical import string
from anaphora.errors import Parse, Upstream
from anaphora.values import Message, Notice, Part, Reply, StopReason, ToolCall, Usage
from anaphora.wire.fields import Fields, rest_for
from anaphora.wire.openai_failure import ErrorObject, from_object
from anaphora.wire.reading import DECODE_ERRORS, converts_errors, reply_error

from .content import WIRE, closing
from .incoming import read_item
from .output import output_items
from .usage import read_usage, write_usage
from .usual_output import decode_members, read_texts

#: Why an answer is incomplete, and what its status says where that is all there is.
_REASONS: dict[str, StopReason] = {"max_output_tokens": "length", "content_filter": "refusal"}
_SAID: dict[StopReason, str] = {stop: reason for reason, stop in _REASONS.items()}
STATUSES = ("completed", "incomplete", "failed", "in_progress", "queued", "cancelled")


#: What is left of a conversation, asked for at an address of its own.
_COMPACTED = "response.compaction"


class _Incomplete(msgspec.Struct, frozen=True):
    reason: str | None = None


class _Told(msgspec.Struct, frozen=True):
    object: str | None = None
    status: str | None = None
    incomplete_details: _Incomplete | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"null")


class _Usual(_Told, frozen=True, kw_only=True):
    """An answer with all that it should have."""

    object: Literal["response"]
    id: str
    model: str
    output: list[msgspec.Raw]


_told = msgspec.json.Decoder(_Told).decode
_error = msgspec.json.Decoder(ErrorObject).decode
_usual = msgspec.json.Decoder(_Usual).decode


@converts_errors(reply_error)
def read_reply(body: bytes) -> Reply:
    """The answer in `body`. `Parse` names the field that is missing or not what it should be; the
    error of one that failed is raised."""
    try:
        told, members = _usual(body), decode_members(body)
    except DECODE_ERRORS:
        return _read_any(body)
    if (error := _failure(told)) is not None:
        raise error
    del members["id"], members["model"], members["output"]
    parts: list[Part] = []
    for index, raw in enumerate(told.output):
        parts += read_output(raw, f"$.output[{index}]")
    usage = bytes(told.usage)
    counted = usage[:1] == b"{"
    if counted:
        del members["usage"]
    stop, stop_raw = read_stop(told.status, told.incomplete_details, parts)
    return Reply(
        id=told.id,
        model=told.model,
        message=Message(id=told.id, role="assistant", parts=tuple(parts)),
        stop=stop,
        stop_raw=stop_raw,
        usage=read_usage(usage, "$.usage") if counted else Usage(),
        extras=rest_for(WIRE, members),
    )


def _failure(told: _Told) -> Upstream | None:
    """The error of an answer that failed: the request was taken, and then it went wrong."""
    if told.status != "failed":
        return None
    try:
        return from_object(_error(told.error), 200)
    except DECODE_ERRORS:
        return None


def _read_any(body: bytes) -> Reply:
    """Field by field, so that what is wrong is named."""
    fields = Fields(body, "$")
    try:
        told = _told(body)
    except DECODE_ERRORS as problem:
        raise Parse(str(problem), path="$") from None
    if told.object not in (None, "response", _COMPACTED):
        raise fields.fail(f"expected a response, not {told.object!r}", "object")
    if (error := _failure(told)) is not None:
        raise error
    reply_id = fields.take("id", str)
    # Who compacted a conversation is not told.
    model = "" if told.object == _COMPACTED else fields.take("model", str)
    parts: list[Part] = []
    for index, raw in enumerate(fields.take("output", list[msgspec.Raw])):
        parts += read_output(raw, f"$.output[{index}]")
    # What an answer did not count stays among its other fields.
    counted = bytes(told.usage)[:1] == b"{"
    usage = fields.raw("usage") if counted else None
    stop, stop_raw = read_stop(told.status, told.incomplete_details, parts)
    return Reply(
        id=reply_id,
        model=model,
        message=Message(id=reply_id, role="assistant", parts=tuple(parts)),
        stop=stop,
        stop_raw=stop_raw,
        usage=read_usage(usage, "$.usage") if usage is not None else Usage(),
        extras=fields.rest_for(WIRE),
    )


def read_output(raw: msgspec.Raw, path: str) -> list[Part]:
    """The parts of one item of an answer. The first part of a message always knows its item."""
    texts = read_texts(raw)
    if texts is not None:
        return texts
    _, parts = read_item(raw, path, reply_error, [])
    return list(parts)


def read_stop(
    status: str | None, incomplete: _Incomplete | None, parts: list[Part]
) -> tuple[StopReason, str | None]:
    """Why the model stopped, and OpenAI's own word for it. Some servers give a reason and call the
    answer complete all the same."""
    reason = incomplete.reason if incomplete is not None else None
    if reason is not None:
        return _REASONS.get(reason, "other"), reason
    if status == "completed":
        called = any(isinstance(part, ToolCall) for part in parts)
        return "tool_calls" if called else "end", status
    return "other", status


def write_reply(reply: Reply) -> bytes:
    """The answer as OpenAI would send it. What it has no item for is left out: ask `unsayable`
    first."""
    items = b",".join(output_items(reply.message.parts, reply.id, []))
    head = b'{"id":' + string(reply.id)
    if reply.model or not _is_compacted(reply):
        head += b',"model":' + string(reply.model)
    output = b',"output":[' + items + b"]"
    if reply.extras is not None and WIRE in reply.extras:
        usage = b"" if reply.usage == Usage() else b',"usage":' + write_usage(reply.usage)
        return head + output + usage + closing(reply.extras)
    return head + output + b',"usage":' + write_usage(reply.usage) + b"," + frame(reply) + b"}"


def _is_compacted(reply: Reply) -> bool:
    came = (reply.extras or {}).get(WIRE, "{}")
    return Fields(came, f"extras.{WIRE}").known_text("object") == _COMPACTED


def frame(reply: Reply) -> bytes:
    """The fields every answer has, for one that did not come over this wire."""
    status, reason = write_stop(reply)
    details = b"null" if reason is None else b'{"reason":' + string(reason) + b"}"
    return skeleton(status) + b',"incomplete_details":' + details


def skeleton(status: str, created: int = 0) -> bytes:
    return (
        b'"object":"response","created_at":%d,"status":' % created
        + string(status)
        + b',"error":null,"instructions":null,"metadata":{},"parallel_tool_calls":true'
        b',"temperature":null,"tool_choice":"auto","tools":[],"top_p":null'
    )


def write_stop(reply: Reply) -> tuple[str, str | None]:
    """The status of an answer, and why it is incomplete."""
    if reply.stop in _SAID:
        return "incomplete", _SAID[reply.stop]
    if reply.stop == "other" and reply.stop_raw in STATUSES:
        return str(reply.stop_raw), None
    return "completed", None


def unsayable(reply: Reply) -> list[Notice]:
    """What of an answer this wire cannot say."""
    notices: list[Notice] = []
    output_items(reply.message.parts, reply.id, notices)
    if reply.stop in ("stop_sequence", "pause", "context_overflow"):
        notices.append(
            Notice("stop_unsupported", f"OpenAI has no word for {reply.stop}; said as completed")
        )
    return notices
