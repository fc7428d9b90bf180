"""Encodes tools, system blocks and parts as JSON: one encoder for each kind.

An encoder returns the block's bytes, or None with a notice if Converse has no block for the part.
Fields have one fixed order. A marker is a block of its own after the one that it marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import msgspec

from anaphora.canonical import dumps, string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import PromptBlock
from anaphora.rendered import ChunkLog, Kind
from anaphora.values import (
    AnyTool,
    Audio,
    Document,
    Image,
    Notice,
    Opaque,
    Part,
    ProviderTool,
    Refusal,
    ResultPart,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from anaphora.values.codec import check_object
from anaphora.wire.alternating import UNSIGNED, Encoder, MessageForm
from anaphora.wire.parts import (
    check_part,
    is_fields_part,
    merged,
    object_arguments,
    opaque_json,
    own_members,
    render_items,
)
from anaphora.wire.reading import DECODE_ERRORS, decode_members

from .media import DOCUMENTS, encode_audio, encode_document, encode_image, read_form
from .types import MESSAGE_FIELDS, WIRE

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

# ── Tools and system blocks ──────────────────────────────────────────────────────────────────────


def tool_log(tools: tuple[AnyTool, ...], splice: int | None) -> ChunkLog:
    blocks = render_items("tools", tools, _tool, splice)
    return ChunkLog.of(blocks, [f"tool {tool.name}" for tool in tools], [t.cache for t in tools])


def system_log(blocks: tuple[PromptBlock, ...], splice: int | None) -> ChunkLog:
    def encode(block: PromptBlock) -> bytes:
        return merged(TEXT + string(block.text) + b"}", block.extras, WIRE)

    texts = render_items("system", blocks, encode, splice)
    return ChunkLog.of(texts, [block.label for block in blocks], [b.cache for b in blocks])


def _tool(tool: AnyTool) -> bytes:
    if isinstance(tool, ProviderTool):
        return check_object(tool.json, path="json").encode()
    name = b'{"toolSpec":{"name":' + string(tool.name)
    description = b',"description":' + string(tool.description) if tool.description else b""
    schema = b',"inputSchema":{"json":' + check_object(tool.schema, path="schema").encode() + b"}"
    strict = b"" if tool.strict is None else b',"strict":' + dumps(tool.strict)
    return merged(name + description + schema + strict + b"}}", tool.extras, WIRE)


# ── Texts, calls, reasoning ──────────────────────────────────────────────────────────────────────


def _text(
    part: Text, notices: Notices, *, blank: bool = False, as_sent: bool = False
) -> bytes | None:
    """A text; `blank`: whether one of white space is accepted."""
    if part.extras is not None and "citationsContent" in own_members(part.extras, WIRE):
        content = b'"content":[' + TEXT + string(part.text) + b"}]" if part.text else b""
        return merged(b'{"citationsContent":{' + content + b"}}", part.extras, WIRE)
    if not as_sent and (not part.text or (part.text.isspace() and not blank)):
        notices.append(_BLANK)
        return None
    return merged(TEXT + string(part.text) + b"}", part.extras, WIRE)


def _refusal(part: Refusal, notices: Notices) -> bytes | None:
    notices.append(Notice("refusal_as_text", "Converse has no refusal block; sent as text"))
    return _text(Text(part.text, part.extras), notices)


def _tool_call(part: ToolCall, notices: Notices) -> bytes:
    names = string(part.id), string(part.name)
    call = TOOL_USE % (*names, object_arguments(part.arguments, notices))
    return merged(call + b"}}", part.extras, WIRE)


def _thinking(part: Thinking, notices: Notices) -> bytes | None:
    if part.provider not in (None, WIRE):
        reason = f"reasoning of {part.provider} is unknown to Bedrock; left out"
        notices.append(Notice("foreign_thinking", reason))
        return None
    if part.data is not None and part.signature is None:
        content = b'{"reasoningContent":{"redactedContent":' + string(part.data) + b"}}"
        return merged(content, part.extras, WIRE)
    if part.data is not None:
        reason = "signed reasoning holds no data; left out"
        notices.append(Notice("redacted_left_out", reason, "data"))
    if not part.text and part.signature is None:
        notices.append(UNSIGNED)
        return None
    signed = b"" if part.signature is None else b',"signature":' + string(part.signature)
    text = b'{"reasoningContent":{"reasoningText":{"text":' + string(part.text) + signed + b"}}}"
    return merged(text, part.extras, WIRE)


def is_unsigned(part: Part, profile: Profile) -> bool:
    """Whether reasoning lacks the signature that Claude requires. Other models sign none."""
    family = profile.converse_family
    return (
        isinstance(part, Thinking)
        and (part.signature == "" or (part.signature is None and part.data is None))
        and part.provider in (None, WIRE)
        and family is not None
        and family.value == "claude"
    )


def _opaque(part: Opaque, notices: Notices) -> bytes | None:
    if is_fields_part(part, (WIRE,), MESSAGE_FIELDS):
        return None  # they are part of the message
    return opaque_json(part, notices, (WIRE,), "Bedrock")


def reply_block(part: Part) -> bytes | None:
    """The block of a part of a reply, which may be a blank text; None if there is none for it."""
    if isinstance(part, Text | Refusal) and (not part.text or part.text.isspace()):
        cited = "citationsContent" in own_members(part.extras, WIRE)
        return _text(Text(part.text, part.extras), []) if cited else TEXT + string(part.text) + b"}"
    return ENCODERS[type(part)][1](part, [])


# ── Tool results ─────────────────────────────────────────────────────────────────────────────────


def _tool_result(
    part: ToolResult, notices: Notices, *, status: bool = True, as_sent: bool = False
) -> bytes:
    """A result; some models refuse its status."""
    content = (Text(part.content),) if isinstance(part.content, str) else part.content
    if as_sent and part.content != "":
        blocks = _result_blocks(content, notices, as_sent)
    else:
        blocks = _result_blocks(content, notices) or [NO_CONTENT]
    failed = b',"status":"error"' if part.error and status else b""
    if part.error and not status:
        reason = "this model takes no status of a result, so a failure is told by its text only"
        notices.append(Notice("result_status_left_out", reason))
    begin = TOOL_RESULT % string(part.call_id) + b",".join(blocks) + b"]"
    return merged(begin + failed + b"}}", part.extras, WIRE)


def _result_blocks(
    parts: Sequence[ResultPart], notices: Notices, as_sent: bool = False
) -> list[bytes]:
    blocks = []
    for index, part in enumerate(parts):
        if isinstance(part, Text) and part.text == "" and not as_sent:
            continue
        check_part(part, ENCODERS)
        encode: Encoder = ENCODERS[type(part)][1]
        if isinstance(part, Text):
            encode = partial(_json, as_sent=as_sent)
        try:
            block = encode(part, notices)
        except InvalidRequest as problem:
            raise problem.within(f"content[{index}]") from None
        if block is not None:
            blocks.append(block)
    return blocks


def _json(part: Text, notices: Notices, *, as_sent: bool = False) -> bytes | None:
    """A text, or the JSON value that it was read from."""
    if read_form(part.extras) == b'"json"':
        try:
            return b'{"json":' + bytes(msgspec.json.decode(part.text, type=msgspec.Raw)) + b"}"
        except DECODE_ERRORS:
            pass  # the text was changed
    return _text(part, notices, as_sent=as_sent)


ENCODERS: dict[type, tuple[Kind, Encoder]] = {
    Text: (Kind.TEXT, _text),
    Image: (Kind.IMAGE, encode_image),
    Document: (Kind.DOCUMENT, encode_document),
    Audio: (Kind.AUDIO, encode_audio),
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
    as_sent: bool,
) -> tuple[Kind, int | None, Encoder]:
    check_part(part, ENCODERS)
    kind, encode = ENCODERS[type(part)]
    if isinstance(part, ToolResult):
        encode = partial(_tool_result, status=status, as_sent=as_sent)
    elif isinstance(part, Text):
        encode = partial(_text, blank=blank, as_sent=as_sent)
    elif isinstance(part, Document) and as_sent and not part.title:
        encode = _unnamed_document
    place = _PLACES.get(type(part), "")
    if isinstance(part, Opaque) and part.kind in _MARKABLE_OTHERS:
        place = "text"
    elif isinstance(part, Document):
        place = place if _may_precede_marker(part) else ""
    elif isinstance(part, Text) and as_sent:
        place = "" if _text(part, [], blank=blank) is None else place
    return kind, splice_at(place, places) if place else None, encode


def _unnamed_document(part: Document, notices: Notices) -> bytes | None:
    notices.append(Notice("document_named", "a document needs a name", "document.name"))
    return encode_document(part, notices)


def _may_precede_marker(part: Document) -> bool:
    """Claude takes a marker after a PDF or a document with citations, and refuses others."""
    if part.source.media_type in (None, DOCUMENTS["pdf"]):
        return True
    document = own_members(part.extras, WIRE).get("document", b"{}")
    return "citations" in decode_members(document)


def form_of(
    places: frozenset[str] | None,
    *,
    status: bool = True,
    blank: bool = False,
    as_sent: bool = False,
) -> MessageForm:
    """The blocks for a model that takes markers there. `status`: whether it takes the status of a
    tool result; `blank`: texts of white space. `as_sent`: blocks stay as another program wrote
    them."""
    text, result = splice_at("text", places), splice_at("toolResult", places)
    return MessageForm(
        wire=WIRE,
        host="Converse",
        fields=MESSAGE_FIELDS,
        encoder_for=partial(
            _encoder_for, places=places, status=status, blank=blank, as_sent=as_sent
        ),
        is_unsigned=(lambda _part, _profile: False) if as_sent else is_unsigned,
        as_sent=as_sent,
        text_beside_results=result is not None or text is None,
    )
