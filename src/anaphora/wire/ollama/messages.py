"""Messages as Ollama's bytes: each is one closed object, since content is a text and not a list.

What stands before a message never changes its bytes, except for the calls that its tool results
answer.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import msgspec

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
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
from anaphora.wire.parts import (
    UNFINISHED_REASONING,
    extra_members,
    inner_and_outer,
    note_foreign_fields,
    notices_below,
    object_arguments,
)
from anaphora.wire.reading import decode_value, request_error

from .types import (
    OTHER_IMAGE,
    WIRE,
    OpaqueImage,
    image_media_type,
    is_message_fields,
    message_fields,
    read_form,
)

Notices = list[Notice]

#: The calls that a result may answer, by id.
Calls = Mapping[str, ToolCall]
#: The role, kind and bytes of a message on the wire.
Piece = tuple[str, Kind, bytes]


def add_messages(
    append: LogAppend,
    messages: Sequence[Message],
    last_role: str | None,
    where: str,
    conversation: Conversation,
) -> None:
    """The chunks of these messages of the conversation. `last_role` is the wire role that the log
    ends with; None when it is empty, and its first chunk needs no comma."""
    calls = _calls_before(conversation, append.first_message)
    for message in messages:
        place = f"{where}[{append.message}]"
        notices: Notices = []
        try:
            pieces = _wire_messages(message, calls, notices)
        except InvalidRequest as problem:
            raise problem.within(place) from None
        if notices:
            for notice in notices_below(notices, place):
                append.notice(notice)
        for role, kind, data in pieces:
            append.item(role, kind, data if last_role is None else b"," + data, None)
            last_role = role
        note_foreign_fields(append, message, WIRE, place)
        append.end_message(message.id)
        if message.role == "assistant":
            calls = _calls_of(message)


def _calls_before(conversation: Conversation, position: int) -> Calls:
    """The calls of the last assistant message before that position."""
    for index in range(position - 1, -1, -1):
        if conversation[index].role == "assistant":
            return _calls_of(conversation[index])
    return {}


def _calls_of(message: Message) -> Calls:
    return {part.id: part for part in message.parts if isinstance(part, ToolCall)}


def _wire_messages(message: Message, calls: Calls, notices: Notices) -> list[Piece]:
    """The messages on the wire that one message becomes."""
    if message.role == "assistant":
        data = write_assistant(message, notices)
        kind = Kind.TOOL_CALL if _calls_of(message) else Kind.TEXT
        pieces = [] if data is None else [("assistant", kind, data)]
    elif message.role == "system":
        pieces = _texts(message, "system", notices)
    elif message.role in ("user", "tool"):
        pieces = _results(message, calls, notices) + _texts(message, "user", notices)
    else:
        raise InvalidRequest(
            f"{message.role!r} is not a role; use system, user, assistant or tool", path="role"
        )
    if not pieces and not notices:
        notices.append(Notice("empty_message", "an empty message is left out"))
    return pieces


class _TextMessage(msgspec.Struct):
    """A text, and the images before it."""

    text: str
    images: list[bytes] = []

    def members(self) -> bytes:
        images = b',"images":[' + b",".join(self.images) + b"]" if self.images else b""
        return b'"content":' + string(self.text) + images


def _texts(message: Message, role: str, notices: Notices) -> list[Piece]:
    """A message for each text, with the images before it: content is one text here, and texts that
    were apart would run together in it. Images after the last text go with it."""
    if role == "system" and any(isinstance(part, ToolResult) for part in message.parts):
        notices.append(Notice("part_left_out", "a system message holds no tool results; left out"))
    texts: list[_TextMessage] = []
    waiting: list[bytes] = []
    for index, part in enumerate(message.parts):
        if isinstance(part, ToolResult) or is_message_fields(part):
            continue
        written = _text_or_image(part, notices, f"parts[{index}]")
        if isinstance(written, str):
            texts.append(_TextMessage(written, waiting))
            waiting = []
        elif written is not None:
            waiting.append(written)
    if waiting and texts:
        texts[-1].images += waiting
        notices.append(Notice("parts_reordered", "images stand before their text here"))
    elif waiting:
        texts.append(_TextMessage("", waiting))
    fields = message_fields(message.parts)
    if fields and not texts:
        notices.append(Notice("fields_left_out", "fields of an empty message"))
    pieces: list[Piece] = []
    for text in texts:
        # Unknown fields stand in the first message: it is the one that they came with.
        extra = fields + b"," if fields and not pieces else b""
        data = b'{"role":"%b",%b%b}' % (role.encode(), extra, text.members())
        pieces.append((role, Kind.IMAGE if text.images else Kind.TEXT, data))
    return pieces


def _results(message: Message, calls: Calls, notices: Notices) -> list[Piece]:
    """The tool results, each a message of its own, before the other parts."""
    pieces: list[Piece] = []
    other = False
    for index, part in enumerate(message.parts):
        if not isinstance(part, ToolResult):
            other = other or not is_message_fields(part)
            continue
        found: Notices = []
        if other:
            found.append(Notice("parts_reordered", "tool results come first here"))
        try:
            data = _result(part, calls.get(part.call_id), found)
        except InvalidRequest as problem:
            raise problem.within(f"parts[{index}]") from None
        pieces.append(("tool", Kind.TOOL_RESULT, data))
        if found:
            notices += notices_below(found, f"parts[{index}]")
    return pieces


def _result(part: ToolResult, call: ToolCall | None, notices: Notices) -> bytes:
    """A tool's answer. Models look for the tool's name as well as the call's id, so the name comes
    from the call where the result has none; an id that was made here is not sent."""
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
    members.append(_joined(content, notices).members())
    return b"{" + b",".join(members) + b"}"


def _joined(parts: Sequence[Part], notices: Notices) -> _TextMessage:
    """All parts of a tool's answer as one message."""
    message, texts = _TextMessage(""), 0
    for index, part in enumerate(parts):
        place = f"content[{index}]"
        written = _text_or_image(part, notices, place)
        if isinstance(written, str):
            message.text += written
            texts += 1
        elif written is not None:
            if texts:
                why = "images stand before their text here"
                notices.append(Notice("parts_reordered", why, place))
            message.images.append(written)
    if texts > 1:
        why = f"{texts} texts of one answer become one, as they are"
        notices.append(Notice("texts_joined", why))
    return message


# ── The assistant's message ──────────────────────────────────────────────────────────────────────

#: The order in which the fields are read back.
_ORDER = ("thinking", "images", "texts", "calls")


class AssistantFields(msgspec.Struct):
    """An assistant's parts by the field that they go to. The order of parts is not kept."""

    thinking: list[str] = []
    images: list[bytes] = []
    texts: list[str] = []
    calls: list[bytes] = []
    unknown: bytes = b""
    """Unknown fields of the message, as members of an object."""

    @property
    def anything(self) -> bool:
        return bool(self.images or self.texts or self.calls or any(self.thinking))

    @property
    def unfinished(self) -> bool:
        """Whether there is reasoning and nothing else."""
        return any(self.thinking) and not (self.images or any(self.texts) or self.calls)

    def members(self) -> bytes:
        """The message's fields but for the role."""
        members = [self.unknown] if self.unknown else []
        members.append(b'"content":' + string("".join(self.texts)))
        if thinking := "".join(self.thinking):
            members.append(b'"thinking":' + string(thinking))
        if self.images:
            members.append(b'"images":[' + b",".join(self.images) + b"]")
        if self.calls:
            members.append(b'"tool_calls":[' + b",".join(self.calls) + b"]")
        return b",".join(members)


def write_assistant(message: Message, notices: Notices, *, answer: bool = False) -> bytes | None:
    """The whole message; None when it is empty. An answer holds all reasoning, a request only that
    of Ollama itself."""
    fields = sort_parts(message, notices, answer=answer)
    if fields.unfinished and not answer:
        notices.append(UNFINISHED_REASONING)
        return None
    if not fields.anything and not answer:
        if fields.unknown:
            notices.append(Notice("fields_left_out", "fields of an empty message"))
        return None
    return b'{"role":"assistant",' + fields.members() + b"}"


def sort_parts(message: Message, notices: Notices, *, answer: bool) -> AssistantFields:
    """Each part in its field; a notice for each that has none, or changes its place."""
    fields = AssistantFields()
    last = 0
    for index, part in enumerate(message.parts):
        found: Notices = []
        try:
            field = _add_part(part, fields, found, answer)
        except InvalidRequest as problem:
            raise problem.within(f"parts[{index}]") from None
        if field is not None:
            rank = _ORDER.index(field)
            if rank < last:
                why = "reasoning, images, text and calls stand in this order here"
                found.append(Notice("parts_reordered", why))
            last = max(last, rank)
        if found:
            notices += notices_below(found, f"parts[{index}]")
    for texts in (fields.thinking, fields.texts):
        if len(texts) > 1:
            why = f"{len(texts)} texts of one message become one, as they are"
            notices.append(Notice("texts_joined", why))
    fields.unknown = message_fields(message.parts)
    return fields


def _add_part(part: Part, fields: AssistantFields, notices: Notices, answer: bool) -> str | None:
    """Appends a part to its field, and names the field; None for a part that is left out."""
    if isinstance(part, Text | Refusal):
        if isinstance(part, Refusal):
            notices.append(Notice("refusal_as_text", "Ollama has no refusal; sent as text"))
        _note_extras(part.extras, notices)
        fields.texts.append(part.text)
        return "texts"
    if isinstance(part, ToolCall):
        fields.calls.append(_tool_call(part, notices))
        return "calls"
    if isinstance(part, Thinking):
        return _add_thinking(part, fields, notices, answer)
    if _is_image(part):
        image = _image(part, notices)  # type: ignore[arg-type]
        if image is not None:
            fields.images.append(image)
            return "images"
    elif not is_message_fields(part):
        _note_left_out(part, notices)
    return None


def _add_thinking(
    part: Thinking, fields: AssistantFields, notices: Notices, answer: bool
) -> str | None:
    if part.provider != WIRE and not answer:
        whose = part.provider or "an unknown provider"
        why = f"reasoning of {whose} means nothing to Ollama; left out"
        notices.append(Notice("foreign_thinking", why))
        return None
    if part.signature is not None or part.data is not None:
        why = "reasoning is a text here: its signature and encrypted form are left out"
        notices.append(Notice("signature_left_out", why))
    _note_extras(part.extras, notices)
    fields.thinking.append(part.text)
    return "thinking"


def _tool_call(part: ToolCall, notices: Notices) -> bytes:
    form = read_form(part.extras)
    inner, outer = inner_and_outer(part.extras, WIRE, "function")
    call_id = b"" if "id" in form.missing else b'"id":' + string(part.id) + b","
    number = b"" if form.index is None else b'"index":%d,' % form.index
    name, arguments = string(part.name), object_arguments(part.arguments, notices)
    function = number + b'"name":' + name + b',"arguments":' + arguments + inner
    return b"{" + call_id + b'"function":{' + function + b"}" + outer + b"}"


# ── Texts and images ─────────────────────────────────────────────────────────────────────────────

_PARTS = (Text, Image, Document, Audio, ToolCall, ToolResult, Thinking, Refusal, Opaque)


def _text_or_image(part: Part, notices: Notices, place: str) -> str | bytes | None:
    """A text, an image as it is sent, or None with a notice."""
    found: Notices = []
    written: str | bytes | None = None
    try:
        if isinstance(part, Text):
            _note_extras(part.extras, found)
            written = part.text
        elif _is_image(part):
            written = _image(part, found)  # type: ignore[arg-type]
        else:
            _note_left_out(part, found)
    except InvalidRequest as problem:
        raise problem.within(place) from None
    if found:
        notices += notices_below(found, place)
    return written


def _note_left_out(part: object, notices: Notices) -> None:
    """A notice for a part that has no place in its message."""
    if not isinstance(part, _PARTS):
        raise InvalidRequest(
            f"{type(part).__name__} is not a part; use Text, Image, ToolCall, ToolResult, …"
        )
    if isinstance(part, Opaque) and part.provider != WIRE:
        why = f"a {part.kind} block of {part.provider} means nothing to Ollama; left out"
        notices.append(Notice("foreign_block", why))
        return
    name = type(part).__name__
    notices.append(Notice("part_left_out", f"Ollama has no place for {name} here; left out"))


def _is_image(part: object) -> bool:
    if isinstance(part, Opaque):
        return (part.provider, part.kind) == (WIRE, OTHER_IMAGE)
    return isinstance(part, Image)


def _image(part: Image | Opaque, notices: Notices) -> bytes | None:
    """One entry of `images`; None with a notice where there is only a URL."""
    if isinstance(part, Opaque):
        image: OpaqueImage = decode_value(part.json.encode(), OpaqueImage, "json", request_error)
        return string(image.data)
    source = part.source
    if not isinstance(source, Bytes):
        notices.append(Notice("image_source", "Ollama takes an image as bytes only; left out"))
        return None
    if not source.media_type.startswith("image/"):
        raise InvalidRequest(
            f"{source.media_type!r} is no image; use a Document", path="source.media_type"
        )
    if image_media_type(source.data) != source.media_type:
        why = "an image has no media type here, and its bytes do not tell this one"
        notices.append(Notice("media_type_left_out", why, "source.media_type"))
    if part.detail is not None:
        notices.append(Notice("detail_unsupported", "an image has no detail here", "detail"))
    _note_extras(part.extras, notices)
    return b'"' + base64.b64encode(source.data) + b'"'


def _note_extras(extras: Extras | None, notices: Notices) -> None:
    """A notice for the fields of a part that is only a text or an image on this wire."""
    if extra_members(extras, WIRE):
        notices.append(Notice("fields_left_out", "it is no object here: its fields are left out"))
