"""Cuts an Anthropic request into chunks of its own bytes.

Nothing is normalised: key order and the spelling of numbers and strings stay, so that bills and
misses are computed from the bytes that were sent. Only markers are removed (they become marks), and
white space between the members of a block.
"""

from __future__ import annotations

import functools
from typing import TypeAlias

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.rendered import DeferredTool, Kind, Rendered
from anaphora.values import Section, Ttl
from anaphora.wire.alternating import RoleWithFields
from anaphora.wire.alternating_runs import CLOSE, MESSAGES, OPENINGS, joins, opening
from anaphora.wire.elements import SplitInput
from anaphora.wire.lenient import Unknown
from anaphora.wire.markers import INNER_LEVELS
from anaphora.wire.reading import (
    ErrorFactory,
    Members,
    converts_errors,
    encode_members,
    known_text,
    list_elements,
    object_members,
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
    required_text,
)
from anaphora.wire.tables import BlockType
from anaphora.wire.walking import Walk, WalkedBlock

from .fields import TABLE
from .params import MARKERS, PARAMS, PATH, read_marker, take_marker
from .parts import deferred_tool
from .types import MEMO, WIRE

#: The offsets of markers in a block (None: at its end), and their TTLs.
Marks: TypeAlias = list[tuple[int | None, Ttl]]

_WALK = Walk(TABLE)
#: The source of a document: it holds blocks but is not a block itself.
_SOURCE = BlockType(inside=("content",))
_cache_params = MEMO.remember(PARAM_SETS)(PARAMS.sent_cache_params)


@converts_errors(request_error)
def split(
    body: SplitInput,
    headers: tuple[tuple[str, str], ...] = (),
    path: str = "",  # noqa: ARG001
) -> Rendered:
    """The request as chunks, with the markers it carries as the caller's marks."""
    request = RequestSplit(MEMO, body)
    model = request.take_model()
    request.add_section("tools", request.take("tools"), functools.partial(_split_section, "tools"))
    request.add_section(
        "system", request.take("system"), functools.partial(_split_section, "system")
    )
    messages = request.add_messages(
        request.take_elements("messages"),
        _split_message,
        lead=MESSAGES,
        glue=lambda _: b"]},",
        close=lambda _: CLOSE,
        joins=joins,
    )
    if messages is None:
        raise InvalidRequest("at least one message with content is needed", path="$.messages")
    automatic = None
    if "cache_control" in request.members:
        automatic = take_marker(request.members, "$", request_error)
    envelope = request.envelope(model, PATH, headers, _cache_params)
    return request.finish(
        msgspec.structs.replace(envelope, binds_thinking=True),
        wire=WIRE,
        model=model,
        markers=MARKERS,
        request_markers=MARKERS,
        automatic=automatic[0] if automatic is not None else None,
    )


def _split_section(section: Section, raw: bytes) -> SplitSection | None:
    """The tools or system blocks of a request."""
    if raw[:1] == b'"' and section == "system":
        raw = b'[{"type":"text","text":' + raw + b"}]"
    blocks: list[SplitBlock] = []
    labels: list[str] = []
    deferred: list[DeferredTool] = []
    paths: list[str] = []
    tools = section == "tools"
    read = (_WALK.tools if tools else _WALK.section)(raw, f"$.{section}")
    # If all are deferred, which the provider rejects, they are compared like other tools.
    may_defer = tools and not all(_is_deferred(block.members) for block in read)
    for index, block in enumerate(read):
        members, marks = block.members, _own_marks(block)
        name = _WALK.function_name(block) if tools else ""
        if may_defer and _is_deferred(members):
            deferred.append(deferred_tool(name, len(blocks), encode_members(members)))
            continue
        labels.append(f"tool {name}" if name else f"{section}{index}")
        splice = BEFORE_BRACE if tools or not _is_blank_block(members) else None
        blocks.append(SplitBlock(Kind.OTHER, encode_members(members), splice, marks))
        paths.append(f"{section}[{index}]")
    lead = b'"%b":[' % section.encode()
    if not deferred:
        return cut_section(section, blocks, labels, lead=lead, close=b"],")
    cut = cut_section(section, blocks, labels, lead=lead, close=b"],", paths=tuple(paths))
    if cut is None:
        return None
    return msgspec.structs.replace(cut[0], deferred=tuple(deferred)), cut[1]


def _is_deferred(members: Members) -> bool:
    return bytes(members.get("defer_loading", b"")) == b"true"


def _split_message(raw: msgspec.Raw, path: str) -> SplitMessage:
    members = object_members(raw, path, request_error)
    role = required_text(members, "role", path)
    if "content" not in members:
        raise request_error("is missing", f"{path}.content")
    del members["role"]
    content = members.pop("content")
    begin = OPENINGS.get(role)
    if members and (rest := Unknown(dict(members)).remaining()):
        role, begin = RoleWithFields(role, encode_members(rest)[1:-1]), None
    begin = begin or opening(role)
    if bytes(memoryview(content)[:1]) == b'"':
        text = b'{"type":"text","text":' + bytes(content) + b"}"
        splice = None if _is_blank(bytes(content)) else BEFORE_BRACE
        return SplitMessage(role, begin, [SplitBlock(Kind.TEXT, text, splice)])
    blocks = [_split_block(block) for block in _WALK.listed(content, f"{path}.content")]
    return SplitMessage(role, begin, blocks)


def _split_block(block: WalkedBlock) -> SplitBlock:
    row, members, marks = block.row, block.members, _own_marks(block)
    if row.inside:
        marks = [*take_inner_marks(block, _WALK, request_error), *marks]
    splice = BEFORE_BRACE if row.markable and not _is_blank_block(members) else None
    return SplitBlock(row.chunk, encode_members(members), splice, marks)


def _own_marks(block: WalkedBlock) -> Marks:
    if block.marker is None:
        return []
    marker = read_marker(block.marker, block.path, request_error)
    return [] if marker is None else [(None, marker[0])]


# ── Blocks inside others ─────────────────────────────────────────────────────────────────────────


def take_inner_marks(block: WalkedBlock, walk: Walk, fail: ErrorFactory, level: int = 0) -> Marks:
    """Remove the markers from the blocks inside a block; returns their offsets in its bytes. They
    use slots like any other marker. All levels are encoded again, so a block has the same bytes
    with and without markers."""
    marks: Marks = []
    if level == INNER_LEVELS:
        return marks
    holders = {place.partition(".")[0]: place for place in block.row.inside}
    before: Members = {}
    members = block.members
    for name, raw in members.items():
        first = bytes(memoryview(raw)[:1])
        if name in holders and (first == b"{" or (first == b"[" and name == holders[name])):
            offset = len(encode_members({**before, name: msgspec.Raw(b"")})) - 1
            path = f"{block.path}.{name}"
            if name != holders[name]:
                source = WalkedBlock("", _SOURCE, walk.members(raw, path), raw, path)
                value, inner = _unmarked(source, walk, fail, level + 1)
            elif first == b"{":
                block_inside = walk.block(raw, path, typed=False)
                value, inner = _unmarked(block_inside, walk, fail, level + 1)
            else:
                value, inner = _unmarked_list(raw, path, walk, fail, level + 1)
            members[name] = raw = msgspec.Raw(value)
            marks += [(offset + at, ttl) for at, ttl in inner]
        before[name] = raw
    return marks


def _unmarked_list(
    raw: msgspec.Raw, path: str, walk: Walk, fail: ErrorFactory, level: int
) -> tuple[bytes, list[tuple[int, Ttl]]]:
    """A list of blocks without markers, and the offsets of the removed markers."""
    blocks: list[bytes] = []
    marks: list[tuple[int, Ttl]] = []
    offset = len(b"[")
    for index, element in enumerate(list_elements(raw, path, fail)):
        data = bytes(element)
        if data[:1] == b"{":
            block = walk.block(element, f"{path}[{index}]", typed=False)
            data, inner = _unmarked(block, walk, fail, level)
            marks += [(offset + at, ttl) for at, ttl in inner]
        blocks.append(data)
        offset += len(data) + len(b",")
    return b"[" + b",".join(blocks) + b"]", marks


def _unmarked(
    block: WalkedBlock, walk: Walk, fail: ErrorFactory, level: int
) -> tuple[bytes, list[tuple[int, Ttl]]]:
    """A block without markers, and the offsets of the removed markers."""
    inner = take_inner_marks(block, walk, fail, level)
    marks = [(at, ttl) for at, ttl in inner if at is not None]
    data = encode_members(block.members)
    if block.marker is not None:
        marker = read_marker(block.marker, block.path, fail)
        if marker is not None:
            marks.append((len(data) - 1, marker[0]))
    return data, marks


def _is_blank_block(members: Members) -> bool:
    """A text block without text, on which the provider rejects a marker."""
    return known_text(members, "type") == "text" and _is_blank(bytes(members.get("text", b"")))


def _is_blank(text: bytes) -> bool:
    # Decoded only if the first character may be blank or an escape.
    if b"!" <= text[1:2] <= b"~" and text[1:2] not in b'"\\':
        return False
    return not known_text({"text": msgspec.Raw(text)}, "text").strip()
