"""The chunks of a prompt that may be worth a marker, and the choice among them: which markers to
keep when there are more than slots, and TTLs in an order that is accepted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from anaphora.cache.simulator import RenderedPrompt
from anaphora.cache.simulator.prompt import LeadingRuns
from anaphora.catalog import Figure
from anaphora.rendered import ChunkRun, Mark, Plan, Rendered
from anaphora.values import TTL_SECONDS, Notice, SegmentRole, Ttl
from anaphora.wording import counted

# Bound once: looking up an enum member is slow.
_STABLE = SegmentRole.STABLE_PREFIX
#: The probability that a later call reads up to each kind of candidate, and no further: for the
#: choice if there are more candidates than slots.
_READ_AGAIN = {"written": 1.0, "tail": 0.9, "shared": 0.1, "policy": 0.1, "frozen": 0.05}
#: More policy runs than this are not weighed against each other.
_MOST_POLICIES = 32


class Candidates(msgspec.Struct, frozen=True):
    """Chunk indexes; None if the prompt has no such chunk. All of them can carry a marker, are
    part of the request body, and end a prefix that the next call can reuse."""

    policies: tuple[tuple[int, Ttl], ...] = ()
    """The end of each run of tools and system blocks with one `CachePolicy`, and its TTL."""
    prefix: int | None = None
    first: int | None = None
    """The end of the section that is hashed first; it stays valid if a later section changes."""
    shared: int | None = None
    """The end of the beginning that conversations share: of the stable prefix; else the last block
    with a policy; else, if no block has one, of all tools and system blocks."""
    frozen: int | None = None
    """The end of the region that stays unchanged until the next compaction."""
    tail: int | None = None
    """The end of the history that the next turn reuses."""


class MarkerChoice(msgspec.Struct, frozen=True):
    """The markers that one call should have, before slots are counted."""

    wanted: dict[int, Ttl]
    fillers: dict[int, Ttl]
    """For slots that stay free: dropping them costs nothing by the rules."""
    history: Ttl | None
    """The TTL that pays inside the history; None if none does."""
    notices: list[Notice]
    changing: bool = False
    """Markers are left out where the prompt changes from call to call."""


def find_candidates(
    rendered: Rendered, lead: LeadingRuns, *, tail_found: bool = True
) -> Candidates:
    """The candidates of a prompt, in time proportional to its runs. `tail_found`: an entry that is
    written at a system message at the end is found by the next request."""
    if not rendered.markers:
        return Candidates()
    tail = prefix = None
    cacheable, all_sent = rendered.cacheable, rendered.body_order is None
    # Those in tools and system blocks are the same at every turn.
    same = all_sent and lead.count <= cacheable
    known = lead.candidates if same else None
    section, first, policies = known or (None, None, ())
    start = 0 if known is None else lead.count
    for run in rendered.runs if known is None else rendered.runs[len(lead.runs) :]:
        count = run.count
        last = min(count, cacheable - start) - 1
        position = None
        if last >= 0 and (all_sent or in_body(rendered, run)):
            position = last if run.log.splices[last] >= 0 else markable(run, last)
        if position is not None:
            if run.section != "messages":
                section = start + position
                first = section if first is None else first
                if run.log.policies and not policies:
                    policies = policy_runs(rendered)
            elif run.role is _STABLE:
                prefix = start + position
                first = prefix if first is None else first
            elif rendered.messages_cacheable:
                last_run = run is rendered.runs[-1]
                if last_run and not tail_found and run.log.role_of(count - 1) == "system":
                    position = before_trailing_system(run, position)
                tail = tail if position is None else start + position
        start += count
        if same and start == lead.count:
            lead.candidates = section, first, policies
    shared = prefix
    if shared is None:
        shared = policies[-1][0] if policies else section
    frozen = None if rendered.frozen is None else frozen_end(rendered, rendered.frozen)
    return Candidates(policies, prefix, first, shared, frozen, tail)


def frozen_end(rendered: Rendered, chunk: int) -> int | None:
    """The last chunk of the frozen region that can carry a marker."""
    if chunk >= rendered.cacheable or not rendered.messages_cacheable:
        return None
    return markable_chunk(rendered, chunk)


def previous_turn(rendered: Rendered, prompt: RenderedPrompt, tail: int) -> int | None:
    """The end of the last user turn before the message that holds the tail: with the tail it forms
    the rolling pair. The call before had its own tail there."""
    run, index = rendered.locate(tail)
    opening = tail - index + run.log.opens[run.log.wire_message_of(index)]
    for end in prompt.turn_ends(opening):
        if end < opening:
            usual = rendered.body_order is None and prompt.can_mark(end)
            return end if usual else markable_chunk(rendered, end)
    return None


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
    blocks if the policies agree."""
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


def before_trailing_system(run: ChunkRun, position: int) -> int | None:
    """The position, or the nearest that can carry a marker before system messages at the end."""
    log, before = run.log, position
    message = log.wire_message_of(before)
    if message < log.wire_message_of(run.count - 1):
        return position
    while message >= 0 and log.roles[message] == "system":
        before, message = log.opens[message] - 1, message - 1
    return position if before == position else markable(run, before)


def markable_chunk(rendered: Rendered, chunk: int) -> int | None:
    run, index = rendered.locate(chunk)
    position = markable(run, index) if in_body(rendered, run) else None
    return None if position is None else chunk - index + position


def within_maximum(candidates: Candidates, prompt: RenderedPrompt, longest: int) -> Candidates:
    """The candidates beyond the longest prefix that is cached, moved to its end."""

    def moved(chunk: int | None) -> int | None:
        if chunk is None or prompt.tokens(chunk) <= longest:
            return chunk
        last = bisect_right(range(chunk), longest, key=prompt.tokens) - 1
        return markable_chunk(prompt.rendered, last) if last >= 0 else None

    policies = {moved(chunk): ttl for chunk, ttl in candidates.policies}
    return Candidates(
        tuple((chunk, ttl) for chunk, ttl in policies.items() if chunk is not None),
        moved(candidates.prefix),
        moved(candidates.first),
        moved(candidates.shared),
        moved(candidates.frozen),
        moved(candidates.tail),
    )


def above_maximum(maximum: Figure[int]) -> Notice:
    sure = "" if maximum.verified else " (not verified)"
    reason = f"at most {maximum.value:,} tokens of a prompt are cached here{sure}"
    return Notice("above_maximum", f"{reason}: no marker is after them")


def most_valuable(
    candidates: Candidates,
    prompt: RenderedPrompt,
    wanted: Mapping[int, Ttl],
    written: int | None,
    room: int,
    minimum: int,
) -> tuple[int, ...]:
    """The markers that save most when not all fit. `written` is the chunk of the last write."""
    policies = [chunk for chunk, _ in candidates.policies if chunk in wanted]
    weights = dict.fromkeys(policies[-_MOST_POLICIES:], _READ_AGAIN["policy"])
    for chunk, kind in (
        (candidates.shared, "shared"),
        (candidates.frozen, "frozen"),
        (candidates.tail, "tail"),
        (written, "written"),
    ):
        if chunk is not None and chunk in wanted:
            weights[chunk] = max(weights.get(chunk, 0.0), _READ_AGAIN[kind])
    tokens: dict[int, float] = {}
    for chunk in weights:
        count = prompt.tokens(chunk)
        # A prefix below the minimum is never read, so it is dropped first.
        tokens[chunk] = count if count >= minimum else count / minimum
    return best_marks(weights, tokens, room)


def best_marks(
    weights: Mapping[int, float], tokens: Mapping[int, float] | Sequence[float], slots: int
) -> tuple[int, ...]:
    """At most `slots` marks with the highest expected number of tokens read. `weights` is how often
    a later prompt agrees with this one up to a chunk and no further. Only these chunks are worth a
    marker: one in between serves the same prompts as the next before it, with fewer tokens.

    Dynamic programming over the last mark; the time is quadratic in the number of chunks.
    """
    limits = sorted(weights)
    if len(limits) <= slots:
        return tuple(limits)
    if slots <= 0:
        return ()
    # reaching[i]: the weight of all prompts that agree at least up to limit i
    reaching = [0.0] * (len(limits) + 1)
    for index in range(len(limits) - 1, -1, -1):
        reaching[index] = reaching[index + 1] + weights[limits[index]]
    # A mark at i adds its tokens beyond the mark before, for every prompt that reaches it.
    best: list[tuple[float, tuple[int, ...]]] = [
        (tokens[limit] * reaching[index], (limit,)) for index, limit in enumerate(limits)
    ]
    overall = max(best)
    for _ in range(slots - 1):
        longer = list(best)
        for index, limit in enumerate(limits):
            for before in range(index):
                value, marks = best[before]
                value += (tokens[limit] - tokens[limits[before]]) * reaching[index]
                if value > longer[index][0]:
                    longer[index] = value, (*marks, limit)
        best = longer
        overall = max(overall, *best)
    return overall[1]


def unwritten_plan(rendered: Rendered) -> Plan:
    """A plan that writes nothing, also if the provider would by default."""
    if rendered.automatic is None:
        return Plan()
    if rendered.only_marks is None:
        return Plan(automatic=rendered.automatic)
    return Plan(only_marks=True)


def hash_order(mark: Mark) -> tuple[int, float]:
    """A chunk's own marker is at its very end, after those of blocks inside it."""
    return mark.chunk, float("inf") if mark.splice is None else mark.splice


def falling_ttls(
    rendered: Rendered, marks: list[Mark], requested: set[int], notices: list[Notice]
) -> list[Mark]:
    """Providers reject a longer TTL after a shorter one. The earlier marker gets the longer TTL:
    everything before a one-hour marker is written for one hour anyway, and no marker lives shorter
    than requested. Adds a notice for each requested TTL that changes."""
    legal = list(marks)
    for index in range(len(marks) - 2, -1, -1):
        mark, longest = marks[index], legal[index + 1].ttl
        if TTL_SECONDS[mark.ttl] < TTL_SECONDS[longest]:
            legal[index] = Mark(mark.chunk, longest, mark.splice)
    for old, new in zip(marks, legal, strict=True):
        if old.ttl != new.ttl and old.chunk in requested:
            reason = f"{new.ttl} may not follow {old.ttl}, so this marker gets {new.ttl} as well"
            notices.append(Notice("ttl_lengthened", reason, rendered.chunk(new.chunk).path))
    return legal


def ttl_changed(rendered: Rendered, chunk: int, requested: Ttl, ttl: Ttl) -> Notice:
    reason = f"a TTL of {requested} is not available here; this entry lives {ttl}"
    return Notice("ttl_changed", reason, rendered.chunk(chunk).path)


def changing_history(rendered: Rendered, ttl: Ttl | None) -> list[Notice]:
    """For a history that shall be marked, and is not. `ttl` is that of its marker."""
    if rendered.message_ttl is None or ttl is not None:
        return []
    reason = "the prompt changes from call to call: the history is not marked until it stays"
    return [Notice("marker_left_out", reason, "cache.message_ttl")]


def left_out(rendered: Rendered, chunks: Iterable[int], slots: int, owner: str) -> list[Notice]:
    return [
        Notice(
            "marker_left_out",
            f"only {counted(slots, 'marker')} can be set; {owner} on {chunk.label} is left out",
            chunk.path,
        )
        for chunk in map(rendered.chunk, chunks)
    ]


def uncacheable_messages(rendered: Rendered) -> list[Notice]:
    """For the older form of a context, whose first message carries the state (SPEC B4)."""
    if not rendered.runs or rendered.runs[-1].section != "messages":
        return []
    reason = (
        "the first message changes at every call, so nothing after it can be cached and no"
        " message is marked; pass the state as the volatile tail instead"
    )
    return [Notice("state_in_turns", reason, "messages")]


def reuse_requested(rendered: Rendered) -> bool:
    """Whether the prompt itself requests caching: by a block's policy, a mark, a frozen boundary, a
    TTL for the history, or an automatic breakpoint."""
    if rendered.marks or rendered.frozen is not None or rendered.message_ttl is not None:
        return True
    if rendered.automatic is not None and rendered.only_marks is None:
        return True  # otherwise it is the provider's default, and the planner decides
    for run in rendered.runs:  # noqa: SIM110
        if run.log.policies:
            return True
    return False


def only_marks_of(rendered: Rendered, choice: MarkerChoice) -> bool:
    """Whether to turn the provider's automatic breakpoint off: if the history is not worth writing,
    or ends with a volatile chunk, it would write an entry that no call reads."""
    if rendered.only_marks is None:
        return False
    if choice.history is None:
        return True
    return bool(choice.wanted) and rendered.cacheable < len(rendered)
