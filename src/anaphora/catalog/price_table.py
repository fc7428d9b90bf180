"""The shipped price table: base prices of every model that genai-prices lists for our providers.

`make prices` writes `price_table.json` (scripts/prices.py); a test compares it with the pinned
release of genai-prices. A provider's models are decoded on first use.

A model is found by patterns, in the order of the table; the first match counts:

    gpt-5            this name
    gpt-5*  *-5  *5* begins with, ends with, contains
    gpt-5-####       `#` is a digit
    [a*, !*-tts]     all of these; `!` means not
"""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from typing import TypeAlias, TypeVar

import msgspec

from anaphora.errors import InvalidCatalog

FILE = "price_table.json"

T = TypeVar("T")

#: Seconds. Listed prices change on the quarter of an hour only, so a price may be cached that long;
#: `make prices` refuses any other time of day.
PRICE_SLOT = 900

Amount: TypeAlias = Decimal | dict[int, Decimal]
"""Dollars per million tokens, or a price for each prompt length above which it applies."""

#: The fields of an entry that hold a price.
FIELDS = ("input", "output", "read", "write", "write_5m", "write_1h")

#: The number of lookups that are kept.
_MAX_FOUND = 1024

_COMPACT_DATE = re.compile(r"-(20\d\d)(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(?=-|:|$)", re.ASCII)


class PriceEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Prices, and when they apply."""

    since: datetime.date | None = None
    start: datetime.time | None = None
    """Of a daily window in UTC, which may cross midnight."""
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
    """Any of these."""
    prices: tuple[PriceEntry, ...]
    """The last that is active counts; the first where none is."""
    variants: tuple[PriceEntry, ...] = ()
    """Prices of special services, instead of some of the above; the first active one counts."""

    def entry(self, when: datetime.datetime) -> PriceEntry:
        active = (entry for entry in reversed(self.prices) if entry.active(when))
        return next(active, self.prices[0])


class PricedProvider(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    fallback: tuple[str, ...] = ()
    """Providers whose models are also available here, at the same price."""
    models: tuple[PricedModel, ...]


class PriceTable(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    source: str
    """The release: `genai-prices 0.2.1`."""
    date: datetime.date
    """The day the table was generated."""
    license: str
    providers: dict[str, msgspec.Raw]
    """By their name in genai-prices; decoded on first use."""

    def find(self, provider: str, model: str) -> tuple[PricedModel, bool] | None:
        """The model's row, and whether it is the provider's own; None if there is none."""
        found: dict[tuple[str, str], tuple[PricedModel, bool] | None]
        found = self.__dict__.setdefault("found", {})
        key = provider, model
        if key not in found:
            if len(found) >= _MAX_FOUND:
                found.clear()
            name = model.lower()
            match = self._match(provider, name)
            if match is None and (dashed := _COMPACT_DATE.sub(_dashed, name)) != name:
                match = self._match(provider, dashed)
            found[key] = match
        return found[key]

    def _match(self, provider: str, name: str) -> tuple[PricedModel, bool] | None:
        rows = self._provider(provider)
        own = _first(rows.models, name)
        if own is not None:
            return own, True
        for other in rows.fallback:
            borrowed = _first(self._provider(other).models, name)
            if borrowed is not None:
                return borrowed, False
        return None

    def _provider(self, name: str) -> PricedProvider:
        decoded: dict[str, PricedProvider] = self.__dict__.setdefault("decoded", {})
        if name not in decoded:
            decoded[name] = _decode(self.providers[name], PricedProvider)
        return decoded[name]


def decode_table(data: bytes) -> PriceTable:
    return _decode(data, PriceTable)


def _first(models: tuple[PricedModel, ...], name: str) -> PricedModel | None:
    for model in models:
        for pattern in model.match:
            conditions = (pattern,) if isinstance(pattern, str) else pattern
            if all(matches(condition, name) for condition in conditions):
                return model
    return None


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
    """Gateways write `-20251211` where the table has `-2025-12-11`."""
    year, month, day = date.groups()
    try:
        return f"-{datetime.date(int(year), int(month), int(day))}"
    except ValueError:
        return date[0]


def _decode(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidCatalog(f"{error}; run `make prices`", file=FILE) from error
