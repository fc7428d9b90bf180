"""Reads a Responses request into a call (`parse`), and cuts it into chunks (`split`).

Everything stays where it stood and as it was written: arguments and schemas keep their text,
breakpoints become the caller's marks, unknown fields become extras. Normalised are only:

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
from anaphora.rendered import Kind, Rendered
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
    ToolResult,
    Ttl,
)
from anaphora.wire.body_memory import SplitInput
from anaphora.wire.openai import (
    SystemPlace,
    body_order,
    keep_place,
    split_tools,
    system_blocks,
    take_breakpoint,
)
from anaphora.wire.params import NO_CACHE_PLAN
from anaphora.wire.reading import (
    DECODE_ERRORS,
    LenientDecoder,
    Members,
    OtherBlock,
    converts_errors,
    decode_elements,
    decode_members,
    decode_value,
    encode_members,
    extras_of,
    known_text,
    list_elements,
    numbered,
    object_members,
    request_error,
)
from anaphora.wire.splitting import (
    BEFORE_BRACE,
    PARAM_SETS,
    TOOL_LISTS,
    RequestSplit,
    SplitBlock,
    SplitMessage,
    SplitSection,
    cut_section,
    required_text,
)

from . import types
from .items import CLOSED, goes_on, message_opening
from .params import PARAMS, read_params
from .render import INPUT, INSTRUCTIONS, TOOLS, close, glue
from .reply import ItemReader, ReadItem
from .types import AUTOMATIC, ITEM, MARKERS, MEMO, NULL, PATH, ROLES, UNSET, WIRE

_REQUEST: LenientDecoder[types.ResponsesRequest] = LenientDecoder(types.ResponsesRequest)
_TOOL: LenientDecoder[types.FunctionTool | OtherBlock] = LenientDecoder(types.FunctionTool)

_encode = msgspec.json.Encoder().encode


@converts_errors(request_error)
def parse(body: bytes, path: str = "") -> Call:  # noqa: ARG001
    """The call of a request; `InvalidRequest` names the field that is wrong."""
    request, unknown = _REQUEST.decode(body, "$", request_error)
    given = request.input
    items: list[ReadItem] | None = []
    if isinstance(given, str):
        items = [("user", (Text(given),), ())]
    elif given is not None:
        items = _read_usual(given)
    raw = unknown.members.pop("input", None) if unknown is not None else None
    if items is None or raw is not None:
        items = _read_raw(raw if isinstance(raw, msgspec.Raw) else decode_members(body)["input"])
    params, cache, extras = read_params(request, unknown)
    ttl: Ttl = cache.get("automatic") or "30m"
    previous = request.previous_response_id
    marks: list[MarkRequest] = []
    blocks: tuple[PromptBlock, ...] = ()
    if request.instructions is not None:
        kept = keep_place(None, SystemPlace(slot="instructions"))
        blocks = (PromptBlock("instructions", request.instructions, extras=kept),)
    elif previous is None:
        blocks, marks = _system_blocks(items, ttl)
    conversation = _conversation(items, ttl, marks)
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
    """The items of a request's input as they are written; a string is a user's message."""
    data = bytes(raw)
    if data == b"null":
        return ()
    if data[:1] == b'"':
        return (b'{"type":"message","role":"user","content":' + data + b"}",)
    try:
        return tuple(map(bytes, msgspec.json.decode(data, type=list[msgspec.Raw])))
    except msgspec.DecodeError as problem:
        raise InvalidRequest(str(problem), path="input") from None


def _read_raw(given: msgspec.Raw) -> list[ReadItem]:
    try:
        raws = decode_elements(given)
    except DECODE_ERRORS as problem:
        raise request_error(f"expected text or a list: {problem}", "$.input") from None
    return [ItemReader(f"$.input[{i}]", request_error).read(raw) for i, raw in enumerate(raws)]


def _conversation(items: list[ReadItem], ttl: Ttl, marks: list[MarkRequest]) -> Conversation:
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
            name = f"m{len(messages)}"
            marks += [PartMark(name, path, own or ttl, extras) for path, own, extras in placed]
        messages.append((role, parts))
    if answer:
        messages.append(("assistant", tuple(answer)))
    return numbered(messages)


def _apart(part: Text, before: list[Part]) -> Text:
    """Text that came as a message by itself stays one behind a message it could belong to."""
    if not goes_on(part):
        return part
    for other in reversed(before):
        if isinstance(other, ToolCall | Thinking | Opaque):
            break
        if not goes_on(other):
            return Text(part.text, {**(part.extras or {}), ITEM: "{}"})
    return part


def _system_blocks(
    items: list[ReadItem], ttl: Ttl
) -> tuple[tuple[PromptBlock, ...], list[MarkRequest]]:
    """The system message that leads the input, taken out of it."""
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
    for index, raw in enumerate(list_elements(listed, "$.tools", request_error)):
        tool, unknown = _TOOL.decode(raw, f"$.tools[{index}]", request_error)
        schema = b"" if isinstance(tool, OtherBlock) else bytes(tool.parameters)
        if isinstance(tool, OtherBlock) or schema[:1] != b"{":
            kind, name = "function", None if isinstance(tool, OtherBlock) else tool.name
            if isinstance(tool, OtherBlock):
                kind = tool.tag
                path = f"$.tools[{index}].name"
                named = tool.members.get("name", NULL)
                name = decode_value(named, str | None, path, request_error)
            tools.append(ProviderTool(WIRE, name or kind, bytes(raw).decode()))
            continue
        extras = unknown.extras(WIRE, nulls=True) if unknown is not None else None
        description = tool.description or ""
        read = Tool(tool.name or "", description, schema.decode(), tool.strict, extras=extras)
        tools.append(read)
    return tuple(tools)


# ── Items ────────────────────────────────────────────────────────────────────────────────────────


def _read_usual(items: list[types.Item]) -> list[ReadItem] | None:
    """The items of a request that decoded strictly; None if one of them has a field that its type
    does not have."""
    read: list[ReadItem] = []
    one: ReadItem | None
    for index, item in enumerate(items):
        kind, role, content, call_id = item.type, item.role, item.content, item.call_id
        name, arguments, output = item.name, item.arguments, item.output
        fields = None
        if not (item.id is item.status is item.phase is item.namespace is UNSET):
            fields = _own_fields(item)
        one = None
        if kind == "message":
            if content is UNSET or not (call_id is name is arguments is output is UNSET):
                return None
            if fields is None and type(content) is str and role in ("user", "assistant"):
                one = role, (Text(content),), ()  # type: ignore[assignment]
            else:
                reader = ItemReader(f"$.input[{index}]", request_error)
                one = reader.message(role or "", content, {}, fields or {})
        elif call_id is UNSET or not (role is content is UNSET):
            return None
        elif kind == "function_call":
            if name is UNSET or arguments is UNSET or output is not UNSET:
                return None
            extras = None if fields is None else extras_of(WIRE, fields)
            one = "assistant", (ToolCall(call_id, name, arguments, extras),), ()
        elif kind == "function_call_output" and output is not UNSET and name is arguments is UNSET:
            if fields is None and type(output) is str:
                one = "tool", (ToolResult(call_id, output),), ()
            else:
                reader = ItemReader(f"$.input[{index}]", request_error)
                one = reader.output(call_id, output, {}, fields or {})
        if one is None:
            return None
        read.append(one)
    return read


def _own_fields(item: types.Item) -> Members:
    """The fields of an item itself, whatever its type."""
    own = {name: getattr(item, name) for name in ("id", "status", "phase", "namespace")}
    return {n: msgspec.Raw(_encode(text)) for n, text in own.items() if text is not UNSET}


# ── Splitting ────────────────────────────────────────────────────────────────────────────────────

_KINDS = {
    "input_text": Kind.TEXT,
    "output_text": Kind.TEXT,
    "refusal": Kind.TEXT,
    "input_image": Kind.IMAGE,
    "input_file": Kind.DOCUMENT,
    "input_audio": Kind.AUDIO,
    "function_call": Kind.TOOL_CALL,
    "function_call_output": Kind.TOOL_RESULT,
    "reasoning": Kind.THINKING,
}


class _CacheOptions(msgspec.Struct, frozen=True):
    mode: str | None = None
    ttl: str | None = None


_cache_params = MEMO.remember(PARAM_SETS)(PARAMS.sent_cache_params)


@converts_errors(request_error)
def split(
    body: SplitInput,
    headers: tuple[tuple[str, str], ...] = (),
    path: str = "",  # noqa: ARG001
) -> Rendered:
    """The request as chunks, with its breakpoints as marks."""
    request = RequestSplit(MEMO, body)
    model = request.take_model()
    raw = request.members.get("prompt_cache_options", NULL)
    options = decode_value(raw, _CacheOptions | None, "$.prompt_cache_options", request_error)
    ttl: Ttl = "12h" if options is not None and options.ttl == "12h" else "30m"
    given = bytes(request.members.get("input", NULL))
    items = [request.members.pop("input")] if given[:1] == b'"' else request.take_elements("input")
    instructions = request.take("instructions")
    system = None
    if instructions != b"null":
        request.add_section("instructions", instructions, _split_instructions)
    elif len(items) > 1:
        system = request.add_section(
            f"system {ttl}", bytes(items[0]), lambda raw: _split_system(raw, ttl)
        )
    if system is not None:
        del items[0]
    request.add_section("tools", request.take("tools"), _split_tools)
    request.add_messages(
        items,
        lambda raw, path: _split_item(raw, path, ttl),
        lead=INPUT if system is None else glue("system"),
        glue=glue,
        close=close,
        context=(system is not None, ttl),
        first_message=int(system is not None),
        place="input",
    )
    return request.finish(
        request.envelope(model, PATH, headers, _cache_params, before_runs=b""),
        wire=WIRE,
        model=model,
        body_order=None if system is None else body_order(request.runs),
        markers=MARKERS,
        request_markers=AUTOMATIC,
        automatic=None if options is not None and options.mode == "explicit" else ttl,
    )


def _split_instructions(raw: bytes) -> SplitSection | None:
    blocks, labels = [SplitBlock(Kind.SYSTEM, raw)], ["instructions"]
    return cut_section("system", blocks, labels, lead=INSTRUCTIONS, place="instructions")


def _split_system(raw: bytes, ttl: Ttl) -> SplitSection | None:
    """The item that leads the input, if it is a system message of texts."""
    item = _split_item(raw, "$.input[0]", ttl)
    if item.role != "system" or any(block.kind is not Kind.TEXT for block in item.blocks):
        return None
    labels = [f"system{index}" for index in range(len(item.blocks))]
    lead = INPUT + item.opening
    return cut_section("system", item.blocks, labels, lead=lead, place="input[0].content")


def _split_tools(raw: bytes) -> SplitSection | None:
    return split_tools(
        raw, lambda tool: known_text(tool, "name") or known_text(tool, "type"), TOOLS, b"]"
    )


def _split_item(raw: bytes | msgspec.Raw, path: str, ttl: Ttl) -> SplitMessage:
    """An item; its role is the state of the log after it."""
    if bytes(raw)[:1] == b'"':
        return SplitMessage("user", message_opening("user"), [_text_block(bytes(raw))])
    members = object_members(raw, path, request_error)
    kind = known_text(members, "type") or "message"
    whole = SplitMessage(CLOSED, b"", [SplitBlock(_KINDS.get(kind, Kind.OTHER), bytes(raw))])
    role = ROLES.get(known_text(members, "role"))
    if kind == "message" and role is not None:
        content = bytes(members.pop("content", b"[]"))
        if content[:1] == b'"' and role == "assistant":
            return whole
        opening = encode_members(members)[:-1] + b',"content":['
        blocks = _split_content(content, f"{path}.content", ttl, role)
        return SplitMessage(role, opening, blocks) if blocks else whole
    if kind != "function_call_output" or "output" not in members:
        return whole
    blocks = _split_content(bytes(members.pop("output")), f"{path}.output", ttl, "tool")
    data = encode_members(members)[:-1] + b',"output":['
    marks: list[tuple[int | None, Ttl]] = []
    for index, block in enumerate(blocks):
        data += (b"," if index else b"") + block.data
        inside = None if index + 1 == len(blocks) else len(data) - 1
        marks += [(inside, own) for _, own in block.marks]
    splice = blocks[-1].splice if blocks else None
    return SplitMessage("user", b"", [SplitBlock(Kind.TOOL_RESULT, data, splice, marks)])


def _text_block(raw: bytes) -> SplitBlock:
    splice = BEFORE_BRACE if raw != b'""' else None
    return SplitBlock(Kind.TEXT, b'{"type":"input_text","text":' + raw + b"}", splice)


def _split_content(content: bytes, path: str, ttl: Ttl, role: Role) -> list[SplitBlock]:
    """Content parts without their breakpoints, byte for byte otherwise. They are always written
    anew: a part has the same bytes with and without a breakpoint."""
    if content[:1] == b'"':
        return [_text_block(content)]
    blocks = []
    for index, raw in enumerate(list_elements(content, path, request_error)):
        place = f"{path}[{index}]"
        members = object_members(raw, place, request_error)
        marked, own, _ = take_breakpoint(members, place, WIRE, request_error)
        kind = required_text(members, "type", place)
        empty = kind == "input_text" and not known_text(members, "text")
        markable = role != "assistant" and kind.startswith("input_") and not empty
        block = SplitBlock(
            _KINDS.get(kind, Kind.OTHER),
            encode_members(members),
            BEFORE_BRACE if markable else None,
            ((None, own or ttl),) if marked else (),
        )
        blocks.append(block)
    return blocks
