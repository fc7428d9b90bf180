"""Anthropic's event stream, read.

Defined behaviour for what should not happen: an unknown event is passed over; a second
`message_start` says nothing new; content without a start gets one; an event after the end is passed
over; an end that never comes is a failure that carries what there is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from anaphora.canonical import dumps
from anaphora.errors import AnaphoraError, Parse, Transport
from anaphora.values import Event, Part, Text, Thinking, ToolCall
from anaphora.wire.building import ReplyBuilder
from anaphora.wire.fields import Fields, bad_answer
from anaphora.wire.sse import EventDecoder

from .blocks import WIRE
from .failure import ErrorObject, from_object
from .incoming import read_block
from .reply import read_stop
from .usage import read_usage

# Not `None`: msgspec takes a union with `Raw` to mean everything but it.
_NOTHING = msgspec.Raw(b"null")


class _Delta(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    citation: msgspec.Raw = _NOTHING


class _BlockDelta(msgspec.Struct, frozen=True):
    index: int
    delta: _Delta


class _BlockStart(msgspec.Struct, frozen=True):
    index: int
    content_block: msgspec.Raw


class _BlockStop(msgspec.Struct, frozen=True):
    index: int


class _Stop(msgspec.Struct, frozen=True):
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _MessageDelta(msgspec.Struct, frozen=True):
    delta: _Stop
    usage: msgspec.Raw = _NOTHING


class _MessageStart(msgspec.Struct, frozen=True):
    message: msgspec.Raw


class _Error(msgspec.Struct, frozen=True):
    error: ErrorObject


class _Typed(msgspec.Struct, frozen=True):
    type: str = ""


_typed = msgspec.json.Decoder(_Typed).decode


class _Late:
    """What a block gets after its text: a signature, citations; and the fields it began with."""

    __slots__ = ("citations", "fields", "signature")

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.signature = ""
        self.citations: list[bytes] = []

    def text(self, said: str) -> Text:
        extras = self.fields.rest()
        if self.citations:
            citations = b'"citations":[' + b",".join(self.citations) + b"]"
            extras = extras + b"," + citations if extras else citations
        return Text(said, {WIRE: (b"{" + extras + b"}").decode()} if extras else None)

    def thinking(self, said: str) -> Thinking:
        return Thinking(said, self.signature, provider=WIRE, extras=self.fields.rest_for(WIRE))


class StreamReader:
    """Bytes in, events out. Call `close` when the connection ends."""

    def __init__(self) -> None:
        self._sse = EventDecoder()
        self._build = ReplyBuilder()
        self._usage: dict[str, Any] = {}
        self._late: dict[int, _Late] = {}
        self._handlers: dict[str, tuple[Any, Callable[[Any], list[Event]]]] = {
            "content_block_delta": (_decoder(_BlockDelta), self._on_delta),
            "content_block_start": (_decoder(_BlockStart), self._on_block),
            "content_block_stop": (_decoder(_BlockStop), self._on_block_stop),
            "message_start": (_decoder(_MessageStart), self._on_start),
            "message_delta": (_decoder(_MessageDelta), self._on_message_delta),
            "message_stop": (_decoder(_Typed), self._on_stop),
            "error": (_decoder(_Error), self._on_error),
        }

    def feed(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        build = self._build
        try:
            for name, payload in self._sse.feed(data):
                if build.ended:
                    break
                handler = self._handlers.get(name or _type_of(payload))
                if handler is None:
                    continue
                decode, handle = handler
                try:
                    message = decode(payload)
                except (msgspec.DecodeError, UnicodeError) as problem:
                    raise Parse(f"{name}: {problem}", path="stream") from None
                events += handle(message)
        except AnaphoraError as problem:
            events += build.fail(problem)
        return events

    def close(self) -> list[Event]:
        """The connection ended. Without `message_stop` before it, that is a failure."""
        if self._build.ended:
            return []
        return self._build.fail(Transport("the stream ended before message_stop"))

    def _on_start(self, event: _MessageStart) -> list[Event]:
        fields = Fields(event.message, "stream.message")
        events = self._build.start(fields.maybe("id", str) or "", fields.maybe("model", str) or "")
        usage = fields.raw("usage")
        for taken in ("type", "role", "content", "stop_reason", "stop_sequence"):
            fields.raw(taken)
        fields.drop_nulls()
        self._build.extras = fields.rest_for(WIRE)
        return events + (self._count(usage) if usage is not None else [])

    def _on_block(self, event: _BlockStart) -> list[Event]:
        index, build = event.index, self._build
        fields = Fields(event.content_block, f"stream.content[{index}]")
        kind = fields.take("type", str)
        late = self._late[index] = _Late(fields)
        first = ""
        if kind == "text":
            first = fields.maybe("text", str) or ""
            fields.raw("citations")
            events = build.begin(index, "text", late.text)
        elif kind == "tool_use":
            call_id, name = fields.take("id", str), fields.take("name", str)
            whole = (fields.raw("input") or b"{}").decode()

            def finish(said: str) -> Part:
                return ToolCall(call_id, name, said or whole, fields.rest_for(WIRE))

            events = build.begin(index, "tool_call", finish, id=call_id, name=name)
        elif kind == "thinking":
            first = fields.maybe("thinking", str) or ""
            late.signature = fields.maybe("signature", str) or ""
            events = build.begin(index, "thinking", late.thinking)
        else:
            events = self._on_unusual(event, kind)
        return events + (build.delta(index, first) if first else [])

    def _on_unusual(self, event: _BlockStart, kind: str) -> list[Event]:
        """A block that comes whole, or whose input follows in pieces as a tool call's does."""
        path = f"stream.content[{event.index}]"

        def finish(said: str) -> Part:
            block = bytes(event.content_block)
            if said:
                fields = Fields(block, path)
                fields.raw("input")
                block = b"{" + fields.rest() + b',"input":' + said.encode() + b"}"
            return read_block(msgspec.Raw(block), path, bad_answer, (), [])

        tag = "thinking" if kind == "redacted_thinking" else "opaque"
        return self._build.begin(event.index, tag, finish)

    def _on_delta(self, event: _BlockDelta) -> list[Event]:
        delta = event.delta
        said = delta.text if delta.text is not None else delta.partial_json
        if said is None:
            said = delta.thinking
        if said is not None:
            return self._build.delta(event.index, said)
        late = self._late.get(event.index)
        if late is not None and delta.signature is not None:
            late.signature += delta.signature
        if late is not None and delta.citation is not _NOTHING:
            late.citations.append(bytes(delta.citation))
        return []

    def _on_block_stop(self, event: _BlockStop) -> list[Event]:
        return self._build.end(event.index)

    def _on_message_delta(self, event: _MessageDelta) -> list[Event]:
        build = self._build
        if event.delta.stop_reason is not None:
            build.stop_raw = event.delta.stop_reason
            build.stop = read_stop(build.stop_raw)
        build.stop_sequence = event.delta.stop_sequence
        return self._count(bytes(event.usage)) if event.usage is not _NOTHING else []

    def _on_stop(self, _: _Typed) -> list[Event]:
        return self._build.finish()

    def _on_error(self, event: _Error) -> list[Event]:
        return self._build.fail(from_object(event.error, 200))

    def _count(self, raw: bytes) -> list[Event]:
        """Later counts overwrite earlier ones, field by field."""
        told = msgspec.json.decode(raw)
        if not isinstance(told, dict):
            raise Parse("usage is not an object", path="stream.usage")
        self._usage.update({name: value for name, value in told.items() if value is not None})
        return self._build.count(read_usage(dumps(self._usage), "stream.usage"))


def _decoder(kind: type) -> Any:
    return msgspec.json.Decoder(kind).decode


def _type_of(payload: bytes) -> str:
    """Events without a name of their own say it in their data."""
    try:
        return _typed(payload).type
    except (msgspec.DecodeError, UnicodeError):
        return ""
