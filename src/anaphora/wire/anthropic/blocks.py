"""One part, one content block: a small function for each kind.

Each gives the block's bytes, or None when Anthropic has no way to say the part; then a notice
explains it. Fields stand in one fixed order, content is always an array.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

from anaphora.canonical import check_object, is_object, string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind
from anaphora.values import (
    Audio,
    Bytes,
    Document,
    Extras,
    Image,
    Notice,
    Opaque,
    Part,
    Refusal,
    ResultPart,
    Source,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Url,
)

WIRE = "anthropic"

#: An opaque part that is no block: the fields of the message, and the last of its parts.
MESSAGE_FIELDS = "message"

Notices = list[Notice]

#: How a text block begins, and where in a block its marker goes, counted back from its end.
TEXT = b'{"type":"text","text":'
BEFORE_BRACE = -1

UNSIGNED = Notice(
    "unsigned_thinking", "reasoning without a signature is refused, so it is left out"
)


def text(part: Text, notices: Notices) -> bytes | None:
    if not part.text or part.text.isspace():
        notices.append(Notice("blank_text", "a blank text block is refused, so it is left out"))
        return None
    if part.extras is None:
        return TEXT + string(part.text) + b"}"
    return text_block(part.text, part.extras)


def image(part: Image, notices: Notices) -> bytes | None:
    if isinstance(part.source, Bytes) and not part.source.media_type.startswith("image/"):
        raise InvalidRequest(
            f"{part.source.media_type!r} is no image; use a Document", path="source.media_type"
        )
    source = _source(part.source, notices)
    if source is not None and part.detail is not None:
        notices.append(
            Notice("detail_unsupported", "Anthropic has no image detail; left out", "detail")
        )
    return source and b'{"type":"image","source":' + source + closing(part.extras)


def document(part: Document, notices: Notices) -> bytes | None:
    source = _source(part.source, notices)
    if source is None:
        return None
    title = b"" if part.title is None else b',"title":' + string(part.title)
    context = b"" if part.context is None else b',"context":' + string(part.context)
    return b'{"type":"document","source":' + source + title + context + closing(part.extras)


def audio(_: Audio, notices: Notices) -> None:
    notices.append(Notice("audio_unsupported", "Anthropic takes no audio, so it is left out"))


def tool_call(part: ToolCall, notices: Notices) -> bytes:
    if is_object(part.arguments):
        arguments = part.arguments.encode()
    elif not part.arguments.strip():
        arguments = b"{}"
    else:
        # The model wrote something that is no object; nothing of it may be lost.
        try:
            arguments = b'{"invalid_arguments":' + string(part.arguments) + b"}"
        except InvalidRequest as problem:
            raise problem.within("arguments") from None
        notices.append(
            Notice(
                "arguments_not_an_object",
                "the call's arguments are not a JSON object; sent as text in invalid_arguments",
                "arguments",
            )
        )
    return (
        b'{"type":"tool_use","id":'
        + string(part.id)
        + b',"name":'
        + string(part.name)
        + b',"input":'
        + arguments
        + closing(part.extras)
    )


def tool_result(part: ToolResult, notices: Notices) -> bytes:
    content, opening = part.content, _result_opening(part)
    end = (b'],"is_error":true' if part.error else b"]") + closing(part.extras)
    if not isinstance(content, str):
        return opening + b",".join(_result_blocks(content, notices)) + end
    if not content:
        return opening + end
    if content.isspace():
        return opening + (text(Text(content), notices) or b"") + end
    return opening + TEXT + string(content) + (b"}" + end)


def thinking(part: Thinking, notices: Notices) -> bytes | None:
    if part.provider not in (None, WIRE):
        notices.append(
            Notice(
                "foreign_thinking",
                f"reasoning signed by {part.provider} means nothing to Anthropic; left out",
            )
        )
        return None
    if part.signature is not None:
        if part.data is not None:
            notices.append(
                Notice("redacted_left_out", "signed reasoning holds no data; left out", "data")
            )
        return (
            b'{"type":"thinking","thinking":'
            + string(part.text)
            + b',"signature":'
            + string(part.signature)
            + closing(part.extras)
        )
    if part.data is not None:
        return b'{"type":"redacted_thinking","data":' + string(part.data) + closing(part.extras)
    notices.append(UNSIGNED)
    return None


def is_unsigned(part: Part, profile: Profile) -> bool:
    """Whether reasoning lacks the signature that Anthropic asks for: a stream that is cut off
    leaves it empty. Hosts that only speak this wire may give none and want the block back."""
    return (
        profile.provider == WIRE
        and isinstance(part, Thinking)
        and part.signature == ""
        and part.provider in (None, WIRE)
    )


def refusal(part: Refusal, notices: Notices) -> bytes | None:
    notices.append(Notice("refusal_as_text", "Anthropic has no refusal block; sent as text"))
    return text(Text(part.text, part.extras), notices)


def is_fields(part: object) -> bool:
    """Whether a part holds the fields of its message."""
    return isinstance(part, Opaque) and (part.provider, part.kind) == (WIRE, MESSAGE_FIELDS)


def opaque(part: Opaque, notices: Notices) -> bytes | None:
    if is_fields(part):
        return None  # its message has them
    if part.provider != WIRE:
        notices.append(
            Notice(
                "foreign_block",
                f"a {part.kind} block of {part.provider} means nothing to Anthropic; left out",
            )
        )
        return None
    return check_object(part.json, path="json").encode()


def text_block(said: str, extras: Extras | None = None) -> bytes:
    return TEXT + string(said) + closing(extras)


def spoken_text(part: Text, notices: Notices) -> bytes | None:
    """Text that the model said: white space is part of it, and what follows may be bound to it."""
    if part.extras is None and part.text:
        return TEXT + string(part.text) + b"}"
    return text_block(part.text, part.extras) if part.text else text(part, notices)


def block_for(
    part: object, spoken: bool = False
) -> tuple[Kind, int | None, Callable[[Any, Notices], bytes | None]]:
    """What the cache rules call a part's block, where in it a marker goes, and the function that
    says it. `spoken` is what the assistant said."""
    found = (_SPOKEN if spoken else _BLOCKS).get(type(part))
    if found is None:
        if isinstance(part, Opaque):
            return Kind.OTHER, BEFORE_BRACE if part.kind in MARKABLE_OPAQUE else None, opaque
        raise InvalidRequest(
            f"{type(part).__name__} is not a part; use Text, Image, ToolCall, ToolResult, …"
        )
    if spoken and isinstance(part, Text) and part.text.isspace():
        return Kind.TEXT, None, spoken_text
    return found


def is_said(part: Part, spoken: bool = False) -> bool:
    """Whether a part becomes a block at all."""
    return block_for(part, spoken)[2](part, []) is not None


def closing(extras: Extras | None) -> bytes:
    """The end of a block, with the fields that came along for this wire."""
    if extras is None or WIRE not in extras:
        return b"}"
    inner = check_object(extras[WIRE], path=f"extras.{WIRE}").strip()[1:-1].strip()
    return b"," + inner.encode() + b"}" if inner else b"}"


def nested_splice(part: ToolResult, index: int) -> int | None:
    """Where in the block of a tool result a marker for its part `index` goes."""
    content = (Text(part.content),) if isinstance(part.content, str) else part.content
    inner = content[index : index + 1]
    if not inner or block_for(inner[0])[1] is None or not is_said(inner[0]):
        return None
    blocks = b",".join(_result_blocks(content[: index + 1], []))
    return len(_result_opening(part)) + len(blocks) - 1


def _result_opening(part: ToolResult) -> bytes:
    return b'{"type":"tool_result","tool_use_id":' + string(part.call_id) + b',"content":['


def _result_blocks(parts: Sequence[ResultPart], notices: Notices) -> list[bytes]:
    blocks = []
    for index, part in enumerate(parts):
        try:
            block = block_for(part)[2](part, notices)
        except InvalidRequest as problem:
            raise problem.within(f"content[{index}]") from None
        if block is not None:
            blocks.append(block)
    return blocks


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        raise InvalidRequest(
            f"text/plain is not UTF-8 at byte {problem.start}", path="source.data"
        ) from None


def _source(source: Source, notices: Notices) -> bytes | None:
    if isinstance(source, Bytes):
        if source.media_type == "text/plain":
            return (
                b'{"type":"text","media_type":"text/plain","data":'
                + string(_utf8(source.data))
                + b"}"
            )
        return (
            b'{"type":"base64","media_type":'
            + string(source.media_type)
            + b',"data":"'
            + base64.b64encode(source.data)
            + b'"}'
        )
    if isinstance(source, Url):
        return b'{"type":"url","url":' + string(source.url) + b"}"
    if source.provider != WIRE:
        notices.append(
            Notice("foreign_file", f"a file id of {source.provider} means nothing to Anthropic")
        )
        return None
    return b'{"type":"file","file_id":' + string(source.id) + b"}"


#: Blocks we carry along without reading that may carry a marker: the rules table has the same.
MARKABLE_OPAQUE = frozenset(
    {
        "bash_code_execution_tool_result",
        "browser_state",
        "code_execution_tool_result",
        "compaction",
        "container_upload",
        "mcp_tool_result",
        "mcp_toolset",
        "search_result",
        "server_tool_use",
        "text_editor_code_execution_tool_result",
        "tool_addition",
        "tool_reference",
        "tool_removal",
        "tool_search_tool_result",
        "web_fetch_tool_result",
        "web_search_tool_result",
    }
)

_BLOCKS: dict[type, tuple[Kind, int | None, Callable[[Any, Notices], bytes | None]]] = {
    Text: (Kind.TEXT, BEFORE_BRACE, text),
    Image: (Kind.IMAGE, BEFORE_BRACE, image),
    Document: (Kind.DOCUMENT, BEFORE_BRACE, document),
    Audio: (Kind.AUDIO, None, audio),
    ToolCall: (Kind.TOOL_CALL, BEFORE_BRACE, tool_call),
    ToolResult: (Kind.TOOL_RESULT, BEFORE_BRACE, tool_result),
    Thinking: (Kind.THINKING, None, thinking),
    Refusal: (Kind.TEXT, BEFORE_BRACE, refusal),
}
_SPOKEN = {**_BLOCKS, Text: (Kind.TEXT, BEFORE_BRACE, spoken_text)}
