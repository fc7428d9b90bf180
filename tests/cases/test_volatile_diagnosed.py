"""CASES A, diagnosed: lint names it before the call, the verdict after it, with the cost. On every wire."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from support.planted import GUIDE, PLACES, body, grown, spec, split, verdict_of
from support.tables import each_row

from anaphora import catalog
from anaphora.analysis.lint import Costs
from anaphora.analysis.lint.checks import lint_request, lint_samples
from anaphora.cache.verdict import SentCall, judge
from anaphora.rendered import Rendered
from anaphora.tokens import Counts
from anaphora.values import Usage

Json = dict[str, Any]

WIRES = ["anthropic", "openai_chat", "openai_responses", "gemini", "deepseek", "minimax"]
NOW = datetime.datetime(2026, 11, 14, tzinfo=datetime.UTC)


def conversation(first: str, **params: Any) -> Json:
    return {**spec(), "system": [first, GUIDE], "params": params}


@pytest.mark.parametrize("name", WIRES)
def test_opencode_32622_lint_names_the_block_with_the_date(name: str) -> None:
    place = PLACES[name]
    rendered = split(place, body(place, conversation("You are helpful. Today is 2026-11-15.")))
    findings = list(lint_request(rendered, "call.json"))
    assert [one.rule for one in findings] == ["volatile-date"]
    assert findings[0].path == rendered.chunk(_first_system(rendered)).path + ".text"
    tail = conversation("You are helpful.")
    tail["messages"].append(("user", ["Today is 2026-11-15."]))
    assert list(lint_request(split(place, body(place, tail)), "call.json")) == []


def _first_system(rendered: Rendered) -> int:
    return next(chunk.index for chunk in rendered if chunk.section == "system")


def test_zeroclaw_10858_the_verdict_names_the_cost_of_a_changed_date() -> None:
    """340,000 tokens of a session, rewritten because of one digit."""
    model = "claude-opus-4-5"
    place = PLACES["anthropic"]._replace(model=model)
    before = conversation("You are helpful. Today is 2026-11-15.")
    after = grown(conversation("You are helpful. Today is 2026-11-16."))
    one, two = split(place, body(place, before)), split(place, body(place, after))
    first = Usage(uncached=3, read=339_000, written={"5m": 1_000}, output=500)
    then = Usage(uncached=3, read=0, written={"5m": 341_000}, output=500)
    outcome = judge(
        SentCall(rendered=one, at=0.0, usage=first),
        SentCall(rendered=two, at=60.0, usage=then),
        catalog.rules("anthropic", model),
        price=catalog.price("anthropic", model, NOW),
    )
    assert outcome.change is not None
    assert (outcome.change.kind, outcome.lost) == ("date", 340_000)
    # Written at 6.25 instead of read at 0.50 a million.
    assert outcome.cost_usd is not None
    assert round(outcome.cost_usd, 3) == round(catalog_difference(model) * 340_000 / 1_000_000, 3)
    assert f"${outcome.cost_usd:.2f} lost" in outcome.sentence


def catalog_difference(model: str) -> Any:
    price = catalog.price("anthropic", model, NOW)
    assert price is not None
    rates = price.at(341_003)
    assert rates.read is not None
    return rates.write["5m"] - rates.read


@pytest.mark.parametrize("name", WIRES)
def test_claude_code_68900_lint_and_verdict_name_the_nonce(name: str) -> None:
    place = PLACES[name]
    one = split(place, body(place, conversation("request 3f9a21c4. You are helpful.")))
    two = split(place, body(place, grown(conversation("request 77b0e918. You are helpful."))))
    assert "volatile-nonce" in [finding.rule for finding in lint_request(one, "a.json")]
    outcome = verdict_of(place, one, two)
    assert outcome.change is not None
    assert outcome.change.kind == "nonce"
    assert ("3f9a21c4" in outcome.change.before, "77b0e918" in outcome.change.after) == (True, True)


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses"])
def test_ccproxy_api_61_a_fresh_cache_key_at_every_call_is_named(name: str) -> None:
    place = PLACES[name]
    keys = ("6f1c0f0e-8d0b-4f5c-9a53-3a0f2b9d7c11", "0a9b8c7d-1111-4222-8333-444455556666")
    one, two = (
        split(place, body(place, conversation("You are helpful.", prompt_cache_key=key)))
        for key in keys
    )
    assert [finding.rule for finding in lint_request(one, "a")] == ["cache-key-changes"]
    assert [finding.rule for finding in lint_samples([("a", one), ("b", two)])] == [
        "cache-key-changes"
    ]
    outcome = verdict_of(place, one, two)
    assert outcome.cause == "other_key"
    assert not any(key in outcome.sentence for key in keys)


@each_row("name", WIRES)
def test_multica_6008_the_verdict_names_byte_block_and_path_of_a_new_uuid(name: str) -> None:
    place = PLACES[name]
    note = "Memory 6f1c0f0e-8d0b-4f5c-9a53-3a0f2b9d7c{}: the user likes tea."
    before, after = conversation("You are helpful."), grown(conversation("You are helpful."))
    before["system"].append(note.format("11"))
    after["system"].append(note.format("12"))
    one, two = split(place, body(place, before)), split(place, body(place, after))
    outcome = verdict_of(place, one, two)
    assert outcome.change is not None
    assert outcome.change.kind == "uuid"
    assert outcome.change.label == "system2"
    assert two.data()[outcome.change.offset : outcome.change.offset + 1] == b"2"
    costs = Costs(rules=catalog.rules(place.provider, place.model, one.wire))
    findings = {finding.rule for finding in lint_samples([("a", one), ("b", two)], costs)}
    # Where the samples have markers, all of them are behind the id.
    assert findings == {"volatile-uuid"} | ({"wasted-marker"} if one.marks else set())


@each_row("name", WIRES)
def test_hermes_agent_86938_a_tail_that_changes_breaks_nothing(name: str) -> None:
    """Volatile content is behind the history: the next turn reads everything before it."""
    place = PLACES[name]
    spec = conversation("You are helpful.")
    one = split(place, body(place, spec))
    later = grown(spec)
    later["messages"].append(("user", ["It is 09:42."]))
    outcome = verdict_of(place, one, split(place, body(place, later)), read=Counts(one).total)
    assert (outcome.result, outcome.broke) == ("hit", False)
