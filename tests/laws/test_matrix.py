"""No silent loss between wires, feature by feature; docs/matrix.md lists the losses."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from support.features import FEATURES
from support.matrix_page import MODELS, dialect_targets, page, targets
from support.outcomes import Target, best, made_outcome, outcome, read, send

from anaphora import catalog
from anaphora.errors import InvalidRequest
from anaphora.wire.anthropic.types import MEMO

PAGE = Path(__file__).parents[2] / "docs" / "matrix.md"


@pytest.mark.parametrize("name", MODELS)
def test_no_wire_loses_anything_in_silence(name: str) -> None:
    lost = [
        (feature.name, target.model)
        for feature in FEATURES
        for target in targets(name)
        if made_outcome(target, feature, name).fate == "silent loss"
    ]
    assert not lost


@pytest.mark.parametrize("row", catalog.dialects().rows, ids=lambda row: row.name)
@pytest.mark.long
def test_no_dialect_loses_anything_in_silence(row: catalog.Dialect) -> None:
    lost = [
        (feature.name, target.model)
        for feature in FEATURES
        for target in dialect_targets(row, row.name)
        if made_outcome(target, feature, row.wire).fate == "silent loss"
    ]
    assert not lost


@pytest.mark.parametrize("first", MODELS)
@pytest.mark.long
def test_a_feature_has_the_same_outcome_from_every_origin(first: str) -> None:
    """A feature that the first wire supports reaches the second unchanged. A feature that is
    only the first one's gives a notice where the second does not support it."""
    wrong = []
    for feature, origin in itertools.product(FEATURES, targets(first)):
        if made_outcome(origin, feature, first).fate != "sent":
            continue
        there = read(origin, send(origin, feature.make(first)))
        for second in MODELS.keys() - {first}:
            came, _ = best([outcome(target, feature, there) for target in targets(second)])
            straight, _ = best([made_outcome(target, feature, first) for target in targets(second)])
            if came.fate == "silent loss" or (not feature.owned and came.fate != straight.fate):
                wrong.append((feature.name, origin.model, second, came.fate, straight.fate))
    assert not wrong


@pytest.mark.long
def test_the_page_matches_the_code() -> None:
    made = page()
    if os.environ.get("ANAPHORA_UPDATE_DOCS"):
        PAGE.write_text(made, encoding="utf-8")
    there = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    assert there == made, (
        "docs/matrix.md is outdated; to regenerate it, run\n"
        "    ANAPHORA_UPDATE_DOCS=1 python -m pytest tests/laws/test_matrix.py\n"
        "and read the difference before you commit it"
    )


# ── The measure itself ───────────────────────────────────────────────────────────────────────────


def test_a_silent_loss_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wire that forgets its notices is found out."""
    from anaphora.wire.anthropic import params

    feature = next(feature for feature in FEATURES if feature.name == "seed")
    target = Target("anthropic", "anthropic", "claude-sonnet-4-5")
    assert outcome(target, feature, feature.make("anthropic")).fate == "left out"
    MEMO.clear()
    monkeypatch.setattr(params, "notices", lambda call: [])
    assert outcome(target, feature, feature.make("anthropic")).fate == "silent loss"


def test_a_notice_on_something_else_does_not_excuse_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    from anaphora.values import Notice
    from anaphora.wire.anthropic import params

    feature = next(feature for feature in FEATURES if feature.name == "seed")
    target = Target("anthropic", "anthropic", "claude-sonnet-4-5")
    MEMO.clear()
    monkeypatch.setattr(params, "notices", lambda call: [Notice("x", "x", "params.n")])
    assert outcome(target, feature, feature.make("anthropic")).fate == "silent loss"


def test_a_refusal_names_its_place() -> None:
    feature = next(feature for feature in FEATURES if feature.name == "forced tool")
    target = Target("anthropic", "anthropic", "claude-opus-5-5")
    with pytest.raises(InvalidRequest):
        send(target, feature.make("anthropic"))
    assert outcome(target, feature, feature.make("anthropic")).codes == ("params.tool_choice",)
