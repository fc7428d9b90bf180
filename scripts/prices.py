"""Write the price table of the catalog from the installed genai-prices: `make prices`.

Takes the models of our providers with all that decides what a token costs: prices by date, by time
of day, by prompt length, by service tier and for batches. What the table cannot express is an
error, so that nothing is left out unnoticed.
"""

from __future__ import annotations

import datetime
import itertools
import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import genai_prices
import msgspec
from genai_prices import types
from genai_prices.data import providers

from anaphora.catalog.price_data import (
    FIELDS,
    PRICE_SLOT,
    TABLE_FILE,
    Amount,
    PricedModel,
    PricedProvider,
    PriceEntry,
)
from anaphora.catalog.pricing import NAMES

PATH = Path(__file__).parent.parent / "src" / "anaphora" / "catalog" / TABLE_FILE
LICENSE = "MIT, Copyright (c) Pydantic Services Inc. 2025 to present, pydantic/genai-prices"

_KEYS = {
    "input_mtok": "input",
    "output_mtok": "output",
    "cache_read_mtok": "read",
    "cache_write_mtok": "write",
    "cache_write_5m_mtok": "write_5m",
    "cache_write_1h_mtok": "write_1h",
}
assert tuple(_KEYS.values()) == FIELDS

#: "Not a speech model": the one condition that is no pattern by itself.
_NOT_SPEECH = r"^(?!.*-[tT][tT][sS](?:$|-))"

#: A literal, a digit, so many digits, or one of some characters.
_STEP = re.compile(r"\\d\{(\d+)\}|(\\d)|\[([^\]\\^]+)\]|\\([.\-/@:])|([A-Za-z0-9_/@:-])")


class Inexpressible(Exception):
    """The price data hold something that the table has no form for."""


def generate(date: datetime.date) -> bytes:
    """The whole file; one line a model, so that a diff shows which prices changed."""
    encoder = msgspec.json.Encoder(decimal_format="number")
    head = {
        "source": f"genai-prices {genai_prices.__version__}",
        "date": date,
        "license": LICENSE,
    }
    lines = [f'"{name}": {encoder.encode(value).decode()},' for name, value in head.items()]
    known = {provider.id: provider for provider in providers}
    wanted = dict.fromkeys(NAMES.values())
    for name in tuple(wanted):
        wanted |= dict.fromkeys(known[name].fallback_model_providers or ())
    blocks = []
    for name in wanted:
        row = _provider(known[name])
        fallback = encoder.encode(row.fallback).decode()
        models = ",\n".join(encoder.encode(model).decode() for model in row.models)
        blocks.append(f'"{name}": {{"fallback": {fallback}, "models": [\n{models}\n]}}')
    text = "\n".join(["{", *lines, '"providers": {', ",\n".join(blocks), "}}", ""])
    return text.encode()


def _provider(provider: types.Provider) -> PricedProvider:
    return PricedProvider(
        fallback=tuple(provider.fallback_model_providers or ()),
        models=tuple(_model(model) for model in provider.models),
    )


def _model(model: types.ModelInfo) -> PricedModel:
    prices = model.prices
    if isinstance(prices, types.ModelPrice):
        prices = [types.ConditionalPrice(prices=prices)]
    alternatives = dict.fromkeys(_alternatives(model.match))
    return PricedModel(
        id=model.id,
        match=tuple(one if len(one) > 1 else one[0] for one in alternatives),
        prices=tuple(_entry(one.prices, one.constraint) for one in prices),
        variants=tuple(_variants(model)),
    )


def _variants(model: types.ModelInfo) -> Iterator[PriceEntry]:
    """Those that a call here can ask for, and that change what a token costs."""
    for variant in model.price_variants or ():
        service = dict(variant.when)
        tier, processing = service.pop("service_tier", ""), service.pop("processing", "")
        if service or processing not in ("", "batch"):
            continue  # a route or a kind of processing that no request of ours names
        entry = _entry(variant.prices, variant.constraint, tier=tier, batch=processing == "batch")
        if entry.amounts():
            yield entry


def _entry(prices: types.ModelPrice, constraint: Any, **service: Any) -> PriceEntry:
    amounts = {ours: _amount(getattr(prices, theirs)) for theirs, ours in _KEYS.items()}
    return PriceEntry(**service, **_constraint(constraint), **amounts)


def _constraint(constraint: Any) -> dict[str, Any]:
    match constraint:
        case None:
            return {}
        case types.StartDateConstraint():
            return {"since": constraint.start_date}
        case types.TimeOfDateConstraint():
            return {"start": _utc(constraint.start_time), "end": _utc(constraint.end_time)}
    raise Inexpressible(f"a constraint {constraint!r}")


def _utc(time: datetime.time) -> datetime.time:
    if time.tzinfo is not None:
        day = datetime.datetime.combine(datetime.date(2000, 1, 2), time)
        time = day.astimezone(datetime.UTC).time()
    if (time.hour * 3600 + time.minute * 60 + time.second) % PRICE_SLOT or time.microsecond:
        raise Inexpressible(f"a price that changes at {time}")
    return time


def _amount(price: Decimal | types.TieredPrices | None) -> Amount | None:
    if not isinstance(price, types.TieredPrices):
        return price
    starts = {tier.start: tier.price for tier in price.tiers}
    if len(starts) != len(price.tiers) or min(starts, default=1) < 1:
        raise Inexpressible(f"tiers {price!r}")
    return {0: price.base, **starts}


# ── Names ────────────────────────────────────────────────────────────────────────────────────────


def _alternatives(clause: Any) -> list[tuple[str, ...]]:
    """Any of these, each of which is patterns that all have to match."""
    match clause:
        case types.ClauseEquals():
            return [(_literal(clause.equals),)]
        case types.ClauseStartsWith():
            return [(_literal(clause.starts_with) + "*",)]
        case types.ClauseEndsWith():
            return [("*" + _literal(clause.ends_with),)]
        case types.ClauseContains():
            return [(f"*{_literal(clause.contains)}*",)]
        case types.ClauseRegex():
            return _regex(clause.regex)
        case types.ClauseOr():
            return [one for part in clause.or_ for one in _alternatives(part)]
        case types.ClauseAnd():
            parts = map(_alternatives, clause.and_)
            return [tuple(itertools.chain(*one)) for one in itertools.product(*parts)]
    raise Inexpressible(f"a condition {clause!r}")


def _literal(text: str) -> str:
    if not text or set(text) & set("*#!"):
        raise Inexpressible(f"the name {text!r}")
    return text.lower()


def _regex(regex: str) -> list[tuple[str, ...]]:
    """Anchored ones made of literals, digits and sets of characters; each is a few patterns."""
    if regex == _NOT_SPEECH:
        return [("!*-tts", "!*-tts-*")]
    body, star = (regex[1:-1], "") if regex.endswith("$") else (regex[1:], "*")
    found, at = [""], 0
    while at < len(body):
        step = _STEP.match(body, at)
        if step is None or not regex.startswith("^"):
            raise Inexpressible(f"the regular expression {regex!r}")
        count, digit, some, escaped, plain = step.groups()
        ways = some or (escaped or plain or ("#" * int(count) if count else digit and "#"),)
        found = [start + way.lower() for start in found for way in ways]
        at = step.end()
    return [(one + star,) for one in found]


def main() -> None:
    before = PATH.read_bytes() if PATH.exists() else b""
    # The date is that of the last change.
    written = re.search(rb'^"date": "([0-9-]+)",$', before, re.MULTILINE)
    if written and generate(datetime.date.fromisoformat(written[1].decode())) == before:
        sys.stdout.write(f"prices: {TABLE_FILE} is up to date\n")
        return
    data = generate(datetime.datetime.now(datetime.UTC).date())
    PATH.write_bytes(data)
    sys.stdout.write(f"prices: wrote {TABLE_FILE}, {len(data):,} bytes\n")


if __name__ == "__main__":
    main()
