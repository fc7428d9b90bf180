"""A call that was sent, how long what it cached lives, and how far two prompts begin alike.

    expires = expiry(used_at(rules, at, began=began), ttl_seconds(rules, ttl))
    is_alive(expires, at)

An entry lives for its TTL, or for the implicit lifetime of its provider, from its last use: the
call that wrote it or, where reads refresh, the last one that read it. The rules say whether a use
counts from the start of the request, from the start of the response, or from its end. Simulator,
verdicts, planner, client and daemon ask here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from anaphora.catalog import CacheRules, Moment
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import Bills, Counts
from anaphora.values import TTL_SECONDS, Message, Ttl, Usage

#: The shortest line of a reply by which it is found again in a later prompt; how much of a longer
#: one is kept, and how many.
_LONG_LINE = 40
_MOST_CHARACTERS = 120
_MOST_LINES = 24

BeganBy: TypeAlias = Literal["resume", "compaction", "fork", "edit"]
"""What begins a call's history, where it is not the call before it."""


class SentCall(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One call that was sent, as far as it is known."""

    rendered: Rendered
    plan: Plan | None = None
    """None: the markers that the request itself carries."""
    at: float | None = None
    began: float | None = None
    ended: float | None = None
    """When its response ended, where that is recorded."""
    usage: Usage | None = None
    reply_lines: tuple[str, ...] = ()
    """Long lines of the reply, where it is known: a later prompt may have it as a summary."""
    began_by: BeganBy | None = None
    """What began this call's history, where a recording says so."""
    route: str = ""
    """Host, account and workspace it went to. Compared, never shown."""
    marks_recorded: bool = True
    """False: where its markers were is assumed, so nothing can be proven from their places."""
    complete: bool = True
    """False: parts of the prompt are not recorded, so nothing can be proven from it."""

    @property
    def marks(self) -> Plan:
        if self.plan is not None:
            return self.plan
        return Plan(marks=self.rendered.marks, automatic=self.rendered.automatic)

    @property
    def is_marked(self) -> bool:
        plan = self.marks
        return bool(plan.marks) or plan.automatic is not None


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
    reusable where the provider places breakpoints itself, or where nothing is marked."""
    plan, rendered = sent.marks, sent.rendered
    if plan.automatic is not None or not plan.marks:
        return rendered.cacheable
    return min(rendered.cacheable, max([mark.chunk for mark in plan.marks]) + 1)


def begins_with(later: Rendered, earlier: Rendered) -> bool:
    """Whether the later prompt shares in memory everything reusable of the earlier one. Fast, and
    False does not prove a difference: equal bytes may be stored twice."""
    return shared_chunks(later, earlier) >= earlier.cacheable


def shared_chunks(one: Rendered, two: Rendered) -> int:
    """How many leading chunks are the same bytes in memory."""
    chunks = 0
    for mine, other in zip(one.runs, two.runs, strict=False):
        if mine is not other:
            if mine.log is not other.log or mine.lead != other.lead:
                break
            if mine.count != other.count:
                chunks += min(mine.count, other.count)
                break
        chunks += mine.count
    return chunks


def updated_bills(
    sent: SentCall, rules: CacheRules, kept: int | None = None, counts: Counts | None = None
) -> Bills:
    """The bills that the next prompt carries, this call's included. `kept` is what the simulator
    says it left in the cache; `counts` are those of the prompt, where they exist."""
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


#: Bytes that are compared first.
_STEP = 256


def tokens_behind(
    counts: Counts, chunks: int, offset: int, rules: CacheRules | None, *, marked: bool
) -> int:
    """What of the first `chunks` chunks is lost when the prompt changes at a byte. A cache that
    works on tokens had whole granules, and keeps those before the byte."""
    cached, kept = counts.tokens(chunks), counts.before(offset)
    if rules is not None and rules.caches_tokens and not (marked and rules.slots.value):
        cached, kept = rules.whole_granules(cached), rules.whole_granules(kept)
    return max(0, cached - kept)


def first_difference(earlier: Rendered, later: Rendered, chunks: int) -> int | None:
    """The first byte in which the later prompt differs from the first `chunks` chunks of the
    earlier one; None when it begins with all of them."""
    if shared_chunks(later, earlier) >= chunks:
        return None
    offset = common_bytes(later.data(), earlier.data(chunks))
    return None if offset >= earlier.offset(chunks) else offset


def common_bytes(one: bytes, two: bytes) -> int:
    """The length of the common beginning, by galloping and bisection: `==` compares at memory
    speed, and little is read behind the first difference."""
    low, high, end = 0, min(_STEP, len(one), len(two)), min(len(one), len(two))
    while one[low:high] == two[low:high]:
        if high == end:
            return end
        low, high = high, min(end, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == two[low:middle]:
            low = middle
        else:
            high = middle
    return low


def deepest_known(count: int, is_known: Callable[[int], bool]) -> int:
    """The last of `count` positions that is known, by galloping back from the end; -1 where none
    is. All positions before a known one are known."""
    high, step = count, 1
    low = high - step
    while low >= 0 and not is_known(low):
        high, step = low, step * 2
        low = high - step
    if low < 0:
        if high == 0 or not is_known(0):
            return -1
        low = 0
    return low + bisect_left(range(low + 1, high), True, key=lambda index: not is_known(index))


def equal_around(one: bytes, two: bytes) -> int:
    """How many bytes are equal before the first difference and after the last one."""
    before = common_bytes(one, two)
    return before + common_bytes(one[before:][::-1], two[before:][::-1])


# ── Fingerprints ──────────────────────────────────────────────────────────────────────────────────

_EXCERPT = 32


class PrefixDifference(msgspec.Struct, frozen=True):
    """The first byte in which two prompts differ, with the text around it."""

    offset: int
    """The byte, counted from the start of the prompt."""
    label: str
    """The block it is in: a tool, a system block's label, a message of a segment."""
    path: str
    """The block's JSON path in the request body."""
    before: str
    """The earlier prompt's text from there on; shorter where that prompt ends."""
    after: str

    def __str__(self) -> str:
        where = f"byte {self.offset} in {self.label} ({self.path})"
        return f"{where}: {self.before!r} became {self.after!r}"


class WireFingerprint:
    """BLAKE3 over the cacheable bytes of one rendered call.

    Taking one hashes only what was added since the last. Comparing two of one conversation reads no
    bytes. `restore` rebuilds one from an audit row: it can be compared, but not explained.
    """

    __slots__ = ("_rendered", "chunks", "digest", "size")

    def __init__(self, digest: bytes, size: int, chunks: int, rendered: Rendered | None) -> None:
        """`size` and `chunks` are how many bytes and chunks it certifies."""
        self.digest = digest
        self.size = size
        self.chunks = chunks
        self._rendered = rendered

    @classmethod
    def restore(cls, digest: str, size: int, chunks: int) -> WireFingerprint:
        return cls(bytes.fromhex(digest), size, chunks, None)

    @property
    def hex(self) -> str:
        return self.digest.hex()

    def extends(self, earlier: WireFingerprint) -> bool:
        """Whether this prompt begins with everything the earlier one certified."""
        if self.size < earlier.size or self.chunks < earlier.chunks:
            return False
        mine, other = self._rendered, earlier._rendered
        if mine is None:
            return self.digest == earlier.digest
        if other is not None and shared_chunks(mine, other) >= earlier.chunks:
            return True
        if mine.offset(earlier.chunks) != earlier.size:
            return False
        return mine.digest(earlier.chunks) == earlier.digest

    def common_prefix(self, earlier: WireFingerprint) -> int:
        """How many leading bytes the two prompts share."""
        mine, other = self._both(earlier)
        shared = min(shared_chunks(mine, other), self.chunks, earlier.chunks)
        if shared in (self.chunks, earlier.chunks):
            return mine.offset(shared)
        return common_bytes(mine.data(self.chunks), other.data(earlier.chunks))

    def first_difference(self, earlier: WireFingerprint) -> PrefixDifference | None:
        """What broke the prefix; None when this prompt extends the earlier one."""
        mine, other = self._both(earlier)
        offset = self.common_prefix(earlier)
        if offset == earlier.size:
            return None
        changed = mine if offset < self.size else other
        run, position = changed.locate(changed.at_offset(offset))
        return PrefixDifference(
            offset=offset,
            label=run.label(position),
            path=run.path(position),
            before=_excerpt(other, offset, earlier.size),
            after=_excerpt(mine, offset, self.size),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WireFingerprint):
            return NotImplemented
        return (self.digest, self.size) == (other.digest, other.size)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<WireFingerprint {self.hex[:16]} of {self.size} bytes>"

    def _both(self, earlier: WireFingerprint) -> tuple[Rendered, Rendered]:
        if self._rendered is None or earlier._rendered is None:
            raise ValueError("a restored fingerprint has no bytes to compare; render the prompt")
        return self._rendered, earlier._rendered


def fingerprint(rendered: Rendered) -> WireFingerprint:
    chunks = rendered.cacheable
    return WireFingerprint(rendered.digest(chunks), rendered.offset(chunks), chunks, rendered)


def _excerpt(rendered: Rendered, offset: int, size: int) -> str:
    """A few bytes around the difference, in the block that holds it."""
    if offset >= size:
        return ""
    chunk = rendered.at_offset(offset)
    begin = offset - rendered.offset(chunk)
    data = rendered.chunk(chunk).data
    return data[max(0, begin - _EXCERPT // 2) : begin + _EXCERPT].decode(errors="replace")


def is_alive(expires: float, at: float) -> bool:
    """Whether an entry can still be read at that moment."""
    return at <= expires


def expiry(used: float, seconds: float) -> float:
    """The last moment at which an entry is alive that was last used then."""
    return used + seconds


def oldest_use(seconds: float, at: float) -> float:
    """The earliest last use of an entry that is alive at that moment."""
    return at - seconds


def ttl_seconds(rules: CacheRules, ttl: Ttl | None = None) -> float:
    """How long an entry lives after its last use: its TTL, or the implicit lifetime of prompts
    without markers, which is 0 where the provider caches none."""
    if ttl is None:
        ttls = rules.ttls.value
        if not ttls:
            return 0.0
        ttl = ttls[0] if rules.default_ttl is None else rules.default_ttl.value
    return float(TTL_SECONDS[ttl])


def last_ttl(plan: Plan, rules: CacheRules) -> Ttl | None:
    """The TTL of the entry that holds all a call has cached, that of its last marker; None where
    it leaves none that expires."""
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
    """From when the lifetime of what a call read and wrote counts. `at` is when it was sent; when
    it ended, where nothing else is recorded."""
    assumed = rules.response_seconds
    if began is None and ended is not None and assumed is not None:
        return min(ended, at + assumed.value)
    return moments(at, began=began, ended=ended)[rules.ttl_from.value]


def used_at_latest(
    rules: CacheRules, at: float, *, began: float | None = None, ended: float | None = None
) -> float:
    """The same if the response began as late as it can have, where that is not recorded."""
    if began is None and ended is not None and rules.ttl_from.value != "request_start":
        return max(at, ended)
    return used_at(rules, at, began=began, ended=ended)


def moments(
    at: float, *, began: float | None = None, ended: float | None = None
) -> dict[Moment, float]:
    """The moments of a call that rules count from. One that is not known is the one before it."""
    start = at if began is None else began
    return {
        "request_start": at,
        "response_start": start,
        "response_end": start if ended is None else ended,
    }
