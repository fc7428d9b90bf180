"""Anthropic's event stream, read.

Defined behaviour for what should not happen: an unknown event is passed over; a second
`message_start` says nothing new; content without a start gets one; an event after the end is passed
over; an end that never comes is a failure that carries what there is; one JSON body instead of
events is read as the whole answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec

from anaphora.canonical import dumps
from anaphora.errors import AnaphoraError, Parse, Transport
from anaphora.values import Event, Part, Reply, ToolCall
from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS, as_anaphora_error, reply_error
from anaphora.wire.replies import ReplyBuilder
from anaphora.wire.sse import EventDecoder
from anaphora.wire.unnamed import encoded, fields_by_tag, members_of, tag_of, take_unnamed

from .blocks import WIRE
from .failure import ErrorObject, from_object
from .incoming import read_block
from .reply import read_reply, read_stop
from .stream_late import BESIDE_DELTA, IN_DELTA, Late, with_late_fields
from .usage import read_usage

# Not `None`: msgspec takes a union with `Raw` to mean everything but it.
_NOTHING = msgspec.Raw(b"null")


class _Delta(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """More of a content block."""


class _TextDelta(_Delta, tag="text_delta", frozen=True):
    text: str


class _JsonDelta(_Delta, tag="input_json_delta", frozen=True):
    partial_json: str


class _ThinkingDelta(_Delta, tag="thinking_delta", frozen=True):
    thinking: str


class _SignatureDelta(_Delta, tag="signature_delta", frozen=True):
    signature: str


class _CitationsDelta(_Delta, tag="citations_delta", frozen=True):
    citation: msgspec.Raw


class _CompactionDelta(_Delta, tag="compaction_delta", frozen=True):
    content: str | None = None
    encrypted_content: str | None = None


class _Event(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """One event, as its data says it; the name before the data only repeats the type."""


class _BlockDelta(_Event, tag="content_block_delta", frozen=True):
    index: int
    delta: (
        _TextDelta
        | _JsonDelta
        | _ThinkingDelta
        | _SignatureDelta
        | _CitationsDelta
        | _CompactionDelta
    )


class _BlockStart(_Event, tag="content_block_start", frozen=True):
    index: int
    content_block: msgspec.Raw


class _BlockStop(_Event, tag="content_block_stop", frozen=True):
    index: int


class _Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stop_reason: str | None = None
    stop_sequence: str | None = None
    container: msgspec.Raw = _NOTHING
    stop_details: msgspec.Raw = _NOTHING


class _MessageDelta(_Event, tag="message_delta", frozen=True):
    delta: _Stop
    usage: msgspec.Raw = _NOTHING
    context_management: msgspec.Raw = _NOTHING
    input_transformations: msgspec.Raw = _NOTHING


class _MessageStart(_Event, tag="message_start", frozen=True):
    message: msgspec.Raw


class _MessageStop(_Event, tag="message_stop", frozen=True):
    pass


class _Error(_Event, tag="error", frozen=True):
    error: ErrorObject
    request_id: str | None = None


_Events = (
    _BlockDelta | _BlockStart | _BlockStop | _MessageDelta | _MessageStart | _MessageStop | _Error
)
_decode = msgspec.json.Decoder(_Events).decode


class _Typed(msgspec.Struct, frozen=True):
    type: str = ""


class _TypedDelta(msgspec.Struct, frozen=True):
    type: str = ""
    delta: _Typed = _Typed()


_typed = msgspec.json.Decoder(_TypedDelta).decode
_KNOWN = fields_by_tag(get_args(_Events))
_DELTAS = fields_by_tag(_Delta.__subclasses__())


#: What stands before the data of most events.
_DELTA_LEAD = b"event: content_block_delta\ndata: "
_DELTA_SIZE = len(_DELTA_LEAD)


class StreamReader:
    """Bytes in, events out. Call `close` when the connection ends."""

    def __init__(self, read_body: Callable[[bytes], Reply] = read_reply) -> None:
        self._sse = EventDecoder()
        self._read_body = read_body
        self._build = ReplyBuilder()
        self._usage: dict[str, Any] = {}
        self._late: dict[int, Late] = {}

    def feed(self, data: bytes) -> list[Event]:
        if data.startswith(_DELTA_LEAD) and data.endswith(b"\n\n") and self._sse.idle:
            # One event a piece, and mostly more text. (Several events are not one JSON value.)
            try:
                event = _decode(data[_DELTA_SIZE:])
                if type(event) is _BlockDelta and type(event.delta) is _TextDelta:
                    return [self._build.add_text(event.index, event.delta.text)]
            except (msgspec.DecodeError, UnicodeError, Parse):
                pass
        events: list[Event] = []
        build, said = self._build, self._build.add_text
        try:
            for payload in self._sse.feed_data(data):
                try:
                    event = _decode(payload)
                except DECODE_ERRORS as problem:
                    unusual = self._unusual(payload)
                    if unusual is None:
                        _pass_over(payload, problem)
                        continue
                    event = unusual
                if type(event) is _BlockDelta and type(delta := event.delta) is _TextDelta:
                    events.append(said(event.index, delta.text))
                elif not build.ended:
                    events += self._on(event)
        except (AnaphoraError, *DECODE_ERRORS) as problem:
            events += build.fail(as_anaphora_error(problem))
        return events

    def _unusual(self, payload: bytes) -> _Events | None:
        """An event with fields that have no name here: those of the answer are carried along, of
        others a notice tells. None when that is not what is wrong with it."""
        members = members_of(payload)
        kind = tag_of(members) if members is not None else ""
        if members is None or kind not in _KNOWN:
            return None
        beside, inner = take_unnamed(members, _KNOWN[kind]), {}
        delta = members_of(members["delta"]) if "delta" in members else None
        if delta is not None:
            known = _DELTAS.get(tag_of(delta), frozenset(_Stop.__struct_encode_fields__))
            inner = take_unnamed(delta, known)
            members["delta"] = msgspec.Raw(encoded(delta))
        if not (beside or inner):
            return None
        try:
            event: _Events = _decode(encoded(members))
        except DECODE_ERRORS:
            return None
        if isinstance(event, _MessageDelta):
            self._build.extras = with_late_fields(self._build.extras, beside | inner)
        else:
            self._build.note_dropped_fields(kind, [*beside, *inner])
        return event

    def _on(self, event: _Events) -> list[Event]:
        match event:
            case _BlockDelta():
                return self._on_delta(event)
            case _BlockStart():
                return self._on_block(event)
            case _BlockStop():
                return self._build.end(event.index)
            case _MessageStart():
                return self._on_start(event)
            case _MessageDelta():
                return self._on_message_delta(event)
            case _MessageStop():
                return self._build.finish()
            case _Error():
                return self._build.fail(from_object(event.error, 200))

    def close(self) -> list[Event]:
        """The connection ended. Without `message_stop` before it, that is a failure."""
        if self._build.ended:
            return []
        if self._sse.body is not None:
            return self._build.read_whole_body(bytes(self._sse.body), self._read_body)
        return self._build.fail(Transport("the stream ended before message_stop"))

    def _on_start(self, event: _MessageStart) -> list[Event]:
        fields = Fields(event.message, "stream.message")
        reply_id, model = fields.maybe("id", str) or "", fields.maybe("model", str) or ""
        usage = fields.raw("usage")
        for taken in ("type", "role", "content", "stop_reason", "stop_sequence"):
            fields.raw(taken)
        fields.drop_nulls()
        self._build.extras = fields.rest_for(WIRE)
        events = self._build.start(reply_id, model, self._build.extras)
        return events + (self._count(usage) if usage is not None else [])

    def _on_block(self, event: _BlockStart) -> list[Event]:
        index, build = event.index, self._build
        if index in build.open:
            raise Parse(f"part {index} begins twice", path="stream")
        fields = Fields(event.content_block, f"stream.content[{index}]")
        kind = fields.take("type", str)
        late = self._late[index] = Late(fields)
        first = ""
        if kind == "text":
            first = fields.maybe("text", str) or ""
            fields.raw("citations")
            events = build.begin(index, "text", late.text, extras=fields.rest_for(WIRE))
        elif kind == "tool_use":
            call_id, name = fields.take("id", str), fields.take("name", str)
            whole = (fields.raw("input") or b"{}").decode()
            rest = fields.rest_for(WIRE)

            def finish(said: str) -> Part:
                return ToolCall(call_id, name, said or whole, rest)

            events = build.begin(index, "tool_call", finish, id=call_id, name=name, extras=rest)
        elif kind == "thinking":
            first = fields.maybe("thinking", str) or ""
            late.signature = fields.maybe("signature", str) or ""
            events = build.begin(index, "thinking", late.thinking, extras=fields.rest_for(WIRE))
        else:
            events = self._on_unusual(event, kind)
        return events + (build.delta(index, first) if first else [])

    def _on_unusual(self, event: _BlockStart, kind: str) -> list[Event]:
        """A block that comes whole, or whose input follows in pieces as a tool call's does."""
        path = f"stream.content[{event.index}]"
        late = self._late[event.index]

        def finish(said: str) -> Part:
            block = late.whole(bytes(event.content_block), said, path)
            return read_block(msgspec.Raw(block), path, reply_error, (), [])

        tag = "thinking" if kind == "redacted_thinking" else "opaque"
        return self._build.begin(event.index, tag, finish)

    def _on_delta(self, event: _BlockDelta) -> list[Event]:
        delta, late = event.delta, self._late.get(event.index)
        match delta:
            case _TextDelta():
                return self._build.delta(event.index, delta.text)
            case _JsonDelta():
                return self._build.delta(event.index, delta.partial_json)
            case _ThinkingDelta():
                return self._build.delta(event.index, delta.thinking)
            case _SignatureDelta():
                if late is not None:
                    late.signature += delta.signature
            case _CitationsDelta():
                if late is not None:
                    late.citations.append(bytes(delta.citation))
            case _CompactionDelta():
                if late is not None:
                    late.get("content", delta.content)
                    late.get("encrypted_content", delta.encrypted_content)
        return []

    def _on_message_delta(self, event: _MessageDelta) -> list[Event]:
        build = self._build
        if event.delta.stop_reason is not None:
            build.stop_raw = event.delta.stop_reason
            build.stop = read_stop(build.stop_raw, event.delta.stop_sequence)
        build.stop_sequence = event.delta.stop_sequence
        late = {name: getattr(event.delta, name) for name in IN_DELTA}
        late |= {name: getattr(event, name) for name in BESIDE_DELTA}
        build.extras = with_late_fields(build.extras, late)
        return self._count(bytes(event.usage)) if event.usage is not _NOTHING else []

    def _count(self, raw: bytes) -> list[Event]:
        """Later counts overwrite earlier ones, field by field."""
        told = msgspec.json.decode(raw)
        if not isinstance(told, dict):
            raise Parse("usage is not an object", path="stream.usage")
        self._usage.update({name: value for name, value in told.items() if value is not None})
        return self._build.update_usage(read_usage(dumps(self._usage), "stream.usage"))


def _pass_over(payload: bytes, problem: Exception) -> None:
    """Events and deltas nobody knows are passed over; known ones that are broken are not."""
    try:
        told = _typed(payload)
    except DECODE_ERRORS:
        raise Parse(f"an event that cannot be read: {problem}", path="stream") from None
    new_delta = told.type == "content_block_delta" and told.delta.type not in _DELTAS
    if told.type in _KNOWN and not new_delta:
        raise Parse(f"{told.type}: {problem}", path="stream") from None
