"""OpenAI's event stream of a response, written."""

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

from .items import CLOSE_ITEM, goes_on, message_opening
from .output import (
    content_part,
    identified,
    in_message,
    item_fields,
    item_id,
    message_item,
    single_item,
)
from .reply import skeleton, write_reply, write_stop

_SPOKEN = ("text", "refusal")
#: Parts that may be announced before their end, and how the ids of their items begin.
_PREFIXES = {"text": "msg", "refusal": "msg", "thinking": "rs", "tool_call": "fc"}
#: How an item begins, when nothing of it is known but its id.
_BEGINNINGS = {
    "text": b'{"type":"message","id":%b,"status":"in_progress","role":"assistant","content":[]}',
    "thinking": b'{"type":"reasoning","id":%b,"summary":[]}',
}
_CALL = (
    b'{"type":"function_call","id":%b,"status":"in_progress","call_id":%b,"name":%b,"arguments":""}'
)

#: What the events of a part's deltas are called, by its kind.
_DELTAS = {
    "text": "response.output_text.delta",
    "refusal": "response.refusal.delta",
    "tool_call": "response.function_call_arguments.delta",
    "thinking": "response.reasoning_summary_text.delta",
}


class _Open:
    """A part that has begun."""

    __slots__ = ("announced", "held", "start")

    def __init__(self, start: PartStart) -> None:
        self.start = start
        self.held: list[str] = []
        self.announced = False


class StreamWriter:
    """Events in, bytes out: the stream OpenAI would send.

    An item keeps the id it was announced with. So a part is announced at its second delta, or at
    its end if that comes first: a whole answer keeps all its ids that way, and one that is still
    being made waits for one delta only. Text behind text waits for its end, since only that tells
    whether it begins a message of its own. Items do not overlap here: a part that is said while
    another is under way waits for that one's end.
    """

    def __init__(self) -> None:
        self._number = 0
        self._reply_id = ""
        self._items = 0
        """Items that were announced."""
        self._id, self._item = "", b""
        """The id of the last of them, and as members what an event about it says."""
        self._message: list[Part] | None = None
        """The parts of the message that is open."""
        self._open: dict[int, _Open] = {}
        self._under_way: int | None = None
        """The part that was announced and has not ended."""
        self._waiting: list[PartEnd] = []
        """Parts that ended meanwhile."""
        self._announced: dict[int, str] = {}
        """The ids that parts were announced with before their own were known."""

    def write(self, event: Event) -> bytes:
        if isinstance(event, ReplyStart):
            return self._start(event)
        if isinstance(event, PartStart):
            self._open[event.index] = _Open(event)
            if event.kind in _SPOKEN or self._under_way is not None:
                return b""
            return self._close_message()
        if isinstance(event, PartDelta):
            return self._on_delta(event)
        if isinstance(event, PartEnd):
            if self._under_way not in (None, event.index):
                self._waiting.append(event)
                return b""
            return self._on_end(event) + self._go_on()
        if isinstance(event, UsageUpdate):
            return b""  # the last event has the counts
        if isinstance(event, ReplyEnd):
            return self._go_on() + self._close_message() + self._end(event.reply)
        assert isinstance(event, ReplyFail)
        code = b"null" if event.code is None else string(event.code)
        told = b',"code":%b,"message":%b,"param":null' % (code, string(event.message))
        return self._close_message() + self._event("error", told)

    def _event(self, name: str, members: bytes) -> bytes:
        """One event. Each of its own members has its comma before it."""
        number, self._number = self._number, self._number + 1
        said = b'{"type":"%b","sequence_number":%d%b}' % (name.encode(), number, members)
        return encode_event(name, said)

    def _start(self, event: ReplyStart) -> bytes:
        self._reply_id = event.id
        told = b',"response":{"id":%b,"model":%b,"output":[],"incomplete_details":null,%b}' % (
            string(event.id),
            string(event.model),
            skeleton("in_progress", int(event.created or 0)),
        )
        return self._event("response.created", told) + self._event("response.in_progress", told)

    def _on_delta(self, event: PartDelta) -> bytes:
        part = self._open.get(event.index)
        if part is None:
            return b""
        if part.announced:
            return self._delta(part.start.kind, event.delta)
        part.held.append(event.delta)
        kind = part.start.kind
        unclear = kind in _SPOKEN and self._message is not None
        if len(part.held) < 2 or unclear or kind not in _PREFIXES:
            return b""
        if self._under_way is not None:
            return b""
        return self._announce(part)

    def _announce(self, part: _Open) -> bytes:
        """A part that goes on for longer: its item begins before all of it is known."""
        kind = part.start.kind
        start = part.start
        own = start.item or item_id(_PREFIXES[kind], self._reply_id, self._items)
        if kind == "tool_call":
            item = _CALL % (string(own), string(start.id or ""), string(start.name or ""))
        else:
            item = _BEGINNINGS["thinking" if kind == "thinking" else "text"] % string(own)
        closed = b"" if kind in _SPOKEN else self._close_message()
        added = closed + self._added(own, item)
        if kind in _SPOKEN:
            self._message = []
        part.announced, self._under_way = True, start.index
        return added + self._begin(kind) + b"".join(self._delta(kind, d) for d in part.held)

    def _go_on(self) -> bytes:
        """What waited for the part that has ended."""
        self._under_way = None
        waiting, self._waiting = self._waiting, []
        return b"".join(self._on_end(event) for event in waiting)

    def _on_end(self, event: PartEnd) -> bytes:
        part = self._open.pop(event.index, None) or _Open(PartStart(event.index, ""))
        said = event.part
        written = b""
        if not part.announced:
            beginning = self._known(said)
            if beginning is None:
                return b""
            kind = _kind(said)
            written = beginning + self._begin(kind)
            if part.held:
                written += self._delta(kind, "".join(part.held))
        elif not (in_message(said) and self._message):
            said = identified(said, self._id)
            self._announced[event.index] = self._id
        return written + self._done(said)

    def _known(self, said: Part) -> bytes | None:
        """The beginning of an item whose end is known; None when there is none."""
        if in_message(said):
            if content_part(said, []) is None:
                return None
            if self._message is not None and goes_on(said):
                return b""
            closed, self._message = self._close_message(), []
            made = item_id("msg", self._reply_id, self._items)
            fields = item_fields(said, made, b"in_progress")
            opening = message_opening("assistant", fields) + CLOSE_ITEM
            return closed + self._added(_id_in(opening) or made, opening)
        item = single_item(said, self._reply_id, self._items, [])
        if item is None:
            return None
        own = _id_in(item) or item_id("it", self._reply_id, self._items)
        if isinstance(said, ToolCall):
            item = _CALL % (string(own), string(said.id), string(said.name))
        elif isinstance(said, Thinking):
            item = _BEGINNINGS["thinking"] % string(own)
        return self._close_message() + self._added(own, item)

    def _begin(self, kind: str) -> bytes:
        """What comes between an item's beginning and its text."""
        if kind in _SPOKEN:
            part = b',"part":{"type":"output_text","text":"","annotations":[]}'
            if kind == "refusal":
                part = b',"part":{"type":"refusal","refusal":""}'
            return self._event("response.content_part.added", self._place(kind) + part)
        if kind == "thinking":
            told = self._place(kind) + b',"part":{"type":"summary_text","text":""}'
            return self._event("response.reasoning_summary_part.added", told)
        return b""

    def _delta(self, kind: str, text: str) -> bytes:
        name = _DELTAS.get(kind)
        if name is None:
            return b""
        told = self._place(kind) + b',"delta":' + string(text)
        return self._event(name, told + b',"logprobs":[]' if kind == "text" else told)

    def _done(self, said: Part) -> bytes:
        """The end of a part, and of its item if that is all of it."""
        place = self._place(_kind(said))
        if in_message(said):
            assert self._message is not None
            part = place + b',"part":' + (content_part(said, []) or b"null")
            written = self._text_done(said, place)
            self._message.append(said)
            return written + self._event("response.content_part.done", part)
        written = b""
        if isinstance(said, ToolCall):
            told = b',"name":%b,"arguments":%b' % (string(said.name), string(said.arguments))
            written = self._event("response.function_call_arguments.done", place + told)
        elif isinstance(said, Thinking):
            text = string(said.text)
            whole = place + b',"part":{"type":"summary_text","text":' + text + b"}"
            text_done = place + b',"text":' + text
            written = self._event("response.reasoning_summary_text.done", text_done)
            written += self._event("response.reasoning_summary_part.done", whole)
        item = single_item(said, self._reply_id, self._items - 1, [])
        return written + self._item_done(item or b"null")

    def _text_done(self, said: Part, place: bytes) -> bytes:
        if isinstance(said, Text):
            told = place + b',"text":' + string(said.text) + b',"logprobs":[]'
            return self._event("response.output_text.done", told)
        if isinstance(said, Refusal):
            told = place + b',"refusal":' + string(said.text)
            return self._event("response.refusal.done", told)
        return b""

    def _close_message(self) -> bytes:
        parts, self._message = self._message, None
        if not parts:
            return b""
        return self._item_done(message_item(parts, self._id, []) or b"null")

    def _added(self, own_id: str, item: bytes) -> bytes:
        at, self._items, self._id = self._items, self._items + 1, own_id
        self._item = b',"output_index":%d,"item_id":%b' % (at, string(own_id))
        told = b',"output_index":%d,"item":%b' % (at, item)
        return self._event("response.output_item.added", told)

    def _item_done(self, item: bytes) -> bytes:
        told = b',"output_index":%d,"item":%b' % (self._items - 1, item)
        return self._event("response.output_item.done", told)

    def _place(self, kind: str) -> bytes:
        """Which item, and which part of it, an event is about, as members."""
        if kind == "tool_call":
            return self._item
        if kind == "thinking":
            return self._item + b',"summary_index":0'
        return self._item + b',"content_index":%d' % len(self._message or ())

    def _end(self, reply: Reply) -> bytes:
        parts = list(reply.message.parts)
        for at, own_id in self._announced.items():
            if at < len(parts):
                parts[at] = identified(parts[at], own_id)
        message = msgspec.structs.replace(reply.message, parts=tuple(parts))
        reply = msgspec.structs.replace(reply, message=message)
        status = write_stop(reply)[0]
        name = status if status in ("incomplete", "failed") else "completed"
        return self._event(f"response.{name}", b',"response":' + write_reply(reply))


class _Identified(msgspec.Struct, frozen=True):
    id: str | None = None


def _id_in(item: bytes) -> str | None:
    return msgspec.json.decode(item, type=_Identified).id


def _kind(part: Part) -> str:
    if isinstance(part, Text | Refusal | Thinking):
        return type(part).__name__.lower()
    return "tool_call" if isinstance(part, ToolCall) else "opaque"
