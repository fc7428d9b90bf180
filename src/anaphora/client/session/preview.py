"""What the next call would read, write and cost, said before anything is sent."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from anaphora.cache.verdict import Prediction, format_usd
from anaphora.client.writing import Written, cost_unknown, tier_of
from anaphora.tokens import Counts
from anaphora.values import Notice, Usage

from .certify import certify
from .place import Place


def foreseen(expected: Prediction) -> Usage:
    """A prediction as the provider would bill it."""
    outcome = expected.outcome
    read = min(expected.read, outcome.total)
    written = outcome.written
    uncached = max(0, outcome.total - read - sum(written.values()))
    return Usage(uncached=uncached, read=read, written=written, output=0)


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """By the rules and by what was billed before; nothing was sent."""

    provider: str
    model: str
    size: int
    """Bytes of the request."""
    usage: Usage
    """Input tokens to be read, written and paid for in full,"""
    bounds: tuple[int, int]
    """and between how many the input is likely to be, all told."""
    cost_usd: Decimal | None
    """What the input would cost; None is unknown."""
    uncached_cost_usd: Decimal | None
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
        if self.cost_usd is not None:
            said += f", {format_usd(self.cost_usd)} for the input"
        if self.wait:
            said += f", after a wait of {self.wait:.1f} s"
        return said


def previewed(place: Place, written: Written) -> Preview:
    """The call as it would be sent from there."""
    usage = foreseen(place.foresee(written))
    tier = tier_of(written)
    price = place.price(written.at, tier)
    cost_usd = None if price is None else price.of(usage)
    unknown = () if cost_usd is not None else (cost_unknown(place.stop, tier, usage, price),)
    plain = msgspec.structs.replace(usage, uncached=usage.input, read=0, written={})
    request = place.endpoint.wire.assemble(
        written.rendered, msgspec.structs.replace(written.plan, preludes=())
    )
    broken = certify(place, written, "tell")
    return Preview(
        provider=place.endpoint.id,
        model=place.model.name,
        size=len(request.body),
        usage=usage,
        bounds=Counts(written.rendered).bounds(place.model.profile.token_error.value),
        cost_usd=cost_usd,
        uncached_cost_usd=None if price is None else price.of(plain),
        markers=tuple(
            f"{written.rendered.chunk(mark.chunk).path} {mark.ttl}" for mark in written.plan.marks
        ),
        wait=place.model.gate.wait(place.tokens(written)),
        notices=(*written.rendered.notices, *written.plan.notices, *broken, *unknown),
    )
