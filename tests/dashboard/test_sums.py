"""What a call adds to the sums of the blocks of its prompt."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from support.block_sums import sums_by_block

from anaphora.audit import AuditEnvelope
from anaphora.audit.envelope import AuditBlock, AuditUsage
from anaphora.dashboard.past_calls.sums import BlockSums, CallTotals, figures_of

BLOCKS = (
    AuditBlock(label="identity", kind="system", tokens=300, marker=True, ttl="5m"),
    AuditBlock(label="conversation", kind="messages", tokens=100),
)


def test_blocks_of_a_call_without_a_bill_have_no_tokens() -> None:
    """They would count as input that was not read."""
    failed = AuditEnvelope(at=0.0, model="m", outcome="Overloaded", blocks=BLOCKS)
    for figures in sums_by_block(failed).values():
        assert (figures.calls, figures.tokens, figures.read, figures.unpriced) == (0, 0, 0, 0)


def test_blocks_have_their_share_of_the_bill() -> None:
    usage = AuditUsage(uncached=200, read=600, output=10)
    call = AuditEnvelope(
        at=0.0, model="m", usage=usage, cost_nano_usd=900, output_nano_usd=100, blocks=BLOCKS
    )
    figures = sums_by_block(call)
    assert [(each.tokens, each.read, each.cost_nano_usd) for each in figures.values()] == [
        (300, 300, 600),
        (100, 0, 200),
    ]
    unpriced = sums_by_block(replace(call, cost_nano_usd=None))
    assert [(each.cost_nano_usd, each.unpriced) for each in unpriced.values()] == [(0, 1), (0, 1)]


def test_reads_that_are_not_reported_are_in_no_share() -> None:
    """A provider that does not say what was read may have read all of it."""
    common: dict[str, Any] = {"at": 0.0, "model": "m", "blocks": BLOCKS}
    silent = AuditEnvelope(**common, usage=AuditUsage(uncached=1_000, output=10))
    reports = AuditEnvelope(**common, usage=AuditUsage(uncached=100, read=300, output=10))
    total, blocks = CallTotals(), BlockSums()
    for call, share in ((silent, None), (reports, 0.75)):
        total.add_sums(CallTotals(*figures_of(call)))
        blocks.add_sums(sums_by_block(call)["identity"])
        assert total.read_share == share
        assert blocks.read_share == (None if share is None else 1.0)
    assert (total.input, total.reported) == (1_400, 400)
