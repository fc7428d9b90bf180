"""The lengths that cached prefixes may have: whole granules, less an offset, from a minimum on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import catalog
from anaphora.catalog import CacheRules
from anaphora.errors import InvalidCatalog

ROWS = """
provider = "acme"
[[profiles]]
models = ["acme-1"]
[[rules]]
source = "acme.example/caching"
date = 2026-11-17
minimum_tokens = {minimum}
granule_tokens = {granule}
granule_offset = {offset}
"""


def rules_with(granule: int, offset: int, minimum: int) -> CacheRules:
    text = ROWS.format(granule=granule, offset=offset, minimum=minimum)
    return catalog.decode(text).rules("acme", "acme-1")


STEPS = st.integers(1, 3000).flatmap(
    lambda granule: st.tuples(
        st.just(granule), st.integers(0, granule - 1), st.integers(0, 3 * granule)
    )
)


@given(STEPS, st.integers(0, 20_000))
def test_a_prefix_is_cached_up_to_its_last_whole_granule(
    steps: tuple[int, int, int], tokens: int
) -> None:
    granule, offset, minimum = steps
    rules = rules_with(granule, offset, minimum)
    lengths = range(granule - offset, tokens + 1, granule)
    expected = max((length for length in lengths if length >= minimum), default=0)
    read = rules.whole_granules(tokens)
    assert read == expected
    assert rules.whole_granules(read) == read
    assert (tokens >= rules.shortest_prefix) == (expected > 0)


@each_row(
    "provider, model, shortest",
    [
        ("openai", "gpt-5.5", 1408),
        ("openai", "gpt-5.3-codex-spark", 1024),
        ("anthropic", "claude-sonnet-4-5", 1024),
        ("vercel", "deepseek/deepseek-v4-flash", 128),
    ],
)
def test_the_shortest_prefix(provider: str, model: str, shortest: int) -> None:
    rules = catalog.rules(provider, model)
    assert rules.shortest_prefix == shortest
    assert rules.whole_granules(shortest) == shortest
    assert rules.whole_granules(shortest - 1) == 0


def test_an_offset_is_less_than_a_granule() -> None:
    with pytest.raises(InvalidCatalog, match="granule_offset must be less than granule_tokens"):
        rules_with(granule=128, offset=128, minimum=0)
