"""Reader and writer of Ollama's stream: each line is a piece of the answer, the last one has
`done`.

Unknown lines and lines after the end are ignored. A stream without an end is a failure. An error
object ends the stream with the parts so far. A JSON body over several lines is read as the whole
answer. Text and reasoning stay open to the end, since a complete answer has one of each; calls and
images come in one piece.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from anaphora.canonical import string
from anaphora.errors import AnaphoraError, Parse, Transport
from anaphora.values import (
    Event,
    Message,
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
from anaphora.wire.parts import fields_part
from anaphora.wire.reading import (
    DECODE_ERRORS,
    Members,
    decode_members,
    known_text,
    replace_lone_surrogates,
    reply_error,
)
from anaphora.wire.replies import TEXT_LIMIT, ReplyBuilder, whole_body_events
from anaphora.wire.sse import BODY_LIMIT

from .messages import is_message_fields, message_fields, sort_parts
from .parse import compact_date, decode_message, read_call, read_image
from .reply import (
    EPOCH,
    RESPONSE,
    from_success,
    read_end,
    read_reply,
    timestamp,
    write_end,
    write_failure,
)
from .types import MESSAGE_FIELDS, NULL, WIRE, ChatResponse, read_form

#: No single line of any provider comes near this.
LINE_LIMIT = 16 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"


class LineDecoder:
    """Decodes bytes into complete lines, however the bytes are cut; `close` returns an unfinished
    one. A line ends with a line feed; a carriage return before it is removed, and blank lines are
    skipped. A line beyond the limit is an error, not a memory leak."""

    __slots__ = ("_first", "_limit", "_pieces", "_size")

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._first = True
        self._pieces: list[bytes] = []
        """The pieces of the incomplete line."""
        self._size = 0
        """Their length."""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends; none of them is blank."""
        if not data:
            return []
        begun, *rest = data.split(b"\n")
        self._pieces.append(begun)
        self._size += len(begun)
        if self._size > self._limit:
            raise Parse(f"a line of more than {self._limit} bytes", path="stream")
        if not rest:
            return []
        lines = [self._joined(), *rest[:-1]]
        self._pieces, self._size = [rest[-1]], len(rest[-1])
        if max(map(len, lines), default=0) > self._limit or self._size > self._limit:
            raise Parse(f"a line of more than {self._limit} bytes", path="stream")
        return [replace_lone_surrogates(line) for line in map(bytes.strip, lines) if line]

    def close(self) -> list[bytes]:
        """The unfinished line at the end of the stream; none if there is none."""
        line = self._joined().strip()
        self._pieces, self._size = [], 0
        return [replace_lone_surrogates(line)] if line else []

    def _joined(self) -> bytes:
        line = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        if self._first:
            self._first = False
            return line.removeprefix(_BOM)
        return line


def encode_line(data: bytes) -> bytes:
    """One line of JSON. A line break in it is white space between tokens and becomes a space."""
    return data.replace(b"\n", b" ") + b"\n"


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────


class _TextMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    content: str
    role: str = "assistant"


class _TextLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line that holds text and nothing else, as nearly all do."""

    message: _TextMessage
    model: str = ""
    created_at: str = ""
    done: bool = False


_text_line = msgspec.json.Decoder(_TextLine).decode


class StreamReader:
    """Bytes in, events out. Call `close` when the connection ends."""

    def __init__(self, read_body: Callable[[bytes], Reply] = read_reply) -> None:
        self._lines = LineDecoder()
        self._read_body = read_body
        self._body: bytearray | None = None
        """The lines so far, if the first one is only the beginning of a JSON body."""
        self._build = ReplyBuilder()
        self._open: dict[str, int] = {}
        """The indexes of the text and the reasoning."""
        self._count = 0
        self._calls = 0
        self._counts: dict[str, Any] = {}
        """Stop reason and token counts; the last value counts."""
        self._top: Members = {}
        self._message_fields: Members = {}
        """Unknown fields of the answer and of its message; the last value counts."""
        self._logprobs: list[bytes] = []
        self._kept = 0

    def feed(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        try:
            for line in self._lines.feed(data):
                self._read(line, events)
        except (AnaphoraError, *DECODE_ERRORS) as problem:
            events += self._build.fail(problem)
        return events

    def close(self) -> list[Event]:
        """The connection ended. Without a line that has `done` before it, that is a failure."""
        events: list[Event] = []
        try:
            for line in self._lines.close():
                self._read(line, events)
        except (AnaphoraError, *DECODE_ERRORS):
            events += self._build.fail(Transport("the stream ended in the middle of a line"))
        if self._body is not None and not self._build.ended:
            return events + whole_body_events(self._build, bytes(self._body), self._read_body)
        return events + self._build.fail(Transport("the stream ended before the answer did"))

    def _read(self, line: bytes, events: list[Event]) -> None:
        """Adds the events of a line: those before an error in it are kept."""
        build = self._build
        if build.ended:
            return
        if self._body is not None:
            self._collect(line)
            return
        index = self._open.get("text")
        if index is not None:
            try:
                more = _text_line(line)
            except DECODE_ERRORS:
                pass
            else:
                if not more.done and more.message.content:
                    events.append(build.add_text(index, more.message.content))
                    return
        try:
            response, unknown = RESPONSE.decode(line, "stream", reply_error)
        except Parse:
            if build.started or not line.startswith(b"{") or _is_object(line):
                raise
            self._body = bytearray()
            self._collect(line)
            return
        rest = unknown.remaining() if unknown is not None else {}
        if "error" in rest:
            events += build.fail(from_success(msgspec.json.decode(rest["error"])))
        else:
            self._answer(response, rest, events)

    def _collect(self, line: bytes) -> None:
        assert self._body is not None
        self._body += line + b"\n"
        if len(self._body) > BODY_LIMIT:
            raise Parse(f"a body of more than {BODY_LIMIT} bytes", path="stream")

    def _answer(self, response: ChatResponse, rest: Members, events: list[Event]) -> None:
        has_message = bytes(response.message) != b"null"
        if not has_message and not response.done:
            return
        events += self._build.start("", response.model or "")
        if has_message:
            created = known_text(rest, "created_at") or None
            self._message(response.message, created, events)
        logprobs = msgspec.json.decode(rest.pop("logprobs", NULL), type=list[msgspec.Raw] | None)
        self._logprobs += self._counted(logprobs or [])
        self._keep(self._top, rest)
        self._counts |= {
            name: value
            for name in ("done_reason", "prompt_eval_count", "eval_count")
            if (value := getattr(response, name)) is not None
        }
        if response.done:
            events += self._finish()

    def _message(self, raw: msgspec.Raw, created: str | None, events: list[Event]) -> None:
        message, unknown = decode_message(raw, "stream.message")
        inner = unknown.take_elements("tool_calls") if unknown is not None else {}
        if message.thinking:
            events += self._text("thinking", message.thinking)
        for image in message.images or ():
            self._counted([image.encode()])
            part = read_image(image)
            events += self._build.add_whole(self._next(), type(part).__name__.lower(), part)
        if message.content:
            events += self._text("text", message.content)
        date = compact_date(created)
        for at, call in enumerate(message.tool_calls or ()):
            others = inner.get(at)
            read = read_call(call, others, date, self._calls, "stream.message", created)
            events += self._call(read)
            self._calls += 1
        if unknown is not None:
            self._keep(self._message_fields, unknown.remaining())

    def _text(self, kind: str, text: str) -> list[Event]:
        index = self._open.get(kind)
        events: list[Event] = []
        if index is None:
            index = self._open[kind] = self._next()
            events = self._build.begin(index, kind, Text if kind == "text" else _thinking)
        return [*events, self._build.add_text(index, text)]

    def _call(self, call: ToolCall) -> list[Event]:
        def finish(arguments: str) -> Part:
            return msgspec.structs.replace(call, arguments=arguments)

        index, build = self._next(), self._build
        events = build.begin(index, "tool_call", finish, id=call.id, name=call.name)
        return events + build.delta(index, call.arguments) + build.end(index)

    def _finish(self) -> list[Event]:
        """The answer is complete; unknown fields of its message come last."""
        build = self._build
        if self._logprobs:
            self._top["logprobs"] = msgspec.Raw(b"[" + b",".join(self._logprobs) + b"]")
        response = ChatResponse(done=True, **self._counts)
        build.stop_reason_raw = response.done_reason
        build.stop_reason, build.usage, build.extras, notices = read_end(
            response, self._top, called=bool(self._calls)
        )
        build.notices |= {notice.path: notice for notice in notices}
        events: list[Event] = []
        for index in sorted(build.open):
            events += build.end(index)
        for part in fields_part(WIRE, MESSAGE_FIELDS, self._message_fields):
            events += build.add_whole(self._next(), "opaque", part)
        if build.usage != Usage():
            events += build.update_usage(build.usage)
        return events + build.finish()

    def _next(self) -> int:
        self._count += 1
        return self._count - 1

    def _keep(self, kept: Members, members: Members) -> None:
        for name, value in members.items():
            if kept.get(name) != value:
                self._counted([name.encode(), bytes(value)])
                kept[name] = value

    def _counted(self, values: list[bytes] | list[msgspec.Raw]) -> list[bytes]:
        """Limit the size of the content beside the text."""
        copies = [bytes(value) for value in values]
        self._kept += sum(map(len, copies))
        if self._kept > TEXT_LIMIT:
            raise Parse(f"more than {TEXT_LIMIT} bytes beside the text", path="stream")
        return copies


def _thinking(text: str) -> Thinking:
    return Thinking(text, provider=WIRE)


def _is_object(line: bytes) -> bool:
    try:
        decode_members(line)
    except DECODE_ERRORS:
        return False
    return True


# ── Writing ───────────────────────────────────────────────────────────────────────────────────────

_FIELDS = {"text": "content", "refusal": "content", "thinking": "thinking"}


class StreamWriter:
    """Events in, bytes out. Text and reasoning are written as they come; calls, images and unknown
    fields when they are complete."""

    def __init__(self) -> None:
        self._model, self._created = "", EPOCH
        self._usage = Usage()
        self._fields: dict[int, str] = {}
        """The message field of each open part."""
        self._written: set[int] = set()

    def write(self, event: Event) -> bytes:
        if isinstance(event, ReplyStart):
            self._model = event.model
            if event.created is not None:
                self._created = string(timestamp(event.created))
        elif isinstance(event, PartStart):
            if event.kind in _FIELDS:
                self._fields[event.index] = _FIELDS[event.kind]
        elif isinstance(event, PartDelta):
            return self._delta(event.index, event.delta)
        elif isinstance(event, PartEnd):
            return self._end_part(event.index, event.part)
        elif isinstance(event, UsageUpdate):
            self._usage = event.usage
        elif isinstance(event, ReplyEnd):
            return self._end(event.reply)
        else:
            assert isinstance(event, ReplyFail)
            return encode_line(write_failure(event.message))
        return b""

    def _delta(self, index: int, text: str) -> bytes:
        field = self._fields.get(index)
        if field is None:
            return b""
        self._written.add(index)
        return self._line(_text_members(field, text))

    def _end_part(self, index: int, part: Part) -> bytes:
        """The rest of a part that is complete now."""
        if isinstance(part, Text | Refusal | Thinking):
            if index in self._written or not part.text:
                return b""
            field = "thinking" if isinstance(part, Thinking) else "content"
            return self._line(_text_members(field, part.text))
        if is_message_fields(part):
            unknown = message_fields((part,))
            return self._line(b'"content":"",' + unknown) if unknown else b""
        fields = sort_parts(Message(role="assistant", parts=(part,)), [], answer=True)
        if not fields.anything:
            return b""
        # A generated id contains the date of its line, so the line has the call's date.
        created = read_form(part.extras).created_at if isinstance(part, ToolCall) else None
        return self._line(fields.members(), None if created is None else string(created))

    def _end(self, reply: Reply) -> bytes:
        message = b'{"role":"assistant","content":""}'
        return encode_line(write_end(reply, message, self._usage, date=self._created))

    def _line(self, members: bytes, created: bytes | None = None) -> bytes:
        return encode_line(
            b'{"model":'
            + string(self._model)
            + b',"created_at":'
            + (created or self._created)
            + b',"message":{"role":"assistant",'
            + members
            + b'},"done":false}'
        )


def _text_members(field: str, text: str) -> bytes:
    if field == "content":
        return b'"content":' + string(text)
    return b'"content":"","thinking":' + string(text)
