"""Finding the row of a name, and the layers of rows."""

from __future__ import annotations

import re
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import catalog
from anaphora.errors import InvalidRequest

KNOWN = [profile.id for profile in catalog.models("anthropic")]


@each_row(
    ("model", "found"),
    [
        ("claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5-latest", "claude-sonnet-4-5"),
        ("claude-sonnet-4-20250514", "claude-sonnet-4"),
        ("claude-opus-4-1-20250805", "claude-opus-4-1"),
        ("claude-sonnet-4-5-2025-09-29", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5-2025092", None),
        ("claude-sonnet-4-5-2025-9-29", None),
        ("claude-sonnet-4-5@2025-09-29", None),
        ("claude-sonnet-4-5-202509290", None),
        ("claude-sonnet-4-5@latest", None),
        ("claude-sonnet-4-5-latest-latest", None),
        ("claude-sonnet-4-5-20250929-latest", None),
        ("claude-sonnet-4-5-20250929\n", None),
        ("claude-sonnet-4-5-٢٠٢٥٠٩٢٩", None),
        ("claude-sonnet-4-5-v2", None),
        ("claude-sonnet-4-55", None),
        ("claude-sonnet", None),
        ("Claude-Sonnet-4-5", None),
        ("anthropic.claude-sonnet-4-5", None),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", None),
        ("-latest", None),
        ("", None),
    ],
)
def test_matching(model: str, found: str | None) -> None:
    profile = catalog.profile("anthropic", model)
    rules = catalog.rules("anthropic", model)
    assert profile.known == (found is not None)
    assert profile.id == rules.model == (model if found is None else found)


@given(st.sampled_from(KNOWN), st.text(max_size=12))
def test_only_a_date_or_latest_may_follow_an_id(model: str, suffix: str) -> None:
    profile = catalog.profile("anthropic", model + suffix)
    digits = suffix[1:]
    dated = suffix[:1] in {"-", "@"} and len(digits) == 8 and digits.isascii() and digits.isdigit()
    dated = dated or re.fullmatch("-[0-9]{4}-[0-9]{2}-[0-9]{2}", suffix) is not None
    allowed = suffix in {"", "-latest"} or dated or model + suffix in KNOWN
    assert profile.known == allowed


def test_unknown_model_gets_conservative_figures() -> None:
    profile = catalog.profile("anthropic", "claude-next")
    rules = catalog.rules("anthropic", "claude-next")
    assert not profile.known
    assert not profile.mid_conversation_system.value
    assert profile.strips_thinking.value
    others = [catalog.rules("anthropic", model) for model in KNOWN]
    assert rules.minimum_tokens.value == max(other.minimum_tokens.value for other in others)
    assert rules.read_price.value == max(other.read_price.value for other in others)
    sizes = [other.bytes_per_token.value for other in catalog.models("anthropic")]
    assert profile.bytes_per_token.value == min(sizes)
    for figure in (
        profile.mid_conversation_system,
        profile.strips_thinking,
        profile.refusals,
        profile.tokenizer,
        profile.bytes_per_token,
        rules.minimum_tokens,
        rules.read_price,
    ):
        assert not figure.verified


@pytest.mark.parametrize("ask", [catalog.profile, catalog.rules])
def test_unknown_provider_is_rejected(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(
        InvalidRequest, match="unknown provider 'acme'; known: alibaba, anthropic,"
    ) as raised:
        ask("acme", "m")
    assert raised.value.path == "provider"
    with pytest.raises(InvalidRequest):
        catalog.models("acme")


OVERRIDE = """
provider = "anthropic"

[[rules]]
source = "measured here"
date = 2026-11-15
models = ["claude-opus-4-7", "claude-house"]
minimum_tokens = 100
write_price = { 1h = 1.9 }

[[profiles]]
source = "our own deployment"
date = 2026-11-15
models = ["claude-house"]
context_tokens = 1000
"""


def test_overlaid_rows_win_figure_by_figure() -> None:
    base = catalog.shipped()
    mine = base.with_rows(OVERRIDE)
    before, after = (
        base.rules("anthropic", "claude-opus-4-7"),
        mine.rules("anthropic", "claude-opus-4-7-20260416"),
    )
    assert (after.minimum_tokens.value, after.minimum_tokens.source) == (100, "measured here")
    assert after.minimum_tokens.disputed == ()
    assert after.write_price["1h"].value == 1.9
    assert after.write_price["5m"] == before.write_price["5m"]
    assert after == msgspec.structs.replace(
        before, minimum_tokens=after.minimum_tokens, write_price=after.write_price
    )
    # Others, and the catalog it was laid over, stay as they were.
    assert mine.rules("anthropic", "claude-opus-5") == base.rules("anthropic", "claude-opus-5")
    assert base.rules("anthropic", "claude-opus-4-7") == before


def test_profile_row_adds_a_model() -> None:
    mine = catalog.shipped().with_rows(OVERRIDE)
    house = mine.profile("anthropic", "claude-house")
    assert house.known
    assert house.context_tokens is not None
    assert house.context_tokens.value == 1000
    assert mine.models("anthropic")[-1] == house
    assert not catalog.profile("anthropic", "claude-house").known


def test_later_provider_row_wins_over_model_rows() -> None:
    text = 'provider = "anthropic"\n[[rules]]\nsource = "x"\ndate = 2026-11-15\nslots = 2\n'
    mine = catalog.shipped().with_rows(text)
    assert {mine.rules("anthropic", model).slots.value for model in [*KNOWN, "other"]} == {2}


def test_row_with_new_ttls_drops_the_old_prices() -> None:
    text = (
        'provider = "anthropic"\n[[rules]]\nsource = "x"\ndate = 2026-11-15\n'
        'models = ["claude-opus-5"]\nttls = ["12h", "5m"]\nwrite_price = { 12h = 3.0 }\n'
    )
    rules = catalog.shipped().with_rows(text).rules("anthropic", "claude-opus-5")
    prices = {ttl: figure.value for ttl, figure in rules.write_price.items()}
    assert prices == {"5m": 1.25, "12h": 3.0}


ON_A_WIRE = """
provider = "openai"

[[rules]]
source = "x"
date = 2026-11-15
wires = ["anthropic"]
models = ["gpt-5.5"]
slots = 4
"""


def test_rules_may_differ_by_wire() -> None:
    mine = catalog.shipped().with_rows(ON_A_WIRE)
    plain = mine.rules("openai", "gpt-5.5")
    there = mine.rules("openai", "gpt-5.5", "anthropic")
    assert plain == mine.rules("openai", "gpt-5.5", "openai_chat")
    assert plain == catalog.rules("openai", "gpt-5.5", wire="anthropic")
    assert there == msgspec.structs.replace(plain, slots=there.slots)
    assert (plain.slots.value, there.slots.value) == (0, 4)
    assert mine.rules("openai", "gpt-5.4", "anthropic").slots.value == 0


def test_unknown_model_has_rules_on_a_wire() -> None:
    text = ON_A_WIRE.replace('models = ["gpt-5.5"]\n', "")
    rules = catalog.shipped().with_rows(text).rules("openai", "gpt-next", "anthropic")
    assert (rules.model, rules.slots.value) == ("gpt-next", 4)


def test_file_may_hold_several_providers() -> None:
    text = (
        'providers = ["anthropic", "openai"]\n'
        '[[rules]]\nsource = "x"\ndate = 2026-11-15\nminimum_tokens = 7\n'
        '[[rules]]\nsource = "x"\ndate = 2026-11-15\nproviders = ["openai"]\nslots = 9\n'
    )
    mine = catalog.shipped().with_rows(text)
    anthropic, openai = mine.rules("anthropic", "claude-opus-5"), mine.rules("openai", "gpt-5.5")
    assert (anthropic.minimum_tokens.value, anthropic.slots.value) == (7, 4)
    assert (openai.minimum_tokens.value, openai.slots.value) == (7, 9)


def test_catalog_can_be_written_from_scratch() -> None:
    import pkgutil

    data = pkgutil.get_data("anaphora.catalog", "anthropic.toml")
    assert data is not None
    mine = catalog.decode(data.decode().replace('provider = "anthropic"', 'provider = "acme"'))
    assert [profile.id for profile in mine.models("acme")] == KNOWN
    with pytest.raises(InvalidRequest, match="known: acme"):
        mine.profile("anthropic", "claude-opus-5")


def test_importing_reads_nothing() -> None:
    code = (
        "import sys, anaphora.catalog as c; assert 'tomllib' not in sys.modules;"
        "assert not any(vars(c.SHIPPED).values());"
        "assert c.models() and c.shipped() is c.shipped()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
