"""Where a caller's mark lands on this wire."""

from __future__ import annotations

from anaphora.catalog import Profile
from anaphora.prompt import BlockMark, MarkRequest, PromptIR, ToolMark
from anaphora.rendered import ChunkRun
from anaphora.values import AnyTool, ToolResult
from anaphora.wire.markers import MarkLocation, find_message

from .blocks import is_said, is_unsigned, nested_splice


def locate(
    asked: MarkRequest,
    ir: PromptIR,
    tools: tuple[AnyTool, ...],
    runs: list[ChunkRun],
    profile: Profile,
) -> MarkLocation:
    """The chunk a mark means, or why there is none."""
    if isinstance(asked, ToolMark):
        for index, tool in enumerate(tools):
            if tool.name == asked.name:
                return index, None
        return f"no tool {asked.name}"
    if isinstance(asked, BlockMark):
        position = ir.system_field_index(asked.index)
        if position is None:
            return f"no system block {asked.index}, or a blank one"
        return len(tools) + position, None
    found = find_message(runs, asked.message_id)
    if found is None:
        return f"no message {asked.message_id}"
    run, first, chunks = found
    if chunks.stop > run.count:
        return f"message {asked.message_id} carries the state this turn, so it cannot be cached"
    part = _part_of(run, chunks, asked.path, profile)
    if isinstance(part, str):
        return part.format(f"message {asked.message_id}")
    return first + part[0], part[1]


def _part_of(
    run: ChunkRun, chunks: range, path: tuple[int, ...], profile: Profile
) -> tuple[int, int | None] | str:
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
    sent = [is_said(each, spoken) and not is_unsigned(each, profile) for each in parts]
    position = sum(sent[: path[0]])
    if not sent[path[0]] or position >= len(chunks):  # reasoning at the end may be left out
        return f"{name} is left out of the request"
    chunk = chunks[position]
    if len(path) == 1:
        return (chunk, None) if splices[chunk] >= 0 else f"{name} may not carry a marker"
    if len(path) > 2 or not isinstance(part, ToolResult):
        return f"no {name}"
    inside = nested_splice(part, path[1])
    if inside is None:
        return f"no {name} that can carry a marker"
    return chunk, _glue(run, chunk) + inside


def _glue(run: ChunkRun, chunk: int) -> int:
    """How many bytes of a chunk's data come before its block."""
    lead = len(run.lead) if chunk == 0 else 0
    data = run.log.slice(run.log.start(chunk), run.log.ends[chunk])
    return lead + data.index(b'{"type":"tool_result"')
