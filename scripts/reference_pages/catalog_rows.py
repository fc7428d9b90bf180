"""Models, providers and cache rules, with sources and dates."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec

from anaphora import catalog, wire
from anaphora.catalog import CacheRules, Figure, Price, Profile

from .markdown import cell, code, page, table

MODELS = """\
Every model that the catalog lists, by provider. `anaphora models` prints the same; a name that
is not listed gets the provider's defaults. ~ marks a conservative default: no source states
the figure. Cache prices are multiples of the input price; `$` are US dollars per million
tokens of a short prompt, on {date}."""

RULES = """\
The cache rules that planner, simulator, verdict and emulator read, with the source and the day
of each figure. `anaphora models PROVIDER/MODEL` prints those of one model. ~ marks a
conservative default: no source states the figure. The tags in brackets name sources: `[web]`
an official page, `[3p]` a third party's, the others are explained at the top of the provider's
file in `src/anaphora/catalog`."""

PROVIDERS = """\
Providers and the wires (API formats) that they speak: the names that `anaphora translate --to`
and `wire:` and `dialect:` in [llm.yaml](../config.md) accept."""


def pages() -> dict[str, str]:
    date = catalog.price_table_date()
    return {
        "models.md": page("Models", MODELS.format(date=date), _models(date)),
        "cache-rules.md": page("Cache rules", RULES, _rules()),
        "providers.md": page("Providers", PROVIDERS, _providers()),
    }


def _by_provider() -> dict[str, list[Profile]]:
    found: dict[str, list[Profile]] = {}
    for profile in catalog.models():
        found.setdefault(profile.provider, []).append(profile)
    return found


def _models(date: datetime.date) -> Iterator[str]:
    head = (
        "model",
        "context",
        "output",
        "cache",
        "minimum",
        "TTLs",
        "read",
        "write",
        "$ in",
        "$ out",
    )
    for provider, profiles in _by_provider().items():
        yield f"## {provider}"
        yield ""
        yield from table((*head, "retires"), [_model(each, date) for each in profiles])


def _model(profile: Profile, date: datetime.date) -> list[str]:
    rules = catalog.rules(profile.provider, profile.id)
    when = datetime.datetime.combine(date, datetime.time(), datetime.UTC)
    price = catalog.price(profile.provider, profile.id, when, rules=rules)
    writes = [rules.write_price.get(ttl) for ttl in rules.ttls.value]
    return [
        code(profile.id),
        _count(profile.context_tokens),
        _count(profile.output_tokens),
        _shown(rules.mechanism),
        _count(rules.minimum_tokens),
        _shown(rules.ttls),
        _shown(rules.read_price),
        " ".join("1" if write is None else _shown(write) for write in writes),
        *("" if rate is None else f"{rate:f}" for rate in _rates(price)),
        "" if profile.retires is None else str(profile.retires.value),
    ]


def _rates(price: Price | None) -> tuple[Decimal | None, Decimal | None]:
    return (None, None) if price is None else (price.input, price.output)


def _count(figure: Figure[int] | None) -> str:
    return "" if figure is None else ("" if figure.verified else "~") + f"{figure.value:,}"


def _shown(figure: Figure[Any]) -> str:
    return ("" if figure.verified else "~") + _spelled(figure.value)


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


# ── Rules ────────────────────────────────────────────────────────────────────────────────────────


def _rules() -> Iterator[str]:
    for provider, profiles in _by_provider().items():
        yield f"## {provider}"
        yield ""
        rows = _rule_rows([catalog.rules(provider, each.id) for each in profiles])
        yield from table(("rule", "value", "models", "source and date"), rows)


def _rule_rows(rules: list[CacheRules]) -> Iterator[list[str]]:
    """A row for each figure; models that share it are in one row."""
    shared: dict[tuple[str, str, str, str], list[str]] = {}
    for row in rules:
        for name, figure in _figures(row):
            told = name, _shown(figure), str(figure.date), figure.source
            shared.setdefault(told, []).append(row.model)
    for (name, value, date, where), models in sorted(shared.items(), key=lambda each: each[0][0]):
        yield [code(name), cell(value), _named(models, len(rules)), f"{cell(where)}, {date}"]


def _named(models: list[str], count: int) -> str:
    if len(models) == count:
        return "all"
    more = len(models) - 3
    return ", ".join(map(code, models[:3])) + (f" and {more} more" if more > 0 else "")


def _figures(rules: CacheRules) -> Iterator[tuple[str, Figure[Any]]]:
    for field in msgspec.structs.fields(rules):
        value = getattr(rules, field.name)
        if isinstance(value, Figure):
            yield field.name, value
        elif isinstance(value, dict):
            yield from ((f"{field.name}.{key}", figure) for key, figure in value.items())


# ── Providers ────────────────────────────────────────────────────────────────────────────────────


def _providers() -> Iterator[str]:
    rows = [
        (
            code(row.name),
            wire.WIRES.get(row.wire, row.wire),
            code(row.auth),
            code(row.base_url + (row.path or "")),
        )
        for row in catalog.dialects().rows
    ]
    yield from table(("name", "wire", "key header", "address"), rows)
