"""Cuts a Responses request into chunks of its own bytes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anaphora.rendered import Kind, Rendered
from anaphora.values import Ttl
from anaphora.wire.breakpoints import marker_in
from anaphora.wire.elements import SplitInput
from anaphora.wire.openai import body_order
from anaphora.wire.reading import (
    converts_errors,
    decode_value,
    encode_members,
    known_text,
    request_error,
)
from anaphora.wire.splitting import (
    BEFORE_BRACE,
    PARAM_SETS,
    RequestSplit,
    SplitBlock,
    SplitMessage,
    SplitSection,
    cut_section,
    cut_tools,
)
from anaphora.wire.walking import Walk, WalkedBlock

from .fields import TABLE
from .items import CLOSED, message_opening
from .params import PARAMS
from .render import INPUT, INSTRUCTIONS, TOOLS, close, glue
from .types import AUTOMATIC, MARKERS, MEMO, NULL, PATH, ROLES, WIRE

_WALK = Walk(TABLE)


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
    model = _take_model(request)
    raw = request.members.get("prompt_cache_options", NULL)
    options = decode_value(raw, _CacheOptions | None, "$.prompt_cache_options", request_error)
    ttl: Ttl = "12h" if options is not None and options.ttl == "12h" else "30m"
    items: Sequence[msgspec.Raw]
    if bytes(memoryview(request.members.get("input", NULL))[:1]) == b'"':
        items = [request.members.pop("input")]
    else:
        items = request.take_elements("input")
    instructions = request.take("instructions")
    system = None
    if instructions != b"null":
        request.add_section("instructions", instructions, _split_instructions)
    elif len(items) > 1:
        system = request.add_section(
            f"system {ttl}", bytes(items[0]), lambda raw: _split_system(raw, ttl)
        )
    if system is not None:
        items = items[1:]
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


def _take_model(request: RequestSplit) -> str:
    """The model; empty if a stored prompt decides it."""
    if "prompt" in request.members and request.members.get("model", NULL) == NULL:
        request.members.pop("model", None)
        if bytes(request.members["prompt"])[:1] == b"{":
            return ""
    return request.take_model()


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
    return cut_tools(_WALK, raw, TOOLS, b"]")


def _split_item(raw: bytes | msgspec.Raw, path: str, ttl: Ttl) -> SplitMessage:
    """An item; its role is the state of the log after it."""
    if bytes(raw)[:1] == b'"':
        return SplitMessage("user", message_opening("user"), [_text_block(bytes(raw))])
    item = _WALK.message(raw, path)
    kind, members = item.type, item.members
    whole = SplitMessage(CLOSED, b"", [SplitBlock(item.row.chunk, bytes(raw))])
    given = known_text(members, "role")
    if kind == "message" and given:
        role = ROLES.get(given, given)
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


def _split_content(content: bytes, path: str, ttl: Ttl, role: str) -> list[SplitBlock]:
    """Content parts without their breakpoints, byte for byte otherwise. They are always encoded
    again, so a part has the same bytes with and without a breakpoint."""
    if content[:1] == b'"':
        return [_text_block(content)]
    return [_split_part(part, ttl, role) for part in _WALK.of_role(role).listed(content, path)]


def _split_part(part: WalkedBlock, ttl: Ttl, role: str) -> SplitBlock:
    marked, own, _ = marker_in(part.marker, part.path, WIRE)
    empty = part.type == "input_text" and not known_text(part.members, "text")
    markable = role != "assistant" and not empty
    return SplitBlock(
        part.row.chunk,
        encode_members(part.members),
        BEFORE_BRACE if markable and part.row.markable else None,
        ((None, own or ttl),) if marked else (),
    )
