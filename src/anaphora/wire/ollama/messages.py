"""Encodes messages for Ollama: each is one closed object, since content is a text and not a list.

The bytes of a message do not depend on earlier messages, except for the calls that its tool results
answer.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from anaphora.canonical import string
from anaphora.rendered import Kind, LogAppend
from anaphora.values import (
    Audio,
    Bytes,
    Conversation,
    Document,
    Extras,
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
)
from anaphora.values.attachments import image_media_type
from anaphora.wire.message_runs import UNFINISHED_REASONING
from anaphora.wire.parts import (
    check_image,
    check_part,
    encode_at,
    extra_members,
    fields_in_parts,
    inner_and_outer,
    is_fields_part,
    leading_results,
    note_foreign_fields,
    object_arguments,
    unknown_role,
)
from anaphora.wire.reading import decode_value, request_error

from .types import MESSAGE_FIELDS, OTHER_IMAGE, WIRE, OpaqueImage, read_form

Notices = list[Notice]

#: The calls that a result may answer, by id.
Calls = Mapping[str, ToolCall]
#: The role, kind and bytes of a message on the wire.
Piece = tuple[str, Kind, bytes]

_PARTS = (Text, Image, Document, Audio, ToolCall, ToolResult, Thinking, Refusal, Opaque)
#: The order in which the fields of a message are read back.
_ORDER = ("thinking", "images", "texts", "calls")
_IMAGES_FIRST = "images come before their text here"


def add_messages(
    append: LogAppend,
    messages: Sequence[Message],
    last_role: str | None,
    where: str,
    conversation: Conversation,
) -> None:
    """The chunks of these messages of the conversation. `last_role` is the wire role that the log
    ends with; None when it is empty, and its first chunk needs no comma."""
    before = (conversation[index] for index in range(append.first_message - 1, -1, -1))
    calls = _calls_of(next((message for message in before if message.role == "assistant"), None))
    for message in messages:
        place = f"{where}[{append.message}]"
        notices: Notices = []
        pieces = encode_at(place, _wire_messages, message, notices, calls)
        for notice in notices:
            append.notice(notice)
        for role, kind, data in pieces:
            append.chunk(kind, data if last_role is None else b"," + data, None, role)
            last_role = role
        note_foreign_fields(append, message, WIRE, place)
        append.end_message(message.id)
        if message.role == "assistant":
            calls = _calls_of(message)


def _calls_of(message: Message | None) -> Calls:
    parts = message.parts if message is not None else ()
    return {part.id: part for part in parts if isinstance(part, ToolCall)}


def _wire_messages(message: Message, notices: Notices, calls: Calls) -> list[Piece]:
    """The messages on the wire that one message becomes."""
    if message.role == "assistant":
        data = write_assistant(message, notices)
        kind = Kind.TOOL_CALL if _calls_of(message) else Kind.TEXT
        pieces = [] if data is None else [("assistant", kind, data)]
    elif message.role == "system":
        if any(isinstance(part, ToolResult) for part in message.parts):
            why = "a system message cannot hold tool results; left out"
            notices.append(Notice("part_left_out", why))
        pieces = _texts(message, "system", notices)
    elif message.role in ("user", "tool"):
        pieces = _results(message, calls, notices) + _texts(message, "user", notices)
    else:
        raise unknown_role(message.role)
    if not pieces and not notices:
        notices.append(Notice("empty_message", "an empty message is left out"))
    return pieces


class MessageFields(msgspec.Struct):
    """The parts of a message by the field that they go to. The order of parts is not kept."""

    thinking: list[str] = []
    images: list[bytes] = []
    texts: list[str] = []
    calls: list[bytes] = []
    unknown: bytes = b""
    """Unknown fields of the message, as members of an object."""

    @property
    def anything(self) -> bool:
        return bool(self.images or self.texts or self.calls or any(self.thinking))

    def add(self, field: str, value: Any) -> bool:
        """Append a part; returns whether that changes the order of parts."""
        getattr(self, field).append(value)
        later = _ORDER[_ORDER.index(field) + 1 :]
        return any(getattr(self, name) for name in later)

    def note_joined(self, notices: Notices, whole: str) -> None:
        for texts in (self.thinking, self.texts):
            if len(texts) > 1:
                why = f"{len(texts)} texts of one {whole} are joined without a separator"
                notices.append(Notice("texts_joined", why))

    def members(self) -> bytes:
        """The message's fields without the role."""
        members = [self.unknown] if self.unknown else []
        members.append(b'"content":' + string("".join(self.texts)))
        if thinking := "".join(self.thinking):
            members.append(b'"thinking":' + string(thinking))
        if self.images:
            members.append(b'"images":[' + b",".join(self.images) + b"]")
        if self.calls:
            members.append(b'"tool_calls":[' + b",".join(self.calls) + b"]")
        return b",".join(members)


# ── Users' messages and tool results ──────────────────────────────────────────────────────────────


def _texts(message: Message, role: str, notices: Notices) -> list[Piece]:
    """A message for each text, with the images before it: a message has only one text, and joining
    several would run them together. Images after the last text go with it."""
    texts: list[MessageFields] = []
    waiting: list[bytes] = []
    for index, part in enumerate(message.parts):
        if isinstance(part, ToolResult) or is_message_fields(part):
            continue
        field, value = encode_at(f"parts[{index}]", _encode, part, notices)
        if field == "texts":
            texts.append(MessageFields(texts=[value], images=waiting))
            waiting = []
        elif field == "images":
            waiting.append(value)
    if waiting and texts:
        texts[-1].images += waiting
        notices.append(Notice("parts_reordered", _IMAGES_FIRST))
    elif waiting:
        texts.append(MessageFields(images=waiting))
    fields = message_fields(message.parts)
    if fields and texts:
        texts[0].unknown = fields  # the message that they belong to
    elif fields:
        notices.append(Notice("fields_left_out", "fields of an empty message"))
    opening = b'{"role":"%b",' % role.encode()
    return [
        (role, Kind.IMAGE if text.images else Kind.TEXT, opening + text.members() + b"}")
        for text in texts
    ]


def _results(message: Message, calls: Calls, notices: Notices) -> list[Piece]:
    """The tool results, each a message of its own, before the other parts."""
    pieces: list[Piece] = []
    for index, part in leading_results(message.parts, is_message_fields, notices):
        data = encode_at(f"parts[{index}]", _result, part, notices, calls.get(part.call_id))
        pieces.append(("tool", Kind.TOOL_RESULT, data))
    return pieces


def _result(part: ToolResult, notices: Notices, call: ToolCall | None) -> bytes:
    """A tool's result. Models look for the tool's name as well as the call's id, so the name is
    taken from the call if the result has none; a generated id is not sent."""
    if part.error:
        why = "Ollama has no error flag for tool results; the text has to mention it"
        notices.append(Notice("error_flag_left_out", why, "error"))
    missing = read_form(part.extras).missing
    members = [b'"role":"tool"']
    name = part.name
    if name is None and call is not None and "tool_name" not in missing:
        name = call.name
    if name:
        members.append(b'"tool_name":' + string(name))
    made_id = call is not None and "id" in read_form(call.extras).missing
    if part.call_id and not made_id and "tool_call_id" not in missing:
        members.append(b'"tool_call_id":' + string(part.call_id))
    if fields := extra_members(part.extras, WIRE):
        members.append(fields)
    content = (Text(part.content),) if isinstance(part.content, str) else part.content
    answer = MessageFields()
    for index, inner in enumerate(content):
        place = f"content[{index}]"
        field, value = encode_at(place, _encode, inner, notices)
        if field and answer.add(field, value):
            notices.append(Notice("parts_reordered", _IMAGES_FIRST, place))
    answer.note_joined(notices, "answer")
    return b"{" + b",".join(members) + b"," + answer.members() + b"}"


# ── The assistant's message ───────────────────────────────────────────────────────────────────────


def write_assistant(message: Message, notices: Notices, *, answer: bool = False) -> bytes | None:
    """The message; None if it is empty. A reply holds all reasoning, a request only Ollama's
    own."""
    fields = sort_parts(message, notices, answer=answer)
    if not answer:
        if any(fields.thinking) and not (fields.images or any(fields.texts) or fields.calls):
            notices.append(UNFINISHED_REASONING)
            return None
        if not fields.anything:
            if fields.unknown:
                notices.append(Notice("fields_left_out", "fields of an empty message"))
            return None
    return b'{"role":"assistant",' + fields.members() + b"}"


def sort_parts(message: Message, notices: Notices, *, answer: bool) -> MessageFields:
    """The parts by field; a notice for each that has none, or whose position changes."""
    fields = MessageFields(unknown=message_fields(message.parts))
    for index, part in enumerate(message.parts):
        place = f"parts[{index}]"
        field, value = encode_at(place, _encode, part, notices, True, answer)
        if field and fields.add(field, value):
            why = "reasoning, images, text and calls have this order here"
            notices.append(Notice("parts_reordered", why, place))
    fields.note_joined(notices, "message")
    return fields


# ── Parts ─────────────────────────────────────────────────────────────────────────────────────────


def is_message_fields(part: Part) -> bool:
    """Whether a part holds unknown fields of its message."""
    return is_fields_part(part, (WIRE,), MESSAGE_FIELDS)


def message_fields(parts: Iterable[Part]) -> bytes:
    return fields_in_parts(parts, (WIRE,), MESSAGE_FIELDS)


def _encode(
    part: Part, notices: Notices, assistant: bool = False, answer: bool = False
) -> tuple[str, Any]:
    """The field of its message that a part goes to, and its value there; no field if the part is
    left out, with a notice."""
    if isinstance(part, Text) or (assistant and isinstance(part, Refusal)):
        if isinstance(part, Refusal):
            notices.append(Notice("refusal_as_text", "Ollama has no refusal; sent as text"))
        _note_extras(part.extras, notices)
        return "texts", part.text
    if assistant and isinstance(part, ToolCall):
        return "calls", _tool_call(part, notices)
    if assistant and isinstance(part, Thinking):
        text = _thinking(part, notices, answer)
        return "" if text is None else "thinking", text
    if isinstance(part, Image):
        image = _image(part, notices)
        return "" if image is None else "images", image
    if isinstance(part, Opaque) and (part.provider, part.kind) == (WIRE, OTHER_IMAGE):
        opaque = decode_value(part.json.encode(), OpaqueImage, "json", request_error)
        return "images", string(opaque.data)
    if not (assistant and is_message_fields(part)):
        notices.append(_left_out(part))
    return "", None


def _thinking(part: Thinking, notices: Notices, answer: bool) -> str | None:
    if part.provider != WIRE and not answer:
        whose = part.provider or "an unknown provider"
        why = f"reasoning of {whose} is unknown to Ollama; left out"
        notices.append(Notice("foreign_thinking", why))
        return None
    if part.signature is not None or part.data is not None:
        why = "reasoning is a text here: its signature and encrypted form are left out"
        notices.append(Notice("signature_left_out", why))
    _note_extras(part.extras, notices)
    return part.text


def _tool_call(part: ToolCall, notices: Notices) -> bytes:
    form = read_form(part.extras)
    inner, outer = inner_and_outer(part.extras, WIRE, "function")
    call_id = b"" if "id" in form.missing else b'"id":' + string(part.id) + b","
    number = b"" if form.index is None else b'"index":%d,' % form.index
    name, arguments = string(part.name), object_arguments(part.arguments, notices)
    function = number + b'"name":' + name + b',"arguments":' + arguments + inner
    return b"{" + call_id + b'"function":{' + function + b"}" + outer + b"}"


def _image(part: Image, notices: Notices) -> bytes | None:
    """One entry of `images`; None with a notice if there is only a URL."""
    source = part.source
    if not isinstance(source, Bytes):
        notices.append(Notice("image_source", "Ollama takes an image as bytes only; left out"))
        return None
    check_image(source)
    if image_media_type(source.data) != source.media_type:
        why = "Ollama takes no media type, and the bytes do not show this one"
        notices.append(Notice("media_type_left_out", why, "source.media_type"))
    if part.detail is not None:
        notices.append(Notice("detail_unsupported", "an image has no detail here", "detail"))
    _note_extras(part.extras, notices)
    return b'"' + base64.b64encode(source.data) + b'"'


def _left_out(part: object) -> Notice:
    """The notice for a part that has no place in its message."""
    name = type(part).__name__
    check_part(part, _PARTS)
    if isinstance(part, Opaque) and part.provider != WIRE:
        why = f"a {part.kind} block of {part.provider} is unknown to Ollama; left out"
        return Notice("foreign_block", why)
    return Notice("part_left_out", f"Ollama has no place for {name} here; left out")


def _note_extras(extras: Extras | None, notices: Notices) -> None:
    """A notice for the fields of a part that is only a text or an image on this wire."""
    if extras is not None and extra_members(extras, WIRE):
        notices.append(
            Notice("fields_left_out", "its fields are left out: only its content is sent")
        )
