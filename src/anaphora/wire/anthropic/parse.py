"""An Anthropic request, read into a call.

Everything stays where it stood and as it was written: arguments and schemas keep their text,
markers become marks of the caller, unknown fields travel along as extras. Normalised are only:

- text content becomes a list with one text block, and a system text one system block;
- `null` means the same as a missing field;
- `cache_control` with the default TTL loses that TTL;
- messages get ids by position.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from anaphora.prompt import (
    BlockMark,
    Call,
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
from anaphora.prompt.cache_plan import Mark
from anaphora.values import AnyTool, Conversation, Message, Part, ProviderTool, Text, Tool, Ttl
from anaphora.wire.fields import Fields, bad_request

from .blocks import WIRE
from .incoming import (
    CacheControl,
    Marks,
    TextBlock,
    read_block,
    read_ttl,
    read_usual,
    some_blocks,
    usual_content,
)


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: str
    content: msgspec.Raw


_messages = msgspec.json.Decoder(list[_Message]).decode
_ROLES = ("user", "assistant", "system")
_CHOICES: dict[str, Literal["auto", "required", "none", "tool"]] = {
    "auto": "auto",
    "any": "required",
    "none": "none",
    "tool": "tool",
}


def parse(body: bytes) -> Call:
    """The call a request makes; `InvalidRequest` names the field that cannot be."""
    fields = Fields(body, "$", bad_request)
    model = fields.take("model", str)
    marks: list[Mark] = []
    tools = _tools(fields, marks)
    blocks = _system(fields, marks)
    conversation = _conversation(fields, marks)
    cache = _cache_plan(fields, tuple(marks))
    params = _params(fields)
    fields.drop_nulls()
    return Call(
        ir=PromptIR.chat(conversation, system=blocks, cache=cache),
        model=model,
        tools=tools,
        params=params,
        extras=fields.rest_for(WIRE),
    )


def _conversation(fields: Fields, marks: list[Mark]) -> Conversation:
    raw = fields.raw("messages")
    if raw is None:
        raise fields.fail("is missing", "messages")
    try:
        found = _messages(raw)
    except msgspec.DecodeError as problem:
        raise fields.fail(str(problem), "messages") from None
    messages: list[Message] = []
    for index, message in enumerate(found):
        path = f"$.messages[{index}]"
        if message.role not in _ROLES:
            raise bad_request(f"{message.role!r} is not a role here", f"{path}.role")
        placed: Marks = []
        parts = _content(message.content, f"{path}.content", placed)
        marks += [PartMark(f"m{index}", at, ttl) for at, ttl in placed]
        messages.append(Message(id=f"m{index}", role=message.role, parts=parts))  # type: ignore[arg-type]
    return Conversation(messages)


def _content(raw: msgspec.Raw, path: str, marks: Marks) -> tuple[Part, ...]:
    try:
        content = usual_content(raw)
    except (msgspec.ValidationError, UnicodeError):
        blocks = _blocks(raw, path)
        return tuple(
            read_block(block, f"{path}[{at}]", bad_request, (at,), marks)
            for at, block in enumerate(blocks)
        )
    if isinstance(content, str):
        return (Text(content),)
    return tuple(
        [
            Text(block.text)
            if block.__class__ is TextBlock and block.cache_control is None
            else read_usual(block, (at,), marks, f"{path}[{at}]", bad_request)
            for at, block in enumerate(content)
        ]
    )


def _blocks(raw: msgspec.Raw, path: str) -> list[msgspec.Raw]:
    try:
        return some_blocks(raw)
    except (msgspec.DecodeError, UnicodeError) as problem:
        raise bad_request(f"expected text or a list of blocks: {problem}", path) from None


def _system(fields: Fields, marks: list[Mark]) -> tuple[PromptBlock, ...]:
    raw = fields.raw("system")
    if raw is None or raw == b"null":
        return ()
    if raw[:1] == b'"':
        return (PromptBlock("system", msgspec.json.decode(raw, type=str)),)
    blocks = []
    for index, block in enumerate(_blocks(msgspec.Raw(raw), "$.system")):
        inner = Fields(block, f"$.system[{index}]", bad_request)
        if (kind := inner.take("type", str)) != "text":
            raise inner.fail(f"{kind!r} may not stand in the system prompt", "type")
        if (marker := inner.maybe("cache_control", CacheControl)) is not None:
            marks.append(BlockMark(index, _ttl(marker, inner)))
        text = inner.take("text", str)
        inner.drop_nulls()
        blocks.append(PromptBlock(f"system{index}", text, extras=inner.rest_for(WIRE)))
    return tuple(blocks)


def _tools(fields: Fields, marks: list[Mark]) -> tuple[AnyTool, ...]:
    tools: list[AnyTool] = []
    for index, raw in enumerate(fields.maybe("tools", list[msgspec.Raw]) or ()):
        inner = Fields(raw, f"$.tools[{index}]", bad_request)
        marker = inner.maybe("cache_control", CacheControl)
        name = inner.maybe("name", str) or ""
        schema = inner.raw("input_schema")
        if schema is not None:
            description = inner.maybe("description", str) or ""
            strict = inner.maybe("strict", bool)
            inner.drop_nulls()
            extras = inner.rest_for(WIRE)
            tools.append(Tool(name, description, schema.decode(), strict, extras=extras))
        else:
            named = msgspec.json.encode(name)
            rest = inner.rest()
            whole = b'{"name":' + named + (b"," if rest else b"") + rest + b"}"
            tools.append(ProviderTool(WIRE, name, (whole if name else b"{" + rest + b"}").decode()))
        if marker is not None:
            marks.append(ToolMark(name, _ttl(marker, inner)))
    return tuple(tools)


def _ttl(marker: CacheControl, fields: Fields) -> Ttl:
    return read_ttl(marker, f"{fields.path}.cache_control", bad_request)


def _cache_plan(fields: Fields, marks: tuple[Mark, ...]) -> PromptCachePlan:
    automatic = fields.maybe("cache_control", CacheControl)
    diagnose = "diagnostics" in fields
    asked = fields.nested("diagnostics")
    compared = asked.maybe("previous_message_id", str) if asked is not None else None
    return PromptCachePlan(
        marks=marks,
        automatic=_ttl(automatic, fields) if automatic is not None else None,
        diagnose=diagnose and asked is not None,
        compare_with=compared,
    )


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


def _params(fields: Fields) -> Params:
    output = fields.known("output_config", _OutputConfig) or _OutputConfig()
    metadata = fields.known("metadata", _Metadata) or _Metadata()
    form = output.format
    return Params(
        max_tokens=fields.take("max_tokens", int),
        temperature=fields.maybe("temperature", float),
        top_p=fields.maybe("top_p", float),
        top_k=fields.maybe("top_k", int),
        stop=tuple(fields.maybe("stop_sequences", list[str]) or ()),
        tool_choice=_tool_choice(fields.known("tool_choice", _Choice)),
        reasoning=_reasoning(fields.known("thinking", _Thinking), output.effort),
        output=OutputSchema(bytes(form.schema).decode()) if form is not None else None,
        user=metadata.user_id,
        service_tier=fields.maybe("service_tier", str),
        stream=fields.maybe("stream", bool) or False,
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
