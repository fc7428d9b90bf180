"""Cuts a Converse request into chunks of its own bytes.

Nothing is normalised inside a block or a tool, so that bills and misses are computed from the bytes
that were sent. Only markers are removed: they become marks on the block before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Raw

from anaphora import catalog
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind, Rendered
from anaphora.values import Section, Ttl
from anaphora.wire.alternating import RoleWithFields
from anaphora.wire.alternating_runs import CLOSE, MESSAGES, OPENINGS, joins, opening
from anaphora.wire.elements import SplitInput
from anaphora.wire.lenient import LenientDecoder, Unknown
from anaphora.wire.reading import (
    DECODE_ERRORS,
    Members,
    converts_errors,
    decode_members,
    decode_value,
    encode_members,
    known_text,
    list_elements,
    object_members,
    request_error,
)
from anaphora.wire.splitting import (
    RequestSplit,
    SplitBlock,
    SplitMessage,
    SplitSection,
    cut_section,
    required_text,
)
from anaphora.wire.walking import Walk

from .fields import TABLE
from .params import (
    envelope_of,
    markers_of,
    path_of,
    places_of,
    read_marker,
    read_path,
    takes_blank_text,
)
from .parts import is_cache_point, splice_at
from .render import CLOSE_SYSTEM, CLOSE_TOOLS, SYSTEM, TOOLS, TOOLS_PLACE
from .types import CACHE_POINT, MEMO, NULL, WIRE, CachePoint

_WALK = Walk(TABLE)
_POINT = LenientDecoder[CachePoint](CachePoint)
_Places = frozenset[str] | None


@converts_errors(request_error)
def split(body: SplitInput, headers: tuple[tuple[str, str], ...] = (), path: str = "") -> Rendered:
    """The request as chunks, with the markers it carries as the caller's marks. The path names the
    model."""
    model, stream = read_path(path)
    request = RequestSplit(MEMO, body)
    named = decode_value(request.take("modelId"), str | None, "$.modelId", request_error)
    model = model or named or ""
    profile = catalog.profile(WIRE, model)
    places, blank = places_of(profile), takes_blank_text(profile)
    config = request.members.pop("toolConfig", NULL)
    others: Members = {}
    if config != NULL:
        others = object_members(config, "$.toolConfig", request_error)
    raw = bytes(others.pop("tools", NULL))
    cut = partial(_split_section, "tools", splice_at("tools", places))
    tools = request.add_section(f"tools {splice_at('tools', places)}", raw, cut)
    if others or (tools is None and config != NULL):
        request.members["toolConfig"] = Raw(encode_members(others))
    cut = partial(_split_section, "system", splice_at("system", places))
    request.add_section(f"system {splice_at('system', places)}", request.take("system"), cut)
    messages = request.add_messages(
        request.take_elements("messages"),
        partial(_split_message, places=places, blank=blank),
        lead=MESSAGES,
        glue=lambda _: b"]},",
        close=lambda _: CLOSE,
        joins=joins,
        context=(places, blank),
    )
    if messages is None:
        raise InvalidRequest("at least one message with content is needed", path="$.messages")
    fields = {name: bytes(raw) for name, raw in request.members.items()}
    path = path_of(model, stream=stream) if model else path
    envelope = envelope_of(model, fields, path, headers, tools is not None)
    return request.finish(envelope, wire=WIRE, model=model, markers=markers_of(profile))


def _split_section(section: Section, splice: int | None, raw: bytes) -> SplitSection | None:
    tools = section == "tools"
    place = TOOLS_PLACE if tools else section
    blocks: list[SplitBlock] = []
    labels: list[str] = []
    for index, each in enumerate(list_elements(raw, f"$.{place}", request_error)):
        members = object_members(each, f"$.{place}[{index}]", request_error)
        ttl = _ttl(members)
        if ttl is not None and blocks and not blocks[-1].marks:
            last = blocks[-1]
            blocks[-1] = SplitBlock(last.kind, last.data, last.splice, ((None, ttl),))
            continue
        name = ""
        if tools:
            block = _WALK.tools(b"[" + bytes(each) + b"]", f"$.{place}")[0]
            name = _WALK.function_name(block)
        labels.append(f"tool {name}" if name else f"{section}{len(labels)}")
        blocks.append(SplitBlock(Kind.OTHER, bytes(each), splice))
    lead, close = (TOOLS, CLOSE_TOOLS) if tools else (SYSTEM, CLOSE_SYSTEM)
    return cut_section(section, blocks, labels, lead=lead, close=close, place=place)


def _ttl(members: Members) -> Ttl | None:
    """The TTL of an element that is a marker; None for any other."""
    if not is_cache_point(members):
        return None
    try:
        point, unknown = _POINT.decode(members[CACHE_POINT], CACHE_POINT, request_error)
    except (InvalidRequest, *DECODE_ERRORS):
        return None
    invalid = unknown is not None and not unknown.members.keys().isdisjoint(("type", "ttl"))
    marker = None if invalid else read_marker(point, None)
    return None if marker is None else marker[0]


def _split_message(raw: Raw, path: str, places: _Places, blank: bool) -> SplitMessage:
    members = object_members(raw, path, request_error)
    role = required_text(members, "role", path)
    if "content" not in members:
        raise request_error("is missing", f"{path}.content")
    del members["role"]
    content = list_elements(members.pop("content"), f"{path}.content", request_error)
    begin = OPENINGS.get(role)
    if members and (rest := Unknown(dict(members)).remaining()):
        role, begin = RoleWithFields(role, encode_members(rest)[1:-1]), None
    blocks = _split_blocks(content, f"{path}.content", places, blank)
    return SplitMessage(role, begin or opening(role), blocks)


def _split_blocks(
    content: Sequence[Raw], path: str, places: _Places, blank: bool
) -> list[SplitBlock]:
    blocks: list[SplitBlock] = []
    kinds: list[str] = []
    for index, each in enumerate(content):
        members = object_members(each, f"{path}[{index}]", request_error)
        ttl = _ttl(members)
        if ttl is not None and blocks and not blocks[-1].marks and kinds[-1] != CACHE_POINT:
            last = blocks[-1]
            blocks[-1] = SplitBlock(last.kind, last.data, last.splice, ((None, ttl),))
            continue
        block = _WALK.block(each, f"{path}[{index}]")
        kinds.append(block.type)
        splice = _splice(block.type, members, places, blank)
        blocks.append(SplitBlock(block.row.chunk, bytes(each), splice))
    beside = "toolResult" in kinds and splice_at("toolResult", places) is None
    if beside:
        blocks = [SplitBlock(each.kind, each.data, None, each.marks) for each in blocks]
    return blocks


def _splice(kind: str, members: Members, places: _Places, blank: bool) -> int | None:
    """The offset of a marker after a block, by its kind."""
    if not TABLE.blocks.get(kind, TABLE.other).markable or len(members) != 1:
        return None
    if kind == "text":
        text = known_text(members, "text")
        return splice_at("text", places) if text.strip() or (blank and text) else None
    if kind == "document":
        document = decode_members(members[kind]) if bytes(members[kind])[:1] == b"{" else {}
        if known_text(document, "format") != "pdf" and "citations" not in document:
            return None
    if kind in ("citationsContent", "guardContent", "searchResult"):
        kind = "text"
    return None if kind in ("audio", "video") else splice_at(kind, places)
