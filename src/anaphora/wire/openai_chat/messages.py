"""The messages of a Chat Completions request, and their content parts.

Every source message opens messages of its own. One whose content is a list stays open after its
last part; the assistant's is a single chunk and closed. So the glue before a chunk depends only on
the role before it, which makes appending cheap and exact.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind, LogAppend
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
from anaphora.wire.message_runs import UNFINISHED_REASONING
from anaphora.wire.openai import (
    MarkPlace,
    arguments_text,
    data_url,
    file_id,
    place_of,
)
from anaphora.wire.parts import (
    check_part,
    closing,
    encode_at,
    fields_in_parts,
    following,
    following_extras,
    inner_and_outer,
    leading_results,
    note_foreign_fields,
    opaque_json,
    own_members,
    unknown_role,
)
from anaphora.wire.reading import decode_members, known_text
from anaphora.wire.splitting import BEFORE_BRACE

from .fields import TABLE
from .params import Traits
from .types import (
    IN_CONTENT,
    MESSAGE_FIELDS,
    OTHER_CALL,
    REASONING_FIELDS,
    WIRE,
)

Notices: TypeAlias = list[Notice]
#: Encodes a part; None where Chat has no way to send it.
Encode: TypeAlias = Callable[[Any, Notices], bytes | None]

# Looked up once: access to an enum member is slow.
_TEXT, _CALL, _RESULT = Kind.TEXT, Kind.TOOL_CALL, Kind.TOOL_RESULT


_USER_TEXT = b'{"role":"user","content":[{"type":"text","text":'
_RESULT_TEXT = b'{"role":"tool","tool_call_id":%b,"content":[{"type":"text","text":%b}'


class Piece(NamedTuple):
    """A chunk of a message, and the path of its part."""

    path: tuple[int, ...]
    kind: Kind
    data: bytes
    markable: bool
    role: str
    opening: bytes | None
    """The beginning of its message on the wire; None inside one that has begun."""


def glue(role: str | None) -> bytes:
    """The bytes between a message of that role and the next."""
    return b"" if role is None else b"," if role == "assistant" else b"]},"


def close(role: str) -> bytes:
    """The end of the list of messages after one of that role."""
    return b"]" if role == "assistant" else b"]}]"


def add_messages(
    append: LogAppend, messages: Sequence[Message], role: str | None, where: str, traits: Traits
) -> None:
    """Appends the chunks of these messages. `role` is the wire role before them; None at the
    beginning of a log, whose first chunk has no glue."""
    splice = BEFORE_BRACE if traits.breakpoints else None
    for message in messages:
        plain = _plain(message, traits)
        if plain is not None:
            kind, data, markable, after = plain
            append.chunk(kind, glue(role) + data, splice if markable else None, after)
            append.end_message(message.id)
            role = after
            continue
        notices: Notices = []
        place = f"{where}[{append.message}]"
        for piece in encode_at(place, lay_out, message, notices, traits):
            data, opens = b"," + piece.data, None
            if piece.opening is not None:
                data = glue(role) + piece.opening + piece.data
                role = opens = piece.role
            append.chunk(piece.kind, data, splice if piece.markable else None, opens)
        for notice in notices:
            append.notice(notice)
        note_foreign_fields(append, message, WIRE, place)
        append.end_message(message.id)


def _plain(message: Message, traits: Traits) -> tuple[Kind, bytes, bool, str] | None:
    """The only chunk of a message that is a text, a text with calls, or the text of one result,
    without extras: its kind, its bytes without glue, whether it may be marked, and the wire role.
    Nearly all messages are such, and `lay_out` takes three times as long for the same bytes. None
    for other messages, and for those that it rejects."""
    role, parts = message.role, message.parts
    try:
        if role == "assistant":
            return None if traits.reasoning_needed else _plain_assistant(parts)
        part = parts[0] if len(parts) == 1 else None
        if isinstance(part, Text) and part.extras is None and role == "user":
            return _TEXT, _USER_TEXT + string(part.text) + b"}", bool(part.text), role
        if isinstance(part, ToolResult) and part.extras is None and role == "tool":
            content = part.content
            if isinstance(content, str) and not part.error:
                data = _RESULT_TEXT % (string(part.call_id), string(content))
                return _RESULT, data, bool(content), role
    except InvalidRequest:
        pass
    return None


def _plain_assistant(parts: tuple[Part, ...]) -> tuple[Kind, bytes, bool, str] | None:
    content, calls = b"", list[bytes]()
    for part in parts:
        if isinstance(part, Text) and part.extras is None and not content and not calls:
            content = b'"content":[{"type":"text","text":' + string(part.text) + b"}]"
        elif isinstance(part, ToolCall) and part.extras is None:
            calls.append(tool_call(part))
        else:
            return None
    if calls:
        listed = b'"tool_calls":[' + b",".join(calls) + b"]"
        content = content + b"," + listed if content else listed
    if not content:
        return None
    data = b'{"role":"assistant",' + content + b"}"
    return _CALL if calls else _TEXT, data, False, "assistant"


def lay_out(message: Message, notices: Notices, traits: Traits) -> list[Piece]:
    """The chunks of a message in wire order."""
    if message.role == "assistant":
        data = assistant_message(message, traits, notices)
        kind = _CALL if ToolCall in map(type, message.parts) else _TEXT
        pieces = [] if data is None else [Piece((), kind, data, False, "assistant", b"")]
    elif message.role == "system":
        place = place_of(message.parts)
        notices += traits.system_roles.notices(place, "role")
        pieces = _content_pieces(message, traits.system_roles.write(place), notices)
    elif message.role in ("user", "tool"):
        has_results = ToolResult in map(type, message.parts)
        pieces = _result_pieces(message, notices) if has_results else []
        pieces += _content_pieces(message, "user", notices)
    else:
        raise unknown_role(message.role)
    if not pieces and not notices:
        notices.append(Notice("empty_message", "a message without content is left out"))
    return pieces


def mark_places(message: Message, traits: Traits) -> list[MarkPlace]:
    pieces = enumerate(lay_out(message, [], traits))
    return [MarkPlace(piece.path, chunk, piece.markable) for chunk, piece in pieces]


def _result_pieces(message: Message, notices: Notices) -> list[Piece]:
    """The tool results, each a message of its own, before the other parts."""
    pieces: list[Piece] = []
    for index, part in leading_results(message.parts, is_fields, notices):
        result = encode_at(f"parts[{index}]", _result, part, notices)
        pieces += [piece._replace(path=(index, *piece.path)) for piece in result]
    return pieces


def _result(part: ToolResult, notices: Notices) -> list[Piece]:
    if part.error:
        why = "Chat has no flag for a failed tool; only its text is sent"
        notices.append(Notice("error_flag_left_out", why, "error"))
    call_id = string(part.call_id) + following_extras(part.extras, WIRE)
    opening: bytes | None = b'{"role":"tool","tool_call_id":%b,"content":[' % call_id
    content = part.content
    if isinstance(content, str):
        return [Piece((0,), _RESULT, text_part(content), bool(content), "tool", opening)]
    pieces: list[Piece] = []
    for index, inner in enumerate(content):
        path = f"content[{index}]"
        _, markable, data = encode_at(path, encode_part, inner, notices, "tool")
        if data is not None:
            pieces.append(Piece((index,), _RESULT, data, markable, "tool", opening))
            opening = None
    # The call must be answered, even if no part of the result can be sent.
    return pieces or [Piece((0,), _RESULT, text_part(""), False, "tool", opening)]


def _content_pieces(message: Message, role: str, notices: Notices) -> list[Piece]:
    """A message whose content is a list, one chunk per part."""
    fields = message_fields(message.parts)
    more = b"," + fields if fields else b""
    opening: bytes | None = b'{"role":"%b"%b,"content":[' % (role.encode(), more)
    pieces: list[Piece] = []
    for index, part in enumerate(message.parts):
        if is_fields(part) or (isinstance(part, ToolResult) and role == "user"):
            continue
        path = f"parts[{index}]"
        kind, markable, data = encode_at(path, encode_part, part, notices, role)
        if data is not None:
            pieces.append(Piece((index,), kind, data, markable, role, opening))
            opening = None
    if fields and not pieces:
        notices.append(Notice("fields_left_out", "fields of a message without content"))
    return pieces


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
    message: Message, notices: Notices, field: str | None = None, host: str | None = None
) -> AssistantFields:
    """The parts by field, with a notice for each that has none. `field` is the one for reasoning,
    if not the one it came in; `host` is the provider it is sent to."""
    fields = AssistantFields(extras=message_fields(message.parts))
    for index, part in enumerate(message.parts):
        if not is_fields(part):
            encode_at(f"parts[{index}]", _sort_part, part, notices, fields, field, host)
    return fields


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
        data = b'{"type":"refusal","refusal":' + string(part.text) + closing(part.extras, WIRE)
    elif isinstance(part, Opaque):
        data = _opaque(part, notices)
        if data is not None and part.kind == OTHER_CALL:
            fields.calls.append(data)
            data = None
    else:
        data = _encoder_of("assistant", part)[2](part, notices)
    if data is not None:
        if fields.calls:
            notices.append(Notice("parts_reordered", "content stands before tool calls here"))
        fields.content.append(data)


def assistant_message(message: Message, traits: Traits, notices: Notices) -> bytes | None:
    """The message in a request; None if there is nothing to send."""
    field = traits.reasoning_field
    fields = sort_parts(message, notices, field, traits.host)
    if fields.only_reasoning:
        notices.append(UNFINISHED_REASONING)
        return None
    if traits.reasoning_needed and fields.calls and not fields.reasoning:
        fields.reasoning[field or REASONING_FIELDS[0]] = ""
        why = "calls need their reasoning here; an empty one is sent"
        notices.append(Notice("reasoning_missing", why))
    items = [fields.extras] if fields.extras else []
    items += [string(name) + b":" + string(text) for name, text in fields.reasoning.items()]
    if fields.content:
        items.append(b'"content":[' + b",".join(fields.content) + b"]")
    if fields.calls:
        items.append(b'"tool_calls":[' + b",".join(fields.calls) + b"]")
    return b'{"role":"assistant",' + b",".join(items) + b"}" if items else None


def tool_call(part: ToolCall) -> bytes:
    inner, outer = inner_and_outer(part.extras, WIRE, "function")
    return b'{"id":%b,"type":"function","function":{"name":%b,"arguments":%b%b}%b}' % (
        string(part.id),
        string(part.name),
        arguments_text(part),
        inner,
        outer,
    )


def reasoning_field(part: Thinking, host: str | None = None) -> str | None:
    """The field of this wire that the reasoning came in; None for reasoning of other wires, or of
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


def text_part(text: str, extras: Extras | None = None) -> bytes:
    return b'{"type":"text","text":' + string(text) + closing(extras, WIRE)


def _image(part: Image, notices: Notices) -> bytes | None:
    source = part.source
    if isinstance(source, FileId):
        notices.append(Notice("image_source", "Chat takes no file id for an image; left out"))
        return None
    url = string(source.url if isinstance(source, Url) else data_url(source))
    detail = b"" if part.detail is None else b',"detail":' + string(part.detail)
    image = b'{"url":' + url + detail + b"}"
    return b'{"type":"image_url","image_url":' + image + closing(part.extras, WIRE)


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
    return b'{"type":"input_audio","input_audio":' + audio + closing(part.extras, WIRE)


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
    return b'{"type":"file","file":{' + file + name + b"}" + closing(part.extras, WIRE)


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
    ToolCall: (_CALL, False, _left_out),
    ToolResult: (_RESULT, False, _left_out),
    Refusal: (_TEXT, False, _left_out),
}
