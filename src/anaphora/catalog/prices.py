"""The price of a model, and the cost of a call, in exact decimals.

    price = catalog.price("anthropic", "claude-opus-5-5", when=now)
    price.input, price.write["1h"], price.of(reply.usage)

An unknown price is None, never 0.
"""

from __future__ import annotations

import datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal

import msgspec

from anaphora.rendered import Plan
from anaphora.values import Ttl, Usage

#: Enough digits for every count times every price without rounding.
EXACT = Context(prec=60)

_NOTHING, _NANO = Decimal(0), Decimal(10**9)
_add, _times = EXACT.add, EXACT.multiply

#: Tokens billed for having tools, beyond their text. On api.anthropic.com, recorded prompts with
#: function tools were billed 130 to 645 tokens more than their text, most 340 to 570. On Converse
#: 230 to 475 with Claude, 110 to 890 with Nova, and none with models of other makers.
_TOOL_OVERHEAD = {"anthropic": 450, "bedrock": 450}


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars per million tokens; None is unknown."""

    input: Decimal | None
    output: Decimal | None
    read: Decimal | None
    automatic_read: Decimal | None = None
    """A hit without a marker, if its price differs."""
    write: dict[Ttl, Decimal]

    def writing(self, ttl: Ttl | None) -> Decimal | None:
        """The price for that TTL; for None the common price of all TTLs, if there is one."""
        if ttl is not None:
            return self.write.get(ttl)
        known = set(self.write.values())
        return known.pop() if len(known) == 1 else None

    def total(
        self, usage: Usage, *, unsplit: Ttl | None = None, marked: bool = True
    ) -> Decimal | None:
        """The cost of these tokens, of one call or of several: see `Price.of`."""
        if usage.uncached is None or usage.output is None:
            return None
        read = self.read if marked or self.automatic_read is None else self.automatic_read
        billed = [
            (usage.uncached, self.input),
            (usage.read or 0, read),
            (usage.output, self.output),
        ]
        if usage.written:
            for ttl, count in usage.written.items():
                named = unsplit if ttl == "unsplit" else ttl
                billed.append(
                    (count, self.writing(None) if named is None else self.write.get(named))
                )
        total = _NOTHING
        for count, rate in billed:
            if count:
                if rate is None:
                    return None
                total = _add(total, _times(rate, count))
        return total.scaleb(-6, EXACT)


class Tier(Rates, frozen=True, kw_only=True):
    """The prices of a whole call with a longer prompt."""

    above: int
    """Input tokens, cached ones included."""


class PriceDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A cache price that differs between the rules and the price data."""

    field: str
    above: int
    rules: Decimal
    """From the rules: the one that is used."""
    data: Decimal
    source: str
    """The source of the rules' price."""


class Price(Rates, frozen=True, kw_only=True):
    """One model's price at one time."""

    provider: str
    model: str
    tiers: tuple[Tier, ...] = ()
    storage: Decimal | None = None
    """Per hour, if storage is billed."""
    source: str
    date: datetime.date | None
    """The day the base price was read, or from which it applies; None if unknown."""
    assumed: tuple[str, ...] = ()
    """Cache prices that rest on stand-ins in the rules."""
    differences: tuple[PriceDifference, ...] = ()

    def at(self, input_tokens: int) -> Rates:
        fitting: Rates = self
        for tier in self.tiers:
            if input_tokens > tier.above:
                fitting = tier
        return fitting

    def of_output(self, usage: Usage) -> Decimal | None:
        """The part of the cost that is output; None if unknown."""
        rate = self.at(usage.input or 0).output if self.tiers else self.output
        if usage.output is None or rate is None:
            return None
        return _times(rate, usage.output).scaleb(-6, EXACT)

    def of(
        self, usage: Usage, *, unsplit: Ttl | None = None, marked: bool = True
    ) -> Decimal | None:
        """The cost of a call in dollars; None if a required count or price is unknown.

        `unsplit` is the TTL of writes that the provider did not split by TTL; `marked` is false for
        a call without markers, whose hits may have another price.
        """
        rates = self.at(usage.input or 0) if self.tiers else self
        return rates.total(usage, unsplit=unsplit, marked=marked)


def cost_of(usage: Usage, price: Price | None, plan: Plan) -> Decimal | None:
    """The cost of a call. If a provider does not report the TTL of its writes, the plan's TTL is
    used."""
    if price is None:
        return None
    unsplit = None
    if usage.written and "unsplit" in usage.written:
        ttls = {mark.ttl for mark in plan.marks}
        unsplit = ttls.pop() if len(ttls) == 1 else None
    return price.of(usage, unsplit=unsplit, marked=bool(plan.marks))


def nano_usd(amount: Decimal | None) -> int | None:
    """Dollars as whole nano-dollars, rounded; None if unknown."""
    if amount is None or not amount.is_finite():
        return None
    return int((amount * _NANO).to_integral_value(ROUND_HALF_EVEN))


def tool_overhead(wire: str) -> int:
    """Tokens that a wire's provider bills for having tools, beyond their text."""
    return _TOOL_OVERHEAD.get(wire, 0)
