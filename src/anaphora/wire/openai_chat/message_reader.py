"""Reads the messages of a Chat Completions request or reply, and their content parts."""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.canonical import string
from anaphora.values import (
    Audio,
    Document,
    Extras,
    FileId,
    Image,
    Opaque,
    Part,
    Refusal,
    ResultPart,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Ttl,
    Url,
)
from anaphora.wire.lenient import LenientDecoder, OtherBlock, Unknown
from anaphora.wire.markers import PlacedMark, read_breakpoint
from anaphora.wire.openai import decode_base64, decode_data_url, with_role
from anaphora.wire.parts import fields_part, is_fields_part
from anaphora.wire.reading import (
    DECODE_ERRORS,
    ErrorFactory,
    Members,
    decode_members,
    encode_members,
    extras_of,
)

from . import types
from .fields import TABLE
from .types import (
    BESIDE_CONTENT,
    IN_CONTENT,
    LEGACY,
    LISTED,
    MESSAGE_FIELDS,
    NULL,
    OTHER_CALL,
    REASONING_FIELDS,
    WIRE,
)

#: An empty assistant message: it keeps its place here; other wires leave it out.
_EMPTY: tuple[Part, ...] = (Opaque(WIRE, MESSAGE_FIELDS, '{"content":null}'),)

PART: LenientDecoder[types.ContentPart | OtherBlock] = LenientDecoder(types.ContentPart)
_decode_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode
_decode_image = msgspec.json.Decoder(types.ImageUrl).decode
_decode_audio = msgspec.json.Decoder(types.InputAudio).decode
_decode_file = msgspec.json.Decoder(types.File).decode
_decode_thinking = msgspec.json.Decoder(list[types.ThinkingText]).decode


class MessageReader:
    """Reads messages of a request or a reply, and collects their breakpoints in `marks`."""

    __slots__ = ("_fail", "_root", "answered", "index", "marks", "unmarked")

    def __init__(self, root: str, fail: ErrorFactory) -> None:
        self._root = root
        """The path of a message, with a placeholder for its index."""
        self._fail = fail
        self.index = 0
        self.answered = ""
        """The id of the call that a `function` message answers."""
        self.marks: list[PlacedMark[Ttl]] = []
        self.unmarked = False
        """Whether the message carries no breakpoints."""

    @property
    def _path(self) -> str:
        return self._root.format(self.index)

    def message(
        self, message: types.RequestMessage | OtherBlock, unknown: Unknown | None
    ) -> tuple[Role, tuple[Part, ...]]:
        """The role and the parts of a message of a request."""
        if type(message) is types.AssistantMessage:
            return "assistant", self.assistant(message, unknown) or _EMPTY
        if type(message) is types.ToolMessage:
            return "tool", (self._result(message, message.tool_call_id or "", unknown),)
        if type(message) is types.FunctionMessage:
            result = self._result(message, self.answered, unknown)
            extras = {**(result.extras or {}), **LEGACY}
            return "tool", (msgspec.structs.replace(result, name=message.name, extras=extras),)
        if type(message) is OtherBlock:
            raise self._fail(f"{message.tag!r} is not a role here", f"{self._path}.role")
        content = message.content
        parts: tuple[Part, ...]
        if type(content) is str:
            parts = (Text(content),)
        else:
            parts = tuple(self._content(content, _elements(unknown, "content")))
        role: Role = "user"
        if type(message) is not types.UserMessage:
            role = "system"
            is_system = isinstance(message, types.SystemMessage)
            parts = with_role(parts, "system" if is_system else "developer")
        if unknown is not None:
            parts = (*parts, *message_fields(unknown))
        return role, parts

    def _result(
        self,
        message: types.ToolMessage | types.FunctionMessage,
        call_id: str,
        unknown: Unknown | None,
    ) -> ToolResult:
        content = message.content
        if unknown is None and type(content) is str:
            return ToolResult(call_id, content)
        inner = _elements(unknown, "content")
        members = unknown.remaining() if unknown is not None else {}
        name = _decode_text(members["name"]) if "name" in members else None
        extras = extras_of(WIRE, members)
        if content is None or isinstance(content, str):
            return ToolResult(call_id, content or "", name=name, extras=extras)
        parts: list[ResultPart] = []
        for index, part in enumerate(self._content(content, inner, (0,))):
            if not isinstance(part, Text | Image | Document | Audio | Opaque):
                path = f"{self._path}.content[{index}]"
                raise self._fail("is not allowed in a tool result", path)
            parts.append(part)
        return ToolResult(call_id, tuple(parts), name=name, extras=extras)

    def assistant(
        self, message: types.AssistantMessage | types.ReplyMessage, unknown: Unknown | None
    ) -> tuple[Part, ...]:
        """Reasoning, content, refusal, tool calls, and last the unknown fields of the message.

        In a reply empty texts are left out; in a request they are kept.
        """
        is_reply = type(message) is types.ReplyMessage
        parts: list[Part] = []
        others: Members = {}
        if message.reasoning_content is not NULL or message.reasoning is not NULL:
            _read_reasoning(message, parts, others)
        content = message.content
        if type(content) is not str:
            inner = _elements(unknown, "content")
            self.unmarked = True
            parts += self._content(content, inner, first=len(parts))
            self.unmarked = False
        elif content or not is_reply:
            parts.append(Text(content))
        if message.refusal:
            parts.append(Refusal(message.refusal, None if is_reply else BESIDE_CONTENT))
        if message.tool_calls:
            inner = _elements(unknown, "tool_calls")
            for index, call in enumerate(message.tool_calls):
                parts.append(_read_call(call, inner.get(index)))
        if is_reply:
            for name in ("annotations", "audio", "function_call"):
                raw = getattr(message, name)
                if raw is not NULL and bytes(raw) not in (b"null", b"[]"):
                    others[name] = raw
        if unknown is not None or others:
            parts += message_fields(unknown, others)
        return tuple(parts)

    def _content(
        self,
        content: types.Content,
        unknown: dict[int, Unknown],
        below: tuple[int, ...] = (),
        first: int = 0,
    ) -> list[Part]:
        """The parts of a message's content. Marks count from `first`, below the path `below`."""
        if content is None or isinstance(content, str):
            return [] if content is None else [Text(content)]
        path = self._path
        parts = [
            self.part(part, unknown.get(i), f"{path}.content[{i}]", (*below, first + i))
            for i, part in enumerate(content)
        ]
        if len(parts) == 1 and not below and type(parts[0]) is Text and parts[0].extras is None:
            return [Text(parts[0].text, LISTED)]
        return parts

    def part(
        self,
        part: types.ContentPart | OtherBlock,
        unknown: Unknown | None,
        path: str,
        position: tuple[int, ...] = (),
    ) -> Part:
        """A content part with its unknown fields as extras; one of another type or source whole."""
        if type(part) is OtherBlock:
            return _opaque(part.tag, part.members)
        if type(part) is types.RefusalPart:
            return Refusal(part.refusal, unknown.extras(WIRE) if unknown is not None else None)
        members: Members = {}
        if type(part) is not types.ThinkingPart and part.prompt_cache_breakpoint is not None:
            if self.unmarked:
                # The provider accepts none there: it stays among the extras.
                members[TABLE.marker] = msgspec.Raw(_encode(part.prompt_cache_breakpoint))
            else:
                ttl, extras = read_breakpoint(part, unknown, WIRE, path, self._fail)
                self.marks.append((position, ttl or "30m", extras))
        if unknown is not None:
            members |= unknown.remaining()
        if type(part) is types.TextPart:
            return Text(part.text, extras_of(WIRE, members))
        kind = str(type(part).__struct_config__.tag)
        source: msgspec.Raw = getattr(part, kind)
        try:
            value = _READERS[type(part)](source, members)
        except DECODE_ERRORS:
            value = None
        return value if value is not None else _opaque(kind, {kind: source, **members})


def _elements(unknown: Unknown | None, name: str) -> dict[int, Unknown]:
    return unknown.take_elements(name) if unknown is not None else {}


def _read_reasoning(
    message: types.AssistantMessage | types.ReplyMessage, parts: list[Part], others: Members
) -> None:
    """The first field of reasoning that has a text becomes a part; any other is kept unchanged."""
    for name in REASONING_FIELDS:
        raw = getattr(message, name)
        if bytes(raw) == b"null":
            continue
        if parts or bytes(raw)[:1] != b'"':
            others[name] = raw
        elif (text := _decode_text(raw)) or type(message) is not types.ReplyMessage:
            parts.append(Thinking(text, provider=WIRE, extras=reasoning_extras(name)))


def message_fields(unknown: Unknown | None, others: Members | None = None) -> list[Part]:
    """Unknown fields of a message, as a part that other wires leave out."""
    members = unknown.remaining() if unknown is not None else {}
    if others:
        members |= others
    return fields_part(WIRE, MESSAGE_FIELDS, members)


def _read_call(call: types.FunctionCall | OtherBlock, unknown: Unknown | None) -> Part:
    """A function call with its arguments unchanged; any other call whole."""
    if type(call) is OtherBlock:
        return Opaque(WIRE, OTHER_CALL, bytes(call.raw).decode())
    function = call.function
    if function is None:
        members = unknown.remaining() if unknown is not None else {}
        members["type"] = msgspec.Raw(b'"function"')
        if call.id is not None:
            members["id"] = msgspec.Raw(string(call.id))
        return Opaque(WIRE, OTHER_CALL, encode_members(members).decode())
    arguments, extras = function.arguments, None
    if unknown is not None:
        if arguments is None and (inside := unknown.members.get("function")) is not None:
            arguments = _take_object(inside)
        extras = unknown.extras(WIRE)
    return ToolCall(call.id or "", function.name or "", arguments or "", extras)


def _take_object(function: object) -> str | None:
    """Remove arguments that are no text from the unknown members of a function."""
    raw = function.members.pop("arguments", None) if isinstance(function, Unknown) else None
    if not isinstance(raw, msgspec.Raw):
        return None
    return _decode_text(raw) if bytes(raw)[:1] == b'"' else str(raw, "utf-8")


def reasoning_extras(field: str, members: bytes = b"") -> Extras:
    """The extras of reasoning: its field, and further members."""
    return {WIRE: f'{{"field":"{field}"{"," if members else ""}{members.decode()}}}'}


# ── Content parts ─────────────────────────────────────────────────────────────────────────────────


def _opaque(kind: str, members: Members) -> Opaque:
    """A part that is sent back unchanged, without its marker."""
    whole = {"type": msgspec.Raw(string(kind))}
    whole |= {
        name: raw for name, raw in members.items() if name != "type" and bytes(raw) != b"null"
    }
    taken = kind in (MESSAGE_FIELDS, OTHER_CALL)
    return Opaque(WIRE, f"part {kind}" if taken else kind, encode_members(whole).decode())


def _read_image(source: msgspec.Raw, members: Members) -> Image:
    image = _decode_image(source)
    url = decode_data_url(image.url) or Url(image.url)
    return Image(url, image.detail, extras_of(WIRE, members))


def _read_audio(source: msgspec.Raw, members: Members) -> Audio | None:
    audio = _decode_audio(source)
    media_type = "audio/mpeg" if audio.format == "mp3" else f"audio/{audio.format}"
    data = decode_base64(audio.data, media_type)
    return None if data is None else Audio(data, extras_of(WIRE, members))


def _read_file(source: msgspec.Raw, members: Members) -> Document | None:
    file = _decode_file(source)
    if (file.file_data is None) == (file.file_id is None):
        return None
    extras = extras_of(WIRE, members)
    if file.file_id is not None:
        return Document(FileId("openai", file.file_id), file.filename, extras=extras)
    data = decode_data_url(file.file_data or "")
    if data is None or file.filename is None:
        return None
    return Document(data, file.filename, extras=extras)


def _read_thinking(source: msgspec.Raw, members: Members) -> Thinking:
    """Reasoning in a content part. The pieces are kept if they are not one text."""
    text = "".join(piece.text for piece in _decode_thinking(source) if piece.type == "text")
    if msgspec.json.decode(source) != [{"type": "text", "text": text}]:
        members = {"thinking": source, **members}
    extras = reasoning_extras(IN_CONTENT, encode_members(members)[1:-1])
    return Thinking(text, provider=WIRE, extras=extras)


_READERS: dict[type, Any] = {
    types.ImagePart: _read_image,
    types.AudioPart: _read_audio,
    types.FilePart: _read_file,
    types.ThinkingPart: _read_thinking,
}


# ── Calls before tools ────────────────────────────────────────────────────────────────────────────
#
# `function_call` in an assistant message, and the result as a message with the role `function`,
# are read as a tool call and its result.

_FIELD = "function_call"


class _LegacyCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str = "{}"


_decode_call = msgspec.json.Decoder(_LegacyCall).decode


def link_call(messages: list[tuple[Role, tuple[Part, ...]]], first: int) -> str:
    """The id of the call that a `function` message after these messages answers. The call, a field
    of the last message, becomes a tool call with that id, made from its position. `first` messages
    are before these."""
    call_id = f"call_{max(0, first + len(messages) - 1)}"
    if messages and messages[-1][0] == "assistant":
        parts: list[Part] = []
        for part in messages[-1][1]:
            parts += _with_call(part, call_id)
        messages[-1] = "assistant", tuple(parts)
    return call_id


def _with_call(part: Part, call_id: str) -> list[Part]:
    """The fields of a message without the call in them, and the call; another part unchanged."""
    if not isinstance(part, Opaque) or not is_fields_part(part, (WIRE,), MESSAGE_FIELDS):
        return [part]
    members = decode_members(part.json.encode())
    try:
        call = _decode_call(members[_FIELD])
    except (KeyError, *DECODE_ERRORS):
        return [part]
    del members[_FIELD]
    called = ToolCall(call_id, call.name, call.arguments, LEGACY)
    return [called, *fields_part(WIRE, part.kind, members)]
