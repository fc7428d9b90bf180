"""Reads that providers miss at random: their shares, what is expected, and the range."""

from __future__ import annotations

import random
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.prompts import chat
from support.tables import each_row

from anaphora import catalog
from anaphora.cache.simulator import Mark, Simulator, TokenRuns
from anaphora.cache.simulator.chances import CallChance, SimulatedCall, expected_usage
from anaphora.rendered import Kind


def grown(*sizes: int) -> TokenRuns:
    """A system prompt and messages, without markers."""
    blocks = [(f"block {index}", size) for index, size in enumerate(sizes)]
    sections = ["system", *(["messages"] * (len(sizes) - 1))]
    kinds = [Kind.SYSTEM, *([Kind.TEXT] * (len(sizes) - 1))]
    return TokenRuns.given(blocks, sections=sections, kinds=kinds)  # type: ignore[arg-type]


def found(cache: Simulator, prompt: TokenRuns, at: float) -> list[tuple[str, float, int]]:
    chances = cache.chances(prompt, at=at)
    return [(each.reason, each.share, each.outcome.read) for each in chances]


@each_row(
    "provider, model, expected",
    [
        ("openai", "gpt-5.2", [("missed", 0.04, 0), ("cut_short", 0.15, 5888)]),
        ("zai", "glm-4.6", [("missed", 0.17, 0), ("cut_short", 0.33, 6000)]),
        ("openrouter", "openai/gpt-5.2", [("missed", 0.04, 0), ("cut_short", 0.15, 5888)]),
        ("deepseek", "deepseek-v4-pro", []),
        ("openai", "gpt-5.6", []),
    ],
)
def test_shares_of_the_rules(
    provider: str, model: str, expected: list[tuple[str, float, int]]
) -> None:
    """A read that is cut short ends half way between the system prompt and the full read."""
    cache = Simulator(catalog.rules(provider, model))
    first, second = grown(2000, 8000), grown(2000, 8000, 500)
    assert found(cache, first, 0) == []
    cache.call(first, at=0)
    predicted = cache.predict(second, at=60)
    assert found(cache, second, 60) == expected
    # They change neither the prediction nor the cache.
    assert cache.predict(second, at=60) == predicted
    for chance in cache.chances(second, at=60):
        assert chance.outcome.total == predicted.total


def test_second_call_of_a_conversation_misses_more_often() -> None:
    """Gemini: the first two calls of a session miss, later ones seldom."""
    cache = Simulator(catalog.rules("google", "gemini-2.5-pro"))
    cache.call(grown(2000, 8000), at=0)
    second, third = grown(2000, 8000, 500), grown(2000, 8000, 500, 500)
    assert [share for _, share, _ in found(cache, second, 60)] == [0.6, 0.16]
    cache.call(second, at=60)
    assert [share for _, share, _ in found(cache, third, 90)] == [0.1, 0.16]


@pytest.mark.parametrize(
    "gap, expected", [(1.0, [("late_writes", 0.35, 3000)]), (2.5, [("late_writes", 0.35, 3000)]), (2.6, [])]
)  # fmt: skip
def test_fresh_write_may_not_be_visible(gap: float, expected: list[tuple[str, float, int]]) -> None:
    """Anthropic: within 2.5 seconds an older entry is read in a third of the calls."""
    cache = Simulator(catalog.rules("anthropic", "claude-sonnet-4-6"))
    prompts = [
        TokenRuns.given([("a", 3000), ("b", 500), ("c", 200)][:end], markers=(Mark(end - 1, "5m"),))
        for end in (1, 2, 3)
    ]
    cache.call(prompts[0], at=0)
    cache.call(prompts[1], at=100)
    assert cache.predict(prompts[2], at=100 + gap).read == 3500
    assert found(cache, prompts[2], 100 + gap) == expected
    for chance in cache.chances(prompts[2], at=100 + gap):
        assert chance.outcome.written == {"5m": 700}


def test_first_write_that_is_not_visible_is_written_again() -> None:
    cache = Simulator(catalog.rules("anthropic", "claude-sonnet-4-6"))
    prompt = TokenRuns.given([("a", 3000)], markers=(Mark(0, "5m"),))
    cache.call(prompt, at=0)
    (chance,) = cache.chances(prompt, at=1)
    assert (chance.outcome.read, chance.outcome.written) == (0, {"5m": 3000})


def call(read: int, *others: tuple[float, int]) -> SimulatedCall:
    def cost(tokens: int) -> Decimal:
        return Decimal(10_000 - tokens) / 1_000_000

    chances = tuple(
        CallChance(share=share, reason="missed", read=read, cost_usd=cost(read))
        for share, read in others
    )
    return SimulatedCall(read, cost(read), chances)


def test_expected_usage() -> None:
    certain = expected_usage([call(1000), call(500)])
    assert certain.certain
    assert (certain.read.expected, certain.read.low, certain.read.high) == (1500, 1500, 1500)
    assert certain.cost_usd is not None
    assert certain.cost_usd.expected == certain.cost_usd.low == Decimal("0.0185")
    one = expected_usage([call(1000, (0.5, 0))])
    assert (one.read.expected, one.read.low, one.read.high) == (500, 0, 1000)
    assert one.cost_usd is not None
    assert one.cost_usd.expected == Decimal("0.0095")
    # The more calls, the narrower the range is in proportion.
    many = expected_usage([call(1000, (0.5, 0))] * 100)
    assert (many.read.expected, many.read.low, many.read.high) == (50_000, 41_775, 58_225)
    assert expected_usage([]).cost_usd is None
    assert expected_usage([SimulatedCall(5, None, ())]).cost_usd is None


step = Decimal("0.0000001")
calls = st.lists(
    st.builds(
        lambda read, shares: call(read, *((share / 4, part) for share, part in shares)),
        st.integers(0, 100_000),
        st.lists(st.tuples(st.floats(0, 1), st.integers(0, 100_000)), max_size=3),
    ),
    max_size=20,
)


@given(calls)
def test_range_holds_what_is_expected_and_nothing_impossible(made: list[SimulatedCall]) -> None:
    usage = expected_usage(made)
    least = sum(min([one.read, *(each.read for each in one.chances)]) for one in made)
    most = sum(max([one.read, *(each.read for each in one.chances)]) for one in made)
    read, cost = usage.read, usage.cost_usd
    assert least <= read.low <= read.expected <= read.high <= most
    assert cost is None or cost.low <= cost.expected <= cost.high
    if cost is not None and usage.median_usd is not None:
        amounts = [Decimal(len(made) * 10_000 - read) / 1_000_000 for read in (most, least)]
        assert amounts[0] - step <= usage.median_usd <= amounts[1] + step


@each_row("share, count", [(0.01, 20), (0.02, 40), (0.1, 30), (0.3, 200), (0.02, 400)])
def test_as_many_bills_are_above_the_median_as_below(share: float, count: int) -> None:
    """Whole calls that miss: a median of so many of them."""
    usage, draw = expected_usage([call(5000, (share, 0))] * count), random.Random(1)
    bills = sorted(sum(draw.random() < share for _ in range(count)) for _ in range(1001))
    assert usage.median_usd is not None
    missed = (usage.median_usd * 1_000_000 - 5000 * count) / 5000
    assert abs(float(missed) - bills[500]) <= 0.5


def test_marked_and_unmarked_requests() -> None:
    """A gateway that caches by markers loses whole entries."""
    cache = Simulator(catalog.rules("openrouter", "anthropic/claude-sonnet-4.6", "openai_chat"))
    first = chat([("a", 5000)])
    marked = TokenRuns.given([("a", 5000)], markers=(Mark(0, "5m"),))
    cache.call(first, at=0)
    cache.call(marked, at=1)
    assert [each.reason for each in cache.chances(marked, at=30)] == ["missed", "cut_short"]
