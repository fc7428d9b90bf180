"""What the next call would read, write and cost; nothing is sent."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from anaphora.cache.verdict import Prediction, format_usd
from anaphora.client.in_flight import PreparedRequest, cost_unknown, service_tier
from anaphora.tokens import Counts
from anaphora.values import Notice, Usage

from .prefix_check import check_prefix
from .provider_state import ProviderState


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a call would read, write and cost, by the rules and by the bills so far."""

    provider: str
    model: str
    size: int
    """Bytes of the request."""
    usage: Usage
    """Input tokens by kind: read from the cache, written to it, uncached."""
    bounds: tuple[int, int]
    """Likely minimum and maximum of the input tokens."""
    cost_usd: Decimal | None
    """Cost of the input; None where a price is unknown."""
    uncached_cost_usd: Decimal | None
    """Cost of the input without any caching."""
    markers: tuple[str, ...] = ()
    """Cache markers by path and TTL."""
    wait: float = 0.0
    """Seconds that rate limits would delay it."""
    notices: tuple[Notice, ...] = ()

    def __str__(self) -> str:
        usage = self.usage
        text = (
            f"{usage.read or 0:,} of {usage.input or 0:,} tokens to be read,"
            f" {usage.written_total or 0:,} to be written"
        )
        if self.cost_usd is not None:
            text += f", {format_usd(self.cost_usd)} for the input"
        if self.wait:
            text += f", after a wait of {self.wait:.1f} s"
        return text


def preview_of(state: ProviderState, prepared: PreparedRequest) -> Preview:
    """The preview of a call that is prepared for a provider."""
    target, rendered, plan = state.target, prepared.rendered, prepared.plan
    usage = _expected_usage(state.predict(prepared))
    tier = service_tier(prepared)
    price = target.price(prepared.at, tier)
    cost_usd = None if price is None else price.of(usage)
    unknown = () if cost_usd is not None else (cost_unknown(target, tier, usage, price),)
    uncached = msgspec.structs.replace(usage, uncached=usage.input, read=0, written={})
    assembled = state.endpoint.wire.assemble(rendered, msgspec.structs.replace(plan, preludes=()))
    broken = check_prefix(state, prepared, "notice")
    return Preview(
        provider=state.endpoint.id,
        model=target.model,
        size=len(assembled.body),
        usage=usage,
        bounds=Counts(rendered).bounds(target.profile.token_error.value),
        cost_usd=cost_usd,
        uncached_cost_usd=None if price is None else price.of(uncached),
        markers=tuple(f"{rendered.chunk(mark.chunk).path} {mark.ttl}" for mark in plan.marks),
        wait=target.gate.wait(state.tokens(prepared)),
        notices=(*prepared.notices, *rendered.notices, *plan.notices, *broken, *unknown),
    )


def _expected_usage(expected: Prediction) -> Usage:
    """A prediction as the provider would bill it."""
    outcome = expected.outcome
    read = min(expected.read, outcome.total)
    written = outcome.written
    uncached = max(0, outcome.total - read - sum(written.values()))
    return Usage(uncached=uncached, read=read, written=written, output=0)
