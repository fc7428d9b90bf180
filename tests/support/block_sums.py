"""The sums of blocks over single calls, without tables: what those of the pages are compared with."""

from __future__ import annotations

from anaphora.audit.envelope import AuditEnvelope
from anaphora.dashboard.past_calls.sums import BlockSums, block_shares


def sums_by_block(call: AuditEnvelope) -> dict[str, BlockSums]:
    """What a call adds, by label in the order of the prompt; also the block whose change broke
    the prefix, which may no longer be in it. A call without a bill adds no tokens."""
    found: dict[str, BlockSums] = {}
    count = len(call.blocks)
    billed, unpriced, *amounts = block_shares(call)
    for place, block in enumerate(call.blocks):
        sums = found.get(block.label)
        if sums is None:
            sums = found[block.label] = BlockSums(label=block.label, kind=block.kind)
            sums.calls, sums.unpriced = billed, unpriced
        if block.marker:
            sums.ttl = block.ttl
        tokens, read, cost, unreported = amounts[place::count]
        sums.tokens += tokens
        sums.read += read
        sums.cost_nano_usd += cost
        sums.unreported += unreported
    if call.broke and call.changed:
        changed = found.setdefault(call.changed, BlockSums(label=call.changed))
        changed.breaks += 1
        changed.lost += call.lost
        changed.lost_nano_usd += call.lost_nano_usd or 0
        changed.changes[call.change or "other"] = 1
    return found
