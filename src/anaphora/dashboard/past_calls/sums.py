"""Sums of calls, and what a call adds to them: in total, by block of its prompt, and as its app may
see it. Times to the first byte are buckets of a histogram.

Amounts are nano-dollars.
"""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from anaphora.audit.envelope import AuditEnvelope
from anaphora.values import Ttl


class CallTotals(msgspec.Struct):
    """The sums of several calls. Amounts are nano-dollars; calls of unknown cost are counted
    separately, not as 0."""

    calls: int = 0
    failed: int = 0
    input: int = 0
    read: int = 0
    written: int = 0
    output: int = 0
    cost_nano_usd: int = 0
    """Includes charges for attempts without a bill."""
    unpriced: int = 0
    """Calls of unknown cost, except failed ones without usage."""
    saved_nano_usd: int = 0
    breaks: int = 0
    """Calls that were billed again for cached tokens, because the prompt had changed."""
    lost: int = 0
    """Tokens that could have been read and were billed again, for any reason."""
    lost_nano_usd: int = 0
    unbilled_nano_usd: int = 0
    """The part of the cost that no bill confirms: abandoned streams, and requests that were sent
    and never answered."""
    unreported: int = 0
    """Input tokens of bills that do not report reads: excluded from shares."""

    def add_sums(self, other: CallTotals) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def read_share(self) -> float | None:
        return self.read / self.reported if self.reported else None

    @property
    def reported(self) -> int:
        """Input tokens of bills that report reads."""
        return self.input - self.unreported


def figures_of(call: AuditEnvelope) -> tuple[int, ...]:
    """The figures of one call, in the order of `CallTotals`."""
    usage, cost, unbilled = call.usage, call.cost_nano_usd, call.unbilled_nano_usd
    read, output, failed = usage.read, usage.output, call.outcome != "ok"
    written = usage.written_total
    tokens = (usage.uncached or 0) + (read or 0) + written
    return (
        call.repeats,
        call.repeats if failed else 0,
        tokens,
        read or 0,
        written,
        output or 0,
        (cost or 0) + unbilled,
        int(cost is None and not unbilled and not (failed and output is None)),
        call.saved_nano_usd or 0,
        int(call.broke),
        call.lost,
        call.lost_nano_usd or 0,
        unbilled,
        tokens if read is None else 0,
    )


class BlockSums(msgspec.Struct, kw_only=True):
    """The blocks of one label over some calls: their tokens, and what they cost."""

    label: str = ""
    kind: str = ""
    """`tool`, `system` or `messages`."""
    calls: int = 0
    """Calls with a bill: a failed call has no tokens here."""
    tokens: int = 0
    read: int = 0
    """Of `tokens`, read from the cache: those within the length that each call read."""
    cost_nano_usd: int = 0
    """The cost of the prompts, by share of tokens; without calls of unknown cost."""
    unpriced: int = 0
    """Of `calls`, those of unknown cost."""
    breaks: int = 0
    """Calls in which a change of this block broke the prefix."""
    lost: int = 0
    """Tokens that were billed again because of them."""
    lost_nano_usd: int = 0
    changes: dict[str, int] = {}
    """Those breaks by the kind of change."""
    unreported: int = 0
    """Of `tokens`, those of bills that do not report reads: excluded from shares."""
    ttl: Ttl | None = None
    """TTL of the latest marker at its end."""

    def add_sums(self, other: BlockSums) -> None:
        """Adds the sums of later calls."""
        self.kind = other.kind or self.kind
        self.calls += other.calls
        self.tokens += other.tokens
        self.read += other.read
        self.cost_nano_usd += other.cost_nano_usd
        self.unpriced += other.unpriced
        self.unreported += other.unreported
        self.breaks += other.breaks
        self.lost += other.lost
        self.lost_nano_usd += other.lost_nano_usd
        for kind, count in other.changes.items():
            self.changes[kind] = self.changes.get(kind, 0) + count
        self.ttl = other.ttl or self.ttl

    @property
    def read_share(self) -> float | None:
        reported = self.tokens - self.unreported
        return self.read / reported if reported else None


def block_shares(call: AuditEnvelope) -> list[int]:
    """What the blocks of a call add: whether it was billed, and whether its cost is unknown; then
    for each block its tokens, tokens read, cost, and tokens whose reads were not reported. Nothing
    for a call without a bill. Tokens of blocks are estimates and may differ from the bill, so reads
    are applied as a share."""
    usage, tokens = call.usage, [block.tokens for block in call.blocks]
    billed, total, cost = usage.input, sum(tokens), _prompt_nano_usd(call)
    if billed <= 0:
        return [0] * (2 + 4 * len(tokens))
    left, read = (usage.read or 0) * total // billed, list[int]()
    for each in tokens:
        part = each if each < left else left
        read.append(part)
        left -= part
    none = [0] * len(tokens)
    costs = [cost * each // total for each in tokens] if cost and total else none
    unreported = tokens if usage.read is None else none
    return [1, int(cost is None), *tokens, *read, *costs, *unreported]


def _prompt_nano_usd(call: AuditEnvelope) -> int | None:
    """The cost of a call without its output; None if it is unknown."""
    if call.cost_nano_usd is None or call.output_nano_usd is None:
        return None
    return max(call.cost_nano_usd - call.output_nano_usd, 0)


def masked(call: AuditEnvelope) -> AuditEnvelope:
    """A call as its app may see it, without what it read of other apps' entries in a shared cache.

    The verdict of a row already covers the app alone. A read that was not reported becomes 0,
    whether something is hidden or not; the hash of the response is removed, as it would reveal the
    usage.
    """
    own = call.own
    if own is not None:
        unbilled = own.unbilled_nano_usd
        call = replace(
            call,
            usage=own.usage,
            cost_nano_usd=own.cost_nano_usd,
            saved_nano_usd=own.saved_nano_usd,
            unbilled_nano_usd=call.unbilled_nano_usd if unbilled is None else unbilled,
            own=None,
        )
    return replace(call, usage=replace(call.usage, read=call.usage.read or 0), raw_hash="")


#: Histogram buckets: the first ends at 1 ms, each further one is 5 % wider.
_FIRST_BUCKET, _WIDTH = 0.001, math.log(1.05)


def bucket_of(seconds: float) -> int:
    if seconds <= _FIRST_BUCKET:
        return 0
    return math.ceil(math.log(seconds / _FIRST_BUCKET) / _WIDTH)


def seconds_of(bucket: int) -> float:
    """The middle of a bucket."""
    return _FIRST_BUCKET * math.exp((bucket - 0.5) * _WIDTH)
