"""Gemini's event stream, read: whole answers, each with a little more of it.

There is no last event: the answer is complete when the connection ends behind a reason to stop, and
broken when it ends without one. Unknown chunks are passed over, and so is everything after the end;
an error in the stream ends it with what there is. Asked without `alt=sse`, Gemini sends the chunks
as one JSON list; that is read when it is complete, and so is a whole answer in one object. Only the
first candidate is streamed; others are put together and carried along in the reply's
extras.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from anaphora.canonical import dumps, string
from anaphora.errors import AnaphoraError, Transport
from anaphora.values import Event, Reply
from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS, as_anaphora_error
from anaphora.wire.sse import EventDecoder

from .failure import ErrorObject, from_object
from .naming import WIRE, elements
from .reply import blocked, read_reply, read_stop, write_candidate, write_content
from .stream_candidate import Said, StreamedCandidate
from .usage import read_usage

#: Gemini makes at most eight; more than this is no answer.
_MOST_CANDIDATES = 128


class _Parts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    parts: list[Said]
    role: str | None = None


class _Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    content: _Parts
    index: Literal[0] = 0


class _MoreText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A chunk that says more text and nothing else."""

    candidates: list[_Candidate]
    usage_metadata: msgspec.Raw = msgspec.Raw(b"null")
    model_version: str | None = None
    response_id: str | None = None


_more_text = msgspec.json.Decoder(_MoreText).decode
_error = msgspec.json.Decoder(ErrorObject).decode
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class StreamReader:
    """Bytes in, events out. Call `close` when the connection ends."""

    def __init__(self, read_body: Callable[[bytes], Reply] = read_reply) -> None:
        self._sse = EventDecoder()
        self._read_body = read_body
        self._answer = StreamedCandidate()
        self._build = self._answer.build
        self._others: dict[int, StreamedCandidate] = {}
        self._top: dict[str, bytes] = {}
        self._usage = b""

    def feed(self, data: bytes) -> list[Event]:
        if self._build.ended:
            return []
        events: list[Event] = []
        try:
            for payload in self._sse.feed_data(data):
                if payload and not self._build.ended:
                    events += self._read(payload)
        except (AnaphoraError, *DECODE_ERRORS) as problem:
            events += self._build.fail(as_anaphora_error(problem))
        return events

    def close(self) -> list[Event]:
        """The connection ended. Without a reason to stop before it, that is a failure."""
        events: list[Event] = []
        try:
            if self._sse.body is not None and not self._build.ended:
                body = bytes(self._sse.body).lstrip()
                if body.startswith(b"{"):
                    return self._build.read_whole_body(body, self._read_body)
                for payload in _chunks(body):
                    if not self._build.ended:
                        events += self._read(payload)
            if self._build.ended:
                return events
            if self._answer.stop_raw is None:
                return events + self._build.fail(
                    Transport("the stream ended before the answer did")
                )
            return events + self._done()
        except (AnaphoraError, *DECODE_ERRORS) as problem:
            return events + self._build.fail(as_anaphora_error(problem))

    def _read(self, payload: bytes) -> list[Event]:
        if self._build.started:
            # Nearly every chunk is more text, and nothing else.
            try:
                usual = _more_text(payload)
                (candidate,) = usual.candidates
            except (*DECODE_ERRORS, ValueError):
                pass
            else:
                events = [e for said in candidate.content.parts for e in self._answer.say(said)]
                return events + self._count(bytes(usual.usage_metadata))
        return self._read_fields(Fields(payload, "stream"))

    def _count(self, usage: bytes) -> list[Event]:
        if usage in (self._usage, b"null"):
            return []
        self._usage = usage
        return list(self._build.update_usage(read_usage(usage, "stream.usageMetadata")))

    def _read_fields(self, chunk: Fields) -> list[Event]:
        """Any chunk, field by field."""
        chunk.drop_nulls()
        build = self._build
        events: list[Event] = []
        error = chunk.raw("error")
        candidates = elements(chunk, "candidates")
        reply_id, model = chunk.maybe("responseId", str), chunk.maybe("modelVersion", str)
        if not build.started and (candidates or reply_id):
            events += build.start(reply_id or "", model or "")
        for raw in candidates:
            events += self._on_candidate(Fields(raw, "stream.candidates"))
        events += self._count(chunk.raw("usageMetadata") or b"null")
        if (reason := blocked(chunk)) is not None and not candidates:
            self._answer.stop_raw = reason
            build.stop = "refusal"
        for name, value in msgspec.json.decode(chunk.whole(), type=dict[str, msgspec.Raw]).items():
            if self._top.get(name) != (told := bytes(value)):
                self._answer.count_extra(told)
                self._top[name] = told
        return events if error is None else events + build.fail(_failure(error))

    def _on_candidate(self, candidate: Fields) -> list[Event]:
        raw = candidate.raw("index") or b"0"
        if raw == b"0":
            return self._answer.add(candidate)
        if raw not in (b"%d" % index for index in range(1, _MOST_CANDIDATES)):
            raise candidate.fail(f"more than {_MOST_CANDIDATES} candidates", "index")
        self._others.setdefault(int(raw), StreamedCandidate()).add(candidate)
        return []

    def _done(self) -> list[Event]:
        events = self._answer.end()
        build, said = self._build, self._answer.stop_raw
        parts = build.reply().message.parts
        if parts or build.stop != "refusal":
            build.stop = read_stop(said, parts)
        build.stop_raw = said
        build.extras = self._extras()
        return events + build.finish()

    def _extras(self) -> dict[str, str] | None:
        top = dict(self._top)
        if beside := self._answer.beside:
            top["candidate"] = dumps(beside)
        if self._others:
            top["candidates"] = b"[" + b",".join(map(self._written, sorted(self._others))) + b"]"
        members = b",".join(string(name) + b":" + value for name, value in top.items())
        return {WIRE: (b"{" + members + b"}").decode()} if members else None

    def _written(self, index: int) -> bytes:
        """A further candidate, as a single answer would hold it."""
        told = self._others[index]
        told.end()
        told.build.stop_raw = told.stop_raw
        told.build.stop = read_stop(told.stop_raw, told.build.reply().message.parts)
        reply = told.build.reply()
        beside = dumps(told.beside)[1:-1]
        return write_candidate(reply, beside, write_content(reply.message), index)


def _chunks(body: bytes) -> list[bytes]:
    """The chunks of a stream that is one JSON list."""
    try:
        return [bytes(raw) for raw in _list(body)]
    except DECODE_ERRORS:
        raise Transport("the stream ended before the answer did") from None


def _failure(raw: bytes) -> AnaphoraError:
    try:
        return from_object(_error(raw), 200)
    except DECODE_ERRORS:
        return from_object(ErrorObject(), 200)
