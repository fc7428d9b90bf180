"""Encodes parts for Gemini: one function for each kind, fields in one fixed order.

Each returns the part's bytes, or None with a notice if Gemini has no form for it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

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
    Source,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Url,
)
from anaphora.values.codec import is_object
from anaphora.wire.parts import (
    check_image,
    check_part,
    encode_at,
    fields_in_parts,
    is_fields_part,
    merged,
    object_arguments,
    opaque_json,
    unknown_role,
)
from anaphora.wire.reading import DECODE_ERRORS, decode_members

from .types import CONTENT_FIELDS, FORM, MADE_ID, OWN, UNSIGNED, WIRE, read_form

Notices = list[Notice]
#: Finds the call that a result answers, by its id.
FindCall = Callable[[str], ToolCall | None]

_TEXT = b'{"text":'
_ROLES = {"user": b"user", "tool": b"user", "system": b"user", "assistant": b"model"}


def write_parts(
    parts: Sequence[Part], notices: Notices, find: FindCall | None = None
) -> list[tuple[Kind, bytes]]:
    """The kind and bytes of each part that Gemini has a form for."""
    written = []
    for index, part in enumerate(parts):
        if isinstance(part, Opaque) and is_content_fields(part):
            continue
        kind, data = encode_at(f"parts[{index}]", _write, part, notices, find)
        if data is not None:
            written.append((kind, data))
    return written


def open_content(message: Message) -> bytes:
    """The beginning of a content, up to its first part."""
    role = _ROLES.get(message.role)
    if role is None:
        raise unknown_role(message.role)
    fields = content_fields(message.parts)
    return b'{"role":"%b"%b,"parts":[' % (role, b"," + fields if fields else b"")


def is_content_fields(part: Part) -> bool:
    """Whether a part holds unknown fields of its content."""
    return is_fields_part(part, OWN, CONTENT_FIELDS)


def content_fields(parts: Iterable[Part]) -> bytes:
    return fields_in_parts(parts, OWN, CONTENT_FIELDS)


def has_made_id(part: ToolCall) -> bool:
    """Whether the id was generated because the provider sent none."""
    return part.extras is not None and part.extras.get(FORM) == MADE_ID[FORM]


def write_text(text: str, extras: Extras | None = None) -> bytes:
    return merged(_TEXT + string(text) + b"}", extras, WIRE)


def _write(part: Part, notices: Notices, find: FindCall | None = None) -> tuple[Kind, bytes | None]:
    if isinstance(part, ToolResult):
        return Kind.TOOL_RESULT, _tool_result(part, notices, find)
    check_part(part, _WRITERS)
    kind, write = _WRITERS[type(part)]
    return kind, write(part, notices)


def _text(part: Text, _: Notices) -> bytes:
    return write_text(part.text, part.extras)


def _thinking(part: Thinking, notices: Notices) -> bytes | None:
    if part.provider not in (None, *OWN):
        why = f"reasoning of {part.provider} is unknown to Gemini; left out"
        notices.append(Notice("foreign_thinking", why))
        return None
    if part.data is not None:
        why = "Gemini has no redacted reasoning; left out"
        notices.append(Notice("redacted_left_out", why, "data"))
        if not part.text and part.signature is None:
            return None
    signed = b"" if part.signature is None else b',"thoughtSignature":' + string(part.signature)
    thought = _TEXT + string(part.text) + b',"thought":true' + signed + b"}"
    return merged(thought, part.extras, WIRE)


def _image(part: Image, notices: Notices) -> bytes | None:
    check_image(part.source)
    if part.detail is not None:
        why = "Gemini has no such image detail; left out"
        notices.append(Notice("detail_unsupported", why, "detail"))
    return _media(part.source, part.extras, "image/", notices)


def _audio(part: Audio, notices: Notices) -> bytes | None:
    if isinstance(part.source, Bytes) and not part.source.media_type.startswith("audio/"):
        notices.append(
            Notice("audio_source", f"{part.source.media_type} is not an audio type; left out")
        )
        return None
    return _media(part.source, part.extras, "audio/", notices)


def _document(part: Document, notices: Notices) -> bytes | None:
    notices += [
        Notice(f"{name}_unsupported", f"a document has no {name} here; left out", name)
        for name in ("title", "context")
        if getattr(part, name) is not None
    ]
    return _media(part.source, part.extras, "", notices)


def _tool_call(part: ToolCall, notices: Notices) -> bytes:
    call_id = b"" if has_made_id(part) or not part.id else b'"id":' + string(part.id) + b","
    name, arguments = string(part.name), object_arguments(part.arguments, notices)
    call = b'{"functionCall":{%b"name":%b,"args":%b}}' % (call_id, name, arguments)
    return merged(call, part.extras, WIRE)


def sign_calls(written: list[tuple[Kind, bytes]], signs: bool) -> None:
    """Add `UNSIGNED` to the first call of a message if it has no signature and the model requires
    one; remove it from all calls for other models."""
    end = b"," + UNSIGNED[1:].encode()
    calls = [at for at, (kind, _) in enumerate(written) if kind is Kind.TOOL_CALL]
    for at in calls[:1] if signs else calls:
        data = written[at][1]
        if not signs:
            data = data.removesuffix(end) + b"}" if data.endswith(end) else data
        elif "thoughtSignature" not in decode_members(data):
            data = data[:-1] + end
        written[at] = Kind.TOOL_CALL, data


def _refusal(part: Refusal, notices: Notices) -> bytes:
    notices.append(Notice("refusal_as_text", "Gemini has no refusal part; sent as text"))
    return write_text(part.text, part.extras)


_WRITERS: dict[type, tuple[Kind, Callable[[Any, Notices], bytes | None]]] = {
    Text: (Kind.TEXT, _text),
    Image: (Kind.IMAGE, _image),
    Document: (Kind.DOCUMENT, _document),
    Audio: (Kind.AUDIO, _audio),
    ToolCall: (Kind.TOOL_CALL, _tool_call),
    Thinking: (Kind.THINKING, _thinking),
    Refusal: (Kind.TEXT, _refusal),
    Opaque: (Kind.OTHER, partial(opaque_json, owners=OWN, host="Gemini")),
}


# ── Media ────────────────────────────────────────────────────────────────────────────────────────


def _media(source: Source, extras: Extras | None, kind: str, notices: Notices) -> bytes | None:
    """Bytes inside the request, or the URI of a file."""
    if isinstance(source, Bytes):
        media_type, data = string(source.media_type), base64.b64encode(source.data)
        block = b'{"inlineData":{"mimeType":%b,"data":"%b"}}' % (media_type, data)
        return merged(block, extras, WIRE)
    if isinstance(source, FileId) and source.provider not in OWN:
        why = f"a file id of {source.provider} is unknown to Gemini"
        notices.append(Notice("foreign_file", why))
        return None
    uri = source.url if isinstance(source, Url) else source.id
    known = source.media_type
    if known is None and isinstance(source, Url):
        known = _guess_media_type(uri, kind, notices)
    media_type = b"" if known is None else b'"mimeType":' + string(known) + b","
    file = b'{"fileData":{%b"fileUri":%b}}' % (media_type, string(uri))
    return merged(file, extras, WIRE)


def _guess_media_type(url: str, kind: str, notices: Notices) -> str:
    """Gemini requires a media type: from the URL's extension, or the default of the kind."""
    extension = url.partition("?")[0].partition("#")[0].rpartition(".")[2].lower()
    for family in (kind,) if kind else ("text/", "application/"):
        if extension in _EXTENSIONS[family]:
            return family + _EXTENSIONS[family][extension]
    default = _DEFAULTS[kind]
    why = f"the media type is unknown; sent as {default}"
    notices.append(Notice("media_type_guessed", why, "source"))
    return default


_DEFAULTS = {"image/": "image/jpeg", "audio/": "audio/mpeg", "": "application/pdf"}
_IMAGES = ("png", "jpeg", "webp", "gif", "heic", "heif")
#: The subtype of each extension.
_EXTENSIONS = {
    "image/": {"jpg": "jpeg", **{name: name for name in _IMAGES}},
    "audio/": {"mp3": "mpeg", "wav": "wav", "ogg": "ogg", "flac": "flac", "aac": "aac"},
    "text/": {"txt": "plain", "md": "markdown", "csv": "csv", "html": "html", "xml": "xml"},
    "application/": {"pdf": "pdf"},
}


# ── Tool results ─────────────────────────────────────────────────────────────────────────────────
#
# Gemini requires an object: `{"output": …}` for a text, `{"error": …}` for a failure, and an object
# that the tool returned unchanged. Images and files are beside it.


def _tool_result(part: ToolResult, notices: Notices, find: FindCall | None) -> bytes:
    """A `functionResponse`, with the name of the function from its call."""
    form = read_form(part.extras)
    call = find(part.call_id) if find is not None else None
    made = "id" in form or (call is not None and has_made_id(call))
    call_id = b"" if made or not part.call_id else b'"id":' + string(part.call_id) + b","
    text, media = _result_content(part, notices)
    name = part.name if part.name is not None or call is None else call.name
    if name is None:
        why = "no call before it has this id, so the id is sent as the name of the function"
        notices.append(Notice("result_without_call", why, "call_id"))
        name = part.call_id
    response = _response(text, part.error, bool(media), form.get("response"))
    parts = b',"parts":[' + b",".join(media) + b"]" if media else b""
    body = call_id + b'"name":' + string(name) + b',"response":' + response + parts
    return merged(b'{"functionResponse":{' + body + b"}}", part.extras, WIRE)


def write_answer(text: str, error: bool) -> bytes:
    """The response object. A text that is a JSON object is sent as one, unless it would be read
    back as something else."""
    if error:
        return b'{"error":' + string(text) + b"}"
    if text[:1] == "{" and text[-1:] == "}" and is_object(text):
        data = text.encode()
        if read_answer(data) == (text, False):
            return data
    return b'{"output":' + string(text) + b"}"


class _TextAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    output: str


_text_answer = msgspec.json.Decoder(_TextAnswer).decode


def output_text(response: str | msgspec.Raw) -> str | None:
    """The text of a response that has only a text in `output`, unless that may be an object."""
    try:
        text = _text_answer(response).output
    except DECODE_ERRORS:
        return None
    return text if text[:1] != "{" else None


def read_response(response: str) -> tuple[str, bool, Extras | None]:
    """The text of a response object, whether the tool failed, and the object's form if we would
    write another one."""
    if response == "null":
        return "", False, None
    text = output_text(response)
    if text is not None:
        return text, False, None
    raw = response.encode()
    text, error = read_answer(raw)
    ours = write_answer(text, error)
    same = ours == raw or msgspec.json.decode(ours) == msgspec.json.decode(raw)
    return text, error, None if same else {FORM: '{"response":' + response + "}"}


def read_answer(raw: bytes) -> tuple[str, bool]:
    """The text of a response object, and whether the tool failed."""
    try:
        fields = decode_members(raw)
    except DECODE_ERRORS:
        return raw.decode(), False
    if len(fields) == 1:
        ((name, value),) = fields.items()
        inner = bytes(value)
        is_text = inner[:1] == b'"'
        if name == "output" and is_text:
            return msgspec.json.decode(inner, type=str), False
        if name == "error":
            return msgspec.json.decode(inner, type=str) if is_text else inner.decode(), True
    return raw.decode(), False


def _response(text: str | None, error: bool, media: bool, original: msgspec.Raw | None) -> bytes:
    if original is not None and read_answer(bytes(original)) == (text, error):
        return bytes(original)
    if media and not error and text in (None, "{}"):
        # Beside media an empty object means no text; so a text "{}" is put into `output`.
        return b"{}" if text is None else b'{"output":"{}"}'
    return write_answer(text or "", error)


def _result_content(part: ToolResult, notices: Notices) -> tuple[str | None, list[bytes]]:
    """The texts joined, and everything else as parts beside them."""
    if isinstance(part.content, str):
        return part.content, []
    texts: list[str] = []
    others: list[bytes] = []
    for index, inner in enumerate(part.content):
        if isinstance(inner, Text):
            if others:
                place = f"content[{index}]"
                notices.append(Notice("parts_reordered", "texts come first here", place))
            texts.append(inner.text)
            continue
        _, data = encode_at(f"content[{index}]", _write, inner, notices)
        if data is not None:
            others.append(data)
    if len(texts) > 1:
        notices.append(Notice("texts_joined", "a result has one text here; joined", "content"))
    return "\n\n".join(texts) if texts else None, others
