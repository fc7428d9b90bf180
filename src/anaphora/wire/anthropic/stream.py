"""Reader of Anthropic's event stream.

Deviations are handled as follows. Unknown events, a second `message_start` and events after the end
are ignored. Content without a start gets one. A missing `message_stop` is a failure only if no stop
reason came before it, and carries the parts so far. A JSON body in place of events is read as the
whole reply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from anaphora.canonical import string
from anaphora.errors import Parse
from anaphora.values import Event, Extras, Part, Reply, Text, Thinking, ToolCall
from anaphora.wire.lenient import LenientDecoder, OtherBlock
from anaphora.wire.reading import (
    DECODE_ERRORS,
    Members,
    decode_members,
    encode_members,
    extras_of,
    reply_error,
)
from anaphora.wire.replies import TEXT_LIMIT, EventReader, ReplyBuilder
from anaphora.wire.sse import DONE

from . import types
from .parse import BlockReader
from .reply import error_of, read_reply, read_stop, read_usage
from .types import WIRE, BlockDeltaEvent, JsonDelta, TextBlockDelta

_EVENTS = LenientDecoder[types.StreamEvent](types.StreamEvent)
_BLOCK = LenientDecoder[types.ContentBlock](types.ContentBlock)
_decode = _EVENTS.strict


class _OpenBlock:
    """A block that has begun: its unknown members, and the members of later deltas besides text."""

    __slots__ = ("citations", "fields", "unknown")

    def __init__(self, unknown: Members) -> None:
        self.unknown = unknown
        self.citations: list[bytes] = []
        self.fields: dict[str, str] = {}
        """The signature, and further members of an opaque block."""

    @property
    def extras(self) -> Extras | None:
        return extras_of(WIRE, self.unknown) if self.unknown else None

    def add(self, name: str, text: str | None) -> None:
        """Append to one of the block's own members."""
        if not text:
            return
        self.fields[name] = self.fields.get(name, "") + text
        if len(self.fields[name]) > TEXT_LIMIT:
            raise Parse(f"{name} of more than {TEXT_LIMIT} characters", path="stream")

    def text(self, text: str) -> Text:
        if self.citations:
            self.unknown["citations"] = msgspec.Raw(b"[" + b",".join(self.citations) + b"]")
        return Text(text, self.extras)

    def thinking(self, text: str) -> Thinking:
        signature = self.fields.get("signature", "")
        return Thinking(text, signature, provider=WIRE, extras=self.extras)

    def other(self, block: OtherBlock, text: str, index: int) -> Part:
        """The first form of a block, with the input and members that followed."""
        members = dict(block.members)
        if text:
            members.pop("input", None)
            members["input"] = msgspec.Raw(text.encode())
        members |= {name: msgspec.Raw(string(value)) for name, value in self.fields.items()}
        path = f"stream.content[{index}]"
        whole, unknown = _BLOCK.decode(encode_members(members), path, reply_error)
        return BlockReader(path, reply_error).block(whole, unknown, ())


class StreamReader(EventReader):
    """The events of Anthropic's stream."""

    unfinished = "the stream ended before message_stop"

    def __init__(
        self,
        path: str = "",  # noqa: ARG002
        read_body: Callable[[bytes], Reply] = read_reply,
    ) -> None:
        super().__init__(read_body, ReplyBuilder())
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, _OpenBlock] = {}

    def _read(self, payload: bytes, events: list[Event]) -> None:
        event: types.StreamEvent | OtherBlock
        try:
            event = _decode(payload)
        except DECODE_ERRORS:
            if payload.strip() == DONE:
                return
            event = self._unusual(payload)
        if type(event) is BlockDeltaEvent and type(delta := event.delta) is TextBlockDelta:
            events.append(self._build.add_text(event.index, delta.text))
        elif type(event) is BlockDeltaEvent and type(delta := event.delta) is JsonDelta:
            events.append(self._build.add_text(event.index, delta.partial_json))
        else:
            events += self._on(event)

    def _unusual(self, payload: bytes) -> types.StreamEvent | OtherBlock:
        """An event with unknown members: those of the reply become its extras, those of blocks stay
        with the block, and a notice names the others."""
        event, unknown = _EVENTS.separate(payload, "stream", reply_error)
        if unknown is None:
            return event
        build = self._build
        if isinstance(event, types.MessageStartEvent):
            message = unknown.take("message")
            build.extras = None if message is None else message.extras(WIRE)
        elif isinstance(event, types.BlockStartEvent):
            block = unknown.take("content_block")
            members = {} if block is None else block.remaining(nulls=True)
            self._blocks[event.index] = _OpenBlock(members)
        inner = unknown.take("delta")
        if isinstance(event, types.MessageDeltaEvent):
            late = (inner.remaining() if inner is not None else {}) | unknown.remaining()
            if late:
                known = decode_members((build.extras or {}).get(WIRE, "{}"))
                build.extras = extras_of(WIRE, known | late)
        elif names := [*unknown.members, *(inner.members if inner is not None else ())]:
            build.note_dropped_fields(str(type(event).__struct_config__.tag), names)
        return event

    def _on(self, event: types.StreamEvent | OtherBlock) -> list[Event]:
        build = self._build
        match event:
            case types.BlockDeltaEvent():
                return self._on_delta(event.index, event.delta)
            case types.BlockStartEvent():
                return self._on_block(event.index, event.content_block)
            case types.BlockStopEvent():
                return build.end(event.index)
            case types.MessageStartEvent(message):
                started = build.start(message.id or "", message.model or "", build.extras)
                return started + self._count(message.usage)
            case types.MessageDeltaEvent(delta):
                if delta.stop_reason is not None:
                    build.stop_reason_raw = delta.stop_reason
                    build.stop_reason = read_stop(delta.stop_reason, delta.stop_sequence)
                build.stop_sequence = delta.stop_sequence
                return self._count(event.usage)
            case types.MessageStopEvent():
                return build.finish()
            case types.ErrorEvent():
                return build.fail(error_of(event.error, 200))
            case types.PingEvent() | OtherBlock():
                return []

    def _on_block(self, index: int, start: types.BlockStart | OtherBlock) -> list[Event]:
        build = self._build
        if index in build.open:
            raise Parse(f"part {index} begins twice", path="stream")
        block = self._blocks.setdefault(index, _OpenBlock({}))
        extras = block.extras if block.unknown else None
        match start:
            case OtherBlock():
                kind = "thinking" if start.tag == "redacted_thinking" else "opaque"
                return build.begin(index, kind, lambda text: block.other(start, text, index))
            case types.ToolUseStart(call_id, name, arguments):
                whole = str(arguments, "utf-8")

                def finish(text: str) -> Part:
                    return ToolCall(call_id, name, text or whole, extras)

                return build.begin(index, "tool_call", finish, id=call_id, name=name, extras=extras)
            case types.TextStart(first):
                events = build.begin(index, "text", block.text, extras=extras)
            case types.ThinkingStart(first, signature):
                block.add("signature", signature)
                events = build.begin(index, "thinking", block.thinking, extras=extras)
        return events + (build.delta(index, first) if first else [])

    def _on_delta(self, index: int, delta: types.BlockDelta | OtherBlock) -> list[Event]:
        block = self._blocks.get(index)
        match delta:
            case types.JsonDelta(text) | types.ThinkingBlockDelta(text):
                return self._build.delta(index, text)
            case types.SignatureDelta() if block is not None:
                block.add("signature", delta.signature)
            case types.CitationsDelta() if block is not None:
                block.citations.append(bytes(delta.citation))
            case types.CompactionDelta() if block is not None:
                block.add("content", delta.content)
                block.add("encrypted_content", delta.encrypted_content)
        return []

    def _count(self, raw: msgspec.Raw) -> list[Event]:
        """Later counts overwrite earlier ones, field by field."""
        if raw == types.NULL:
            return []
        try:
            usage = msgspec.json.decode(raw)
        except DECODE_ERRORS:
            usage = None  # its reader says so in a notice
        if isinstance(usage, dict):
            for name, value in usage.items():
                # A negative count is invalid, and overwrites nothing.
                if value is not None and not (isinstance(value, int) and value < 0):
                    self._usage[name] = value
            raw = msgspec.Raw(msgspec.json.encode(self._usage))
        return self._build.read_usage(read_usage, bytes(raw), "stream.usage")
