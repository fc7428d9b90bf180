"""An answer in the provider's words: whole, or as a stream."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from anaphora import wire
from anaphora.canonical import dumps
from anaphora.values import (
    Event,
    PartDelta,
    PartEnd,
    PartStart,
    Refusal,
    Reply,
    ReplyEnd,
    ReplyStart,
    Text,
    Thinking,
    ToolCall,
    Usage,
    UsageUpdate,
)
from anaphora.wire import sse

from .asked import JSON, NDJSON, SSE, Answer, Chunk
from .options import Latency
from .replies.words import pieces

#: Arguments come in pieces of about so many characters.
_ARGUMENTS = 16


def say_whole(codec: wire.Wire, reply: Reply, spoken: str, latency: Latency) -> Answer:
    chunk = Chunk(latency.first, codec.write_reply(reply))
    kind = "application/json; charset=UTF-8" if spoken == "gemini" else JSON
    return Answer(headers={"content-type": kind}, chunks=(chunk,), wire=spoken)


def say_stream(
    codec: wire.Wire,
    reply: Reply,
    spoken: str,
    latency: Latency,
    at: float,
    counted: bool = True,
) -> Answer:
    """One chunk for each event that says something. Without `counted` no counts are told."""
    if not counted:
        reply = msgspec.structs.replace(reply, usage=Usage())
    writer = codec.writer()
    written = [writer.write(event) for event in events(reply, at)]
    said = [data for data in written if data]
    if spoken == "anthropic":
        said[0] = _diagnosed(said[0], reply)
        said.insert(1, sse.encode_event("ping", b'{"type":"ping"}'))
    # Several events may have been written at once.
    end = b"\n" if spoken == "ollama" else b"\n\n"
    pace = latency.pace
    chunks = [Chunk(pace, data + end) for data in b"".join(said).split(end) if data]
    chunks[0] = Chunk(latency.first, chunks[0].data)
    kind = NDJSON if spoken == "ollama" else SSE
    headers = {"content-type": kind, "cache-control": "no-cache"}
    return Answer(headers=headers, chunks=tuple(chunks), stream=True, wire=spoken)


def as_array(answer: Answer) -> Answer:
    """Gemini's stream when nobody asks for events: one JSON array, written bit by bit."""
    chunks = []
    for index, chunk in enumerate(answer.chunks):
        object_ = chunk.data.removeprefix(b"data: ").strip()
        chunks.append(Chunk(chunk.delay, (b",\n" if index else b"[") + object_))
    chunks.append(Chunk(0.0, b"]"))
    headers = {**answer.headers, "content-type": "application/json; charset=UTF-8"}
    return msgspec.structs.replace(answer, chunks=tuple(chunks), headers=headers)


def events(reply: Reply, at: float | None = None) -> Iterator[Event]:
    """A whole answer as the events of a stream that takes its time, begun at `at`."""
    yield ReplyStart(reply.id, reply.model, at, reply.extras)
    if reply.usage != Usage():
        # What the input costs is known from the start; of the output, that it has begun.
        yield UsageUpdate(msgspec.structs.replace(reply.usage, output=1, reasoning=None))
    for index, part in enumerate(reply.message.parts):
        if isinstance(part, ToolCall):
            yield PartStart(index, "tool_call", part.id, part.name, extras=part.extras)
            for start in range(0, len(part.arguments), _ARGUMENTS):
                yield PartDelta(index, part.arguments[start : start + _ARGUMENTS])
        elif isinstance(part, Text | Thinking | Refusal):
            kind = type(part).__name__.lower()
            yield PartStart(index, kind, name=_field(part), extras=part.extras)
            for piece in pieces(part.text):
                yield PartDelta(index, piece)
        else:
            yield PartStart(index, "opaque")
        yield PartEnd(index, part)
    yield ReplyEnd(reply)


def _field(part: Text | Thinking | Refusal) -> str | None:
    """The field of a message that Chat hosts tell reasoning in."""
    if not isinstance(part, Thinking) or part.extras is None or "openai_chat" not in part.extras:
        return None
    field = msgspec.json.decode(part.extras["openai_chat"]).get("field")
    return field if isinstance(field, str) else None


def _diagnosed(first: bytes, reply: Reply) -> bytes:
    """With the diagnosis where a stream tells it: in the message that begins it."""
    extras = msgspec.json.decode((reply.extras or {}).get("anthropic", "{}"))
    if "diagnostics" not in extras:
        return first
    told = b'"diagnostics":' + dumps(extras["diagnostics"]) + b',"stop_reason":null'
    return first.replace(b'"stop_reason":null', told, 1)
