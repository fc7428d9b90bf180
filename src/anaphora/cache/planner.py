"""Where the cache breakpoints go.

The candidates, in hash order: the end of each run of tools and system blocks with one policy; the
end of the stable prefix when something dynamic follows it; the frozen boundary; the rolling tail.
The caller's own marks come first and always count. When there are more than the provider takes,
those that save least are left out, and a notice names each.
"""

from __future__ import annotations

from itertools import pairwise

from anaphora.catalog import CacheRules
from anaphora.rendered import Mark, Plan, Rendered, Run
from anaphora.values import TTL_SECONDS, Notice, SegmentRole, Ttl


def plan(rendered: Rendered, rules: CacheRules) -> Plan:
    """Marks for one request: never more than the rules allow, TTLs never rising."""
    notices: list[Notice] = []
    asked = list(rendered.marks)
    taken = {mark.chunk for mark in asked if mark.splice is None}
    own = [mark for mark in _candidates(rendered, notices) if mark.chunk not in taken]
    chosen = _within_slots(rendered, asked, own, rules.slots.value, notices)
    chosen.sort(key=lambda m: (m.chunk, m.splice is None, m.splice))
    if rules.longer_ttl_first.value:
        chosen = _falling_ttls(rendered, chosen, notices)
    return Plan(marks=tuple(chosen), notices=tuple(notices))


def _candidates(rendered: Rendered, notices: list[Notice]) -> list[Mark]:
    """The planner's own marks, the most valuable first."""
    runs = _runs(rendered)
    marks: dict[int, Mark] = {}

    def propose(chunk: int | None, ttl: Ttl) -> None:
        if chunk is not None and chunk < rendered.cacheable:
            marks.setdefault(chunk, Mark(chunk, ttl))

    ttl = rendered.message_ttl
    if rendered.messages_cacheable:
        for chunk in _history(rendered, runs):
            propose(chunk, ttl)
    elif runs and runs[-1][0].section == "messages":
        notices.append(
            Notice(
                "state_in_turns",
                "the first message changes at every call, so nothing behind it can be cached and"
                " no message is marked; pass the state as the volatile tail instead",
                "messages",
            )
        )
    for chunk, policy_ttl in _policy_runs(runs):
        propose(chunk, policy_ttl)
    return list(marks.values())


def _history(rendered: Rendered, runs: list[tuple[Run, int]]) -> list[int | None]:
    """The tail, then the frozen boundary or the turn before, then the stable prefix."""
    messages = [(run, first) for run, first in runs if run.section == "messages"]
    reusable = [(run, first) for run, first in messages if first < rendered.cacheable]
    if not reusable:
        return []
    run, first = reusable[-1]
    last = min(run.count, rendered.cacheable - first)
    tail = _markable_at(run, first, last - 1)
    chunks = [tail]
    if rendered.frozen is not None:
        chunks.append(_markable_before(rendered, rendered.frozen))
    else:
        chunks.append(_last_user_turn(run, first, last))
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
