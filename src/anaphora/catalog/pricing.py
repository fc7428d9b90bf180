"""Looks up prices: base prices from price data, cache prices from the rules.

Base prices come from the shipped price table, or from a row of prices.toml if the table has none.
Cache prices are multiples of them, by the cache rules, which win over cache prices in the table;
the price lists the differences.
"""

from __future__ import annotations

import datetime
from decimal import Decimal, localcontext

import msgspec
from msgspec.structs import asdict

from anaphora.errors import InvalidRequest
from anaphora.values import Ttl

from .cache_rules import CacheRules
from .load import SHIPPED
from .price_data import PRICE_SLOT, Amount, PriceRow, PriceRows
from .prices import EXACT, Price, PriceDifference, Rates, Tier
from .rows import without_prefix
from .values import Figure

#: Digits to which multiples are published, and compared with price data.
_DIGITS = Decimal("0.001")

_RENAMED = {"bedrock": "aws", "xai": "x-ai", "moonshot": "moonshotai"}
#: Our providers' names in genai-prices.
NAMES = {
    name: _RENAMED.get(name, name)
    for name in (
        "anthropic openai google azure bedrock minimax deepseek xai mistral moonshot zai groq"
        " cerebras openrouter together"
    ).split()
}

#: Names of the standard service tier.
STANDARD_TIERS = frozenset({"", "auto", "default", "standard", "standard_only"})

#: The table's field for writes with a TTL; None: the default one.
_WRITES: dict[Ttl | None, str] = {None: "write", "5m": "write_5m", "1h": "write_1h"}


class PriceLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of prompts above a length in tokens, in dollars per million tokens."""

    above: int = 0
    input: Decimal | None = None
    output: Decimal | None = None
    read: Decimal | None = None
    write: dict[Ttl | None, Decimal] = {}
    """By TTL; None is the default TTL."""


class PriceList(msgspec.Struct, frozen=True, kw_only=True):
    """All prices listed for one model."""

    levels: tuple[PriceLevel, ...]
    """In order of prompt length, the shortest first."""
    source: str
    date: datetime.date | None
    """The day it was read, or from which it applies; None if the source has no date."""


class Service(msgspec.Struct, frozen=True):
    """The part of a request that may have its own price."""

    tier: str = ""
    batch: bool = False

    @property
    def is_standard(self) -> bool:
        return self.tier in STANDARD_TIERS and not self.batch


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
    """The model's price at that time; None if unknown.

    `rules` are by default the shipped ones for the wire; `own` are custom rows (`decode_prices`),
    which win over every list.
    """
    if when.tzinfo is None:
        raise InvalidRequest("must have a time zone", path="when")
    when = when.astimezone(datetime.UTC)
    if rules is None:
        rules = SHIPPED.catalog.rules(provider, model, wire)
    given, model = model, without_prefix(provider, model)
    if own is not None and (row := own.find(provider, given, model, rules.model)) is not None:
        return _priced(provider, model, from_row(row), rules)
    rows = SHIPPED.prices
    service = Service(service_tier, batch=batch)
    found = listed(provider, model, rows.moved(provider, when), service)
    if found is None and not batch:
        tier = "" if service.is_standard else service_tier
        row = rows.find(provider, model, rules.model, tier=tier)
        found = None if row is None else from_row(row)
    return None if found is None else _priced(provider, model, found, rules)


def listed(
    provider: str, model: str, when: datetime.datetime, service: Service
) -> PriceList | None:
    """The table's prices; None if it has no such model, or no price for that service. `when` is in
    UTC."""
    name = NAMES.get(provider)
    table = SHIPPED.price_table
    found = None if name is None else table.find(name, model)
    if found is None:
        return None
    row, own = found
    entry = row.entry(when)
    amounts = entry.amounts()
    if not service.is_standard:
        # Variants of another provider do not apply here.
        variants = [
            one
            for one in row.variants
            if own and one.active(when)
            if one.tier in ("", service.tier) and (service.batch or not one.batch)
        ]
        tiers = {*STANDARD_TIERS, *(one.tier for one in variants)}
        if service.tier not in tiers or (service.batch and not any(v.batch for v in variants)):
            return None
        for variant in reversed(variants):
            amounts |= variant.amounts()
    source = f"{table.source}, {name}: {row.id}"
    since = entry.since if entry.active(when) else None
    return PriceList(levels=_levels(amounts), source=source, date=since)


def _active(provider: str, model: str, when: datetime.datetime) -> tuple[bool, ...]:
    """Which of the model's listed prices apply. At two times with the same, the price is equal."""
    name = NAMES.get(provider)
    found = None if name is None else SHIPPED.price_table.find(name, model)
    if found is None:
        return ()
    when = SHIPPED.prices.moved(provider, when)
    return tuple([one.active(when) for one in (*found[0].prices, *found[0].variants)])


def price_levels(provider: str, model: str) -> set[int]:
    """The prompt lengths above which the price of a model changes, at any time."""
    try:
        rules = SHIPPED.catalog.rules(provider, model)
    except InvalidRequest:
        return set()  # a provider without rules
    model = without_prefix(provider, model)
    row = SHIPPED.prices.find(provider, model, rules.model)
    levels = set() if row is None else {tier.above for tier in row.tiers}
    name = NAMES.get(provider)
    found = None if name is None else SHIPPED.price_table.find(name, model)
    if found is not None:
        for entry in (*found[0].prices, *found[0].variants):
            for amount in entry.amounts().values():
                levels.update(amount if isinstance(amount, dict) else ())
    return levels - {0}


def from_row(row: PriceRow) -> PriceList:
    base = PriceLevel(input=row.input, output=row.output)
    tiers = (PriceLevel(above=t.above, input=t.input, output=t.output) for t in row.tiers)
    return PriceList(levels=(base, *tiers), source=row.source, date=row.date)


def _levels(amounts: dict[str, Amount]) -> tuple[PriceLevel, ...]:
    """One level for each prompt length at which a price changes."""
    tiered = [amount for amount in amounts.values() if isinstance(amount, dict)]
    return tuple(
        PriceLevel(
            above=above,
            input=_price_above(amounts.get("input"), above),
            output=_price_above(amounts.get("output"), above),
            read=_price_above(amounts.get("read"), above),
            write={
                ttl: price
                for ttl, field in _WRITES.items()
                if (price := _price_above(amounts.get(field), above)) is not None
            },
        )
        for above in sorted({0, *(start for amount in tiered for start in amount)})
    )


def _price_above(amount: Amount | None, above: int) -> Decimal | None:
    """The price of prompts just above that length."""
    if not isinstance(amount, dict):
        return amount
    return amount[max(start for start in amount if start <= above)]


def _priced(provider: str, model: str, found: PriceList, rules: CacheRules) -> Price:
    """The listed prices, with the cache prices that the rules derive from them."""
    assumed: list[str] = []
    differences: list[PriceDifference] = []
    with localcontext(EXACT):
        base = _rates(found.levels[0], rules, assumed, differences)
        longer = [
            (level.above, _rates(level, rules, [], differences)) for level in found.levels[1:]
        ]
    storage = rules.storage_price
    return Price(
        provider=provider,
        model=model,
        **asdict(base),
        tiers=tuple(Tier(above=above, **asdict(rates)) for above, rates in longer),
        storage=None if storage is None else _decimal(storage.value),
        source=found.source,
        date=found.date,
        assumed=tuple(assumed),
        differences=tuple(differences),
    )


def _rates(
    level: PriceLevel, rules: CacheRules, assumed: list[str], differences: list[PriceDifference]
) -> Rates:
    """Also fills `assumed` and `differences`."""
    base = level.input
    automatic = rules.automatic_read_price
    default = None if rules.default_ttl is None else rules.default_ttl.value

    def cache_price(field: str, figure: Figure[float], listed: Decimal | None) -> Decimal | None:
        if base is None:
            return None
        ours = base * _decimal(figure.value)
        if listed is None:
            if not figure.verified:
                assumed.append(field)
            return ours
        # If they agree, the multiple was rounded and the listed price was not. A stand-in makes no
        # claim that could differ.
        stand_in = not figure.verified and figure.source.startswith("stand-in")
        if stand_in or _agree(figure, listed, base):
            return listed
        differences.append(
            PriceDifference(
                field=field, above=level.above, rules=ours, data=listed, source=figure.source
            )
        )
        return ours

    read = cache_price("read", rules.read_price, level.read)
    write: dict[Ttl, Decimal] = {}
    for ttl in rules.ttls.value:
        listed = level.write.get(ttl, level.write.get(None) if ttl == default else None)
        figure = rules.write_price.get(ttl)
        # A TTL without a price is written at the input price.
        price = base if figure is None else cache_price(f"write.{ttl}", figure, listed)
        if price is not None:
            write[ttl] = price
    return Rates(
        input=base,
        output=level.output,
        read=read,
        automatic_read=None
        if automatic is None or base is None
        else base * _decimal(automatic.value),
        write=write,
    )


def _agree(figure: Figure[float], listed: Decimal, base: Decimal) -> bool:
    if not base:
        return not listed
    return (listed / base).quantize(_DIGITS) == _decimal(figure.value).quantize(_DIGITS)


def _decimal(value: float) -> Decimal:
    """The decimal as written, not the nearest double."""
    return Decimal(repr(value))


class PriceBook:
    """The prices of many calls, each looked up once, and the models without a price."""

    def __init__(self, now: float) -> None:
        """`now` is the time of calls without a time, in unix seconds."""
        self._now = datetime.datetime.fromtimestamp(now, datetime.UTC)
        self._prices: dict[tuple[object, ...], Price | None] = {}
        self._by_entry: dict[tuple[object, ...], Price | None] = {}
        self._unpriced: dict[str, None] = {}

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Models without a known price, as `provider/model`."""
        return tuple(self._unpriced)

    def price(
        self,
        provider: str,
        model: str,
        at: float | None,
        wire: str | None = None,
        service_tier: str = "",
    ) -> Price | None:
        """The price at a time in unix seconds."""
        slot = None if at is None else at // PRICE_SLOT
        key = provider, model, wire, service_tier, slot
        if key not in self._prices:
            when = self._moment(at)
            active = _active(provider, without_prefix(provider, model), when)
            entry = provider, model, wire, service_tier, active
            if entry not in self._by_entry:
                try:
                    found = price(provider, model, when, wire=wire, service_tier=service_tier)
                except InvalidRequest:
                    found = None  # a provider without rules
                self._by_entry[entry] = found
                if found is None:
                    self._unpriced[f"{provider}/{model}"] = None
            self._prices[key] = self._by_entry[entry]
        return self._prices[key]

    def _moment(self, at: float | None) -> datetime.datetime:
        try:
            return self._now if at is None else datetime.datetime.fromtimestamp(at, datetime.UTC)
        except (OverflowError, OSError, ValueError):
            return self._now
