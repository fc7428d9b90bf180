"""Writes replies and streams in the caller's wire.

The provider's bytes go to the app as they are where the delegation hands them out; everything else
is written from the reply or its events. What is known only after a stream's last event is in an SSE
comment behind it, or in the field `anaphora` of the last object of Gemini and Ollama.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from anaphora import wire as wires
from anaphora.daemon.calls.call import AppReply, StreamHead, StreamPiece
from anaphora.daemon.calls.steps.relay import WholeEvents
from anaphora.errors import AnaphoraError, Upstream
from anaphora.values import (
    Notice,
    Part,
    PartEnd,
    PartStart,
    Reply,
    ReplyEnd,
    ReplyFail,
    ReplyStart,
    Thinking,
    ToolCall,
)
from anaphora.wire.openai_chat.parse import reasoning_extras
from anaphora.wire.sse import EventDecoder

from .errors import as_upstream
from .headers import (
    notices_text,
    own_headers,
    provider_request_id,
    returned_headers,
    verdict_text,
)
from .part_order import BlockNumbers, PartOrder

_JSON = "application/json"
STREAM_TYPE = "text/event-stream; charset=utf-8"
_STREAM_TYPES = {"ollama": "application/x-ndjson"}
#: Streams without comments: what ends an object, and what the last one has.
_LAST_OBJECTS: dict[str, tuple[Any, ...]] = {
    "ollama": ((b"\n",), b'"done":true', b'"done": true'),
    "gemini": ((b"\r\n\r\n", b"\n\n"), b'"finishReason"'),
}
#: Wires whose parts follow each other in a stream, and those whose texts end with the reply.
_ORDERED = ("anthropic", "openai_responses")
_UNORDERED = ("openai_chat", "ollama")
#: How the ids of replies begin.
_IDS = {"anthropic": "msg_", "openai_chat": "chatcmpl-", "openai_responses": "resp_"}
#: Reasoning of another provider: Chat has a field for it that many hosts use, Anthropic's blocks
#: have a signature, which is empty, and an item of Responses gets an id that is known as ours.
_REASONING_FIELD = "reasoning_content"
_REASONING = {
    "anthropic": Thinking(signature="", provider="anthropic"),
    "openai_chat": Thinking(provider="openai_chat", extras=reasoning_extras(_REASONING_FIELD)),
    "openai_responses": Thinking(),
    "gemini": Thinking(provider="gemini"),
    "ollama": Thinking(provider="ollama"),
}
#: The wire whose results of tools may be found by the name of the tool.
_WITHOUT_CALL_IDS = "gemini"
_REPLY_TYPES = {"gemini": "application/json; charset=UTF-8"}


def write_reply(
    wire: str, reply: AppReply, notices: tuple[Notice, ...] = ()
) -> tuple[dict[str, str], bytes]:
    """Headers and body of a complete reply."""
    if reply.body is not None and reply.wire == wire:
        body = reply.body
    else:
        named = _named(reply.reply, wire, reply.request_id)
        if reply.wire != wire:
            parts = tuple(_translated(part, wire) for part in named.message.parts)
            message = msgspec.structs.replace(named.message, parts=parts)
            named = msgspec.structs.replace(named, message=message)
        body = wires.get(wire).write_reply(named, time.time())
    headers = returned_headers(reply.headers) if reply.wire == wire else {}
    headers["content-type"] = _REPLY_TYPES.get(wire, _JSON)
    headers |= own_headers(
        wire,
        reply.request_id,
        provider=reply.provider,
        notices=notices + reply.notices,
        verdict=reply.verdict,
        cost_usd=reply.cost_usd,
        provider_request_id=provider_request_id(reply.headers),
    )
    return headers, body


def stream_headers(
    wire: str, head: StreamHead, notices: tuple[Notice, ...], *, as_list: bool = False
) -> dict[str, str]:
    """Headers of a stream."""
    headers = returned_headers(head.headers) if head.wire == wire else {}
    headers["content-type"] = _JSON if as_list else _STREAM_TYPES.get(wire, STREAM_TYPE)
    headers["cache-control"] = "no-cache"
    return headers | own_headers(
        wire,
        head.request_id,
        provider=head.provider,
        notices=notices + head.notices,
        verdict=head.verdict,
        provider_request_id=provider_request_id(head.headers),
    )


def _named(value: Reply | ReplyStart, wire: str, request_id: str) -> Any:
    """A reply, or its beginning, with an id: Ollama gives none."""
    if value.id or wire not in _IDS:
        return value
    return msgspec.structs.replace(value, id=_IDS[wire] + request_id.removeprefix("req_"))


def _translated(part: Part, wire: str) -> Part:
    """A part of another provider's reply as one of the caller's wire. Reasoning is text without
    proof here: a signature, or an id of stored reasoning, is valid at its own provider only. A tool
    call has no id in Gemini: a client that is given one must send it back, and Google's own helper
    for results does not."""
    if isinstance(part, Thinking) and part.text:
        return msgspec.structs.replace(_REASONING[wire], text=part.text)
    if isinstance(part, ToolCall) and wire == _WITHOUT_CALL_IDS:
        return msgspec.structs.replace(part, id="")
    return part


class StreamBody:
    """The bytes of one stream. `asks_usage`: the caller of Chat asked for a chunk with the usage,
    which is not in the provider's bytes otherwise. `as_list`: a stream of Gemini without `alt=sse`
    is a JSON list."""

    def __init__(
        self, wire: str, head: StreamHead, *, asks_usage: bool = True, as_list: bool = False
    ) -> None:
        self._wire = wire
        self._request_id = head.request_id
        self._known = head.notices
        self._same_wire = head.wire == wire
        self._passes = head.passes_bytes and self._same_wire
        self._write_event: Callable[[Any], bytes] | None = None
        """Where bytes do not pass, or an error has to be written."""
        self._ended = False
        ordered = wire in _ORDERED and head.wire in _UNORDERED
        self._order = PartOrder() if ordered else None
        self._filter: _UsageChunks | _LastObject | _JsonList | None = None
        if wire == "openai_chat" and not asks_usage and not self._passes:
            self._filter = _UsageChunks()
        elif as_list:
            self._filter = _JsonList()
        elif wire in _LAST_OBJECTS:
            self._filter = _LastObject(*_LAST_OBJECTS[wire])

    def feed(self, piece: StreamPiece) -> bytes:
        if self._passes and piece.data is not None:
            data = piece.data
            for event in piece.events:
                if isinstance(event, ReplyFail):
                    self._ended = True
        elif self._passes:
            # The connection broke: the provider sent nothing that says so.
            data = b"".join(self._write(e) for e in piece.events if isinstance(e, ReplyFail))
        else:
            data = b"".join(map(self._write, piece.events))
        return data if self._filter is None else self._filter.feed(data)

    def fail(self, problem: AnaphoraError) -> bytes:
        """An error in the middle of a stream."""
        if self._ended:
            return b""
        error = as_upstream(problem, self._wire)
        code = error.code if self._same_wire else _own_code(self._wire, error)
        event = ReplyFail(type(error).__name__, str(error), code)
        data = self._write(event)
        return data if self._filter is None else self._filter.feed(data)

    def finish(self, reply: AppReply | None) -> bytes:
        """What follows the last piece."""
        fields = {} if reply is None else self._late_fields(reply)
        if self._filter is not None:
            return self._filter.finish(fields)
        return _comment(fields)

    def _write(self, event: Any) -> bytes:
        self._ended = self._ended or isinstance(event, ReplyFail)
        if isinstance(event, ReplyStart):
            event = _named(event, self._wire, self._request_id)
            if event.created is None:
                event = msgspec.structs.replace(event, created=time.time())
        elif isinstance(event, PartEnd) and not self._same_wire:
            event = PartEnd(event.index, _translated(event.part, self._wire))
        elif isinstance(event, PartStart) and event.kind == "thinking" and not self._same_wire:
            name = _REASONING_FIELD if self._wire == "openai_chat" else None
            event = PartStart(event.index, "thinking", name=name)
        elif isinstance(event, ReplyEnd):
            event = ReplyEnd(_named(event.reply, self._wire, self._request_id))
        events = [event] if self._order is None else self._order.feed(event)
        write = self._write_event
        if write is None:
            write = wires.get(self._wire).writer().write
            if self._wire == "anthropic" and not self._same_wire:
                write = BlockNumbers(write).write
            self._write_event = write
        return b"".join(map(write, events))

    def _late_fields(self, reply: AppReply) -> dict[str, Any]:
        fields: dict[str, Any] = {"request_id": reply.request_id}
        if reply.cost_usd is not None:
            fields["cost_usd"] = f"{reply.cost_usd:f}"
        if reply.verdict is not None:
            fields["verdict"] = json.loads(verdict_text(reply.verdict))
        late = tuple(notice for notice in reply.notices if notice not in self._known)
        if late:
            fields["notices"] = json.loads(notices_text(late))
        return fields


def _own_code(wire: str, error: Upstream) -> str | None:
    """The code of an error from another wire: a stream of Anthropic has its type there."""
    if wire != "anthropic":
        return None
    return str(json.loads(wires.get(wire).write_error(error)[2])["error"]["type"])


def _comment(fields: Mapping[str, Any]) -> bytes:
    if not fields:
        return b""
    return b": anaphora " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


class _UsageChunks:
    """Removes the chunk of Chat that has the usage and nothing else."""

    def __init__(self) -> None:
        self._chunks = WholeEvents(hides_usage=True)

    def feed(self, data: bytes) -> bytes:
        return self._chunks.feed(data)

    def finish(self, fields: Mapping[str, Any]) -> bytes:
        return self._chunks.close() + _comment(fields)


class _LastObject:
    """Adds the late fields to the last JSON object of a stream, whose end has one of the marks:
    Ollama's last line, Gemini's last event. Google's SDK reads no comments."""

    def __init__(self, separators: tuple[bytes, ...], *marks: bytes) -> None:
        self._separators = separators
        self._longest = max(map(len, separators))
        self._marks = marks
        self._rest = bytearray()
        self._last = b""

    def feed(self, data: bytes) -> bytes:
        # Objects may be large and come in many pieces: only what is new is searched.
        start = max(0, len(self._rest) - self._longest)
        self._rest += data
        found = [each for each in self._separators if self._rest.find(each, start) >= 0]
        if not found:
            return b""
        separator = found[0]
        *objects, rest = bytes(self._rest).split(separator)
        self._rest = bytearray(rest)
        written = b""
        for each in objects:
            written, self._last = written + self._last, b""
            if any(mark in each for mark in self._marks):
                self._last = each + separator
            else:
                written += each + separator
        return written

    def finish(self, fields: Mapping[str, Any]) -> bytes:
        last = self._last.rstrip()
        if fields and last.endswith(b"}"):
            text = json.dumps(fields, separators=(",", ":")).encode()
            end = self._last[len(last) :]
            self._last = last[:-1] + b',"anaphora":' + text + b"}" + end
        return self._last + bytes(self._rest)


class _JsonList:
    """Events of an SSE stream as the elements of one JSON list."""

    def __init__(self) -> None:
        self._decoder = EventDecoder()
        self._empty = True

    def feed(self, data: bytes) -> bytes:
        written = b""
        for event in self._decoder.feed(data):
            written += (b"[" if self._empty else b",\n") + event
            self._empty = False
        return written

    def finish(self, _fields: Mapping[str, Any]) -> bytes:
        """A list has no place for the late fields."""
        return b"[]" if self._empty else b"]"
