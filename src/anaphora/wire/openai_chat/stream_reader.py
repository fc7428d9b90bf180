"""Chat's event stream, read.

Defined behaviour for what should not happen: an unknown event is passed over; a chunk after the end
is passed over; `[DONE]` that never comes is no failure once a reason to stop was given, and is one
before; an error in the stream ends it with what there is. Only the first choice is told as it
comes; others are put together and carried along in the reply's extras. One JSON body instead of
events is read as the whole answer.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from anaphora.canonical import dumps, string
from anaphora.errors import AnaphoraError, Parse, Transport
from anaphora.values import Event, Reply, Usage
from anaphora.wire.openai_failure import ErrorObject, from_object
from anaphora.wire.reading import DECODE_ERRORS, as_anaphora_error
from anaphora.wire.sse import EventDecoder

from .parts import WIRE
from .reply import read_reply, read_stop, write_choice
from .stream_choice import NOTHING, ChoiceDelta, StreamedChoice
from .stream_rest import UnnamedOfChoice, take_apart
from .usage import read_usage

#: OpenAI makes at most that many choices.
_MOST_CHOICES = 128

_NULL = b"null"


class _Chunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str | None = None
    model: str | None = None
    choices: list[ChoiceDelta] | None = None
    usage: msgspec.Raw = NOTHING
    error: msgspec.Raw = NOTHING
    # What chunks repeat: it is read of the first and the last ones.
    object: msgspec.Raw = NOTHING
    created: msgspec.Raw = NOTHING
    system_fingerprint: msgspec.Raw = NOTHING
    service_tier: msgspec.Raw = NOTHING
    provider: msgspec.Raw = NOTHING
    obfuscation: msgspec.Raw = NOTHING


class _TextDelta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    content: str
    role: str | None = None


class _TextChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    delta: _TextDelta
    index: int = 0
    finish_reason: None = None
    native_finish_reason: None = None
    logprobs: None = None


class _MoreText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chunk that says more text and nothing else."""

    choices: list[_TextChoice]
    usage: None = None
    error: None = None
    id: msgspec.Raw = NOTHING
    model: msgspec.Raw = NOTHING
    object: msgspec.Raw = NOTHING
    created: msgspec.Raw = NOTHING
    system_fingerprint: msgspec.Raw = NOTHING
    service_tier: msgspec.Raw = NOTHING
    provider: msgspec.Raw = NOTHING
    obfuscation: msgspec.Raw = NOTHING


_chunk = msgspec.json.Decoder(_Chunk).decode
_more_text = msgspec.json.Decoder(_MoreText).decode
_error = msgspec.json.Decoder(ErrorObject | str).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_READ_HERE = ("id", "object", "model", "choices", "usage", "obfuscation", "error")


class StreamReader:
    """Bytes in, events out. Call `close` when the connection ends."""

    def __init__(self, read_body: Callable[[bytes], Reply] = read_reply) -> None:
        self._sse = EventDecoder()
        self._read_body = read_body
        self._answer = StreamedChoice()
        self._build = self._answer.build
        self._others: dict[int, StreamedChoice] = {}
        self._top: dict[str, bytes] = {}
        self._stopped = False

    def feed(self, data: bytes) -> list[Event]:
        build = self._build
        events: list[Event] = []
        try:
            for payload in self._sse.feed_data(data):
                place = self._answer.text_place
                if place is not None and not build.ended:
                    # Nearly every chunk is more text, and nothing else.
                    try:
                        (choice,) = _more_text(payload).choices
                    except (msgspec.DecodeError, UnicodeError, ValueError):
                        pass
                    else:
                        if not choice.index and (text := choice.delta.content):
                            events.append(build.add_text(place, text))
                            continue
                if payload and not build.ended:
                    events += self._done() if payload == b"[DONE]" else self._read(payload)
        except (AnaphoraError, *DECODE_ERRORS) as problem:
            events += build.fail(as_anaphora_error(problem))
        return events

    def close(self) -> list[Event]:
        """The connection ended. Without a reason to stop before it, that is a failure."""
        if self._build.ended:
            return []
        if self._stopped:
            return self._done()
        if self._sse.body is not None:
            return self._build.read_whole_body(bytes(self._sse.body), self._read_body)
        return self._build.fail(Transport("the stream ended before the answer did"))

    def _read(self, payload: bytes) -> list[Event]:
        unnamed: list[UnnamedOfChoice] = []
        try:
            try:
                chunk = _chunk(payload)
            except DECODE_ERRORS:
                bare, top, unnamed = take_apart(payload, _Chunk.__struct_fields__)
                chunk = _chunk(bare)
                self._top |= {name: bytes(raw) for name, raw in top.items()}
        except DECODE_ERRORS as problem:
            raise Parse(str(problem), path="stream") from None
        events: list[Event] = []
        build = self._build
        choices = chunk.choices
        if not build.started:
            # Azure tells what it thinks of the prompt before the answer has an id.
            self._keep(payload)
            if choices or chunk.id:
                events += build.start(chunk.id or "", chunk.model or "")
        for choice in choices or ():
            events += self._on_choice(choice, payload)
        for told in unnamed:
            self._carry(told)
        if chunk.usage is not NOTHING and (usage := bytes(chunk.usage)) != _NULL:
            self._keep(payload)
            events += build.update_usage(read_usage(usage, "stream.usage"))
        if chunk.error is not NOTHING and bytes(chunk.error) != _NULL:
            events += build.fail(_failure(chunk.error))
        return events

    def _carry(self, unnamed: UnnamedOfChoice) -> None:
        choice = self._choice(unnamed.index)
        if unnamed.beside:
            choice.keep({name: msgspec.json.decode(raw) for name, raw in unnamed.beside.items()})
        for place, (call, function) in enumerate(reversed(unnamed.calls)):
            choice.keep_of_call(place, call, function)
        self._build.note_dropped_fields("delta", unnamed.delta)

    def _on_choice(self, choice: ChoiceDelta, payload: bytes) -> list[Event]:
        told = self._choice(choice.index)
        events = told.add(choice)
        if choice.finish_reason is not None:
            told.build.stop_raw = choice.finish_reason
            told.build.stop = read_stop(choice.finish_reason)
            self._keep(payload)
        if choice.index:
            return []
        if choice.usage is not NOTHING and (usage := bytes(choice.usage)) != _NULL:
            events += self._build.update_usage(read_usage(usage, "stream.choices.usage"))
        self._stopped = self._stopped or choice.finish_reason is not None
        return events

    def _choice(self, index: int | None) -> StreamedChoice:
        if not index:
            return self._answer
        if index not in self._others and len(self._others) >= _MOST_CHOICES:
            raise Parse(f"more than {_MOST_CHOICES} choices", path="stream.choices")
        return self._others.setdefault(index, StreamedChoice())

    def _done(self) -> list[Event]:
        if not self._build.started:
            return self._build.fail(
                Parse("the stream ended without saying anything", path="stream")
            )
        events = self._answer.end_parts()
        if self._build.usage == Usage() and (counts := _counted_by_groq(self._top)):
            events += self._build.update_usage(read_usage(counts, "stream.x_groq.usage"))
        self._build.extras = self._extras()
        return events + self._build.finish()

    def _keep(self, payload: bytes) -> None:
        """Fields of the answer that have no name here. The first chunk and the last ones tell
        them; those in between only repeat them."""
        for name, raw in _fields(payload).items():
            if name not in _READ_HERE and (told := bytes(raw)) != _NULL:
                self._top[name] = told

    def _extras(self) -> dict[str, str] | None:
        top = dict(self._top)
        if self._answer.beside:
            top["choice"] = dumps(self._answer.beside)
        if self._others:
            top["choices"] = b"[" + b",".join(map(self._written, sorted(self._others))) + b"]"
        members = b",".join(string(name) + b":" + value for name, value in top.items())
        return {WIRE: (b"{" + members + b"}").decode()} if members else None

    def _written(self, index: int) -> bytes:
        """A further choice, as a single answer would hold it."""
        choice = self._others[index]
        choice.end_parts()
        beside = dumps(choice.beside) if choice.beside else None
        return write_choice(choice.build.reply(), index, beside)


class _Groq(msgspec.Struct, frozen=True):
    usage: msgspec.Raw = NOTHING


def _counted_by_groq(top: dict[str, bytes]) -> bytes | None:
    """Groq's own place for its counts, which it fills without being asked."""
    try:
        usage = bytes(msgspec.json.decode(top.get("x_groq", b"{}"), type=_Groq).usage)
    except DECODE_ERRORS:
        return None
    return None if usage == _NULL else usage


def _failure(raw: msgspec.Raw) -> AnaphoraError:
    try:
        error = _error(raw)
    except DECODE_ERRORS:
        error = ErrorObject()
    return from_object(ErrorObject(message=error) if isinstance(error, str) else error, 200)
