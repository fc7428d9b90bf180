"""Writer of Chat's event stream."""

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
from anaphora.wire.openai_errors import write_failure
from anaphora.wire.parts import bare_members, own_members
from anaphora.wire.reading import Members, decode_members, encode_members
from anaphora.wire.sse import encode_event

from .render import reasoning_field, thinking_part
from .reply import more_choices, write_stop, write_usage
from .types import IN_CONTENT, MESSAGE_FIELDS, NULL, OTHER_CALL, WIRE

_FIELDS = {"text": "content", "refusal": "refusal"}

#: Stands for the field of reasoning that is written as content parts.
_AS_PARTS = ""


class StreamWriter:
    """Turns events into the bytes that OpenAI would send.

    Content that is only known at the end of a part (reasoning of an unknown field, extras) is
    written then. Content that Chat has no field for is left out.
    """

    def __init__(self) -> None:
        self._head, self._date, self._model = b"", b"0", b""
        """The beginning of every chunk, up to its choices."""
        self._usage = Usage()
        self._fields: dict[int, str] = {}
        """The field of the delta that each open part is written to, by the part's index."""
        self._calls: dict[int, int] = {}
        """The number of each part among the tool calls."""
        self._written: set[int] = set()
        """Parts whose text has been written."""

    def write(self, event: Event) -> bytes:
        if isinstance(event, ReplyStart):
            self._head = b'{"id":%b,"object":"chat.completion.chunk","created":' % string(event.id)
            self._date = b"%d" % (event.created or 0)
            self._model = b',"model":%b,"choices":[' % string(event.model)
            return self._delta(b'"role":"assistant","content":""')
        if isinstance(event, PartStart):
            return self._begin(event)
        if isinstance(event, PartDelta):
            return self._text(event.index, event.delta)
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
        self, index: int, call_id: str, name: str, arguments: str = "", extras: bytes = b""
    ) -> bytes:
        number = self._calls[index] = len(self._calls)
        function = b'{"name":%b,"arguments":%b}' % (string(name), string(arguments))
        return self._delta(
            b'"tool_calls":[{"index":%d,"id":%b,"type":"function","function":%b%b}]'
            % (number, string(call_id), function, b"," + extras if extras else b"")
        )

    def _text(self, index: int, text: str) -> bytes:
        if index in self._calls:
            return self._call(index, b'"function":{"arguments":' + string(text) + b"}")
        field = self._fields.get(index)
        if field is None:
            return b""
        self._written.add(index)
        if field == _AS_PARTS:
            texts = b'[{"type":"text","text":' + string(text) + b"}]"
            return self._delta(b'"content":[{"type":"thinking","thinking":' + texts + b"}]")
        return self._delta(string(field) + b":" + string(text))

    def _end_part(self, index: int, part: Part) -> bytes:
        """The rest of a part that is complete now."""
        if isinstance(part, ToolCall):
            extras = _without_index(own_members(part.extras, WIRE))
            if index not in self._calls:
                return self._begin_call(index, part.id, part.name, part.arguments, extras)
            return self._call(index, extras) if extras else b""
        if isinstance(part, Opaque):
            return self._opaque(part)
        if index in self._written:
            if isinstance(part, Thinking) and self._fields[index] == _AS_PARTS:
                return self._thinking_fields(part)
            return b""
        if isinstance(part, Thinking):
            field = reasoning_field(part)
            if field == IN_CONTENT:
                return self._delta(b'"content":[' + thinking_part(part) + b"]")
            return self._delta(string(field) + b":" + string(part.text)) if field else b""
        if isinstance(part, Text | Refusal) and part.text:
            name = b'"content":' if isinstance(part, Text) else b'"refusal":'
            return self._delta(name + string(part.text))
        return b""

    def _thinking_fields(self, part: Thinking) -> bytes:
        """The fields of a reasoning part whose text is written."""
        extras = own_members(part.extras, WIRE)
        for name in ("field", "host", "thinking"):
            extras.pop(name, None)
        if not extras:
            return b""
        rest = encode_members(extras)[1:-1]
        return self._delta(b'"content":[{"type":"thinking","thinking":[],' + rest + b"}]")

    def _opaque(self, part: Opaque) -> bytes:
        if part.provider != WIRE:
            return b""
        if part.kind == MESSAGE_FIELDS:
            members = bare_members(part.json, "json")
            return self._delta(members) if members else b""
        if part.kind == OTHER_CALL:
            key = -1 - len(self._calls)
            self._calls[key] = len(self._calls)
            return self._call(key, _without_index(decode_members(part.json)))
        return self._delta(b'"content":[' + part.json.encode() + b"]")

    def _call(self, index: int, members: bytes) -> bytes:
        return self._delta(b'"tool_calls":[{"index":%d,%b}]' % (self._calls[index], members))

    def _end(self, reply: Reply) -> bytes:
        extras = own_members(reply.extras, WIRE)
        fields = bytes(extras.pop("choice", b"{}"))
        written = b"".join(self._further_choice(raw) for raw in more_choices(extras))
        created = bytes(extras.pop("created", b"")) or self._date
        members = encode_members(decode_members(fields))[1:-1]
        last = _choice(0, b"", string(write_stop(reply)), members)
        written += self._chunk(last, encode_members(extras)[1:-1], created)
        usage = reply.usage if reply.usage != Usage() else self._usage
        if usage != Usage():
            written += self._chunk(b"", b'"usage":' + write_usage(usage), created)
        return written + encode_event("", b"[DONE]")

    def _further_choice(self, raw: bytes) -> bytes:
        """A further choice in one chunk."""
        choice = decode_members(raw)
        index = msgspec.json.decode(choice.pop("index", b"0"), type=int)
        stop = bytes(choice.pop("finish_reason", NULL))
        message = decode_members(choice.pop("message", b"{}"))
        calls = msgspec.json.decode(message.pop("tool_calls", b"[]"), type=list[Members])
        delta = {name: raw for name, raw in message.items() if bytes(raw) != b"null"}
        if calls:
            numbered = [
                b'{"index":%d,%b}' % (number, _without_index(call))
                for number, call in enumerate(calls)
            ]
            delta["tool_calls"] = msgspec.Raw(b"[" + b",".join(numbered) + b"]")
        rest = encode_members(choice)[1:-1]
        return self._chunk(_choice(index, encode_members(delta)[1:-1], stop, rest))

    def _delta(self, members: bytes) -> bytes:
        return self._chunk(_choice(0, members, b"null"))

    def _chunk(self, choices: bytes, members: bytes = b"", created: bytes = b"") -> bytes:
        head = self._head + (created or self._date) + self._model
        return encode_event("", head + choices + (b"]," + members if members else b"]") + b"}")


def _choice(index: int, delta: bytes, stop: bytes, members: bytes = b"") -> bytes:
    rest = b"," + members if members else b""
    return b'{"index":%d,"delta":{%b},"finish_reason":%b%b}' % (index, delta, stop, rest)


def _without_index(call: Members) -> bytes:
    """The members of a tool call without its index: a stream numbers calls itself."""
    return encode_members({name: raw for name, raw in call.items() if name != "index"})[1:-1]
