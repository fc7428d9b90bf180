"""The caller's marks on a rendered prompt: the chunk of each, and OpenAI's cache options.

A mark is asked for in a call; a marker is its bytes in a request (markers.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from anaphora.catalog import Profile
from anaphora.prompt import (
    BlockMark,
    Call,
    MarkRequest,
    PromptBlock,
    PromptCachePlan,
    ToolMark,
)
from anaphora.rendered import ChunkRun, Mark
from anaphora.values import AnyTool, Extras, Message, Notice, Part, SegmentRole, Ttl

from .markers import BEFORE_BRACE, CACHE_KEY, with_members
from .openai import OPENAI
from .parts import extra_members, system_block_index
from .reading import decode_members, object_members, request_error

#: A chunk, and the splice in it if that is not the chunk's own; or the reason why there is none.
MarkLocation: TypeAlias = tuple[int, int | None] | str


class Marking(NamedTuple):
    """How a wire marks the chunks of a call."""

    markers: Mapping[Ttl, bytes]
    """The bytes of those that the model takes."""
    nearest: Mapping[Ttl, Ttl]
    """The wire's own TTL for each that may be requested."""
    locate: Callable[[MarkRequest], MarkLocation]
    of_wire: Mapping[Ttl, bytes] = {}
    """All markers of the wire, if the model takes fewer."""


def resolve_marks(
    cache: PromptCachePlan, runs: list[ChunkRun], marking: Marking, wire: str, as_sent: bool
) -> tuple[tuple[Mark, ...], int | None, list[Notice]]:
    """Marks on chunks in hash order, the last frozen chunk, and notices for marks without a chunk.
    `as_sent`: each keeps its TTL."""
    markers, nearest, locate, of_wire = marking
    kept = (of_wire or markers) if as_sent else None
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


def marker_field_notices(extras: Extras, place: str) -> list[Notice]:
    """Notices for unknown members of a request's marker: markers are sent without them."""
    names = [name for text in extras.values() for name in decode_members(text)]
    return [
        Notice("marker_fields_left_out", f"{name}: no marker has it here; left out", place)
        for name in names
    ]


# ── The chunk of a mark ───────────────────────────────────────────────────────────────────────────


class MarkPlace(NamedTuple):
    """A part of a message that was sent."""

    path: tuple[int, ...]
    chunk: int
    """Its chunk among those of the message."""
    from_end: int | None = None
    """The offset of its marker, counted back from the chunk's end; None: at the chunk's own
    splice."""


class MarkPlaces:
    """Where a wire takes marks. Each message is laid out once, however many marks it has.

    `parts` has the sent parts of a message; `refusal` tells why the model takes no marks; `tools`
    are those with chunks, None if they take no marks; `nested` counts the bytes of a part from the
    marker on a block inside it; `held` are the runs that a stored response holds; `end` is the
    offset of a marker from the end of a chunk.
    """

    def __init__(
        self,
        parts: Callable[[Message], Iterable[MarkPlace]],
        *,
        refusal: str = "",
        tools: Sequence[AnyTool] | None = None,
        nested: Callable[[Part, tuple[int, ...]], int | None] | None = None,
        held: Sequence[ChunkRun] = (),
        end: int = BEFORE_BRACE,
    ) -> None:
        self._parts = parts
        self._nested = nested
        self._tools = tools
        self._known: dict[int, dict[tuple[int, ...], list[MarkPlace]]] = {}
        self.refusal = refusal
        self.held = held
        self.end = end

    @functools.cached_property
    def tools(self) -> dict[str, int] | None:
        """The chunk of each tool by its name; of those with one name that of the first."""
        if self._tools is None:
            return None
        return {self._tools[at].name: at for at in reversed(range(len(self._tools)))}

    def below(self, message: Message, path: tuple[int, ...]) -> list[MarkPlace]:
        """The sent part at a path, and the parts inside it."""
        known = self._known.get(id(message))
        if known is None:
            known = self._known[id(message)] = {}
            for place in self._parts(message):
                for depth in range(len(place.path) + 1):
                    known.setdefault(place.path[:depth], []).append(place)
        if len(path) < 2 or self._nested is None or path[:1] not in known:
            return known.get(path, [])
        inside = self._nested(message.parts[path[0]], path[1:])
        return [] if inside is None else [MarkPlace(path, known[path[:1]][0].chunk, inside)]


def locate(
    mark: MarkRequest, call: Call, profile: Profile, runs: list[ChunkRun], places: MarkPlaces
) -> MarkLocation:
    """The chunk of a mark request, or the reason why there is none."""
    if places.refusal and not profile.as_sent:
        return places.refusal
    if isinstance(mark, ToolMark):
        return _locate_tool(mark, call, profile, runs, places)
    if isinstance(mark, BlockMark):
        run = next((run for run in runs if run.section == "system"), None)
        position = system_block_index(call, mark.index, profile)
        if any(run is held for held in places.held):
            return _HELD
        if run is None or position is None:
            return f"no system block {mark.index}, or a blank one"
        return _chunk(runs, run, position, profile, places) or (
            f"system block {mark.index} takes no marker"
        )
    match = find_message(runs, mark.message_id)
    if match is None:
        return f"no message {mark.message_id}"
    run, first, chunks = match
    name, path = f"message {mark.message_id}", mark.path
    if any(run is held for held in places.held):
        return _HELD
    if chunks.stop > run.count:
        return f"{name} carries the state this turn, so it cannot be cached"
    message = run.source[run.log.message_of(chunks.start)] if chunks else None
    sent = [] if message is None else places.below(message, path)
    below = [place for place in sent if place.chunk < len(chunks)]
    # The last one: a tool result may be several chunks.
    for place in reversed(below):
        chunk = chunks[place.chunk]
        if place.from_end is not None:
            return first + chunk, _size(run, chunk) - place.from_end
        if (found := _chunk(runs, run, chunk, profile, places)) is not None:
            return found
    if not path:
        return f"no part of {name} can carry a marker"
    name = f"part {list(path)} of {name}"
    if below:
        return f"{name} may not carry a marker"
    exists = message is not None and len(path) == 1 and 0 <= path[0] < len(message.parts)
    return f"{name} is left out of the request" if exists else f"no {name}"


_HELD = "a stored response holds it, so it is not sent"


def _locate_tool(
    mark: ToolMark, call: Call, profile: Profile, runs: list[ChunkRun], places: MarkPlaces
) -> MarkLocation:
    if places.tools is None:
        return "a tool cannot carry a marker here"
    index = places.tools.get(mark.name)
    if index is not None:
        run = next(run for run in runs if run.section == "tools")
        found = _chunk(runs, run, index, profile, places)
        return found or f"tool {mark.name} takes no marker"
    if any(tool.name == mark.name for tool in call.tools):
        return f"tool {mark.name} is deferred, so it cannot be cached"
    return f"no tool {mark.name}"


def _chunk(
    runs: list[ChunkRun], run: ChunkRun, chunk: int, profile: Profile, places: MarkPlaces
) -> tuple[int, int | None] | None:
    """A chunk of a run, if it takes a marker. As sent, any keeps the one that it has."""
    first = sum(each.count for each in runs[: runs.index(run)])
    if run.log.splices[chunk] >= 0:
        return first + chunk, None
    return (first + chunk, _size(run, chunk) + places.end) if profile.as_sent else None


def _size(run: ChunkRun, chunk: int) -> int:
    lead = 0 if chunk else len(run.lead)
    return lead + run.log.ends[chunk] - run.log.start(chunk)


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


# ── OpenAI's cache options ────────────────────────────────────────────────────────────────────────

#: The TTL that is used for each that a caller may request.
NEAREST: dict[Ttl, Ttl] = {"5m": "30m", "30m": "30m", "1h": "30m", "12h": "12h", "24h": "12h"}


def no_breakpoints(call: Call) -> str:
    return f"{call.model} takes no breakpoints: it caches by itself"


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
    """Notices for cache options, which a model without breakpoints does not have."""
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
