"""What the next call would read, write and cost, said before anything is sent."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from anaphora.cache.verdict.predicting import Prediction
from anaphora.cache.verdict.sentences import amount_said
from anaphora.values import Notice, Usage, WriteTtl


def foreseen(expected: Prediction) -> Usage:
    """A prediction in the provider's own tokens, as far as bills have taught how many those are."""
    outcome, scale = expected.outcome, expected.scale
    read = min(expected.read, round(outcome.total * scale))
    written: dict[WriteTtl, int] = {
        ttl: round(tokens * scale) for ttl, tokens in outcome.written.items()
    }
    total = max(read + sum(written.values()), round(outcome.total * scale))
    uncached = total - read - sum(written.values())
    return Usage(uncached=uncached, read=read, written=written, output=0)


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """By the rules and by what was billed before; nothing was sent."""

    provider: str
    model: str
    size: int
    """Bytes of the request."""
    usage: Usage
    """Input tokens to be read, written and paid for in full."""
    dollars: Decimal | None
    """What the input would cost; None is unknown."""
    uncached_dollars: Decimal | None
    """What it would cost if nothing were cached."""
    markers: tuple[str, ...] = ()
    """Where markers would go, by path and lifetime."""
    wait: float = 0.0
    """How long our own limits would make it wait, in seconds."""
    notices: tuple[Notice, ...] = ()
    """What would break or get lost."""

    def __str__(self) -> str:
        usage = self.usage
        said = (
            f"{usage.read or 0:,} of {usage.input or 0:,} tokens to be read,"
            f" {usage.written_total or 0:,} to be written"
        )
        if self.dollars is not None:
            said += f", {amount_said(self.dollars)} for the input"
        if self.wait:
            said += f", after a wait of {self.wait:.1f} s"
        return said
