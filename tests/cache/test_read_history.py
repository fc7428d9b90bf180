"""Which prediction of a read is made, after the bills before it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.cache.read_history import CHAIN, KEPT, ReadHistory, Shortfall, read_class

CANDIDATES = {
    "simulated": 1000,
    KEPT: 900,
    CHAIN: 900,
    "reply": 950,
    "beginning": 300,
    "nothing": 0,
}
HERE, THERE = ("here", "anywhere"), ("there", "anywhere")


def after(*bills: int, default: str = "simulated", situations: tuple[str, ...] = HERE) -> str:
    history = ReadHistory()
    for read in bills:
        history.learn(situations, CANDIDATES, 1000, read)
    return history.choose(HERE, CANDIDATES, default)


@each_row(
    "bills, chosen",
    [
        ((), "simulated"),
        ((950,), "reply"),  # of the same class: one bill is enough
        ((950, 900), CHAIN),  # of the same length as what was kept
        ((0,), "simulated"),  # of another class: it may be chance
        ((0, 0, 0), "simulated"),
        ((0,) * 7, "nothing"),
        ((300,) * 7, "beginning"),
        ((0, 1000) * 20, "simulated"),
        ((17,) * 50, "beginning"),  # right in its class, if not to the token
    ],
)
def test_the_prediction_that_bills_bear_out(bills: tuple[int, ...], chosen: str) -> None:
    assert after(*bills) == chosen


def test_bills_of_a_wider_situation_count_until_closer_ones_speak_against_them() -> None:
    history = ReadHistory()
    for _ in range(9):
        history.learn(THERE, CANDIDATES, 1000, 0)
    assert history.choose(HERE, CANDIDATES, "simulated") == "nothing"
    history.learn(HERE, CANDIDATES, 1000, 1000)
    assert history.choose(HERE, CANDIDATES, "simulated") == "simulated"
    assert history.choose(THERE, CANDIDATES, "simulated") == "nothing"


def test_what_was_seen_long_ago_is_outweighed() -> None:
    assert after(*[0] * 300, *[1000] * 60) == "simulated"


def test_the_rules_give_way_to_the_chain_where_they_are_behind_it() -> None:
    """One bill is enough: what is not better than the chain has no business there."""
    assert after(0, 0, 900) in (KEPT, CHAIN)


@pytest.mark.parametrize("between", [0, 40, 400])
def test_bills_that_say_nothing_about_two_predictions_make_no_earlier_one_count_less(
    between: int,
) -> None:
    """The rules and nothing are the same in most calls, and rules are wrong where they differ."""
    history, alike = ReadHistory(), {**CANDIDATES, "simulated": 0, CHAIN: 0}
    differ = {**alike, "simulated": 300}
    for _ in range(8):
        history.learn(HERE, differ, 300, 0)
        for _ in range(between):
            history.learn(HERE, alike, 0, 0)
    assert differ[history.choose(HERE, differ, "simulated")] == 0


def test_a_pause_beyond_the_ttl_holds_predictions_against_a_chain_that_reads_nothing() -> None:
    history, lapsed = ReadHistory(), {**CANDIDATES, CHAIN: 0}
    for read in (900, 0) * 30:
        history.learn(HERE, lapsed, 900, read)
    chosen = history.choose(HERE, lapsed, KEPT)
    assert lapsed[chosen] == 0, "the last bill put what was kept behind"


@given(st.lists(st.sampled_from([*CANDIDATES.values(), 17, 2000]), max_size=60))
def test_a_choice_was_never_behind_the_chain(bills: list[int]) -> None:
    """Neither in tokens nor in classes, by the latest bills in which the two differ."""
    chosen = after(*bills, default=CHAIN)
    ours, chain = CANDIDATES[chosen], CANDIDATES[CHAIN]
    tokens = [(read == ours) - (read == chain) for read in bills]
    kinds = [
        (read_class(read, chain) == read_class(ours, chain))
        - (read_class(read, chain) == read_class(chain, chain))
        for read in bills
    ]
    for gains in (tokens, kinds):
        lead = 0.0
        for gain in filter(None, gains):
            lead = 0.98 * lead + gain
        assert lead >= 0


@pytest.mark.parametrize("missed", [0.05, 0.17, 0.3])
def test_misses_at_random_change_no_prediction(missed: float) -> None:
    """Of a hundred accounts with so many random misses, few are ever misled."""
    misled = 0
    for seed in range(100):
        draw, history = random.Random(seed), ReadHistory()
        for _ in range(60):
            misled += history.choose(HERE, CANDIDATES, KEPT) != KEPT
            history.learn(HERE, CANDIDATES, 900, 0 if draw.random() < missed else 900)
    assert misled <= 100 * 60 * 0.01


# ── Shares ───────────────────────────────────────────────────────────────────────────────────────


NONE = Shortfall(0.0, 0.0, 0.0)


def short_after(*bills: int, stated: Shortfall = NONE) -> Shortfall:
    history = ReadHistory()
    for read in bills:
        history.learn(("here",), CANDIDATES, 1000, read)
    return history.shortfall(("here",), stated)


def test_the_rules_state_shares_until_there_are_bills() -> None:
    stated = Shortfall(0.04, 0.15, 0.5)
    assert short_after(stated=stated) == stated


def test_shares_follow_the_bills() -> None:
    share = short_after(*[1000, 0, 400, 1000] * 200)
    assert share.missed == pytest.approx(0.25 * 50 / 54, rel=0.1)
    assert share.cut_short == pytest.approx(0.25 * 50 / 54, rel=0.1)
    assert share.part == pytest.approx(0.4, rel=0.1)


@pytest.mark.parametrize("read, short", [(1200, 0.0), (999, 0.0), (980, 0.0), (979, 0.78)])
def test_a_read_of_nearly_all_is_no_shortfall(read: int, short: float) -> None:
    assert short_after(*[read] * 16, stated=NONE).cut_short == pytest.approx(short, abs=0.02)


@each_row("situations", [("here",), HERE, ("a", "b", "c", "d")])
def test_bills_count_once_and_the_stated_share_like_four(situations: tuple[str, ...]) -> None:
    history = ReadHistory()
    for read in (1000,) * 4:
        history.learn(situations, CANDIDATES, 1000, read)
    assert history.shortfall(situations, Shortfall(0.2, 0.0, 0.0)).missed == pytest.approx(
        0.1, abs=0.01
    )


def test_the_part_of_short_reads_is_that_of_all_expected_tokens() -> None:
    """Short prompts are cut more often than long ones, which cost more."""
    history = ReadHistory()
    for expected, read in [(100_000, 100_000), (1000, 0), (1000, 500)] * 99:
        history.learn(("here",), CANDIDATES, expected, read)
    short = history.shortfall(("here",), NONE)
    assert short.cut_short * (1 - short.part) * 102_000 / 3 == pytest.approx(500 / 3, rel=0.2)
