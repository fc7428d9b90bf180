"""Code that OpenAI's two wires share: cache options, breakpoints, system roles, data URLs."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from anaphora.canonical import dumps, string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import (
    BlockMark,
    Call,
    MarkRequest,
    OutputSchema,
    Params,
    PromptBlock,
    ToolChoice,
    ToolMark,
)
from anaphora.rendered import ChunkLog, ChunkRun
from anaphora.values import (
    AnyTool,
    Bytes,
    CachePolicy,
    Extras,
    FileId,
    Message,
    Notice,
    Opaque,
    Part,
    ProviderTool,
    Text,
    Tool,
    ToolCall,
    Ttl,
    Usage,
    WriteTtl,
)
from anaphora.values.codec import check_object
from anaphora.wire.markers import CACHE_KEY, MarkLocation, find_message, supported_ttl
from anaphora.wire.params import (
    FORCED_TOOLS,
    Param,
    ParamTable,
    check_tool_choice,
    encode_only,
    forces_tools,
    schema_object,
)
from anaphora.wire.parts import partition, render_items
from anaphora.wire.reading import (
    DECODE_ERRORS,
    ErrorFactory,
    LenientDecoder,
    Members,
    Unknown,
    object_members,
    request_error,
)
from anaphora.wire.replies import valid_count
from anaphora.wire.splitting import BEFORE_BRACE

#: Providers whose file ids and response ids are valid here.
OPENAI = ("openai", "openai_chat", "openai_responses")

# ── Caching ──────────────────────────────────────────────────────────────────────────────────────

#: The TTL that stands in for each that a caller may ask for.
NEAREST: dict[Ttl, Ttl] = {"5m": "30m", "30m": "30m", "1h": "30m", "12h": "12h", "24h": "12h"}


class Breakpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    mode: str
    ttl: str | None = None


_BREAKPOINT: LenientDecoder[Breakpoint] = LenientDecoder(Breakpoint)


def take_breakpoint(
    members: Members, path: str, wire: str, fail: ErrorFactory = request_error
) -> tuple[bool, Ttl | None, Extras | None]:
    """Takes the breakpoint out of a part: whether there was one, its TTL (None: the request's), and
    its unknown fields."""
    return marker_in(members.pop("prompt_cache_breakpoint", None), path, wire, fail)


def marker_in(
    raw: msgspec.Raw | None, path: str, wire: str, fail: ErrorFactory = request_error
) -> tuple[bool, Ttl | None, Extras | None]:
    """The same for a breakpoint that was taken out of the part at that path."""
    if raw is None or bytes(raw) == b"null":
        return False, None, None
    path = f"{path}.prompt_cache_breakpoint"
    marker, unknown = _BREAKPOINT.decode(raw, path, fail)
    extras = unknown.extras(wire) if unknown is not None else None
    return True, breakpoint_ttl(marker, path, fail), extras


def breakpoint_ttl(marker: Breakpoint, path: str, fail: ErrorFactory) -> Ttl | None:
    if marker.mode != "explicit":
        raise fail(f"{marker.mode!r} is not a mode; use explicit", f"{path}.mode")
    if marker.ttl is None:
        return None
    if marker.ttl == "30m":
        return "30m"
    if marker.ttl == "12h":
        return "12h"
    raise fail(f"{marker.ttl!r} is not a TTL; use 30m or 12h", f"{path}.ttl")


def read_breakpoint(
    part: Any, unknown: Unknown | None, wire: str, path: str, fail: ErrorFactory
) -> tuple[Ttl | None, Extras | None]:
    """The TTL of a part's breakpoint, and its unknown fields, which are taken out of `unknown`."""
    field = "prompt_cache_breakpoint"
    ttl = breakpoint_ttl(part.prompt_cache_breakpoint, f"{path}.{field}", fail)
    inner = unknown.take(field) if unknown is not None else None
    return ttl, inner.extras(wire) if inner is not None else None


class MarkPlace(NamedTuple):
    """A part of a message that was sent."""

    path: tuple[int, ...]
    chunk: int
    """Its chunk among those of the message."""
    markable: bool
    from_end: int | None = None
    """Where its breakpoint goes, counted back from the chunk's end; None: at the chunk's own
    splice."""


def locate(
    mark: MarkRequest,
    call: Call,
    runs: list[ChunkRun],
    places: Callable[[Message], Iterable[MarkPlace]],
    *,
    explicit: bool,
    held: Sequence[ChunkRun] = (),
) -> MarkLocation:
    """The chunk that a mark means, or why there is none. `explicit`: the model takes breakpoints;
    `held` are the runs that a stored response holds."""
    if not explicit:
        return f"{call.model} takes no breakpoints: it caches by itself"
    if isinstance(mark, ToolMark):
        return "a tool cannot carry a breakpoint here"
    if isinstance(mark, BlockMark):
        if any(run.section == "system" for run in held):
            return "a stored response holds it, so it is not sent"
        position = call.ir.system_field_index(mark.index)
        if position is None:
            return f"no system block {mark.index}, or a blank one"
        return position, None  # system blocks are hashed first
    match = find_message(runs, mark.message_id)
    if match is None:
        return f"no message {mark.message_id}"
    run, first, chunks = match
    if any(run is other for other in held):
        return "a stored response holds it, so it is not sent"
    name, path = f"message {mark.message_id}", mark.path
    message = run.source[run.log.message_of(chunks.start)] if chunks else None
    sent = [] if message is None else [p for p in places(message) if p.chunk < len(chunks)]
    below = [place for place in sent if place.path[: len(path)] == path]
    # The last one: a tool result may be several chunks.
    for place in reversed(below):
        if place.markable:
            chunk = chunks[place.chunk]
            if place.from_end is None:
                return first + chunk, None
            lead = 0 if chunk else len(run.lead)
            size = run.log.ends[chunk] - run.log.start(chunk)
            return first + chunk, lead + size - place.from_end
    if not path:
        return f"no part of {name} can carry a breakpoint"
    name = f"part {list(path)} of {name}"
    if below:
        return f"{name} may not carry a breakpoint"
    exists = message is not None and len(path) == 1 and 0 <= path[0] < len(message.parts)
    return f"{name} is left out of the request" if exists else f"no {name}"


def key_slot(call: Call) -> bytes | None:
    """The field for the planner's cache key; None if the caller set one."""
    if call.ir.cache.key is not None or _in_extras(call, "prompt_cache_key"):
        return None
    return CACHE_KEY


def options_free(call: Call) -> bool:
    """Whether the caller left the cache options to the planner."""
    cache = call.ir.cache
    options = (cache.mode, cache.automatic, cache.compare_with)
    if cache.prewarm or any(option is not None for option in options):
        return False
    return not _in_extras(call, "prompt_cache_options")


def option_notices(
    call: Call, names: Iterable[str], nearest: Mapping[Ttl, Ttl], *, explicit: bool
) -> list[Notice]:
    """What becomes of the cache options: a model without breakpoints has none of these."""
    cache = call.ir.cache
    notices: list[Notice] = []
    if explicit and cache.automatic is not None:
        supported_ttl(cache.automatic, nearest, "cache.automatic", notices)
    left_out = [] if explicit else [name for name in names if getattr(cache, name)]
    why = f"{call.model} has no such option; left out"
    return notices + [Notice("cache_option_left_out", why, f"cache.{name}") for name in left_out]


def _in_extras(call: Call, field: str) -> bool:
    return call.extras is not None and any(
        field in object_members(text.encode(), "extras", request_error)
        for wire, text in call.extras.items()
        if wire in OPENAI
    )


# ── The system prompt ────────────────────────────────────────────────────────────────────────────

#: The extras that hold a `SystemPlace`.
SYSTEM_KEY = "openai.system"
#: The extras of the system prompt's first block that hold fields of its message beside the content.
MESSAGE_KEY = "openai_chat.message"


class SystemPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """The role and slot of system text in the request it was read from.

    Chat takes a system message as `system` or `developer`; Responses takes the system prompt as
    such a message or as `instructions`. They differ in what is hashed, and a stored response keeps
    messages but no instructions. So `parse` keeps the place in the extras of the first part or
    block, and `render` uses it again. Fields that are None are decided by the model's profile.
    """

    role: Literal["system", "developer"] | None = None
    slot: Literal["message", "instructions"] | None = None
    """Only Responses has two."""


_decode_place = msgspec.json.Decoder(SystemPlace).decode
_NO_PLACE = SystemPlace()


def keep_place(extras: Extras | None, place: SystemPlace) -> Extras:
    """The extras with the place in them."""
    return {**(extras or {}), SYSTEM_KEY: msgspec.json.encode(place).decode()}


def with_role(parts: tuple[Part, ...], role: str) -> tuple[Part, ...]:
    """The parts of a system message, with the role kept in the first that is not blank."""
    place = SystemPlace("developer" if role == "developer" else "system")
    for index, part in enumerate(parts):
        if not isinstance(part, Opaque) and (not isinstance(part, Text) or part.text.strip()):
            first = msgspec.structs.replace(part, extras=keep_place(part.extras, place))
            return (*parts[:index], first, *parts[index + 1 :])
    return parts


def place_of(items: Iterable[PromptBlock | Part]) -> SystemPlace:
    """The place of the system prompt with these blocks, or the system message with these parts."""
    for item in items:
        if not isinstance(item, Opaque) and item.extras is not None and SYSTEM_KEY in item.extras:
            try:
                return _decode_place(item.extras[SYSTEM_KEY])
            except DECODE_ERRORS:
                return _NO_PLACE
    return _NO_PLACE


def system_blocks(texts: Sequence[Text]) -> tuple[PromptBlock, ...]:
    """The system prompt of a message that holds only these texts."""
    return tuple(
        PromptBlock(f"system{index}", text.text, extras=text.extras)
        for index, text in enumerate(texts)
    )


def message_members(blocks: Iterable[PromptBlock]) -> Members:
    """The fields beside the content of the message that the system prompt was read from."""
    for block in blocks:
        if block.extras is not None and MESSAGE_KEY in block.extras:
            return object_members(block.extras[MESSAGE_KEY].encode(), "extras", request_error)
    return {}


class SystemRoles(msgspec.Struct, frozen=True):
    """The roles of a model's system messages."""

    default: str = "developer"
    """The role of system text that came without one; `user` if the model has none for it."""
    accepted: tuple[str, ...] = ("developer", "system")
    """The roles that are kept as they came."""

    def write(self, place: SystemPlace) -> str:
        """The role to write for system text of that place."""
        return self.default if place.role not in self.accepted else str(place.role)

    def notices(self, place: SystemPlace, path: str) -> list[Notice]:
        """A notice if the role differs from the one in the request it was read from."""
        if place.role is None or place.role in self.accepted:
            return []
        reason = f"{place.role} is not a role of this model: {self.default}"
        return [Notice("role_changed", reason, path)]


_ROLES = SystemRoles()


def system_roles(profile: Profile) -> SystemRoles:
    """Models that take `developer` take `system` too; the catalog names those where `system` is the
    default and both are taken."""
    default = profile_value(profile, "system_role", _ROLES.default)
    by_default = {"developer": _ROLES.accepted, "system": ("system",)}.get(default, ())
    return SystemRoles(default, profile_value(profile, "system_roles", by_default))


# ── Parts and sections ─────────────────────────────────────────────────────────────────────────


def decode_base64(text: str, media_type: str) -> Bytes | None:
    """The bytes, if encoding them again gives the same text."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return Bytes(data, media_type) if base64.b64encode(data).decode() == text else None


def decode_data_url(url: str) -> Bytes | None:
    """The bytes in a `data:` URL, if writing them again gives the same URL."""
    media_type, separator, text = url.partition(";base64,")
    if not separator or not media_type.startswith("data:"):
        return None
    return decode_base64(text, media_type.removeprefix("data:"))


def data_url(source: Bytes) -> str:
    return f"data:{source.media_type};base64,{base64.b64encode(source.data).decode()}"


def file_id(file: FileId, notices: list[Notice]) -> bytes | None:
    """The field of an uploaded file; None for one of another provider."""
    if file.provider in OPENAI:
        return b'"file_id":' + string(file.id)
    why = f"a file id of {file.provider} means nothing to OpenAI"
    notices.append(Notice("foreign_file", why))
    return None


def arguments_text(call: ToolCall) -> bytes:
    """The arguments as the model wrote them, valid JSON or not."""
    try:
        return string(call.arguments)
    except InvalidRequest as problem:
        raise problem.within("arguments") from None


def block_log(
    blocks: tuple[PromptBlock, ...],
    encode: Callable[[str, Extras | None], bytes],
    nearest: Mapping[Ttl, Ttl] | None,
) -> ChunkLog:
    """The log of a system message, one chunk per block. `nearest` is None if no part is marked."""
    splice = None if nearest is None else BEFORE_BRACE
    append = render_items("system", blocks, lambda b: encode(b.text, b.extras), splice)
    log = ChunkLog.of(append, [b.label for b in blocks], [b.cache for b in blocks])
    if nearest is None:
        log.policies = ()
    else:
        log.policies = tuple((i, None if ttl is None else nearest[ttl]) for i, ttl in log.policies)
    return log


def tool_log(tools: tuple[AnyTool, ...], encode: Callable[[Tool, bytes], bytes]) -> ChunkLog:
    """The log of tool definitions, which carry no breakpoints: their policies are left to the
    messages. `encode` gets a function, and the members that both wires have."""

    def definition(tool: AnyTool) -> bytes:
        if isinstance(tool, ProviderTool):
            return check_object(tool.json, path="json").encode()
        schema = check_object(tool.schema, path="schema").encode()
        description = b',"description":' + string(tool.description) if tool.description else b""
        members = b'"name":%b%b,"parameters":%b' % (string(tool.name), description, schema)
        return encode(tool, members)

    append = render_items("tools", tools, definition, None)
    return ChunkLog.of(append, [f"tool {t.name}" for t in tools], [CachePolicy.NONE] * len(tools))


def body_order(runs: Sequence[ChunkRun]) -> tuple[int, ...] | None:
    """Tools before a system message, which stands in the list of messages."""
    if [run.section for run in runs[:2]] != ["system", "tools"]:
        return None
    return (1, 0, *range(2, len(runs)))


def profile_value(profile: Profile, name: str, default: Any) -> Any:
    figure = getattr(profile, name, None)
    return default if figure is None else figure.value


# ── Usage ────────────────────────────────────────────────────────────────────────────────────────


class ReasoningCount(msgspec.Struct, frozen=True):
    reasoning_tokens: int | None = None


def counted_usage(
    raw: bytes,
    total: int | None,
    read: int | None,
    written: Mapping[WriteTtl, int] | None,
    output: int | None,
    details: ReasoningCount | None,
    both: int | None,
) -> Usage:
    """The token counts as a partition of all input; unreported ones stay unknown. `both`: of input
    and output."""
    total, output = valid_count(total), valid_count(output)
    uncached, read, written, overlap = partition(total, read, written)
    reasoning = valid_count(details.reasoning_tokens) if details is not None else None
    if total is not None and output is not None and both is not None:
        more = both - total - output
        if more > 0 and _is_reasoning(more, reasoning, read or 0, sum((written or {}).values())):
            output, reasoning = output + more, more
    return Usage(
        uncached=uncached,
        read=read,
        written=written,
        output=valid_count(output),
        reasoning=reasoning,
        overlap=overlap,
        raw=raw.decode(),
    )


def _is_reasoning(tokens: int, reported: int | None, read: int, written: int) -> bool:
    """Whether tokens that are neither input nor output are reasoning: xAI and Google count it in
    the sum alone. Some gateways count cached input so."""
    if reported is not None:
        return tokens == reported
    return tokens not in (read, written, read + written)


# ── Parameters ───────────────────────────────────────────────────────────────────────────────────


def skip(_: Any) -> None:
    """The `encode` of rows that only decode."""


def tool_choice_params(opening: bytes, close: bytes, name_of: Callable[[Any], str]) -> list[Param]:
    """The rows of the tool choice. A forced tool is an object: `opening`, the tool's name, and
    `close`; `name_of` reads it."""

    def encode(choice: ToolChoice) -> bytes:
        check_tool_choice(choice)
        if choice.name is None:
            return string(choice.mode)
        return opening + string(choice.name) + close

    def mode(choice: Any) -> str:
        if not isinstance(choice, str):
            return "tool"
        return "required" if choice == "any" else choice

    def name(choice: Any) -> str | None:
        return None if isinstance(choice, str) else name_of(choice)

    return [
        Param("tool_choice", encode=encode, decode=encode_only),
        Param("tool_choice.mode", "tool_choice", encode=skip, decode=mode),
        Param("tool_choice.name", "tool_choice", encode=skip, decode=name),
        Param("tool_choice.parallel", "parallel_tool_calls"),
    ]


def check_forced_tools(call: Call, profile: Profile) -> None:
    if forces_tools(call.params) and profile.refuses("forced_tools"):
        raise InvalidRequest(f"{call.model} refuses {FORCED_TOOLS}", path="params.tool_choice")


def schema_members(output: OutputSchema) -> bytes:
    """The members of an output format."""
    schema = schema_object(output)
    written = b'"name":' + string(output.name)
    if output.description is not None:
        written += b',"description":' + string(output.description)
    written += b',"schema":' + schema
    return written if output.strict is None else written + b',"strict":' + dumps(output.strict)


def decode_params(
    table: ParamTable, request: Any, extras: Members
) -> tuple[Params, dict[str, Any]]:
    """The parameters of a request, and its cache options; `extras` are its unknown fields."""
    if "tool_choice" in extras and request.parallel_tool_calls is not None:
        # It belongs to a choice that is not known here.
        extras["parallel_tool_calls"] = msgspec.Raw(dumps(request.parallel_tool_calls))
        request = msgspec.structs.replace(request, parallel_tool_calls=None)
    return table.decode(request)
