"""The shipped price table: up to date, and with the prices of genai-prices."""

from __future__ import annotations

import datetime
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import genai_prices
import pytest
from genai_prices import types
from genai_prices.data import providers
from support.tables import each_row

from anaphora.catalog import price_data
from anaphora.catalog.load import SHIPPED
from anaphora.catalog.price_data import matches
from anaphora.catalog.pricing import NAMES, PriceLevel, PriceList, Service, listed

ROOT = Path(__file__).parents[2]
UTC = datetime.UTC
NOON = datetime.datetime(2026, 11, 16, 12, tzinfo=UTC)
KNOWN = {provider.id: provider for provider in providers}
SERVICES = [
    Service(),
    *(Service(tier) for tier in ("default", "flex", "priority", "fast", "no-such-tier")),
    Service(batch=True),
    Service("flex", batch=True),
]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prices_script", ROOT / "scripts" / "prices.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ── The file ─────────────────────────────────────────────────────────────────────────────────────


def test_committed_table_equals_the_output_of_make_prices() -> None:
    prices = script()
    assert prices.generate(SHIPPED.price_table.date) == prices.PATH.read_bytes(), "run: make prices"


def test_table_names_its_source_date_and_license() -> None:
    whole = json.loads((ROOT / "src/anaphora/catalog/price_table.json").read_bytes())
    assert whole["source"] == f"genai-prices {genai_prices.__version__}"
    assert datetime.date.fromisoformat(whole["date"]) == SHIPPED.price_table.date
    assert "MIT" in whole["license"]
    assert set(NAMES.values()) <= set(whole["providers"])


def test_no_price_changes_inside_of_a_slot() -> None:
    times = {
        time
        for provider in NAMES.values()
        for model in SHIPPED.price_table._provider(provider).models
        for entry in (*model.prices, *model.variants)
        for time in (entry.start, entry.end)
        if time is not None
    }
    assert times
    assert all(
        (t.hour * 3600 + t.minute * 60 + t.second) % price_data.PRICE_SLOT == 0 for t in times
    )


def test_damaged_table_error_names_the_file(tmp_path: Path) -> None:
    """In a copy of the package, as an editor or a broken install would leave it."""
    import shutil

    import anaphora

    home = tmp_path / "anaphora"
    shutil.copytree(Path(anaphora.__file__).parent, home)
    table = home / "catalog" / "price_table.json"
    table.write_bytes(table.read_bytes().replace(b'"input":', b'"input":"x","was":', 1))
    program = (
        "import datetime, anaphora.catalog as c, anaphora.errors as e\n"
        "when = datetime.datetime(2026, 11, 16, tzinfo=datetime.UTC)\n"
        "try: c.price('anthropic', 'claude-opus-5-5', when)\n"
        "except e.InvalidCatalog as problem: print(problem.file)\n"
        "assert c.price('openai', 'gpt-5', when).input  # another provider's rows are whole"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "price_table.json"


@each_row(
    "regex", ["gpt-5", "^gpt-(a+)+$", "^gpt-.*$", "^gpt|claude$", r"^(?!x)gpt$", "^a{2}$", "^[^a]$"]
)
def test_unsupported_regular_expression_is_rejected(regex: str) -> None:
    prices = script()
    with pytest.raises(prices.Inexpressible):
        prices._alternatives(types.ClauseRegex(regex=regex))


# ── Names ────────────────────────────────────────────────────────────────────────────────────────


@each_row(
    ("pattern", "fitting", "other"),
    [
        ("gpt-5", "gpt-5", "gpt-5a"),
        ("gpt-5*", "gpt-5a", "a-gpt-5"),
        ("*-5", "gpt-5", "gpt-5-"),
        ("*t-5*", "a-gpt-5-a", "gpt-6"),
        ("gpt-####", "gpt-2026", "gpt-202a"),
        ("gpt-####", "gpt-2026", "gpt-20260"),
        ("gpt-#*", "gpt-2x", "gpt-x2"),
        ("gpt-#*", "gpt-2", "gpt-"),
        ("!*-tts", "gpt-tts-1", "gpt-tts"),
    ],
)
def test_patterns(pattern: str, fitting: str, other: str) -> None:
    assert matches(pattern, fitting)
    assert not matches(pattern, other)


def literals(clause: Any) -> Iterator[str]:
    for name in ("equals", "starts_with", "ends_with", "contains"):
        if hasattr(clause, name):
            yield getattr(clause, name)
    if isinstance(clause, types.ClauseRegex):
        yield (
            clause.regex.strip("^$")
            .replace("\\.", ".")
            .replace("[-@]", "@")
            .replace(r"\d{8}", "20260901")
            .replace(r"\d{4}-\d{2}-\d{2}", "2026-09-01")
            .replace(r"\d", "7")
        )
    for part in (*getattr(clause, "or_", ()), *getattr(clause, "and_", ())):
        yield from literals(part)


#: Prefixes and suffixes of a name.
AROUND = (
    "{}-20251211", "{}-2025-12-11", "{}-20251399", "{}-tts", "{}-tts-1", "x{}", "{}@20260901", "{}-",
)  # fmt: skip


def names_of(provider: types.Provider) -> Iterator[str]:
    """Every name that the conditions mention, and one like it: each variant in turn."""
    found = {name for model in provider.models for name in (model.id, *literals(model.match))}
    variants = (str.upper, *(form.format for form in AROUND))
    for name, variant in zip(sorted(found), itertools.cycle(variants), strict=False):
        yield from (name, variant(name))


@pytest.mark.parametrize("provider", sorted(NAMES.values()))
@pytest.mark.long
def test_every_name_finds_the_model_that_genai_prices_finds(provider: str) -> None:
    theirs = KNOWN[provider]
    offered = [theirs, *(KNOWN[name] for name in theirs.fallback_model_providers or ())]
    names = {name for one in offered for name in names_of(one) if name}
    assert len(names) > 20
    for name in names:
        expected = theirs.find_model(name, all_providers=providers)
        found = SHIPPED.price_table.find(provider, name)
        assert (expected and expected.id) == (found and found[0].id), name
        if expected is not None:
            assert found is not None
            assert found[1] == any(expected is model for model in theirs.models), name


# ── Prices ───────────────────────────────────────────────────────────────────────────────────────


def moments(model: types.ModelInfo) -> Iterator[datetime.datetime]:
    """Around everything that the model's prices depend on."""
    yield NOON
    constraints = [variant.constraint for variant in model.price_variants or ()]
    if isinstance(model.prices, list):
        constraints += [price.constraint for price in model.prices]
    for constraint in constraints:
        if isinstance(constraint, types.StartDateConstraint):
            first = datetime.datetime.combine(constraint.start_date, datetime.time(), UTC)
            yield from (first, first - datetime.timedelta(microseconds=1))
        if isinstance(constraint, types.TimeOfDateConstraint):
            for day in (NOON.date(), datetime.date(2025, 3, 1)):
                for time in (constraint.start_time, constraint.end_time):
                    at = datetime.datetime.combine(day, time.replace(tzinfo=None), UTC)
                    yield from (at, at - datetime.timedelta(seconds=1))


def expected(
    provider: str, name: str, when: datetime.datetime, service: Service
) -> tuple[tuple[PriceLevel, ...], datetime.date | None] | None:
    """By genai-prices itself; None where it has no price for that service."""
    context = {} if service.tier in ("", "default") else {"service_tier": service.tier}
    context |= {"processing": "batch"} if service.batch else {}
    found = genai_prices.calc_price(
        genai_prices.Usage(), name, provider_id=provider,
        genai_request_timestamp=when, price_context=context or None,
    )  # fmt: skip
    own = any(found.model is model for model in found.provider.models)
    for key, value in context.items():
        # It falls back to the standard price without a word.
        variants = (found.model.price_variants or ()) if own else ()
        if not any(
            variant.when.get(key) == value
            and (variant.constraint is None or variant.constraint.active(when))
            and any(
                hasattr(variant.prices, k) and getattr(variant.prices, k) is not None for k in _KEYS
            )
            for variant in variants
        ):
            return None
    since = None
    if isinstance(found.model.prices, list):
        for price in reversed(found.model.prices):
            if price.constraint is None or price.constraint.active(when):
                since = getattr(price.constraint, "start_date", None)
                break
    return _levels(found.model_price), since


_KEYS = (
    "input_mtok", "output_mtok", "cache_read_mtok",
    "cache_write_mtok", "cache_write_5m_mtok", "cache_write_1h_mtok",
)  # fmt: skip


def _levels(price: types.ModelPrice) -> tuple[PriceLevel, ...]:
    values = [getattr(price, key) for key in _KEYS]
    starts = {
        t.start for value in values if isinstance(value, types.TieredPrices) for t in value.tiers
    }
    levels = []
    for above in sorted({0, *starts}):
        # One token more: a tier applies to prompts that are longer than its start.
        counts = [
            None
            if value is None
            else types.calc_unit_price(value, 1_000_000, above + 1 if above else 0, 10**6)
            for value in values
        ]
        writes = {None: counts[3], "5m": counts[4], "1h": counts[5]}
        levels.append(
            PriceLevel(
                above=above, input=counts[0], output=counts[1], read=counts[2],
                write={ttl: price for ttl, price in writes.items() if price is not None},  # type: ignore[misc]
            )
        )  # fmt: skip
    return tuple(levels)


@pytest.mark.parametrize("ours", sorted(NAMES))
@pytest.mark.long
def test_every_price_is_that_of_genai_prices(ours: str) -> None:
    provider = NAMES[ours]
    compared = 0
    offered = [provider, *(KNOWN[provider].fallback_model_providers or ())]
    for model in (model for name in offered for model in KNOWN[name].models):
        if SHIPPED.price_table.find(provider, model.id) is None:
            continue
        for when in dict.fromkeys(moments(model)):
            for service in SERVICES if model.price_variants else SERVICES[:3]:
                found: PriceList | None = listed(ours, model.id, when, service)
                priced = None if found is None else (found.levels, found.date)
                assert priced == expected(provider, model.id, when, service), (
                    model.id,
                    when,
                    service,
                )
                compared += found is not None
    assert compared > 5


def test_service_of_another_provider_has_no_price() -> None:
    """Azure offers OpenAI's models; its flex tier, if there is one, is not listed."""
    assert listed("azure", "gpt-5", NOON, Service()) is not None
    assert listed("openai", "gpt-5", NOON, Service("flex")) is not None
    assert listed("azure", "gpt-5", NOON, Service("flex")) is None


def test_service_has_no_price_before_its_first_listing() -> None:
    batch = Service(batch=True)
    assert listed("anthropic", "claude-opus-5-5", NOON, batch) is not None
    before = datetime.datetime(2026, 10, 1, tzinfo=UTC)
    assert listed("anthropic", "claude-opus-5-5", before, Service()) is not None
    assert listed("anthropic", "claude-opus-5-5", before, batch) is None
