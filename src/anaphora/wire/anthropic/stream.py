"""Anthropic's event stream, read and written.

Reading defines what happens in invalid streams: an unknown event is ignored, as is a second
`message_start` and any event after the end; content without a start gets one; a missing end is a
failure that carries the parts so far; one JSON body instead of events is read as the whole reply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from anaphora.canonical import dumps, string
from anaphora.errors import AnaphoraError, Parse, Transport
from anaphora.values import (
    Event,
    Extras,
    Part,
    PartDelta,
    PartEnd,
    PartStart,
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
from anaphora.wire.reading import (
    DECODE_ERRORS,
    LenientDecoder,
    Members,
    OtherBlock,
    as_anaphora_error,
    decode_members,
    encode_members,
    extras_of,
    reply_error,
)
from anaphora.wire.replies import TEXT_LIMIT, ReplyBuilder
from anaphora.wire.sse import EventDecoder, encode_event

from .errors import error_of
from .parse import BlockReader
from .parts import encoder_for
from .reply import read_reply, read_stop, read_usage, write_stop, write_usage
from .types import (
    NULL,
    WIRE,
    BlockDeltaEvent,
    BlockStartEvent,
    BlockStopEvent,
    CitationsDelta,
    CompactionDelta,
    ContentBlock,
    ErrorEvent,
    JsonDelta,
    MessageDeltaEvent,
    MessageStartEvent,
    MessageStopEvent,
    PingEvent,
    SignatureDelta,
    StreamEvent,
    TextDelta,
    TextStart,
    ThinkingDelta,
    ToolUseStart,
)

#: Fields of a reply that a stream sends in its last delta, and those that it sends beside it.
_IN_DELTA = ("container", "stop_details")
_BESIDE_DELTA = ("context_management", "input_transformations")

#: What stands before the data of most events.
_DELTA_LEAD = b"event: content_block_delta\ndata: "
_DELTA_SIZE = len(_DELTA_LEAD)

_EVENTS = LenientDecoder[StreamEvent](StreamEvent)
_BLOCK = LenientDecoder[ContentBlock](ContentBlock)
_decode = _EVENTS.strict


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────


class _OpenBlock:
    """A block that has begun: its unknown members, and what later deltas bring besides text."""

    __slots__ = ("citations", "fields", "signature", "unknown")

    def __init__(self, unknown: Members) -> None:
        self.unknown = unknown
        self.signature = ""
        self.citations: list[bytes] = []
        self.fields: dict[str, str] = {}
        """Further members of an opaque block."""

    @property
    def extras(self) -> Extras | None:
        return extras_of(WIRE, self.unknown) if self.unknown else None

    def text(self, text: str) -> Text:
        if self.citations:
            self.unknown["citations"] = msgspec.Raw(b"[" + b",".join(self.citations) + b"]")
        return Text(text, self.extras)

    def thinking(self, text: str) -> Thinking:
        return Thinking(text, self.signature, provider=WIRE, extras=self.extras)

    def add(self, name: str, text: str | None) -> None:
        """More of one of the block's own members."""
        if not text:
            return
        self.fields[name] = self.fields.get(name, "") + text
        if len(self.fields[name]) > TEXT_LIMIT:
            raise Parse(f"{name} of more than {TEXT_LIMIT} characters", path="stream")

    def other(self, block: OtherBlock, text: str, index: int) -> Part:
        """A block as it began, with the input and members that followed."""
        members = dict(block.members)
        if text:
            members.pop("input", None)
            members["input"] = msgspec.Raw(text.encode())
        for name, value in {**self.fields, "signature": self.signature}.items():
            if value:
                members[name] = msgspec.Raw(string(value))
        path = f"stream.content[{index}]"
        whole, unknown = _BLOCK.decode(encode_members(members), path, reply_error)
        return BlockReader(path, reply_error).block(whole, unknown, ())


class StreamReader:
    """Bytes in, events out. Call `close` when the connection ends."""

    def __init__(self, read_body: Callable[[bytes], Reply] = read_reply) -> None:
        self._sse = EventDecoder()
        self._read_body = read_body
        self._build = ReplyBuilder()
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, _OpenBlock] = {}

    def feed(self, data: bytes) -> list[Event]:
        if data.startswith(_DELTA_LEAD) and data.endswith(b"\n\n") and self._sse.idle:
            # One event per read, and mostly more text. (Several events are not one JSON value.)
            try:
                only = _decode(data[_DELTA_SIZE:])
                if type(only) is BlockDeltaEvent and type(only.delta) is TextDelta:
                    return [self._build.add_text(only.index, only.delta.text)]
            except (msgspec.DecodeError, UnicodeError, Parse):
                pass
        events: list[Event] = []
        event: StreamEvent | OtherBlock
        build, add_text = self._build, self._build.add_text
        try:
            for payload in self._sse.feed_data(data):
                try:
                    event = _decode(payload)
                except DECODE_ERRORS:
                    event = self._unusual(payload)
                if type(event) is BlockDeltaEvent and type(delta := event.delta) is TextDelta:
                    events.append(add_text(event.index, delta.text))
                elif not build.ended:
                    events += self._on(event)
        except (AnaphoraError, *DECODE_ERRORS) as problem:
            events += build.fail(as_anaphora_error(problem))
        return events

    def close(self) -> list[Event]:
        """The connection ended. Without `message_stop` before it, that is a failure."""
        if self._build.ended:
            return []
        if self._sse.body is not None:
            return self._build.read_whole_body(bytes(self._sse.body), self._read_body)
        return self._build.fail(Transport("the stream ended before message_stop"))

    def _unusual(self, payload: bytes) -> StreamEvent | OtherBlock:
        """An event with unknown members: those of the reply become its extras, those of blocks stay
        with the block, and a notice names the others."""
        event, unknown = _EVENTS.separate(payload, "stream", reply_error)
        if unknown is None:
            return event
        if isinstance(event, MessageStartEvent):
            message = unknown.take("message")
            self._build.extras = None if message is None else message.extras(WIRE)
        elif isinstance(event, BlockStartEvent):
            block = unknown.take("content_block")
            self._blocks[event.index] = _OpenBlock(
                {} if block is None else block.remaining(nulls=True)
            )
        elif isinstance(event, MessageDeltaEvent):
            inner = unknown.take("delta")
            self._late_fields(unknown.remaining() | (inner.remaining() if inner else {}))
            return event
        inner = unknown.take("delta")
        names = [*unknown.members, *(inner.members if inner is not None else ())]
        if names:
            self._build.note_dropped_fields(_tag(event), names)
        return event

    def _on(self, event: StreamEvent | OtherBlock) -> list[Event]:
        match event:
            case BlockDeltaEvent():
                return self._on_delta(event)
            case BlockStartEvent():
                return self._on_block(event)
            case BlockStopEvent():
                return self._build.end(event.index)
            case MessageStartEvent():
                message = event.message
                started = self._build.start(
                    message.id or "", message.model or "", self._build.extras
                )
                return started + self._count(message.usage)
            case MessageDeltaEvent():
                return self._on_message_delta(event)
            case MessageStopEvent():
                return self._build.finish()
            case ErrorEvent():
                return self._build.fail(error_of(event.error, 200))
            case PingEvent() | OtherBlock():
                return []

    def _on_block(self, event: BlockStartEvent) -> list[Event]:
        index, build, start = event.index, self._build, event.content_block
        if index in build.open:
            raise Parse(f"part {index} begins twice", path="stream")
        block = self._blocks.setdefault(index, _OpenBlock({}))
        extras = block.extras
        first: str | None
        if isinstance(start, OtherBlock):
            other = start
            kind = "thinking" if start.tag == "redacted_thinking" else "opaque"
            return build.begin(index, kind, lambda text: block.other(other, text, index))
        if isinstance(start, ToolUseStart):
            call_id, name, whole = start.id, start.name, str(start.input, "utf-8")
            first = None

            def finish(text: str) -> Part:
                return ToolCall(call_id, name, text or whole, extras)

            events = build.begin(index, "tool_call", finish, id=call_id, name=name, extras=extras)
        elif isinstance(start, TextStart):
            first = start.text
            events = build.begin(index, "text", block.text, extras=extras)
        else:
            first, block.signature = start.thinking, start.signature or ""
            events = build.begin(index, "thinking", block.thinking, extras=extras)
        return events + (build.delta(index, first) if first else [])

    def _on_delta(self, event: BlockDeltaEvent) -> list[Event]:
        delta, block = event.delta, self._blocks.get(event.index)
        match delta:
            case TextDelta():
                return self._build.delta(event.index, delta.text)
            case JsonDelta():
                return self._build.delta(event.index, delta.partial_json)
            case ThinkingDelta():
                return self._build.delta(event.index, delta.thinking)
            case SignatureDelta() if block is not None:
                block.signature += delta.signature
            case CitationsDelta() if block is not None:
                block.citations.append(bytes(delta.citation))
            case CompactionDelta() if block is not None:
                block.add("content", delta.content)
                block.add("encrypted_content", delta.encrypted_content)
        return []

    def _on_message_delta(self, event: MessageDeltaEvent) -> list[Event]:
        build = self._build
        if event.delta.stop_reason is not None:
            build.stop_reason_raw = event.delta.stop_reason
            build.stop_reason = read_stop(build.stop_reason_raw, event.delta.stop_sequence)
        build.stop_sequence = event.delta.stop_sequence
        late = {name: getattr(event.delta, name) for name in _IN_DELTA}
        late |= {name: getattr(event, name) for name in _BESIDE_DELTA}
        self._late_fields(late)
        return self._count(event.usage)

    def _late_fields(self, fields: Members) -> None:
        """Adds members to the reply's extras."""
        late = {name: raw for name, raw in fields.items() if raw != NULL}
        if late:
            members = decode_members((self._build.extras or {}).get(WIRE, "{}"))
            self._build.extras = extras_of(WIRE, members | late)

    def _count(self, raw: msgspec.Raw) -> list[Event]:
        """Later counts overwrite earlier ones, field by field."""
        if raw == NULL:
            return []
        usage = msgspec.json.decode(raw)
        if not isinstance(usage, dict):
            raise Parse("usage is not an object", path="stream.usage")
        self._usage.update({name: value for name, value in usage.items() if value is not None})
        return self._build.update_usage(read_usage(dumps(self._usage), "stream.usage"))


def _tag(event: StreamEvent) -> str:
    return str(type(event).__struct_config__.tag)


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────

_DELTAS = {
    "text": (b"text_delta", b"text"),
    "tool_call": (b"input_json_delta", b"partial_json"),
    "thinking": (b"thinking_delta", b"thinking"),
}


class StreamWriter:
    """Events in, bytes out: the stream Anthropic would send.

    What is known only at a part's end (a redacted block, an opaque one) is written then.
    """

    def __init__(self) -> None:
        self._usage = Usage()
        self._waiting: ReplyStart | None = None
        self._first_fields: Members = {}
        """Extras of the reply that its first event has."""
        self._starts: dict[int, PartStart] = {}
        self._begun: set[int] = set()

    def write(self, event: Event) -> bytes:
        if isinstance(event, ReplyStart):
            # The counts for its first event follow it.
            self._waiting = event
            return b""
        if isinstance(event, UsageUpdate):
            self._usage = event.usage
            return self._start()
        return self._start() + self._written(event)

    def _written(self, event: Event) -> bytes:
        if isinstance(event, PartStart):
            self._starts[event.index] = event
            return self._begin(event) if event.kind in ("text", "tool_call") else b""
        if isinstance(event, PartDelta):
            return self._delta(event)
        if isinstance(event, PartEnd):
            return self._end_part(event)
        if isinstance(event, ReplyEnd):
            return self._end(event.reply)
        assert isinstance(event, ReplyFail)
        error = b'{"type":"error","error":{"type":%b,"message":%b}}' % (
            string(event.code or "api_error"),
            string(event.message),
        )
        return encode_event("error", error)

    def _start(self) -> bytes:
        event, self._waiting = self._waiting, None
        if event is None:
            return b""
        late = (*_IN_DELTA, *_BESIDE_DELTA)
        fields = _own_extras(event.extras)
        self._first_fields = {name: raw for name, raw in fields.items() if name not in late}
        return encode_event(
            "message_start",
            b'{"type":"message_start","message":{"id":'
            + string(event.id)
            + b',"type":"message","role":"assistant","model":'
            + string(event.model)
            + b',"content":[],"stop_reason":null,"stop_sequence":null,"usage":'
            + write_usage(self._usage)
            + _further(self._first_fields)
            + b"}}",
        )

    def _begin(self, event: PartStart) -> bytes:
        if event.kind == "text":
            block = b'{"type":"text","text":""'
        elif event.kind == "thinking":
            block = b'{"type":"thinking","thinking":"","signature":""'
        else:
            block = b'{"type":"tool_use","id":%b,"name":%b,"input":{}' % (
                string(event.id or ""),
                string(event.name or ""),
            )
        more = _own_extras(event.extras)
        more.pop("citations", None)  # they have deltas of their own
        return self._begin_with(event.index, block + _further(more) + b"}")

    def _begin_with(self, index: int, block: bytes) -> bytes:
        self._begun.add(index)
        return encode_event(
            "content_block_start",
            b'{"type":"content_block_start","index":%d,"content_block":%b}' % (index, block),
        )

    def _delta(self, event: PartDelta) -> bytes:
        start = self._starts.get(event.index) or PartStart(event.index, "text")
        if start.kind not in _DELTAS:
            return b""
        begin = b"" if event.index in self._begun else self._begin(start)
        name, field = _DELTAS[start.kind]
        delta = b'{"type":"%b","%b":%b}' % (name, field, string(event.delta))
        return begin + _block_delta(event.index, delta)

    def _end_part(self, event: PartEnd) -> bytes:
        index, part = event.index, event.part
        written = b""
        if index not in self._begun:
            if isinstance(part, Thinking) and part.signature is not None:
                written = self._begin(PartStart(index, "thinking", extras=part.extras))
            else:
                block = encoder_for(part, assistant=True)[2](part, [])
                if block is None:
                    return b""
                return self._begin_with(index, block) + _block_stop(index)
        if isinstance(part, Thinking) and part.signature is not None:
            signed = b'{"type":"signature_delta","signature":' + string(part.signature) + b"}"
            written += _block_delta(index, signed)
        if isinstance(part, Text) and part.extras is not None:
            citations = _own_extras(part.extras).get("citations", msgspec.Raw(b"[]"))
            for citation in msgspec.json.decode(citations, type=list[msgspec.Raw]):
                delta = b'{"type":"citations_delta","citation":%b}' % bytes(citation)
                written += _block_delta(index, delta)
        return written + _block_stop(index)

    def _end(self, reply: Reply) -> bytes:
        sequence = b"null" if reply.stop_sequence is None else string(reply.stop_sequence)
        fields = _own_extras(reply.extras)
        beside = {name: fields.pop(name) for name in _BESIDE_DELTA if name in fields}
        first = self._first_fields
        late = {n: raw for n, raw in fields.items() if n in _IN_DELTA or first.get(n) != raw}
        delta = (
            b'{"type":"message_delta","delta":{"stop_reason":'
            + string(write_stop(reply))
            + b',"stop_sequence":'
            + sequence
            + _further(late)
            + b'},"usage":'
            + write_usage(reply.usage)
            + _further(beside)
            + b"}"
        )
        stop = encode_event("message_stop", b'{"type":"message_stop"}')
        return encode_event("message_delta", delta) + stop


def _own_extras(extras: Extras | None) -> Members:
    """The extras of this wire, by member."""
    return {} if extras is None or WIRE not in extras else decode_members(extras[WIRE])


def _further(members: Members) -> bytes:
    """Each member with its comma."""
    return b"," + encode_members(members)[1:-1] if members else b""


def _block_delta(index: int, delta: bytes) -> bytes:
    return encode_event(
        "content_block_delta",
        b'{"type":"content_block_delta","index":%d,"delta":%b}' % (index, delta),
    )


def _block_stop(index: int) -> bytes:
    return encode_event("content_block_stop", b'{"type":"content_block_stop","index":%d}' % index)
