"""Facts that hold for every provider of the catalog."""

from __future__ import annotations

from support.tables import each_row

from anaphora import catalog, wire

PROVIDERS = sorted(catalog.shipped().providers)
OTHERS = [name for name in PROVIDERS if name not in {"anthropic", "openai"}]


@each_row("provider", OTHERS)
def test_unknown_model_gets_the_most_conservative_figures_of_its_provider(provider: str) -> None:
    profile, rules = catalog.profile(provider, "next"), catalog.rules(provider, "next")
    assert not profile.known
    for known in catalog.models(provider):
        theirs = catalog.rules(provider, known.id)
        assert rules.minimum_tokens.value >= theirs.minimum_tokens.value
        assert rules.granule_tokens.value >= theirs.granule_tokens.value
        assert rules.read_price.value >= theirs.read_price.value
        assert rules.slots.value <= theirs.slots.value
        assert profile.bytes_per_token.value <= known.bytes_per_token.value
        assert profile.token_error.value >= known.token_error.value


def test_rows_for_a_wire_name_an_existing_wire() -> None:
    rows = [row for entries in catalog.shipped().entries.values() for row in entries.rows]
    named = {name for row in rows for name in row.wires}
    assert named
    assert named <= wire.WIRES.keys()


@each_row("provider", PROVIDERS)
def test_markers_need_markable_blocks(provider: str) -> None:
    for model in ["next", *(known.id for known in catalog.models(provider))]:
        for on in (None, *wire.WIRES):
            rules = catalog.rules(provider, model, on)
            assert (rules.slots.value > 0) == bool(rules.markable.value)
            if rules.slots.value:
                assert rules.mechanism.value in {"explicit", "both"}
