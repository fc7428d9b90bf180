"""Reader of a response's event stream.

A part ends when its item does: only then are its id, annotations and encrypted reasoning known. The
last event carries the whole reply and takes precedence. Unknown events and events after the end are
ignored; content without a start gets one; events without an index belong to the item of their id,
or to the last one. A missing end is a failure that carries the parts so far. A JSON body in place
of events is read as the whole reply.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from anaphora.errors import Parse, Upstream
from anaphora.values import Event, Opaque, Part, Refusal, Reply, ReplyEnd, Text, Thinking, ToolCall
from anaphora.wire.errors import ErrorObject, from_object
from anaphora.wire.lenient import LenientDecoder
from anaphora.wire.reading import (
    DECODE_ERRORS,
    decode_value,
    encode_members,
    object_members,
    reply_error,
)
from anaphora.wire.replies import EventReader, ReplyBuilder
from anaphora.wire.sse import DONE

from .reply import read_output, read_reply
from .types import NULL, WIRE, CallHead, ItemHead, PartHead, ResponseHead, StreamEvent

_EVENT: LenientDecoder[StreamEvent] = LenientDecoder(StreamEvent)
_decode = _EVENT.strict

_TEXT_DELTA = "response.output_text.delta"

#: Deltas, with the types of their item and its part.
_DELTAS = {
    _TEXT_DELTA: ("message", "text"),
    "response.refusal.delta": ("message", "refusal"),
    "response.function_call_arguments.delta": ("function_call", "tool_call"),
    "response.reasoning_summary_text.delta": ("reasoning", "thinking"),
    "response.reasoning_text.delta": ("reasoning", "thinking"),
}


class _OpenItem:
    """An item that is not complete yet."""

    __slots__ = ("call", "head", "index", "parts", "whole")

    def __init__(self, index: int, head: ItemHead, call: CallHead | None) -> None:
        self.index = index
        self.head = head
        self.call = call
        self.parts: dict[int, int] = {}
        """Content index -> index of the part in the reply."""
        self.whole: dict[int, Part] = {}
        """The parts of the finished item, by content index."""


class StreamReader(EventReader):
    """The events of a response's stream."""

    unfinished = "the stream ended before response.completed"

    def __init__(
        self,
        path: str = "",  # noqa: ARG002
        read_body: Callable[[bytes], Reply] = read_reply,
    ) -> None:
        super().__init__(read_body, ReplyBuilder())
        self._items: dict[int, _OpenItem] = {}
        self._by_id: dict[str, int] = {}
        self._last = -1
        self._parts = 0
        self._texts: dict[tuple[int | None, int | None], int] = {}
        """The text parts by output and content index: most events are more text."""

    def _read(self, payload: bytes, events: list[Event]) -> None:
        try:
            event = _decode(payload)
        except DECODE_ERRORS:
            events += self._separate(payload)
            return
        if event.type == _TEXT_DELTA and event.delta is not None:
            part = self._texts.get((event.output_index, event.content_index))
            if part is not None:
                events.append(self._build.add_text(part, event.delta))
                return
        events += self._on(event)

    def _is_complete(self) -> bool:
        return False

    def _separate(self, payload: bytes) -> list[Event]:
        """An event with unknown fields, which are left out with a notice."""
        if payload.strip() == DONE:
            return []
        kind = decode_value(payload, PartHead, "stream", reply_error).type or ""
        if kind not in _HANDLERS:
            return []
        event, unknown = _EVENT.separate(payload, "stream", reply_error)
        if unknown is not None:
            self._build.note_dropped_fields(kind, unknown.remaining(nulls=True))
        return self._on(event)

    def _on(self, event: StreamEvent) -> list[Event]:
        needed, handle = _HANDLERS.get(event.type, ("", None))
        if handle is None:
            return []
        if needed and getattr(event, needed) in (None, NULL):
            raise reply_error("is missing", f"stream.{needed}")
        return handle(self, event)

    def _on_created(self, event: StreamEvent) -> list[Event]:
        head = decode_value(event.response, ResponseHead | None, "stream.response", reply_error)
        return self._build.start(head.id or "", head.model or "") if head is not None else []

    def _on_error(self, event: StreamEvent) -> list[Event]:
        error = event.error or ErrorObject(event.message, None, event.param, event.code)
        return self._build.fail(from_object(error, 200))

    def _on_item(self, event: StreamEvent) -> list[Event]:
        head, call = _heads_of(event.item)
        index = event.output_index if event.output_index is not None else self._last + 1
        item = self._open(index, head, call)
        if head.kind == "message":
            return []  # its parts have events of their own
        if call is not None:
            events = self._begin(item, 0, "tool_call")
            if call.arguments:
                events.append(self._build.add_text(item.parts[0], call.arguments))
            return events
        return self._begin(item, 0, "thinking" if head.kind == "reasoning" else "opaque")

    def _on_part(self, event: StreamEvent) -> list[Event]:
        item = self._item(event.output_index, event.item_id, "message")
        head = decode_value(event.part, PartHead | None, "stream.part", reply_error) or PartHead()
        kind = {"output_text": "text", "refusal": "refusal"}.get(head.type or "")
        content = event.content_index or 0
        if kind is None or item.head.kind != "message" or content in item.parts:
            return []
        return self._begin(item, content, kind)

    def _on_summary(self, event: StreamEvent) -> list[Event]:
        """A blank line between two parts of a summary."""
        index = self._item(event.output_index, event.item_id, "reasoning").parts.get(0, -1)
        part = self._build.open.get(index)
        if part is None or not part.size:
            return []
        return [self._build.add_text(index, "\n\n")]

    def _on_delta(self, event: StreamEvent) -> list[Event]:
        item_type, kind = _DELTAS[event.type]
        item = self._item(event.output_index, event.item_id, item_type)
        content = (event.content_index or 0) if item_type == "message" else 0
        events = [] if content in item.parts else self._begin(item, content, kind)
        return [*events, self._build.add_text(item.parts[content], event.delta or "")]

    def _on_item_done(self, event: StreamEvent) -> list[Event]:
        head, call = _heads_of(event.item)
        item = self._item(event.output_index, head.id, head.kind)
        item.head, item.call = head, call
        events: list[Event] = []
        for content, part in enumerate(read_output(event.item, "stream.item")):
            item.whole[content] = part
            if content not in item.parts:
                events += self._begin(item, content, part_kind(part))
        for index in item.parts.values():
            events += self._build.end(index)
        return events

    def _on_end(self, event: StreamEvent) -> list[Event]:
        build = self._build
        try:
            reply = read_reply(self._with_output(event.response))
        except Upstream as problem:
            return build.fail(problem)  # `response.failed`
        events = build.start(reply.id, reply.model)
        if not reply.id or not reply.model:
            reply_id, model = reply.id or build.id, reply.model or build.model
            message = msgspec.structs.replace(reply.message, id=reply_id)
            reply = msgspec.structs.replace(reply, id=reply_id, model=model, message=message)
        for index in sorted(build.open):
            events += build.end(index)
        if not reply.message.parts:
            parts = build.reply().message.parts
            message = msgspec.structs.replace(reply.message, parts=parts)
            calls = reply.stop_reason == "end" and any(isinstance(part, ToolCall) for part in parts)
            stop = "tool_calls" if calls else reply.stop_reason
            reply = msgspec.structs.replace(reply, message=message, stop_reason=stop)
        if build.notices:
            notices = (*reply.notices, *build.notices.values())
            reply = msgspec.structs.replace(reply, notices=notices)
        events += build.update_usage(reply.usage)
        build.ended = True
        return [*events, ReplyEnd(reply)]

    def _with_output(self, response: msgspec.Raw) -> bytes:
        """The response of the last event. Some servers do not repeat the parts there."""
        members = object_members(response, "stream.response", reply_error)
        if not self._parts or members.get("output", NULL) != NULL:
            return bytes(response)
        return encode_members({**members, "output": msgspec.Raw(b"[]")})

    def _open(self, index: int, head: ItemHead, call: CallHead | None = None) -> _OpenItem:
        item = self._items[index] = _OpenItem(index, head, call)
        self._last = index
        if head.id:
            self._by_id[head.id] = index
        return item

    def _item(self, index: int | None, item_id: str | None, item_type: str) -> _OpenItem:
        """The item of an event; one that was not announced is opened now."""
        if index is None:
            index = self._by_id.get(item_id or "", self._last)
        item = self._items.get(index)
        if item is None:
            item = self._open(max(index, 0), ItemHead(item_type, item_id))
        return item

    def _begin(self, item: _OpenItem, content: int, kind: str) -> list[Event]:
        index = item.parts[content] = self._parts
        self._parts += 1
        if kind == "text":
            self._texts[item.index, content] = index

        def finish(text: str) -> Part:
            whole = item.whole.get(content)
            return whole if whole is not None else _unfinished_part(kind, text, item)

        own_id, call = item.head.id, item.call
        if kind == "tool_call" and call is not None:
            return self._build.begin(
                index, kind, finish, id=call.call_id, name=call.name, item=own_id
            )
        return self._build.begin(index, kind, finish, item=own_id)


#: The field that an event of each type must have, and its handler.
_HANDLERS: dict[str, tuple[str, Callable[[StreamReader, StreamEvent], list[Event]]]] = {
    **dict.fromkeys(_DELTAS, ("delta", StreamReader._on_delta)),
    "response.created": ("", StreamReader._on_created),
    "response.queued": ("", StreamReader._on_created),
    "response.in_progress": ("", StreamReader._on_created),
    "response.output_item.added": ("item", StreamReader._on_item),
    "response.output_item.done": ("item", StreamReader._on_item_done),
    "response.content_part.added": ("", StreamReader._on_part),
    "response.reasoning_summary_part.added": ("", StreamReader._on_summary),
    "response.completed": ("response", StreamReader._on_end),
    "response.incomplete": ("response", StreamReader._on_end),
    "response.failed": ("response", StreamReader._on_end),
    "error": ("", StreamReader._on_error),
}


def _unfinished_part(kind: str, text: str, item: _OpenItem) -> Part:
    """A part whose item did not end."""
    if kind == "tool_call":
        call = item.call or CallHead()
        return ToolCall(call.call_id or "", call.name or "", text)
    if kind == "thinking":
        return Thinking(text, provider=WIRE)
    if kind == "refusal":
        return Refusal(text)
    if kind == "text":
        return Text(text)
    kind = item.head.kind
    return Opaque(WIRE, kind, msgspec.json.encode({"type": kind}).decode())


def part_kind(part: Part) -> str:
    if isinstance(part, Text | Refusal | Thinking):
        return type(part).__name__.lower()
    return "tool_call" if isinstance(part, ToolCall) else "opaque"


def _heads_of(item: msgspec.Raw) -> tuple[ItemHead, CallHead | None]:
    try:
        head = msgspec.json.decode(item, type=ItemHead)
        is_call = head.kind == "function_call"
        return head, msgspec.json.decode(item, type=CallHead) if is_call else None
    except DECODE_ERRORS as problem:
        raise Parse(f"an item: {problem}", path="stream") from None
