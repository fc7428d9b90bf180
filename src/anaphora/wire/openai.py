"""Code that OpenAI's two wires share: system roles, data URLs, sections, usage, parameters."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from anaphora.canonical import dumps, string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import (
    OutputSchema,
    Params,
    PromptBlock,
    ToolChoice,
)
from anaphora.rendered import ChunkLog, ChunkRun, Kind, LogAppend
from anaphora.values import (
    AnyTool,
    Bytes,
    CachePolicy,
    Extras,
    FileId,
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
from anaphora.wire.markers import BEFORE_BRACE
from anaphora.wire.params import (
    Param,
    ParamTable,
    encode_only,
    schema_object,
)
from anaphora.wire.parts import partition, render_items
from anaphora.wire.reading import (
    DECODE_ERRORS,
    Members,
    object_members,
    request_error,
)
from anaphora.wire.replies import valid_count

#: Providers whose file ids and response ids are valid here.
OPENAI = ("openai", "openai_chat", "openai_responses")

# ── The system prompt ────────────────────────────────────────────────────────────────────────────

#: Key in the extras: a `SystemPlace`.
SYSTEM_KEY = "openai.system"
#: Key in the extras of the system prompt's first block: fields of its message beside the content.
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
    own = [index for index, part in enumerate(parts) if not isinstance(part, Opaque)]
    blank = {index for index in own if not getattr(parts[index], "text", "x").strip()}
    if not own:
        return parts
    index = min(own, key=lambda index: (index in blank, index))
    kept = keep_place(getattr(parts[index], "extras", None), place)
    first = msgspec.structs.replace(parts[index], extras=kept)
    return (*parts[:index], first, *parts[index + 1 :])


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
    """The role of system text without a kept one; `user` if the model has none for it."""
    accepted: tuple[str, ...] = ("developer", "system")
    """The roles that are kept unchanged."""

    def write(self, place: SystemPlace) -> str:
        """The role for system text of that place."""
        return self.default if place.role not in self.accepted else str(place.role)

    def notices(self, place: SystemPlace, path: str) -> list[Notice]:
        """A notice if the role differs from the one in the request it was read from."""
        if place.role is None or place.role in self.accepted:
            return []
        reason = f"{place.role} is not a role of this model: {self.default}"
        return [Notice("role_changed", reason, path)]


_ROLES = SystemRoles()


def system_roles(profile: Profile) -> SystemRoles:
    """Models that accept `developer` also accept `system`; the catalog names those that accept both
    with `system` as the default."""
    if profile.as_sent:
        return SystemRoles("system")
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
    why = f"a file id of {file.provider} is unknown to OpenAI"
    notices.append(Notice("foreign_file", why))
    return None


def arguments_text(call: ToolCall) -> bytes:
    """The arguments unchanged, valid JSON or not."""
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


def joined_log(blocks: tuple[PromptBlock, ...]) -> ChunkLog:
    """The log of system blocks that are pieces of one JSON string, joined by a blank line."""
    append = LogAppend()
    for index, block in enumerate(blocks):
        try:
            text = string(block.text)[1:-1]
        except InvalidRequest as problem:
            raise problem.within(f"system[{index}]") from None
        append.chunk(Kind.SYSTEM, b"\\n\\n" + text if index else text, None)
    labels = [block.label for block in blocks]
    return ChunkLog.of(append, labels, [CachePolicy.NONE] * len(labels))


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
    """Tools before a system message, which is in the list of messages."""
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
    the sum alone. Some gateways count cached input that way."""
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
        # It belongs to an unknown choice.
        extras["parallel_tool_calls"] = msgspec.Raw(dumps(request.parallel_tool_calls))
        request = msgspec.structs.replace(request, parallel_tool_calls=None)
    return table.decode(request)
