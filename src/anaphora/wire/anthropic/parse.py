"""An Anthropic request, read into a call.

Everything stays where it stood and as it was written: arguments and schemas keep their text,
markers become marks of the caller, unknown fields travel along as extras. Normalised are only:

- text content becomes a list with one text block, and a system text one system block;
- `null`, an empty description and `is_error: false` mean the same as a missing field;
- a `cache_control` with the default TTL loses that TTL;
- messages get ids by position.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from anaphora.prompt import (
    BlockMark,
    Call,
    Earlier,
    MarkRequest,
    OutputSchema,
    Params,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    Reasoning,
    ToolChoice,
    ToolMark,
)
from anaphora.values import (
    AnyTool,
    Conversation,
    Extras,
    Message,
    Opaque,
    Part,
    ProviderTool,
    Tool,
    Ttl,
)
from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS, converts_errors, request_error
from anaphora.wire.seen import SYSTEMS, TOOLS, elements_of, seen

from .blocks import MESSAGE_FIELDS, WIRE
from .incoming import (
    Marks,
    Usual,
    read_block,
    read_content,
    some_blocks,
    take_marker,
    usual_content,
)
from .params import AUTOMATIC_FIELDS

Role: TypeAlias = Literal["user", "assistant", "system"]


class _Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Thinking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["adaptive", "enabled", "disabled", "between_tools"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class _Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: msgspec.Raw


class _OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    effort: str | None = None
    format: _Format | None = None


class _Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user_id: str | None = None


class _Diagnostics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    previous_message_id: str | None = None


class _Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The parameters that have a name here."""

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    service_tier: str | None = None
    stream: bool | None = None
    tool_choice: _Choice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    metadata: _Metadata | None = None


class _UsualMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Role
    content: str | list[Usual]


class _UsualRequest(_Options, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request with nothing unusual in it: read in one pass."""

    model: str
    messages: list[_UsualMessage]
    system: msgspec.Raw = msgspec.Raw(b"null")
    tools: msgspec.Raw = msgspec.Raw(b"null")


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Role
    content: msgspec.Raw


_usual_request = msgspec.json.Decoder(_UsualRequest).decode
_some_messages = msgspec.json.Decoder(list[_Message]).decode

_CHOICES: dict[str, Literal["auto", "required", "none", "tool"]] = {
    "auto": "auto",
    "any": "required",
    "none": "none",
    "tool": "tool",
}


@converts_errors(request_error)
def parse(body: bytes, path: str = "") -> Call:  # noqa: ARG001
    """The call a request makes; `InvalidRequest` names the field that cannot be."""
    try:
        usual = _usual_request(body)
    except DECODE_ERRORS:
        return _parse_fields(Fields(body, "$", request_error))
    tools, marked = _tools(bytes(usual.tools))
    blocks, marked_blocks = _system(bytes(usual.system))
    marks = [*marked, *marked_blocks]
    messages = [
        Message(
            id=f"m{index}",
            role=message.role,
            parts=read_content(message.content, index, request_error, marks),
        )
        for index, message in enumerate(usual.messages)
    ]
    cache = PromptCachePlan(marks=tuple(marks), prewarm=usual.max_tokens == 0)
    return Call(
        ir=PromptIR.chat(Conversation(messages), system=blocks, cache=cache),
        model=usual.model,
        tools=tools,
        params=_params(usual),
    )


def _parse_fields(fields: Fields) -> Call:
    """The same, field by field, for requests that hold something unusual."""
    model = fields.take("model", str)
    tools, marked = _tools(fields.raw("tools") or b"null")
    blocks, marked_blocks = _system(fields.raw("system") or b"null")
    marks = [*marked, *marked_blocks]
    conversation = _conversation(fields, marks)
    automatic, more = take_marker(fields) or (None, None)
    cache = _cache_plan(fields, tuple(marks), automatic)
    options = _Options(
        max_tokens=fields.take("max_tokens", int),
        temperature=fields.maybe("temperature", float),
        top_p=fields.maybe("top_p", float),
        top_k=fields.maybe("top_k", int),
        stop_sequences=fields.maybe("stop_sequences", list[str]),
        service_tier=fields.maybe("service_tier", str),
        stream=fields.maybe("stream", bool),
        tool_choice=fields.known("tool_choice", _Choice),
        thinking=fields.partly("thinking", _Thinking),
        output_config=fields.partly("output_config", _OutputConfig),
        metadata=fields.partly("metadata", _Metadata),
    )
    fields.drop_nulls()
    return Call(
        ir=PromptIR.chat(conversation, system=blocks, cache=cache),
        model=model,
        tools=tools,
        params=_params(options),
        extras=_extras(fields.rest_for(WIRE), more),
    )


def _extras(rest: Extras | None, marker: Extras | None) -> Extras | None:
    if marker is None:
        return rest
    return {**(rest or {}), AUTOMATIC_FIELDS: marker[WIRE]}


def _conversation(fields: Fields, marks: list[MarkRequest]) -> Conversation:
    raw = fields.raw("messages")
    if raw is None:
        raise fields.fail("is missing", "messages")
    messages: list[Message] = []
    for index, (role, content, rest) in enumerate(_raw_messages(raw, fields)):
        parts = _content(content, index, marks)
        if rest:
            parts += (Opaque(WIRE, MESSAGE_FIELDS, (b"{" + rest + b"}").decode()),)
        messages.append(Message(id=f"m{index}", role=role, parts=parts))
    return Conversation(messages)


def _raw_messages(raw: bytes, outer: Fields) -> list[tuple[Role, msgspec.Raw, bytes]]:
    """The role and the content of each message, and its fields that have no name here."""
    try:
        return [(message.role, message.content, b"") for message in _some_messages(raw)]
    except DECODE_ERRORS as problem:
        reason, _, inner = str(problem).partition(" - at `$")
        failed = outer.fail(reason, f"messages{inner.rstrip('`')}")
    try:
        found = some_blocks(raw)
    except DECODE_ERRORS:
        raise failed from None
    messages = []
    for index, each in enumerate(found):
        fields = Fields(each, f"$.messages[{index}]", request_error)
        role: Role = fields.take("role", Role)
        content = fields.raw("content")
        if content is None:
            raise fields.fail("is missing", "content")
        fields.drop_nulls()
        messages.append((role, msgspec.Raw(content), fields.rest()))
    return messages


def _content(raw: msgspec.Raw, index: int, marks: list[MarkRequest]) -> tuple[Part, ...]:
    try:
        content = usual_content(raw)
    except DECODE_ERRORS:
        path = f"$.messages[{index}].content"
        placed: Marks = []
        parts = tuple(
            read_block(block, f"{path}[{at}]", request_error, (at,), placed)
            for at, block in enumerate(_blocks(raw, path))
        )
        marks += [PartMark(f"m{index}", *one) for one in placed]
        return parts
    return read_content(content, index, request_error, marks)


def _blocks(raw: msgspec.Raw | bytes, path: str) -> list[msgspec.Raw]:
    try:
        return some_blocks(raw)
    except DECODE_ERRORS as problem:
        raise request_error(f"expected text or a list of blocks: {problem}", path) from None


@seen(SYSTEMS)
def _system(raw: bytes) -> tuple[tuple[PromptBlock, ...], tuple[MarkRequest, ...]]:
    """The system blocks, and the marks on them; the same prompt comes with every turn."""
    if raw == b"null":
        return (), ()
    if raw[:1] == b'"':
        return (PromptBlock("system", msgspec.json.decode(raw, type=str)),), ()
    blocks = []
    marks: list[MarkRequest] = []
    for index, block in enumerate(_blocks(raw, "$.system")):
        inner = Fields(block, f"$.system[{index}]", request_error)
        if (kind := inner.take("type", str)) != "text":
            raise inner.fail(f"{kind!r} may not stand in the system prompt", "type")
        if (marker := take_marker(inner)) is not None:
            marks.append(BlockMark(index, *marker))
        text = inner.take("text", str)
        inner.drop_nulls()
        blocks.append(PromptBlock(f"system{index}", text, extras=inner.rest_for(WIRE)))
    return tuple(blocks), tuple(marks)


@seen(TOOLS)
def _tools(listed: bytes) -> tuple[tuple[AnyTool, ...], tuple[MarkRequest, ...]]:
    """The tools, and the marks on them; the same list comes with every turn."""
    tools: list[AnyTool] = []
    marks: list[MarkRequest] = []
    for index, raw in enumerate(elements_of("tools", listed)):
        inner = Fields(raw, f"$.tools[{index}]", request_error)
        marker = take_marker(inner)
        if "input_schema" in inner:
            tool: AnyTool = _function(inner)
        else:
            tool = ProviderTool(WIRE, inner.known_text("name"), inner.whole())
        tools.append(tool)
        if marker is not None:
            marks.append(ToolMark(tool.name, *marker))
    return tuple(tools), tuple(marks)


def _function(fields: Fields) -> Tool:
    name = fields.take("name", str)
    schema = (fields.raw("input_schema") or b"{}").decode()
    description = fields.maybe("description", str) or ""
    strict = fields.maybe("strict", bool)
    fields.drop_nulls()
    return Tool(name, description, schema, strict, extras=fields.rest_for(WIRE))


def _cache_plan(
    fields: Fields, marks: tuple[MarkRequest, ...], automatic: Ttl | None
) -> PromptCachePlan:
    asked = fields.partly("diagnostics", _Diagnostics)
    return PromptCachePlan(
        marks=marks,
        automatic=automatic,
        diagnose=asked is not None,
        compare_with=Earlier(WIRE, asked.previous_message_id)
        if asked is not None and asked.previous_message_id is not None
        else None,
        prewarm=fields.peek("max_tokens") == 0,
    )


def _params(options: _Options) -> Params:
    output = options.output_config or _OutputConfig()
    form = output.format
    return Params(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        stop=tuple(options.stop_sequences or ()),
        tool_choice=_tool_choice(options.tool_choice),
        reasoning=_reasoning(options.thinking, output.effort),
        output=OutputSchema(bytes(form.schema).decode()) if form is not None else None,
        user=options.metadata.user_id if options.metadata is not None else None,
        service_tier=options.service_tier,
        stream=options.stream or False,
    )


def _tool_choice(said: _Choice | None) -> ToolChoice | None:
    if said is None:
        return None
    parallel = said.disable_parallel_tool_use
    return ToolChoice(_CHOICES[said.type], said.name, None if parallel is None else not parallel)


def _reasoning(said: _Thinking | None, effort: str | None) -> Reasoning | None:
    if said is None:
        return None if effort is None else Reasoning(effort=effort)
    return Reasoning(said.type, effort, said.budget_tokens, said.display)
