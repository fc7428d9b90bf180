"""Renders a call as a Chat Completions request: system, tools and messages, in hash order.

In the body the tools come first, and the system message leads the list of messages. Every source
message opens messages of its own. One whose content is a list stays open after its last part; the
assistant's is a single chunk and closed. So the glue before a chunk depends only on the role before
it, which makes appending cheap and exact.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from anaphora.canonical import check_object, dumps, string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, PromptBlock, Segment
from anaphora.rendered import ChunkLog, ChunkRun, Kind, LogAppend, Rendered
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
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Ttl,
    Url,
)
from anaphora.wire.markers import policy_notices
from anaphora.wire.openai import (
    ONLY_MARKS,
    OPENAI,
    block_log,
    changed_role,
    data_url,
    foreign_block,
    foreign_file,
    key_slot,
    object_text,
    options_free,
    place_of,
    role_of,
    tool_log,
)
from anaphora.wire.parts import (
    UNFINISHED_REASONING,
    extra_members,
    inner_and_outer,
    note_foreign_fields,
    notices_below,
)
from anaphora.wire.reading import Members, decode_members, encode_members
from anaphora.wire.rendering import (
    AddMessages,
    cacheable_count,
    finish_rendering,
    message_runs,
    section_run,
    usable_previous,
    without_foreign_tools,
)
from anaphora.wire.splitting import BEFORE_BRACE

from .markers import AUTOMATIC, MARKABLE, Traits, locate, traits_of
from .params import envelope
from .types import IN_CONTENT, MEMO, MESSAGE_FIELDS, OTHER_CALL, REASONING_FIELDS, WIRE

Notices: TypeAlias = list[Notice]
#: Encodes a part; None where Chat has no way to send it.
Encode: TypeAlias = Callable[[Any, Notices], bytes | None]

# Looked up once: access to an enum member is slow.
_TEXT, _CALL, _RESULT = Kind.TEXT, Kind.TOOL_CALL, Kind.TOOL_RESULT

_TEXT_CONTENT = b',"content":[{"type":"text","text":'
_OPENING = {
    role: b'{"role":"%b"' % role.encode() + _TEXT_CONTENT
    for role in ("user", "assistant", "system", "developer")
}


def render(
    call: Call,
    profile: Profile,
    previous: Rendered | None = None,
    markers: Mapping[Ttl, bytes] | None = None,
) -> Rendered:
    """The whole prompt as chunks, unmarked.

    With the rendering of an earlier turn in `previous`, only the difference is rendered; the result
    is the same either way. `markers` are those of a dialect.
    """
    traits = traits_of(profile, markers)
    previous = usable_previous(previous, WIRE, call.model)
    if previous is not None and previous.envelope.source[0] != traits:
        previous = None
    request = envelope(call, profile, traits, previous.envelope if previous is not None else None)
    tools, foreign = without_foreign_tools(call.tools, (WIRE,))
    blocks = call.ir.system_field_blocks()

    def add(segment: Segment) -> AddMessages:
        def add(append: LogAppend, new: Sequence[Message], role: str | None) -> None:
            add_messages(append, new, role, segment.role.value, traits)

        return add

    messages, notices = message_runs(
        call.ir.body_runs(),
        previous,
        add,
        opening=glue(traits.system_role) if blocks else b'"messages":[',
        glue=glue,
        close=close,
        first_message=1 if blocks else 0,
    )
    runs: list[ChunkRun] = []
    if blocks:
        runs.append(_system_run(blocks, traits, previous, alone=not messages))
    if tools:
        lead = b'"tools":['
        runs.append(section_run("tools", tools, _tool_log, previous, MEMO, lead=lead, close=b"],"))
    if not blocks and not messages:
        raise InvalidRequest("OpenAI needs at least one message with content", path="ir")
    runs += messages
    return finish_rendering(
        call,
        profile,
        request,
        runs,
        wire=WIRE,
        cacheable=cacheable_count(runs, previous, call.ir.cache.messages),
        markers=traits.markers,
        nearest=traits.nearest,
        locate=lambda mark: locate(mark, call.ir, runs, traits, lambda m: _positions(m, traits)),
        notices=(*foreign, *_section_notices(call, blocks, traits), *notices),
        body_order=(1, 0, *range(2, len(runs))) if blocks and tools else None,
        request_markers=AUTOMATIC if traits.options else {},
        key_place=key_slot(call),
        only_marks=ONLY_MARKS if traits.options and options_free(call) else None,
        automatic="30m" if traits.options and call.ir.cache.mode != "explicit" else None,
    )


def _system_run(
    blocks: tuple[PromptBlock, ...], traits: Traits, previous: Rendered | None, *, alone: bool
) -> ChunkRun:
    nearest = traits.nearest if traits.breakpoints else None
    role = role_of(place_of(blocks), traits.system_role)
    return section_run(
        "system",
        blocks,
        lambda blocks: block_log(blocks, text_part, nearest),
        previous,
        MEMO,
        lead=b'"messages":[{"role":"%b","content":[' % role.encode(),
        close=close(traits.system_role) if alone else b"",
        place="messages[0].content",
        variant=tuple(traits.markers),
    )


def _tool_log(tools: tuple[AnyTool, ...]) -> ChunkLog:
    return tool_log(tools, _tool_definition)


def _tool_definition(tool: AnyTool) -> bytes:
    if isinstance(tool, ProviderTool):
        return check_object(tool.json, path="json").encode()
    inner, outer = inner_and_outer(tool.extras, WIRE, "function")
    description = b',"description":' + string(tool.description) if tool.description else b""
    schema = check_object(tool.schema, path="schema").encode()
    strict = b"" if tool.strict is None else b',"strict":' + dumps(tool.strict)
    return (
        b'{"type":"function","function":{"name":'
        + string(tool.name)
        + description
        + b',"parameters":'
        + schema
        + strict
        + inner
        + b"}"
        + outer
        + b"}"
    )


def _section_notices(call: Call, blocks: Sequence[PromptBlock], traits: Traits) -> Notices:
    notices = changed_role(place_of(blocks), traits.system_role, "system")
    if not traits.breakpoints:
        return notices  # these models cache by themselves: no policy is lost
    return notices + policy_notices(call.tools, blocks, traits.nearest)


# ── Messages ─────────────────────────────────────────────────────────────────────────────────────


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
        plain = encode_plain(message, traits)
        if plain is None:
            role = add_message(append, message, role, where, traits)
            continue
        wire_role, kind, data, markable = plain
        append.item(wire_role, kind, glue(role) + data, splice if markable else None)
        append.end_message(message.id)
        role = wire_role


def add_message(
    append: LogAppend, message: Message, role: str | None, where: str, traits: Traits
) -> str | None:
    """Appends the chunks of any message, with notices; the wire role after it."""
    place = f"{where}[{append.message}]"
    notices: Notices = []
    try:
        pieces = lay_out(message, traits, notices)
    except InvalidRequest as problem:
        raise problem.within(place) from None
    for notice in notices_below(notices, place):
        append.notice(notice)
    for piece in pieces:
        if piece.opening is None:
            data = b"," + piece.data
        else:
            data = glue(role) + piece.opening + piece.data
            append.open(piece.role)
            role = piece.role
        markable = piece.markable and traits.breakpoints
        append.chunk(piece.kind, data, BEFORE_BRACE if markable else None)
    note_foreign_fields(append, message, WIRE, place)
    append.end_message(message.id)
    return role


def lay_out(message: Message, traits: Traits, notices: Notices) -> list[Piece]:
    """The chunks of a message in wire order."""
    if message.role == "assistant":
        data = assistant_message(message, traits, notices)
        calls = any(isinstance(part, ToolCall) for part in message.parts)
        kind = _CALL if calls else _TEXT
        pieces = [] if data is None else [Piece((), kind, data, False, "assistant", b"")]
    elif message.role == "system":
        place = place_of(message.parts)
        notices += changed_role(place, traits.system_role, "role")
        pieces = _content_pieces(message, role_of(place, traits.system_role), notices)
    elif message.role in ("user", "tool"):
        pieces = _result_pieces(message, notices) + _content_pieces(message, "user", notices)
    else:
        raise InvalidRequest(
            f"{message.role!r} is not a role; use system, user, assistant or tool", path="role"
        )
    if not pieces and not notices:
        notices.append(Notice("empty_message", "a message without content is left out"))
    return pieces


def _positions(message: Message, traits: Traits) -> list[tuple[tuple[int, ...], bool]]:
    return [(piece.path, piece.markable) for piece in lay_out(message, traits, [])]


def _result_pieces(message: Message, notices: Notices) -> list[Piece]:
    """The tool results, each a message of its own, before the other parts."""
    pieces: list[Piece] = []
    behind_other = False
    for index, part in enumerate(message.parts):
        if not isinstance(part, ToolResult):
            behind_other = behind_other or not is_fields(part)
            continue
        path = f"parts[{index}]"
        if behind_other:
            notices.append(Notice("parts_reordered", "tool results come first here", path))
        if part.error:
            why = "Chat has no flag for a failed tool; only its text is sent"
            notices.append(Notice("error_flag_left_out", why, f"{path}.error"))
        try:
            pieces += _result(part, index, notices)
        except InvalidRequest as problem:
            raise problem.within(path) from None
    return pieces


def _result(part: ToolResult, index: int, notices: Notices) -> list[Piece]:
    fields = extra_members(part.extras, WIRE)
    opening = b'{"role":"tool","tool_call_id":%b%b,"content":[' % (
        string(part.call_id),
        b"," + fields if fields else b"",
    )
    encoded: list[tuple[tuple[int, ...], bytes, bool]] = []
    if isinstance(part.content, str):
        encoded.append(((index, 0), text_part(part.content), bool(part.content)))
    else:
        for position, inner in enumerate(part.content):
            path = f"parts[{index}].content[{position}]"
            _, markable, data = _encode_part("tool", inner, path, notices)
            if data is not None:
                encoded.append(((index, position), data, markable))
    if not encoded:
        # The call must be answered, even if no part of the result can be sent.
        encoded.append(((index, 0), text_part(""), False))
    return [
        Piece(path, _RESULT, data, markable, "tool", None if position else opening)
        for position, (path, data, markable) in enumerate(encoded)
    ]


def _content_pieces(message: Message, role: str, notices: Notices) -> list[Piece]:
    """A message whose content is a list, one chunk per part."""
    fields = message_fields(message.parts)
    opening: bytes | None = b'{"role":"%b"%b,"content":[' % (
        role.encode(),
        b"," + fields if fields else b"",
    )
    pieces: list[Piece] = []
    for index, part in enumerate(message.parts):
        if is_fields(part) or (isinstance(part, ToolResult) and role == "user"):
            continue
        kind, markable, data = _encode_part(role, part, f"parts[{index}]", notices)
        if data is not None:
            pieces.append(Piece((index,), kind, data, markable, role, opening))
            opening = None
    if fields and not pieces:
        notices.append(Notice("fields_left_out", "fields of a message without content"))
    return pieces


# ── Plain messages ───────────────────────────────────────────────────────────────────────────────


def encode_plain(message: Message, traits: Traits) -> tuple[str, Kind, bytes, bool] | None:
    """The single chunk of a text, a text with calls, or a result without extras: its wire role,
    kind, bytes without glue, and whether it may be marked. None for any other message, and for one
    that `lay_out` rejects. Most messages are plain, and `lay_out` gives the same bytes for them."""
    parts = message.parts
    try:
        if message.role == "assistant":
            return _plain_assistant(parts, traits)
        return _plain_input(message.role, parts[0], traits) if len(parts) == 1 else None
    except InvalidRequest:
        return None


def _plain_assistant(parts: Sequence[Part], traits: Traits) -> tuple[str, Kind, bytes, bool] | None:
    if not parts:
        return None
    first = parts[0]
    if type(first) is Text:
        if first.extras is not None:
            return None
        data = _OPENING["assistant"] + string(first.text)
        if len(parts) == 1:
            return "assistant", _TEXT, data + b"}]}", False
        data, calls = data + b'}],"tool_calls":[', parts[1:]
    else:
        data, calls = b'{"role":"assistant","tool_calls":[', parts
    if traits.reasoning_needed:
        return None
    encoded = []
    for part in calls:
        if type(part) is not ToolCall or part.extras is not None:
            return None
        encoded.append(tool_call(part))
    return "assistant", _CALL, data + b",".join(encoded) + b"]}", False


def _plain_input(role: str, part: Part, traits: Traits) -> tuple[str, Kind, bytes, bool] | None:
    if type(part) is Text:
        if part.extras is not None or role not in ("user", "system"):
            return None
        wire_role = traits.system_role if role == "system" else role
        opening = _OPENING.get(wire_role)
        if opening is None:
            return None
        return wire_role, _TEXT, opening + string(part.text) + b"}", bool(part.text)
    if type(part) is not ToolResult or role not in ("tool", "user"):
        return None
    content = part.content
    if part.error or part.extras is not None or not isinstance(content, str):
        return None
    opening = b'{"role":"tool","tool_call_id":' + string(part.call_id) + _TEXT_CONTENT
    return "tool", _RESULT, opening + string(content) + b"}", bool(content)


# ── The assistant's message ──────────────────────────────────────────────────────────────────────


class _Origin(msgspec.Struct, frozen=True):
    """The field and the host that reasoning came from."""

    field: str | None = None
    host: str | None = None


_decode_origin = msgspec.json.Decoder(_Origin).decode


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
        own: Notices = []
        try:
            _sort_part(part, fields, own, field, host)
        except InvalidRequest as problem:
            raise problem.within(f"parts[{index}]") from None
        notices += notices_below(own, f"parts[{index}]")
    return fields


def _sort_part(
    part: Part, fields: AssistantFields, notices: Notices, field: str | None, host: str | None
) -> None:
    if is_fields(part):
        return
    data: bytes | None = None
    if isinstance(part, ToolCall):
        fields.calls.append(tool_call(part))
        return
    if isinstance(part, Thinking):
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
        data = _refusal(part, notices)
    elif isinstance(part, Opaque):
        data = _opaque(part, notices)
        if data is not None and part.kind == OTHER_CALL:
            fields.calls.append(data)
            return
    else:
        data = encoder_of("assistant", part)[2](part, notices)
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
    """The arguments are sent as the model wrote them, valid JSON or not."""
    inner, outer = inner_and_outer(part.extras, WIRE, "function")
    try:
        arguments = string(part.arguments)
    except InvalidRequest as problem:
        raise problem.within("arguments") from None
    return (
        b'{"id":'
        + string(part.id)
        + b',"type":"function","function":{"name":'
        + string(part.name)
        + b',"arguments":'
        + arguments
        + inner
        + b"}"
        + outer
        + b"}"
    )


def reasoning_field(part: Thinking, host: str | None = None) -> str | None:
    """The field of this wire that the reasoning came in; None for reasoning of other wires, or of
    another host than `host`."""
    if part.provider != WIRE:
        return None
    origin = _decode_origin(encode_members(own_members(part.extras)))
    return origin.field if host is None or origin.host in (None, host) else None


def thinking_part(part: Thinking) -> bytes:
    """Reasoning as a content part."""
    extras = own_members(part.extras)
    texts = b'[{"type":"text","text":' + string(part.text) + b"}]"
    thinking = bytes(extras.pop("thinking", texts))
    rest = {name: raw for name, raw in extras.items() if name not in ("field", "host")}
    more = encode_members(rest)[1:-1]
    return b'{"type":"thinking","thinking":' + thinking + (b"," + more if more else b"") + b"}"


def message_fields(parts: Iterable[Part]) -> bytes:
    """The message fields that are kept as opaque parts, as members of an object."""
    found = [part.json for part in parts if isinstance(part, Opaque) and is_fields(part)]
    if len(found) < 2:
        return object_text(found[0], "json") if found else b""
    fields: Members = {}
    for json in found:
        fields |= decode_members(check_object(json, path="json"))
    return encode_members(fields)[1:-1]


def is_fields(part: Part) -> bool:
    return isinstance(part, Opaque) and (part.provider, part.kind) == (WIRE, MESSAGE_FIELDS)


def own_members(extras: Extras | None) -> Members:
    """The extras of this wire."""
    if extras is None or WIRE not in extras:
        return {}
    return decode_members(check_object(extras[WIRE], path=f"extras.{WIRE}"))


# ── Content parts ────────────────────────────────────────────────────────────────────────────────


def _encode_part(
    role: str, part: Part, path: str, notices: Notices
) -> tuple[Kind, bool, bytes | None]:
    """A part's kind, whether it may be marked, and its bytes; notices and errors name its path."""
    own: Notices = []
    try:
        kind, markable, encode = encoder_of(role, part)
        data = encode(part, own)
    except InvalidRequest as problem:
        raise problem.within(path) from None
    notices += notices_below(own, path)
    return kind, markable, data


def encoder_of(role: str, part: object) -> tuple[Kind, bool, Encode]:
    """A part's kind for the cache rules, whether it may carry a breakpoint, and its encoder in a
    message of that role."""
    if isinstance(part, Opaque):
        misplaced = part.provider == WIRE and part.kind in (MESSAGE_FIELDS, OTHER_CALL)
        markable = part.kind in MARKABLE and part.kind != "text"
        return Kind.OTHER, markable, _left_out if misplaced else _opaque
    if type(part) not in _ENCODERS:
        raise InvalidRequest(
            f"{type(part).__name__} is not a part; use Text, Image, ToolCall, ToolResult, …"
        )
    kind, markable, encode = _ENCODERS[type(part)]
    if isinstance(part, Text):
        return kind, bool(part.text), encode
    if role != "user" and not isinstance(part, Thinking):
        return kind, False, _left_out
    return kind, markable, encode


def text_part(text: str, extras: Extras | None = None) -> bytes:
    return b'{"type":"text","text":' + string(text) + _closing(extras)


def _text(part: Text, _: Notices) -> bytes:
    return text_part(part.text, part.extras)


def _image(part: Image, notices: Notices) -> bytes | None:
    source = part.source
    if isinstance(source, FileId):
        notices.append(Notice("image_source", "Chat takes no file id for an image; left out"))
        return None
    url = string(source.url if isinstance(source, Url) else data_url(source))
    detail = b"" if part.detail is None else b',"detail":' + string(part.detail)
    return b'{"type":"image_url","image_url":{"url":' + url + detail + b"}" + _closing(part.extras)


def _audio(part: Audio, notices: Notices) -> bytes | None:
    source = part.source
    if not isinstance(source, Bytes) or not source.media_type.startswith("audio/"):
        notices.append(Notice("audio_source", "Chat takes audio as bytes only; left out"))
        return None
    format = _AUDIO_FORMATS.get(source.media_type)
    if format is None:
        format = source.media_type.removeprefix("audio/")
        notices.append(Notice("audio_format", f"OpenAI takes wav and mp3; sent as {format}"))
    return (
        b'{"type":"input_audio","input_audio":{"data":"'
        + base64.b64encode(source.data)
        + b'","format":'
        + string(format)
        + b"}"
        + _closing(part.extras)
    )


def _document(part: Document, notices: Notices) -> bytes | None:
    source = part.source
    if isinstance(source, Url):
        notices.append(Notice("document_url", "Chat fetches no documents; left out"))
        return None
    title = part.title
    if isinstance(source, FileId):
        if source.provider not in OPENAI:
            notices.append(foreign_file(source))
            return None
        file = b'{"file_id":' + string(source.id)
    else:
        file = b'{"file_data":' + string(data_url(source))
        # A file in the request needs a name.
        title = title if title is not None else _FILE_NAMES.get(source.media_type, "document")
    if part.context is not None:
        why = "a document has no context here; left out"
        notices.append(Notice("context_unsupported", why, "context"))
    name = b"" if title is None else b',"filename":' + string(title)
    return b'{"type":"file","file":' + file + name + b"}" + _closing(part.extras)


def _refusal(part: Refusal, _: Notices) -> bytes:
    return b'{"type":"refusal","refusal":' + string(part.text) + _closing(part.extras)


def _opaque(part: Opaque, notices: Notices) -> bytes | None:
    if part.provider != WIRE:
        notices.append(foreign_block(part))
        return None
    return check_object(part.json, path="json").encode()


def _left_out(part: Part, notices: Notices) -> None:
    name = type(part).__name__
    notices.append(Notice("part_left_out", f"Chat has no place for {name} here; left out"))


def _thinking(_: Thinking, notices: Notices) -> None:
    why = "Chat Completions has no field for reasoning; left out"
    notices.append(Notice("thinking_left_out", why))


def _closing(extras: Extras | None) -> bytes:
    """The end of an object, with the extras of this wire."""
    if extras is None:
        return b"}"
    more = extra_members(extras, WIRE)
    return b"," + more + b"}" if more else b"}"


_AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
_FILE_NAMES = {"application/pdf": "document.pdf", "text/plain": "document.txt"}

#: In a user's message. Other roles take only text and opaque parts.
_ENCODERS: dict[type, tuple[Kind, bool, Encode]] = {
    Text: (Kind.TEXT, True, _text),
    Image: (Kind.IMAGE, True, _image),
    Document: (Kind.DOCUMENT, True, _document),
    Audio: (Kind.AUDIO, True, _audio),
    Thinking: (Kind.THINKING, False, _thinking),
    ToolCall: (Kind.TOOL_CALL, False, _left_out),
    ToolResult: (Kind.TOOL_RESULT, False, _left_out),
    Refusal: (Kind.TEXT, False, _left_out),
}
