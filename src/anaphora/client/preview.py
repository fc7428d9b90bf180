"""What a call would read, write and cost, before it is sent."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from anaphora.cache.cold import ColdPrefix
from anaphora.cache.simulator.chances import CallChance, ExpectedUsage
from anaphora.values import Notice, Usage
from anaphora.wording import counted, format_share, format_usd

#: The text mentions the expected tokens if they are this share below the predicted ones.
_MENTIONED = 0.05


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a call would read, write and cost, by the rules and by the bills so far."""

    provider: str
    model: str
    size: int
    usage: Usage
    """Input tokens by kind: read from the cache, written to it, uncached."""
    bounds: tuple[int, int]
    """The likely range of the input tokens."""
    cost_usd: Decimal | None
    """Cost of the input; None if a price is unknown."""
    uncached_cost_usd: Decimal | None
    chances: tuple[CallChance, ...] = ()
    """Other outcomes and their probabilities, if the provider misses reads at random."""
    expected_usage: ExpectedUsage
    """Expected tokens read and expected cost over these outcomes, with the 90 % range."""
    markers: tuple[str, ...] = ()
    cold: ColdPrefix | None = None
    """Set if the beginning of the prompt could be cached, and is not."""
    wait: float = 0.0
    """Seconds that rate limits would delay it."""
    notices: tuple[Notice, ...] = ()

    def __str__(self) -> str:
        usage = self.usage
        text = (
            f"{usage.read or 0:,} of {counted(usage.input or 0, 'token')} to be read,"
            f" {usage.written_total or 0:,} to be written"
        )
        if self.cost_usd is not None:
            text += f", {format_usd(self.cost_usd)} for the input"
        read = self.expected_usage.read
        if read.expected < (1 - _MENTIONED) * (usage.read or 0):
            lost = sum(chance.share for chance in self.chances)
            text += f"; {format_share(lost)} of such reads find less, so that"
            text += f" {read.expected:,} are expected"
            text += f" ({read.low:,} to {read.high:,})"
        if self.cold is not None and self.cold.reason == "expired":
            text += f"; {self.cold}"
        if self.wait:
            text += f", after a wait of {self.wait:.1f} s"
        return text
