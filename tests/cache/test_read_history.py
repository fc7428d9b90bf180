"""Which prediction of a read is made, after the bills before it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.cache.read_history import KEPT, ReadHistory, Shortfall, read_class

CANDIDATES = {"simulated": 1000, KEPT: 900, "reply": 950, "beginning": 300, "nothing": 0}
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
        ((950, 900), KEPT),
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


@given(st.lists(st.sampled_from([*CANDIDATES.values(), 17, 2000]), max_size=60))
def test_a_choice_was_never_behind_the_chain(bills: list[int]) -> None:
    """Neither in tokens nor in classes, unless it is the default."""
    chosen = after(*bills, default=KEPT)
    kept = CANDIDATES[KEPT]
    weights = [0.98 ** (len(bills) - at) for at in range(len(bills))]

    def right(name: str) -> tuple[float, float]:
        tokens = CANDIDATES[name]
        pairs = list(zip(weights, bills, strict=True))
        return (
            sum(weight for weight, read in pairs if read == tokens),
            sum(w for w, read in pairs if read_class(read, kept) == read_class(tokens, kept)),
        )

    exact, alike = right(chosen)
    assert exact >= right(KEPT)[0] - 1e-9
    if read_class(CANDIDATES[chosen], kept) != "hit":
        assert alike >= right(KEPT)[1] - 1e-9


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
    assert share.missed == pytest.approx(0.25 * 50 / 90, rel=0.1)
    assert share.cut_short == pytest.approx(0.25 * 50 / 90, rel=0.1)
    assert share.part == pytest.approx(0.4)


def test_a_read_of_more_than_expected_is_no_shortfall() -> None:
    assert short_after(*[1200] * 20) == NONE


def test_a_long_history_keeps_its_counts() -> None:
    """Weights grow with every bill, and are made smaller before they overflow."""
    history = ReadHistory()
    for _ in range(12_000):
        history.learn(("here",), CANDIDATES, 900, 900)
    assert history.choose(("here",), CANDIDATES, "simulated") == KEPT
    assert history.shortfall(("here",), Shortfall(0.1, 0.0, 0.0)).missed < 0.1
