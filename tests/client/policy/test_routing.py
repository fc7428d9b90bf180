"""The hop of a conversation, and the cost of moving it to another."""

from __future__ import annotations

import datetime
from collections import Counter
from decimal import Decimal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.catalog import Price
from anaphora.catalog.prices import Tier
from anaphora.client.config import Hop
from anaphora.client.prices import moving_message, price_of_moving
from anaphora.client.routing import order

KEYS = [f"conversation {n}".encode() for n in range(3000)]


def first(hops: list[Hop], key: bytes) -> str:
    return hops[order(hops, key, None, [True] * len(hops))[0]].provider


hops = st.lists(
    st.builds(
        Hop,
        provider=st.sampled_from("abcdefgh"),
        model=st.none() | st.sampled_from(["m", "n"]),
        weight=st.sampled_from([0, 0, 1, 2.5]),
    ),
    min_size=1,
    max_size=5,
)


@given(hops=hops, key=st.binary(max_size=40), data=st.data())
def test_every_hop_appears_once_and_unavailable_ones_last(
    hops: list[Hop], key: bytes, data: st.DataObject
) -> None:
    count = len(hops)
    available = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    current = data.draw(st.none() | st.integers(0, count - 1))
    found = order(hops, key, current, available)
    assert sorted(found) == list(range(count))
    assert [available[at] for at in found] == sorted(available, reverse=True)
    for group in (True, False):
        rest = [at for at in found if available[at] is group]
        if current is not None and current in rest:
            assert rest.pop(0) == current
        weights = [hops[at].weight > 0 for at in rest]
        assert weights == sorted(weights, reverse=True)
        fallbacks = [at for at in rest if not hops[at].weight]
        assert fallbacks == sorted(fallbacks)
    assert found == order(hops, key, current, available)


def test_fallbacks_keep_their_order_for_every_conversation() -> None:
    hops = [Hop(provider=name) for name in "abc"]
    assert {order(hops, key, None, [True] * 3) for key in KEYS[:50]} == {(0, 1, 2)}


def test_conversations_are_shared_by_weight() -> None:
    hops = [Hop(provider="a", weight=1), Hop(provider="b", weight=3), Hop(provider="c")]
    counted = Counter(first(hops, key) for key in KEYS)
    assert set(counted) == {"a", "b"}
    # The keys are always the same ones: this is no matter of luck.
    assert counted["b"] / len(KEYS) == pytest.approx(0.75, abs=0.02)


def test_removed_hop_moves_only_its_own_conversations() -> None:
    hops = [Hop(provider=name, weight=1) for name in "abcd"]
    fewer = [hop for hop in hops if hop.provider != "c"]
    for key in KEYS[:500]:
        before = first(hops, key)
        assert first(fewer, key) == before or before == "c"


def test_unavailable_hop_is_replaced_by_the_next_in_order() -> None:
    hops = [Hop(provider=name, weight=1) for name in "abcd"]
    for key in KEYS[:100]:
        every = order(hops, key, None, [True] * 4)
        without = order(hops, key, None, [at != every[0] for at in range(4)])
        assert without == (*every[1:], every[0])


@given(key=st.sampled_from(KEYS), more=st.floats(1.1, 9))
def test_more_weight_only_wins_conversations(key: bytes, more: float) -> None:
    before = [Hop(provider="a", weight=1), Hop(provider="b", weight=1)]
    after = [before[0], Hop(provider="b", weight=more)]
    assume(first(before, key) == "b")
    assert first(after, key) == "b"


def test_order_of_the_list_does_not_matter() -> None:
    hops = [Hop(provider=name, weight=2) for name in "abcd"]
    for key in KEYS[:200]:
        assert first(hops, key) == first(hops[::-1], key)


def test_models_of_one_provider_are_separate_hops() -> None:
    hops = [Hop(provider="a", model=name, weight=1) for name in ("m", "n")]
    assert {order(hops, key, None, [True] * 2) for key in KEYS[:50]} == {(0, 1), (1, 0)}


def price(input: str | None, read: str | None, tiers: tuple[Tier, ...] = (), **write: str) -> Price:
    return Price(
        provider="p",
        model="m",
        input=None if input is None else Decimal(input),
        output=None,
        read=None if read is None else Decimal(read),
        write={f"{ttl[1:]}": Decimal(cost_usd) for ttl, cost_usd in write.items()},  # type: ignore[misc]
        tiers=tiers,
        source="test",
        date=datetime.date(2026, 11, 15),
    )


@each_row(
    "left, reached, cost_usd",
    [
        # Written at 3.75 instead of read at 0.30.
        (price("3", "0.3"), price("3", "0.3", _5m="3.75", _1h="6"), "0.0345"),
        # No price for writing: plain input.
        (price("3", "0.3"), price("1.25", "0.125"), "0.0095"),
        (price("3", "0.3"), price("0.1", "0.01"), "-0.002"),
        (price("3", None), price("3", "0.3"), None),
        (price("3", "0.3"), price(None, "0.3"), None),
        (None, price("3", "0.3"), None),
        (price("3", "0.3"), None, None),
    ],
)
def test_cost_of_moving_ten_thousand_tokens(
    left: Price | None, reached: Price | None, cost_usd: str | None
) -> None:
    expected = None if cost_usd is None else Decimal(cost_usd)
    assert price_of_moving(10_000, left, reached) == expected


def test_ttl_of_the_write_is_used() -> None:
    reached = price("3", "0.3", _5m="3.75", _1h="6")
    assert price_of_moving(1_000_000, price("3", "0.3"), reached, ttl="1h") == Decimal("5.7")


def test_long_prompts_have_their_own_price() -> None:
    long = Tier(above=200_000, input=Decimal(6), output=None, read=Decimal("0.6"), write={})
    both = price("3", "0.3", tiers=(long,))
    assert price_of_moving(200_000, both, both) == Decimal("0.54")
    assert price_of_moving(200_001, both, both) == Decimal("1.0800054")


@pytest.mark.parametrize(
    "cost_usd, expected",
    [
        ("0.0512", "moving from a to b pays 18,204 tokens of prefix again: $0.0512"),
        (
            "-0.002",
            "moving from a to b pays 18,204 tokens of prefix again, and $0.0020 less for them",
        ),
        (None, "moving from a to b pays 18,204 tokens of prefix again: dollars unknown"),
    ],
)
def test_moving_message(cost_usd: str | None, expected: str) -> None:
    cost = None if cost_usd is None else Decimal(cost_usd)
    assert moving_message("a", "b", 18_204, cost) == expected
