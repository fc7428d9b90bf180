"""Writes replies as Anthropic would send them: whole, or as a stream of events."""

from __future__ import annotations

import msgspec

from anaphora.canonical import dumps, string
from anaphora.values import (
    Event,
    PartDelta,
    PartEnd,
    PartStart,
    Reply,
    ReplyFail,
    ReplyStart,
    Text,
    Thinking,
    Usage,
    UsageUpdate,
)
from anaphora.wire.parts import following, merged, own_members, own_stop, own_usage
from anaphora.wire.reading import Members
from anaphora.wire.replies import EventWriter
from anaphora.wire.sse import encode_event

from .parts import encoder_for
from .reply import STOPS, read_stop, read_usage
from .types import BESIDE_DELTA, IN_DELTA, WIRE

_STOP_REASONS = {stop: reason for reason, stop in STOPS.items()}
_DELTAS = {
    "text": (b"text_delta", b"text"),
    "tool_call": (b"input_json_delta", b"partial_json"),
    "thinking": (b"thinking_delta", b"thinking"),
}


def write_reply(reply: Reply, created: float | None = None) -> bytes:  # noqa: ARG001
    """The whole reply; this wire's replies have no date. Parts without a block are left out."""
    blocks = [encoder_for(part, assistant=True)[2](part, []) for part in reply.message.parts]
    content = b",".join(block for block in blocks if block is not None)
    message = _message(reply.id, reply.model, content, _stop(reply), _write_usage(reply.usage))
    return merged(message + b"}", reply.extras, WIRE)


def _message(reply_id: str, model: str, content: bytes, stop: bytes, usage: bytes) -> bytes:
    """The message object without its end."""
    return (
        b'{"id":%b,"type":"message","role":"assistant","model":%b,"content":[%b],%b,"usage":%b'
        % (string(reply_id), string(model), content, stop, usage)
    )


def _stop(reply: Reply) -> bytes:
    sequence = reply.stop_sequence
    own = own_stop(reply, lambda raw: read_stop(raw, sequence))
    reason = _STOP_REASONS.get(reply.stop_reason, "end_turn") if own is None else own
    named = b"null" if sequence is None else string(sequence)
    return b'"stop_reason":' + string(reason) + b',"stop_sequence":' + named


def _write_usage(usage: Usage) -> bytes:
    """The usage object of a reply: the provider's own if it has the same counts."""
    if (own := own_usage(usage, read_usage)) is not None:
        return own
    fields: dict[str, object] = {
        "input_tokens": usage.uncached or 0,
        "output_tokens": usage.output or 0,
    }
    if usage.read is not None:
        fields["cache_read_input_tokens"] = usage.read
    if usage.written is not None:
        fields["cache_creation_input_tokens"] = usage.written_total
        if "unsplit" not in usage.written:
            fields["cache_creation"] = {
                "ephemeral_5m_input_tokens": usage.written.get("5m", 0),
                "ephemeral_1h_input_tokens": usage.written.get("1h", 0),
            }
    if usage.reasoning is not None:
        fields["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return dumps(fields, path="usage")


class StreamWriter(EventWriter):
    """Events in, bytes out. Redacted and opaque blocks are written at the end of their part."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: ReplyStart | None = None
        self._first_fields: Members = {}
        """Extras of the reply that belong into its first event."""
        self._starts: dict[int, PartStart] = {}
        self._numbers: dict[int, int] = {}
        """The numbers of the blocks that have begun: a part that is not written takes none."""

    def write(self, event: Event) -> bytes:
        if isinstance(event, ReplyStart):
            # The counts for its first event follow it.
            self._waiting = event
            return b""
        if isinstance(event, UsageUpdate):
            self._usage = event.usage
            return self._begun()
        return self._begun() + super().write(event)

    def _begun(self) -> bytes:
        """The first event, if it is not written yet."""
        event, self._waiting = self._waiting, None
        if event is None:
            return b""
        fields = own_members(event.extras, WIRE)
        late = IN_DELTA + BESIDE_DELTA
        self._first_fields = {name: raw for name, raw in fields.items() if name not in late}
        stop = b'"stop_reason":null,"stop_sequence":null'
        message = _message(event.id, event.model, b"", stop, _write_usage(self._usage))
        end = following(self._first_fields) + b"}"
        return _event("message_start", b'"message":' + message + end)

    def _begin(self, event: PartStart) -> bytes:
        self._starts[event.index] = event
        return self._begin_block(event) if event.kind in ("text", "tool_call") else b""

    def _begin_block(self, event: PartStart) -> bytes:
        if event.kind == "text":
            block = b'{"type":"text","text":""'
        elif event.kind == "thinking":
            block = b'{"type":"thinking","thinking":"","signature":""'
        else:
            call_id, name = string(event.id or ""), string(event.name or "")
            block = b'{"type":"tool_use","id":%b,"name":%b,"input":{}' % (call_id, name)
        more = own_members(event.extras, WIRE)
        more.pop("citations", None)  # they have deltas of their own
        return self._begin_with(event.index, block + following(more) + b"}")

    def _begin_with(self, index: int, block: bytes) -> bytes:
        number = self._numbers[index] = len(self._numbers)
        return _event("content_block_start", b'"index":%d,"content_block":%b' % (number, block))

    def _delta(self, event: PartDelta) -> bytes:
        start = self._starts.get(event.index) or PartStart(event.index, "text")
        if start.kind not in _DELTAS:
            return b""
        begin = b"" if event.index in self._numbers else self._begin_block(start)
        number = self._numbers[event.index]
        return begin + _block_delta(number, *_DELTAS[start.kind], string(event.delta))

    def _end_part(self, event: PartEnd) -> bytes:
        index, part = event.index, event.part
        written = b""
        if isinstance(part, Thinking) and part.signature is not None:
            if index not in self._numbers:
                written = self._begin_block(PartStart(index, "thinking", extras=part.extras))
            signature = string(part.signature)
            written += _block_delta(
                self._numbers[index], b"signature_delta", b"signature", signature
            )
        elif index not in self._numbers:
            block = encoder_for(part, assistant=True)[2](part, [])
            if block is None:
                return b""
            written = self._begin_with(index, block)
            return written + _block_stop(self._numbers[index])
        number = self._numbers[index]
        if isinstance(part, Text) and part.extras is not None:
            citations = own_members(part.extras, WIRE).get("citations", msgspec.Raw(b"[]"))
            for citation in msgspec.json.decode(citations, type=list[msgspec.Raw]):
                written += _block_delta(number, b"citations_delta", b"citation", bytes(citation))
        return written + _block_stop(number)

    def _end(self, reply: Reply) -> bytes:
        fields = own_members(reply.extras, WIRE)
        beside = {name: fields.pop(name) for name in BESIDE_DELTA if name in fields}
        first = self._first_fields
        late = {n: raw for n, raw in fields.items() if n in IN_DELTA or first.get(n) != raw}
        delta, usage = _stop(reply) + following(late), _write_usage(reply.usage)
        end = b'"delta":{%b},"usage":%b%b' % (delta, usage, following(beside))
        return _event("message_delta", end) + encode_event(
            "message_stop", b'{"type":"message_stop"}'
        )

    def _fail(self, event: ReplyFail) -> bytes:
        code, message = string(event.code or "api_error"), string(event.message)
        return _event("error", b'"error":{"type":%b,"message":%b}' % (code, message))


def _event(kind: str, members: bytes) -> bytes:
    return encode_event(kind, b'{"type":"%b",%b}' % (kind.encode(), members))


def _block_delta(index: int, kind: bytes, field: bytes, value: bytes) -> bytes:
    delta = b'"index":%d,"delta":{"type":"%b","%b":%b}' % (index, kind, field, value)
    return _event("content_block_delta", delta)


def _block_stop(index: int) -> bytes:
    return _event("content_block_stop", b'"index":%d' % index)
