"""Base prices in TOML, with exact decimals.

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
from decimal import Decimal
from typing import Annotated, Any, TypeVar

import msgspec

from anaphora.errors import InvalidCatalog

FILE = "prices.toml"

_SATURDAY = 6

T = TypeVar("T")


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the tables."""


class TierRow(_Row, frozen=True):
    above: Annotated[int, msgspec.Meta(gt=0)]
    """The price of the whole call above so many input tokens, cached ones included."""
    input: Decimal
    output: Decimal


class PriceRow(_Row, frozen=True):
    provider: str
    models: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    source: Annotated[str, msgspec.Meta(min_length=1)]
    date: datetime.date | None
    """None: the source has no date."""
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


class WeekendRow(_Row, frozen=True):
    """A provider whose hourly prices in the table hold on working days only."""

    provider: str
    source: Annotated[str, msgspec.Meta(min_length=1)]
    date: datetime.date
    since: datetime.date
    as_at: datetime.time

    def moved(self, when: datetime.datetime) -> datetime.datetime:
        """The time of that day whose price applies."""
        if when.date() < self.since or when.isoweekday() < _SATURDAY:
            return when
        return datetime.datetime.combine(when.date(), self.as_at, when.tzinfo)


class PriceRows(msgspec.Struct, frozen=True):
    """All rows; of two for one model the later one counts."""

    prices: tuple[PriceRow, ...] = ()
    weekends: tuple[WeekendRow, ...] = ()

    def find(self, provider: str, *models: str) -> PriceRow | None:
        """The row of the first of these names that has one."""
        own = {id: row for row in self.prices if row.provider == provider for id in row.models}
        return next((own[model] for model in models if model in own), None)

    def moved(self, provider: str, when: datetime.datetime) -> datetime.datetime:
        """The time whose listed price applies at that time."""
        for row in self.weekends:
            if row.provider == provider:
                when = row.moved(when)
        return when


def decode_prices(text: str, *, file: str = "<text>") -> PriceRows:
    """The rows of one file, in its order."""
    import tomllib

    try:
        table = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise InvalidCatalog(f"not TOML: {error}", file=file) from error
    rows = PriceRows(
        _rows(table.pop("price", []), PriceRow, "price", file),
        _rows(table.pop("weekend", []), WeekendRow, "weekend", file),
    )
    if table:
        message = f"{min(table)!r} is not a kind of row; use [[price]] or [[weekend]]"
        raise InvalidCatalog(message, file=file)
    return rows


def _rows(tables: Any, kind: type[T], name: str, file: str) -> tuple[T, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InvalidCatalog(f"write rows as [[{name}]]", file=file, row=name)
    rows = []
    for index, table in enumerate(tables):
        try:
            rows.append(msgspec.convert(_exact_prices(table), kind, builtin_types=_TYPES))
        except msgspec.ValidationError as error:
            raise InvalidCatalog(str(error), file=file, row=f"{name}[{index}]") from error
    return tuple(rows)


_TYPES = (datetime.date, datetime.time, Decimal)


def _exact_prices(table: dict[str, Any]) -> dict[str, Any]:
    """Accept integers as prices."""
    whole: dict[str, Any] = {k: _usd(table[k]) for k in ("input", "output") if k in table}
    tiers = table.get("tiers")
    if isinstance(tiers, list):
        whole["tiers"] = [_exact_prices(tier) if isinstance(tier, dict) else tier for tier in tiers]
    return {**table, **whole}


def _usd(value: Any) -> Any:
    return Decimal(value) if type(value) is int else value
