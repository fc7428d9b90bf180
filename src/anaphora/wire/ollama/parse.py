"""Reads a request to Ollama into a call.

Positions and spelling are kept: arguments and schemas keep their text, unknown fields become
extras. A leading system message with a text becomes the system prompt; the few forms that are
normalised are listed in `tests/support/roundtrip/rules.py`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

import msgspec
from msgspec import Raw

from anaphora.canonical import dumps, string
from anaphora.prompt import Call, PromptBlock, PromptIR, Segment
from anaphora.values import (
    AnyTool,
    Bytes,
    Extras,
    Image,
    Opaque,
    Part,
    ProviderTool,
    ResultPart,
    Role,
    SegmentRole,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)
from anaphora.values.attachments import image_media_type
from anaphora.wire.lenient import LenientDecoder, OtherBlock, Unknown
from anaphora.wire.openai import decode_base64
from anaphora.wire.parts import fields_part
from anaphora.wire.reading import (
    DECODE_ERRORS,
    converts_errors,
    decode_value,
    encode_members,
    extras_of,
    numbered,
    reply_error,
    request_error,
)
from anaphora.wire.splitting import TOOL_LISTS
from anaphora.wire.walking import Walk, WalkedBlock

from . import types
from .fields import TABLE
from .params import read_params
from .types import (
    MEMO,
    MESSAGE_FIELDS,
    NULL,
    OTHER_IMAGE,
    WIRE,
    AssistantMessage,
    PartForm,
    ToolMessage,
    UserMessage,
    form_extras,
)

_REQUEST = LenientDecoder[types.ChatRequest](types.ChatRequest)
_MESSAGE = LenientDecoder[types.ChatMessage](types.ChatMessage)
_ANSWER = LenientDecoder[AssistantMessage | OtherBlock](AssistantMessage, default_tag="assistant")
_TOOL = LenientDecoder[types.ToolObject](types.ToolObject)

#: The calls of the last assistant message that have no result yet: their ids, and their tools.
_Pending = dict[str, str]
_ByTool = dict[str, deque[str]]
#: The system prompt, and the messages after it.
_Prompt = tuple[tuple[PromptBlock, ...], list[tuple[Role, tuple[Part, ...]]]]


@converts_errors(request_error)
def parse(body: bytes, path: str = "") -> Call:  # noqa: ARG001
    """The call of a request; `InvalidRequest` names the field that is invalid."""
    unknown: Unknown | None = None
    inner: dict[int, Unknown] = {}
    try:
        request = _REQUEST.strict(body)
        messages = request.messages or []
    except DECODE_ERRORS:
        request, unknown = _REQUEST.separate(body, "$", request_error)
        if unknown is not None:
            inner = unknown.take_elements("messages")
        messages = _with_known_roles(request.messages or [], inner)
    blocks, conversation = _read_messages(messages, inner)
    params, extras = read_params(request, unknown)
    segment = Segment(SegmentRole.CONVERSATION, numbered(conversation))
    return Call(
        ir=PromptIR(system_blocks=blocks, segments=(segment,)),
        model=request.model,
        tools=() if request.tools is NULL else _read_tools(bytes(request.tools)),
        params=params,
        extras=extras,
    )


# ── Messages ─────────────────────────────────────────────────────────────────────────────────────


def _read_messages(messages: list[types.ChatMessage], unknown: dict[int, Unknown]) -> _Prompt:
    blocks: tuple[PromptBlock, ...] = ()
    read: list[tuple[Role, tuple[Part, ...]]] = []
    pending: _Pending = {}
    by_tool: _ByTool = {}
    others: Unknown | None = None
    role: Role
    parts: tuple[Part, ...]
    for index, message in enumerate(messages):
        if unknown:
            others = unknown.get(index)
        if type(message) is ToolMessage:
            role, parts = "tool", (_read_result(message, others, pending, by_tool),)
        elif type(message) is AssistantMessage:
            pending, by_tool = {}, {}
            role, parts = "assistant", _read_assistant(message, others, index, pending)
        else:
            role = "user" if type(message) is UserMessage else "system"
            parts = (Text(message.content or ""),)
            if message.images is not None or others is not None:
                parts = _read_content(message, others, parts[0])
            if role == "system" and index == 0 and (blocks := _system_blocks(parts)):
                continue
        read.append((role, parts))
    return blocks, read


def _with_known_roles(
    messages: Sequence[types.ChatMessage | OtherBlock], unknown: dict[int, Unknown]
) -> list[types.ChatMessage]:
    """The messages with their roles in lower case: the server accepts any case."""
    known: list[types.ChatMessage] = []
    for index, message in enumerate(messages):
        if type(message) is OtherBlock:
            role, path = message.tag.lower(), f"$.messages[{index}]"
            if role not in ("system", "user", "assistant", "tool") or role == message.tag:
                raise request_error(f"{role!r} is not a role here", f"{path}.role")
            members = encode_members({**message.members, "role": Raw(string(role))})
            message, others = _MESSAGE.decode(members, path, request_error)
            if others is not None:
                unknown[index] = others
        known.append(message)
    return known


def _system_blocks(parts: tuple[Part, ...]) -> tuple[PromptBlock, ...]:
    """The system prompt, if the message is only a text. A blank one stays a message: it replaces
    the model's own system prompt."""
    if len(parts) != 1 or not isinstance(parts[0], Text) or not parts[0].text.strip():
        return ()
    return (PromptBlock("system0", parts[0].text),)


def _read_content(
    message: types.ChatMessage, unknown: Unknown | None, text: Text
) -> tuple[Part, ...]:
    """Images and the text, which may be empty only if there are no images."""
    parts: list[Part] = [read_image(image) for image in message.images or ()]
    if text.text or not parts:
        parts.append(text)
    if unknown is not None:
        parts += fields_part(WIRE, MESSAGE_FIELDS, unknown.remaining())
    return tuple(parts)


def _read_assistant(
    message: AssistantMessage,
    unknown: Unknown | None,
    place: int | str,
    pending: _Pending,
    answer: str | None = None,
    created_at: str | None = None,
) -> tuple[Part, ...]:
    """The parts of an assistant's message; its calls are added to `pending`. In an answer an empty
    text is none; `place`, `answer` and `created_at` are those of `read_call`."""
    parts: list[Part] = []
    calls = message.tool_calls
    if message.thinking:
        parts.append(Thinking(message.thinking, provider=WIRE))
    if message.images:
        parts += [read_image(image) for image in message.images]
    if message.content or not (parts or calls or answer):
        parts.append(Text(message.content or ""))
    if calls:
        inner = unknown.take_elements("tool_calls") if unknown is not None else None
        others: Unknown | None = None
        for index, call in enumerate(calls):
            if inner:
                others = inner.get(index)
            part = read_call(call, others, place, index, answer, created_at)
            pending[part.id] = part.name
            parts.append(part)
    if unknown is not None:
        parts += fields_part(WIRE, MESSAGE_FIELDS, unknown.remaining())
    return tuple(parts)


def _read_result(
    message: ToolMessage, unknown: Unknown | None, pending: _Pending, by_tool: _ByTool
) -> ToolResult:
    """A tool's result: of the call it names, or else of the first one that it may answer."""
    name, call_id, text = message.tool_name or None, message.tool_call_id, message.content or ""
    extras: Extras | None = None
    if call_id:
        pending.pop(call_id, None)
        if not name:
            extras = _NO_NAME
    else:
        call_id = _take_call(pending, by_tool, name)
        extras = _NO_CALL_ID if name else _NO_CALL_ID_OR_NAME
    content: str | tuple[ResultPart, ...] = text
    if message.images:
        images = tuple(map(read_image, message.images))
        content = (*images, Text(text)) if text else images
    if unknown is not None:
        extras = _extras(unknown, extras)
    return ToolResult(call_id, content, False, name, extras)


# ── Calls and results ────────────────────────────────────────────────────────────────────────────


_NO_ID = form_extras(PartForm(("id",)))
_NO_NAME = form_extras(PartForm(("tool_name",)))
_NO_CALL_ID = form_extras(PartForm(("tool_call_id",)))
_NO_CALL_ID_OR_NAME = form_extras(PartForm(("tool_call_id", "tool_name")))
#: By the number of a call that has an id.
_NUMBERED = tuple(form_extras(PartForm(index=number)) for number in range(16))


def _extras(unknown: Unknown, form: Extras | None) -> Extras | None:
    members = unknown.remaining()
    if form is None or not members:
        return form or extras_of(WIRE, members)
    return {WIRE: encode_members(members).decode(), **form}


def read_call(
    call: types.MessageCall,
    unknown: Unknown | None,
    place: int | str,
    index: int,
    answer: str | None = None,
    created_at: str | None = None,
) -> ToolCall:
    """A call with its arguments unchanged. One without an id gets one made of `place` and `index`,
    which is not sent. `answer` is the path of the message in an answer."""
    function, call_id = call.function, call.id
    number, arguments = function.index, str(function.arguments, "utf-8")
    extras: Extras | None = None
    if arguments[0] != "{":
        arguments = _other_arguments(arguments, place, index, answer)
    if call_id:
        if number is not None:
            usual = 0 <= number < len(_NUMBERED)
            extras = _NUMBERED[number] if usual else form_extras(PartForm(index=number))
    else:
        call_id = f"call_{place}_{index}" if place != "" else f"call_{index}"
        if number is None and created_at is None:
            extras = _NO_ID
        else:
            extras = form_extras(PartForm(("id",), number, created_at))
    if unknown is not None:
        extras = _extras(unknown, extras)
    return ToolCall(call_id, function.name, arguments, extras)


def _other_arguments(arguments: str, place: int | str, index: int, answer: str | None) -> str:
    if arguments == "null":
        return "{}"
    path = f"tool_calls[{index}].function.arguments"
    if answer is None:
        raise request_error("expected an object", f"$.messages[{place}].{path}")
    if arguments[0] == '"':
        # Some hosts with Ollama's API send the text instead of the object.
        return msgspec.json.decode(arguments, type=str)
    raise reply_error("expected an object", f"{answer}.{path}")


def _take_call(pending: _Pending, by_tool: _ByTool, tool: str | None) -> str:
    """The id of the first pending call of that tool, or of any; empty if there is none."""
    call_id = next(iter(pending), "")
    if tool is not None and pending.get(call_id) != tool:
        # Out of order: the calls are sorted by tool once, so that each result costs the same.
        if not by_tool:
            for pending_id, name in pending.items():
                by_tool.setdefault(name, deque()).append(pending_id)
        waiting = by_tool.get(tool, deque())
        while waiting and waiting[0] not in pending:
            waiting.popleft()
        call_id = waiting[0] if waiting else ""
    pending.pop(call_id, None)
    return call_id


# ── Answers ──────────────────────────────────────────────────────────────────────────────────────


def decode_message(raw: Raw, path: str) -> tuple[AssistantMessage, Unknown | None]:
    """The message of an answer, which is the assistant's."""
    message, unknown = _ANSWER.decode(raw, path, reply_error)
    if type(message) is OtherBlock:
        if message.tag.lower() not in ("", "assistant"):
            reason = f"expected the assistant's message, not {message.tag!r}"
            raise reply_error(reason, f"{path}.role")
        members = {name: raw for name, raw in message.members.items() if name != "role"}
        return decode_message(Raw(encode_members(members)), path)
    return message, unknown


def read_answer(raw: Raw, created_at: str | None) -> tuple[Part, ...]:
    """The parts of an answer's message."""
    message, unknown = decode_message(raw, "$.message")
    date = compact_date(created_at)
    return _read_assistant(message, unknown, date, {}, "$.message", created_at)


def compact_date(created_at: str | None) -> str:
    """The date for generated ids of calls: answers have no ids, but their dates differ."""
    return re.sub("[^0-9A-Za-z]", "", created_at or "")


def read_image(encoded: str) -> Image | Opaque:
    """An image of a known type; anything else is kept unchanged."""
    source = decode_base64(encoded, "")
    kind = image_media_type(source.data) if source is not None else None
    if source is None or kind is None:
        return Opaque(WIRE, OTHER_IMAGE, dumps({"data": encoded}).decode())
    return Image(Bytes(source.data, kind))


# ── Tools ────────────────────────────────────────────────────────────────────────────────────────

_NO_PARAMETERS = b'{"properties":{},"type":"object"}'


@MEMO.remember(TOOL_LISTS)
def _read_tools(raw: bytes) -> tuple[AnyTool, ...]:
    walk = Walk(TABLE)
    return tuple([_read_tool(tool, walk) for tool in walk.tools(raw, "$.tools")])


def _read_tool(found: WalkedBlock, walk: Walk) -> AnyTool:
    """A function with its schema unchanged; any other tool whole."""
    members, path = found.members, found.path
    kind = decode_value(members.get("type", NULL), str | None, f"{path}.type", request_error)
    if kind not in (None, "", "function") or bytes(members.get("function", NULL)) == b"null":
        name = walk.function_name(found) or kind or "function"
        return ProviderTool(WIRE, name, bytes(found.raw).decode())
    tool, unknown = _TOOL.decode(found.raw, path, request_error)
    function = tool.function
    schema = bytes(function.parameters)
    return Tool(
        function.name,
        function.description or "",
        (_NO_PARAMETERS if schema == b"null" else schema).decode(),
        extras=unknown.extras(WIRE) if unknown is not None else None,
    )
