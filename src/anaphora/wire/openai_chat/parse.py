"""Reads a Chat Completions request into a call.

Positions and spelling are kept: arguments and schemas keep their text, breakpoints become the
caller's marks, unknown fields become extras. Only these forms are normalised:

- text content becomes a list with one text part;
- `null`, an empty list of content, calls, tools or stops, an empty description and `stream: false`
  mean the same as a missing field, and no parameters the same as an empty object of them;
- a leading system message becomes the system prompt, and blank texts in it are left out;
- `max_tokens` and `max_completion_tokens` are one parameter: the profile decides its name;
- a `refusal` beside the content becomes a part of it;
- a stop text becomes a list of one; the tool choice `any` is `required`; a function's `type` and
  the default tool choice are written out if something depends on them;
- a stream always reports its usage;
- a breakpoint with the default TTL loses that TTL;
- messages get ids by position.
"""

from __future__ import annotations

import msgspec

from anaphora.prompt import (
    BlockMark,
    Call,
    MarkRequest,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    Segment,
)
from anaphora.values import (
    AnyTool,
    Opaque,
    Part,
    ProviderTool,
    Role,
    SegmentRole,
    Text,
    Tool,
)
from anaphora.wire.lenient import LenientDecoder, OtherBlock, Unknown
from anaphora.wire.memo import TOOL_LISTS
from anaphora.wire.openai import (
    MESSAGE_KEY,
    system_blocks,
)
from anaphora.wire.params import NO_CACHE_PLAN
from anaphora.wire.reading import converts_errors, numbered, request_error
from anaphora.wire.walking import Walk, WalkedBlock

from . import types
from .fields import TABLE
from .message_reader import MessageReader, _elements, link_call
from .messages import is_fields
from .params import read_params
from .types import (
    MEMO,
    NULL,
    WIRE,
)

REQUEST: LenientDecoder[types.ChatRequest] = LenientDecoder(types.ChatRequest)
TOOL: LenientDecoder[types.ToolDefinition | OtherBlock] = LenientDecoder(types.ToolDefinition)


@converts_errors(request_error)
def parse(body: bytes, path: str = "", first: int = 0) -> Call:  # noqa: ARG001
    """The call of a request; `InvalidRequest` names the field that is wrong. With `first`, the
    messages are those of a conversation after so many others."""
    request, unknown = REQUEST.decode(body, "$", request_error)
    fields = _elements(unknown, "messages")
    blocks, messages, marks = _read_messages(request.messages, fields, first)
    params, cache, extras = read_params(request, unknown)
    if marks:
        cache["marks"] = tuple(marks)
    segment = Segment(SegmentRole.CONVERSATION, numbered(messages, first))
    return Call(
        ir=PromptIR(
            system_blocks=blocks,
            segments=(segment,),
            cache=PromptCachePlan(**cache) if cache else NO_CACHE_PLAN,
        ),
        model=request.model,
        tools=() if request.tools is NULL else _read_tools(bytes(request.tools)),
        params=params,
        extras=extras,
    )


def _read_messages(
    sent: list[types.RequestMessage], unknown: dict[int, Unknown], first: int
) -> tuple[tuple[PromptBlock, ...], list[tuple[Role, tuple[Part, ...]]], list[MarkRequest]]:
    """The system prompt, which is the first message if that holds only texts; the messages after
    it; and the breakpoints in both."""
    reader = MessageReader("$.messages[{}]", request_error)
    blocks: tuple[PromptBlock, ...] = ()
    messages: list[tuple[Role, tuple[Part, ...]]] = []
    marks: list[MarkRequest] = []
    own: Unknown | None = None
    for index, message in enumerate(sent):
        if unknown:
            own = unknown.get(index)
        reader.index = index
        if type(message) is types.FunctionMessage:
            reader.answered = link_call(messages, first)
        role, parts = reader.message(message, own)
        if role == "system" and index == first == 0:
            texts = _system_texts(parts)
            if texts:
                blocks = system_blocks(texts)
                marks += [BlockMark(path[0], ttl, extras) for path, ttl, extras in reader.marks]
                reader.marks = []
                continue
        if reader.marks:
            name = f"m{first + len(messages)}"
            marks += [PartMark(name, *mark) for mark in reader.marks]
            reader.marks = []
        messages.append((role, parts))
    return blocks, messages, marks


def _system_texts(parts: tuple[Part, ...]) -> list[Text] | None:
    """The texts of a system message that holds nothing else. Fields of the message, such as a name,
    are kept with the first that is not blank. None for other messages."""
    texts = [part for part in parts if isinstance(part, Text)]
    if len(texts) == len(parts):
        return texts
    if len(texts) < len(parts) - 1 or not is_fields(parts[-1]):
        return None
    fields = parts[-1]
    assert isinstance(fields, Opaque)
    for index, text in enumerate(texts):
        if text.text.strip():
            extras = {**(text.extras or {}), MESSAGE_KEY: fields.json}
            texts[index] = msgspec.structs.replace(text, extras=extras)
            return texts
    return None


@MEMO.remember(TOOL_LISTS)
def _read_tools(listed: bytes) -> tuple[AnyTool, ...]:
    """Remembered: the same list comes with every turn."""
    walk = Walk(TABLE)
    return tuple([_read_tool(tool, walk) for tool in walk.tools(listed, "$.tools")])


def _read_tool(found: WalkedBlock, walk: Walk) -> AnyTool:
    """A function with its schema as written; any other tool whole."""
    tool, unknown = TOOL.decode(found.raw, found.path, request_error)
    if isinstance(tool, OtherBlock) or tool.function is None:
        kind = tool.tag if isinstance(tool, OtherBlock) else "function"
        name = walk.function_name(found) or kind
        return ProviderTool(WIRE, name, bytes(found.raw).decode())
    function = tool.function
    schema = bytes(function.parameters)
    if schema == b"null":
        schema = b'{"properties":{},"type":"object"}'
    extras = unknown.extras(WIRE) if unknown is not None else None
    return Tool(
        function.name, function.description or "", schema.decode(), function.strict, extras=extras
    )
