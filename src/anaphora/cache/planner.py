"""Where the cache breakpoints go.

The candidates, in hash order: the end of each run of tools and system blocks with one policy; the
end of the stable prefix when something dynamic follows it; the frozen boundary; the rolling tail.
The caller's own marks come first and always count. When there are more than the provider takes,
those that save least are left out, and a notice names each.
"""

from __future__ import annotations

import math
from itertools import pairwise

from anaphora.catalog import CacheRules
from anaphora.rendered import Mark, Plan, Rendered, Run
from anaphora.values import TTL_SECONDS, Notice, SegmentRole, Ttl, nearest_ttl


def plan(rendered: Rendered, rules: CacheRules) -> Plan:
    """Marks for one request: never more than the rules allow, TTLs never rising."""
    notices: list[Notice] = []
    asked = list(rendered.marks)
    taken = {mark.chunk for mark in asked if mark.splice is None}
    own = [
        Mark(chunk, ttl)
        for chunk, ttl in _candidates(rendered, notices).items()
        if chunk not in taken and chunk < rendered.cacheable and rendered.is_sent(chunk)
    ]
    slots = rules.slots.value
    if rendered.automatic is not None:
        # The provider marks the tail by itself: one slot less, and no need for ours.
        slots -= rules.automatic_slots.value
    chosen = _within_slots(rendered, asked, own, slots, notices)
    chosen.sort(key=_hash_order)
    if rules.longer_ttl_first.value:
        chosen = _falling_ttls(rendered, chosen, notices)
    return Plan(marks=tuple(chosen), automatic=rendered.automatic, notices=tuple(notices))


def _hash_order(mark: Mark) -> tuple[int, float]:
    """A block's own marker stands at its very end, behind those of blocks inside it."""
    return mark.chunk, math.inf if mark.splice is None else mark.splice


def _candidates(rendered: Rendered, notices: list[Notice]) -> dict[int, Ttl]:
    """The chunks the planner itself would mark, the most valuable first."""
    runs = _runs(rendered)
    chunks: dict[int, Ttl] = {}
    if rendered.messages_cacheable:
        for chunk in _history(rendered, runs):
            if chunk is not None:
                chunks.setdefault(chunk, rendered.message_ttl)
    elif runs and runs[-1][0].section == "messages":
        notices.append(
            Notice(
                "state_in_turns",
                "the first message changes at every call, so nothing behind it can be cached and"
                " no message is marked; pass the state as the volatile tail instead",
                "messages",
            )
        )
    for chunk, asked in _policy_runs(runs):
        ttl = asked if asked in rendered.markers else nearest_ttl(asked, rendered.markers)
        if ttl is None:
            continue
        if chunk not in chunks and ttl != asked:
            why = f"no marker lives {asked} here; it gets {ttl}"
            notices.append(Notice("ttl_changed", why, rendered.chunk(chunk).path))
        chunks.setdefault(chunk, ttl)
    return chunks


def _history(rendered: Rendered, runs: list[tuple[Run, int]]) -> list[int | None]:
    """The tail, then the frozen boundary or the turn before, then the stable prefix."""
    messages = [(run, first) for run, first in runs if run.section == "messages"]
    reusable = [placed for placed in messages if placed[1] < rendered.cacheable]
    if not reusable:
        return []
    run, first = reusable[-1]
    last = min(run.count, rendered.cacheable - first)
    if rendered.frozen is not None:
        deep = _markable_before(rendered, rendered.frozen)
    else:
        deep = _last_user_turn(run, first, last)
    chunks = [_markable_at(run, first, last - 1), deep]
    for (stable, begin), (following, _) in pairwise(messages):
        if (
            stable.role is SegmentRole.STABLE_PREFIX
            and following.role is SegmentRole.DYNAMIC_CONTEXT
        ):
            chunks.append(_markable_at(stable, begin, stable.count - 1))
    return chunks


def _last_user_turn(run: Run, first: int, last: int) -> int | None:
    """The end of the last user turn before the last message: where the call before this one had
    its tail."""
    log = run.log
    wire_message = log.wire_message_of(last - 1) - 1
    while wire_message >= 0:
        if log.roles[wire_message] == "user":
            return _markable_at(run, first, log.opens[wire_message + 1] - 1)
        wire_message -= 1
    return None


def _policy_runs(runs: list[tuple[Run, int]]) -> list[tuple[int, Ttl]]:
    """The last chunk of each contiguous run of one policy; a run crosses from tools into system
    where the policies agree."""
    ends: list[tuple[int, Ttl | None]] = []
    for run, first in runs:
        for at, ttl in run.log.policies:
            if run.log.splices[at] < 0:
                continue
            if ends and ends[-1][1] == ttl:
                ends.pop()
            ends.append((first + at, ttl))
    return [(at, ttl) for at, ttl in ends if ttl is not None]


def _within_slots(
    rendered: Rendered, asked: list[Mark], own: list[Mark], slots: int, notices: list[Notice]
) -> list[Mark]:
    """The caller's marks, then ours while there is room."""
    notices += [_left_out(rendered, mark, slots, "the caller's own") for mark in asked[slots:]]
    chosen = asked[:slots]
    room = slots - len(chosen)
    while len(own) > room:
        loser = _least_valuable(rendered, own)
        own.remove(loser)
        notices.append(_left_out(rendered, loser, slots, "the planner's"))
    return chosen + own


def _least_valuable(rendered: Rendered, marks: list[Mark]) -> Mark:
    """The mark without which the next shorter prefix loses the fewest bytes. The tail always
    stays: it is what the next turn reads."""
    in_order = sorted(marks, key=lambda mark: mark.chunk)
    sizes = [rendered.offset(mark.chunk + 1) for mark in in_order]
    gains = [size - before for size, before in zip(sizes, [0, *sizes], strict=False)]
    candidates = list(zip(gains, in_order, strict=True))[: max(1, len(in_order) - 1)]
    return min(candidates, key=lambda gain_and_mark: gain_and_mark[0])[1]


def _falling_ttls(rendered: Rendered, marks: list[Mark], notices: list[Notice]) -> list[Mark]:
    """A longer TTL behind a shorter one is refused by the provider: it is shortened."""
    legal: list[Mark] = []
    shortest: Ttl | None = None
    for mark in marks:
        if shortest is not None and TTL_SECONDS[mark.ttl] > TTL_SECONDS[shortest]:
            notices.append(
                Notice(
                    "ttl_shortened",
                    f"{mark.ttl} may not follow {shortest}, so this marker gets {shortest}",
                    rendered.chunk(mark.chunk).path,
                )
            )
            mark = Mark(mark.chunk, shortest, mark.splice)
        shortest = mark.ttl
        legal.append(mark)
    return legal


def _left_out(rendered: Rendered, mark: Mark, slots: int, whose: str) -> Notice:
    chunk = rendered.chunk(mark.chunk)
    return Notice(
        "marker_left_out",
        f"only {slots} markers fit; {whose} on {chunk.label} is left out",
        chunk.path,
    )


def _runs(rendered: Rendered) -> list[tuple[Run, int]]:
    """Each run with the index of its first chunk."""
    placed, first = [], 0
    for run in rendered.runs:
        placed.append((run, first))
        first += run.count
    return placed


def _markable_at(run: Run, first: int, position: int) -> int | None:
    """The chunk at a position of the run, or the nearest before it that may carry a marker."""
    while position >= 0:
        if run.log.splices[position] >= 0:
            return first + position
        position -= 1
    return None


def _markable_before(rendered: Rendered, chunk: int) -> int | None:
    run, position = rendered.locate(chunk)
    return _markable_at(run, chunk - position, position)
