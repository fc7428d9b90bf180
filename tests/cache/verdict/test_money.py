"""Dollars lost: what was paid for tokens that could have been read, less what reading costs."""

from __future__ import annotations

import datetime
from decimal import Decimal

from support.planted import PLACES, body, grown, spec, split, verdict_of
from support.tables import each_row

from anaphora import catalog
from anaphora.cache.verdict.prediction import lost_usd
from anaphora.tokens import Counts
from anaphora.values import Usage

NOW = datetime.datetime(2026, 11, 14, tzinfo=datetime.UTC)
SONNET = catalog.price("anthropic", "claude-sonnet-4-5", NOW)  # 3 in, 0.3 read, 3.75 and 6 written
GPT = catalog.price("openai", "gpt-5", NOW)


@each_row(
    "usage, lost, cost_usd",
    [
        (Usage(uncached=0, read=0, written={"5m": 100_000}, output=0), 100_000, "0.345"),
        (Usage(uncached=0, read=0, written={"1h": 100_000}, output=0), 100_000, "0.57"),
        # Longer prompts cost twice as much, all of them.
        (Usage(uncached=0, read=0, written={"5m": 1_000_000}, output=0), 1_000_000, "6.9"),
        # A prefix is written before what follows it: the hour's first, then the five minutes'.
        (Usage(uncached=0, written={"5m": 60_000, "1h": 40_000}, output=0), 50_000, "0.2625"),
        (Usage(uncached=100_000, read=0, output=0), 100_000, "0.27"),
        (Usage(uncached=50_000, written={"5m": 50_000}, output=0), 80_000, "0.2535"),
        (Usage(uncached=5, read=10, output=0), 0, "0"),
    ],
)
def test_lost_cost_is_the_price_difference(usage: Usage, lost: int, cost_usd: str) -> None:
    assert lost_usd(usage, lost, SONNET) == Decimal(cost_usd)


def test_an_unknown_price_gives_an_unknown_cost() -> None:
    usage = Usage(uncached=100_000, output=0)
    assert lost_usd(usage, 100_000, None) is None
    assert lost_usd(None, 100_000, SONNET) is None


def test_an_implicit_cache_costs_the_input_price() -> None:
    assert GPT is not None
    assert GPT.input is not None
    assert GPT.read is not None
    usage = Usage(uncached=1_000_000, read=0, output=0)
    assert lost_usd(usage, 1_000_000, GPT) == GPT.input - GPT.read


def test_the_sentence_has_the_cost_or_that_it_is_unknown() -> None:
    place = PLACES["anthropic"]
    after = grown(spec())
    after["tools"].reverse()
    one, two = split(place, body(place, spec())), split(place, body(place, after))
    result = verdict_of(place, one, two, price=SONNET)
    assert result.cost_usd is not None
    assert f"${result.cost_usd:.4f} lost" in result.sentence
    assert "cost unknown" in verdict_of(place, one, two).sentence


def test_removed_tokens_are_not_billed_again() -> None:
    """A history that was cut off: the bill falls, and only the rest is billed again."""
    place = PLACES["anthropic"]
    before, after = spec(), spec()
    before["messages"][1] = ("assistant", ["A long story. " * 2000])
    after["messages"][1] = ("assistant", ["Cut."])
    one, two = split(place, body(place, before)), split(place, body(place, after))
    change = verdict_of(place, one, two)
    assert change.left is not None
    assert change.left > change.lost == Counts(two).total
