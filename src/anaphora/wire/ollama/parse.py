"""A request to Ollama as a call, and as chunks of its own bytes.

`parse` keeps everything where it stood and as it was written: arguments and schemas keep their
text, unknown fields become extras. It normalises only this:

- `stream` is true when it is missing, and always written out;
- roles are written small; missing content is an empty text; missing messages are none;
- `null`, an empty list of images, calls, tools or stops, an empty description, name or id, empty
  reasoning and no options mean the same as a missing field;
- a function's `type` is written out in a tool and left out in a call; no arguments and no
  parameters mean the same as an empty object of them;
- a leading system message with a text becomes the system prompt;
- a call without an id gets one by its position, and a result without one the id of the call it
  answers; neither is sent back;
- messages get ids by position.

`split` changes only the white space between the outermost fields of the request and of its system
message, so that a miss is explained by the bytes that were sent.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import deque

import msgspec
from msgspec import Raw

from anaphora.canonical import dumps, string
from anaphora.prompt import Call, PromptBlock, PromptIR, Segment
from anaphora.rendered import ChunkLog, ChunkRun, Envelope, Kind, LogAppend, Rendered
from anaphora.values import (
    AnyTool,
    Bytes,
    CachePolicy,
    Conversation,
    Extras,
    Image,
    Message,
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
from anaphora.wire.memo import TOOL_LISTS
from anaphora.wire.reading import (
    ErrorFactory,
    LenientDecoder,
    Members,
    Unknown,
    converts_errors,
    decode_value,
    encode_members,
    known_text,
    list_elements,
    message_ids,
    object_members,
    reply_error,
    request_error,
)

from .params import NO_MESSAGES, PATH, TABLE, read_params
from .render import CLOSE, CLOSE_SYSTEM, CLOSE_TOOLS, MESSAGES, TOOLS, body_order
from .types import (
    FORM,
    MEMO,
    MESSAGE_FIELDS,
    NULL,
    OTHER_IMAGE,
    WIRE,
    ChatMessage,
    ChatRequest,
    MessageCall,
    PartForm,
    ToolObject,
    form_extras,
    image_media_type,
)

_REQUEST: LenientDecoder[ChatRequest] = LenientDecoder(ChatRequest, whole=("think",))
_MESSAGE: LenientDecoder[ChatMessage] = LenientDecoder(ChatMessage)
_TOOL: LenientDecoder[ToolObject] = LenientDecoder(ToolObject)

#: The system prompt, and the messages after it.
_Prompt = tuple[tuple[PromptBlock, ...], list[Message]]


@converts_errors(request_error)
def parse(body: bytes, path: str = "") -> Call:  # noqa: ARG001
    """The call of a request; `InvalidRequest` names the field that is invalid."""
    request, unknown = _REQUEST.decode(body, "$", request_error)
    inner = unknown.take_elements("messages") if unknown is not None else {}
    blocks, messages = _read_messages(request.messages or [], inner)
    params, extras = read_params(request, unknown)
    conversation = Segment(SegmentRole.CONVERSATION, Conversation(messages))
    return Call(
        ir=PromptIR(system_blocks=blocks, segments=(conversation,)),
        model=request.model,
        tools=() if request.tools is NULL else _read_tools(bytes(request.tools)),
        params=params,
        extras=extras,
    )


# ── Messages ─────────────────────────────────────────────────────────────────────────────────────

_ROLES: dict[str, Role] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
#: The fields that each role reads; others are kept as unknown ones.
_FIELDS = {
    "system": ("content", "images"),
    "user": ("content", "images"),
    "assistant": ("content", "images", "thinking", "tool_calls"),
    "tool": ("content", "images", "tool_name", "tool_call_id"),
}
_OTHER_FIELDS = {
    role: [name for name in ChatMessage.__struct_fields__ if name not in ("role", *fields)]
    for role, fields in _FIELDS.items()
}


def _read_messages(messages: list[ChatMessage], unknown: dict[int, Unknown]) -> _Prompt:
    blocks: tuple[PromptBlock, ...] = ()
    read: list[Message] = []
    pending = _PendingCalls()
    names = message_ids(len(messages))
    parts: tuple[Part, ...]
    for index, message in enumerate(messages):
        role = _ROLES.get(message.role) or _read_role(message.role, f"$.messages[{index}].role")
        others = unknown.get(index) if unknown else None
        if role == "assistant":
            parts = _read_assistant(message, others, index)
            pending = _PendingCalls(parts)
        elif role == "tool":
            parts = (_read_result(message, others, pending),)
        else:
            parts = _read_text(message, others, role)
            if role == "system" and index == 0:
                blocks = _system_blocks(parts)
                if blocks:
                    continue
        read.append(Message(id=names[len(read)], role=role, parts=parts))
    return blocks, read


def _read_role(role: str, path: str) -> Role:
    """The server reads roles in any case."""
    if role.lower() not in _ROLES:
        raise request_error(f"{role.lower()!r} is not a role here", path)
    return _ROLES[role.lower()]


def _system_blocks(parts: tuple[Part, ...]) -> tuple[PromptBlock, ...]:
    """The system prompt, when the message is nothing but a text. A blank one stays a message: it
    replaces the model's own system prompt."""
    if len(parts) != 1 or not isinstance(parts[0], Text) or not parts[0].text.strip():
        return ()
    return (PromptBlock("system0", parts[0].text),)


def _read_text(message: ChatMessage, unknown: Unknown | None, role: Role) -> tuple[Part, ...]:
    """The message of a user or a system."""
    rest = unknown_fields(message, unknown, role)
    if rest is None and message.images is None:
        return (Text(message.content or ""),)
    parts: list[Part] = [read_image(image) for image in message.images or ()]
    if message.content or not parts:
        parts.append(Text(message.content or ""))
    return (*parts, *fields_part(rest))


def _read_assistant(message: ChatMessage, unknown: Unknown | None, index: int) -> tuple[Part, ...]:
    parts: list[Part] = []
    inner = unknown.take_elements("tool_calls") if unknown is not None else {}
    if message.thinking:
        parts.append(Thinking(message.thinking, provider=WIRE))
    if message.images:
        parts += [read_image(image) for image in message.images]
    if message.content or not (parts or message.tool_calls):
        parts.append(Text(message.content or ""))
    if message.tool_calls:
        path = f"$.messages[{index}].tool_calls"
        for at, call in enumerate(message.tool_calls):
            others = inner.get(at) if inner else None
            parts.append(read_call(call, others, f"call_{index}_{at}", path, at, request_error))
    rest = unknown_fields(message, unknown, "assistant")
    return (*parts, *fields_part(rest)) if rest is not None else tuple(parts)


def _read_result(
    message: ChatMessage, unknown: Unknown | None, pending: _PendingCalls
) -> ToolResult:
    """A tool's answer: to the call it names, or else to the first one that it may answer."""
    name, call_id, text = message.tool_name or None, message.tool_call_id, message.content or ""
    form = None
    if not call_id:
        call_id = pending.take_first(name)
        form = _NO_CALL_ID if name else _NO_CALL_ID_OR_NAME
    else:
        pending.take(call_id)
        if not name:
            form = _NO_NAME
    rest = unknown_fields(message, unknown, "tool")
    extras = None if form is None else form.copy()
    if rest is not None:
        extras = {WIRE: encode_members(rest).decode(), **(form or {})}
    content: str | tuple[ResultPart, ...] = text
    if message.images:
        images = tuple(map(read_image, message.images))
        content = (*images, Text(text)) if text else images
    return ToolResult(call_id, content, False, name, extras)


def unknown_fields(message: ChatMessage, unknown: Unknown | None, role: str) -> Members | None:
    """The members of a message that its role does not read; None where there are none."""
    rest = unknown.remaining() if unknown is not None else {}
    for name in _OTHER_FIELDS[role]:
        value = getattr(message, name)
        if value is not None:
            rest[name] = Raw(msgspec.json.encode(value))
    return rest or None


def fields_part(rest: Members | None) -> list[Part]:
    """Unknown fields of a message, as a part that other wires leave out."""
    return [Opaque(WIRE, MESSAGE_FIELDS, encode_members(rest).decode())] if rest else []


# ── Calls and results ────────────────────────────────────────────────────────────────────────────


def _form(*missing: str) -> Extras:
    return form_extras(PartForm(missing)) or {}


_NO_ID = _form("id")
_NO_NAME = _form("tool_name")
_NO_CALL_ID = _form("tool_call_id")
_NO_CALL_ID_OR_NAME = _form("tool_call_id", "tool_name")


def read_call(
    call: MessageCall,
    unknown: Unknown | None,
    made_id: str,
    path: str,
    index: int,
    fail: ErrorFactory,
    created_at: str | None = None,
) -> ToolCall:
    """The call at `index` with its arguments as they were written. One without an id gets
    `made_id`, which is not sent."""
    function, call_id, extras = call.function, call.id, None
    arguments = str(function.arguments, "utf-8")
    if arguments[0] != "{":
        arguments = _other_arguments(arguments, f"{path}[{index}].function.arguments", fail)
    number = function.index
    if not call_id:
        call_id = made_id
        if number is None and created_at is None:
            extras = _NO_ID.copy()
        else:
            extras = form_extras(PartForm(("id",), number, created_at))
    elif number is not None:
        extras = {FORM: f'{{"index":{number}}}'}
    if unknown is not None:
        extras = {**(unknown.extras(WIRE) or {}), **(extras or {})} or None
    return ToolCall(call_id, function.name, arguments, extras)


def _other_arguments(arguments: str, path: str, fail: ErrorFactory) -> str:
    if arguments == "null":
        return "{}"
    if arguments[0] == '"' and fail is reply_error:
        # Some hosts with Ollama's API send the text instead of the object.
        return msgspec.json.decode(arguments, type=str)
    raise fail("expected an object", path)


class _PendingCalls:
    """The calls of the last assistant message without a result: their ids, and their tools."""

    __slots__ = ("_by_tool", "_tools")

    def __init__(self, parts: tuple[Part, ...] = ()) -> None:
        self._tools = {part.id: part.name for part in parts if type(part) is ToolCall}
        self._by_tool: dict[str, deque[str]] | None = None

    def take(self, call_id: str) -> None:
        self._tools.pop(call_id, None)

    def take_first(self, tool: str | None) -> str:
        """The first call of that tool, or of any; empty when there is none."""
        call_id = next(iter(self._tools), "")
        if tool is not None and self._tools.get(call_id) != tool:
            call_id = self._first_of(tool)
        self._tools.pop(call_id, None)
        return call_id

    def _first_of(self, tool: str) -> str:
        """Out of order: the calls are sorted by tool once, so that each result costs the same."""
        if self._by_tool is None:
            self._by_tool = {}
            for call_id, name in self._tools.items():
                self._by_tool.setdefault(name, deque()).append(call_id)
        waiting = self._by_tool.get(tool, deque())
        while waiting and waiting[0] not in self._tools:
            waiting.popleft()
        return waiting[0] if waiting else ""


# ── Answers ──────────────────────────────────────────────────────────────────────────────────────


def decode_message(raw: Raw, path: str) -> tuple[ChatMessage, Unknown | None]:
    """The message of an answer, which is the assistant's."""
    message, unknown = _MESSAGE.decode(raw, path, reply_error)
    if message.role.lower() not in ("", "assistant"):
        raise reply_error(f"expected the assistant's message, not {message.role!r}", f"{path}.role")
    return message, unknown


def read_answer(raw: Raw, created_at: str | None) -> tuple[Part, ...]:
    """The parts of an answer's message. An empty text is none."""
    message, unknown = decode_message(raw, "$.message")
    inner = unknown.take_elements("tool_calls") if unknown is not None else {}
    parts: list[Part] = []
    if message.thinking:
        parts.append(Thinking(message.thinking, provider=WIRE))
    parts += map(read_image, message.images or ())
    if message.content:
        parts.append(Text(message.content))
    path, prefix = "$.message.tool_calls", call_id_prefix(created_at)
    for at, call in enumerate(message.tool_calls or ()):
        made_id = f"{prefix}_{at}"
        parts.append(read_call(call, inner.get(at), made_id, path, at, reply_error, created_at))
    return (*parts, *fields_part(unknown_fields(message, unknown, "assistant")))


def call_id_prefix(created_at: str | None) -> str:
    """Begins the ids of calls that came without one. Answers have no ids; their dates differ."""
    date = re.sub("[^0-9A-Za-z]", "", created_at or "")
    return f"call_{date}" if date else "call"


def read_image(encoded: str) -> Image | Opaque:
    """An image of a known type; anything else as it came."""
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    kind = image_media_type(data)
    if kind is None or base64.b64encode(data).decode() != encoded:
        return Opaque(WIRE, OTHER_IMAGE, dumps({"data": encoded}).decode())
    return Image(Bytes(data, kind))


# ── Tools ────────────────────────────────────────────────────────────────────────────────────────

_NO_PARAMETERS = b'{"properties":{},"type":"object"}'


@MEMO.remember(TOOL_LISTS)
def _read_tools(raw: bytes) -> tuple[AnyTool, ...]:
    elements = list_elements(raw, "$.tools", request_error)
    return tuple([_read_tool(tool, f"$.tools[{at}]") for at, tool in enumerate(elements)])


def _read_tool(raw: Raw, path: str) -> AnyTool:
    """A function with its schema as it was given; any other tool whole."""
    members = object_members(raw, path, request_error)
    kind = decode_value(members.get("type", NULL), str | None, f"{path}.type", request_error)
    if kind not in (None, "", "function") or bytes(members.get("function", NULL)) == b"null":
        return ProviderTool(WIRE, kind or "function", bytes(raw).decode())
    tool, unknown = _TOOL.decode(raw, path, request_error)
    function = tool.function
    schema = bytes(function.parameters)
    return Tool(
        function.name,
        function.description or "",
        (_NO_PARAMETERS if schema == b"null" else schema).decode(),
        extras=unknown.extras(WIRE) if unknown is not None else None,
    )


# ── Chunks of a request's bytes ──────────────────────────────────────────────────────────────────


@converts_errors(request_error)
def split(
    body: bytes | Members,
    headers: tuple[tuple[str, str], ...] = (),
    path: str = "",  # noqa: ARG001
) -> Rendered:
    """The request as chunks."""
    members = dict(body) if isinstance(body, dict) else object_members(body, "$", request_error)
    if "model" not in members:
        raise request_error("is missing", "$.model")
    model: str = decode_value(members.pop("model"), str, "$.model", request_error)
    messages = list_elements(members.pop("messages", NULL), "$.messages", request_error)
    tools = _split_tools(list_elements(members.pop("tools", NULL), "$.tools", request_error))
    system = _split_system(messages[0]) if messages else None
    conversation = _split_messages(messages, 0 if system is None else 1)
    if system is not None and conversation is None:
        system = msgspec.structs.replace(system, close=CLOSE_SYSTEM + CLOSE)
    runs = [run for run in (system, tools, conversation) if run is not None]
    rest = encode_members(members)
    return Rendered(
        wire=WIRE,
        model=model,
        runs=tuple(runs),
        cacheable=sum(run.count for run in runs),
        envelope=Envelope(
            source=None,
            path=PATH,
            headers=headers,
            head=b'{"model":' + string(model) + b",",
            tail=(b"" if messages else NO_MESSAGES) + (b"," if members else b"") + rest[1:],
            cache_params=TABLE.sent_cache_params(
                encode_members({"model": Raw(string(model)), **members})
            ),
        ),
        body_order=body_order(runs),
        markers={},
    )


def _split_system(raw: Raw) -> ChunkRun | None:
    """The first message, when it is a system message with a text."""
    members = object_members(raw, "$.messages[0]", request_error)
    role, text = known_text(members, "role"), known_text(members, "content")
    if role.lower() != "system" or not text.strip():
        return None
    del members["role"]
    content = bytes(members.pop("content"))
    rest = b"," + encode_members(members)[1:-1] if members else b""
    opening = b'{"role":' + string(role) + rest + b',"content":"'
    append = LogAppend()
    append.chunk(Kind.SYSTEM, content[1:-1], None)
    log = ChunkLog.of(append, ["system0"], [CachePolicy.NONE])
    place = "messages[0].content"
    return ChunkRun("system", log, 1, lead=MESSAGES + opening, source=("system0",), place=place)


def _split_tools(tools: list[Raw]) -> ChunkRun | None:
    if not tools:
        return None
    append = LogAppend()
    labels = []
    for index, raw in enumerate(tools):
        path = f"$.tools[{index}]"
        function = object_members(raw, path, request_error).get("function", NULL)
        name = ""
        if bytes(function) != b"null":
            name = known_text(object_members(function, f"{path}.function", request_error), "name")
        labels.append(f"tool {name}" if name else f"tools{index}")
        append.chunk(Kind.TOOL, b"," + bytes(raw) if index else bytes(raw), None)
    log = ChunkLog.of(append, labels, [CachePolicy.NONE] * len(labels))
    return ChunkRun("tools", log, len(log), lead=TOOLS, close=CLOSE_TOOLS, source=tuple(labels))


def _split_messages(messages: list[Raw], first: int) -> ChunkRun | None:
    """The messages from the index `first` on."""
    if len(messages) == first:
        return None
    append = LogAppend()
    for index, raw in enumerate(messages[first:]):
        path = f"$.messages[{index + first}]"
        members = object_members(raw, path, request_error)
        if "role" not in members:
            raise request_error("is missing", f"{path}.role")
        role = decode_value(members["role"], str, f"{path}.role", request_error).lower()
        append.open(role)
        append.chunk(_message_kind(role, members), b"," + bytes(raw) if index else bytes(raw), None)
        append.end_message(f"m{index}")
    log = ChunkLog().append(append)
    return ChunkRun(
        "messages",
        log,
        len(log),
        role=SegmentRole.CONVERSATION,
        lead=CLOSE_SYSTEM + b"," if first else MESSAGES,
        close=CLOSE,
        source=MEMO.placeholder_messages(len(messages) - first),
        first_message=first,
    )


def _message_kind(role: str, members: Members) -> Kind:
    if role == "tool":
        return Kind.TOOL_RESULT
    if "tool_calls" in members:
        return Kind.TOOL_CALL
    return Kind.IMAGE if "images" in members else Kind.TEXT
