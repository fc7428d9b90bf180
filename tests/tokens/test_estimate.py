"""An estimate says that it is one, and behaves like a count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anaphora import catalog
from anaphora.tokens import estimate

sizes = st.integers(0, 10**9)
profiles = st.sampled_from(catalog.models())


@given(sizes, sizes, profiles)
def test_more_bytes_are_never_fewer_tokens(a: int, b: int, profile: catalog.Profile) -> None:
    low, high = (estimate(size, profile) for size in sorted((a, b)))
    assert low.tokens <= high.tokens
    assert low.low <= high.low
    assert low.high <= high.high


@given(sizes, sizes, profiles)
def test_parts_add_up_to_the_whole_but_for_rounding(
    a: int, b: int, profile: catalog.Profile
) -> None:
    parts, whole = estimate(a, profile) + estimate(b, profile), estimate(a + b, profile)
    assert 0 <= parts.tokens - whole.tokens <= 1
    # What the whole promises, the parts promise as well, but for the token rounded up.
    assert parts.low - 1 <= whole.low
    assert whole.high <= parts.high


@given(sizes, profiles)
def test_the_error_is_the_catalogs(size: int, profile: catalog.Profile) -> None:
    count = estimate(size, profile)
    assert count.low <= count.tokens <= count.high
    assert count.exact == (size == 0)
    stated = profile.token_error.value * count.tokens
    assert stated <= count.error * max(count.tokens, 1) + 1e-6 < stated + 1 + 1e-5


@given(profiles)
def test_nothing_is_no_tokens_and_a_byte_is_one(profile: catalog.Profile) -> None:
    assert estimate(0, profile).tokens == 0
    assert estimate(1, profile).tokens == 1


def test_the_newer_tokenizer_makes_about_a_third_more() -> None:
    older = estimate(1_000_000, catalog.profile("anthropic", "claude-opus-4-6"))
    newer = estimate(1_000_000, catalog.profile("anthropic", "claude-opus-4-7"))
    assert 1.25 <= newer.tokens / older.tokens <= 1.35
