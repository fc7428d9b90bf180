"""Reads and writes a single reply of Responses, losing nothing.

A reply that came over this wire is written as it came. Replies of other providers get the fields
that the types require: ids made from the reply's, a status, empty annotations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from anaphora.canonical import dumps, string
from anaphora.errors import Upstream
from anaphora.values import (
    Message,
    Opaque,
    Part,
    Reply,
    StopReason,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
    WriteTtl,
)
from anaphora.wire.errors import ErrorObject, from_object
from anaphora.wire.openai import counted_usage
from anaphora.wire.parts import closing, extra_members, following_extras, own_usage
from anaphora.wire.reading import (
    DECODE_ERRORS,
    converts_errors,
    decode_members,
    decode_value,
    extras_of,
    object_members,
    reply_error,
)
from anaphora.wire.replies import positive_counts, read_counts, valid_count

from .item_reader import ItemReader
from .items import (
    OUTPUT,
    begins_item,
    function_call,
    function_output,
    goes_on,
    in_message,
    message_opening,
    reasoning_item,
)
from .types import ITEM, NULL, WIRE, IncompleteDetails, InputDetails, ReplyFields, ResponsesUsage

#: Why a reply is incomplete.
_REASONS: dict[str, StopReason] = {"max_output_tokens": "length", "content_filter": "refusal"}
_REASONS_WRITTEN: dict[StopReason, str] = {stop: reason for reason, stop in _REASONS.items()}
_STATUSES = ("completed", "incomplete", "failed", "in_progress", "queued", "cancelled")

#: A compacted conversation, which an endpoint of its own returns.
_COMPACTED = "response.compaction"

_decode_error = msgspec.json.Decoder(ErrorObject).decode
_decode_usage = msgspec.json.Decoder(ResponsesUsage).decode


@converts_errors(reply_error)
def read_reply(body: bytes) -> Reply:
    """The reply in `body`. `Parse` names the field that is missing or wrong; the error of a failed
    response is raised."""
    rest = object_members(body, "$", reply_error)
    reply = decode_value(body, ReplyFields, "$", reply_error)
    if reply.object not in (None, "response", _COMPACTED):
        raise reply_error(f"expected a response, not {reply.object!r}", "$.object")
    if (error := _failure(reply)) is not None:
        raise error
    # A compacted conversation names no model.
    required = ("id", "output") if reply.object == _COMPACTED else ("id", "model", "output")
    for name in required:
        if getattr(reply, name) is None:
            raise reply_error("is missing", f"$.{name}")
        del rest[name]
    parts: list[Part] = []
    for index, raw in enumerate(reply.output or ()):
        parts += read_output(raw, f"$.output[{index}]")
    # A usage that is no object stays among the other fields.
    counted = rest.pop("usage") if bytes(reply.usage)[:1] == b"{" else NULL
    usage, notices = read_counts(read_usage, bytes(counted), "$.usage")
    stop, stop_reason_raw = _read_stop(reply.status, reply.incomplete_details, parts)
    return Reply(
        id=reply.id or "",
        model="" if reply.object == _COMPACTED else reply.model or "",
        message=Message(id=reply.id or "", role="assistant", parts=tuple(parts)),
        stop_reason=stop,
        stop_reason_raw=stop_reason_raw,
        usage=usage,
        notices=notices,
        extras=extras_of(WIRE, rest),
    )


def _failure(reply: ReplyFields) -> Upstream | None:
    """The error of a failed response."""
    if reply.status != "failed":
        return None
    try:
        return from_object(_decode_error(reply.error), 200)
    except DECODE_ERRORS:
        return None


def read_output(raw: msgspec.Raw, path: str) -> list[Part]:
    """The parts of one item of a reply."""
    return list(ItemReader(path, reply_error).read(raw)[1])


def _read_stop(
    status: str | None, incomplete: IncompleteDetails | None, parts: list[Part]
) -> tuple[StopReason, str | None]:
    """Why the model stopped, and OpenAI's name for it. Some servers give a reason although the
    status is completed."""
    reason = incomplete.reason if incomplete is not None else None
    if reason is not None:
        return _REASONS.get(reason, "other"), reason
    if status == "completed":
        called = any(isinstance(part, ToolCall) for part in parts)
        return "tool_calls" if called else "end", status
    return "other", status


def write_reply(reply: Reply, created: float | None = None) -> bytes:
    """The reply as OpenAI would send it. Parts without an item are left out. `created` is the date
    of a reply that has none of its own."""
    items = b",".join(output_items(reply.message.parts, reply.id))
    head = b'{"id":' + string(reply.id)
    kept = extra_members(reply.extras, WIRE)
    compacted = kept and bytes(decode_members(b"{" + kept + b"}").get("object", b""))
    if reply.model or compacted != string(_COMPACTED):
        head += b',"model":' + string(reply.model)
    output = b',"output":[' + items + b"]"
    if reply.extras is not None and WIRE in reply.extras:
        usage = b"" if reply.usage == Usage() else b',"usage":' + write_usage(reply.usage)
        return head + output + usage + closing(reply.extras, WIRE)
    status, reason = write_stop(reply)
    details = b"null" if reason is None else b'{"reason":' + string(reason) + b"}"
    usage = b',"usage":' + write_usage(reply.usage) + b","
    fields = skeleton(status, int(created or 0))
    return head + output + usage + fields + b',"incomplete_details":' + details + b"}"


def skeleton(status: str, created: int = 0) -> bytes:
    """The fields that every response has."""
    return (
        b'"object":"response","created_at":%d,"status":' % created
        + string(status)
        + b',"error":null,"instructions":null,"metadata":{},"parallel_tool_calls":true'
        b',"temperature":null,"tool_choice":"auto","tools":[],"top_p":null'
    )


def write_stop(reply: Reply) -> tuple[str, str | None]:
    """The status of a reply, and why it is incomplete."""
    if reply.stop_reason in _REASONS_WRITTEN:
        return "incomplete", _REASONS_WRITTEN[reply.stop_reason]
    if reply.stop_reason == "other" and reply.stop_reason_raw in _STATUSES:
        return str(reply.stop_reason_raw), None
    return "completed", None


def output_items(parts: Sequence[Part], reply_id: str) -> list[bytes]:
    items: list[bytes] = []
    for group in _grouped(parts):
        if in_message(group[0]):
            item = message_item(group, item_id("msg", reply_id, len(items)))
        else:
            item = single_item(group[0], reply_id, len(items))
        if item is not None:
            items.append(item)
    return items


def _grouped(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """The parts of each item."""
    group: list[Part] = []
    for part in parts:
        if group and in_message(group[-1]) and goes_on(part):
            group.append(part)
            continue
        if group:
            yield group
        group = [part]
    if group:
        yield group


def message_item(group: Sequence[Part], default_id: str) -> bytes | None:
    content = [data for part in group if (data := content_part(part)) is not None]
    if not content:
        return None
    opening = message_opening("assistant", item_fields(group[0], default_id))
    return opening + b",".join(content) + b"]}"


def item_fields(part: Part, default_id: str, status: bytes = b"completed") -> bytes:
    """The fields of the message item that a part begins."""
    if begins_item(part) and not isinstance(part, Opaque):
        return following_extras(part.extras, ITEM)
    return b',"id":%b,"status":"%b"' % (string(default_id), status)


def content_part(part: Part) -> bytes | None:
    if isinstance(part, Text) and WIRE not in (part.extras or ()):
        return b'{"type":"output_text","text":' + string(part.text) + b',"annotations":[]}'
    return OUTPUT[type(part)][1](part, [])


def single_item(part: Part, reply_id: str, index: int) -> bytes | None:
    """A part that is an item by itself. Reasoning of other providers becomes a summary."""
    if isinstance(part, ToolCall):
        item = function_call(part)
        if extra_members(part.extras, WIRE):
            return item
        own = item_id("fc", reply_id, index)
        return item[:-1] + b',"id":' + string(own) + b',"status":"completed"}'
    if isinstance(part, ToolResult):
        return function_output(part, [])[0] + b"]}"
    if not isinstance(part, Thinking):
        return OUTPUT[type(part)][1](part, [])
    if part.provider == WIRE:
        return reasoning_item(part)
    if not part.text:
        return None
    return reasoning_item(Thinking(part.text), item_id("rs", reply_id, index))


def item_id(prefix: str, reply_id: str, index: int) -> str:
    return f"{prefix}_{reply_id.removeprefix('resp_')}_{index}"


def read_usage(raw: bytes) -> Usage:
    usage = _decode_usage(raw)
    details = usage.input_tokens_details or InputDetails()
    read, written = valid_count(details.cached_tokens), _written(details)
    output = usage.output_tokens
    return counted_usage(
        raw, usage.input_tokens, read, written, output, usage.output_tokens_details
    )


def _written(details: InputDetails) -> dict[WriteTtl, int] | None:
    by_ttl, total = details.cache_write_tokens_details, valid_count(details.cache_write_tokens)
    if by_ttl is None:
        return None if total is None else {"unsplit": total} if total else {}
    written: dict[WriteTtl, int] = {"12h": by_ttl.ttl_12h_tokens, "30m": by_ttl.ttl_30m_tokens}
    if total is not None and (rest := total - sum(written.values())) > 0:
        written["unsplit"] = rest
    return positive_counts(written)


def write_usage(usage: Usage) -> bytes:
    own = own_usage(usage, read_usage)
    if own is not None and _decode_usage(own).total_tokens is not None:
        return own
    written = usage.written
    details: dict[str, object] = {
        "cached_tokens": usage.read or 0,
        "cache_write_tokens": usage.written_total or 0,
    }
    if written and not written.keys() - {"30m", "12h"}:
        details["cache_write_tokens_details"] = {
            "ttl_30m_tokens": written.get("30m", 0),
            "ttl_12h_tokens": written.get("12h", 0),
        }
    fields = {
        "input_tokens": usage.input or 0,
        "input_tokens_details": details,
        "output_tokens": usage.output or 0,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        "total_tokens": (usage.input or 0) + (usage.output or 0),
    }
    return dumps(fields, path="usage")
