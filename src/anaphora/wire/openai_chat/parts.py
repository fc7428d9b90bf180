"""One part, one content part on the wire: a small function for each kind.

Each gives the part's bytes, or None when Chat has no way to say it there; then a notice explains
it. Fields stand in one fixed order. Tool calls, and reasoning that some hosts put beside the
content, are fields of the assistant's message: `assistant.py` has them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from anaphora.canonical import check_object, string
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind
from anaphora.values import (
    Audio,
    Bytes,
    Document,
    Extras,
    FileId,
    Image,
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

WIRE = "openai_chat"

#: Whose file ids mean something here.
FILES_OF = ("openai", "openai_chat", "openai_responses")

#: An opaque part that is no content part: fields of the message, or a tool call of another type.
MESSAGE_FIELDS = "message"
OTHER_CALL = "tool_call"

Notices = list[Notice]
Say = Callable[[Any, Notices], bytes | None]


def text(part: Text, _: Notices) -> bytes:
    return text_part(part.text, part.extras)


def image(part: Image, notices: Notices) -> bytes | None:
    source = part.source
    if isinstance(source, FileId):
        notices.append(Notice("image_source", "Chat takes no file id for an image; left out"))
        return None
    url = string(source.url) if isinstance(source, Url) else _data_url(source)
    detail = b"" if part.detail is None else b',"detail":' + string(part.detail)
    return b'{"type":"image_url","image_url":{"url":' + url + detail + b"}" + closing(part.extras)


def audio(part: Audio, notices: Notices) -> bytes | None:
    source = part.source
    if not isinstance(source, Bytes) or not source.media_type.startswith("audio/"):
        notices.append(Notice("audio_source", "Chat takes audio as bytes only; left out"))
        return None
    form = _FORMATS.get(source.media_type)
    if form is None:
        form = source.media_type.removeprefix("audio/")
        notices.append(Notice("audio_format", f"OpenAI takes wav and mp3; sent as {form}"))
    return (
        b'{"type":"input_audio","input_audio":{"data":"'
        + base64.b64encode(source.data)
        + b'","format":'
        + string(form)
        + b"}"
        + closing(part.extras)
    )


def document(part: Document, notices: Notices) -> bytes | None:
    source = part.source
    if isinstance(source, Url):
        notices.append(Notice("document_url", "Chat fetches no documents; left out"))
        return None
    if isinstance(source, FileId):
        if source.provider not in FILES_OF:
            notices.append(
                Notice("foreign_file", f"a file id of {source.provider} means nothing to OpenAI")
            )
            return None
        file = b'{"file_id":' + string(source.id)
        named = b"" if part.title is None else b',"filename":' + string(part.title)
    else:
        file = b'{"file_data":' + _data_url(source)
        named = b',"filename":' + string(file_name(part.title, source.media_type))
    if part.context is not None:
        notices.append(
            Notice("context_unsupported", "a document has no context here; left out", "context")
        )
    return b'{"type":"file","file":' + file + named + b"}" + closing(part.extras)


def refusal(part: Refusal, _: Notices) -> bytes:
    return b'{"type":"refusal","refusal":' + string(part.text) + closing(part.extras)


def opaque(part: Opaque, notices: Notices) -> bytes | None:
    if part.provider != WIRE:
        notices.append(
            Notice(
                "foreign_block",
                f"a {part.kind} block of {part.provider} means nothing to OpenAI; left out",
            )
        )
        return None
    return check_object(part.json, path="json").encode()


def unsaid(part: Part, notices: Notices) -> None:
    """A part that this message has no place for."""
    name = type(part).__name__
    notices.append(Notice("part_left_out", f"Chat has no place for {name} here; left out"))


def thinking(_: Thinking, notices: Notices) -> None:
    notices.append(
        Notice("thinking_left_out", "Chat Completions has no field for reasoning; left out")
    )


def text_part(said: str, extras: Extras | None = None) -> bytes:
    return b'{"type":"text","text":' + string(said) + closing(extras)


def file_name(title: str | None, media_type: str) -> str:
    """A file that travels inside the request needs a name; one is made where there is none."""
    return title if title is not None else _NAMES.get(media_type, "document")


def closing(extras: Extras | None) -> bytes:
    """The end of an object, with the fields that came along for this wire."""
    members = extra_members(extras)
    return b"," + members + b"}" if members else b"}"


def extra_members(extras: Extras | None) -> bytes:
    """The fields that came along for this wire, as members of an object."""
    if extras is None or WIRE not in extras:
        return b""
    return members_of(extras[WIRE], f"extras.{WIRE}")


def members_of(json: str, path: str) -> bytes:
    return check_object(json, path=path).strip()[1:-1].strip().encode()


def message_fields(parts: Iterable[Part]) -> bytes:
    """The fields of a message that travel as parts of it, as members of an object."""
    found = [part.json for part in parts if isinstance(part, Opaque) and is_fields(part)]
    if len(found) < 2:
        return members_of(found[0], "json") if found else b""
    merged: dict[str, msgspec.Raw] = {}
    for json in found:
        merged |= msgspec.json.decode(check_object(json, path="json"), type=dict[str, msgspec.Raw])
    return b",".join(string(name) + b":" + bytes(raw) for name, raw in merged.items())


def is_fields(part: Part) -> bool:
    return isinstance(part, Opaque) and (part.provider, part.kind) == (WIRE, MESSAGE_FIELDS)


def said_in(role: str, part: object) -> tuple[Kind, bool, Say]:
    """What the cache rules call a part, whether it may carry a breakpoint, and the function that
    says it in a message of that role."""
    kind, markable, say = _PARTS.get(type(part), (Kind.OTHER, False, None))
    if isinstance(part, Opaque):
        misplaced = part.provider == WIRE and part.kind in (MESSAGE_FIELDS, OTHER_CALL)
        return Kind.OTHER, part.kind in MARKABLE_OPAQUE, unsaid if misplaced else opaque
    if say is None:
        raise InvalidRequest(
            f"{type(part).__name__} is not a part; use Text, Image, ToolCall, ToolResult, …"
        )
    if isinstance(part, Text):
        return kind, bool(part.text), say
    if role != "user" and not isinstance(part, Thinking):
        return kind, False, unsaid
    return kind, markable, say


def _data_url(source: Bytes) -> bytes:
    return string(f"data:{source.media_type};base64,{base64.b64encode(source.data).decode()}")


_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
_NAMES = {"application/pdf": "document.pdf", "text/plain": "document.txt"}

#: Parts we could not read whole that may carry a breakpoint all the same.
MARKABLE_OPAQUE = frozenset({"image_url", "input_audio", "file"})

#: In a user's message. Elsewhere only text and opaque parts may stand.
_PARTS: dict[type, tuple[Kind, bool, Say]] = {
    Text: (Kind.TEXT, True, text),
    Image: (Kind.IMAGE, True, image),
    Document: (Kind.DOCUMENT, True, document),
    Audio: (Kind.AUDIO, True, audio),
    Thinking: (Kind.THINKING, False, thinking),
    ToolCall: (Kind.TOOL_CALL, False, unsaid),
    ToolResult: (Kind.TOOL_RESULT, False, unsaid),
    Refusal: (Kind.TEXT, False, unsaid),
}
