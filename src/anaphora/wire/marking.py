"""The caller's marks on a rendered prompt: what every wire does the same way.

A wire says where a tool, a system block or a part became a chunk; the rest is here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, TypeVar

import msgspec

from anaphora.prompt import PromptBlock, PromptCachePlan
from anaphora.prompt.cache_plan import MarkRequest
from anaphora.rendered import ChunkRun, Mark
from anaphora.values import TTL_SECONDS, AnyTool, Extras, Notice, SegmentRole, Ttl, nearest_ttl

T = TypeVar("T", bound="Ttl | None")

_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

#: A marker as a request has it: its path below the message, its lifetime (None: the request's),
#: and the fields of it that have no name here.
Placed: TypeAlias = tuple[tuple[int, ...], T, Extras | None]

#: A chunk, and the splice in it where that is not the chunk's own; or why there is none.
Found: TypeAlias = tuple[int, int | None] | str


def resolve(
    cache: PromptCachePlan,
    runs: list[ChunkRun],
    nearest: Mapping[Ttl, Ttl],
    locate: Callable[[MarkRequest], Found],
) -> tuple[tuple[Mark, ...], int | None, list[Notice]]:
    """Marks on chunks in hash order, the last frozen chunk, and notices for what is not there.

    `nearest` has the wire's own lifetime for each that may be asked for.
    """
    if not cache.marks and cache.frozen_through is None:
        return (), None, []
    marks: dict[tuple[int, int | None], Mark] = {}
    notices: list[Notice] = []
    for index, asked in enumerate(cache.marks):
        place = f"cache.marks[{index}]"
        found = locate(asked)
        if isinstance(found, str):
            notices.append(Notice("mark_left_out", found, place))
            continue
        ttl = given_ttl(asked.ttl, nearest, place, notices)
        if asked.extras is not None:
            notices += unsent_fields(asked.extras, place)
        marks[found] = Mark(found[0], ttl, found[1])
    frozen = None
    if cache.frozen_through is not None:
        frozen = _frozen(runs, cache.frozen_through)
        if frozen is None:
            notices.append(
                Notice(
                    "frozen_boundary_missing",
                    f"no message {cache.frozen_through} to end the frozen region with",
                    "cache.frozen_through",
                )
            )
    # A block's own marker stands at its very end, behind those of blocks inside it.
    in_order = sorted(marks.values(), key=lambda m: (m.chunk, m.splice is None, m.splice))
    return tuple(in_order), frozen, notices


def nearest_of(markers: Mapping[Ttl, bytes]) -> Mapping[Ttl, Ttl]:
    """For each lifetime that may be asked for the shortest one here that is long enough, or the
    longest."""
    return _nearest(tuple(markers))


@functools.cache
def _nearest(lifetimes: tuple[Ttl, ...]) -> Mapping[Ttl, Ttl]:
    found = {asked: nearest_ttl(asked, lifetimes) for asked in TTL_SECONDS}
    return {asked: ttl for asked, ttl in found.items() if ttl is not None}


def given_ttl(asked: Ttl, nearest: Mapping[Ttl, Ttl], place: str, notices: list[Notice]) -> Ttl:
    """The lifetime a marker gets on this wire, with a word when it is not the one asked for."""
    ttl = nearest[asked]
    if ttl != asked:
        notices.append(Notice("ttl_changed", f"no marker lives {asked} here; it gets {ttl}", place))
    return ttl


def policy_notices(
    tools: Iterable[AnyTool], blocks: Iterable[PromptBlock], nearest: Mapping[Ttl, Ttl]
) -> list[Notice]:
    """Cache policies that a wire without markers on tools, and with TTLs of its own, changes."""
    notices: list[Notice] = []
    if any(tool.cache.is_cached for tool in tools):
        why = "a tool definition takes no breakpoint here"
        notices.append(Notice("tool_policy_left_out", why, "tools"))
    for index, block in enumerate(blocks):
        if block.cache.ttl is not None:
            given_ttl(block.cache.ttl, nearest, f"system[{index}]", notices)
    return notices


def message_ttl(
    plan: PromptCachePlan, nearest: Mapping[Ttl, Ttl], notices: list[Notice]
) -> Ttl | None:
    """The TTL that the caller asks for inside the history, as this wire has it."""
    if plan.message_ttl is None:
        return None
    return given_ttl(plan.message_ttl, nearest, "cache.message_ttl", notices)


def unsent_fields(extras: Extras, place: str) -> list[Notice]:
    """Fields of a marker that came with a request: those that are sent have none of them."""
    names = [name for text in extras.values() for name in _members(text)]
    return [
        Notice("marker_fields_left_out", f"{name}: no marker has it here; left out", place)
        for name in names
    ]


def find_message(runs: list[ChunkRun], message_id: str) -> tuple[ChunkRun, int, range] | None:
    """The run that holds a message, the run's first chunk, and the message's chunks in the run.
    Segments number their messages apart: an id means one of the conversation first."""
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


def _frozen(runs: list[ChunkRun], message_id: str) -> int | None:
    found = find_message(runs, message_id)
    if found is None:
        return None
    run, first, chunks = found
    last = min(chunks.stop, run.count) - 1
    return first + last if last >= 0 else None
