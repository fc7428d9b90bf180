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

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from anaphora.canonical import string
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
    Bytes,
    Conversation,
    Document,
    FileId,
    Image,
    Message,
    Opaque,
    Part,
    ProviderTool,
    Refusal,
    Role,
    SegmentRole,
    Source,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Ttl,
    Url,
)
from anaphora.wire.body_memory import SplitInput
from anaphora.wire.markers import PlacedMark
from anaphora.wire.openai import (
    SystemPlace,
    decode_data_url,
    keep_place,
    read_breakpoint,
    split_tools,
    system_blocks,
    take_breakpoint,
)
from anaphora.wire.reading import (
    DECODE_ERRORS,
    ErrorFactory,
    LenientDecoder,
    Members,
    OtherBlock,
    Unknown,
    converts_errors,
    decode_elements,
    decode_members,
    decode_value,
    encode_members,
    extras_of,
    known_text,
    list_elements,
    message_ids,
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
from .params import PARAMS, read_params
from .render import (
    CLOSED,
    INPUT,
    INSTRUCTIONS,
    TOOLS,
    close,
    glue,
    goes_on,
    is_content,
    message_opening,
)
from .types import (
    APP_ITEMS,
    AUTOMATIC,
    ITEM,
    MARKERS,
    MEMO,
    NULL,
    PATH,
    ROLES,
    UNSET,
    WIRE,
)

#: An item's role, its parts, and its breakpoints.
ReadItem: TypeAlias = tuple[Role, tuple[Part, ...], Sequence[PlacedMark[Ttl | None]]]

_PLACES = {
    "system": SystemPlace("system", "message"),
    "developer": SystemPlace("developer", "message"),
}

_REQUEST: LenientDecoder[types.ResponsesRequest] = LenientDecoder(types.ResponsesRequest)
_CONTENT: LenientDecoder[types.Content] = LenientDecoder(types.Content)
_TOOL: LenientDecoder[types.FunctionTool | OtherBlock] = LenientDecoder(types.FunctionTool)

_decode_text = msgspec.json.Decoder(str).decode
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
        items = _read_usual_items(given)
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
    ir = PromptIR(
        system_blocks=blocks,
        segments=(Segment(SegmentRole.CONVERSATION, conversation),),
        cache=PromptCachePlan(marks=tuple(marks), **cache),
        continuation=None if previous is None else Continuation(previous),
    )
    tools = _read_tools(bytes(request.tools))
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


def _read_usual_items(items: list[types.Item]) -> list[ReadItem] | None:
    """The items of a request that decoded strictly; None if one of them has a field that its type
    does not have."""
    read: list[ReadItem] = []
    for index, item in enumerate(items):
        one = _read_usual(item, index)
        if one is None:
            return None
        read.append(one)
    return read


def _read_raw(given: msgspec.Raw) -> list[ReadItem]:
    try:
        raws = decode_elements(given)
    except DECODE_ERRORS as problem:
        raise request_error(f"expected text or a list: {problem}", "$.input") from None
    return [ItemReader(f"$.input[{i}]", request_error).read(raw) for i, raw in enumerate(raws)]


def _conversation(items: list[ReadItem], ttl: Ttl, marks: list[MarkRequest]) -> Conversation:
    """The items as messages; successive items of the assistant are one."""
    messages: list[Message] = []
    answer: list[Part] = []
    names = message_ids(len(items))
    for role, parts, placed in items:
        if role == "assistant":
            if answer and type(parts[0]) is Text:
                answer.append(_apart(parts[0], answer))
                answer += parts[1:]
            else:
                answer += parts
            continue
        if answer:
            name = names[len(messages)]
            messages.append(Message(id=name, role="assistant", parts=tuple(answer)))
            answer = []
        name = names[len(messages)]
        if placed:
            marks += [PartMark(name, path, own or ttl, extras) for path, own, extras in placed]
        messages.append(Message(id=name, role=role, parts=parts))
    if answer:
        name = names[len(messages)]
        messages.append(Message(id=name, role="assistant", parts=tuple(answer)))
    return Conversation(messages)


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


def _read_usual(item: types.Item, index: int) -> ReadItem | None:
    """An item of a request that decoded strictly; None if it has a field that its type does not
    have."""
    content, call_id = item.content, item.call_id
    fields: Members = {}
    if not (item.id is item.status is item.phase is item.namespace is UNSET):
        own = {name: getattr(item, name) for name in ("id", "status", "phase", "namespace")}
        fields = {n: msgspec.Raw(_encode(text)) for n, text in own.items() if text is not UNSET}
    if item.type == "message":
        if content is UNSET or not (call_id is item.name is item.arguments is item.output is UNSET):
            return None
        if not fields and type(content) is str and item.role in ("user", "assistant"):
            return item.role, (Text(content),), ()  # type: ignore[return-value]
        reader = ItemReader(f"$.input[{index}]", request_error)
        return reader.message(item.role or "", content, {}, fields)
    if call_id is UNSET or not (item.role is content is UNSET):
        return None
    name, arguments, output = item.name, item.arguments, item.output
    if item.type == "function_call":
        if name is UNSET or arguments is UNSET or output is not UNSET:
            return None
        return "assistant", (ToolCall(call_id, name, arguments, extras_of(WIRE, fields)),), ()
    if item.type != "function_call_output" or output is UNSET or not (name is arguments is UNSET):
        return None
    if not fields and type(output) is str:
        return "tool", (ToolResult(call_id, output),), ()
    return ItemReader(f"$.input[{index}]", request_error).output(call_id, output, {}, fields)


class ItemReader:
    """Reads one item of a request or a reply; errors name its path."""

    def __init__(self, path: str, fail: ErrorFactory) -> None:
        self._path = path
        self._fail = fail
        self._marks: list[PlacedMark[Ttl | None]] = []

    def read(self, raw: msgspec.Raw) -> ReadItem:
        """Members that are not read become extras; an item of another type is kept whole."""
        members = object_members(raw, self._path, self._fail)
        kind = _take_text(members, "type")
        if kind is None:
            if bytes(members.pop("type", NULL)) != b"null":
                raise self._fail("expected a text", f"{self._path}.type")
            # Only messages and references may lack a type.
            kind = "item_reference" if "id" in members and "role" not in members else "message"
        role: Role = "user" if kind in APP_ITEMS else "assistant"
        item: ReadItem | None = None
        if kind == "reasoning":
            return "assistant", (self._reasoning(members),), ()
        if kind == "message":
            name = self._take(members, "role")
            role = ROLES.get(name, "user")
            item = self.message(name, *self._take_content(members, "content"), members)
        elif kind == "function_call" and members.keys() >= {"call_id", "name", "arguments"}:
            call_id = self._take(members, "call_id")
            name, arguments = self._take(members, "name"), self._take(members, "arguments")
            call = ToolCall(call_id, name, arguments, extras_of(WIRE, members))
            item = "assistant", (call,), ()
        elif kind == "function_call_output":
            content, unknown = self._take_content(members, "output")
            role, own_id = "user", _take_text(members, "call_id")
            if own_id is not None:
                item = self.output(own_id, content, unknown, members)
        return item or (role, (Opaque(WIRE, kind, bytes(raw).decode()),), ())

    def message(
        self, name: str, content: types.Content, unknown: dict[int, Unknown], fields: Members
    ) -> ReadItem | None:
        """A message; None if it has to be kept whole. `fields` are those of the item itself."""
        role = ROLES.get(name)
        if role is None:
            return None
        is_text = isinstance(content, str)
        parts: list[Part] | None = [Text(content)] if isinstance(content, str) else None
        if parts is None:
            parts = self._content(content, unknown, role, "content")  # type: ignore[arg-type]
        if not parts:
            return None
        extras = extras_of(ITEM, fields)
        if extras is None and role == "assistant" and not is_text:
            extras = {ITEM: "{}"}  # keeps the item apart from its neighbours
        if role == "system":
            extras = keep_place(extras, _PLACES[name])
        if extras is not None:
            first = parts[0]
            if isinstance(first, Opaque):
                return None
            parts[0] = msgspec.structs.replace(first, extras={**(first.extras or {}), **extras})
        return role, tuple(parts), self._marks

    def output(
        self, call_id: str, output: types.Content, unknown: dict[int, Unknown], fields: Members
    ) -> ReadItem:
        content: Any = output
        if not isinstance(output, str):
            content = tuple(self._content(output, unknown, "tool", "output", (0,)) or ())
        result = ToolResult(call_id, content, extras=extras_of(WIRE, fields))
        return "tool", (result,), self._marks

    def _reasoning(self, members: Members) -> Thinking:
        """Reasoning with its fields as they came; its text is its summary and its content."""
        data = _take_text(members, "encrypted_content")
        raw = encode_members(members)
        fields = decode_value(raw, types.ReasoningFields, self._path, self._fail)
        texts = [piece.text for piece in (*(fields.summary or ()), *(fields.content or ()))]
        extras = extras_of(WIRE, members)
        return Thinking("\n\n".join(texts), data=data, provider=WIRE, extras=extras)

    def _take(self, members: Members, name: str) -> str:
        """Takes a text field that is required."""
        text = _take_text(members, name)
        if text is None:
            why = "expected a text" if name in members else "is missing"
            raise self._fail(why, f"{self._path}.{name}")
        return text

    def _take_content(
        self, members: Members, name: str
    ) -> tuple[types.Content, dict[int, Unknown]]:
        if name not in members:
            raise self._fail("is missing", f"{self._path}.{name}")
        return _CONTENT.decode_list(members.pop(name), f"{self._path}.{name}", self._fail)

    def _content(
        self,
        content: Sequence[types.ContentPart | OtherBlock],
        unknown: dict[int, Unknown],
        role: Role,
        field: str,
        below: tuple[int, ...] = (),
    ) -> list[Part] | None:
        """The parts of a message or of a tool's output; None if one of them looks like an item."""
        parts: list[Part] = []
        for index, part in enumerate(content):
            path = f"{self._path}.{field}[{index}]"
            read = self._part(part, unknown.get(index), role, path, (*below, index))
            if read is None:
                return None
            parts.append(read)
        return parts

    def _part(
        self,
        part: types.ContentPart | OtherBlock,
        unknown: Unknown | None,
        role: Role,
        path: str,
        position: tuple[int, ...],
    ) -> Part | None:
        if isinstance(part, OtherBlock):
            members = dict(part.members)
            marked, ttl, extras = take_breakpoint(members, path, WIRE, self._fail)
            if marked:
                self._marks.append((position, ttl, extras))
            return _read_other(part.tag, members, role)
        if part.prompt_cache_breakpoint is not None:
            mark = read_breakpoint(part, unknown, WIRE, path, self._fail)
            self._marks.append((position, *mark))
        members = unknown.remaining(nulls=True) if unknown is not None else {}
        if isinstance(part, types.InputText):
            return Text(part.text, extras_of(WIRE, members))
        if isinstance(part, types.OutputText):
            for name in ("logprobs", "annotations"):
                if (raw := getattr(part, name)) is not NULL:
                    members = {name: raw, **members}
            if role == "assistant":
                return Text(part.text, extras_of(WIRE, members))
            members = {"text": msgspec.Raw(string(part.text)), **members}
        elif role == "assistant":
            return Refusal(part.refusal, extras_of(WIRE, members))
        else:
            members = {"refusal": msgspec.Raw(string(part.refusal)), **members}
        kind = str(type(part).__struct_config__.tag)
        return _opaque(kind, {"type": msgspec.Raw(string(kind)), **members})


def _read_other(kind: str, members: Members, role: Role) -> Part | None:
    """An image, a file, or a part of another type, which is kept whole."""
    rest = {name: raw for name, raw in members.items() if name != "type"}
    part: Part | None = None
    if role != "assistant" and kind == "input_image":
        part = _read_image(rest)
    elif role != "assistant" and kind == "input_file":
        part = _read_file(rest)
    if part is not None:
        return part
    return _opaque(kind, members) if is_content(kind) or role == "tool" else None


def _opaque(kind: str, members: Members) -> Opaque:
    return Opaque(WIRE, kind, encode_members(members).decode())


def _take_text(members: Members, name: str) -> str | None:
    """Takes a text field; any other value stays."""
    try:
        text = _decode_text(members[name])
    except (KeyError, *DECODE_ERRORS):
        return None
    del members[name]
    return text


def _read_image(members: Members) -> Image | None:
    url = _take_text(members, "image_url")
    source: Source
    if url is not None:
        source = _at(url)
    elif (file_id := _take_text(members, "file_id")) is not None:
        source = FileId("openai", file_id)
    else:
        return None
    return Image(source, _take_text(members, "detail"), extras_of(WIRE, members))


def _read_file(members: Members) -> Document | None:
    names = [name for name in ("file_data", "file_url", "file_id") if name in members]
    value = _take_text(members, names[0]) if len(names) == 1 else None
    if value is None:
        return None
    source: Source = Url(value)
    if names == ["file_data"]:
        source = _at(value)
        if not isinstance(source, Bytes):
            return None
    elif names == ["file_id"]:
        source = FileId("openai", value)
    return Document(source, _take_text(members, "filename"), extras=extras_of(WIRE, members))


def _at(url: str) -> Source:
    source = decode_data_url(url)
    return source if source is not None and source.media_type.isascii() else Url(url)


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
    tools = request.add_section("tools", request.take("tools"), _split_tools)
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
        body_order=(1, 0, *range(2, len(request.runs))) if system is not None and tools else None,
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
