"""One part, one piece of an item's content: a small function for each kind.

Each gives the bytes, or None when OpenAI has no way to say the part there; then a notice explains
it. What the user, the system or a tool says is input; what the assistant said is output.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from anaphora.canonical import check_object, string
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
    Refusal,
    Source,
    Text,
    Url,
)

WIRE = "openai_responses"

#: Beside the extras of an item's first part: the fields of the item itself (id, status, phase).
#: Where a part has them, a new item begins.
ITEM = "openai_responses.item"

#: Who a file id or a tool of OpenAI's may be said to come from.
OURS = ("openai", "openai_chat", WIRE)

Notices = list[Notice]
#: A part's bytes; None where there is no way to say it.
Say = Callable[[Any, Notices], bytes | None]


def input_text(part: Text, _: Notices) -> bytes:
    return b'{"type":"input_text","text":' + string(part.text) + closing(part.extras)


def input_image(part: Image, notices: Notices) -> bytes | None:
    source = _source(part.source, b"image_url", b"image_url", notices)
    # The types want the detail said, and `auto` is what a missing one means.
    detail = string(part.detail if part.detail is not None else "auto")
    head = b'{"type":"input_image",'
    return source and head + source + b',"detail":' + detail + closing(part.extras)


def input_file(part: Document, notices: Notices) -> bytes | None:
    source = _source(part.source, b"file_data", b"file_url", notices)
    if source is None:
        return None
    title = part.title
    if title is None and isinstance(part.source, Bytes):
        title = f"document{_SUFFIXES.get(part.source.media_type, '')}"  # a file needs a name
    if part.context is not None:
        notices.append(
            Notice("context_unsupported", "OpenAI's files have no context; left out", "context")
        )
    name = b"" if title is None else b',"filename":' + string(title)
    return b'{"type":"input_file",' + source + name + closing(part.extras)


def input_audio(_: Audio, notices: Notices) -> None:
    notices.append(Notice("audio_unsupported", "Responses takes no audio, so it is left out"))


def refusal_as_text(part: Refusal, notices: Notices) -> bytes:
    notices.append(Notice("refusal_as_text", "only the assistant refuses; sent as text"))
    return input_text(Text(part.text, part.extras), notices)


def output_text(part: Text, _: Notices) -> bytes:
    return b'{"type":"output_text","text":' + string(part.text) + closing(part.extras)


def output_refusal(part: Refusal, _: Notices) -> bytes:
    return b'{"type":"refusal","refusal":' + string(part.text) + closing(part.extras)


def not_output(part: Image | Document | Audio, notices: Notices) -> None:
    kind = type(part).__name__.lower()
    notices.append(
        Notice(f"{kind}_unsupported", f"an assistant message holds no {kind} here; left out")
    )


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


INPUT: dict[type, tuple[Kind, Say]] = {
    Text: (Kind.TEXT, input_text),
    Image: (Kind.IMAGE, input_image),
    Document: (Kind.DOCUMENT, input_file),
    Audio: (Kind.AUDIO, input_audio),
    Refusal: (Kind.TEXT, refusal_as_text),
    Opaque: (Kind.OTHER, opaque),
}
OUTPUT: dict[type, tuple[Kind, Say]] = {
    Text: (Kind.TEXT, output_text),
    Refusal: (Kind.TEXT, output_refusal),
    Image: (Kind.IMAGE, not_output),
    Document: (Kind.DOCUMENT, not_output),
    Audio: (Kind.AUDIO, not_output),
    Opaque: (Kind.OTHER, opaque),
}


def is_content(kind: str) -> bool:
    """Whether something we have no name for stands inside a message, and is no item itself."""
    return kind.startswith(("input_", "output_")) or kind == "refusal"


def markable(part: object) -> bool:
    """Whether a part, said as input, may carry a breakpoint. An empty one never does."""
    if isinstance(part, Opaque):
        return part.kind.startswith("input_")
    return not isinstance(part, Text | Refusal) or bool(part.text)


def closing(extras: Extras | None) -> bytes:
    """The end of an object, with the fields that came along for this wire."""
    more = members(extras, WIRE)
    return b"," + more + b"}" if more else b"}"


def members(extras: Extras | None, key: str) -> bytes:
    """The fields that came along under a name, without the braces around them."""
    if extras is None or key not in extras:
        return b""
    return check_object(extras[key], path=f"extras.{key}").strip()[1:-1].strip().encode()


_SUFFIXES = {
    "application/pdf": ".pdf",
    "application/json": ".json",
    "text/plain": ".txt",
    "text/markdown": ".md",
    "text/csv": ".csv",
    "text/html": ".html",
}


def _source(source: Source, data: bytes, url: bytes, notices: Notices) -> bytes | None:
    """The field that says where the content is: inside, at an address, or uploaded."""
    if isinstance(source, Bytes):
        if not source.media_type.isascii():
            raise InvalidRequest(f"{source.media_type!r} is not a media type", path="source")
        encoded = base64.b64encode(source.data).decode()
        whole = string(f"data:{source.media_type};base64,{encoded}")
        return b'"' + data + b'":' + whole
    if isinstance(source, Url):
        return b'"' + url + b'":' + string(source.url)
    if source.provider not in OURS:
        notices.append(
            Notice("foreign_file", f"a file id of {source.provider} means nothing to OpenAI")
        )
        return None
    return b'"file_id":' + string(source.id)
