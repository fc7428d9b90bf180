"""What a call adds to sums: by block of its prompt, by cause and error, and as its app may see it.

The sources of the pages and the reports add up the same figures.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from anaphora.audit.envelope import AuditEnvelope
from anaphora.audit.report import CallSums
from anaphora.client.observe.export import BoundedNames

from .values import BlockSums


class DetailedSums(msgspec.Struct, kw_only=True):
    """The sums of some calls; also by cause of loss, by error and by block."""

    total: CallSums = msgspec.field(default_factory=CallSums)
    causes: dict[str, CallSums] = {}
    """Calls that lost tokens, by the cause."""
    outcomes: dict[str, int] = {}
    """Calls that failed, by the class of the error."""
    blocks: dict[str, BlockSums] = {}
    """By label."""

    def add(self, call: AuditEnvelope, names: Mapping[str, BoundedNames]) -> None:
        """Adds a call that is later than those before. `names` bound the names of each kind:
        `cause`, `outcome` and `block`."""
        self.total.add(call)
        if call.lost:
            cause = names["cause"](call.cause or "unknown")
            self.causes.setdefault(cause, CallSums()).add(call)
        if call.outcome != "ok":
            outcome = names["outcome"](call.outcome)
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + call.repeats
        for label, block in sums_by_block(call).items():
            name = names["block"](label)
            if (known := self.blocks.get(name)) is None:
                self.blocks[name] = block
            else:
                known.add_sums(block)


class BlockShares(msgspec.Struct, frozen=True):
    """The parts that the blocks of a prompt have in a bill, in their order."""

    tokens: list[int]
    read: list[int]
    cost_nano_usd: list[int]
    """0 where it is unknown."""
    unpriced: int
    """1 where it is unknown."""
    unreported: list[int]
    """The tokens, where the provider did not report what was read."""


def block_shares(call: AuditEnvelope) -> BlockShares | None:
    """None for a call without a bill. Tokens of blocks are counted, those of the bill may be other
    ones: what was read is the same share of both."""
    usage, tokens = call.usage, [block.tokens for block in call.blocks]
    billed, total, cost = usage.input, sum(tokens), _prompt_nano_usd(call)
    if billed <= 0:
        return None
    left, read = (usage.read or 0) * total // billed, list[int]()
    for each in tokens:
        part = each if each < left else left
        read.append(part)
        left -= part
    costs = [cost * each // total for each in tokens] if cost and total else [0] * len(tokens)
    unreported = tokens if usage.read is None else [0] * len(tokens)
    return BlockShares(tokens, read, costs, int(cost is None), unreported)


def sums_by_block(call: AuditEnvelope) -> dict[str, BlockSums]:
    """What a call adds, by label in the order of the prompt; also the block whose change broke
    the prefix, which may no longer be in it. A call without a bill adds no tokens."""
    shares = block_shares(call)
    found: dict[str, BlockSums] = {}
    for place, block in enumerate(call.blocks):
        sums = found.get(block.label)
        if sums is None:
            sums = found[block.label] = BlockSums(kind=block.kind)
            if shares is not None:
                sums.calls, sums.unpriced = 1, shares.unpriced
        if block.marker:
            sums.ttl = block.ttl
        if shares is not None:
            sums.tokens += shares.tokens[place]
            sums.read += shares.read[place]
            sums.cost_nano_usd += shares.cost_nano_usd[place]
            sums.unreported += shares.unreported[place]
    if call.broke and call.changed:
        changed = found.setdefault(call.changed, BlockSums())
        changed.breaks += 1
        changed.lost += call.lost
        changed.lost_nano_usd += call.lost_nano_usd or 0
        changed.changes[call.change or "other"] = 1
    return found


def _prompt_nano_usd(call: AuditEnvelope) -> int | None:
    """The cost of a call without its output; None where it is unknown."""
    if call.cost_nano_usd is None or call.output_nano_usd is None:
        return None
    return max(call.cost_nano_usd - call.output_nano_usd, 0)


def masked(call: AuditEnvelope) -> AuditEnvelope:
    """A call as its app may see it, without what other apps have in a cache that they share.

    The verdict of a row is the app's own already. A read that was not reported is 0, whether
    something is hidden or not; the hash of the response would tell its usage."""
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
