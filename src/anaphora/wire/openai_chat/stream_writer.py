"""Chat's event stream, written."""

from __future__ import annotations

import msgspec

from anaphora.canonical import string
from anaphora.values import (
    Event,
    Opaque,
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
    Usage,
    UsageUpdate,
)
from anaphora.wire.fields import Fields
from anaphora.wire.openai_failure import write_failure
from anaphora.wire.sse import encode_event

from .assistant import IN_CONTENT, reasoning_field, thinking_part
from .parts import MESSAGE_FIELDS, OTHER_CALL, WIRE, extra_members, members_of
from .reply import more_choices, write_stop
from .usage import write_usage

_FIELDS = {"text": "content", "refusal": "refusal"}

#: Stands for the field of reasoning that is told as parts of the content.
_AS_PARTS = ""


class StreamWriter:
    """Events in, bytes out: the stream OpenAI would send.

    What only shows at a part's end (reasoning of an unknown field, what is carried along) is
    written then. What Chat has no field for is left out.
    """

    def __init__(self) -> None:
        self._head, self._date, self._model = b"", b"0", b""
        """What every chunk begins with, up to its choices."""
        self._usage = Usage()
        self._fields: dict[int, str] = {}
        """The delta's field that each open part is told in,"""
        self._calls: dict[int, int] = {}
        """or its number among the tool calls."""
        self._told: set[int] = set()

    def write(self, event: Event) -> bytes:
        if isinstance(event, ReplyStart):
            self._head = b'{"id":%b,"object":"chat.completion.chunk","created":' % string(event.id)
            self._date = b"%d" % (event.created or 0)
            self._model = b',"model":%b,"choices":[' % string(event.model)
            return self._delta(b'"role":"assistant","content":""')
        if isinstance(event, PartStart):
            return self._begin(event)
        if isinstance(event, PartDelta):
            return self._more(event.index, event.delta)
        if isinstance(event, PartEnd):
            return self._end_part(event.index, event.part)
        if isinstance(event, UsageUpdate):
            self._usage = event.usage
            return b""
        if isinstance(event, ReplyEnd):
            return self._end(event.reply)
        assert isinstance(event, ReplyFail)
        return encode_event("", write_failure(event))

    def _begin(self, event: PartStart) -> bytes:
        if event.kind in _FIELDS:
            self._fields[event.index] = _FIELDS[event.kind]
        elif event.kind == "thinking" and event.name is not None:
            self._fields[event.index] = _AS_PARTS if event.name == IN_CONTENT else event.name
        elif event.kind == "tool_call":
            return self._begin_call(event.index, event.id or "", event.name or "")
        return b""

    def _begin_call(
        self, index: int, call_id: str, name: str, arguments: str = "", more: bytes = b""
    ) -> bytes:
        at = self._calls[index] = len(self._calls)
        function = b'{"name":%b,"arguments":%b}' % (string(name), string(arguments))
        return self._delta(
            b'"tool_calls":[{"index":%d,"id":%b,"type":"function","function":%b%b}]'
            % (at, string(call_id), function, b"," + more if more else b"")
        )

    def _more(self, index: int, text: str) -> bytes:
        if index in self._calls:
            function = b'{"arguments":' + string(text) + b"}"
            return self._call(index, b'"function":' + function)
        field = self._fields.get(index)
        if field is None:
            return b""
        self._told.add(index)
        if field == _AS_PARTS:
            said = b'[{"type":"text","text":' + string(text) + b"}]"
            return self._delta(b'"content":[{"type":"thinking","thinking":' + said + b"}]")
        return self._delta(string(field) + b":" + string(text))

    def _end_part(self, index: int, part: Part) -> bytes:
        """What was not yet told of a part, now that it is whole."""
        if isinstance(part, ToolCall):
            own = extra_members(part.extras)
            more = _unnumbered(b"{" + own + b"}") if own else b""
            if index not in self._calls:
                return self._begin_call(index, part.id, part.name, part.arguments, more)
            return self._call(index, more) if more else b""
        if isinstance(part, Opaque):
            return self._carried(part)
        if index in self._told:
            if isinstance(part, Thinking) and self._fields[index] == _AS_PARTS:
                return self._beside_thinking(part)
            return b""
        if isinstance(part, Thinking):
            field = reasoning_field(part)
            if field == IN_CONTENT:
                return self._delta(b'"content":[' + thinking_part(part) + b"]")
            return self._delta(string(field) + b":" + string(part.text)) if field else b""
        if isinstance(part, Text | Refusal) and part.text:
            field = "content" if isinstance(part, Text) else "refusal"
            return self._delta(string(field) + b":" + string(part.text))
        return b""

    def _beside_thinking(self, part: Thinking) -> bytes:
        """What reasoning says beside its text, once that is told."""
        fields = Fields(b"{" + extra_members(part.extras) + b"}", f"extras.{WIRE}")
        for name in ("field", "host", "thinking"):
            fields.raw(name)
        rest = fields.rest()
        if not rest:
            return b""
        return self._delta(b'"content":[{"type":"thinking","thinking":[],' + rest + b"}]")

    def _carried(self, part: Opaque) -> bytes:
        if part.provider != WIRE:
            return b""
        if part.kind == MESSAGE_FIELDS:
            fields = members_of(part.json, "json")
            return self._delta(fields) if fields else b""
        if part.kind == OTHER_CALL:
            place = -1 - len(self._calls)
            self._calls[place] = len(self._calls)
            return self._call(place, _unnumbered(part.json.encode()))
        return self._delta(b'"content":[' + part.json.encode() + b"]")

    def _call(self, index: int, members: bytes) -> bytes:
        return self._delta(b'"tool_calls":[{"index":%d,%b}]' % (self._calls[index], members))

    def _end(self, reply: Reply) -> bytes:
        came = Fields(b"{" + extra_members(reply.extras) + b"}", f"extras.{WIRE}")
        beside = came.nested("choice")
        members = beside.rest() if beside is not None else b""
        written = b"".join(self._other(raw) for raw in more_choices(came))
        created = came.raw("created") or self._date
        last = _choice(0, b"", string(write_stop(reply)), members)
        written += self._chunk(last, came.rest(), created)
        usage = reply.usage if reply.usage != Usage() else self._usage
        if usage != Usage():
            written += self._chunk(b"", b'"usage":' + write_usage(usage), created)
        return written + encode_event("", b"[DONE]")

    def _other(self, raw: bytes) -> bytes:
        """A further choice, all at once."""
        choice = Fields(raw, f"extras.{WIRE}.choices")
        index, stop = choice.maybe("index", int) or 0, choice.raw("finish_reason") or b"null"
        message = choice.nested("message")
        delta = b""
        if message is not None:
            calls = message.maybe("tool_calls", list[msgspec.Raw]) or []
            numbered = [
                b'{"index":%d,%b}' % (at, _unnumbered(bytes(call))) for at, call in enumerate(calls)
            ]
            message.drop_nulls()
            delta = message.rest()
            if numbered:
                delta += b',"tool_calls":[' + b",".join(numbered) + b"]"
        return self._chunk(_choice(index, delta, stop, choice.rest()))

    def _delta(self, members: bytes) -> bytes:
        return self._chunk(_choice(0, members, b"null"))

    def _chunk(self, choices: bytes, more: bytes = b"", created: bytes = b"") -> bytes:
        head = self._head + (created or self._date) + self._model
        return encode_event("", head + choices + (b"]," + more if more else b"]") + b"}")


def _choice(index: int, delta: bytes, stop: bytes, beside: bytes = b"") -> bytes:
    rest = b"," + beside if beside else b""
    return b'{"index":%d,"delta":{%b},"finish_reason":%b%b}' % (index, delta, stop, rest)


def _unnumbered(call: bytes) -> bytes:
    """The members of a tool call, or of what came along with it, less the number some hosts give
    it: a stream has its own."""
    fields = Fields(call, "tool_calls")
    fields.raw("index")
    return fields.rest()
