"""Writer of a response's event stream."""

from __future__ import annotations

import msgspec

from anaphora.canonical import string
from anaphora.values import (
    Event,
    Part,
    PartDelta,
    PartEnd,
    PartStart,
    Refusal,
    Reply,
    ReplyEnd,
    ReplyFail,
    ReplyStart,
    Text,
    Thinking,
    ToolCall,
    UsageUpdate,
)
from anaphora.wire.sse import encode_event

from .render import goes_on, in_message, message_opening
from .reply import (
    content_part,
    item_fields,
    item_id,
    message_item,
    single_item,
    skeleton,
    with_item_id,
    write_reply,
    write_stop,
)
from .stream import part_kind
from .types import ItemHead

_MESSAGE_KINDS = ("text", "refusal")
#: The kinds of parts that may be announced before their end, and the prefixes of their items' ids.
_PREFIXES = {"text": "msg", "refusal": "msg", "thinking": "rs", "tool_call": "fc"}
#: The first form of an item of which only the id is known.
_BEGINNINGS = {
    "text": b'{"type":"message","id":%b,"status":"in_progress","role":"assistant","content":[]}',
    "thinking": b'{"type":"reasoning","id":%b,"summary":[]}',
}
_CALL = (
    b'{"type":"function_call","id":%b,"status":"in_progress","call_id":%b,"name":%b,"arguments":""}'
)

#: The part that the text of each kind is added to, and the name of its events.
_PARTS = {
    "text": ("content_part", b'{"type":"output_text","text":"","annotations":[]}'),
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


class _OpenPart:
    __slots__ = ("announced", "held", "start")

    def __init__(self, start: PartStart) -> None:
        self.start = start
        self.held: list[str] = []
        """Deltas that wait for the announcement."""
        self.announced = False


class StreamWriter:
    """Turns events into the bytes that OpenAI would send.

    An item keeps the id it was announced with. So a part is announced at its second delta, or at
    its end if that comes first: a whole reply keeps all its ids, and a live one is delayed by one
    delta only. Text after text waits for its end, which shows whether it begins a message of its
    own. Items do not overlap here: a part that comes while another is open waits for its end.
    """

    def __init__(self) -> None:
        self._number = 0
        self._reply_id = ""
        self._items = 0
        """How many items were announced."""
        self._id, self._item = "", b""
        """The id of the last one, and the members that events about it have."""
        self._message: list[Part] | None = None
        """The parts of the open message."""
        self._open: dict[int, _OpenPart] = {}
        self._current: int | None = None
        """The announced part that has not ended."""
        self._waiting: list[PartEnd] = []
        """Parts that ended while another was open."""
        self._announced: dict[int, str] = {}
        """The ids that parts were announced with before their own were known."""

    def write(self, event: Event) -> bytes:
        if isinstance(event, ReplyStart):
            return self._start(event)
        if isinstance(event, PartStart):
            self._open[event.index] = _OpenPart(event)
            if event.kind in _MESSAGE_KINDS or self._current is not None:
                return b""
            return self._close_message()
        if isinstance(event, PartDelta):
            return self._on_delta(event)
        if isinstance(event, PartEnd):
            if self._current not in (None, event.index):
                self._waiting.append(event)
                return b""
            return self._on_end(event) + self._write_waiting()
        if isinstance(event, UsageUpdate):
            return b""  # the last event has the counts
        if isinstance(event, ReplyEnd):
            return self._write_waiting() + self._close_message() + self._end(event.reply)
        assert isinstance(event, ReplyFail)
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
        members = b',"response":{"id":%b,"model":%b,"output":[],"incomplete_details":null,%b}' % (
            string(event.id),
            string(event.model),
            skeleton("in_progress", int(event.created or 0)),
        )
        created = self._event("response.created", members)
        return created + self._event("response.in_progress", members)

    def _on_delta(self, event: PartDelta) -> bytes:
        part = self._open.get(event.index)
        if part is None:
            return b""
        kind = part.start.kind
        if part.announced:
            return self._delta(kind, event.delta)
        part.held.append(event.delta)
        unclear = kind in _MESSAGE_KINDS and self._message is not None
        if len(part.held) < 2 or unclear or kind not in _PREFIXES or self._current is not None:
            return b""
        return self._announce(part)

    def _announce(self, part: _OpenPart) -> bytes:
        """Begins the item of a part that is not complete."""
        start, kind = part.start, part.start.kind
        own = start.item or item_id(_PREFIXES[kind], self._reply_id, self._items)
        if kind == "tool_call":
            item = _CALL % (string(own), string(start.id or ""), string(start.name or ""))
        else:
            item = _BEGINNINGS["thinking" if kind == "thinking" else "text"] % string(own)
        closed = b"" if kind in _MESSAGE_KINDS else self._close_message()
        added = closed + self._added(own, item)
        if kind in _MESSAGE_KINDS:
            self._message = []
        part.announced, self._current = True, start.index
        return added + self._begin(kind) + b"".join(self._delta(kind, d) for d in part.held)

    def _write_waiting(self) -> bytes:
        self._current = None
        waiting, self._waiting = self._waiting, []
        return b"".join(self._on_end(event) for event in waiting)

    def _on_end(self, event: PartEnd) -> bytes:
        state = self._open.pop(event.index, None) or _OpenPart(PartStart(event.index, ""))
        part = event.part
        written = b""
        if not state.announced:
            beginning = self._begin_item(part)
            if beginning is None:
                return b""
            kind = part_kind(part)
            written = beginning + self._begin(kind)
            if state.held:
                written += self._delta(kind, "".join(state.held))
        elif not (in_message(part) and self._message):
            part = with_item_id(part, self._id)
            self._announced[event.index] = self._id
        return written + self._done(part)

    def _begin_item(self, part: Part) -> bytes | None:
        """The beginning of the item of a complete part; None if the part is not sent."""
        if in_message(part):
            if content_part(part) is None:
                return None
            if self._message is not None and goes_on(part):
                return b""
            closed, self._message = self._close_message(), []
            own = item_id("msg", self._reply_id, self._items)
            opening = message_opening("assistant", item_fields(part, own, b"in_progress")) + b"]}"
            return closed + self._added(_id_in(opening) or own, opening)
        item = single_item(part, self._reply_id, self._items)
        if item is None:
            return None
        own = _id_in(item) or item_id("it", self._reply_id, self._items)
        if isinstance(part, ToolCall):
            item = _CALL % (string(own), string(part.id), string(part.name))
        elif isinstance(part, Thinking):
            item = _BEGINNINGS["thinking"] % string(own)
        return self._close_message() + self._added(own, item)

    def _begin(self, kind: str) -> bytes:
        """The event between an item's beginning and its text."""
        if kind not in _PARTS:
            return b""
        name, part = _PARTS[kind]
        return self._event(f"response.{name}.added", self._place(kind) + b',"part":' + part)

    def _delta(self, kind: str, text: str) -> bytes:
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
        elif isinstance(part, Thinking):
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
        parts = list(reply.message.parts)
        for index, own_id in self._announced.items():
            if index < len(parts):
                parts[index] = with_item_id(parts[index], own_id)
        message = msgspec.structs.replace(reply.message, parts=tuple(parts))
        reply = msgspec.structs.replace(reply, message=message)
        status = write_stop(reply)[0]
        name = status if status in ("incomplete", "failed") else "completed"
        return self._event(f"response.{name}", b',"response":' + write_reply(reply))


def _id_in(item: bytes) -> str | None:
    return msgspec.json.decode(item, type=ItemHead).id
