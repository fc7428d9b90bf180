"""The conservative defaults of providers with few known facts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.facts import figures

from anaphora import catalog
from anaphora.catalog.load import SHIPPED
from anaphora.catalog.rows import FIELDS, RowKind, decode_defaults
from anaphora.errors import InvalidCatalog, InvalidRequest

SMALL = """
provider = "acme"

[[profiles]]
source = "acme.example/models"
date = 2026-11-15
models = ["acme-1"]
context_tokens = 32768
"""


@pytest.mark.parametrize("kind", ["rules", "profiles"])
def test_defaults_state_every_required_figure(kind: RowKind) -> None:
    stated = {field for row in SHIPPED.defaults if row.kind == kind for field in row.figures}
    assert {name for name, field in FIELDS[kind].items() if field.required} <= stated


def test_default_rows_are_for_all_providers_and_models() -> None:
    assert {(row.provider, row.models, row.wires) for row in SHIPPED.defaults} == {("", (), ())}


def test_new_provider_needs_only_known_facts() -> None:
    mine = catalog.shipped().with_rows(SMALL)
    profile, rules = mine.profile("acme", "acme-1"), mine.rules("acme", "acme-1")
    assert profile.known
    assert profile.context_tokens is not None
    assert profile.context_tokens.value == 32768
    rest = [*figures(profile), *figures(rules)]
    rest.remove(profile.context_tokens)
    assert len(rest) > 25
    assert not any(figure.verified for figure in rest)
    other = mine.profile("acme", "acme-2")
    assert (other.known, other.context_tokens) == (False, None)
    assert mine.rules("acme", "acme-2").provider == "acme"
    assert "acme" not in catalog.shipped().providers


def test_provider_without_rows_stays_unknown() -> None:
    for known in (catalog.shipped(), catalog.shipped().with_rows(SMALL)):
        with pytest.raises(InvalidRequest, match="unknown provider 'emca'; known: ") as raised:
            known.rules("emca", "m")
        assert all(name in str(raised.value) for name in known.providers)
    with pytest.raises(InvalidRequest, match="unknown provider 'acme'"):
        catalog.shipped().with_rows('provider = "acme"\n').profile("acme", "m")


def test_row_without_figures_adds_a_provider() -> None:
    mine = catalog.decode('provider = "acme"\n[[profiles]]\nmodels = ["acme-1"]\n')
    assert [profile.id for profile in mine.models()] == ["acme-1"]


def test_without_removes_a_default_figure() -> None:
    mine = catalog.decode(SMALL + 'without = ["system_role"]\n')
    assert mine.profile("acme", "acme-1").system_role is None
    assert mine.profile("acme", "acme-2").system_role is not None
    again = mine.with_rows(
        'provider = "acme"\n[[profiles]]\nsource = "me"\ndate = 2026-11-15\nsystem_role = "system"\n'
    )
    assert again.profile("acme", "acme-1").system_role is not None


def everyone() -> Iterator[tuple[catalog.Profile, catalog.CacheRules]]:
    for provider in catalog.shipped().providers:
        for model in ["next", *(known.id for known in catalog.models(provider))]:
            yield catalog.profile(provider, model), catalog.rules(provider, model)


def test_no_provider_is_stricter_than_the_defaults() -> None:
    defaults = catalog.decode('provider = "acme"\n[[rules]]\n').rules("acme", "m")
    for _, rules in everyone():
        assert defaults.minimum_tokens.value >= max(rules.minimum_tokens.published)
        assert defaults.granule_tokens.value >= max(rules.granule_tokens.published)
        assert defaults.read_price.value >= max(rules.read_price.published)
        assert defaults.slots.value <= min(rules.slots.published)
        assert defaults.reads_refresh.value <= rules.reads_refresh.value


def test_default_estimate_covers_the_densest_and_widest_text() -> None:
    defaults = catalog.decode('provider = "acme"\n[[rules]]\n').profile("acme", "m")
    size, error = defaults.bytes_per_token.value, defaults.token_error.value
    for profile, _ in everyone():
        assert size / (1 + error) <= min(profile.bytes_per_token.published)
        assert max(profile.bytes_per_token.published) <= size / (1 - error)
        assert error >= profile.token_error.value


@pytest.mark.parametrize(
    ("text", "message"),
    [('provider = "acme"\n', "unknown field 'provider'"), ("[[rules]]\nslots = 1\n", "`source`")],
)
def test_defaults_have_the_format_of_other_files(text: str, message: str) -> None:
    with pytest.raises(InvalidCatalog, match=message) as raised:
        _ = [row.figures for row in decode_defaults(text, file="defaults.toml")]
    assert raised.value.file == "defaults.toml"
