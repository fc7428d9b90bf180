"""Writes a complete reply of Responses without loss, and its event stream.

A reply that was read on this wire is written unchanged. Replies of other providers get the fields
that the types require: ids made from the reply's, a status, empty annotations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from anaphora.canonical import dumps, string
from anaphora.values import (
    Opaque,
    Part,
    PartDelta,
    PartEnd,
    PartStart,
    Refusal,
    Reply,
    ReplyFail,
    ReplyStart,
    StopReason,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)
from anaphora.wire.parts import extra_members, following, own_members, own_usage
from anaphora.wire.reading import decode_members
from anaphora.wire.replies import EventWriter
from anaphora.wire.sse import encode_event

from .items import (
    OUTPUT,
    begins_item,
    continues_message,
    function_call,
    function_output,
    in_message,
    message_opening,
    reasoning_item,
)
from .reply import COMPACTED, REASONS, decode_usage, read_usage
from .stream import part_kind
from .types import ITEM, WIRE, ItemHead

_REASONS_WRITTEN: dict[StopReason, str] = {stop: reason for reason, stop in REASONS.items()}

_STATUSES = ("completed", "incomplete", "failed", "in_progress", "queued", "cancelled")


def write_reply(reply: Reply, created: float | None = None) -> bytes:
    """The reply as OpenAI would send it. Parts without an item are left out. `created` is the date
    of a reply that has none."""
    items = b",".join(output_items(reply.message.parts, reply.id))
    head = b'{"id":' + string(reply.id)
    kept = extra_members(reply.extras, WIRE)
    compacted = kept and bytes(decode_members(b"{" + kept + b"}").get("object", b""))
    if reply.model or compacted != string(COMPACTED):
        head += b',"model":' + string(reply.model)
    output = b',"output":[' + items + b"]"
    if reply.extras is not None and WIRE in reply.extras:
        usage = b"" if reply.usage == Usage() else b',"usage":' + write_usage(reply.usage)
        return head + output + usage + following(own_members(reply.extras, WIRE)) + b"}"
    status, reason = write_stop(reply)
    details = b"null" if reason is None else b'{"reason":' + string(reason) + b"}"
    usage = b',"usage":' + write_usage(reply.usage) + b","
    fields = skeleton(status, int(created or 0))
    return head + output + usage + fields + b',"incomplete_details":' + details + b"}"


def skeleton(status: str, created: int = 0) -> bytes:
    """The fields that every response has, except its counts."""
    return (
        b'"object":"response","created_at":%d,"status":' % created
        + string(status)
        + b',"error":null,"instructions":null,"max_output_tokens":null,"metadata":{}'
        b',"parallel_tool_calls":true,"previous_response_id":null'
        b',"reasoning":{"effort":null,"summary":null},"store":false,"temperature":null'
        b',"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],"top_p":null'
        b',"truncation":"disabled","user":null'
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
        if group and in_message(group[-1]) and continues_message(part):
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
        return following(own_members(part.extras, ITEM))
    return b',"id":%b,"status":"%b"' % (string(default_id), status)


def content_part(part: Part) -> bytes | None:
    if isinstance(part, Text) and WIRE not in (part.extras or ()):
        return (
            b'{"type":"output_text","text":'
            + string(part.text)
            + b',"annotations":[],"logprobs":[]}'
        )
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


def write_usage(usage: Usage) -> bytes:
    own = own_usage(usage, read_usage)
    if own is not None and decode_usage(own).total_tokens is not None:
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


# ── Streams ───────────────────────────────────────────────────────────────────────────────────────

_MESSAGE_KINDS = ("text", "refusal")

#: The first form of items that are not messages.
_REASONING = b'{"type":"reasoning","id":%b,"summary":[]}'

_CALL = (
    b'{"type":"function_call","id":%b,"status":"in_progress","call_id":%b,"name":%b,"arguments":""}'
)

#: The part that the text of each kind is added to, and the name of its events.
_PARTS = {
    "text": ("content_part", b'{"type":"output_text","text":"","annotations":[],"logprobs":[]}'),
    "refusal": ("content_part", b'{"type":"refusal","refusal":""}'),
    "thinking": ("reasoning_summary_part", b'{"type":"summary_text","text":""}'),
}

#: The events of a part's deltas, by its kind.
_DELTAS = {
    "text": "response.output_text.delta",
    "refusal": "response.refusal.delta",
    "tool_call": "response.function_call_arguments.delta",
    "thinking": "response.reasoning_summary_text.delta",
}


class StreamWriter(EventWriter):
    """Turns events into the bytes that OpenAI would send.

    A part's item begins with its first delta, or at its end if it has none: some parts are left
    out, and only their content shows it. Items do not overlap: a part that begins while another is
    open waits for its end.
    """

    def __init__(self) -> None:
        super().__init__()
        self._number = 0
        self._reply_id = ""
        self._created: float | None = None
        self._items = 0
        """How many items were announced."""
        self._id, self._item = "", b""
        """The id of the last one, and the members that events about it have."""
        self._message: list[Part] | None = None
        """The parts of the open message."""
        self._open: dict[int, tuple[PartStart, list[str]]] = {}
        """The parts that have not ended, and their deltas so far."""
        self._current: int | None = None
        """The announced part that has not ended."""
        self._waiting: list[PartEnd] = []
        """Parts that ended while another was open."""

    def _begin(self, event: PartStart) -> bytes:
        self._open[event.index] = event, []
        if event.kind in _MESSAGE_KINDS or self._current is not None:
            return b""
        return self._close_message()

    def _end_part(self, event: PartEnd) -> bytes:
        if self._current not in (None, event.index):
            self._waiting.append(event)
            return b""
        return self._on_end(event) + self._write_waiting()

    def _fail(self, event: ReplyFail) -> bytes:
        code = b"null" if event.code is None else string(event.code)
        members = b',"code":%b,"message":%b,"param":null' % (code, string(event.message))
        return self._close_message() + self._event("error", members)

    def _event(self, name: str, members: bytes) -> bytes:
        """One event. Each member has its comma before it."""
        number, self._number = self._number, self._number + 1
        data = b'{"type":"%b","sequence_number":%d%b}' % (name.encode(), number, members)
        return encode_event(name, data)

    def _start(self, event: ReplyStart) -> bytes:
        self._reply_id = event.id
        self._created = event.created
        members = (
            b',"response":{"id":%b,"model":%b,"output":[],"incomplete_details":null,"usage":null,%b}'
            % (
                string(event.id),
                string(event.model),
                skeleton("in_progress", int(event.created or 0)),
            )
        )
        created = self._event("response.created", members)
        return created + self._event("response.in_progress", members)

    def _delta(self, event: PartDelta) -> bytes:
        if event.index not in self._open:
            return b""
        start, held = self._open[event.index]
        if event.index == self._current:
            return self._text(start.kind, event.delta)
        held.append(event.delta)
        if self._current is not None or start.kind not in _DELTAS:
            return b""
        beginning = self._begin_item(_begun_part(start, event.delta), start.item)
        if beginning is None:
            return b""
        self._current = event.index
        return beginning + self._begin_part(start.kind) + self._text(start.kind, "".join(held))

    def _write_waiting(self) -> bytes:
        self._current = None
        waiting, self._waiting = self._waiting, []
        return b"".join(self._on_end(event) for event in waiting)

    def _on_end(self, event: PartEnd) -> bytes:
        _, held = self._open.pop(event.index, (None, []))
        part, kind = event.part, part_kind(event.part)
        if event.index == self._current:
            return self._done(part)
        beginning = self._begin_item(part)
        if beginning is None:
            return b""
        if isinstance(part, Thinking) and not part.text:
            return beginning + self._done(part)  # its summary has no part
        written = beginning + self._begin_part(kind)
        if held:
            written += self._text(kind, "".join(held))
        return written + self._done(part)

    def _begin_item(self, part: Part, own_id: str | None = None) -> bytes | None:
        """The beginning of a part's item; None if the part is not sent. `own_id` is the item's, if
        the part does not have it yet."""
        if in_message(part):
            if content_part(part) is None:
                return None
            if self._message is not None and continues_message(part) and own_id in (None, self._id):
                return b""
            closed, self._message = self._close_message(), []
            own = own_id or item_id("msg", self._reply_id, self._items)
            opening = message_opening("assistant", item_fields(part, own, b"in_progress")) + b"]}"
            return closed + self._added(_id_in(opening) or own, opening)
        item = single_item(part, self._reply_id, self._items)
        if item is None:
            return None
        own = own_id or _id_in(item) or item_id("it", self._reply_id, self._items)
        if isinstance(part, ToolCall):
            item = _CALL % (string(own), string(part.id), string(part.name))
        elif isinstance(part, Thinking):
            item = _REASONING % string(own)
        return self._close_message() + self._added(own, item)

    def _begin_part(self, kind: str) -> bytes:
        """The event between an item's beginning and its text."""
        if kind not in _PARTS:
            return b""
        name, part = _PARTS[kind]
        return self._event(f"response.{name}.added", self._place(kind) + b',"part":' + part)

    def _text(self, kind: str, text: str) -> bytes:
        name = _DELTAS.get(kind)
        if name is None:
            return b""
        members = self._place(kind) + b',"delta":' + string(text)
        return self._event(name, members + b',"logprobs":[]' if kind == "text" else members)

    def _done(self, part: Part) -> bytes:
        """The end of a part, and of its item if the part is all of it."""
        place = self._place(part_kind(part))
        written = b""
        if in_message(part):
            assert self._message is not None
            if isinstance(part, Text):
                text = place + b',"text":' + string(part.text) + b',"logprobs":[]'
                written = self._event("response.output_text.done", text)
            elif isinstance(part, Refusal):
                text = place + b',"refusal":' + string(part.text)
                written = self._event("response.refusal.done", text)
            whole = place + b',"part":' + (content_part(part) or b"null")
            self._message.append(part)
            return written + self._event("response.content_part.done", whole)
        if isinstance(part, ToolCall):
            members = b',"name":%b,"arguments":%b' % (string(part.name), string(part.arguments))
            written = self._event("response.function_call_arguments.done", place + members)
        elif isinstance(part, Thinking) and part.text:
            text = place + b',"text":' + string(part.text)
            whole = place + b',"part":{"type":"summary_text","text":%b}' % string(part.text)
            written = self._event("response.reasoning_summary_text.done", text)
            written += self._event("response.reasoning_summary_part.done", whole)
        item = single_item(part, self._reply_id, self._items - 1)
        return written + self._item_done(item or b"null")

    def _close_message(self) -> bytes:
        parts, self._message = self._message, None
        if not parts:
            return b""
        return self._item_done(message_item(parts, self._id) or b"null")

    def _added(self, own_id: str, item: bytes) -> bytes:
        index, self._items, self._id = self._items, self._items + 1, own_id
        self._item = b',"output_index":%d,"item_id":%b' % (index, string(own_id))
        members = b',"output_index":%d,"item":%b' % (index, item)
        return self._event("response.output_item.added", members)

    def _item_done(self, item: bytes) -> bytes:
        members = b',"output_index":%d,"item":%b' % (self._items - 1, item)
        return self._event("response.output_item.done", members)

    def _place(self, kind: str) -> bytes:
        """The members that name the item and the part of an event."""
        if kind == "tool_call":
            return self._item
        if kind == "thinking":
            return self._item + b',"summary_index":0'
        return self._item + b',"content_index":%d' % len(self._message or ())

    def _end(self, reply: Reply) -> bytes:
        last = self._write_waiting() + self._close_message()
        status = write_stop(reply)[0]
        name = status if status in ("incomplete", "failed") else "completed"
        response = b',"response":' + write_reply(reply, self._created)
        return last + self._event(f"response.{name}", response)


def _begun_part(start: PartStart, text: str) -> Part:
    """A part with the fields that are known at its first delta."""
    extras = start.extras
    if start.kind == "tool_call":
        return ToolCall(start.id or "", start.name or "", "", extras)
    if start.kind == "thinking":
        return Thinking(text, provider=WIRE if WIRE in (extras or ()) else None, extras=extras)
    return Text(text, extras) if start.kind == "text" else Refusal(text, extras)


def _id_in(item: bytes) -> str | None:
    return msgspec.json.decode(item, type=ItemHead).id
