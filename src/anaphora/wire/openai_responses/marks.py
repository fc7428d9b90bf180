"""Where a caller's mark lands on this wire."""

from __future__ import annotations

from anaphora.prompt import BlockMark, Call, MarkRequest, ToolMark
from anaphora.rendered import ChunkRun
from anaphora.values import ToolResult
from anaphora.wire.markers import MarkLocation, find_message

from .items import is_said
from .results import last_said, nested_splice
from .traits import Traits


def locate(
    asked: MarkRequest, call: Call, runs: list[ChunkRun], traits: Traits, held: list[ChunkRun]
) -> MarkLocation:
    """The chunk a mark means, or why there is none."""
    if not traits.explicit:
        return f"{call.model} takes no breakpoints: it caches by itself"
    if isinstance(asked, ToolMark):
        return "a tool cannot carry a breakpoint here"
    if isinstance(asked, BlockMark):
        if traits.system_slot != "message":
            return "instructions cannot carry a breakpoint"
        if any(run.section == "system" for run in held):
            return "a stored response holds it, so it is not sent"
        position = call.ir.system_field_index(asked.index)
        # The system blocks come first in hash order.
        return (position, None) if position is not None else f"no system block {asked.index}"
    found = find_message(runs, asked.message_id)
    if found is None:
        return f"no message {asked.message_id}"
    run, first, chunks = found
    if any(run is one for one in held):
        return "a stored response holds it, so it is not sent"
    place = _part_of(run, chunks, asked.path)
    if isinstance(place, str):
        return place.format(f"message {asked.message_id}")
    return first + place[0], place[1]


def _part_of(run: ChunkRun, chunks: range, path: tuple[int, ...]) -> MarkLocation:
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
    position = sum(is_said(before, role) for before in parts[: path[0]])
    if not is_said(part, role) or position >= len(chunks):  # reasoning at the end may be left out
        return f"{name} is left out of the request"
    chunk = chunks[position]
    inside = len(path) == 2 and isinstance(part, ToolResult)
    if len(path) > 1 and not inside:
        return f"no {name}"
    if not inside or (path[1] == last_said(part) and splices[chunk] >= 0):
        return (chunk, None) if splices[chunk] >= 0 else f"{name} may not carry a breakpoint"
    splice = nested_splice(part, path[1])
    if splice is None:
        return f"no {name} that can carry a breakpoint"
    return chunk, _glue(run, chunk) + splice


def _glue(run: ChunkRun, chunk: int) -> int:
    """How many bytes of a chunk's data come before its item."""
    lead = len(run.lead) if chunk == 0 else 0
    data = run.log.slice(run.log.start(chunk), run.log.ends[chunk])
    return lead + data.index(b'{"type":"function_call_output"')
