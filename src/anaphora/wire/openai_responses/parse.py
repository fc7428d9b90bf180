"""A Responses request, read into a call.

Everything stays where it stood and as it was written: arguments and schemas keep their text,
breakpoints become marks of the caller, unknown fields travel along as extras. Normalised are only:

- a message without a type gets one, and text content of an input message, or a tool's output,
  becomes a list with one `input_text`; an assistant's `input_text` becomes `output_text`;
- `developer` and `system` are one role; a system message that leads the input is the system
  prompt, as `instructions` are, and is said where the model wants it;
- what the assistant said in a row is one message (and comes back as the same items);
- an image without a detail gets `auto`, a breakpoint without a TTL the request's;
- `null`, `false` for `stream` and empty lists mean the same as a missing field at the top level;
- messages get ids by position.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from anaphora.prompt import (
    BlockMark,
    Call,
    Continuation,
    Earlier,
    MarkRequest,
    OutputSchema,
    Params,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    Reasoning,
    Segment,
    ToolChoice,
)
from anaphora.values import (
    AnyTool,
    Conversation,
    Extras,
    Message,
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
from anaphora.wire.fields import Fields
from anaphora.wire.openai_system import Place, keep_place
from anaphora.wire.reading import DECODE_ERRORS, converts_errors, request_error
from anaphora.wire.seen import TOOLS, elements_of, seen

from .content import ITEM, WIRE
from .incoming import Marks, UsualItem, raw_list, read_item, read_usual
from .items import goes_on
from .plain import plain_conversation


class _CacheOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    prewarm: bool = False
    comparison_response_id: str | None = None


class _Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["function"]
    name: str


class _Reasoning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    effort: str | None = None
    summary: str | None = None


class _Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    name: str
    schema: msgspec.Raw
    description: str | None = None
    strict: bool | None = None


class _Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: _Format | None = None
    verbosity: str | None = None


_Mode: TypeAlias = Literal["auto", "required", "none"]
_MODES: Any = _Mode


class _Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The parameters that have a name here."""

    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tool_choice: _Mode | _Choice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: _Reasoning | None = None
    text: _Text | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    include: list[str] | None = None
    truncation: str | None = None
    stream: bool | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: _CacheOptions | None = None


class _UsualRequest(_Options, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request with nothing unusual in it: read in one pass."""

    model: str
    input: str | list[UsualItem] | None = None
    instructions: str | None = None
    tools: msgspec.Raw = msgspec.Raw(b"null")


_usual_request = msgspec.json.Decoder(_UsualRequest).decode


@converts_errors(request_error)
def parse(body: bytes, path: str = "") -> Call:  # noqa: ARG001
    """The call a request makes; `InvalidRequest` names the field that cannot be."""
    try:
        usual = _usual_request(body)
    except DECODE_ERRORS:
        return _parse_fields(Fields(body, "$", request_error))
    plain = plain_conversation(usual.input) if isinstance(usual.input, list) else None
    items = _usual_items(usual.input) if plain is None else []
    if items is None:
        return _parse_fields(Fields(body, "$", request_error))
    tools = bytes(usual.tools)
    return _call(usual.model, items, usual.instructions, tools, usual, None, plain)


def _parse_fields(fields: Fields) -> Call:
    """The same, field by field, for requests that hold something unusual."""
    model = fields.take("model", str)
    mode = fields.known("tool_choice", _MODES)
    choice = mode or fields.known("tool_choice", _Choice)
    # A choice without a name here stays where it is, and with it what belongs to it.
    parallel = None if "tool_choice" in fields else fields.known("parallel_tool_calls", bool)
    options = _Options(
        previous_response_id=fields.maybe("previous_response_id", str),
        max_output_tokens=fields.maybe("max_output_tokens", int),
        temperature=fields.maybe("temperature", float),
        top_p=fields.maybe("top_p", float),
        tool_choice=choice,
        parallel_tool_calls=parallel,
        reasoning=fields.partly("reasoning", _Reasoning),
        text=fields.partly("text", _Text),
        metadata=fields.known("metadata", dict[str, str]),
        user=fields.maybe("user", str),
        service_tier=fields.maybe("service_tier", str),
        store=fields.maybe("store", bool),
        include=fields.maybe("include", list[str]),
        truncation=fields.maybe("truncation", str),
        stream=fields.maybe("stream", bool),
        prompt_cache_key=fields.maybe("prompt_cache_key", str),
        prompt_cache_retention=fields.maybe("prompt_cache_retention", str),
        prompt_cache_options=fields.partly("prompt_cache_options", _CacheOptions),
    )
    items = _items(fields.raw("input"))
    instructions = fields.maybe("instructions", str)
    tools = fields.raw("tools") or b"null"
    fields.drop_nulls()
    return _call(model, items, instructions, tools, options, fields.rest_for(WIRE))


def _call(
    model: str,
    items: list[_Item],
    instructions: str | None,
    tools: bytes,
    options: _Options,
    extras: Extras | None,
    plain: Conversation | None = None,
) -> Call:
    cache = options.prompt_cache_options or _CacheOptions()
    ttl = cache.ttl or "30m"
    previous = options.previous_response_id
    if instructions is not None:
        kept = keep_place(None, Place(slot="instructions"))
        blocks: tuple[PromptBlock, ...] = (PromptBlock("instructions", instructions, extras=kept),)
        marks: list[MarkRequest] = []
    else:
        blocks, marks = _leading(items, ttl) if previous is None else ((), [])
    conversation = _conversation(items, ttl, marks) if plain is None else plain
    ir = PromptIR(
        system_blocks=blocks,
        segments=(Segment(SegmentRole.CONVERSATION, conversation),),
        cache=_cache_plan(options, cache, tuple(marks)),
        continuation=None if previous is None else Continuation(previous),
    )
    return Call(ir=ir, model=model, tools=_tools(tools), params=_params(options), extras=extras)


#: Who says an item, its parts, and the breakpoints on them.
_Item = tuple[Role, tuple[Part, ...], Marks]


_UNMARKED: Marks = []


def _usual_items(said: str | list[UsualItem] | None) -> list[_Item] | None:
    """Items with nothing unusual about them; None when there is."""
    if said is None or isinstance(said, str):
        return [] if said is None else [("user", (Text(said),), [])]
    items: list[_Item] = []
    marks: Marks = []
    for index, item in enumerate(said):
        usual = read_usual(item, index, request_error, marks)
        if usual is None:
            return None
        if marks:
            items.append((*usual, marks))
            marks = []
        else:
            items.append((*usual, _UNMARKED))
    return items


def _items(raw: bytes | None) -> list[_Item]:
    if raw is None or raw == b"null":
        return []
    if raw[:1] == b'"':
        return [("user", (Text(msgspec.json.decode(raw, type=str)),), [])]
    items: list[_Item] = []
    for index, item in enumerate(raw_list(raw, "$.input", request_error)):
        marks: Marks = []
        items.append((*read_item(item, f"$.input[{index}]", request_error, marks), marks))
    return items


def _conversation(items: list[_Item], ttl: Ttl, marks: list[MarkRequest]) -> Conversation:
    """The items as messages; what the assistant said in a row is one."""
    messages: list[Message] = []
    answer: list[Part] = []
    for role, parts, placed in items:
        if role == "assistant":
            answer += (_apart(parts[0], answer), *parts[1:]) if answer else parts
            continue
        if answer:
            messages.append(_answer(answer, len(messages)))
            answer = []
        name = f"m{len(messages)}"
        if placed:
            marks += [PartMark(name, at, own or ttl, more) for at, own, more in placed]
        messages.append(Message(id=name, role=role, parts=parts))
    if answer:
        messages.append(_answer(answer, len(messages)))
    return Conversation(messages)


def _answer(parts: list[Part], index: int) -> Message:
    return Message(id=f"m{index}", role="assistant", parts=tuple(parts))


def _apart(part: Part, before: list[Part]) -> Part:
    """Text that came as a message by itself stays one behind a message it might go on in."""
    if not isinstance(part, Text) or not goes_on(part):
        return part
    for other in reversed(before):
        if isinstance(other, ToolCall | Thinking | Opaque):
            break
        if not goes_on(other):
            return Text(part.text, {**(part.extras or {}), ITEM: "{}"})
    return part


def _leading(items: list[_Item], ttl: Ttl) -> tuple[tuple[PromptBlock, ...], list[MarkRequest]]:
    """The system message that leads the input, taken out of it."""
    if len(items) < 2 or items[0][0] != "system":
        return (), []
    _, parts, placed = items[0]
    texts = [part for part in parts if isinstance(part, Text) and part.text.strip()]
    if len(texts) < len(parts):
        return (), []
    del items[0]
    marks: list[MarkRequest] = [BlockMark(at[0], own or ttl, more) for at, own, more in placed]
    blocks = (PromptBlock(f"system{i}", t.text, extras=t.extras) for i, t in enumerate(texts))
    return tuple(blocks), marks


@seen(TOOLS)
def _tools(listed: bytes) -> tuple[AnyTool, ...]:
    """The same list comes with every turn."""
    tools: list[AnyTool] = []
    for index, raw in enumerate(elements_of("tools", listed)):
        inner = Fields(raw, f"$.tools[{index}]", request_error)
        kind, name = inner.take("type", str), inner.maybe("name", str) or ""
        schema = inner.raw("parameters") if kind == "function" else None
        if schema is None or schema[:1] != b"{":
            tools.append(ProviderTool(WIRE, name or kind, bytes(raw).decode()))
            continue
        description = inner.maybe("description", str) or ""
        strict = inner.maybe("strict", bool)
        extras = inner.rest_for(WIRE)
        tools.append(Tool(name, description, schema.decode(), strict, extras=extras))
    return tuple(tools)


def _cache_plan(
    options: _Options, cache: _CacheOptions, marks: tuple[MarkRequest, ...]
) -> PromptCachePlan:
    compared = cache.comparison_response_id
    return PromptCachePlan(
        marks=marks,
        automatic=cache.ttl,
        mode=cache.mode,
        key=options.prompt_cache_key,
        retention=options.prompt_cache_retention,
        prewarm=cache.prewarm,
        diagnose=compared is not None,
        compare_with=None if compared is None else Earlier("openai", compared),
    )


def _params(said: _Options) -> Params:
    text = said.text or _Text()
    return Params(
        max_tokens=said.max_output_tokens,
        temperature=said.temperature,
        top_p=said.top_p,
        tool_choice=_tool_choice(said.tool_choice, said.parallel_tool_calls),
        reasoning=_effort(said.reasoning),
        output=_output(text.format),
        metadata=said.metadata,
        user=said.user,
        service_tier=said.service_tier,
        verbosity=text.verbosity,
        store=said.store,
        include=tuple(said.include or ()),
        truncation=said.truncation,
        stream=said.stream or False,
    )


def _effort(said: _Reasoning | None) -> Reasoning | None:
    if said is None or said == _Reasoning():
        return None
    return Reasoning(effort=said.effort, summary=said.summary)


def _output(form: _Format | None) -> OutputSchema | None:
    if form is None:
        return None
    return OutputSchema(bytes(form.schema).decode(), form.name, form.description, form.strict)


def _tool_choice(said: _Mode | _Choice | None, parallel: bool | None) -> ToolChoice | None:
    if isinstance(said, _Choice):
        return ToolChoice("tool", said.name, parallel)
    if said is None and parallel is None:
        return None
    return ToolChoice(said or "auto", None, parallel)
