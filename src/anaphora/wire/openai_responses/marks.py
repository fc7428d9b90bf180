"""The caller's marks, from the names they are given by to the chunks they mean."""

from __future__ import annotations

from anaphora.prompt import BlockMark, Call, PartMark, ToolMark
from anaphora.rendered import Mark, Run
from anaphora.values import Notice, SegmentRole, ToolResult

from .items import is_said, last_said, nested_splice
from .params import TTLS, other_ttl
from .traits import Traits


def resolve(
    call: Call, runs: list[Run], traits: Traits, held: list[Run]
) -> tuple[tuple[Mark, ...], int | None, list[Notice]]:
    """Marks on chunks in hash order, the last frozen chunk, and notices for what is not there."""
    cache = call.ir.cache
    marks: dict[tuple[int, int | None], Mark] = {}
    notices: list[Notice] = []
    for index, asked in enumerate(cache.marks):
        path = f"cache.marks[{index}]"
        found = _chunk(call, runs, asked, traits)
        if not isinstance(found, str) and _in(held, runs, found[0]):
            found = "a stored response holds it, so it is not sent"
        if isinstance(found, str):
            notices.append(Notice("mark_left_out", found, path))
            continue
        if (remark := other_ttl(asked.ttl, path)) is not None:
            notices.append(remark)
        marks[found] = Mark(found[0], TTLS[asked.ttl], found[1])
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
    # A chunk's own breakpoint stands at its very end, behind those inside it.
    in_order = sorted(marks.values(), key=lambda m: (m.chunk, m.splice is None, m.splice or 0))
    return tuple(in_order), frozen, notices


#: A chunk, and the splice in it where that is not the chunk's own; or why there is none.
_Place = tuple[int, int | None]


def _chunk(
    call: Call, runs: list[Run], asked: ToolMark | BlockMark | PartMark, traits: Traits
) -> _Place | str:
    if not traits.explicit:
        return f"{call.model} takes no breakpoints: it caches by itself"
    if isinstance(asked, ToolMark):
        return "a tool cannot carry a breakpoint here"
    if isinstance(asked, PartMark):
        return _part(runs, asked)
    if traits.system_slot != "message":
        return "instructions cannot carry a breakpoint"
    position = call.ir.system_field_index(asked.index)
    # The system blocks come first in hash order.
    return (position, None) if position is not None else f"no system block {asked.index}"


def _in(held: list[Run], runs: list[Run], chunk: int) -> bool:
    for run in runs:
        if chunk < run.count:
            return any(run is one for one in held)
        chunk -= run.count
    return False


def _part(runs: list[Run], asked: PartMark) -> _Place | str:
    found = _find(runs, asked.message_id)
    if found is None:
        return f"no message {asked.message_id}"
    run, first, chunks = found
    place = _part_of(run, chunks, asked.path)
    if isinstance(place, str):
        return place.format(f"message {asked.message_id}")
    return first + place[0], place[1]


def _find(runs: list[Run], message_id: str) -> tuple[Run, int, range] | None:
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


def _part_of(run: Run, chunks: range, path: tuple[int, ...]) -> _Place | str:
    """The chunk a path leads to, or why it leads nowhere, with a gap for the message's name."""
    splices = run.log.splices
    if not path:
        last = next((chunk for chunk in reversed(chunks) if splices[chunk] >= 0), None)
        return (last, None) if last is not None else "no part of {} can carry a breakpoint"
    message = run.source[run.log.message_of(chunks.start)] if chunks else None
    parts = message.parts if message is not None else ()
    name = f"part {list(path)} of {{}}"
    if message is None or not 0 <= path[0] < len(parts):
        return f"no {name}"
    role, part = message.role, parts[path[0]]
    if not is_said(part, role):
        return f"{name} is left out of the request"
    chunk = chunks[sum(is_said(before, role) for before in parts[: path[0]])]
    inside = len(path) == 2 and isinstance(part, ToolResult)
    if len(path) > 1 and not inside:
        return f"no {name}"
    if not inside or (path[1] == last_said(part) and splices[chunk] >= 0):
        return (chunk, None) if splices[chunk] >= 0 else f"{name} may not carry a breakpoint"
    splice = nested_splice(part, path[1])
    if splice is None:
        return f"no {name} that can carry a breakpoint"
    return chunk, _glue(run, chunk) + splice


def _glue(run: Run, chunk: int) -> int:
    """How many bytes of a chunk's data come before its item."""
    lead = len(run.lead) if chunk == 0 else 0
    data = run.log.slice(run.log.start(chunk), run.log.ends[chunk])
    return lead + data.index(b'{"type":"function_call_output"')


def _frozen(runs: list[Run], message_id: str) -> int | None:
    found = _find(runs, message_id)
    if found is None:
        return None
    _, first, chunks = found
    return first + chunks.stop - 1 if chunks.stop else None
