"""Base prices: a generated table, and rows in TOML.

`make prices` writes `price_table.json` (scripts/prices.py): every model that genai-prices lists for
our providers. A test compares it with the pinned release. A provider's models are decoded on first
use. A model is found by patterns, in the order of the table; the first match counts:

    gpt-5            this name
    gpt-5*  *-5  *5* begins with, ends with, contains
    gpt-5-####       `#` is a digit
    [a*, !*-tts]     all of these; `!` means not

`prices.toml`, and rows of applications, with exact decimals:

    [[price]]
    provider = "acme"
    source = "the price page"
    date = 2026-11-15
    models = ["acme-1"]
    input = 0.25                                       # dollars per million tokens
    output = 1.5
    tiers = [{ above = 200000, input = 0.5, output = 3 }]   # the price of all of a longer prompt

    [[weekend]]                                        # weekends have the price of noon all day
    provider = "acme"
    source = "the price page"
    date = 2026-11-15
    since = 2026-08-23
    as_at = 12:00:00
"""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from anaphora.errors import InvalidCatalog

from .values import decode_structs, read_toml, with_decimals

TABLE_FILE = "price_table.json"
ROWS_FILE = "prices.toml"

T = TypeVar("T")

#: Seconds. Listed prices change on the quarter of an hour only, so a price may be cached that long;
#: `make prices` refuses any other time of day.
PRICE_SLOT = 900

Amount: TypeAlias = Decimal | dict[int, Decimal]
"""Dollars per million tokens, or a price for each prompt length above which it applies."""

#: The fields of an entry that hold a price.
FIELDS = ("input", "output", "read", "write", "write_5m", "write_1h")

#: Number of cached lookups.
_MAX_FOUND = 1024

_COMPACT_DATE = re.compile(r"-(20\d\d)(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(?=-|:|$)", re.ASCII)
_SATURDAY = 6


class PriceEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Prices, and when they apply."""

    since: datetime.date | None = None
    start: datetime.time | None = None
    """A daily window in UTC, which may cross midnight."""
    end: datetime.time | None = None
    tier: str = ""
    """The service tier of a variant."""
    batch: bool = False
    """A variant for batches."""
    input: Amount | None = None
    output: Amount | None = None
    read: Amount | None = None
    write: Amount | None = None
    write_5m: Amount | None = None
    write_1h: Amount | None = None

    def active(self, when: datetime.datetime) -> bool:
        """`when` is in UTC."""
        if self.since is not None and when.date() < self.since:
            return False
        if self.start is None or self.end is None:
            return True
        now = when.time()
        if self.end < self.start:
            return now >= self.start or now < self.end
        return self.start <= now < self.end

    def amounts(self) -> dict[str, Amount]:
        found = {name: getattr(self, name) for name in FIELDS}
        return {name: amount for name, amount in found.items() if amount is not None}


class PricedModel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    match: tuple[str | tuple[str, ...], ...]
    """Patterns, of which one must match."""
    prices: tuple[PriceEntry, ...]
    """The last active entry counts; the first if none is active."""
    variants: tuple[PriceEntry, ...] = ()
    """Prices of special services, which replace some of the above; the first active one counts."""

    def entry(self, when: datetime.datetime) -> PriceEntry:
        active = (entry for entry in reversed(self.prices) if entry.active(when))
        return next(active, self.prices[0])

    def matches(self, name: str) -> bool:
        return any(
            all(matches(one, name) for one in ([pattern] if isinstance(pattern, str) else pattern))
            for pattern in self.match
        )


class PricedProvider(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    fallback: tuple[str, ...] = ()
    """Providers whose models are also available here, at the same price."""
    models: tuple[PricedModel, ...]

    def find(self, name: str) -> PricedModel | None:
        """The first model that matches."""
        return next((model for model in self.models if model.matches(name)), None)


class PriceTable(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    source: str
    """The release: `genai-prices 0.2.1`."""
    date: datetime.date
    """The day the table was generated."""
    license: str
    providers: dict[str, msgspec.Raw]
    """By name in genai-prices; decoded on first use."""

    def find(self, provider: str, model: str) -> tuple[PricedModel, bool] | None:
        """The model's row, and whether it is the provider's own; None if there is none."""
        found: dict[tuple[str, str], tuple[PricedModel, bool] | None]
        found = self.__dict__.setdefault("found", {})
        key = provider, model
        if key not in found:
            if len(found) >= _MAX_FOUND:
                found.clear()
            found[key] = self._match(provider, model.lower())
        return found[key]

    def _match(self, provider: str, name: str) -> tuple[PricedModel, bool] | None:
        for spelling in dict.fromkeys((name, _COMPACT_DATE.sub(_dashed, name))):
            for owner in (provider, *self._provider(provider).fallback):
                if (row := self._provider(owner).find(spelling)) is not None:
                    return row, owner == provider
        return None

    def _provider(self, name: str) -> PricedProvider:
        decoded: dict[str, PricedProvider] = self.__dict__.setdefault("decoded", {})
        if name not in decoded:
            decoded[name] = _decode(self.providers[name], PricedProvider)
        return decoded[name]


def decode_table(data: bytes) -> PriceTable:
    return _decode(data, PriceTable)


def _decode(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidCatalog(f"{error}; run `make prices`", file=TABLE_FILE) from error


def matches(pattern: str, name: str) -> bool:
    """Takes linear time."""
    if pattern.startswith("!"):
        return not matches(pattern[1:], name)
    core = pattern.strip("*")
    opened, closed = pattern.startswith("*"), pattern.endswith("*")
    if "#" in core:  # never behind a `*`
        fits = len(name) >= len(core) if closed else len(name) == len(core)
        return fits and all(map(_same, core, name))
    if opened:
        return core in name if closed else name.endswith(core)
    return name.startswith(core) if closed else name == core


def _same(expected: str, char: str) -> bool:
    return "0" <= char <= "9" if expected == "#" else expected == char


def _dashed(date: re.Match[str]) -> str:
    """Gateways write `-20251211` instead of the table's `-2025-12-11`."""
    year, month, day = date.groups()
    try:
        return f"-{datetime.date(int(year), int(month), int(day))}"
    except ValueError:
        return date[0]


class TierRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    above: Annotated[int, msgspec.Meta(gt=0)]
    """The price of the whole call above this many input tokens, including cached ones."""
    input: Decimal
    output: Decimal


class PriceRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    provider: str
    models: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    source: Annotated[str, msgspec.Meta(min_length=1)]
    date: datetime.date | None
    """None: the source has no date."""
    tier: str = ""
    """The service tier that it is the price of; empty: the standard one."""
    input: Decimal
    output: Decimal
    tiers: tuple[TierRow, ...] = ()

    def __post_init__(self) -> None:
        levels: list[PriceRow | TierRow] = [self, *self.tiers]
        if any(price.is_signed() for level in levels for price in (level.input, level.output)):
            raise ValueError("prices must be >= 0")
        starts = [tier.above for tier in self.tiers]
        if starts != sorted(set(starts)):
            raise ValueError("tiers must be listed once each, lowest first")


class WeekendRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A provider whose hourly prices in the table apply on working days only."""

    provider: str
    source: Annotated[str, msgspec.Meta(min_length=1)]
    date: datetime.date
    since: datetime.date
    as_at: datetime.time


class PriceRows(msgspec.Struct, frozen=True):
    """All rows; of two for one model the later one counts."""

    prices: tuple[PriceRow, ...] = ()
    weekends: tuple[WeekendRow, ...] = ()

    def find(self, provider: str, *models: str, tier: str = "") -> PriceRow | None:
        """The row of the first of these names that has a row."""
        rows = (row for row in self.prices if (row.provider, row.tier) == (provider, tier))
        own = {id: row for row in rows for id in row.models}
        return next((own[model] for model in models if model in own), None)

    def moved(self, provider: str, when: datetime.datetime) -> datetime.datetime:
        """The time whose listed price applies at the given time."""
        for row in self.weekends:
            weekend = when.isoweekday() >= _SATURDAY and when.date() >= row.since
            if row.provider == provider and weekend:
                when = datetime.datetime.combine(when.date(), row.as_at, when.tzinfo)
        return when


def decode_prices(text: str, *, file: str = "<text>") -> PriceRows:
    """The rows of one file, in its order."""
    content = with_decimals(read_toml(text, file, parse_float=Decimal), ("input", "output"))
    return PriceRows(*decode_structs(content, file, price=PriceRow, weekend=WeekendRow))
