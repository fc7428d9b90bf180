"""A call that was sent, and the lifetime of its cache entries.

    expires = expiry(used_at(rules, at, began=began), ttl_seconds(rules, ttl))
    is_alive(expires, at)

An entry lives for its TTL, or for the implicit lifetime of its provider, from its last use: the
call that wrote it or, if reads refresh, the last one that read it. The rules state whether a use
counts from the start of the request, from the start of the response, or from its end. Simulator,
verdicts, planner, client and daemon use these functions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from anaphora.catalog import CacheRules
from anaphora.catalog.cache_rules import Moment
from anaphora.rendered import ChunkLog, Mark, Plan, Rendered
from anaphora.rendered.log import KEY
from anaphora.tokens import Bills, Counts
from anaphora.values import TTL_SECONDS, Message, Ttl, Usage

#: The shortest line of a reply by which it is found again in a later prompt; how much of a longer
#: one is kept, and how many.
_LONG_LINE = 40
_MOST_CHARACTERS = 120
_MOST_LINES = 24

#: The minimum of most providers. A higher one that no source confirms may be a stand-in.
_USUAL_MINIMUM = 1024

BeganBy: TypeAlias = Literal["resume", "compaction", "fork", "edit"]
"""The origin of a call's history, if it is not the call before it."""


#: What often voids the messages: a cause if nothing else shows one.
ProgramEvent: TypeAlias = Literal["skill_loaded", "mode_changed"]


class SentCall(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One call that was sent, with the known facts about it."""

    rendered: Rendered
    plan: Plan | None = None
    """None: the markers that the request itself carries."""
    at: float | None = None
    began: float | None = None
    ended: float | None = None
    """When its response ended, if that is recorded."""
    usage: Usage | None = None
    reply_lines: tuple[str, ...] = ()
    """Long lines of the reply, if it is known: a later prompt may have it as a summary."""
    reply: Message | None = None
    """The reply itself, in place of its lines, if the conversation holds it anyway."""
    began_by: BeganBy | None = None
    """The origin of this call's history, if a recording states it."""
    compacted: bool = False
    """The session replaced or dropped earlier messages since the call before."""
    route: str = ""
    """Host, account and workspace it went to. Compared, never shown."""
    host: str = ""
    """The host behind a router that answered, if the answer names it."""
    event: tuple[ProgramEvent, str] | None = None
    """What a program did since the call before, by its session file, and that in words."""
    pause_fell: bool = False
    """After a long pause its bill shows no more than a part of the conversation's first prompt."""
    marks_recorded: bool = True
    """False: the places of its markers are assumed, so that nothing can be proven from them."""
    read_older: bool = False
    """Its bill shows the entry of an older call, though only replies and tool results were added
    since the last one."""
    tool_fields: tuple[str, ...] = ()
    """For a call that shares nothing with an earlier one: the fields in which its tools differ from
    those of the last call, which has the same ones."""
    complete: bool = True
    """False: parts of the prompt are not recorded, so nothing can be proven from it."""

    @property
    def marks(self) -> Plan:
        if self.plan is not None:
            return self.plan
        return Plan(marks=self.rendered.marks, automatic=self.rendered.automatic)

    @property
    def lines(self) -> tuple[str, ...]:
        return self.reply_lines if self.reply is None else reply_lines(self.reply)

    @property
    def is_marked(self) -> bool:
        plan = self.marks
        return bool(plan.marks) or plan.automatic is not None


def host_changed(earlier: SentCall, later: SentCall) -> bool:
    """Whether a router sent two calls to different hosts, each with a cache of its own."""
    return bool(earlier.host and later.host) and earlier.host != later.host


def may_be_cached(sent: SentCall, rules: CacheRules) -> bool:
    """Whether a call may have left its prefix in the cache, by its bill or by the rules."""
    usage, least = sent.usage, rules.minimum_tokens
    if usage is None or not rules.ttls.value:
        return False
    if usage.read or usage.written_total:
        return True
    if rules.needs_marks and not sent.is_marked:
        return False
    minimum = least.value if least.verified else min(least.value, _USUAL_MINIMUM)
    return (usage.input or 0) >= minimum


def prefix_expiry(sent: SentCall, rules: CacheRules) -> float:
    """When the longest-lived part of a call's prefix expires by the rules; 0.0 if it is not
    cached."""
    plan = sent.marks
    ttls = [*(mark.ttl for mark in plan.marks), plan.automatic]
    seconds = max([ttl_seconds(rules, ttl) for ttl in ttls if ttl] or [ttl_seconds(rules)])
    return expiry(used_at(rules, sent.at or 0.0, began=sent.began), seconds)


def reply_lines(reply: Message) -> tuple[str, ...]:
    """Some of the long lines of a reply, taken evenly. Calls that are remembered keep no more."""
    text = reply.text
    if len(text) < _LONG_LINE:
        return ()
    lines = (line.strip() for line in text.splitlines())
    long = [*dict.fromkeys(line for line in lines if len(line) >= _LONG_LINE)]
    every = -(-len(long) // _MOST_LINES) or 1
    return tuple(line[:_MOST_CHARACTERS] for line in long[::every])


def cached_chunks(sent: SentCall) -> int:
    """How many leading chunks the provider may have cached: up to the last marker; everything
    reusable if the provider places breakpoints itself, or if nothing is marked."""
    plan, rendered = sent.marks, sent.rendered
    if plan.automatic is not None or not plan.marks:
        return rendered.cacheable
    last = 0
    for mark in plan.marks:
        last = max(last, mark.chunk)
    return min(rendered.cacheable, last + 1)


def writing_marks(
    rules: CacheRules, marks: tuple[Mark, ...], tokens: Callable[[int], int]
) -> tuple[Mark, ...]:
    """The markers that write: those of prefixes that are long enough and not too long, the latest
    if there are more than slots. `tokens` counts those up to the end of a block."""
    minimum, slots, first = rules.minimum_tokens.value, rules.slots.value, 0
    while first < len(marks) and tokens(marks[first].chunk) < minimum:
        first += 1
    if rules.maximum_tokens is not None:
        while first < len(marks) and tokens(marks[-1].chunk) > rules.longest_prefix:
            marks = marks[:-1]
    return marks[first:][-slots:] if slots else ()


def begins_with(later: Rendered, earlier: Rendered) -> bool:
    """Whether the later prompt shares in memory everything reusable of the earlier one. Fast, and
    False does not prove a difference: equal bytes may be stored twice."""
    return shared_chunks(later, earlier) >= earlier.cacheable


def shared_chunks(one: Rendered, two: Rendered) -> int:
    """How many leading chunks are the same bytes in memory, or have the same keys."""
    chunks = 0
    for mine, other in zip(one.runs, two.runs, strict=False):
        if mine is not other:
            shared = min(mine.count, other.count)
            if mine.log.base is not other.log.base or mine.lead != other.lead:
                shared = same_keys(mine.log, other.log, shared)
            chunks += shared
            if shared < mine.count or shared < other.count:
                break
            continue
        chunks += mine.count
    return chunks


def same_keys(one: ChunkLog, two: ChunkLog, count: int) -> int:
    """How many of the first blocks of two requests' logs have the same keys, as far as these are
    known."""
    if one.base is one or two.base is two or one.keys is None or two.keys is None:
        return 0
    (base, mine), (other_base, other) = one.keys, two.keys
    count = min(count, len(mine) // KEY, len(other) // KEY) if base == other_base else 0

    def differs(index: int) -> bool:
        key = slice(KEY * index, KEY * (index + 1))
        return mine[key] != other[key]

    if count and not differs(count - 1):
        return count
    return bisect_left(range(count), True, key=differs)


def updated_bills(
    sent: SentCall, rules: CacheRules, kept: int | None = None, counts: Counts | None = None
) -> Bills:
    """The bills for the next prompt, including this call's. `kept` is what it left in the cache by
    the simulator; `counts` are those of the prompt, if they exist."""
    usage = sent.usage
    total = None if usage is None else usage.input
    if usage is None or not total:
        return sent.rendered.bills
    counts = Counts(sent.rendered) if counts is None else counts
    if not rules.slots.value:
        return counts.billed(total)
    chunks = cached_chunks(sent)
    if kept is not None and counts.tokens(chunks) != kept:
        return counts.billed(total)
    return counts.billed(total, (chunks, total - (usage.uncached or 0)))


# ── Fingerprints ──────────────────────────────────────────────────────────────────────────────────


def is_alive(expires: float, at: float) -> bool:
    """Whether an entry can still be read at that moment."""
    return at <= expires


def expiry(used: float, seconds: float) -> float:
    """The last moment at which an entry with that last use is alive."""
    return used + seconds


def oldest_use(seconds: float, at: float) -> float:
    """The earliest last use of an entry that is alive at that moment."""
    return at - seconds


def ttl_seconds(rules: CacheRules, ttl: Ttl | None = None) -> float:
    """How long an entry lives after its last use: its TTL, or the implicit lifetime of prompts
    without markers, which is 0 if the provider caches none."""
    if ttl is None:
        ttls = rules.ttls.value
        if not ttls:
            return 0.0
        ttl = ttls[0] if rules.default_ttl is None else rules.default_ttl.value
    return float(TTL_SECONDS[ttl])


def last_ttl(plan: Plan, rules: CacheRules) -> Ttl | None:
    """The TTL of a call's longest entry, at its last marker; None if there is none that expires."""
    if plan.automatic is not None:
        return plan.automatic
    if plan.marks:
        return max(plan.marks, key=lambda mark: mark.chunk).ttl
    if rules.mechanism.value == "explicit" or rules.default_ttl is None:
        return None
    return rules.default_ttl.value


def used_at(
    rules: CacheRules, at: float, *, began: float | None = None, ended: float | None = None
) -> float:
    """The time from which the lifetime of a call's entries counts. `at` is when it was sent, or
    when it ended if nothing else is recorded."""
    assumed = rules.response_seconds
    if began is None and ended is not None and assumed is not None:
        return min(ended, at + assumed.value)
    return moment_of(rules.ttl_from.value, at, began=began, ended=ended)


def used_at_latest(
    rules: CacheRules, at: float, *, began: float | None = None, ended: float | None = None
) -> float:
    """`used_at`, if a response whose start is not recorded began as late as possible."""
    if began is None and ended is not None and rules.ttl_from.value != "request_start":
        return max(at, ended)
    return used_at(rules, at, began=began, ended=ended)


def moment_of(
    moment: Moment, at: float, *, began: float | None = None, ended: float | None = None
) -> float:
    """The time of a moment that rules count from. One that is not known is the one before it."""
    if moment == "request_start":
        return at
    if moment == "response_end" and ended is not None:
        return ended
    return at if began is None else began


class MadeCall(NamedTuple):
    """The times of a call that was made, and facts about its reply."""

    at: float
    readable: float
    """The time from which its writes can be read."""
    lives_from: float
    """The time from which the lifetime of its entries counts."""
    since: float
    """When the response began; the request, if that is not known."""
    reasoning: int | None
    """Tokens of hidden reasoning in the reply; None: not known."""


def made_call(
    rules: CacheRules,
    at: float,
    *,
    began: float | None = None,
    ended: float | None = None,
    reasoning: int | None = None,
    delay: float = 0.0,
) -> MadeCall:
    """A call at that time, with its times by the rules: see `Simulator.call`."""
    start = at if began is None else began
    readable_from: Moment = rules.readable_from.value
    if readable_from == "response_start" and began is None:
        readable_from = "response_end"  # it began before that
    lives_from = used_at(rules, at, began=began, ended=ended)
    readable = moment_of(readable_from, at, began=began, ended=ended) + delay
    return MadeCall(at, readable, lives_from, start, reasoning)
