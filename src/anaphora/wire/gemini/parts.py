"""One part, one part on the wire: a small function for each kind.

Each gives the part's bytes, or None when Gemini has no way to say it; then a notice explains it.
Fields stand in one fixed order. Tool results are in `results.py`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from anaphora.canonical import check_object, is_object, string
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
    Source,
    Text,
    Thinking,
    ToolCall,
    Url,
)
from anaphora.wire.fields import Fields
from anaphora.wire.reading import request_error

from .naming import FORM, OWN, WIRE

#: An opaque part that is no part on the wire: fields of the content it stands in.
CONTENT_FIELDS = "content"

#: What is kept of a call whose id the provider left out: it gets one here, for pairing, that is
#: never sent.
MADE_ID: Extras = {FORM: '{"id":null}'}

Notices = list[Notice]
Say = Callable[[Any, Notices], bytes | None]

_TEXT = b'{"text":'


def text(part: Text, _: Notices) -> bytes:
    return text_part(part.text, part.extras)


def text_part(said: str, extras: Extras | None = None) -> bytes:
    return _TEXT + string(said) + closing(extras)


def thinking(part: Thinking, notices: Notices) -> bytes | None:
    if part.provider not in (None, *OWN):
        notices.append(
            Notice(
                "foreign_thinking",
                f"reasoning of {part.provider} means nothing to Gemini; left out",
            )
        )
        return None
    if part.data is not None:
        notices.append(
            Notice("redacted_left_out", "Gemini has no redacted reasoning; left out", "data")
        )
        if not part.text and part.signature is None:
            return None
    signed = b"" if part.signature is None else b',"thoughtSignature":' + string(part.signature)
    return _TEXT + string(part.text) + b',"thought":true' + signed + closing(part.extras)


def image(part: Image, notices: Notices) -> bytes | None:
    if isinstance(part.source, Bytes) and not part.source.media_type.startswith("image/"):
        raise InvalidRequest(
            f"{part.source.media_type!r} is no image; use a Document", path="source.media_type"
        )
    if part.detail is not None:
        notices.append(
            Notice("detail_unsupported", "Gemini has no such image detail; left out", "detail")
        )
    return _media(part.source, part.extras, "image/", notices)


def audio(part: Audio, notices: Notices) -> bytes | None:
    if isinstance(part.source, Bytes) and not part.source.media_type.startswith("audio/"):
        notices.append(Notice("audio_source", f"{part.source.media_type} is no audio; left out"))
        return None
    return _media(part.source, part.extras, "audio/", notices)


def document(part: Document, notices: Notices) -> bytes | None:
    notices += [
        Notice(f"{name}_unsupported", f"a document has no {name} here; left out", name)
        for name in ("title", "context")
        if getattr(part, name) is not None
    ]
    return _media(part.source, part.extras, "", notices)


def tool_call(part: ToolCall, notices: Notices) -> bytes:
    inner, outer = around(part.extras, "functionCall")
    known = b"" if has_made_id(part) or not part.id else b'"id":' + string(part.id) + b","
    return (
        b'{"functionCall":{'
        + known
        + b'"name":'
        + string(part.name)
        + b',"args":'
        + _arguments(part.arguments, notices)
        + inner
        + b"}"
        + outer
        + b"}"
    )


def refusal(part: Refusal, notices: Notices) -> bytes:
    notices.append(Notice("refusal_as_text", "Gemini has no refusal part; sent as text"))
    return text_part(part.text, part.extras)


def opaque(part: Opaque, notices: Notices) -> bytes | None:
    if part.provider not in OWN:
        notices.append(
            Notice(
                "foreign_block",
                f"a {part.kind} block of {part.provider} means nothing to Gemini; left out",
            )
        )
        return None
    return check_object(part.json, path="json").encode()


def said_as(part: object) -> tuple[Kind, Say]:
    """What the cache rules call a part, and the function that says it."""
    found = _PARTS.get(type(part))
    if found is None:
        raise InvalidRequest(
            f"{type(part).__name__} is not a part; use Text, Image, ToolCall, ToolResult, …"
        )
    return found


def has_made_id(part: ToolCall) -> bool:
    return part.extras is not None and part.extras.get(FORM) == MADE_ID[FORM]


def is_fields(part: Part) -> bool:
    return isinstance(part, Opaque) and part.kind == CONTENT_FIELDS and part.provider in OWN


def content_fields(parts: Iterable[Part]) -> bytes:
    """The fields of a content that travel as a part of it, as members of an object."""
    fields: dict[str, msgspec.Raw] = {}
    for part in parts:
        if isinstance(part, Opaque) and is_fields(part):
            json = check_object(part.json, path="json")
            fields |= msgspec.json.decode(json, type=dict[str, msgspec.Raw])
    return b",".join(string(name) + b":" + bytes(raw) for name, raw in fields.items())


# ── What came along ──────────────────────────────────────────────────────────────────────────────


def extra_members(extras: Extras | None) -> bytes:
    """The fields that came along for this wire, as members of an object."""
    if extras is None or WIRE not in extras:
        return b""
    return check_object(extras[WIRE], path=f"extras.{WIRE}").strip()[1:-1].strip().encode()


def closing(extras: Extras | None) -> bytes:
    """The end of an object, with the fields that came along for this wire."""
    members = extra_members(extras)
    return b"," + members + b"}" if members else b"}"


def around(extras: Extras | None, field: str) -> tuple[bytes, bytes]:
    """Fields that came along: inside the object `field`, and beside it; each with its comma."""
    if extras is None or WIRE not in extras:
        return b"", b""
    fields = Fields(extras[WIRE], f"extras.{WIRE}", request_error)
    inside = fields.nested(field)
    inner, outer = inside.rest() if inside is not None else b"", fields.rest()
    return b"," + inner if inner else b"", b"," + outer if outer else b""


def extras_of(inner: Fields | None, field: str, outer: Fields) -> Extras | None:
    """The reverse: what is left of an object and of the part it stands in."""
    rest = outer.rest()
    if inner is not None and (inside := inner.rest()):
        rest += (b"," if rest else b"") + b'"%b":{%b}' % (field.encode(), inside)
    return {WIRE: (b"{" + rest + b"}").decode()} if rest else None


# ── Calls and sources ────────────────────────────────────────────────────────────────────────────


def _arguments(text: str, notices: Notices) -> bytes:
    if is_object(text):
        return text.encode()
    if not text.strip():
        return b"{}"
    # The model wrote something that is no object; nothing of it may be lost.
    notices.append(
        Notice(
            "arguments_not_an_object",
            "the call's arguments are not a JSON object; sent as text in invalid_arguments",
            "arguments",
        )
    )
    try:
        return b'{"invalid_arguments":' + string(text) + b"}"
    except InvalidRequest as problem:
        raise problem.within("arguments") from None


def _media(source: Source, extras: Extras | None, kind: str, notices: Notices) -> bytes | None:
    """Bytes inside the request, or the address of a file."""
    if isinstance(source, Bytes):
        inner, outer = around(extras, "inlineData")
        media_type = b'{"mimeType":' + string(source.media_type)
        data = media_type + b',"data":"' + base64.b64encode(source.data) + b'"'
        return b'{"inlineData":' + data + inner + b"}" + outer + b"}"
    if isinstance(source, FileId) and source.provider not in OWN:
        notices.append(
            Notice("foreign_file", f"a file id of {source.provider} means nothing to Gemini")
        )
        return None
    inner, outer = around(extras, "fileData")
    address = source.url if isinstance(source, Url) else source.id
    known = source.media_type
    if known is None and isinstance(source, Url):
        known = _guessed(address, kind, notices)
    media_type = b"" if known is None else b'"mimeType":' + string(known) + b","
    file = media_type + b'"fileUri":' + string(address) + inner
    return b'{"fileData":{' + file + b"}" + outer + b"}"


def _guessed(url: str, kind: str, notices: Notices) -> str:
    """Gemini wants to be told what an address leads to: from its ending, or the usual one."""
    ending = url.partition("?")[0].partition("#")[0].rpartition(".")[2].lower()
    found = _ENDINGS.get(ending)
    if found is not None and (found.startswith(kind) if kind else not _is_media(found)):
        return found
    usual = _USUAL[kind]
    notices.append(
        Notice("media_type_guessed", f"nothing says what this is; sent as {usual}", "source")
    )
    return usual


def _is_media(media_type: str) -> bool:
    return media_type.startswith(("image/", "audio/"))


_USUAL = {"image/": "image/jpeg", "audio/": "audio/mpeg", "": "application/pdf"}
_ENDINGS = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "gif": "image/gif",
    "heic": "image/heic",
    "heif": "image/heif",
    "mp3": "audio/mpeg",
    "wav": "audio/wav",
    "ogg": "audio/ogg",
    "flac": "audio/flac",
    "aac": "audio/aac",
    "pdf": "application/pdf",
    "txt": "text/plain",
    "md": "text/markdown",
    "csv": "text/csv",
    "html": "text/html",
    "xml": "text/xml",
}

_PARTS: dict[type, tuple[Kind, Say]] = {
    Text: (Kind.TEXT, text),
    Image: (Kind.IMAGE, image),
    Document: (Kind.DOCUMENT, document),
    Audio: (Kind.AUDIO, audio),
    ToolCall: (Kind.TOOL_CALL, tool_call),
    Thinking: (Kind.THINKING, thinking),
    Refusal: (Kind.TEXT, refusal),
    Opaque: (Kind.OTHER, opaque),
}
