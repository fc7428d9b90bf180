"""What a call costs: base prices from price data, cache prices from the rules, exact in decimals.

    price = catalog.price("anthropic", "claude-opus-5-5", when=now)
    price.input, price.write["1h"], price.of(reply.usage)

Base prices come from the shipped price table, or from a row of prices.toml where that has none.
What reading and writing cost are multiples of them, by the cache rules: those win over cache prices
in the table, and the price names the difference. An unknown price is None, and never 0.
"""

from __future__ import annotations

import datetime
from decimal import Context, Decimal, localcontext

import msgspec
from msgspec.structs import asdict

from anaphora.errors import InvalidRequest
from anaphora.values import Ttl, Usage

from .cache_rules import Amount, CacheRules
from .figure import Figure
from .price_data import Listed, PriceList, Service, from_row, listed
from .price_rows import PriceRows, shipped_prices

#: Enough for every count times every price, so that nothing is rounded on the way.
_EXACT = Context(prec=60)

#: To how many digits a multiple is published; where price data say the same to so many, they agree.
_DIGITS = Decimal("0.001")


_NOTHING = Decimal(0)
_add, _times = _EXACT.add, _EXACT.multiply


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars per million tokens. None is unknown, which is not 0."""

    input: Decimal | None
    output: Decimal | None
    read: Decimal | None
    automatic_read: Decimal | None = None
    """A hit that no marker asked for, where that costs something else."""
    write: dict[Ttl, Decimal]

    def writing(self, ttl: Ttl | None) -> Decimal | None:
        """For that TTL; for None whatever all of them cost, when that is the same."""
        if ttl is not None:
            return self.write.get(ttl)
        known = set(self.write.values())
        return known.pop() if len(known) == 1 else None


class Tier(Rates, frozen=True, kw_only=True):
    """What a call costs, all of it, when its prompt is longer."""

    above: int
    """Input tokens, cached ones too."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Where the rules and the price data state different cache prices."""

    field: str
    above: int
    rules: Decimal
    """By the rules: the one to act on."""
    data: Decimal
    source: str
    """Who states the rules' one."""


class Price(Rates, frozen=True, kw_only=True):
    """One model's price at one moment."""

    provider: str
    model: str
    tiers: tuple[Tier, ...] = ()
    storage: Decimal | None = None
    """For keeping an entry, by the hour, where that is billed."""
    source: str
    date: datetime.date | None
    """The day the base price was seen, or from which it holds; None where its source is silent."""
    assumed: tuple[str, ...] = ()
    """Cache prices that no source states: they rest on careful stand-ins of the rules."""
    differences: tuple[Difference, ...] = ()

    def at(self, input_tokens: int) -> Rates:
        """The rates for a prompt of that length."""
        fitting: Rates = self
        for tier in self.tiers:
            if input_tokens > tier.above:
                fitting = tier
        return fitting

    def of(
        self, usage: Usage, *, unsplit: Ttl | None = None, marked: bool = True
    ) -> Decimal | None:
        """The dollars a call cost; None when a count or a price that it needs is unknown.

        `unsplit` is the TTL of writes that the provider did not split by TTL; `marked` is false for
        a call without markers, whose hits may cost something else.
        """
        if usage.uncached is None or usage.output is None:
            return None
        rates = self.at(usage.input or 0) if self.tiers else self
        read = rates.read if marked or rates.automatic_read is None else rates.automatic_read
        billed = [
            (usage.uncached, rates.input),
            (usage.read or 0, read),
            (usage.output, rates.output),
        ]
        if usage.written:
            for ttl, count in usage.written.items():
                billed.append((count, rates.writing(unsplit if ttl == "unsplit" else ttl)))
        total = _NOTHING
        for count, rate in billed:
            if count:
                if rate is None:
                    return None
                total = _add(total, _times(rate, count))
        return total.scaleb(-6, _EXACT)


def price(
    provider: str,
    model: str,
    when: datetime.datetime,
    *,
    rules: CacheRules | None = None,
    wire: str | None = None,
    service_tier: str = "",
    batch: bool = False,
    own: PriceRows | None = None,
) -> Price | None:
    """The model's price at that moment; None where it is unknown.

    `rules` are the shipped ones for the wire unless given; `own` are rows of yours
    (`decode_prices`), which win over every list.
    """
    if when.tzinfo is None:
        raise InvalidRequest("say in which time zone", path="when")
    when = when.astimezone(datetime.UTC)
    if rules is None:
        from .load import shipped

        rules = shipped().rules(provider, model, wire)
    model = model.removeprefix(f"{provider}/")  # gateways put it there
    if own is not None and (row := own.find(provider, model, rules.model)) is not None:
        return _priced(provider, model, from_row(row), rules)
    ours = shipped_prices()
    service = Service(service_tier, batch=batch)
    found = listed(provider, model, ours.moved(provider, when), service)
    if found is None and service.usual:
        row = ours.find(provider, model, rules.model)
        found = None if row is None else from_row(row)
    return None if found is None else _priced(provider, model, found, rules)


def _priced(provider: str, model: str, found: PriceList, rules: CacheRules) -> Price:
    with localcontext(_EXACT):
        levels = [_Level(level, rules) for level in found.levels]
    base, *longer = levels
    storage = rules.storage_price
    return Price(
        provider=provider,
        model=model,
        **asdict(base.rates),
        tiers=tuple(Tier(above=level.above, **asdict(level.rates)) for level in longer),
        storage=None if storage is None else _decimal(storage.value),
        source=found.source,
        date=found.date,
        assumed=base.assumed,
        differences=tuple(difference for level in levels for difference in level.differences),
    )


class _Level:
    """One level of a list, with what the rules make of its input price."""

    def __init__(self, level: Listed, rules: CacheRules) -> None:
        self.above = level.above
        self._input = level.input
        self._assumed: list[str] = []
        self._differences: list[Difference] = []
        automatic = rules.automatic_read_price
        self.rates = Rates(
            input=level.input,
            output=level.output,
            read=self._cache_price("read", rules.read_price, level.read),
            automatic_read=None if automatic is None else self._times(automatic),
            write=self._writes(level, rules),
        )
        self.assumed = tuple(self._assumed)
        self.differences = tuple(self._differences)

    def _writes(self, level: Listed, rules: CacheRules) -> dict[Ttl, Decimal]:
        usual = rules.default_ttl.value if rules.default_ttl is not None else None
        prices: dict[Ttl, Decimal] = {}
        for ttl in rules.ttls.value:
            said = level.write.get(ttl, level.write.get(None) if ttl == usual else None)
            figure = rules.write_price.get(ttl)
            if figure is None:
                price = level.input  # a TTL without a price of its own is written at the input's
            else:
                price = self._cache_price(f"write.{ttl}", figure, said)
            if price is not None:
                prices[ttl] = price
        return prices

    def _cache_price(
        self, field: str, figure: Figure[Amount], said: Decimal | None
    ) -> Decimal | None:
        ours = self._times(figure)
        if ours is None or said is None:
            if ours is not None and not figure.verified:
                self._assumed.append(field)
            return ours
        # Where they agree, the multiple was rounded and the dollars were not. A stand-in states
        # nothing that could differ.
        if self._agree(figure, said) or _is_stand_in(figure):
            return said
        self._differences.append(
            Difference(field=field, above=self.above, rules=ours, data=said, source=figure.source)
        )
        return ours

    def _agree(self, figure: Figure[Amount], said: Decimal) -> bool:
        if not self._input:
            return not said
        return (said / self._input).quantize(_DIGITS) == _decimal(figure.value).quantize(_DIGITS)

    def _times(self, figure: Figure[Amount]) -> Decimal | None:
        return None if self._input is None else self._input * _decimal(figure.value)


def _is_stand_in(figure: Figure[Amount]) -> bool:
    return not figure.verified and figure.source.startswith("stand-in")


def _decimal(value: float) -> Decimal:
    """The number that was written, not the double next to it."""
    return Decimal(repr(value))
