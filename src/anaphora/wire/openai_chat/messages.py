"""Encodes the assistant's message of a Chat Completions request or reply, and content parts: one
encoder for each kind.

An encoder returns bytes, or None with a notice if Chat has no form for the part.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from anaphora.canonical import string
from anaphora.rendered import Kind
from anaphora.values import (
    Audio,
    Bytes,
    Document,
    Extras,
    FileId,
    Image,
    Message,
    Notice,
    Opaque,
    Part,
    Refusal,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Url,
)
from anaphora.wire.openai import (
    arguments_text,
    data_url,
    file_id,
)
from anaphora.wire.parts import (
    check_part,
    encode_at,
    fields_in_parts,
    following,
    merged,
    opaque_json,
    own_members,
)
from anaphora.wire.reading import DECODE_ERRORS, decode_members, decode_text, known_text
from anaphora.wire.runs import UNFINISHED_REASONING

from .fields import TABLE
from .params import Traits
from .types import (
    BESIDE_CONTENT,
    IN_CONTENT,
    LEGACY,
    LISTED,
    MESSAGE_FIELDS,
    OTHER_CALL,
    REASONING_FIELDS,
    WIRE,
    has_form,
)

Notices: TypeAlias = list[Notice]
#: Encodes a part; None if Chat cannot send it.
Encode: TypeAlias = Callable[[Any, Notices], bytes | None]

_TEXT_PART = b'{"type":"text","text":'
_TEXT = Kind.TEXT  # looked up once: access to an enum member is slow


# ── The assistant's message ───────────────────────────────────────────────────────────────────────


class AssistantFields(msgspec.Struct):
    """An assistant's parts, sorted by the field they are sent in."""

    content: list[bytes] = []
    calls: list[bytes] = []
    reasoning: dict[str, str] = {}
    """Reasoning, by its field."""
    extras: bytes = b""
    """Unknown fields, as members of an object."""
    thinking_parts: int = 0
    """How many of the content parts are reasoning."""

    @property
    def only_reasoning(self) -> bool:
        if self.calls or len(self.content) > self.thinking_parts:
            return False
        extras = decode_members(b"{" + self.extras + b"}")
        names = {name for name, raw in extras.items() if bytes(raw) not in (b"null", b"[]")}
        if not names <= {*REASONING_FIELDS, "reasoning_details"}:
            return False
        return bool(self.thinking_parts or self.reasoning or names)


def sort_parts(
    message: Message,
    notices: Notices,
    field: str | None = None,
    host: str | None = None,
    as_sent: bool = False,
) -> AssistantFields:
    """The parts by field, with a notice for each that has none. `field` is the one for reasoning,
    if not its original one; `host` is the provider it is sent to. `as_sent`: parts keep the fields
    in which they were read."""
    fields = AssistantFields(extras=message_fields(message.parts))
    for index, part in enumerate(message.parts):
        if as_sent and (beside := _beside_content(part)):
            fields.extras = b",".join(filter(None, (fields.extras, beside)))
        elif not is_fields(part):
            encode_at(f"parts[{index}]", _sort_part, part, notices, fields, field, host)
    return fields


def _beside_content(part: Part) -> bytes:
    """The member of a message in which a part was read; empty for other parts."""
    if isinstance(part, Refusal) and has_form(part.extras, BESIDE_CONTENT):
        return b'"refusal":' + string(part.text)
    if isinstance(part, ToolCall) and has_form(part.extras, LEGACY):
        call = string(part.name), arguments_text(part)
        return b'"function_call":{"name":%b,"arguments":%b}' % call
    return b""


def _sort_part(
    part: Part, notices: Notices, fields: AssistantFields, field: str | None, host: str | None
) -> None:
    data: bytes | None = None
    if type(part) is Text:
        data = text_part(part.text, part.extras)
    elif isinstance(part, ToolCall):
        fields.calls.append(tool_call(part))
    elif isinstance(part, Thinking):
        own = reasoning_field(part, host)
        if own is None:
            _thinking(part, notices)
        elif own == IN_CONTENT:
            data = thinking_part(part)
            fields.thinking_parts += 1
        else:
            own = field or own
            fields.reasoning[own] = fields.reasoning.get(own, "") + part.text
    elif isinstance(part, Refusal):
        data = b'{"type":"refusal","refusal":' + string(part.text) + b"}"
        data = merged(data, part.extras, WIRE)
    elif isinstance(part, Opaque):
        data = _opaque(part, notices)
        if data is not None and part.kind == OTHER_CALL:
            fields.calls.append(data)
            data = None
    else:
        data = _encoder_of("assistant", part)[2](part, notices)
    if data is not None:
        if fields.calls:
            notices.append(Notice("parts_reordered", "content comes before tool calls here"))
        fields.content.append(data)


def assistant_message(message: Message, traits: Traits, notices: Notices) -> bytes | None:
    """The message in a request; None if there is nothing to send."""
    field = traits.reasoning_field
    host = None if traits.as_sent else traits.host
    fields = sort_parts(message, notices, field, host, traits.as_sent)
    if fields.only_reasoning and not traits.as_sent:
        notices.append(UNFINISHED_REASONING)
        return None
    if traits.reasoning_needed and fields.calls and not fields.reasoning:
        fields.reasoning[field or REASONING_FIELDS[0]] = ""
        why = "calls need their reasoning here; an empty one is sent"
        notices.append(Notice("reasoning_missing", why))
    items = [fields.extras] if fields.extras else []
    items += [string(name) + b":" + string(text) for name, text in fields.reasoning.items()]
    if fields.content:
        content = content_of(fields.content, traits, message.parts)
        items.append(b'"content":' + content)
    if fields.calls:
        items.append(b'"tool_calls":[' + b",".join(fields.calls) + b"]")
    return b'{"role":"assistant",' + b",".join(items) + b"}" if items else None


def tool_call(part: ToolCall) -> bytes:
    call = string(part.id), string(part.name), arguments_text(part)
    block = b'{"id":%b,"type":"function","function":{"name":%b,"arguments":%b}}' % call
    return merged(block, part.extras, WIRE)


def reasoning_field(part: Thinking, host: str | None = None) -> str | None:
    """The original field of reasoning on this wire; None for reasoning of other wires, or of
    another host than `host`."""
    if part.provider != WIRE:
        return None
    origin = own_members(part.extras, WIRE)
    foreign = host is not None and known_text(origin, "host") not in ("", host)
    return None if foreign else known_text(origin, "field") or None


def thinking_part(part: Thinking) -> bytes:
    """Reasoning as a content part."""
    extras = own_members(part.extras, WIRE)
    texts = b'[{"type":"text","text":' + string(part.text) + b"}]"
    thinking = bytes(extras.pop("thinking", texts))
    rest = {name: raw for name, raw in extras.items() if name not in ("field", "host")}
    return b'{"type":"thinking","thinking":' + thinking + following(rest) + b"}"


def message_fields(parts: Iterable[Part]) -> bytes:
    """The message fields that are kept as opaque parts, as members of an object."""
    return fields_in_parts(parts, (WIRE,), MESSAGE_FIELDS) if Opaque in map(type, parts) else b""


def is_fields(part: Part) -> bool:
    return type(part) is Opaque and part.kind == MESSAGE_FIELDS and part.provider == WIRE


_opaque = partial(opaque_json, owners=(WIRE,), host="OpenAI")

# ── Content parts ─────────────────────────────────────────────────────────────────────────────────


def encode_part(part: Part, notices: Notices, role: str) -> tuple[Kind, bool, bytes | None]:
    """A part's kind, whether it may be marked, and its bytes."""
    if type(part) is Text:  # nearly always
        return _TEXT, bool(part.text), text_part(part.text, part.extras)
    kind, markable, encode = _encoder_of(role, part)
    return kind, markable, encode(part, notices)


def _encoder_of(role: str, part: object) -> tuple[Kind, bool, Encode]:
    """The kind of a part other than text, whether it may carry a breakpoint, and its encoder in a
    message of that role. Roles other than the user take only text and opaque parts."""
    if isinstance(part, Opaque):
        misplaced = part.provider == WIRE and part.kind in (MESSAGE_FIELDS, OTHER_CALL)
        row = TABLE.blocks.get(part.kind, TABLE.other)
        markable = row.markable and part.kind != "text"
        return Kind.OTHER, markable, _left_out if misplaced else _opaque
    check_part(part, _ENCODERS)
    kind, markable, encode = _ENCODERS[type(part)]
    if role != "user" and not isinstance(part, Thinking):
        return kind, False, _left_out
    return kind, markable, encode


def content_of(parts: Sequence[bytes], traits: Traits, sent: Iterable[Part] = ()) -> bytes:
    """The content of a message that takes no marks: a lone plain text is a string, since some hosts
    and chat templates take no list. As sent, one stays in the list in which it was read."""
    listed = traits.as_sent and any(
        type(part) is Text and has_form(part.extras, LISTED) for part in sent
    )
    if listed:
        return b"[" + b",".join(parts) + b"]"
    if len(parts) == 1 or traits.only_strings:
        texts = [text for part in parts if (text := _plain_text(part)) is not None]
        if len(texts) == len(parts):
            return b'"' + b"\\n\\n".join(texts) + b'"'
    return b"[" + b",".join(parts) + b"]"


def _plain_text(part: bytes) -> bytes | None:
    """The text of a part that is only a text, as JSON without its quotes."""
    text = part.removeprefix(_TEXT_PART)[:-1]
    try:
        return text[1:-1] if text != part[:-1] and decode_text(text) is not None else None
    except DECODE_ERRORS:
        return None  # there are other members


def text_part(text: str, extras: Extras | None = None) -> bytes:
    return merged(_TEXT_PART + string(text) + b"}", extras, WIRE)


def _image(part: Image, notices: Notices) -> bytes | None:
    source = part.source
    if isinstance(source, FileId):
        notices.append(Notice("image_source", "Chat takes no file id for an image; left out"))
        return None
    url = string(source.url if isinstance(source, Url) else data_url(source))
    detail = b"" if part.detail is None else b',"detail":' + string(part.detail)
    image = b'{"url":' + url + detail + b"}"
    return merged(b'{"type":"image_url","image_url":%b}' % image, part.extras, WIRE)


def _audio(part: Audio, notices: Notices) -> bytes | None:
    source = part.source
    if not isinstance(source, Bytes) or not source.media_type.startswith("audio/"):
        notices.append(Notice("audio_source", "Chat takes audio as bytes only; left out"))
        return None
    format = _AUDIO_FORMATS.get(source.media_type)
    if format is None:
        format = source.media_type.removeprefix("audio/")
        notices.append(Notice("audio_format", f"OpenAI takes wav and mp3; sent as {format}"))
    audio = b'{"data":"%b","format":%b}' % (base64.b64encode(source.data), string(format))
    return merged(b'{"type":"input_audio","input_audio":%b}' % audio, part.extras, WIRE)


def _document(part: Document, notices: Notices) -> bytes | None:
    source, title = part.source, part.title
    if isinstance(source, Url):
        notices.append(Notice("document_url", "Chat fetches no documents; left out"))
        return None
    if part.context is not None:
        why = "a document has no context here; left out"
        notices.append(Notice("context_unsupported", why, "context"))
    if isinstance(source, FileId):
        file = file_id(source, notices)
        if file is None:
            return None
    elif (text := _document_text(source)) is not None and WIRE not in (part.extras or ()):
        why = "Chat takes PDF files only; the document is sent as text"
        notices.append(Notice("document_as_text", why))
        return text_part(text if title is None else f"{title}\n\n{text}")
    else:
        file = b'"file_data":' + string(data_url(source))
        # A file in the request needs a name.
        title = title if title is not None else _FILE_NAMES.get(source.media_type, "document")
    name = b"" if title is None else b',"filename":' + string(title)
    return merged(b'{"type":"file","file":{%b%b}}' % (file, name), part.extras, WIRE)


def _document_text(source: Bytes) -> str | None:
    """The text of a document of plain text; None for others."""
    if not source.media_type.startswith("text/"):
        return None
    try:
        return source.data.decode()
    except UnicodeDecodeError:
        return None


def _left_out(part: Part, notices: Notices) -> None:
    name = type(part).__name__
    notices.append(Notice("part_left_out", f"Chat has no place for {name} here; left out"))


def _thinking(_: Thinking, notices: Notices) -> None:
    why = "Chat Completions has no field for reasoning; left out"
    notices.append(Notice("thinking_left_out", why))


_AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
_FILE_NAMES = {"application/pdf": "document.pdf", "text/plain": "document.txt"}

#: In a user's message, besides texts and opaque parts.
_ENCODERS: dict[type, tuple[Kind, bool, Encode]] = {
    Image: (Kind.IMAGE, True, _image),
    Document: (Kind.DOCUMENT, True, _document),
    Audio: (Kind.AUDIO, True, _audio),
    Thinking: (Kind.THINKING, False, _thinking),
    ToolCall: (Kind.TOOL_CALL, False, _left_out),
    ToolResult: (Kind.TOOL_RESULT, False, _left_out),
    Refusal: (_TEXT, False, _left_out),
}
