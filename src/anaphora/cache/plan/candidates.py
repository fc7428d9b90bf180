"""The chunks of a prompt that may be worth a marker."""

from __future__ import annotations

import msgspec

from anaphora.cache.simulator import RenderedPrompt
from anaphora.rendered import ChunkRun, Rendered
from anaphora.values import SegmentRole, Ttl


class Candidates(msgspec.Struct, frozen=True):
    """Chunk indexes; None where the prompt has no such chunk. All of them can carry a marker, are
    part of the request body, and end a prefix that the next call can reuse."""

    policies: tuple[tuple[int, Ttl], ...] = ()
    """The end of each run of tools and system blocks with one `CachePolicy`, and its TTL."""
    prefix: int | None = None
    """The end of the stable prefix."""
    first: int | None = None
    """The end of the section that is hashed first; it survives a change of what follows."""
    shared: int | None = None
    """The end of what other conversations also begin with: the stable prefix; else the last block
    with a policy; else, where no block has one, all tools and system blocks."""
    frozen: int | None = None
    """The end of the region that stays unchanged until the next compaction."""
    tail: int | None = None
    """The end of the history that the next turn reuses."""


def frozen_end(rendered: Rendered, chunk: int) -> int | None:
    """The last chunk of the frozen region that can carry a marker."""
    if chunk >= rendered.cacheable or not rendered.messages_cacheable:
        return None
    return _markable_chunk(rendered, chunk)


def previous_turn(rendered: Rendered, prompt: RenderedPrompt, tail: int) -> int | None:
    """The end of the last user turn before the message that holds the tail: with the tail it forms
    the rolling pair. The call before had its own tail there."""
    run, index = rendered.locate(tail)
    opening = tail - index + run.log.opens[run.log.wire_message_of(index)]
    end = next((end for end in prompt.turn_ends() if end < opening), None)
    return None if end is None else _markable_chunk(rendered, end)


def stable_end(rendered: Rendered) -> int | None:
    """The last chunk before the conversation begins, whether or not it can carry a marker."""
    count = 0
    for run in rendered.runs:
        if run.section == "messages" and run.role is not SegmentRole.STABLE_PREFIX:
            break
        count += run.count
    return min(count, rendered.cacheable) - 1 if count else None


def policy_runs(rendered: Rendered) -> tuple[tuple[int, Ttl], ...]:
    """The last chunk of each contiguous run of one policy. A run continues from tools into system
    blocks where the policies agree."""
    ends: list[tuple[int, Ttl | None]] = []
    start = 0
    for run in rendered.runs:
        if run.section == "messages":
            break
        if in_body(rendered, run):
            for index, ttl in run.log.policies:
                if run.log.splices[index] >= 0 and start + index < rendered.cacheable:
                    if ends and ends[-1][1] == ttl:
                        ends.pop()
                    ends.append((start + index, ttl))
        start += run.count
    return tuple((chunk, ttl) for chunk, ttl in ends if ttl is not None)


def in_body(rendered: Rendered, run: ChunkRun) -> bool:
    """False for a run that a stored response holds: hashed, but not sent."""
    order = rendered.body_order
    return order is None or any(rendered.runs[index] is run for index in order)


def markable(run: ChunkRun, position: int) -> int | None:
    """The position, or the nearest before it in the run that can carry a marker."""
    splices = run.log.splices
    while position >= 0 and splices[position] < 0:
        position -= 1
    return position if position >= 0 else None


def _markable_chunk(rendered: Rendered, chunk: int) -> int | None:
    run, index = rendered.locate(chunk)
    position = markable(run, index) if in_body(rendered, run) else None
    return None if position is None else chunk - index + position
