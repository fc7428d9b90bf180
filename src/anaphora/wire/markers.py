"""The caller's marks on a rendered prompt. A wire locates the chunk of a mark request; the rest is
the same for all wires."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from anaphora.canonical import dumps
from anaphora.prompt import MarkRequest, PartMark, PromptBlock, PromptCachePlan
from anaphora.rendered import ChunkRun, Mark
from anaphora.values import TTL_SECONDS, AnyTool, Extras, Notice, SegmentRole, Ttl
from anaphora.values.stability import nearest_ttl

from .parts import extra_members
from .reading import Members, decode_members

T = TypeVar("T", bound="Ttl | None")

#: A marker of a request: its path below the message, its TTL (None: the request's), and the
#: marker's unknown members.
PlacedMark: TypeAlias = tuple[tuple[int, ...], T, Extras | None]

#: A chunk, and the splice in it if that is not the chunk's own; or the reason why there is none.
MarkLocation: TypeAlias = tuple[int, int | None] | str
Locate: TypeAlias = Callable[[MarkRequest], MarkLocation]

#: The members that mark a block in a dialect, by TTL.
DialectMarkers: TypeAlias = Mapping[Ttl, dict[str, Any]]


#: The offset of a marker counted from the end of a block: before its closing brace.
BEFORE_BRACE = -1
#: The depth of nested blocks that is searched: a document in a tool result is at the third level.
INNER_LEVELS = 16


class MarkerForm(NamedTuple):
    """A marker: an object with this member, and perhaps a `ttl`."""

    member: str
    value: str
    ttl: Ttl
    """The lifetime of a marker without one."""


#: By the member of a block that is the marker.
MARKER_FORMS = {
    "cache_control": MarkerForm("type", "ephemeral", "5m"),
    "prompt_cache_breakpoint": MarkerForm("mode", "explicit", "30m"),
}


class MarkerPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """The places of markers in the requests of a wire (`wire.splice`)."""

    contents: tuple[str, ...] = ("content",)
    """The lists of blocks in a message: the first that the message has is used."""
    joined: str = ""
    """The one among them whose blocks are one chunk: its marker goes into the last block."""
    text: bytes
    """A text block up to its text."""
    message: bytes = b""
    """A message up to its first block, if a prompt may be a plain text."""
    member: str
    """The member of a block that is its marker,"""
    is_element: bool = False
    """or of an element of its own, after the block that it marks."""
    automatic: str = ""
    """The field of the body that requests an automatic breakpoint."""
    key: bytes = b""
    """The bytes before a cache key in the body; empty if the wire has none."""
    only_marks: bytes = b""
    """The field that turns the automatic breakpoint off; empty if there is none."""


#: The bytes before a cache key in OpenAI's bodies, and the field that makes OpenAI cache only
#: marked prefixes.
CACHE_KEY = b',"prompt_cache_key":'
ONLY_MARKS = b',"prompt_cache_options":{"mode":"explicit"}'

#: The wires whose blocks carry markers.
MARKER_PLACES = {
    "anthropic": MarkerPlaces(
        text=b'{"type":"text","text":',
        member="cache_control",
        automatic="cache_control",
    ),
    "openai_chat": MarkerPlaces(
        text=b'{"type":"text","text":',
        member="prompt_cache_breakpoint",
        key=CACHE_KEY,
        only_marks=ONLY_MARKS,
    ),
    "openai_responses": MarkerPlaces(
        contents=("content", "output"),
        joined="output",
        text=b'{"type":"input_text","text":',
        message=b'{"type":"message","role":"user","content":[',
        member="prompt_cache_breakpoint",
        key=CACHE_KEY,
        only_marks=ONLY_MARKS,
    ),
    "bedrock": MarkerPlaces(text=b'{"text":', member="cachePoint", is_element=True),
}


def marked_message(mark: MarkRequest) -> int:
    """The number of the message that is marked in a parsed call; -1 for tools and blocks."""
    return int(mark.message_id[1:]) if isinstance(mark, PartMark) else -1


def resolve_marks(
    cache: PromptCachePlan,
    runs: list[ChunkRun],
    nearest: Mapping[Ttl, Ttl],
    locate: Locate,
    wire: str,
    markers: Mapping[Ttl, bytes],
    kept: Mapping[Ttl, bytes] | None = None,
) -> tuple[tuple[Mark, ...], int | None, list[Notice]]:
    """Marks on chunks in hash order, the last frozen chunk, and notices for marks without a chunk.

    `nearest` has the wire's own TTL for each that may be requested, `markers` the bytes of
    those that the model takes. With `kept`, all markers of the wire, each keeps its TTL.
    """
    marks: dict[tuple[int, int | None], Mark] = {}
    notices: list[Notice] = []
    for index, request in enumerate(cache.marks):
        place = f"cache.marks[{index}]"
        location = locate(request)
        if isinstance(location, str):
            notices.append(Notice("mark_left_out", location, place))
            continue
        if kept is None:
            ttl = supported_ttl(request.ttl, nearest, place, notices)
        else:
            ttl = request.ttl
        marker = None if kept is None or ttl in markers else kept.get(ttl)
        if request.extras is not None:
            own, plain = extra_members(request.extras, wire), (kept or markers).get(ttl)
            if own and plain is not None:
                marker = with_members(plain, own)
            others = {name: text for name, text in request.extras.items() if name != wire}
            notices += marker_field_notices(others, place)
        if kept is not None and location in marks:
            notices.append(Notice("mark_left_out", "the block has another marker", place))
        marks[location] = Mark(location[0], ttl, location[1], marker)
    frozen = None
    if cache.frozen_through is not None:
        match = find_message(runs, cache.frozen_through)
        if match is not None and (last := min(match[2].stop, match[0].count)) > 0:
            frozen = match[1] + last - 1
        else:
            why = f"no message {cache.frozen_through} to end the frozen region with"
            notices.append(Notice("frozen_boundary_missing", why, "cache.frozen_through"))
    # A block's own marker is at its very end, after those of blocks inside it.
    in_order = sorted(marks.values(), key=lambda m: (m.chunk, m.splice is None, m.splice))
    return tuple(in_order), frozen, notices


def nearest_ttls(markers: Mapping[Ttl, bytes]) -> dict[Ttl, Ttl]:
    """For each TTL that may be requested, the shortest supported one that is long enough, or the
    longest."""
    supported = tuple(markers)
    nearest = {asked: nearest_ttl(asked, supported) for asked in TTL_SECONDS}
    return {asked: ttl for asked, ttl in nearest.items() if ttl is not None}


def supported_ttl(asked: Ttl, nearest: Mapping[Ttl, Ttl], place: str, notices: list[Notice]) -> Ttl:
    """The TTL of a marker on this wire, with a notice if it is not the requested one."""
    ttl = nearest[asked]
    if ttl != asked:
        notices.append(
            Notice("ttl_changed", f"a TTL of {asked} is not available; it gets {ttl}", place)
        )
    return ttl


def policy_notices(
    tools: Iterable[AnyTool], blocks: Iterable[PromptBlock], nearest: Mapping[Ttl, Ttl]
) -> list[Notice]:
    """Notices for cache policies that are changed by a wire without markers on tools, and with TTLs
    of its own."""
    notices: list[Notice] = []
    if any(tool.cache.is_cached for tool in tools):
        why = "a tool definition takes no breakpoint here"
        notices.append(Notice("tool_policy_left_out", why, "tools"))
    for index, block in enumerate(blocks):
        if block.cache.ttl is not None:
            supported_ttl(block.cache.ttl, nearest, f"system[{index}]", notices)
    return notices


def with_members(marker: bytes, members: bytes) -> bytes:
    """A marker with further members in its innermost object."""
    body = marker.rstrip(b"}")
    return body + b"," + members + marker[len(body) :]


def marker_field_notices(extras: Extras, place: str) -> list[Notice]:
    """Notices for unknown members of a request's marker: markers are sent without them."""
    names = [name for text in extras.values() for name in decode_members(text)]
    return [
        Notice("marker_fields_left_out", f"{name}: no marker has it here; left out", place)
        for name in names
    ]


def marker_bytes(markers: DialectMarkers) -> dict[Ttl, bytes]:
    """The bytes that mark a block, before its closing brace."""
    return {ttl: b"," + dumps(marker)[1:-1] for ttl, marker in markers.items()}


def take_dialect_marker(members: Members, markers: DialectMarkers) -> Ttl | None:
    """Remove a marker from a block, and return its TTL. One in another form stays."""
    for ttl, marker in markers.items():
        if all(
            name in members and msgspec.json.decode(members[name]) == value
            for name, value in marker.items()
        ):
            for name in marker:
                del members[name]
            return ttl
    return None


def find_message(runs: list[ChunkRun], message_id: str) -> tuple[ChunkRun, int, range] | None:
    """The run that holds a message, the run's first chunk, and the message's chunks in the run.
    Segments number their messages separately: the conversation is searched first."""
    elsewhere = None
    first = 0
    for run in runs:
        chunks = run.find(message_id) if run.section == "messages" else None
        if chunks is not None:
            if run.role is SegmentRole.CONVERSATION:
                return run, first, chunks
            elsewhere = elsewhere or (run, first, chunks)
        first += run.count
    return elsewhere
