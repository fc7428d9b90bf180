"""Anthropic's event stream, written."""

from __future__ import annotations

import msgspec

from anaphora.canonical import string
from anaphora.values import (
    Event,
    Extras,
    PartDelta,
    PartEnd,
    PartStart,
    Reply,
    ReplyEnd,
    ReplyFail,
    ReplyStart,
    Text,
    Thinking,
    Usage,
    UsageUpdate,
)
from anaphora.wire.fields import Fields
from anaphora.wire.sse import encode_event

from .blocks import WIRE, block_for
from .reply import write_stop
from .stream_late import BESIDE_DELTA, IN_DELTA
from .usage import write_usage

_DELTAS = {
    "text": (b"text_delta", b"text"),
    "tool_call": (b"input_json_delta", b"partial_json"),
    "thinking": (b"thinking_delta", b"thinking"),
}


class _Citations(msgspec.Struct, frozen=True):
    citations: list[msgspec.Raw] = []


class StreamWriter:
    """Events in, bytes out: the stream Anthropic would send.

    What only shows at a part's end (a redacted block, one that is carried along) is written then.
    """

    def __init__(self) -> None:
        self._usage = Usage()
        self._waiting: ReplyStart | None = None
        self._told: dict[str, bytes] = {}
        """Fields of the answer that its first event has."""
        self._starts: dict[int, PartStart] = {}
        self._begun: set[int] = set()

    def write(self, event: Event) -> bytes:
        if isinstance(event, ReplyStart):
            # The counts that belong into its first event come right behind it.
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
        return _fail(event)

    def _start(self) -> bytes:
        event, self._waiting = self._waiting, None
        if event is None:
            return b""
        own = _own_fields(event.extras)
        self._told = {n: raw for n, raw in own.items() if n not in (*IN_DELTA, *BESIDE_DELTA)}
        return encode_event(
            "message_start",
            b'{"type":"message_start","message":{"id":'
            + string(event.id)
            + b',"type":"message","role":"assistant","model":'
            + string(event.model)
            + b',"content":[],"stop_reason":null,"stop_sequence":null,"usage":'
            + write_usage(self._usage)
            + _members(self._told)
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
        more = _own_fields(event.extras)
        more.pop("citations", None)  # they have deltas of their own
        return self._begin_with(event.index, block + _members(more) + b"}")

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
        said = b'{"type":"%b","%b":%b}' % (name, field, string(event.delta))
        return begin + _block_delta(event.index, said)

    def _end_part(self, event: PartEnd) -> bytes:
        index, part = event.index, event.part
        written = b""
        if index not in self._begun:
            if isinstance(part, Thinking) and part.signature is not None:
                written = self._begin(PartStart(index, "thinking", extras=part.extras))
            else:
                block = block_for(part, spoken=True)[2](part, [])
                if block is None:
                    return b""
                return self._begin_with(index, block) + _block_stop(index)
        if isinstance(part, Thinking) and part.signature is not None:
            signed = b'{"type":"signature_delta","signature":' + string(part.signature) + b"}"
            written += _block_delta(index, signed)
        if isinstance(part, Text):
            written += b"".join(
                _block_delta(index, b'{"type":"citations_delta","citation":%b}' % citation)
                for citation in _citations(part)
            )
        return written + _block_stop(index)

    def _end(self, reply: Reply) -> bytes:
        stop_sequence = b"null" if reply.stop_sequence is None else string(reply.stop_sequence)
        came = _own_fields(reply.extras)
        beside = {name: came.pop(name) for name in BESIDE_DELTA if name in came}
        late = {n: raw for n, raw in came.items() if n in IN_DELTA or self._told.get(n) != raw}
        delta = (
            b'{"type":"message_delta","delta":{"stop_reason":'
            + string(write_stop(reply))
            + b',"stop_sequence":'
            + stop_sequence
            + _members(late)
            + b'},"usage":'
            + write_usage(reply.usage)
            + _members(beside)
            + b"}"
        )
        return encode_event("message_delta", delta) + encode_event(
            "message_stop", b'{"type":"message_stop"}'
        )


def _own_fields(extras: Extras | None) -> dict[str, bytes]:
    """The fields that came along for this wire."""
    if extras is None or WIRE not in extras:
        return {}
    return Fields(extras[WIRE], f"extras.{WIRE}").left()


def _members(fields: dict[str, bytes]) -> bytes:
    """Each field with its comma."""
    return b"".join(b"," + string(name) + b":" + raw for name, raw in fields.items())


def _block_delta(index: int, delta: bytes) -> bytes:
    return encode_event(
        "content_block_delta",
        b'{"type":"content_block_delta","index":%d,"delta":%b}' % (index, delta),
    )


def _block_stop(index: int) -> bytes:
    return encode_event("content_block_stop", b'{"type":"content_block_stop","index":%d}' % index)


def _citations(part: Text) -> list[bytes]:
    if part.extras is None or WIRE not in part.extras:
        return []
    told = msgspec.json.decode(part.extras[WIRE], type=_Citations)
    return [bytes(citation) for citation in told.citations]


def _fail(event: ReplyFail) -> bytes:
    error = b'{"type":"error","error":{"type":%b,"message":%b}}' % (
        string(event.code or "api_error"),
        string(event.message),
    )
    return encode_event("error", error)
