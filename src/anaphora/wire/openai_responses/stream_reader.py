"""OpenAI's event stream of a response, read.

A part ends when its item does: only then are its id, annotations and encrypted reasoning known.
The last event carries the whole answer, and what it says holds. Defined behaviour for what should
not happen: an unknown event is passed over; content without a start gets one; events may lack their
indexes (they then belong to the item of that id, or to the last one); an event after the end is
passed over; an end that never comes is a failure that carries what there is; one JSON body instead
of events is read as the whole answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import msgspec

from anaphora.errors import AnaphoraError, Parse, Transport, Upstream
from anaphora.values import Event, Opaque, Part, Refusal, Reply, ReplyEnd, Text, Thinking, ToolCall
from anaphora.wire.openai_failure import ErrorObject, from_object
from anaphora.wire.reading import DECODE_ERRORS, as_anaphora_error
from anaphora.wire.replies import ReplyBuilder
from anaphora.wire.sse import EventDecoder
from anaphora.wire.unnamed import encoded, fields_by_tag, members_of, tag_of, take_unnamed

from .content import WIRE
from .reply import read_output, read_reply

# Not `None`: msgspec takes a union with `Raw` to mean everything but it.
_NOTHING = msgspec.Raw(b"null")


class _Response(msgspec.Struct, frozen=True):
    id: str = ""
    model: str = ""


class _ItemHead(msgspec.Struct, frozen=True):
    type: str = ""
    id: str | None = None


class _CallHead(_ItemHead, frozen=True):
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None


class _PartHead(msgspec.Struct, frozen=True):
    type: str = ""


class _Event(
    msgspec.Struct,
    tag_field="type",
    frozen=True,
    gc=False,
    forbid_unknown_fields=True,
    kw_only=True,
):
    """The events that are read; all others are passed over."""

    sequence_number: int | None = None


class _Created(_Event, tag="response.created", frozen=True):
    response: _Response = _Response()


class _Queued(_Created, tag="response.queued", frozen=True):
    pass


class _InProgress(_Created, tag="response.in_progress", frozen=True):
    pass


class _Completed(_Event, tag="response.completed", frozen=True):
    response: msgspec.Raw


class _Incomplete(_Completed, tag="response.incomplete", frozen=True):
    pass


class _Failed(_Completed, tag="response.failed", frozen=True):
    pass


class _ItemAdded(_Event, tag="response.output_item.added", frozen=True):
    item: msgspec.Raw
    output_index: int | None = None


class _ItemDone(_Event, tag="response.output_item.done", frozen=True):
    item: msgspec.Raw
    output_index: int | None = None


class _PartAdded(_Event, tag="response.content_part.added", frozen=True):
    part: _PartHead = _PartHead()
    output_index: int | None = None
    content_index: int | None = None
    item_id: str | None = None


class _SummaryAdded(_Event, tag="response.reasoning_summary_part.added", frozen=True):
    output_index: int | None = None
    item_id: str | None = None
    summary_index: msgspec.Raw = _NOTHING
    part: msgspec.Raw = _NOTHING


class _TextDelta(_Event, tag="response.output_text.delta", frozen=True):
    delta: str
    output_index: int | None = None
    content_index: int | None = None
    item_id: str | None = None
    summary_index: msgspec.Raw = _NOTHING
    logprobs: msgspec.Raw = _NOTHING
    obfuscation: msgspec.Raw = _NOTHING


class _RefusalDelta(_TextDelta, tag="response.refusal.delta", frozen=True):
    pass


class _ArgumentsDelta(_TextDelta, tag="response.function_call_arguments.delta", frozen=True):
    pass


class _SummaryDelta(_TextDelta, tag="response.reasoning_summary_text.delta", frozen=True):
    pass


class _ReasoningDelta(_TextDelta, tag="response.reasoning_text.delta", frozen=True):
    pass


class _Error(_Event, tag="error", frozen=True):
    message: str | None = None
    code: str | int | None = None
    param: str | None = None
    error: ErrorObject | None = None


_Events = (
    _TextDelta
    | _RefusalDelta
    | _ArgumentsDelta
    | _SummaryDelta
    | _ReasoningDelta
    | _SummaryAdded
    | _PartAdded
    | _ItemAdded
    | _ItemDone
    | _Created
    | _Queued
    | _InProgress
    | _Completed
    | _Incomplete
    | _Failed
    | _Error
)
_decode = msgspec.json.Decoder(_Events).decode


class _Typed(msgspec.Struct, frozen=True):
    type: str = ""


_typed = msgspec.json.Decoder(_Typed).decode
_item_head = msgspec.json.Decoder(_ItemHead).decode
_call_head = msgspec.json.Decoder(_CallHead).decode
_KNOWN = fields_by_tag(get_args(_Events))

#: What stands before the data of most events.
_DELTA_LEAD = b"event: response.output_text.delta\ndata: "
_DELTA_SIZE = len(_DELTA_LEAD)

#: What an item is, and its part, when only a delta tells of it.
_IMPLIED = {
    _TextDelta: ("message", "text"),
    _RefusalDelta: ("message", "refusal"),
    _ArgumentsDelta: ("function_call", "tool_call"),
    _SummaryDelta: ("reasoning", "thinking"),
    _ReasoningDelta: ("reasoning", "thinking"),
}


class _Item:
    """An item that is still being said: the parts of it, by their index in its content."""

    __slots__ = ("head", "index", "parts", "whole")

    def __init__(self, index: int, head: _ItemHead) -> None:
        self.index = index
        self.head = head
        self.parts: dict[int, int] = {}
        """Content index -> index of the part in the answer."""
        self.whole: dict[int, Part] = {}
        """The parts as the finished item has them."""


class StreamReader:
    """Bytes in, events out. Call `close` when the connection ends."""

    def __init__(self, read_body: Callable[[bytes], Reply] = read_reply) -> None:
        self._sse = EventDecoder()
        self._read_body = read_body
        self._build = ReplyBuilder()
        self._items: dict[int, _Item] = {}
        self._by_id: dict[str, int] = {}
        self._last = -1
        self._parts = 0
        self._texts: dict[tuple[int | None, int | None], int] = {}
        """The text parts by output and content index, for what a stream mostly consists of."""

    def feed(self, data: bytes) -> list[Event]:
        if data.startswith(_DELTA_LEAD) and data.endswith(b"\n\n") and self._sse.idle:
            # One event a piece, and mostly more text. (Several events are not one JSON value.)
            try:
                event = _decode(data[_DELTA_SIZE:])
                if type(event) is _TextDelta:
                    part = self._texts[event.output_index, event.content_index]
                    return [self._build.add_text(part, event.delta)]
            except (msgspec.DecodeError, UnicodeError, KeyError, Parse):
                pass
        events: list[Event] = []
        build, texts, said = self._build, self._texts, self._build.add_text
        try:
            for payload in self._sse.feed_data(data):
                try:
                    event = _decode(payload)
                except DECODE_ERRORS as problem:
                    unusual = None if build.ended else self._unusual(payload)
                    if unusual is None:
                        if not build.ended:
                            _pass_over(payload, problem)
                        continue
                    event = unusual
                if build.ended:
                    break
                if type(event) is _TextDelta:
                    at = texts.get((event.output_index, event.content_index))
                    if at is not None:
                        events.append(said(at, event.delta))
                        continue
                events += self._on(event)
        except (AnaphoraError, *DECODE_ERRORS) as problem:
            events += build.fail(as_anaphora_error(problem))
        return events

    def close(self) -> list[Event]:
        """The connection ended. Without the last event before it, that is a failure."""
        if self._build.ended:
            return []
        if self._sse.body is not None:
            return self._build.read_whole_body(bytes(self._sse.body), self._read_body)
        return self._build.fail(Transport("the stream ended before response.completed"))

    def _unusual(self, payload: bytes) -> _Events | None:
        """An event with fields that have no name here, without them; a notice tells of them. None
        when that is not what is wrong with it."""
        members = members_of(payload)
        kind = tag_of(members) if members is not None else ""
        if members is None or kind not in _KNOWN:
            return None
        unnamed = take_unnamed(members, _KNOWN[kind])
        try:
            event: _Events = _decode(encoded(members))
        except DECODE_ERRORS:
            return None
        self._build.note_dropped_fields(kind, unnamed)
        return event

    def _on(self, event: _Events) -> list[Event]:
        match event:
            case _TextDelta():
                return self._on_delta(event)
            case _PartAdded():
                return self._on_part(event)
            case _SummaryAdded():
                return self._on_summary(event)
            case _ItemAdded():
                return self._on_item(event)
            case _ItemDone():
                return self._on_item_done(event)
            case _Created():
                return self._build.start(event.response.id, event.response.model)
            case _Completed():
                return self._on_end(event)
            case _Error():
                return self._on_error(event)

    def _on_item(self, event: _ItemAdded) -> list[Event]:
        head = _head_of(event.item)
        index = event.output_index if event.output_index is not None else self._last + 1
        item = self._open(index, head)
        if head.type == "message":
            return []  # its parts announce themselves
        if isinstance(head, _CallHead):
            events = self._begin(item, 0, "tool_call")
            if head.arguments:
                events += self._build.delta(item.parts[0], head.arguments)
            return events
        return self._begin(item, 0, "thinking" if head.type == "reasoning" else "opaque")

    def _on_part(self, event: _PartAdded) -> list[Event]:
        item = self._item(event.output_index, event.item_id, "message")
        kind = {"output_text": "text", "refusal": "refusal"}.get(event.part.type)
        content = event.content_index or 0
        if kind is None or item.head.type != "message" or content in item.parts:
            return []
        return self._begin(item, content, kind)

    def _on_summary(self, event: _SummaryAdded) -> list[Event]:
        """A blank line between two parts of a summary."""
        index = self._item(event.output_index, event.item_id, "reasoning").parts.get(0, -1)
        part = self._build.open.get(index)
        return self._build.delta(index, "\n\n") if part is not None and part.size else []

    def _on_delta(self, event: _TextDelta) -> list[Event]:
        item_type, kind = _IMPLIED[type(event)]
        item = self._item(event.output_index, event.item_id, item_type)
        content = (event.content_index or 0) if item_type == "message" else 0
        events = [] if content in item.parts else self._begin(item, content, kind)
        return events + self._build.delta(item.parts[content], event.delta)

    def _on_item_done(self, event: _ItemDone) -> list[Event]:
        head = _head_of(event.item)
        item = self._item(event.output_index, head.id, head.type)
        item.head = head
        events: list[Event] = []
        for content, part in enumerate(read_output(event.item, "stream.item")):
            item.whole[content] = part
            if content not in item.parts:
                events += self._begin(item, content, _kind(part))
        for index in item.parts.values():
            events += self._build.end(index)
        return events

    def _on_end(self, event: _Completed) -> list[Event]:
        build = self._build
        try:
            reply = read_reply(bytes(event.response))
        except Upstream as problem:
            return build.fail(problem)  # `response.failed`
        events = build.start(reply.id, reply.model)
        for index in sorted(build.open):
            events += build.end(index)
        if not reply.message.parts:
            # Some servers say the answer once only, on the way.
            said = build.reply().message.parts
            reply = _with_parts(reply, said)
        if build.notices:
            told = (*reply.notices, *build.notices.values())
            reply = msgspec.structs.replace(reply, notices=told)
        events += build.update_usage(reply.usage)
        build.ended = True
        return [*events, ReplyEnd(reply)]

    def _on_error(self, event: _Error) -> list[Event]:
        told = event.error or ErrorObject(event.message, None, event.param, event.code)
        return self._build.fail(from_object(told, 200))

    def _open(self, index: int, head: _ItemHead) -> _Item:
        item = self._items[index] = _Item(index, head)
        self._last = index
        if head.id:
            self._by_id[head.id] = index
        return item

    def _item(self, index: int | None, item_id: str | None, item_type: str) -> _Item:
        """The item an event belongs to; one that was never announced is opened now."""
        if index is None:
            index = self._by_id.get(item_id or "", self._last)
        item = self._items.get(index)
        if item is None:
            item = self._open(max(index, 0), _ItemHead(item_type, item_id))
        return item

    def _begin(self, item: _Item, content: int, kind: str) -> list[Event]:
        index = item.parts[content] = self._parts
        self._parts += 1
        if kind == "text":
            self._texts[item.index, content] = index

        def finish(said: str) -> Part:
            whole = item.whole.get(content)
            return whole if whole is not None else _made(kind, said, item.head)

        head = item.head
        if kind == "tool_call" and isinstance(head, _CallHead):
            return self._build.begin(
                index, kind, finish, id=head.call_id, name=head.name, item=head.id
            )
        return self._build.begin(index, kind, finish, item=head.id)


def _made(kind: str, said: str, head: _ItemHead) -> Part:
    """A part whose item never came to its end."""
    if kind == "tool_call":
        call = head if isinstance(head, _CallHead) else _CallHead()
        return ToolCall(call.call_id or "", call.name or "", said)
    if kind == "thinking":
        return Thinking(said, provider=WIRE)
    if kind == "refusal":
        return Refusal(said)
    if kind == "text":
        return Text(said)
    return Opaque(WIRE, head.type, msgspec.json.encode({"type": head.type}).decode())


def _kind(part: Part) -> str:
    return {
        Text: "text",
        Refusal: "refusal",
        Thinking: "thinking",
        ToolCall: "tool_call",
    }.get(type(part), "opaque")


def _with_parts(reply: Reply, parts: tuple[Part, ...]) -> Reply:
    message = msgspec.structs.replace(reply.message, parts=parts)
    calls = reply.stop == "end" and any(isinstance(part, ToolCall) for part in parts)
    stop = "tool_calls" if calls else reply.stop
    return msgspec.structs.replace(reply, message=message, stop=stop)


def _head_of(item: msgspec.Raw) -> _ItemHead:
    try:
        head = _item_head(item)
        return _call_head(item) if head.type == "function_call" else head
    except DECODE_ERRORS as problem:
        raise Parse(f"an item: {problem}", path="stream") from None


def _pass_over(payload: bytes, problem: Exception) -> None:
    """Events without a name here are passed over; those with one have to be what they should."""
    try:
        kind = _typed(payload).type
    except DECODE_ERRORS:
        if payload.strip() == b"[DONE]":
            return
        raise Parse(str(problem), path="stream") from None
    if kind in _KNOWN:
        raise Parse(f"{kind}: {problem}", path="stream") from None
