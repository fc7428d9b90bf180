"""The shipped price table: base prices of every model that genai-prices lists for our providers.

`make prices` writes `price_table.json` (scripts/prices.py); a test compares it with the pinned
release of genai-prices. The file is read when a price is first asked for, and of it only the
providers that are asked about.

A model is found by patterns, in the order of the table, the first match counting:

    gpt-5            this name
    gpt-5*  *-5  *5* begins with, ends with, contains
    gpt-5-####       `#` is a digit
    [a*, !*-tts]     all of these; `!` means not
"""

from __future__ import annotations

import datetime
import functools
import re
from decimal import Decimal
from typing import TypeAlias, TypeVar

import msgspec

from anaphora.errors import InvalidCatalog

from . import files

FILE = "price_table.json"

T = TypeVar("T")

#: Seconds. No listed price changes inside of a quarter of an hour, so a price may be kept that
#: long; `make prices` refuses a time of day that is not on one.
PRICE_SLOT = 900

Amount: TypeAlias = Decimal | dict[int, Decimal]
"""Dollars per million tokens, or those by the prompt length above which they apply."""

#: The fields of an entry that hold a price.
FIELDS = ("input", "output", "read", "write", "write_5m", "write_1h")

_COMPACT_DATE = re.compile(r"-(20\d\d)(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(?=-|:|$)", re.ASCII)


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Prices, and when they apply."""

    since: datetime.date | None = None
    start: datetime.time | None = None
    """Of a daily window in UTC, which may cross midnight."""
    end: datetime.time | None = None
    tier: str = ""
    """Of a variant: the service tier that it is for."""
    batch: bool = False
    """Of a variant: it is for batches."""
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


class Model(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    match: tuple[str | tuple[str, ...], ...]
    """Any of these."""
    prices: tuple[Entry, ...]
    """The last that is active counts; the first where none is."""
    variants: tuple[Entry, ...] = ()
    """What replaces some of the prices for a service; the first that is active counts."""

    def entry(self, when: datetime.datetime) -> Entry:
        active = (entry for entry in reversed(self.prices) if entry.active(when))
        return next(active, self.prices[0])


class Provider(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    fallback: tuple[str, ...] = ()
    """Providers whose models are offered here, too, at the same price."""
    models: tuple[Model, ...]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    """Which release of genai-prices."""
    date: datetime.date
    """The day the table was generated."""
    license: str
    providers: dict[str, msgspec.Raw]
    """By the name that genai-prices has for them; decoded one by one."""


def table_source() -> str:
    """Which release the prices are from: `genai-prices 0.2.1`."""
    return _table().source


def price_table_date() -> datetime.date:
    """The day the table was generated."""
    return _table().date


@functools.lru_cache(maxsize=1024)
def find(provider: str, model: str) -> tuple[Model, bool] | None:
    """The model's row, and whether it is the provider's own; None where there is none."""
    name = model.lower()
    found = _match(provider, name)
    if found is None:
        dashed = _COMPACT_DATE.sub(_dashed, name)
        found = None if dashed == name else _match(provider, dashed)
    return found


def _match(provider: str, name: str) -> tuple[Model, bool] | None:
    rows = _provider(provider)
    own = _first(rows.models, name)
    if own is not None:
        return own, True
    for other in rows.fallback:
        borrowed = _first(_provider(other).models, name)
        if borrowed is not None:
            return borrowed, False
    return None


def _first(models: tuple[Model, ...], name: str) -> Model | None:
    for model in models:
        for pattern in model.match:
            conditions = (pattern,) if isinstance(pattern, str) else pattern
            if all(matches(condition, name) for condition in conditions):
                return model
    return None


def matches(pattern: str, name: str) -> bool:
    """One comparison of strings, so its time is linear in their lengths."""
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


@functools.cache
def _table() -> Table:
    return _decode(files.read_bytes(FILE), Table)


@functools.cache
def _provider(name: str) -> Provider:
    return _decode(_table().providers[name], Provider)


def _decode(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as problem:
        raise InvalidCatalog(f"{problem}; `make prices` writes it anew", file=FILE) from problem
