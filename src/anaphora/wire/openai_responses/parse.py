"""Reads a Responses request into a call.

Positions and spelling are kept: arguments and schemas keep their text, breakpoints become the
caller's marks, unknown fields become extras. Only these forms are normalised:

- a message without a type gets one, and text content of an input message, or a tool's output,
  becomes a list with one `input_text`; an assistant's `input_text` becomes `output_text`;
- `developer` and `system` are one role; a system message that leads the input is the system
  prompt, as `instructions` are, and is sent in the slot that the model wants;
- successive items of the assistant are one message (and are rendered as the same items);
- an image without a detail gets `auto`, a breakpoint without a TTL the request's;
- `null`, `false` for `stream` and empty lists mean the same as a missing field at the top level;
- messages get ids by position.
"""

from __future__ import annotations

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.prompt import (
    BlockMark,
    Call,
    Continuation,
    MarkRequest,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    Segment,
)
from anaphora.values import (
    AnyTool,
    Conversation,
    Opaque,
    Part,
    ProviderTool,
    Role,
    SegmentRole,
    Text,
    Thinking,
    Tool,
    ToolCall,
    Ttl,
)
from anaphora.wire.lenient import LenientDecoder, OtherBlock
from anaphora.wire.memo import TOOL_LISTS
from anaphora.wire.openai import (
    SystemPlace,
    keep_place,
    system_blocks,
)
from anaphora.wire.params import NO_CACHE_PLAN
from anaphora.wire.reading import (
    DECODE_ERRORS,
    converts_errors,
    decode_elements,
    decode_value,
    numbered,
    request_error,
)
from anaphora.wire.walking import Walk

from . import types
from .fields import TABLE
from .items import continues_message
from .params import read_params
from .reply import ItemReader, ReadItem
from .types import ITEM, MEMO, NULL, STRICT_KEY, WIRE

_REQUEST: LenientDecoder[types.ResponsesRequest] = LenientDecoder(types.ResponsesRequest)
_TOOL: LenientDecoder[types.FunctionTool | OtherBlock] = LenientDecoder(types.FunctionTool)

_encode = msgspec.json.Encoder().encode


@converts_errors(request_error)
def parse(body: bytes, path: str = "", first: int = 0) -> Call:  # noqa: ARG001
    """The call of a request; `InvalidRequest` names the field that is wrong. With `first`, the
    messages are those of a conversation after so many others."""
    request, unknown = _REQUEST.decode(body, "$", request_error)
    items = _read_items(bytes(request.input))
    if not request.model and (unknown is None or "prompt" not in unknown.members):
        raise request_error("is missing", "$.model")  # only a stored prompt decides it
    params, cache, extras = read_params(request, unknown)
    ttl: Ttl = cache.get("automatic") or "30m"
    previous = request.previous_response_id
    marks: list[MarkRequest] = []
    blocks: tuple[PromptBlock, ...] = ()
    if request.instructions is not None:
        kept = keep_place(None, SystemPlace(slot="instructions"))
        blocks = (PromptBlock("instructions", request.instructions, extras=kept),)
    elif previous is None and not first:
        blocks, marks = _system_blocks(items, ttl)
    conversation = _conversation(items, ttl, marks, first)
    if marks:
        cache["marks"] = tuple(marks)
    ir = PromptIR(
        system_blocks=blocks,
        segments=(Segment(SegmentRole.CONVERSATION, conversation),),
        cache=PromptCachePlan(**cache) if cache else NO_CACHE_PLAN,
        continuation=None if previous is None else Continuation(previous),
    )
    tools = () if request.tools is NULL else _read_tools(bytes(request.tools))
    return Call(ir=ir, model=request.model, tools=tools, params=params, extras=extras)


def input_items(raw: bytes | msgspec.Raw) -> tuple[bytes, ...]:
    """The items of a request's input as raw JSON; a string is a user's message."""
    data = bytes(raw)
    if data == b"null":
        return ()
    if data[:1] == b'"':
        return (b'{"type":"message","role":"user","content":' + data + b"}",)
    try:
        return tuple(map(bytes, msgspec.json.decode(data, type=list[msgspec.Raw])))
    except msgspec.DecodeError as problem:
        raise InvalidRequest(str(problem), path="input") from None


def _read_items(given: bytes) -> list[ReadItem]:
    """The items of the input; a text is a user's message."""
    if given[:1] == b'"':
        return [("user", (Text(decode_value(given, str, "$.input", request_error)),), ())]
    try:
        raws = [] if given == b"null" else decode_elements(given)
    except DECODE_ERRORS as problem:
        raise request_error(f"expected text or a list: {problem}", "$.input") from None
    return [ItemReader(f"$.input[{i}]", request_error).read(raw) for i, raw in enumerate(raws)]


def _conversation(
    items: list[ReadItem], ttl: Ttl, marks: list[MarkRequest], first: int
) -> Conversation:
    """The items as messages; successive items of the assistant are one."""
    messages: list[tuple[Role, tuple[Part, ...]]] = []
    answer: list[Part] = []
    for role, parts, placed in items:
        if role == "assistant":
            if answer and type(parts[0]) is Text:
                answer.append(_apart(parts[0], answer))
                answer += parts[1:]
            else:
                answer += parts
            continue
        if answer:
            messages.append(("assistant", tuple(answer)))
            answer = []
        if placed:
            name = f"m{first + len(messages)}"
            marks += [PartMark(name, path, own or ttl, extras) for path, own, extras in placed]
        messages.append((role, parts))
    if answer:
        messages.append(("assistant", tuple(answer)))
    return numbered(messages, first)


def _apart(part: Text, before: list[Part]) -> Text:
    """Keep a text that was a message by itself separate from a message that it could belong to."""
    if not continues_message(part):
        return part
    for other in reversed(before):
        if isinstance(other, ToolCall | Thinking | Opaque):
            break
        if not continues_message(other):
            return Text(part.text, {**(part.extras or {}), ITEM: "{}"})
    return part


def _system_blocks(
    items: list[ReadItem], ttl: Ttl
) -> tuple[tuple[PromptBlock, ...], list[MarkRequest]]:
    """The system message that leads the input, which is removed from it."""
    if len(items) < 2 or items[0][0] != "system":
        return (), []
    _, parts, placed = items[0]
    texts = [part for part in parts if isinstance(part, Text) and part.text.strip()]
    if len(texts) < len(parts):
        return (), []
    del items[0]
    return system_blocks(texts), [BlockMark(path[0], own or ttl, e) for path, own, e in placed]


@MEMO.remember(TOOL_LISTS)
def _read_tools(listed: bytes) -> tuple[AnyTool, ...]:
    """Remembered: the same list comes with every turn."""
    tools: list[AnyTool] = []
    for found in Walk(TABLE).tools(listed, "$.tools"):
        tool, unknown = _TOOL.decode(found.raw, found.path, request_error)
        schema = b"" if isinstance(tool, OtherBlock) else bytes(tool.parameters)
        if isinstance(tool, OtherBlock) or schema[:1] != b"{":
            kind, name = "function", None if isinstance(tool, OtherBlock) else tool.name
            if isinstance(tool, OtherBlock):
                kind = tool.tag
                named = tool.members.get("name", NULL)
                name = decode_value(named, str | None, f"{found.path}.name", request_error)
            tools.append(ProviderTool(WIRE, name or kind, bytes(found.raw).decode()))
            continue
        extras = unknown.extras(WIRE, nulls=True) if unknown is not None else None
        description = tool.description or ""
        strict = tool.strict
        if isinstance(strict, msgspec.UnsetType):
            strict, extras = None, {**(extras or {}), STRICT_KEY: "null"}
        tools.append(Tool(tool.name or "", description, schema.decode(), strict, extras=extras))
    return tuple(tools)
