"""Claude at Bedrock's InvokeModel: Anthropic's bodies in the envelope of AWS.

The path names the model and whether to stream, the body has an `anthropic_version` in place of the
header. Events of a stream are in frames of AWS's event stream, each with one event as base64; the
last one adds AWS's own counts. Errors are Bedrock's.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from anaphora.canonical import dumps, string
from anaphora.errors import InvalidRequest, Upstream
from anaphora.prompt import Call
from anaphora.rendered import Envelope
from anaphora.values import Event, Extras, Reply, ReplyEnd, ReplyFail
from anaphora.values.fields import FrozenExtras
from anaphora.wire.bedrock import errors as aws_errors
from anaphora.wire.bedrock.params import quoted_model, unquoted
from anaphora.wire.eventstream import FrameDecoder, encode_event, padded
from anaphora.wire.parts import own_members
from anaphora.wire.reading import (
    DECODE_ERRORS,
    Members,
    converts_errors,
    decode_members,
    encode_members,
    object_members,
    reply_error,
    request_error,
)
from anaphora.wire.replies import ReplyBuilder, whole_body_events
from anaphora.wire.sse import EventDecoder

from . import DialectCodec
from .requests import EncodedParams

_ONCE, _STREAM = "invoke", "invoke-with-response-stream"
_PATH = re.compile(r"/model/(.+)/(invoke|invoke-with-response-stream)\Z", re.DOTALL)
#: Accepted by every Claude; the version of newer SDKs only by newer models.
_VERSION, _VERSION_FIELD = "bedrock-2023-05-31", "anthropic_version"
#: What AWS adds to the last event of a stream.
_METRICS = "amazon-bedrock-invocationMetrics"


class InvokeCodec(DialectCodec):
    """Anthropic's codec for InvokeModel."""

    def _envelope(
        self, envelope: Envelope, encoded: EncodedParams, last: Envelope | None
    ) -> Envelope:
        made = super()._envelope(envelope, encoded, None)
        if last is not None and last.plain is made.plain and last.cache_params == made.cache_params:
            return last
        return _invoked(made)

    @converts_errors(request_error)
    def parse(self, body: bytes, path: str = "", first: int = 0) -> Call:
        members = object_members(body, "$", request_error)
        if members.get(_VERSION_FIELD) == Raw(string(_VERSION)):
            del members[_VERSION_FIELD]
        return super().parse(encode_members(_named(members, path)), "", first)

    def reader(self, path: str = "") -> InvokeReader:  # type: ignore[override]
        return InvokeReader(super().reader(path), self)

    def writer(self) -> InvokeWriter:
        return InvokeWriter(super().writer())

    def read_error(
        self, status: int, headers: Mapping[str, str], body: bytes, now: Any = None
    ) -> Upstream:
        return aws_errors.read_error(status, headers, body, now)

    def write_error(self, error: Upstream) -> tuple[int, dict[str, str], bytes]:
        return aws_errors.write_error(error)


def _invoked(envelope: Envelope) -> Envelope:
    """Anthropic's envelope as that of InvokeModel."""
    head = object_members(envelope.head.rstrip(b",") + b"}", "$", request_error)
    tail = object_members(b"{" + envelope.tail.lstrip(b","), "$", request_error)
    model, stream = msgspec.json.decode(head.pop("model")), bytes(tail.pop("stream", b""))
    head.setdefault(_VERSION_FIELD, tail.pop(_VERSION_FIELD, Raw(string(_VERSION))))
    method = _STREAM if stream == b"true" else _ONCE
    closing = encode_members(tail)[1:]
    return msgspec.structs.replace(
        envelope,
        path=f"/model/{quoted_model(model)}/{method}",
        headers=tuple(each for each in envelope.headers if each[0] != "anthropic-version"),
        head=encode_members(head)[:-1] + b",",
        tail=closing if closing == b"}" else b"," + closing,
    )


def _named(members: Members, path: str) -> Members:
    """The members of a body with the model and the stream that the path names."""
    if not path:
        return members
    found = _PATH.search(unquoted(path))
    if found is None:
        reason = f"is neither /model/…/{_ONCE} nor /model/…/{_STREAM}: no request of this wire"
        raise InvalidRequest(reason, path="path")
    model: Members = {"model": Raw(string(found[1]))}
    named = model | members | model  # the path decides
    if found[2] == _STREAM:
        named["stream"] = Raw(b"true")
    return named


# ── Streams ──────────────────────────────────────────────────────────────────────────────────────


class _Chunk(msgspec.Struct, frozen=True):
    bytes: str = ""


_chunk = msgspec.json.Decoder(_Chunk).decode
#: JSON has line breaks only between values; in a line of server-sent events they would end it.
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")


class InvokeReader:
    """Anthropic's stream reader, fed with the events in AWS's frames."""

    def __init__(self, inner: Any, codec: InvokeCodec) -> None:
        self._inner = inner
        self._codec = codec
        self._frames = FrameDecoder()
        self._failure = ReplyBuilder()
        self._metrics: Raw | None = None
        self._partial: Reply | None = None
        self._ended = False

    def feed(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        for frame in self._frames.feed(data):
            if frame.headers.get(":message-type", "event") != "event":
                events += self._fail(aws_errors.read_exception(*frame))
                break
            try:
                event = base64.b64decode(_chunk(frame.payload).bytes, validate=True)
                if _METRICS.encode() in event:
                    event = self._without_metrics(event)
            except (binascii.Error, *DECODE_ERRORS):
                events += self._fail(reply_error("a chunk cannot be read", "stream"))
                break
            if not event:
                continue
            line = event.translate(_ONE_LINE)
            events += self._seen(self._inner.feed(b"data: " + line + b"\n\n"))
        if self._frames.problem is not None:
            events += self._fail(self._frames.problem)
        return events

    def close(self) -> list[Event]:
        if self._ended:
            return []
        body = self._frames.body
        if body is not None:
            return whole_body_events(self._failure, bytes(body), self._codec.read_reply)
        return self._seen(self._inner.close())

    def _fail(self, problem: Exception) -> list[Event]:
        """End the reply with an error of AWS's, and the parts so far."""
        if self._ended:
            return []
        (failure,) = self._failure.fail(problem)[-1:]
        events = self._seen(self._inner.close())
        assert isinstance(failure, ReplyFail)
        partial = getattr(events[-1], "partial", None) if events else None
        return [*events[:-1], msgspec.structs.replace(failure, partial=partial)]

    def _without_metrics(self, event: bytes) -> bytes:
        members = decode_members(event)
        self._metrics = members.pop(_METRICS, None)
        return encode_members(members)

    def _seen(self, events: list[Event]) -> list[Event]:
        if events and isinstance(events[-1], ReplyEnd | ReplyFail):
            self._ended = True
            end = events[-1]
            if isinstance(end, ReplyEnd) and self._metrics is not None:
                extras = _with_metrics(end.reply, self._metrics)
                end = ReplyEnd(msgspec.structs.replace(end.reply, extras=extras))
                return [*events[:-1], end]
        return events


def _with_metrics(reply: Reply, metrics: Raw) -> Extras:
    own = own_members(reply.extras, "anthropic")
    own[_METRICS] = metrics
    return FrozenExtras({**(reply.extras or {}), "anthropic": encode_members(own).decode()})


class InvokeWriter:
    """Anthropic's stream writer, with each event in a frame."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._events = EventDecoder()

    def write(self, event: Event) -> bytes:
        if isinstance(event, ReplyFail):
            return aws_errors.write_failure(event)
        payloads = self._events.feed(self._inner.write(event))
        return b"".join(map(_framed, payloads))


def _framed(event: bytes) -> bytes:
    payload = dumps({"bytes": base64.b64encode(event).decode()})
    return encode_event("chunk", padded(payload))
