"""A Chat Completions request, read into a call.

Everything stays where it stood and as it was written: arguments and schemas keep their text,
breakpoints become marks of the caller, unknown fields travel along as extras. Normalised are only:

- text content becomes a list with one text part;
- `null`, an empty list of content, calls, tools or stops, an empty description and `stream: false`
  mean the same as a missing field, and no parameters the same as an empty object of them;
- a leading system message becomes the system prompt, and blank texts in that are left out;
- `max_tokens` and `max_completion_tokens` are one parameter: the profile decides that too;
- a `refusal` beside the content becomes a part of it;
- a stop text becomes a list of one; the tool choice `any` is `required`; a function's `type` and
  the default tool choice are written out where something depends on them;
- a stream always reports its usage;
- a breakpoint with the default TTL loses that TTL;
- messages get ids by position.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from anaphora.prompt import BlockMark, Call, PartMark, PromptBlock, PromptCachePlan, PromptIR
from anaphora.prompt.cache_plan import MarkRequest
from anaphora.values import (
    AnyTool,
    Audio,
    Conversation,
    Document,
    Image,
    Message,
    Opaque,
    Part,
    Refusal,
    ResultPart,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from anaphora.wire.fields import Fields
from anaphora.wire.openai_cache import Breakpoint, breakpoint_ttl
from anaphora.wire.openai_system import with_place
from anaphora.wire.reading import DECODE_ERRORS, converts_errors, request_error
from anaphora.wire.seen import TOOLS, elements_of, seen

from .incoming import (
    Marks,
    message_fields,
    read_assistant,
    read_content,
)
from .parse_params import Options, options_of, params_of
from .parts import MESSAGE_FIELDS, WIRE
from .tools import read_tool

# ── What nearly every message is made of ─────────────────────────────────────────────────────────


class _Part(msgspec.Struct, tag_field="type", tag="text", frozen=True, forbid_unknown_fields=True):
    text: str
    prompt_cache_breakpoint: Breakpoint | None = None


class _Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: str


class _Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    function: _Function
    type: Literal["function"]


class _Message(msgspec.Struct, tag_field="role", frozen=True, forbid_unknown_fields=True):
    """A message with all its usual fields and no others."""


class _System(_Message, tag="system", frozen=True):
    content: str | list[_Part]


class _Developer(_Message, tag="developer", frozen=True):
    content: str | list[_Part]


class _User(_Message, tag="user", frozen=True):
    content: str | list[_Part]


class _Assistant(_Message, tag="assistant", frozen=True):
    content: str | list[_Part] | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Tool(_Message, tag="tool", frozen=True):
    tool_call_id: str
    content: str | list[_Part]


_Usual = _System | _Developer | _User | _Assistant | _Tool


class _UsualRequest(Options, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request with nothing unusual in it: read in one pass."""

    model: str
    messages: list[_Usual]
    tools: msgspec.Raw = msgspec.Raw(b"null")


_usual_request = msgspec.json.Decoder(_UsualRequest).decode
_usual_message = msgspec.json.Decoder(_Usual).decode


class _Named(msgspec.Struct, frozen=True):
    name: str | None = None


_named = msgspec.json.Decoder(_Named).decode

#: Who speaks, what, and the marks in it.
_Read = tuple[Role, tuple[Part, ...], Marks]
_NO_MARKS: Marks = []

#: An assistant's message that says nothing: it keeps its place here; other wires leave it out.
SILENT: tuple[Part, ...] = (Opaque(WIRE, MESSAGE_FIELDS, '{"content":null}'),)


@converts_errors(request_error)
def parse(body: bytes, path: str = "") -> Call:  # noqa: ARG001
    """The call a request makes; `InvalidRequest` names the field that cannot be."""
    try:
        usual = _usual_request(body)
    except DECODE_ERRORS:
        return _parse_fields(Fields(body, "$", request_error))
    read = [_read_usual(said, index) for index, said in enumerate(usual.messages)]
    return _call(usual.model, read, bytes(usual.tools), usual, None)


def _parse_fields(fields: Fields) -> Call:
    """The same, field by field, for requests that hold something unusual."""
    model = fields.take("model", str)
    tools = fields.raw("tools") or b"null"
    usual = fields.known("messages", list[_Usual])
    if usual is not None:
        read = [_read_usual(said, index) for index, said in enumerate(usual)]
    else:
        raws = fields.take("messages", list[msgspec.Raw])
        read = [_read(raw, index) for index, raw in enumerate(raws)]
    options = options_of(fields)
    fields.drop_nulls()
    return _call(model, read, tools, options, fields)


def _call(
    model: str,
    read: list[_Read],
    tools: bytes,
    options: Options,
    rest: Fields | None,
) -> Call:
    marks: list[MarkRequest] = []
    blocks = _system_blocks(read[0], marks) if read else None
    messages = []
    for index, (role, parts, placed) in enumerate(read[blocks is not None :]):
        name = f"m{index}"
        messages.append(Message(id=name, role=role, parts=parts))
        if placed:
            marks += [PartMark(name, *one) for one in placed]
    cached = options.prompt_cache_options
    cache = PromptCachePlan(
        marks=tuple(marks),
        automatic=cached.ttl if cached is not None else None,
        mode=cached.mode if cached is not None else None,
        key=options.prompt_cache_key,
        retention=options.prompt_cache_retention,
    )
    return Call(
        ir=PromptIR.chat(Conversation(messages), system=blocks or (), cache=cache),
        model=model,
        tools=_tools(tools),
        params=params_of(options),
        extras=rest.rest_for(WIRE) if rest is not None else None,
    )


@seen(TOOLS)
def _tools(listed: bytes) -> tuple[AnyTool, ...]:
    """The same list comes with every turn."""
    found = enumerate(elements_of("tools", listed))
    return tuple([read_tool(raw, f"$.tools[{at}]") for at, raw in found])


def _system_blocks(first: _Read, marks: list[MarkRequest]) -> tuple[PromptBlock, ...] | None:
    """The system prompt, when the first message is one and holds nothing but texts."""
    role, parts, placed = first
    texts = [part for part in parts if isinstance(part, Text)]
    if role != "system" or len(texts) < len(parts):
        return None
    marks += [BlockMark(at[0], ttl, more) for at, ttl, more in placed]
    return tuple(
        PromptBlock(f"system{index}", text.text, extras=text.extras)
        for index, text in enumerate(texts)
    )


# ── Messages ─────────────────────────────────────────────────────────────────────────────────────


def _read_usual(message: _Usual, index: int) -> _Read:
    """A message that came with nothing unusual."""
    content = message.content
    marks = _NO_MARKS
    parts: tuple[Text, ...] = ()
    if type(content) is str:
        if type(message) is _Tool:
            return "tool", (ToolResult(message.tool_call_id, content),), marks
        parts = (Text(content),)
    elif content is not None:
        marks = []
        below = (0,) if type(message) is _Tool else ()
        parts = _usual_parts(content, below, marks, f"$.messages[{index}].content")  # type: ignore[arg-type]
    if type(message) is _User:
        return "user", parts, marks
    if type(message) is _Assistant:
        if message.refusal:
            return "assistant", (*parts, Refusal(message.refusal), *_usual_calls(message)), marks
        if message.tool_calls:
            return "assistant", (*parts, *_usual_calls(message)), marks
        return "assistant", parts or SILENT, marks
    if type(message) is _Tool:
        return "tool", (ToolResult(message.tool_call_id, parts),), marks
    role = "developer" if type(message) is _Developer else "system"
    return "system", with_place(parts, role), marks


def _usual_calls(message: _Assistant) -> list[ToolCall]:
    return [
        ToolCall(call.id, call.function.name, call.function.arguments)
        for call in message.tool_calls or ()
    ]


def _usual_parts(
    content: list[_Part], below: tuple[int, ...], marks: Marks, path: str
) -> tuple[Text, ...]:
    for at, part in enumerate(content):
        if (marker := part.prompt_cache_breakpoint) is not None:
            place = f"{path}[{at}].prompt_cache_breakpoint"
            ttl = breakpoint_ttl(marker, place, request_error) or "30m"
            marks.append(((*below, at), ttl, None))
    return tuple([Text(part.text) for part in content])


def _read(raw: msgspec.Raw, index: int) -> _Read:
    """Any message: in one pass when it is a usual one, field by field when it is not."""
    try:
        return _read_usual(_usual_message(raw), index)
    except DECODE_ERRORS:
        pass
    path = f"$.messages[{index}]"
    fields = Fields(raw, path, request_error)
    role = fields.take("role", str)
    marks: Marks = []
    if role == "assistant":
        return "assistant", read_assistant(fields, marks, answer=False) or SILENT, marks
    if role == "tool":
        return "tool", (_result(fields, marks),), marks
    if role not in ("user", "system", "developer"):
        raise fields.fail(f"{role!r} is not a role here", "role")
    content = read_content(fields.raw("content"), f"{path}.content", request_error, marks)
    if role == "user":
        return "user", (*content, *message_fields(fields)), marks
    return "system", (*with_place(tuple(content), role), *message_fields(fields)), marks


def _result(fields: Fields, marks: Marks) -> ToolResult:
    call_id = fields.maybe("tool_call_id", str) or ""
    raw = fields.raw("content")
    content = read_content(raw, f"{fields.path}.content", request_error, marks, at=(0,))
    fields.drop_nulls()
    extras = fields.rest_for(WIRE)
    name = _named(extras[WIRE]).name if extras is not None else None
    if raw is None or raw[:1] != b"[":
        text = content[0].text if content and isinstance(content[0], Text) else ""
        return ToolResult(call_id, text, name=name, extras=extras)
    parts: list[ResultPart] = []
    for index, part in enumerate(content):
        if not isinstance(part, Text | Image | Document | Audio | Opaque):
            raise fields.fail("may not stand in a tool's answer", f"content[{index}]")
        parts.append(part)
    return ToolResult(call_id, tuple(parts), name=name, extras=extras)
