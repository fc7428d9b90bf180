"""Every figure of the catalog has a source and a date."""

from __future__ import annotations

from typing import Any

import pytest
from support.facts import figures

from anaphora import catalog, wire
from anaphora.catalog import Figure

MODELS = [
    *((profile.provider, profile.id) for profile in catalog.models()),
    *((provider, "unheard-of") for provider in catalog.shipped().providers),
]


def all_figures(provider: str, model: str) -> list[Figure[Any]]:
    """Of the profile, of the rules, and of the rules on every wire."""
    rules = [catalog.rules(provider, model, on) for on in (None, *wire.WIRES)]
    return [*figures(catalog.profile(provider, model)), *(f for r in rules for f in figures(r))]


@pytest.mark.parametrize(("provider", "model"), MODELS)
def test_every_figure_has_a_source_and_a_date(provider: str, model: str) -> None:
    found = all_figures(provider, model)
    assert len(found) >= 23  # the figures that no profile and no rules may be without
    for figure in found:
        assert figure.source.strip()
        assert figure.date.year == 2026
        assert all(other.source.strip() for other in figure.disputed)
        assert all(other.value != figure.value for other in figure.disputed)


@pytest.mark.parametrize(("provider", "model"), MODELS)
def test_stand_in_is_never_marked_as_published(provider: str, model: str) -> None:
    for figure in all_figures(provider, model):
        assert not (figure.verified and figure.source.startswith(("stand-in", "derived")))
