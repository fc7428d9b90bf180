"""Where a caller's mark lands on this wire."""

from __future__ import annotations

from anaphora.prompt import BlockMark, PromptIR, ToolMark
from anaphora.prompt.cache_plan import MarkRequest
from anaphora.rendered import ChunkRun
from anaphora.wire.markers import MarkLocation, find_message

from .facts import Facts
from .messages import lay_out


def locate(asked: MarkRequest, ir: PromptIR, runs: list[ChunkRun], facts: Facts) -> MarkLocation:
    """The chunk a mark means, or why there is none."""
    if not facts.breakpoints:
        return "this model takes no breakpoints; it caches by itself"
    if isinstance(asked, ToolMark):
        return "a tool definition takes no breakpoint here"
    if isinstance(asked, BlockMark):
        position = ir.system_field_index(asked.index)
        if position is None:
            return f"no system block {asked.index}, or a blank one"
        return position, None  # the system blocks are hashed first
    found = find_message(runs, asked.message_id)
    if found is None:
        return f"no message {asked.message_id}"
    run, first, chunks = found
    position = _part(run, chunks, asked.path, facts)
    if position is None:
        if not asked.path:
            return f"no part of message {asked.message_id} takes a breakpoint"
        return f"part {list(asked.path)} of message {asked.message_id} takes no breakpoint"
    return first + position, None


def _part(run: ChunkRun, chunks: range, path: tuple[int, ...], facts: Facts) -> int | None:
    """The last chunk below a path that can carry a breakpoint: a tool result may be several."""
    if not chunks:
        return None
    message = run.source[run.log.message_of(chunks.start)]
    pieces = lay_out(message, facts, [])
    for chunk, piece in reversed(list(zip(chunks, pieces, strict=True))):
        if piece.path[: len(path)] == path and piece.markable:
            return chunk
    return None
