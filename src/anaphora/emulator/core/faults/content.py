"""Answers whose content is not what was promised."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from anaphora import wire
from anaphora.emulator.core.asked import JSON, NDJSON, SSE, Answer, Chunk
from anaphora.values import ReplyEnd, ReplyFail
from anaphora.wire import sse
from anaphora.wire.replies import reply_events

from .failing import failed, overflowed, refused
from .timing import place

#: How the texts begin that an answer says, in the words of all wires; then any text.
_SAID = (b'"text":"', b'"content":"', b'"delta":"', b'":"')

_Change: TypeAlias = Callable[[bytes], bytes]

#: An event that nobody has heard of, harmless in itself, as each wire could send one.
_UNKNOWN: dict[str, tuple[str, bytes]] = {
    "anthropic": ("emulator_unknown", b'{"type":"emulator_unknown","data":{}}'),
    "openai_responses": (
        "response.emulator_unknown",
        b'{"type":"response.emulator_unknown","sequence_number":0}',
    ),
    "openai_chat": (
        "",
        b'{"id":"","object":"emulator.unknown","created":0,"model":"","choices":[]}',
    ),
    "gemini": ("", b'{"emulatorUnknown":{}}'),
    "ollama": (
        "",
        b'{"model":"","created_at":"1970-01-01T00:00:00Z",'
        b'"message":{"role":"assistant","content":""},"done":false,"emulator_unknown":{}}',
    ),
}


def error_event(answer: Answer, after: int | None) -> Answer:
    """The stream breaks off with the provider's error; what is no stream fails outright."""
    if not answer.stream:
        return failed(answer, 500)
    code = "overloaded_error" if answer.wire == "anthropic" else None
    return broken_off(answer, after, ReplyFail("Overloaded", "Overloaded", code))


def overflow(answer: Answer, after: int | None) -> Answer:
    """The prompt is too long: refused outright, or in the stream behind so many events."""
    error = overflowed(answer)
    if after is None or not answer.stream:
        return refused(answer, error)
    kind = type(error).__name__
    return broken_off(answer, after, ReplyFail(kind, str(error), error.code))


def broken_off(answer: Answer, after: int | None, failure: ReplyFail) -> Answer:
    """The stream with the failure as its last event."""
    at = place(answer, after)
    told = wire.get(answer.wire).writer().write(failure)
    told = told.replace(b'"sequence_number":0', b'"sequence_number":%d' % at)
    if _is_array(answer):
        told = told.removeprefix(b"data: ").strip()
        told = (b",\n" if at else b"[") + told + b"]"
    return _with(answer, (*answer.chunks[:at], Chunk(0.0, told)))


def broken_json(answer: Answer, after: int | None) -> Answer:
    """One piece lacks its last bracket."""
    return _changed(answer, after, _unclosed)


def broken_utf8(answer: Answer, after: int | None) -> Answer:
    """One text holds bytes that no UTF-8 has."""
    return _changed(answer, after, _garbled)


def wrong_type(answer: Answer) -> Answer:
    headers = {**answer.headers, "content-type": "text/html; charset=utf-8"}
    return msgspec.structs.replace(answer, headers=headers)


def wrong_form(answer: Answer) -> Answer:
    """One JSON body for a stream request, an event stream for any other, as some gateways send."""
    codec = wire.get(answer.dialect or answer.wire)
    delay = answer.chunks[0].delay
    if not answer.stream:
        writer, events = codec.writer(), reply_events(codec.read_reply(answer.body))
        data = b"".join(map(writer.write, events))
        kind = NDJSON if answer.wire == "ollama" else SSE
    else:
        reader = codec.reader()
        end = [*reader.feed(answer.body), *reader.close()][-1]
        if not isinstance(end, ReplyEnd):
            return answer  # nothing to send whole
        data, kind = msgspec.json.format(codec.write_reply(end.reply), indent=2), JSON
    headers = {**answer.headers, "content-type": kind}
    chunks = (Chunk(delay, data),)
    return msgspec.structs.replace(answer, headers=headers, chunks=chunks, stream=not answer.stream)


def duplicated(answer: Answer, after: int | None) -> Answer:
    """One event of a stream comes twice; what is no stream has none."""
    if not answer.stream or not answer.chunks:
        return answer
    at = place(answer, after)
    again = Chunk(0.0, answer.chunks[at].data)
    if _is_array(answer):
        again = Chunk(0.0, b",\n" + again.data.lstrip(b"[,\n"))
    return _with(answer, (*answer.chunks[: at + 1], again, *answer.chunks[at + 1 :]))


def unknown(answer: Answer, after: int | None) -> Answer:
    """An event, or in a whole answer a field, that nobody has heard of."""
    if not answer.stream:
        body = answer.body
        if body[:1] != b"{":
            return answer
        more = b'{"emulator_unknown":{}' + (b"," if body[1:2] != b"}" else b"") + body[1:]
        return _with(answer, (Chunk(answer.chunks[0].delay, more),))
    at = max(1, place(answer, after))
    event = Chunk(0.0, _framed(answer, *_UNKNOWN[answer.wire]))
    return _with(answer, (*answer.chunks[:at], event, *answer.chunks[at:]))


def _framed(answer: Answer, name: str, data: bytes) -> bytes:
    """An event as the stream tells its own."""
    if answer.headers.get("content-type") == NDJSON:
        return data + b"\n"
    return b",\n" + data if _is_array(answer) else sse.encode_event(name, data)


def _is_array(answer: Answer) -> bool:
    """Gemini's stream without events is one JSON array."""
    return answer.stream and answer.headers.get("content-type") not in (SSE, NDJSON)


def _changed(answer: Answer, after: int | None, change: _Change) -> Answer:
    """With one piece changed: the one behind so many, or the next that can be."""
    chunks = list(answer.chunks)
    start = place(answer, after)
    for at in (*range(start, len(chunks)), *range(start)):
        data = change(chunks[at].data)
        if data != chunks[at].data:
            chunks[at] = Chunk(chunks[at].delay, data)
            break
    return _with(answer, tuple(chunks))


def _unclosed(data: bytes) -> bytes:
    at = data.rfind(b"}")
    return data if at < 0 else data[:at] + data[at + 1 :]


def _garbled(data: bytes) -> bytes:
    """In what is said rather than in what stands around it: clients pass over the rest."""
    starts = (data.find(start) + len(start) for start in _SAID if start in data)
    at = next(starts, None)
    return data if at is None else data[:at] + b"\xff\xfe" + data[at:]


def _with(answer: Answer, chunks: tuple[Chunk, ...]) -> Answer:
    return msgspec.structs.replace(answer, chunks=chunks)
