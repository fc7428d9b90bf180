"""The chunks of a prompt that may be worth a marker, and why each one is."""

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


_NONE = Candidates()


def find_candidates(rendered: Rendered) -> Candidates:
    """Costs the number of runs, and a few steps back from each position."""
    if not rendered.markers:
        return _NONE
    tail = section = prefix = first = None
    policies: tuple[tuple[int, Ttl], ...] = ()
    start, cacheable, all_sent = 0, rendered.cacheable, rendered.body_order is None
    for run in rendered.runs:
        count = run.count
        last = min(count, cacheable - start) - 1
        position = None
        if last >= 0 and (all_sent or _in_body(rendered, run)):
            position = last if run.log.splices[last] >= 0 else _markable(run, last)
        if position is not None:
            if run.section != "messages":
                section = start + position
                first = section if first is None else first
                if run.log.policies and not policies:
                    policies = _policy_runs(rendered)
            elif run.role is SegmentRole.STABLE_PREFIX:
                prefix = start + position
                first = prefix if first is None else first
            elif rendered.messages_cacheable:
                tail = start + position
        start += count
    shared = prefix
    if shared is None:
        shared = policies[-1][0] if policies else section
    frozen = None if rendered.frozen is None else _frozen(rendered, rendered.frozen)
    return Candidates(policies, prefix, first, shared, frozen, tail)


def _frozen(rendered: Rendered, chunk: int) -> int | None:
    if chunk >= rendered.cacheable or not rendered.messages_cacheable:
        return None
    run, at = rendered.locate(chunk)
    position = _markable(run, at) if _in_body(rendered, run) else None
    return None if position is None else chunk - at + position


def previous_turn(rendered: Rendered, prompt: RenderedPrompt, tail: int) -> int | None:
    """The end of the last user turn before the message that holds the tail: with the tail it forms
    the rolling pair. The call before had its own tail there."""
    run, at = rendered.locate(tail)
    opening = tail - at + run.log.opens[run.log.wire_message_of(at)]
    for end in prompt.turn_ends():
        if end < opening:
            run, at = rendered.locate(end)
            position = _markable(run, at) if _in_body(rendered, run) else None
            return None if position is None else end - at + position
    return None


def stable_end(rendered: Rendered) -> int | None:
    """The last chunk before the conversation begins, whether or not it can carry a marker."""
    count = 0
    for run in rendered.runs:
        if run.section == "messages" and run.role is not SegmentRole.STABLE_PREFIX:
            break
        count += run.count
    return min(count, rendered.cacheable) - 1 if count else None


def _policy_runs(rendered: Rendered) -> tuple[tuple[int, Ttl], ...]:
    """The last chunk of each contiguous run of one policy. A run continues from tools into system
    blocks where the policies agree."""
    ends: list[tuple[int, Ttl | None]] = []
    start = 0
    for run in rendered.runs:
        if run.section == "messages":
            break
        if _in_body(rendered, run):
            for at, ttl in run.log.policies:
                if run.log.splices[at] >= 0 and start + at < rendered.cacheable:
                    if ends and ends[-1][1] == ttl:
                        ends.pop()
                    ends.append((start + at, ttl))
        start += run.count
    return tuple((at, ttl) for at, ttl in ends if ttl is not None)


def _in_body(rendered: Rendered, run: ChunkRun) -> bool:
    """False for a run that a stored response holds: hashed, but not sent."""
    order = rendered.body_order
    return order is None or any(rendered.runs[index] is run for index in order)


def _markable(run: ChunkRun, position: int) -> int | None:
    """The chunk at a position of the run, or the nearest before it that can carry a marker."""
    splices = run.log.splices
    while position >= 0:
        if splices[position] >= 0:
            return position
        position -= 1
    return None
