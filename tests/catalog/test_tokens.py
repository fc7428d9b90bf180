"""An estimate says that it is one, and behaves like a count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anaphora import catalog

sizes = st.integers(0, 10**9)
profiles = st.sampled_from(catalog.models())


@given(sizes, sizes, profiles)
def test_more_bytes_are_never_fewer_tokens(a: int, b: int, profile: catalog.Profile) -> None:
    low, high = sorted((a, b))
    assert catalog.estimate(low, profile) <= catalog.estimate(high, profile)


@given(sizes, sizes, profiles)
def test_parts_add_up_to_the_whole_but_for_rounding(
    a: int, b: int, profile: catalog.Profile
) -> None:
    parts = catalog.estimate(a, profile) + catalog.estimate(b, profile)
    assert 0 <= parts - catalog.estimate(a + b, profile) <= 1


@given(sizes, profiles)
def test_the_error_frames_the_estimate(size: int, profile: catalog.Profile) -> None:
    within = catalog.estimate_within(size, profile)
    assert within.tokens == catalog.estimate(size, profile)
    assert within.low <= within.tokens <= within.high
    assert 0 < within.error < 1


@given(profiles)
def test_nothing_is_no_tokens_and_a_byte_is_one(profile: catalog.Profile) -> None:
    assert catalog.estimate(0, profile) == 0
    assert catalog.estimate(1, profile) == 1


def test_the_newer_tokenizer_makes_about_a_third_more() -> None:
    older = catalog.estimate(1_000_000, catalog.profile("anthropic", "claude-opus-4-6"))
    newer = catalog.estimate(1_000_000, catalog.profile("anthropic", "claude-opus-4-7"))
    assert 1.25 <= newer / older <= 1.35
