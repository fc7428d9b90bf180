"""Gemini's event stream: each chunk is a response with a little more content.

There is no last event: the reply is complete if the connection ends after a finish reason, and
broken if it ends without one. Unknown chunks and chunks after the end are ignored. An error object
ends the stream with the parts so far. Without `alt=sse` Gemini sends the chunks as one JSON list,
which is read when it is complete; so is a whole response in one object. Only the first candidate is
streamed; others are assembled and kept in the reply's extras.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from anaphora.canonical import dumps
from anaphora.errors import AnaphoraError, Parse, Transport
from anaphora.values import Event, Part, Reply, Text, Thinking, ToolCall
from anaphora.wire.lenient import Unknown
from anaphora.wire.parts import fields_part
from anaphora.wire.reading import (
    DECODE_ERRORS,
    Members,
    decode_elements,
    encode_members,
    extras_of,
    reply_error,
)
from anaphora.wire.replies import (
    TEXT_LIMIT,
    EventReader,
    ReplyBuilder,
    left_out_choices,
)
from anaphora.wire.sse import DONE

from .errors import error_of
from .parse import PartReader
from .partial_args import PartialArgs, PartialCall, take_pieces
from .reply import (
    RESPONSE,
    block_reason,
    enum_text,
    read_reply,
    read_stop,
    read_usage,
)
from .types import CONTENT_FIELDS, NULL, WIRE, Candidate, WirePart, raw_list

#: Fields whose lists grow from chunk to chunk, and may repeat entries.
_REPEATED = ("groundingMetadata", "citationMetadata", "urlContextMetadata")
#: All fields whose lists grow; of log probabilities an entry may legitimately occur twice.
_GROWING = (*_REPEATED, "logprobsResult")


class StreamReader(EventReader):
    """The chunks of Gemini's stream."""

    def __init__(
        self,
        path: str = "",  # noqa: ARG002
        read_body: Callable[[bytes], Reply] = read_reply,
    ) -> None:
        self._first = _CandidateBuilder()
        super().__init__(read_body, self._first.build)
        self._top: Members = {}
        self._usage = b"null"

    def close(self) -> list[Event]:
        """A list of chunks is read now."""
        body = bytes(self._source.body or b"").lstrip()
        if self._build.ended or not body.startswith(b"["):
            return super().close()
        events: list[Event] = []
        try:
            chunks = decode_elements(body)
        except DECODE_ERRORS:
            return self._build.fail(Transport(self.unfinished))
        try:
            for chunk in chunks:
                self._read(bytes(chunk), events)
        except (AnaphoraError, *DECODE_ERRORS) as problem:
            return events + self._build.fail(problem)
        self._source.body = None
        return events + super().close()

    def _is_complete(self) -> bool:
        return self._first.stop_reason_raw is not None

    def _read(self, payload: bytes, events: list[Event]) -> None:
        build = self._build
        if payload.strip() in (b"", DONE) or build.ended:
            return
        chunk, unknown = RESPONSE.decode(payload, "stream", reply_error)
        of_candidates = {} if unknown is None else unknown.take_elements("candidates")
        candidates = chunk.candidates or ()
        if not build.started and (candidates or chunk.responseId):
            events += build.start(chunk.responseId or "", chunk.modelVersion or "")
        for at, candidate in enumerate(candidates):
            if bytes(candidate.index) in (b"null", b"0"):
                events += self._first.add(candidate, of_candidates.get(at), payload, at)
            else:
                build.notices["candidates"] = left_out_choices("stream.candidates")
        if (usage := bytes(chunk.usageMetadata)) not in (self._usage, b"null"):
            self._usage = usage
            events += build.read_usage(read_usage, usage, "stream.usageMetadata")
        if unknown is not None:
            events += self._read_rest(unknown, bool(candidates))

    def _read_rest(self, unknown: Unknown, answers: bool) -> list[Event]:
        """Feedback on the prompt, an error, and fields for the extras of the reply."""
        rest = unknown.remaining()
        error = rest.pop("error", None)
        if not answers and (reason := block_reason(rest)) is not None:
            self._first.stop_reason_raw = reason
            self._build.stop_reason = "refusal"
        for name, value in rest.items():
            if self._top.get(name) != value:
                self._first.count_extra(bytes(value))
                self._top[name] = value
        return [] if error is None else self._build.fail(error_of(error))

    def _finish(self) -> list[Event]:
        build = self._build
        events = self._first.end()
        parts = build.reply().message.parts
        build.stop_reason_raw = self._first.stop_reason_raw
        if parts or build.stop_reason != "refusal":
            build.stop_reason = read_stop(build.stop_reason_raw, parts)
        top = dict(self._top)
        if beside := self._first.beside:
            top["candidate"] = msgspec.Raw(dumps(beside))
        build.extras = extras_of(WIRE, top)
        return events + build.finish()


# ── One candidate, assembled from its chunks ──────────────────────────────────────────────────────


class _CandidateBuilder:
    """The parts of one candidate, and the fields beside them.

    A chunk holds whole parts, except that text comes in pieces: adjacent texts that are both
    thoughts, or both not, are one part. A piece with a signature is a part of its own, even without
    text: Google wants it back as it came.
    """

    def __init__(self) -> None:
        self.build = ReplyBuilder()
        self.stop_reason_raw: str | None = None
        self._beside: dict[str, list[Any]] = {}
        """Fields beside the content: grounding, ratings, log probabilities."""
        self._content: Members = {}
        """Unknown fields of the content."""
        self._count = 0
        """How many parts there are. The last one may be open."""
        self._kind: type[Text | Thinking] | None = None
        """The type of the open part, if it is a text or a thought."""
        self._seal: Any = None
        """Its signature, in the same form as in a whole part."""
        self._call: PartialCall | None = None
        """The open call, whose arguments come in pieces."""
        self._extra_size = 0

    def add(
        self, candidate: Candidate, unknown: Unknown | None, payload: bytes, position: int
    ) -> list[Event]:
        """Add a chunk; `position` is that of the candidate in the chunk's `payload`."""
        self.stop_reason_raw = enum_text(candidate.finishReason or None) or self.stop_reason_raw
        events: list[Event] = []
        inner = None if unknown is None else unknown.take("content")
        of_parts = {} if inner is None else inner.take_elements("parts")
        if candidate.content is not None:
            for at, part in enumerate(candidate.content.parts or ()):
                if part.thoughtSignature is NULL and part.is_text and at not in of_parts:
                    # As nearly all of them are.
                    kind = Thinking if part.thought else Text
                    events += self._text(kind, part.text or "", None)
                else:
                    events += self._part(part, of_parts.get(at), payload, position, at)
        if inner is not None:
            self._content |= inner.remaining()
        if unknown is not None and (beside := unknown.remaining()):
            self._collect(encode_members(beside))
        return events

    def end(self) -> list[Event]:
        """The candidate is complete: its parts end, and unknown fields of its content come last."""
        events = self._end_open()
        for part in fields_part(WIRE, CONTENT_FIELDS, self._content):
            events += self._whole(part)
        self._content = {}
        return events

    @property
    def beside(self) -> dict[str, Any]:
        """The fields beside the content. The last value counts, except for fields that grow."""
        return {
            name: _joined(values, unique=name in _REPEATED) for name, values in self._beside.items()
        }

    def count_extra(self, data: bytes) -> None:
        """Limit the size of the content beside the text."""
        self._extra_size += len(data)
        if self._extra_size > 2 * TEXT_LIMIT:
            raise Parse(f"more than {2 * TEXT_LIMIT} bytes beside the text", path="stream")

    def _collect(self, beside: bytes) -> None:
        self.count_extra(beside)
        for name, value in msgspec.json.decode(beside).items():
            if name not in _GROWING:
                self._beside.pop(name, None)
            self._beside.setdefault(name, []).append(value)

    def _part(
        self, part: WirePart, unknown: Unknown | None, payload: bytes, position: int, at: int
    ) -> list[Event]:
        """Any part; it is number `at` of the candidate at `position` of the payload."""
        pieces = None
        if unknown is not None and part.functionCall is not None:
            pieces = take_pieces(unknown)
        path = ("candidates", position, "content", "parts")
        reader = PartReader(lambda *_: raw_list(payload, *path)[at])
        read = reader.part(part, unknown, self.build.id or None, self._count)
        if isinstance(read, ToolCall):
            return self._tool_call(read, pieces)
        if isinstance(read, Text) and unknown is None:
            return self._text(Text, read.text, read.extras)
        if isinstance(read, Thinking) and read.extras is None:
            return self._text(Thinking, read.text, read.signature)
        return self._whole(read)

    def _text(self, kind: type[Text | Thinking], text: str, seal: Any) -> list[Event]:
        """A piece of a text, and perhaps its signature."""
        events: list[Event] = []
        if kind is not self._kind or seal != self._seal:
            if not text and seal is None:
                return []
            events = self._end_open()
            self._kind, self._seal = kind, seal
            extras = seal if kind is Text else None
            events += self._begin(kind.__name__.lower(), self._finish_text, extras=extras)
        if text:
            events.append(self.build.add_text(self._count - 1, text))
        return events

    def _finish_text(self, text: str) -> Part:
        if self._kind is Text:
            return Text(text, self._seal)
        return Thinking(text, self._seal, provider=WIRE)

    def _tool_call(self, call: ToolCall, pieces: PartialArgs | None) -> list[Event]:
        """A call. Arguments in pieces give one delta when they are complete; a call without pieces
        ends them."""
        events: list[Event] = []
        pending = self._call
        if pieces is None or pending is None:
            events = self._end_open()
            if pending is not None and not call.name:
                return events
            pending = self._call = PartialCall(call, pieces is not None)
            events += self._begin("tool_call", pending.finish, id=call.id, name=call.name)
        if pieces is not None:
            pending.add(pieces.partialArgs or ())
        return events if pieces is not None and pieces.willContinue else events + self._end_open()

    def _whole(self, part: Part) -> list[Event]:
        """A part that came in one piece."""
        events, index = self._end_open(), self._count
        if isinstance(part, Text | Thinking):
            events += self._begin(type(part).__name__.lower(), lambda _: part)
            return events + self.build.delta(index, part.text) + self.build.end(index)
        self._count += 1
        self.count_extra(msgspec.json.encode(part))
        return events + self.build.add_whole(index, str(msgspec.to_builtins(part)["type"]), part)

    def _begin(self, kind: str, finish: Callable[[str], Part], **names: Any) -> list[Event]:
        self._count += 1
        return self.build.begin(self._count - 1, kind, finish, **names)

    def _end_open(self) -> list[Event]:
        events: list[Event] = []
        if self._call is not None:
            events = self.build.delta(self._count - 1, self._call.arguments())
        if self._call is not None or self._kind is not None:
            events += self.build.end(self._count - 1)
        self._kind = self._call = None
        return events


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
