"""Gemini's event stream, reader and writer: each chunk is a response with a little more content.

There is no last event: the reply is complete when the connection ends after a finish reason, and
broken when it ends without one. Unknown chunks are skipped, and so is everything after the end; an
error object ends the stream with what was read so far. Without `alt=sse` Gemini sends the chunks as
one JSON list; that is read when it is complete, and so is a whole response in one object. Only the
first candidate is streamed; others are assembled and kept in the reply's extras.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from anaphora.canonical import dumps, string
from anaphora.errors import AnaphoraError, Parse, Transport
from anaphora.values import (
    Event,
    Extras,
    Message,
    Opaque,
    Part,
    PartDelta,
    PartEnd,
    PartStart,
    Refusal,
    Reply,
    ReplyEnd,
    ReplyFail,
    ReplyStart,
    Text,
    Thinking,
    ToolCall,
    Usage,
    UsageUpdate,
)
from anaphora.wire.parts import extra_members
from anaphora.wire.reading import (
    DECODE_ERRORS,
    Members,
    as_anaphora_error,
    decode_elements,
    decode_members,
    decode_value,
    encode_members,
    extras_of,
    reply_error,
)
from anaphora.wire.replies import ARGUMENTS_LIMIT, TEXT_LIMIT, ReplyBuilder
from anaphora.wire.sse import EventDecoder, encode_event

from .errors import error_of, write_failure
from .parse import read_content, read_raw_part
from .parts import is_content_fields, open_content, write_parts
from .reply import (
    CANDIDATE,
    RESPONSE,
    block_reason,
    read_reply,
    read_stop,
    read_usage,
    write_candidate,
    write_content,
    write_identity,
    write_response,
)
from .types import CONTENT_FIELDS, OWN, WIRE, Candidate, elements

#: Gemini returns at most eight candidates; a response with more than this is rejected.
_MAX_CANDIDATES = 128
#: Fields whose lists grow from chunk to chunk, and may repeat entries.
_REPEATED = ("groundingMetadata", "citationMetadata", "urlContextMetadata")
#: Fields whose lists grow, where an entry may legitimately occur twice.
_GROWING = ("logprobsResult",)


class _TextPiece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    thought: bool = False
    thoughtSignature: str | None = None


class _TextContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    parts: list[_TextPiece]
    role: str | None = None


class _TextCandidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    content: _TextContent
    index: Literal[0] = 0


class _TextChunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chunk that holds text and nothing else, as nearly all do."""

    candidates: list[_TextCandidate]
    usageMetadata: msgspec.Raw = msgspec.Raw(b"null")
    modelVersion: str | None = None
    responseId: str | None = None


_text_chunk = msgspec.json.Decoder(_TextChunk).decode
_text_piece = msgspec.json.Decoder(_TextPiece).decode


class StreamReader:
    """Bytes in, events out. Call `close` when the connection ends."""

    def __init__(self, read_body: Callable[[bytes], Reply] = read_reply) -> None:
        self._sse = EventDecoder()
        self._read_body = read_body
        self._first = _Candidate()
        self._build = self._first.build
        self._others: dict[int, _Candidate] = {}
        self._top: Members = {}
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
        """The connection ended. Without a finish reason before it, that is a failure."""
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
            if self._first.stop_reason_raw is None:
                return events + self._build.fail(
                    Transport("the stream ended before the answer did")
                )
            return events + self._finish()
        except (AnaphoraError, *DECODE_ERRORS) as problem:
            return events + self._build.fail(as_anaphora_error(problem))

    def _read(self, payload: bytes) -> list[Event]:
        if self._build.started:
            try:
                chunk = _text_chunk(payload)
                (candidate,) = chunk.candidates
            except (*DECODE_ERRORS, ValueError):
                pass
            else:
                events = [e for part in candidate.content.parts for e in self._first.text(part)]
                return events + self._count(bytes(chunk.usageMetadata))
        return self._read_any(payload)

    def _count(self, usage: bytes) -> list[Event]:
        if usage in (self._usage, b"null"):
            return []
        self._usage = usage
        return list(self._build.update_usage(read_usage(usage, "stream.usageMetadata")))

    def _read_any(self, payload: bytes) -> list[Event]:
        chunk, unknown = RESPONSE.decode(payload, "stream", reply_error)
        rest = unknown.remaining() if unknown is not None else {}
        build = self._build
        events: list[Event] = []
        error = rest.pop("error", None)
        candidates = elements(chunk.candidates)
        if not build.started and (candidates or chunk.responseId):
            events += build.start(chunk.responseId or "", chunk.modelVersion or "")
        for raw in candidates:
            events += self._candidate(raw)
        events += self._count(bytes(chunk.usageMetadata))
        if (reason := block_reason(rest)) is not None and not candidates:
            self._first.stop_reason_raw = reason
            build.stop_reason = "refusal"
        for name, value in rest.items():
            if self._top.get(name) != value:
                self._first.count_extra(bytes(value))
                self._top[name] = value
        return events if error is None else events + build.fail(error_of(error))

    def _candidate(self, raw: msgspec.Raw) -> list[Event]:
        path = "stream.candidates"
        candidate, unknown = CANDIDATE.decode(raw, path, reply_error)
        beside = unknown.remaining() if unknown is not None else {}
        index = bytes(candidate.index)
        if index in (b"null", b"0"):
            return self._first.add(candidate, beside)
        if index not in (b"%d" % number for number in range(1, _MAX_CANDIDATES)):
            raise reply_error(f"more than {_MAX_CANDIDATES} candidates", f"{path}.index")
        self._others.setdefault(int(index), _Candidate()).add(candidate, beside)
        return []

    def _finish(self) -> list[Event]:
        events = self._first.end()
        build, stop_reason_raw = self._build, self._first.stop_reason_raw
        parts = build.reply().message.parts
        if parts or build.stop_reason != "refusal":
            build.stop_reason = read_stop(stop_reason_raw, parts)
        build.stop_reason_raw = stop_reason_raw
        build.extras = self._extras()
        return events + build.finish()

    def _extras(self) -> Extras | None:
        top = dict(self._top)
        if beside := self._first.beside:
            top["candidate"] = msgspec.Raw(dumps(beside))
        if self._others:
            others = [self._others[index].written(index) for index in sorted(self._others)]
            top["candidates"] = msgspec.Raw(b"[" + b",".join(others) + b"]")
        return extras_of(WIRE, top)


def _chunks(body: bytes) -> list[bytes]:
    """The chunks of a stream that is one JSON list."""
    try:
        return [bytes(raw) for raw in decode_elements(body)]
    except DECODE_ERRORS:
        raise Transport("the stream ended before the answer did") from None


# ── One candidate, assembled from its chunks ─────────────────────────────────────────────────────


class _OpenText:
    """A text or a thought that is not complete."""

    __slots__ = ("index", "signature", "thought")

    def __init__(self, index: int, thought: bool) -> None:
        self.index = index
        self.thought = thought
        self.signature: str | None = None

    def takes(self, piece: _TextPiece) -> bool:
        signature = piece.thoughtSignature
        signed_alike = signature is None or self.signature in (None, signature)
        return piece.thought == self.thought and signed_alike

    def finish(self, text: str) -> Part:
        if self.thought:
            return Thinking(text, self.signature, provider=WIRE)
        if self.signature is None:
            return Text(text)
        return Text(text, {WIRE: dumps({"thoughtSignature": self.signature}).decode()})


class _Candidate:
    """The parts of one candidate, and the fields beside them.

    A chunk holds whole parts, except that text comes in pieces: adjacent texts that are both
    thoughts, or both not, are one part. A signature may come with any piece of it.
    """

    def __init__(self) -> None:
        self.build = ReplyBuilder()
        self.stop_reason_raw: str | None = None
        self._beside: dict[str, list[Any]] = {}
        """Fields beside the content: grounding, ratings, log probabilities."""
        self._content: Members = {}
        """Unknown fields of the content."""
        self._open: _OpenText | None = None
        self._pending: tuple[int, _PartialCall] | None = None
        """A call whose arguments come in pieces, and its index."""
        self._count = 0
        self._extra_size = 0

    def add(self, candidate: Candidate, beside: Members) -> list[Event]:
        self.stop_reason_raw = candidate.finishReason or self.stop_reason_raw
        events: list[Event] = []
        if bytes(candidate.content) != b"null":
            path = "stream.candidates.content"
            _, parts, unknown = read_content(candidate.content, path, reply_error)
            for raw in parts:
                events += self._part(raw)
            if unknown is not None:
                self._content |= unknown.remaining()
        if beside:
            self._collect(encode_members(beside))
        return events

    def end(self) -> list[Event]:
        """The candidate is complete: its parts end, and unknown fields of its content come last."""
        events = self._end_open()
        if self._content:
            json = encode_members(self._content).decode()
            events += self._whole(Opaque(WIRE, CONTENT_FIELDS, json))
            self._content = {}
        return events

    def written(self, index: int) -> bytes:
        """The candidate as a single response would hold it."""
        self.end()
        self.build.stop_reason_raw = self.stop_reason_raw
        self.build.stop_reason = read_stop(self.stop_reason_raw, self.build.reply().message.parts)
        reply = self.build.reply()
        beside = decode_members(dumps(self.beside))
        return write_candidate(reply, beside, write_content(reply.message), index)

    @property
    def beside(self) -> dict[str, Any]:
        """The fields beside the content. The last value counts, except for fields that grow."""
        return {
            name: _joined(values, unique=name in _REPEATED)
            if name in (*_REPEATED, *_GROWING)
            else values[-1]
            for name, values in self._beside.items()
        }

    def count_extra(self, data: bytes) -> None:
        """Bounds what is kept beside the text."""
        self._extra_size += len(data)
        if self._extra_size > 2 * TEXT_LIMIT:
            raise Parse(f"more than {2 * TEXT_LIMIT} bytes beside the text", path="stream")

    def text(self, piece: _TextPiece) -> list[Event]:
        events: list[Event] = []
        if self._open is None or not self._open.takes(piece):
            if not piece.text and piece.thoughtSignature is None:
                return []
            events += self._end_open()
            self._open = _OpenText(self._next(), piece.thought)
            kind = "thinking" if piece.thought else "text"
            events += self.build.begin(self._open.index, kind, self._open.finish)
        if piece.thoughtSignature is not None:
            self._open.signature = piece.thoughtSignature
        if piece.text:
            events.append(self.build.add_text(self._open.index, piece.text))
        return events

    def _end_open(self) -> list[Event]:
        if self._pending is not None:
            index, arguments = self._pending
            whole = arguments.finish()
            events = self.build.delta(index, whole.arguments) + self.build.end(index)
            self._pending = None
            return events
        if self._open is None:
            return []
        index, self._open = self._open.index, None
        return self.build.end(index)

    def _part(self, raw: msgspec.Raw) -> list[Event]:
        try:
            return self.text(_text_piece(raw))
        except DECODE_ERRORS:
            place, path = self.build.id or None, "stream.parts"
            part = read_raw_part(raw, path, reply_error, place, self._count, {})
            return self._whole(part)

    def _whole(self, part: Part) -> list[Event]:
        """A part that came in one piece."""
        if self._pending is not None and isinstance(part, ToolCall):
            return self._more_arguments(part)
        events = self._end_open()
        index = self._next()
        if isinstance(part, ToolCall):
            return events + self._call(index, part)
        if isinstance(part, Text | Thinking):
            kind = type(part).__name__.lower()
            events += self.build.begin(index, kind, lambda _: part)
            return events + self.build.delta(index, part.text) + self.build.end(index)
        self.count_extra(msgspec.json.encode(part))
        return events + self.build.add_whole(index, str(msgspec.to_builtins(part)["type"]), part)

    def _call(self, index: int, call: ToolCall) -> list[Event]:
        events = self.build.begin(
            index, "tool_call", lambda _: self._called(call), id=call.id, name=call.name
        )
        if _partial_args(call) is not None:
            self._pending = (index, _PartialCall(call))
            return events + self._more_arguments(call)
        return events + self.build.delta(index, call.arguments) + self.build.end(index)

    def _more_arguments(self, call: ToolCall) -> list[Event]:
        """Arguments in pieces give one delta when they are complete. A call without pieces ends
        them."""
        assert self._pending is not None
        pieces = _partial_args(call)
        if pieces is None:
            return self._end_open() + (self._call(self._next(), call) if call.name else [])
        self._pending[1].add(pieces.partialArgs or ())
        return [] if pieces.willContinue else self._end_open()

    def _called(self, call: ToolCall) -> ToolCall:
        return call if self._pending is None else self._pending[1].finish()

    def _next(self) -> int:
        self._count += 1
        return self._count - 1

    def _collect(self, beside: bytes) -> None:
        self.count_extra(beside)
        for name, value in msgspec.json.decode(beside).items():
            values = self._beside.setdefault(name, [])
            if name not in (*_REPEATED, *_GROWING):
                values.clear()
            values.append(value)


def _joined(values: list[Any], *, unique: bool) -> Any:
    """Values that came in several chunks as one: objects by field, lists concatenated. `unique`
    drops list entries that are already there."""
    if all(isinstance(value, dict) for value in values):
        fields: dict[str, list[Any]] = {}
        for value in values:
            for name, item in value.items():
                fields.setdefault(name, []).append(item)
        return {name: _joined(items, unique=unique) for name, items in fields.items()}
    if all(isinstance(value, list) for value in values):
        items = [item for value in values for item in value]
        return list({msgspec.json.encode(i): i for i in items}.values()) if unique else items
    return values[-1]


# ── Arguments in pieces ──────────────────────────────────────────────────────────────────────────
#
# Vertex streams arguments on request, each piece with the JSON path of its value. A string may span
# several pieces.

_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d{1,6})\]|\[(?:'([^']*)'|"([^"]*)")\]""")
_PATH = "stream.parts.functionCall.partialArgs"


class _PartialArg(msgspec.Struct, frozen=True):
    jsonPath: str
    stringValue: str | None = None
    numberValue: float | int | None = None
    boolValue: bool | None = None

    @property
    def value(self) -> Any:
        values = (self.stringValue, self.numberValue, self.boolValue)
        return next((value for value in values if value is not None), None)


class _PartialArgs(msgspec.Struct, frozen=True):
    """The pieces in one chunk."""

    partialArgs: tuple[_PartialArg, ...] | None = None
    willContinue: bool | None = None


def _partial_args(call: ToolCall) -> _PartialArgs | None:
    """The pieces in a call as it was read; None for a complete call."""
    extras = (call.extras or {}).get(WIRE)
    if extras is None or ('"partialArgs"' not in extras and '"willContinue"' not in extras):
        return None
    raw = decode_members(extras).get("functionCall")
    return None if raw is None else decode_value(raw, _PartialArgs, "stream.parts", reply_error)


class _PartialCall:
    """A call whose arguments are not complete."""

    __slots__ = ("_args", "_left", "call")

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self._args: dict[str, Any] = {}
        self._left = ARGUMENTS_LIMIT

    def add(self, args: tuple[_PartialArg, ...]) -> None:
        for arg in args:
            self._left -= len(arg.jsonPath) + len(arg.stringValue or "") + 8
            if self._left < 0:
                raise Parse(f"arguments of more than {ARGUMENTS_LIMIT} characters", path=_PATH)
            _put(self._args, _steps(arg.jsonPath), arg.value)

    def finish(self) -> ToolCall:
        """The call as if it had come in one piece."""
        text = dumps(self._args, path=_PATH).decode()
        extras = _without_pieces(self.call.extras)
        return msgspec.structs.replace(self.call, arguments=text, extras=extras)


def _steps(path: str) -> list[str | int]:
    steps: list[str | int] = []
    position = 1
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            break
        name, index, *quoted = match.groups()
        word = next((q for q in quoted if q is not None), name)
        steps.append(int(index) if index is not None else str(word))
        position = match.end()
    if not steps or path[:1] != "$" or position < len(path) or not isinstance(steps[0], str):
        raise Parse(f"{path!r} is not a path to an argument", path=_PATH)
    return steps


def _put(holder: Any, steps: list[str | int], value: Any) -> None:
    """Sets the value at a path; a string is appended to the one already there."""
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if isinstance(step, int):
            if not isinstance(holder, list) or step > len(holder):
                raise Parse("a piece of a list that does not exist", path=_PATH)
            if step == len(holder):
                holder.append(_empty(following))
        elif not isinstance(holder, dict):
            raise Parse("a piece of an object that does not exist", path=_PATH)
        else:
            holder.setdefault(step, _empty(following))
        if following is None:
            before = holder[step]
            appends = isinstance(before, str) and isinstance(value, str)
            holder[step] = before + value if appends else value
        else:
            holder = holder[step]


def _empty(following: str | int | None) -> Any:
    if following is None:
        return None
    return [] if isinstance(following, int) else {}


def _without_pieces(extras: Extras | None) -> Extras | None:
    left = dict(extras or {})
    members = decode_members(left.pop(WIRE, "{}"))
    inner = decode_members(members.pop("functionCall", b"{}"))
    inner.pop("partialArgs", None)
    inner.pop("willContinue", None)
    if inner:
        members["functionCall"] = msgspec.Raw(encode_members(inner))
    return {**left, **(extras_of(WIRE, members) or {})} or None


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────

_OPEN = open_content(Message(role="assistant", parts=()))


class StreamWriter:
    """Events in, bytes out. Text is written as it comes, everything else when it is complete."""

    def __init__(self) -> None:
        self._start = ReplyStart("", "")
        self._usage = Usage()
        self._thought: dict[int, bool] = {}
        """The indexes of open texts, and which of them are thoughts."""
        self._written: set[int] = set()

    def write(self, event: Event) -> bytes:
        if isinstance(event, ReplyStart):
            self._start = event
        elif isinstance(event, PartStart):
            if event.kind in ("text", "refusal", "thinking"):
                self._thought[event.index] = event.kind == "thinking"
        elif isinstance(event, PartDelta):
            return self._delta(event)
        elif isinstance(event, PartEnd):
            return self._part(event.index, event.part)
        elif isinstance(event, UsageUpdate):
            self._usage = event.usage
        elif isinstance(event, ReplyEnd):
            return self._end(event.reply)
        elif isinstance(event, ReplyFail):
            return encode_event("", write_failure(event))
        return b""

    def _delta(self, event: PartDelta) -> bytes:
        thought = self._thought.get(event.index)
        if thought is None:
            return b""
        self._written.add(event.index)
        flag = b',"thought":true' if thought else b""
        return self._chunk(b'{"text":' + string(event.delta) + flag + b"}")

    def _part(self, index: int, part: Part) -> bytes:
        """A complete part. The signature and extras of a text that was written already follow in an
        empty text."""
        if index in self._written and isinstance(part, Text | Refusal | Thinking):
            rest = _without_text(part)
            if rest is None:
                return b""
            part = rest
        message = Message(role="assistant", parts=(part,))
        if is_content_fields(part):
            return self._chunk(opening=open_content(message))
        data = [encoded for _, encoded in write_parts(message.parts, [])]
        return self._chunk(*data) if data else b""

    def _end(self, reply: Reply) -> bytes:
        usage = reply.usage if reply.usage != Usage() else self._usage
        body = write_response(reply, b"", usage, self._start.id, self._start.model)
        return encode_event("", body)

    def _chunk(self, *parts: bytes, opening: bytes = _OPEN) -> bytes:
        candidate = b'{"content":' + opening + b",".join(parts) + b']},"index":0}'
        members = [b'"candidates":[' + candidate + b"]"]
        members += write_identity(self._start.id, self._start.model)
        return encode_event("", b"{" + b",".join(members) + b"}")


def _without_text(part: Text | Refusal | Thinking) -> Part | None:
    """The part with an empty text, for its signature and extras; None when it has neither."""
    if isinstance(part, Thinking):
        own = part.provider in (None, *OWN)
        signed = own and (part.signature is not None or extra_members(part.extras, WIRE))
        return Thinking("", part.signature, provider=WIRE, extras=part.extras) if signed else None
    return Text("", part.extras) if extra_members(part.extras, WIRE) else None
