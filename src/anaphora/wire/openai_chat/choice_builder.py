"""The parts of one choice of Chat, built from the deltas of its stream."""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.canonical import dumps, string
from anaphora.errors import Parse
from anaphora.values import Event, Opaque, Part, Refusal, Text, Thinking, ToolCall
from anaphora.wire.lenient import Unknown
from anaphora.wire.reading import Members, decode_members, encode_members, extras_of, reply_error
from anaphora.wire.replies import TEXT_LIMIT, ReplyBuilder

from . import types
from .message_reader import PART, MessageReader, reasoning_extras
from .types import IN_CONTENT, MESSAGE_FIELDS, OTHER_CALL, WIRE

#: Fields that some hosts send in pieces beside the content, and texts in them that grow.
_LIST_FIELDS = ("reasoning_details", "annotations", "executed_tools", "images")
_OBJECT_FIELDS = ("audio", "function_call", "extra_content")
_GROWING = ("arguments", "data", "transcript")


class _OpenCall:
    """A tool call that is not complete yet."""

    __slots__ = ("custom", "function_extras", "id", "index", "name", "own_extras")

    def __init__(self, index: int, custom: bool) -> None:
        self.index = index
        self.custom = custom
        self.id = ""
        self.name = ""
        self.own_extras: Members = {}
        self.function_extras: Members = {}

    def finish(self, text: str) -> Part:
        if self.custom:
            inner = b'{"name":%b,"input":%b}' % (string(self.name), string(text))
            whole = b'{"id":%b,"type":"custom","custom":%b}' % (string(self.id), inner)
            return Opaque(WIRE, OTHER_CALL, whole.decode())
        extras = dict(self.own_extras)
        if self.function_extras:
            extras["function"] = msgspec.Raw(encode_members(self.function_extras))
        return ToolCall(self.id, self.name, text, extras_of(WIRE, extras))

    def differs(self, delta: types.CallDelta) -> bool:
        """Whether a delta with a name begins another call. Some hosts number every call 0, or do
        not number them."""
        if delta.id and self.id:
            return delta.id != self.id
        return delta.index is None and bool(self.name)


class ChoiceBuilder:
    """The parts of one choice, built from its deltas.

    Parts are in the order in which the stream first mentions them and stay open to its end: a
    choice has one text and one reasoning, however often the stream alternates between them.
    """

    def __init__(self) -> None:
        self.build = ReplyBuilder()
        self.fields: dict[str, Any] = {}
        """Fields beside the message: log probabilities, a host's own finish reason."""
        self.text_index: int | None = None
        """The index of the text part, once it has begun."""
        self._message_fields: dict[str, Any] = {}
        self._thinking_fields: Members = {}
        """Fields of reasoning that comes as a content part."""
        self._extra_size = 0
        self._places: dict[str, int] = {}
        """The part of each text field: content, refusal, and the fields of reasoning."""
        self._calls: dict[int, _OpenCall] = {}
        self._count = 0

    def add(self, choice: types.ChoiceDelta, unknown: dict[int, Unknown]) -> list[Event]:
        """Adds a delta. `unknown` are the unknown fields of its tool calls."""
        delta = choice.delta
        events: list[Event] = []
        if delta is not None:
            # A host that fills both fields of reasoning puts the same text into them.
            if delta.reasoning_content:
                events += self._add_text("reasoning_content", delta.reasoning_content)
            elif delta.reasoning:
                events += self._add_text("reasoning", delta.reasoning)
            if isinstance(delta.content, str):
                if delta.content:
                    events += self._add_text("text", delta.content)
            elif delta.content:
                events += self._add_content(delta.content)
            if delta.refusal:
                events += self._add_text("refusal", delta.refusal)
            for index, call in enumerate(delta.tool_calls or ()):
                events += self._add_call(call, unknown.get(index))
            self._collect(delta)
        if choice.logprobs is not None:
            self._add_logprobs(choice.logprobs)
        if choice.native_finish_reason is not None:
            self.fields["native_finish_reason"] = choice.native_finish_reason
        return events

    def keep(self, fields: Members) -> None:
        """Keeps unknown fields beside the message; the last value counts."""
        self._count_extra(fields)
        self.fields |= {name: msgspec.json.decode(raw) for name, raw in fields.items()}

    def end_parts(self) -> list[Event]:
        """Ends all parts; unknown fields of the message become the last one."""
        events: list[Event] = []
        for index in sorted(self.build.open):
            events += self.build.end(index)
        if self._message_fields:
            part = Opaque(WIRE, MESSAGE_FIELDS, dumps(self._message_fields).decode())
            events += self.build.add_whole(self._next_index(), "opaque", part)
            self._message_fields = {}
        return events

    def _next_index(self) -> int:
        self._count += 1
        return self._count - 1

    def _add_text(self, field: str, text: str) -> list[Event]:
        index = self._places.get(field)
        if index is not None:
            return [self.build.add_text(index, text)]
        index = self._places[field] = self._next_index()
        if field in ("text", "refusal"):
            self.text_index = index if field == "text" else self.text_index
            begun = self.build.begin(index, field, Text if field == "text" else Refusal)
        else:

            def finish(text: str) -> Part:
                rest = encode_members(self._thinking_fields)[1:-1] if field == IN_CONTENT else b""
                return Thinking(text, provider=WIRE, extras=reasoning_extras(field, rest))

            begun = self.build.begin(index, "thinking", finish, name=field)
        return [*begun, self.build.add_text(index, text)]

    def _add_content(self, parts: list[msgspec.Raw]) -> list[Event]:
        """Content as a list of parts, which some hosts also send in streams."""
        events: list[Event] = []
        for raw in parts:
            decoded = PART.decode(raw, "stream.content", reply_error)
            part = MessageReader("stream", reply_error).part(*decoded, "stream.content")
            if isinstance(part, Text):
                events += self._add_text("text", part.text) if part.text else []
            elif isinstance(part, Thinking):
                for name, value in decode_members(raw).items():
                    if name not in ("type", "thinking"):
                        self._thinking_fields[name] = value
                events += self._add_text(IN_CONTENT, part.text) if part.text else []
            else:
                self._count_extra(raw)
                events += self.build.add_whole(self._next_index(), "opaque", part)
        return events

    def _add_call(self, delta: types.CallDelta, unknown: Unknown | None) -> list[Event]:
        events: list[Event] = []
        function = delta.function or types.FunctionDelta()
        custom = delta.custom
        name = custom.name if custom is not None else function.name
        key = delta.index if delta.index is not None else max(0, len(self._calls) - 1)
        call = self._calls.get(key)
        if call is not None and name and call.differs(delta):
            key = len(self._calls)
            call = None
        if call is None:
            call = self._calls[key] = _OpenCall(self._next_index(), custom is not None)
            kind = "opaque" if call.custom else "tool_call"
            events += self.build.begin(
                call.index, kind, call.finish, id=delta.id or None, name=name or None
            )
        call.id, call.name = call.id or delta.id or "", call.name or name or ""
        if bytes(delta.extra_content) != b"null":
            call.own_extras["extra_content"] = delta.extra_content
        if unknown is not None:
            inner = unknown.take("function")
            call.function_extras |= inner.remaining() if inner is not None else {}
            call.own_extras |= unknown.remaining()
            self._count_extra([call.own_extras, call.function_extras])
        text = custom.input if custom is not None else function.arguments
        if isinstance(text, dict):
            text = dumps(text).decode()
        return [*events, self.build.add_text(call.index, text)] if text else events

    def _collect(self, delta: types.Delta) -> None:
        """Collects the fields that hosts send in pieces."""
        for name in _LIST_FIELDS:
            if items := getattr(delta, name):
                self._count_extra(items)
                self._message_fields.setdefault(name, []).extend(items)
        for name in _OBJECT_FIELDS:
            if members := getattr(delta, name):
                self._count_extra(members)
                known = self._message_fields.setdefault(name, {})
                for key, value in members.items():
                    if key in _GROWING and isinstance(value, str):
                        value = (known.get(key) or "") + value
                    known[key] = value

    def _add_logprobs(self, logprobs: dict[str, Any]) -> None:
        known = self.fields.setdefault("logprobs", {})
        for name, items in logprobs.items():
            self._count_extra(items)
            earlier = known.get(name)
            if isinstance(items, list) and isinstance(earlier or [], list):
                items = [*(earlier or []), *items] or None
            known[name] = items if items is not None else earlier

    def _count_extra(self, value: Any) -> None:
        self._extra_size += len(msgspec.json.encode(value))
        if self._extra_size > TEXT_LIMIT:
            raise Parse(f"more than {TEXT_LIMIT} bytes beside the text", path="stream")
