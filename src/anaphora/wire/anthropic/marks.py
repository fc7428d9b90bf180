"""The caller's marks, from the names they are given by to the chunks they mean."""

from __future__ import annotations

from anaphora.prompt import BlockMark, PartMark, PromptIR, ToolMark
from anaphora.rendered import Mark, Run
from anaphora.values import AnyTool, Notice, SegmentRole, ToolResult

from .blocks import is_said, nested_splice


def resolve(
    ir: PromptIR, tools: tuple[AnyTool, ...], runs: list[Run]
) -> tuple[tuple[Mark, ...], int | None, list[Notice]]:
    """Marks on chunks in hash order, the last frozen chunk, and notices for what is not there."""
    cache = ir.cache
    if not cache.marks and cache.frozen_through is None:
        return (), None, []
    marks: dict[tuple[int, int | None], Mark] = {}
    notices: list[Notice] = []
    for index, asked in enumerate(cache.marks):
        if isinstance(asked, ToolMark):
            found = _tool(tools, asked)
        elif isinstance(asked, BlockMark):
            found = _block(ir, len(tools), asked)
        else:
            found = _part(runs, asked)
        if isinstance(found, str):
            notices.append(Notice("mark_left_out", found, f"cache.marks[{index}]"))
        else:
            marks[found.chunk, found.splice] = found
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


def _tool(tools: tuple[AnyTool, ...], asked: ToolMark) -> Mark | str:
    for index, tool in enumerate(tools):
        if tool.name == asked.name:
            return Mark(index, asked.ttl)
    return f"no tool {asked.name}"


def _block(ir: PromptIR, first: int, asked: BlockMark) -> Mark | str:
    position = ir.system_field_index(asked.index)
    if position is None:
        return f"no system block {asked.index}, or a blank one"
    return Mark(first + position, asked.ttl)


def _part(runs: list[Run], asked: PartMark) -> Mark | str:
    found = _find(runs, asked.message_id)
    if found is None:
        return f"no message {asked.message_id}"
    run, first, chunks = found
    if chunks.stop > run.count:
        return f"message {asked.message_id} carries the state this turn, so it cannot be cached"
    part = _part_of(run, chunks, asked.path)
    if isinstance(part, str):
        return part.format(f"message {asked.message_id}")
    return Mark(first + part[0], asked.ttl, part[1])


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


def _part_of(run: Run, chunks: range, path: tuple[int, ...]) -> tuple[int, int | None] | str:
    """The chunk a path leads to, and the splice in it where that is not the chunk's own; or why
    it leads nowhere, with a gap for the message's name."""
    splices = run.log.splices
    if not path:
        last = next((chunk for chunk in reversed(chunks) if splices[chunk] >= 0), None)
        return (last, None) if last is not None else "no part of {} can carry a marker"
    message = run.source[run.log.message_of(chunks.start)] if chunks else None
    parts = message.parts if message is not None else ()
    spoken = message is not None and message.role == "assistant"
    name = f"part {list(path)} of {{}}"
    if not 0 <= path[0] < len(parts):
        return f"no {name}"
    part = parts[path[0]]
    if not is_said(part, spoken):
        return f"{name} is left out of the request"
    chunk = chunks[sum(is_said(earlier, spoken) for earlier in parts[: path[0]])]
    if len(path) == 1:
        return (chunk, None) if splices[chunk] >= 0 else f"{name} may not carry a marker"
    if len(path) > 2 or not isinstance(part, ToolResult):
        return f"no {name}"
    inside = nested_splice(part, path[1])
    if inside is None:
        return f"no {name} that can carry a marker"
    return chunk, _glue(run, chunk) + inside


def _glue(run: Run, chunk: int) -> int:
    """How many bytes of a chunk's data come before its block."""
    lead = len(run.lead) if chunk == 0 else 0
    data = run.log.slice(run.log.start(chunk), run.log.ends[chunk])
    return lead + data.index(b'{"type":"tool_result"')


def _frozen(runs: list[Run], message_id: str) -> int | None:
    found = _find(runs, message_id)
    if found is None:
        return None
    run, first, chunks = found
    last = min(chunks.stop, run.count) - 1
    return first + last if last >= 0 else None
