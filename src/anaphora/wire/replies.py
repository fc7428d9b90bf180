"""Builds a reply from a stream, bounded and always ended. Also token counts as a partition.

Stream readers feed a `ReplyBuilder`; it returns the events, keeps the parts, and rejects invalid
sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from anaphora.errors import AnaphoraError, Parse, Transport, Upstream
from anaphora.values import (
    Delta,
    Event,
    Extras,
    Message,
    Notice,
    OpaqueDelta,
    Part,
    PartDelta,
    PartEnd,
    PartStart,
    Refusal,
    RefusalDelta,
    Reply,
    ReplyEnd,
    ReplyFail,
    ReplyStart,
    StopReason,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCall,
    Usage,
    UsageUpdate,
    WriteTtl,
)

from .eventstream import FrameDecoder
from .reading import DECODE_ERRORS, decode_reason, reply_error
from .sse import EventDecoder

T = TypeVar("T")

TEXT_LIMIT = 8 * 1024 * 1024
ARGUMENTS_LIMIT = 4 * 1024 * 1024
_MAX_NOTICES = 64
_NO_USAGE = Usage()
#: Sums of such counts fit into 64 bits.
_LARGEST_COUNT = 2**53


#: By the `kind` of a part. Tool calls have `ToolArgumentsDelta`, all others `OpaqueDelta`.
_DELTAS: dict[str, type[Delta]] = {
    "text": TextDelta,
    "thinking": ThinkingDelta,
    "refusal": RefusalDelta,
}


def deltas_of(start: PartStart) -> Callable[[int, str], Delta]:
    """Makes the deltas of a part from its index and their text."""
    call_id, name = start.id, start.name
    if start.kind == "tool_call":
        return lambda index, delta: ToolArgumentsDelta(index, delta, call_id, name)
    return _DELTAS.get(start.kind, OpaqueDelta)


class OpenPart:
    """A part that is still being streamed."""

    __slots__ = ("delta", "finish", "is_text", "left", "limit", "pieces")

    def __init__(self, start: PartStart, text_before: int, finish: Callable[[str], Part]) -> None:
        self.delta = deltas_of(start)
        self.is_text = start.kind != "tool_call"
        self.limit = TEXT_LIMIT - text_before if self.is_text else ARGUMENTS_LIMIT
        self.finish = finish
        """Makes the part from its whole text."""
        self.left = self.limit
        """How many more characters are allowed."""
        self.pieces: list[str] = []

    @property
    def size(self) -> int:
        return self.limit - self.left


class ReplyBuilder:
    """The state of one streamed reply."""

    def __init__(self) -> None:
        self.id = ""
        self.model = ""
        self.started = False
        self.ended = False
        self.stop_reason: StopReason = "other"
        self.stop_reason_raw: str | None = None
        self.stop_sequence: str | None = None
        self.usage = _NO_USAGE
        self.extras: Extras | None = None
        self.notices: dict[str, Notice] = {}
        """Fields that were dropped, by their place."""
        self.open: dict[int, OpenPart] = {}
        self._parts: dict[int, Part] = {}
        self._text_size = 0

    def start(self, reply_id: str, model: str, extras: Extras | None = None) -> list[Event]:
        """Begin the reply, with usage that arrived before it. A second start is ignored."""
        if self.started:
            return []
        self.started, self.id, self.model = True, reply_id, model
        start = ReplyStart(reply_id, model, extras=extras)
        return [start] if self.usage == _NO_USAGE else [start, UsageUpdate(self.usage)]

    def note_dropped_fields(self, event: str, names: Iterable[str]) -> None:
        """Adds one notice for each field of an event that a reply has no place for."""
        for name in names:
            if len(self.notices) < _MAX_NOTICES:
                place = f"{event}.{name}"
                why = f"{name} of {event} has no place in a reply; left out"
                self.notices[place] = Notice("stream_field_left_out", why, place)

    def begin(
        self,
        index: int,
        kind: str,
        finish: Callable[[str], Part],
        *,
        id: str | None = None,
        name: str | None = None,
        item: str | None = None,
        extras: Extras | None = None,
    ) -> list[Event]:
        events = [] if self.started else self.start(self.id, self.model)
        start = PartStart(index, kind, id, name, item, extras)
        self.open[index] = OpenPart(start, self._text_size, finish)
        events.append(start)
        return events

    def add_text(self, index: int, text: str) -> Delta:
        """Append to a part. Most events of a stream do."""
        try:
            part = self.open[index]
        except KeyError:
            raise Parse(f"more of part {index}, which is not open", path="stream") from None
        part.left -= len(text)
        if part.left < 0:
            raise Parse(f"a part of more than {part.limit} characters", path="stream")
        part.pieces.append(text)
        return part.delta(index, text)

    def delta(self, index: int, text: str) -> list[Event]:
        return [self.add_text(index, text)]

    def end(self, index: int) -> list[Event]:
        part = self.open.pop(index, None)
        if part is None:
            return []
        if part.is_text:
            self._text_size += part.size
        whole = self._parts[index] = part.finish("".join(part.pieces))
        return [PartEnd(index, whole)]

    def add_whole(self, index: int, kind: str, part: Part) -> list[Event]:
        """A part that came in one piece."""
        events = self.start(self.id, self.model)
        self._parts[index] = part
        return [*events, PartStart(index, kind), PartEnd(index, part)]

    def read_usage(self, read: Callable[[bytes], Usage], raw: bytes, path: str) -> list[Event]:
        """New counts; if a usage cannot be read, they are unknown, with a notice."""
        usage, notices = read_counts(read, raw, path)
        for notice in notices:
            self.notices[notice.path] = notice
        return self.update_usage(usage)

    def update_usage(self, usage: Usage) -> list[Event]:
        self.usage = usage
        return [UsageUpdate(usage)] if self.started else []

    def finish(self) -> list[Event]:
        """Complete the reply. Parts still open are ended first."""
        events = [] if self.started else self.start(self.id, self.model)
        for index in sorted(self.open):
            events += self.end(index)
        self.ended = True
        events.append(ReplyEnd(self.reply()))
        return events

    def fail(self, problem: Exception) -> list[Event]:
        """End the reply after a failure, one of our errors or of `DECODE_ERRORS`: parts still open
        are ended with the text so far."""
        if self.ended:
            return []
        error = problem
        if not isinstance(problem, AnaphoraError):
            error = reply_error(decode_reason(problem), "stream")
        events = self.start(self.id, self.model)
        for index in sorted(self.open):
            try:
                events += self.end(index)
            except (AnaphoraError, *DECODE_ERRORS):
                continue  # the part that failed
        self.ended = True
        code = status = None
        if isinstance(error, Upstream):
            code, named = error.code, error.status
            status = named if named is not None and named >= 400 else None
        name, partial = type(error).__name__, self.reply()
        events.append(ReplyFail(name, str(error), code=code, partial=partial, status=status))
        return events

    def reply(self) -> Reply:
        parts = tuple([self._parts[index] for index in sorted(self._parts)])
        return Reply(
            id=self.id,
            model=self.model,
            message=Message(id=self.id, role="assistant", parts=parts),
            stop_reason=self.stop_reason,
            stop_reason_raw=self.stop_reason_raw,
            stop_sequence=self.stop_sequence,
            usage=self.usage,
            notices=tuple(self.notices.values()),
            extras=self.extras,
        )


class EventReader:
    """Reads a stream of events: bytes in, events of the reply out. Call `close` when the connection
    ends. Each wire reads its own events."""

    unfinished = "the stream ended before the answer did"

    def __init__(self, read_body: Callable[[bytes], Reply], build: ReplyBuilder) -> None:
        """`read_body` reads a whole reply, which may come in place of events."""
        self._source: EventDecoder | FrameDecoder = EventDecoder()
        self._read_body = read_body
        self._build = build

    def feed(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        try:
            for payload in self._source.feed(data):
                if self._build.ended:
                    break
                self._read(payload, events)
            if self._source.problem is not None:
                raise self._source.problem
        except (AnaphoraError, *DECODE_ERRORS) as problem:
            events += self._build.fail(problem)
        return events

    def close(self) -> list[Event]:
        """The connection ended: a failure, unless the reply is complete."""
        if self._build.ended:
            return []
        try:
            if self._is_complete():
                return self._finish()
        except (AnaphoraError, *DECODE_ERRORS) as problem:
            return self._build.fail(problem)
        if self._source.body is not None:
            return whole_body_events(self._build, bytes(self._source.body), self._read_body)
        return self._build.fail(Transport(self.unfinished))

    def _read(self, payload: Any, events: list[Event]) -> None:
        """Adds the events of a payload: those before an error in it are kept."""
        raise NotImplementedError

    def _is_complete(self) -> bool:
        """Whether the reply may end with the connection."""
        return self._build.stop_reason_raw is not None

    def _finish(self) -> list[Event]:
        return self._build.finish()


class EventWriter:
    """Writes the events of a reply as a wire's stream: events in, bytes out."""

    def __init__(self) -> None:
        self._usage = _NO_USAGE
        """The newest counts."""

    def write(self, event: Event) -> bytes:
        if isinstance(event, PartDelta):
            return self._delta(event)
        if isinstance(event, PartStart):
            return self._begin(event)
        if isinstance(event, PartEnd):
            return self._end_part(event)
        if isinstance(event, UsageUpdate):
            self._usage = event.usage
            return b""
        if isinstance(event, ReplyStart):
            return self._start(event)
        return self._end(event.reply) if isinstance(event, ReplyEnd) else self._fail(event)

    def _start(self, event: ReplyStart) -> bytes:
        raise NotImplementedError

    def _begin(self, event: PartStart) -> bytes:
        raise NotImplementedError

    def _delta(self, event: PartDelta) -> bytes:
        raise NotImplementedError

    def _end_part(self, event: PartEnd) -> bytes:
        raise NotImplementedError

    def _end(self, reply: Reply) -> bytes:
        raise NotImplementedError

    def _fail(self, event: ReplyFail) -> bytes:
        raise NotImplementedError


# ── Token counts ─────────────────────────────────────────────────────────────────────────────────


def read_counts(
    read: Callable[[bytes], Usage], raw: bytes, path: str
) -> tuple[Usage, tuple[Notice, ...]]:
    """The usage in `raw`. If it is null or cannot be read, the counts are unknown: the reply is
    paid for, and must not be lost."""
    if raw == b"null":
        return Usage(), ()
    try:
        return read(raw), ()
    except DECODE_ERRORS as problem:
        return Usage(), (unreadable_usage(decode_reason(problem), path),)


def left_out_choices(path: str) -> Notice:
    """For an answer with several choices."""
    return Notice("choices_left_out", "only the first choice is read; all of them are billed", path)


def unreadable_usage(reason: str, path: str) -> Notice:
    text = f"the usage cannot be read, so tokens and cost are unknown: {reason}"
    return Notice("usage_unreadable", text, path)


def valid_count(tokens: int | None) -> int | None:
    """A token count; one that is negative or impossibly large is unknown."""
    return None if tokens is None or not 0 <= tokens <= _LARGEST_COUNT else tokens


def valid_counts(*counts: int | None) -> list[int | None]:
    """Several of them."""
    return [valid_count(tokens) for tokens in counts]


def positive_counts(written: dict[WriteTtl, int]) -> dict[WriteTtl, int]:
    """Written tokens by TTL, without empty entries."""
    return {ttl: tokens for ttl, tokens in written.items() if tokens > 0}


def reply_events(reply: Reply) -> list[Event]:
    """A whole reply as the events of a stream."""
    events: list[Event] = [ReplyStart(reply.id, reply.model, extras=reply.extras)]
    events.append(UsageUpdate(reply.usage))
    for index, part in enumerate(reply.message.parts):
        if isinstance(part, ToolCall):
            events.append(PartStart(index, "tool_call", part.id, part.name, extras=part.extras))
            events.append(ToolArgumentsDelta(index, part.arguments, part.id, part.name))
        elif isinstance(part, Text | Thinking | Refusal):
            start = PartStart(index, type(part).__name__.lower(), extras=part.extras)
            events.append(start)
            if part.text:
                events.append(deltas_of(start)(index, part.text))
        else:
            events.append(PartStart(index, "opaque"))
        events.append(PartEnd(index, part))
    return [*events, ReplyEnd(reply)]


def whole_body_events(
    build: ReplyBuilder, body: bytes, read_reply: Callable[[bytes], Reply]
) -> list[Event]:
    """The events of a reply that came as one JSON body instead of a stream."""
    try:
        reply = read_reply(body)
    except (AnaphoraError, *DECODE_ERRORS) as problem:
        return build.fail(problem)
    build.started = build.ended = True
    return reply_events(reply)
