"""Every figure of the catalog has a source and a date."""

from __future__ import annotations

from typing import Any

import pytest
from support.facts import figures

from anaphora import catalog, wire
from anaphora.catalog import Figure

PROVIDERS = {
    provider: [
        "unheard-of",
        *(profile.id for profile in catalog.models() if profile.provider == provider),
    ]
    for provider in catalog.shipped().providers
}


def all_figures(provider: str, model: str) -> list[Figure[Any]]:
    """Of the profile, of the rules, and of the rules on every wire."""
    rules = [catalog.rules(provider, model, on) for on in (None, *wire.WIRES)]
    return [*figures(catalog.profile(provider, model)), *(f for r in rules for f in figures(r))]


def test_every_model_is_covered() -> None:
    assert {profile.provider for profile in catalog.models()} <= set(PROVIDERS)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_figure_has_a_source_and_a_date(provider: str) -> None:
    for model in PROVIDERS[provider]:
        found = all_figures(provider, model)
        assert len(found) >= 23, model  # the figures that no profile and no rules may be without
        for figure in found:
            assert figure.source.strip(), model
            assert figure.date.year == 2026, model
            assert all(other.source.strip() for other in figure.disputed), model
            assert all(other.value != figure.value for other in figure.disputed), model
            # A stand-in is never marked as published.
            assert not (figure.verified and figure.source.startswith(("stand-in", "derived")))
