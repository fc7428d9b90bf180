"""Encodes tools, system blocks and parts as JSON: one encoder for each kind.

An encoder returns the block's bytes, or None with a notice if Converse has no block for the part.
Fields have one fixed order. A marker is a block of its own after the one that it marks.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import msgspec
from blake3 import blake3

from anaphora.canonical import dumps, string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import PromptBlock
from anaphora.rendered import ChunkLog, Kind
from anaphora.values import (
    AnyTool,
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
    ProviderTool,
    Refusal,
    ResultPart,
    Source,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from anaphora.values.codec import check_object
from anaphora.wire.alternating import UNSIGNED, Encoder, MessageForm
from anaphora.wire.params import merge_fields
from anaphora.wire.parts import (
    check_image,
    check_part,
    is_fields_part,
    object_arguments,
    opaque_json,
    own_members,
    render_items,
)
from anaphora.wire.reading import DECODE_ERRORS, Members, decode_members

from .types import CACHE_POINT, FORM, MESSAGE_FIELDS, WIRE

Notices: TypeAlias = list[Notice]

TEXT = b'{"text":'
TOOL_USE = b'{"toolUse":{"toolUseId":%b,"name":%b,"input":%b'
TOOL_RESULT = b'{"toolResult":{"toolUseId":%b,"content":['
#: The content of a result without any: an empty list is refused.
NO_CONTENT = b'{"json":null}'
#: The offset of a marker, counted back from the end of the block before it.
AFTER_BLOCK = 0
#: Blocks that are kept whole and may be marked. After a video a marker is refused.
_MARKABLE_OTHERS = ("guardContent", "searchResult")

_BLANK = Notice("blank_text", "a blank text block is refused, so it is left out")

#: The formats of documents, and their media types.
DOCUMENTS = {
    "pdf": "application/pdf",
    "csv": "text/csv",
    "doc": "application/msword",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "xls": "application/vnd.ms-excel",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "html": "text/html",
    "txt": "text/plain",
    "md": "text/markdown",
}
_DOCUMENT_FORMATS = {media_type: name for name, media_type in DOCUMENTS.items()}
#: The formats of images and audio whose media type has another name.
MEDIA_TYPES = {"jpg": "jpeg", "mp3": "mpeg", "m4a": "mp4"}
_MEDIA_FORMATS = {"mpeg": "mp3", "x-wav": "wav"}
_NAME_LIMIT = 200
#: Characters that the name of a document may not have.
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9 _()\[\]-]+|\s{2,}")


# ── Tools and system blocks ──────────────────────────────────────────────────────────────────────


def tool_log(tools: tuple[AnyTool, ...], splice: int | None) -> ChunkLog:
    blocks = render_items("tools", tools, _tool, splice)
    return ChunkLog.of(blocks, [f"tool {tool.name}" for tool in tools], [t.cache for t in tools])


def system_log(blocks: tuple[PromptBlock, ...], splice: int | None) -> ChunkLog:
    def encode(block: PromptBlock) -> bytes:
        return _merged(TEXT + string(block.text) + b"}", block.extras)

    texts = render_items("system", blocks, encode, splice)
    return ChunkLog.of(texts, [block.label for block in blocks], [b.cache for b in blocks])


def _tool(tool: AnyTool) -> bytes:
    if isinstance(tool, ProviderTool):
        return check_object(tool.json, path="json").encode()
    name = b'{"toolSpec":{"name":' + string(tool.name)
    description = b',"description":' + string(tool.description) if tool.description else b""
    schema = b',"inputSchema":{"json":' + check_object(tool.schema, path="schema").encode() + b"}"
    strict = b"" if tool.strict is None else b',"strict":' + dumps(tool.strict)
    return _merged(name + description + schema + strict + b"}}", tool.extras)


# ── Texts, calls, reasoning ──────────────────────────────────────────────────────────────────────


def _text(part: Text, notices: Notices, *, blank: bool = False) -> bytes | None:
    """A text; `blank`: whether one of white space is accepted."""
    if part.extras is not None and "citationsContent" in own_members(part.extras, WIRE):
        content = b'"content":[' + TEXT + string(part.text) + b"}]" if part.text else b""
        return _merged(b'{"citationsContent":{' + content + b"}}", part.extras)
    if not part.text or (part.text.isspace() and not blank):
        notices.append(_BLANK)
        return None
    return _merged(TEXT + string(part.text) + b"}", part.extras)


def _merged(block: bytes, extras: Extras | None) -> bytes:
    """A block with its unknown members, which may be inside of objects in it."""
    if extras is None or WIRE not in extras:
        return block
    path = f"extras.{WIRE}"
    return merge_fields(block, check_object(extras[WIRE], path=path).encode(), path)


def _refusal(part: Refusal, notices: Notices) -> bytes | None:
    notices.append(Notice("refusal_as_text", "Converse has no refusal block; sent as text"))
    return _text(Text(part.text, part.extras), notices)


def _tool_call(part: ToolCall, notices: Notices) -> bytes:
    names = string(part.id), string(part.name)
    call = TOOL_USE % (*names, object_arguments(part.arguments, notices))
    return _merged(call + b"}}", part.extras)


def _thinking(part: Thinking, notices: Notices) -> bytes | None:
    if part.provider not in (None, WIRE):
        reason = f"reasoning of {part.provider} is unknown to Bedrock; left out"
        notices.append(Notice("foreign_thinking", reason))
        return None
    if part.data is not None and part.signature is None:
        content = b'{"reasoningContent":{"redactedContent":' + string(part.data) + b"}}"
        return _merged(content, part.extras)
    if part.data is not None:
        reason = "signed reasoning holds no data; left out"
        notices.append(Notice("redacted_left_out", reason, "data"))
    if not part.text and part.signature is None:
        notices.append(UNSIGNED)
        return None
    signed = b"" if part.signature is None else b',"signature":' + string(part.signature)
    text = b'{"reasoningContent":{"reasoningText":{"text":' + string(part.text) + signed + b"}}}"
    return _merged(text, part.extras)


def is_unsigned(part: Part, profile: Profile) -> bool:
    """Whether reasoning lacks the signature that Claude requires. Other models sign none."""
    family = profile.converse_family
    return (
        isinstance(part, Thinking)
        and part.data is None
        and not part.signature
        and part.provider in (None, WIRE)
        and family is not None
        and family.value == "claude"
    )


def _opaque(part: Opaque, notices: Notices) -> bytes | None:
    if is_fields_part(part, (WIRE,), MESSAGE_FIELDS):
        return None  # they are part of the message
    return opaque_json(part, notices, (WIRE,), "Bedrock")


# ── Media ────────────────────────────────────────────────────────────────────────────────────────


def _image(part: Image, notices: Notices) -> bytes | None:
    check_image(part.source)
    if part.detail is not None:
        reason = "Bedrock has no image detail; left out"
        notices.append(Notice("detail_unsupported", reason, "detail"))
    return _media("image", part.source, part.extras, notices)


def _audio(part: Audio, notices: Notices) -> bytes | None:
    source = part.source
    if isinstance(source, Bytes) and not source.media_type.startswith("audio/"):
        reason = f"{source.media_type} is not an audio type; left out"
        notices.append(Notice("audio_source", reason))
        return None
    return _media("audio", source, part.extras, notices)


def _media(kind: str, source: Source, extras: Extras | None, notices: Notices) -> bytes | None:
    encoded = _source(source, notices)
    if encoded is None:
        return None
    name = (source.media_type or f"{kind}/").partition("/")[2] or _extension(source)
    format = string(_MEDIA_FORMATS.get(name, name))
    return _merged(b'{"%b":{"format":%b,"source":%b}}' % (kind.encode(), format, encoded), extras)


def _document(part: Document, notices: Notices) -> bytes | None:
    source = part.source
    media_type = source.media_type or DOCUMENTS.get(_extension(source), "")
    format = _DOCUMENT_FORMATS.get(media_type.partition(";")[0])
    if format is None and not isinstance(source, Bytes):
        format = "pdf"  # what most of them are
    if format is None:
        reason = f"Bedrock takes no document of the type {media_type}; left out"
        notices.append(Notice("document_type", reason))
        return None
    as_text = read_form(part.extras) == b'"text"'
    encoded = _text_source(source) if as_text else _source(source, notices)
    if encoded is None:
        return None
    name = string(document_name(part, notices))
    context = b"" if part.context is None else b',"context":' + string(part.context)
    begin = b'{"document":{"name":%b,"format":"%b","source":%b' % (name, format.encode(), encoded)
    return _merged(begin + context + b"}}", part.extras)


def document_name(part: Document, notices: Notices) -> str:
    """The name, which Bedrock requires: one made of the content if the document has no title."""
    if part.title is None or not part.title.strip():
        source = part.source
        data = source.data if isinstance(source, Bytes) else _address(source).encode()
        return f"document-{blake3(data).hexdigest()[:8]}"
    name = _NOT_IN_NAMES.sub(lambda found: " " if found[0].isspace() else "-", part.title)
    name = name[:_NAME_LIMIT]
    if name != part.title:
        reason = f"Bedrock takes no such name of a document; sent as {name!r}"
        notices.append(Notice("document_renamed", reason, "title"))
    return name


def _source(source: Source, notices: Notices) -> bytes | None:
    if isinstance(source, Bytes):
        return b'{"bytes":"' + base64.b64encode(source.data) + b'"}'
    if isinstance(source, FileId) and source.provider == WIRE:
        return b'{"s3Location":{"uri":' + string(source.id) + b"}}"
    if isinstance(source, FileId):
        reason = f"a file id of {source.provider} is unknown to Bedrock; left out"
        notices.append(Notice("foreign_file", reason))
    elif source.url.startswith("s3://"):
        return b'{"s3Location":{"uri":' + string(source.url) + b"}}"
    else:
        reason = "Bedrock fetches nothing but s3:// addresses; give the bytes instead; left out"
        notices.append(Notice("url_unsupported", reason))
    return None


def _text_source(source: Source) -> bytes:
    assert isinstance(source, Bytes)
    try:
        return TEXT + string(source.data.decode()) + b"}"
    except UnicodeDecodeError as problem:
        reason = f"text is not UTF-8 at byte {problem.start}"
        raise InvalidRequest(reason, path="source.data") from None


def _address(source: Source) -> str:
    return source.id if isinstance(source, FileId) else getattr(source, "url", "")


def _extension(source: Source) -> str:
    return _address(source).rpartition(".")[2].lower()


def reply_block(part: Part) -> bytes | None:
    """The block of a part of a reply, which may be a blank text; None if there is none for it."""
    if isinstance(part, Text | Refusal) and (not part.text or part.text.isspace()):
        cited = "citationsContent" in own_members(part.extras, WIRE)
        return _text(Text("", part.extras), []) if cited else TEXT + string(part.text) + b"}"
    return ENCODERS[type(part)][1](part, [])


def read_form(extras: Extras | None) -> bytes:
    """The form in which a value was read, as JSON; empty if there is none."""
    return extras[FORM].encode() if extras is not None and FORM in extras else b""


# ── Tool results ─────────────────────────────────────────────────────────────────────────────────


def _tool_result(part: ToolResult, notices: Notices, *, status: bool = True) -> bytes:
    """A result; some models refuse its status."""
    content = (Text(part.content),) if isinstance(part.content, str) else part.content
    blocks = _result_blocks(content, notices) or [NO_CONTENT]
    failed = b',"status":"error"' if part.error and status else b""
    if part.error and not status:
        reason = "this model takes no status of a result, so a failure is told by its text only"
        notices.append(Notice("result_status_left_out", reason))
    begin = TOOL_RESULT % string(part.call_id) + b",".join(blocks) + b"]"
    return _merged(begin + failed + b"}}", part.extras)


def _result_blocks(parts: Sequence[ResultPart], notices: Notices) -> list[bytes]:
    blocks = []
    for index, part in enumerate(parts):
        if isinstance(part, Text) and part.text == "":
            continue
        check_part(part, ENCODERS)
        encode: Encoder = _json if isinstance(part, Text) else ENCODERS[type(part)][1]
        try:
            block = encode(part, notices)
        except InvalidRequest as problem:
            raise problem.within(f"content[{index}]") from None
        if block is not None:
            blocks.append(block)
    return blocks


def _json(part: Text, notices: Notices) -> bytes | None:
    """A text, or the JSON value that it was read from."""
    if read_form(part.extras) == b'"json"':
        try:
            return b'{"json":' + bytes(msgspec.json.decode(part.text, type=msgspec.Raw)) + b"}"
        except DECODE_ERRORS:
            pass  # the text was changed
    return _text(part, notices)


ENCODERS: dict[type, tuple[Kind, Encoder]] = {
    Text: (Kind.TEXT, _text),
    Image: (Kind.IMAGE, _image),
    Document: (Kind.DOCUMENT, _document),
    Audio: (Kind.AUDIO, _audio),
    ToolCall: (Kind.TOOL_CALL, _tool_call),
    ToolResult: (Kind.TOOL_RESULT, _tool_result),
    Thinking: (Kind.THINKING, _thinking),
    Refusal: (Kind.TEXT, _refusal),
    Opaque: (Kind.OTHER, _opaque),
}

# ── Where markers may stand ──────────────────────────────────────────────────────────────────────

#: The kinds of blocks in messages that a model takes a marker after, by their names in the catalog.
_PLACES: dict[type, str] = {
    Text: "text",
    Refusal: "text",
    Image: "image",
    Document: "document",
    ToolCall: "toolUse",
    ToolResult: "toolResult",
}


def splice_at(place: str, places: frozenset[str] | None) -> int | None:
    """The offset of a marker after a block of that kind. A model of which it is not known where it
    takes markers keeps the caller's."""
    return AFTER_BLOCK if places is None or place in places else None


def _encoder_for(
    part: object,
    _: bool,
    places: frozenset[str] | None,
    status: bool,
    blank: bool,
) -> tuple[Kind, int | None, Encoder]:
    check_part(part, ENCODERS)
    kind, encode = ENCODERS[type(part)]
    if not status and isinstance(part, ToolResult):
        encode = partial(_tool_result, status=False)
    elif blank and isinstance(part, Text):
        encode = partial(_text, blank=True)
    place = _PLACES.get(type(part), "")
    if isinstance(part, Opaque) and part.kind in _MARKABLE_OTHERS:
        place = "text"
    elif isinstance(part, Document) and not _may_precede_marker(part):
        place = ""
    return kind, splice_at(place, places) if place else None, encode


def _may_precede_marker(part: Document) -> bool:
    """Claude takes a marker after a PDF or a document with citations, and refuses others."""
    if part.source.media_type in (None, DOCUMENTS["pdf"]):
        return True
    document = own_members(part.extras, WIRE).get("document", b"{}")
    return "citations" in decode_members(document)


def form_of(
    places: frozenset[str] | None,
    check: Callable[[Message, bool], None] | None = None,
    *,
    status: bool = True,
    blank: bool = False,
) -> MessageForm:
    """The blocks for a model that takes markers there. `check` raises for those that it refuses;
    `status`: whether it takes the status of a tool result; `blank`: texts of white space."""
    text, call, result = (splice_at(name, places) for name in ("text", "toolUse", "toolResult"))
    return MessageForm(
        wire=WIRE,
        host="Converse",
        fields=MESSAGE_FIELDS,
        encoder_for=partial(_encoder_for, places=places, status=status, blank=blank),
        is_unsigned=is_unsigned,
        text=TEXT,
        call=TOOL_USE + b"}}",
        result=TOOL_RESULT,
        result_end=b"]}}",
        splices=(text, call, result),
        text_beside_results=result is not None or text is None,
        check=check,
    )


def is_cache_point(members: Members) -> bool:
    return len(members) == 1 and CACHE_POINT in members
