"""One choice of a streamed answer, put together from its deltas.

Parts come in the order in which the stream first mentions them, and stay open to its end: a single
answer has one text and one reasoning, however often the stream went back and forth.
"""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.canonical import dumps, string
from anaphora.errors import Parse
from anaphora.values import Event, Opaque, Part, Refusal, Text, Thinking, ToolCall
from anaphora.wire.fields import rest_for
from anaphora.wire.reading import reply_error
from anaphora.wire.replies import TEXT_LIMIT, ReplyBuilder
from anaphora.wire.unnamed import Members, encoded

from .assistant import IN_CONTENT
from .incoming import read_part, told_in
from .parts import MESSAGE_FIELDS, OTHER_CALL, WIRE

# Not `None`: msgspec takes a union with `Raw` to mean everything but it.
NOTHING = msgspec.Raw(b"null")


class FunctionDelta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Custom(msgspec.Struct, frozen=True):
    name: str | None = None
    input: str | None = None


class CallDelta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    index: int | None = None
    type: msgspec.Raw = NOTHING
    id: str | None = None
    function: FunctionDelta | None = None
    custom: _Custom | None = None
    extra_content: msgspec.Raw = NOTHING


class Delta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: msgspec.Raw = NOTHING
    content: str | list[msgspec.Raw] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallDelta] | None = None
    # What hosts add in pieces beside all that.
    reasoning_details: list[Any] | None = None
    annotations: list[Any] | None = None
    executed_tools: list[Any] | None = None
    images: list[Any] | None = None
    audio: dict[str, Any] | None = None
    function_call: dict[str, Any] | None = None
    extra_content: dict[str, Any] | None = None

    def holds_more(self) -> bool:
        return bool(
            self.reasoning_details
            or self.annotations
            or self.executed_tools
            or self.images
            or self.audio
            or self.function_call
            or self.extra_content
        )


class ChoiceDelta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    index: int | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None
    usage: msgspec.Raw = NOTHING
    """Kimi counts beside its last words."""


_LISTS = ("reasoning_details", "annotations", "executed_tools", "images")
_OBJECTS = ("audio", "function_call", "extra_content")
#: Texts inside such objects that come in pieces.
_GROWING = ("arguments", "data", "transcript")


class _OpenCall:
    """A tool call that is still being said."""

    __slots__ = ("custom", "extra", "id", "index", "name", "of_function")

    def __init__(self, index: int, custom: bool) -> None:
        self.index = index
        self.custom = custom
        self.id = ""
        self.name = ""
        self.extra: dict[str, msgspec.Raw] = {}
        self.of_function: dict[str, msgspec.Raw] = {}
        """Fields of the call and of its function that have no name here."""

    def finish(self, said: str) -> Part:
        if self.custom:
            inner = b'{"name":%b,"input":%b}' % (string(self.name), string(said))
            whole = b'{"id":%b,"type":"custom","custom":%b}' % (string(self.id), inner)
            return Opaque(WIRE, OTHER_CALL, whole.decode())
        rest = dict(self.extra)
        if self.of_function:
            rest["function"] = msgspec.Raw(encoded(self.of_function))
        return ToolCall(self.id, self.name, said, rest_for(WIRE, rest))


class StreamedChoice:
    """The parts of one choice, and what stands beside them."""

    def __init__(self) -> None:
        self.build = ReplyBuilder()
        self.beside: dict[str, Any] = {}
        """Fields beside the message: log probabilities, a host's own stop reason."""
        self._fields: dict[str, Any] = {}
        self._of_thinking: dict[str, msgspec.Raw] = {}
        """What reasoning that is told in the content says beside its text."""
        self._extra_size = 0
        self._places: dict[str, int] = {}
        """Where text, refusal and each field of reasoning are said."""
        self._calls: dict[int, _OpenCall] = {}
        self._last: list[_OpenCall] = []
        """Those of the last delta."""
        self._count = 0

    @property
    def text_place(self) -> int | None:
        """The index of the text, once some of it was said."""
        return self._places.get("text")

    def add(self, choice: ChoiceDelta) -> list[Event]:
        delta = choice.delta
        events: list[Event] = []
        if delta is not None:
            if delta.reasoning_content or delta.reasoning:
                events += self._reasoning(delta)
            if delta.content:
                if isinstance(delta.content, str):
                    events += self._say("text", delta.content)
                else:
                    events += self._content(delta.content)
            if delta.refusal:
                events += self._say("refusal", delta.refusal)
            if delta.tool_calls:
                self._last = []
                for call in delta.tool_calls:
                    events += self._call(call)
            if delta.holds_more():
                self._collect(delta)
        if choice.logprobs is not None:
            told = self.beside.setdefault("logprobs", {})
            for name, items in choice.logprobs.items():
                self._count_extra(items)
                if isinstance(items, list) and isinstance(known := told.get(name) or [], list):
                    items = [*known, *items] or None
                told[name] = items if items is not None else told.get(name)
        if choice.native_finish_reason is not None:
            self.beside["native_finish_reason"] = choice.native_finish_reason
        return events

    def keep_of_call(self, place: int, call: Members, function: Members) -> None:
        """Fields of a call, and of its function, that have no name here. `place`: which of the
        calls of the last delta it is, counted from the last."""
        self._count_extra([call, function])
        if len(self._last) > place:
            open_call = self._last[-1 - place]
            open_call.extra |= call
            open_call.of_function |= function

    def keep(self, fields: dict[str, Any]) -> None:
        """Fields beside the message that have no name here; the last one holds."""
        self._count_extra(fields)
        self.beside |= fields

    def _reasoning(self, delta: Delta) -> list[Event]:
        """Told in one field; a host that fills both says the same in them."""
        if delta.reasoning_content:
            return self._say("reasoning_content", delta.reasoning_content)
        return self._say("reasoning", delta.reasoning or "")

    def end_parts(self) -> list[Event]:
        """All parts are whole; the fields that have no name here come last."""
        events: list[Event] = []
        for index in sorted(self.build.open):
            events += self.build.end(index)
        if self._fields:
            json = dumps(self._fields).decode()
            part = Opaque(WIRE, MESSAGE_FIELDS, json)
            events += self.build.add_whole(self._next(), "opaque", part)
            self._fields = {}
        return events

    def _next(self) -> int:
        self._count += 1
        return self._count - 1

    def _say(self, place: str, text: str) -> list[Event]:
        index = self._places.get(place)
        if index is not None:
            return self.build.delta(index, text)
        index = self._places[place] = self._next()
        if place == "text":
            begun = self.build.begin(index, "text", Text)
        elif place == "refusal":
            begun = self.build.begin(index, "refusal", Refusal)
        else:

            def finish(said: str) -> Part:
                rest = _members(self._of_thinking) if place == IN_CONTENT else b""
                return Thinking(said, provider=WIRE, extras=told_in(place, rest))

            begun = self.build.begin(index, "thinking", finish, name=place)
        return begun + self.build.delta(index, text)

    def _content(self, parts: list[msgspec.Raw]) -> list[Event]:
        """Some hosts tell content as parts even in a stream."""
        events: list[Event] = []
        for raw in parts:
            part = read_part(raw, "stream.content", reply_error, (), [])
            if isinstance(part, Text):
                events += self._say("text", part.text) if part.text else []
            elif isinstance(part, Thinking):
                self._of_thinking |= _beside_text(raw)
                events += self._say(IN_CONTENT, part.text) if part.text else []
            else:
                self._count_extra(raw)
                events += self.build.add_whole(self._next(), "opaque", part)
        return events

    def _call(self, delta: CallDelta) -> list[Event]:
        events: list[Event] = []
        function = delta.function or FunctionDelta()
        custom = delta.custom
        name = custom.name if custom is not None else function.name
        key = delta.index if delta.index is not None else max(0, len(self._calls) - 1)
        call = self._calls.get(key)
        if call is not None and name and _is_another(delta, call):
            # Hosts that number every call 0, or not at all.
            key = len(self._calls)
            call = None
        if call is None:
            call = self._calls[key] = _OpenCall(self._next(), custom is not None)
            call.id, call.name = delta.id or "", name or ""
            kind = "opaque" if call.custom else "tool_call"
            events += self.build.begin(
                call.index, kind, call.finish, id=delta.id or None, name=name or None
            )
        self._last.append(call)
        call.id, call.name = call.id or delta.id or "", call.name or name or ""
        if bytes(delta.extra_content) != b"null":
            call.extra["extra_content"] = delta.extra_content
        said = custom.input if custom is not None else function.arguments
        if isinstance(said, dict):
            said = dumps(said).decode()
        return events + (self.build.delta(call.index, said) if said else [])

    def _collect(self, delta: Delta) -> None:
        for name in _LISTS:
            if items := getattr(delta, name):
                self._count_extra(items)
                self._fields.setdefault(name, []).extend(items)
        for name in _OBJECTS:
            if told := getattr(delta, name):
                self._count_extra(told)
                known = self._fields.setdefault(name, {})
                for key, value in told.items():
                    if key in _GROWING and isinstance(value, str):
                        value = (known.get(key) or "") + value
                    known[key] = value

    def _count_extra(self, value: Any) -> None:
        self._extra_size += len(msgspec.json.encode(value))
        if self._extra_size > TEXT_LIMIT:
            raise Parse(f"more than {TEXT_LIMIT} bytes beside the text", path="stream")


def _is_another(delta: CallDelta, call: _OpenCall) -> bool:
    """Whether what names a call begins another one than the call that has its number."""
    if delta.id and call.id:
        return delta.id != call.id
    return delta.index is None and bool(call.name)


def _beside_text(raw: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The fields of a thinking part beside its text."""
    fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    return {name: said for name, said in fields.items() if name not in ("type", "thinking")}


def _members(fields: dict[str, msgspec.Raw]) -> bytes:
    return b",".join(string(name) + b":" + bytes(raw) for name, raw in fields.items())
