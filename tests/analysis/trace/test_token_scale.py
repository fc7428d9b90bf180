"""Bytes of a token, learned for each kind of text."""

from __future__ import annotations

import random

import pytest

from anaphora.analysis.trace.account import TextBytes, TokenScale
from anaphora.rendered import Kind

#: Bytes per token: prose, JSON, results, thinking.
REAL = (4.5, 3.0, 2.5, 6.0)


def test_before_any_bill_the_catalog_counts() -> None:
    assert TokenScale(4.0).per_token == (4.0, 4.0, 4.0, 4.0)


def test_each_kind_has_its_own_ratio() -> None:
    draw, scale = random.Random(1), TokenScale(4.0)
    for _ in range(300):
        text = [draw.choice((0, 0, draw.randrange(200, 8000))) for _ in REAL]
        scale.learn(text, round(sum(size / ratio for size, ratio in zip(text, REAL, strict=True))))
    assert scale.per_token == pytest.approx(REAL, rel=0.1)


def test_one_kind_says_nothing_about_another() -> None:
    scale = TokenScale(4.0)
    for _ in range(50):
        scale.learn(TextBytes(results=8000), 3000)
    assert scale.per_token[0] == 4.0
    assert scale.per_token[2] == pytest.approx(8000 / 3000, rel=0.05)


@pytest.mark.parametrize("tokens", [-5, 0, 100, 50_000])
def test_a_growth_that_the_text_does_not_explain_is_not_learned(tokens: int) -> None:
    scale = TokenScale(4.0)
    scale.learn(TextBytes(prose=8000), tokens)
    assert scale.per_token == (4.0, 4.0, 4.0, 4.0)


def test_bytes_are_sorted_by_the_kind_of_block() -> None:
    text = TextBytes()
    for kind in (Kind.TEXT, Kind.TOOL, Kind.TOOL_CALL, Kind.TOOL_RESULT, Kind.THINKING):
        text = text.plus(kind, 10)
    assert text == TextBytes(prose=10, json=20, results=10, thinking=10)
