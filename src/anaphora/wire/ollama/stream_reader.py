"""Ollama's stream, read: every line is a piece of the answer, and the last one says `done`.

Defined behaviour for what should not happen: a line that says nothing known is passed over; a line
after the end is passed over; an end that never comes is a failure; an error in the stream ends it
with what there is; one JSON body over several lines is read as the whole answer. Text and reasoning
stay open to the end, since a single answer has one of each; calls and pictures come whole.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from anaphora.canonical import string
from anaphora.errors import AnaphoraError, Parse, Transport
from anaphora.values import Event, Part, Reply, Text, Thinking, ToolCall, Usage
from anaphora.wire.fields import Fields
from anaphora.wire.ndjson import LineDecoder
from anaphora.wire.reading import DECODE_ERRORS, as_anaphora_error, reply_error
from anaphora.wire.replies import TEXT_LIMIT, ReplyBuilder
from anaphora.wire.sse import BODY_LIMIT

from .carried import WIRE
from .failure import failure
from .images import read_image
from .incoming import fields_part, prefix, read_call, read_message
from .reply import read_end, read_reply


class _Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    content: str
    role: str = "assistant"


class _MoreText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line that says more text and nothing else."""

    message: _Text
    model: str = ""
    created_at: str = ""
    done: bool = False


_more_text = msgspec.json.Decoder(_MoreText).decode
_some = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class StreamReader:
    """Bytes in, events out. Call `close` when the connection ends."""

    def __init__(self, read_body: Callable[[bytes], Reply] = read_reply) -> None:
        self._lines = LineDecoder()
        self._read_body = read_body
        self._body: bytearray | None = None
        """The lines so far, when the first of them is only the beginning of a JSON body."""
        self._build = ReplyBuilder()
        self._places: dict[str, int] = {}
        """Where the text and the reasoning are said."""
        self._count = 0
        self._calls = 0
        self._top: dict[str, bytes] = {}
        self._beside: dict[str, bytes] = {}
        """Fields of the answer and of its message that have no name here; the last ones hold."""
        self._logprobs: list[bytes] = []
        self._kept = 0

    def feed(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        try:
            for line in self._lines.feed(data):
                events += self._read(line)
        except (AnaphoraError, *DECODE_ERRORS) as problem:
            events += self._build.fail(as_anaphora_error(problem))
        return events

    def close(self) -> list[Event]:
        """The connection ended. Without a line that says `done` before it, that is a failure."""
        events: list[Event] = []
        try:
            for line in self._lines.close():
                events += self._read(line)
        except (AnaphoraError, *DECODE_ERRORS):
            events += self._build.fail(Transport("the stream ended in the middle of a line"))
        if self._body is not None and not self._build.ended:
            return events + self._build.read_whole_body(bytes(self._body), self._read_body)
        return events + self._build.fail(Transport("the stream ended before the answer did"))

    def _read(self, line: bytes) -> list[Event]:
        build = self._build
        if build.ended:
            return []
        if self._body is not None:
            return self._collect(line)
        place = self._places.get("text")
        if place is not None:
            # Nearly every line is more text, and nothing else.
            try:
                more = _more_text(line)
            except DECODE_ERRORS:
                pass
            else:
                if not more.done and more.message.content:
                    return [build.add_text(place, more.message.content)]
        try:
            fields = Fields(line, "stream")
        except Parse:
            if build.started or not line.startswith(b"{"):
                raise
            self._body = bytearray()
            return self._collect(line)
        if (error := fields.raw("error")) not in (None, b"null"):
            return build.fail(failure(msgspec.json.decode(error or b"null")))
        return self._answer(fields)

    def _collect(self, line: bytes) -> list[Event]:
        assert self._body is not None
        self._body += line + b"\n"
        if len(self._body) > BODY_LIMIT:
            raise Parse(f"a body of more than {BODY_LIMIT} bytes", path="stream")
        return []

    def _answer(self, fields: Fields) -> list[Event]:
        message = fields.raw("message")
        done = fields.maybe("done", bool)
        if message in (None, b"null") and not done:
            return []
        events = self._build.start("", fields.maybe("model", str) or "")
        if message is not None and message != b"null":
            events += self._message(message, fields.known_text("created_at") or None)
        self._logprobs += self._counted(fields.maybe("logprobs", list[msgspec.Raw]) or [])
        fields.drop_nulls()
        self._keep(self._top, fields.rest())
        return events + (self._done() if done else [])

    def _message(self, raw: bytes, moment: str | None) -> list[Event]:
        said, rest = read_message(raw, "stream.message", reply_error)
        events: list[Event] = []
        if said.thinking:
            events += self._say("thinking", said.thinking)
        for image in said.images or ():
            self._counted([image.encode()])
            part = read_image(image)
            events += self._build.add_whole(self._next(), type(part).__name__.lower(), part)
        if said.content:
            events += self._say("text", said.content)
        for call in said.tool_calls or ():
            made_up = f"{prefix(moment)}_{self._calls}"
            path = f"stream.message.tool_calls[{self._calls}]"
            events += self._call(read_call(call, path, reply_error, made_up, moment))
            self._calls += 1
        self._keep(self._beside, rest)
        return events

    def _say(self, place: str, text: str) -> list[Event]:
        index = self._places.get(place)
        events: list[Event] = []
        if index is None:
            index = self._places[place] = self._next()
            events = self._build.begin(index, place, Text if place == "text" else _thought)
        return [*events, self._build.add_text(index, text)]

    def _call(self, call: ToolCall) -> list[Event]:
        def finish(arguments: str) -> Part:
            return msgspec.structs.replace(call, arguments=arguments)

        index, build = self._next(), self._build
        events = build.begin(index, "tool_call", finish, id=call.id, name=call.name)
        return events + build.delta(index, call.arguments) + build.end(index)

    def _done(self) -> list[Event]:
        """The answer is whole; the fields that have no name here come last."""
        build = self._build
        if self._logprobs:
            self._top["logprobs"] = b"[" + b",".join(self._logprobs) + b"]"
        fields = Fields(b"{" + _members(self._top) + b"}", "stream")
        build.stop, build.stop_raw, build.usage, build.extras = read_end(
            fields, called=bool(self._calls)
        )
        events: list[Event] = []
        for index in sorted(build.open):
            events += build.end(index)
        for part in fields_part(_members(self._beside)):
            events += build.add_whole(self._next(), "opaque", part)
        if build.usage != Usage():
            events += build.update_usage(build.usage)
        return events + build.finish()

    def _next(self) -> int:
        self._count += 1
        return self._count - 1

    def _keep(self, where: dict[str, bytes], members: bytes) -> None:
        if not members:
            return
        for name, raw in _some(b"{" + members + b"}").items():
            told = bytes(raw)
            if where.get(name) != told:
                self._counted([name.encode(), told])
                where[name] = told

    def _counted(self, values: list[bytes] | list[msgspec.Raw]) -> list[bytes]:
        """What is kept beside the text is bounded, too."""
        found = [bytes(value) for value in values]
        self._kept += sum(map(len, found))
        if self._kept > TEXT_LIMIT:
            raise Parse(f"more than {TEXT_LIMIT} bytes beside the text", path="stream")
        return found


def _thought(text: str) -> Thinking:
    return Thinking(text, provider=WIRE)


def _members(fields: dict[str, bytes]) -> bytes:
    return b",".join(string(name) + b":" + raw for name, raw in fields.items())
