"""Findings in texts, requests and samples: where, what it costs, and what was left alone."""

from __future__ import annotations

import copy
import datetime
import json
from decimal import Decimal
from typing import Any

import pytest
from support.planted import GUIDE, PLACES, body, grown, spec, split
from support.tables import each_row

from anaphora import catalog
from anaphora.analysis.lint import Costs, Finding, suppressed
from anaphora.analysis.lint.checks import lint_request, lint_samples, lint_text, lint_text_samples
from anaphora.rendered import Rendered
from anaphora.tokens import Counts

Json = dict[str, Any]

WIRES = ["anthropic", "openai_chat", "openai_responses", "gemini", "deepseek", "minimax"]


def costs_of(name: str, marked: bool = True) -> Costs:
    place = PLACES[name]
    now = datetime.datetime(2026, 11, 14, tzinfo=datetime.UTC)
    wire = "anthropic" if "anthropic" in place.wire else None
    rules = catalog.rules(place.provider, place.model, wire)
    price = catalog.price(place.provider, place.model, now, rules=rules)
    return Costs(rules=rules, price=price, marked=marked)


def clean() -> Json:
    return {**spec(), "system": ["You are a careful agent.", GUIDE]}


def request(name: str, prompt: Json) -> Rendered:
    return split(PLACES[name], body(PLACES[name], prompt))


def rules_of(findings: Any) -> list[str]:
    return [finding.rule for finding in findings]


# ── Texts ────────────────────────────────────────────────────────────────────────────────────────


def test_findings_in_a_text_have_line_and_column() -> None:
    (finding,) = lint_text("You are kind.\nToday is 2026-11-15.\nBye.", "p.md")
    assert (finding.rule, finding.line, finding.column) == ("volatile-date", 2, 10)
    assert finding.excerpt == "Today is 2026-11-15."
    assert finding.tokens == 4
    assert finding.cost_usd is None  # no provider is given
    assert finding.fix


def test_too_short_to_be_cached_is_a_note() -> None:
    (finding,) = lint_text("Be kind.", "p.md", costs_of("anthropic"))
    assert (finding.rule, finding.severity) == ("too-short", "note")
    assert "1,024" in finding.why


def test_cost_is_tokens_times_the_price_difference() -> None:
    text = "It is 09:41. " + "word " * 8000
    (finding,) = lint_text(text, "p.md", costs_of("anthropic"))
    assert finding.tokens is not None
    # Written at 3.75 instead of read at 0.30, a thousand times.
    assert finding.cost_usd == Decimal(finding.tokens) * 1000 * Decimal("3.45") / 1_000_000


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", WIRES)
def test_a_clean_request_gives_no_finding(name: str) -> None:
    assert list(lint_request(request(name, clean()), "a.json", costs_of(name))) == []


@pytest.mark.parametrize("name", WIRES)
def test_a_clock_in_the_system_prompt_is_found_on_every_wire(name: str) -> None:
    prompt = clean()
    prompt["system"][0] = "You are a careful agent. The current time is 09:41:07."
    rendered = request(name, prompt)
    findings = list(lint_request(rendered, "a.json", costs_of(name)))
    first = findings[0]
    assert first.rule == "volatile-clock"
    assert first.path.endswith(".text")
    assert first.tokens is not None
    assert first.tokens > 2500
    assert first.cost_usd is not None
    assert first.cost_usd > 0


def test_a_nonce_in_a_tools_description() -> None:
    prompt = clean()
    prompt["tools"][1]["description"] = "Searches. Session id: 9f86d081884c"
    (finding, *_) = lint_request(request("anthropic", prompt), "a.json", costs_of("anthropic"))
    assert (finding.rule, finding.path) == ("volatile-nonce", "tools[1].description")


def test_the_history_is_not_checked() -> None:
    prompt = clean()
    prompt["messages"][0] = ("user", ["Today is 2026-11-15, and it is 09:41."])
    assert list(lint_request(request("anthropic", prompt), "a.json", costs_of("anthropic"))) == []


def test_examples_in_a_schema_are_ignored() -> None:
    prompt = clean()
    prompt["tools"][0]["schema"]["properties"]["when"] = {
        "type": "string",
        "examples": ["Today is 2026-11-15"],
    }
    assert list(lint_request(request("anthropic", prompt), "a.json", costs_of("anthropic"))) == []


# ── Markers ──────────────────────────────────────────────────────────────────────────────────────


def marked(*ttls: str, system: str = GUIDE) -> Rendered:
    """System blocks with a marker each."""
    result = json.loads(body(PLACES["anthropic"], {**clean(), "marked": False}))
    result["system"] = [
        {
            "type": "text",
            "text": f"{at} {system}",
            "cache_control": {"type": "ephemeral", "ttl": ttl},
        }
        for at, ttl in enumerate(ttls)
    ]
    return split(PLACES["anthropic"], json.dumps(result).encode())


@pytest.mark.parametrize(
    "ttls, severity, why",
    [
        (("5m", "1h"), "error", "1h may not follow a shorter TTL"),
        (("5m",) * 5, "error", "at most 4 markers may be set"),
    ],
)
def test_rejected_markers(ttls: tuple[str, ...], severity: str, why: str) -> None:
    (finding,) = lint_request(marked(*ttls), "a.json", costs_of("anthropic"))
    assert (finding.rule, finding.severity) == ("wasted-marker", severity)
    assert why in finding.why


def test_a_marker_below_the_minimum_is_wasted() -> None:
    findings = list(lint_request(marked("5m", system="Be kind."), "a.json", costs_of("anthropic")))
    assert "below the minimum of 1,024" in findings[-1].why


def test_markers_behind_volatile_content_cost_an_unread_write() -> None:
    findings = [
        finding
        for finding in lint_request(request("anthropic", spec()), "a.json", costs_of("anthropic"))
        if finding.rule == "wasted-marker"
    ]
    assert [finding.path for finding in findings] == ["system[1]", "messages[4].content[0]"]
    assert all("never read" in finding.why for finding in findings)
    # Each pays for its own stretch: 0.75 more than sending, for a million tokens.
    total = sum(finding.cost_usd or 0 for finding in findings)
    rendered = request("anthropic", spec())
    tokens = Counts(rendered).total
    assert total == Decimal(tokens) * 1000 * Decimal("0.75") / 1_000_000


def test_a_date_rolls_once_a_day_so_markers_behind_it_are_read() -> None:
    prompt = clean()
    prompt["system"][0] = "Today is 2026-11-15."
    findings = list(lint_request(request("anthropic", prompt), "a.json", costs_of("anthropic")))
    assert rules_of(findings) == ["volatile-date"]


def test_markers_that_the_provider_ignores() -> None:
    place = PLACES["minimax"]._replace(model="MiniMax-M3")
    rendered = split(place, body(place, clean()))
    rules = catalog.rules("minimax", "MiniMax-M3", "anthropic")
    findings = list(lint_request(rendered, "a.json", Costs(rules=rules)))
    assert {(one.rule, one.severity) for one in findings} == {("wasted-marker", "note")}


# ── Samples ──────────────────────────────────────────────────────────────────────────────────────


def swapped_tools(prompt: Json) -> None:
    prompt["tools"].reverse()


def other_key_order(prompt: Json) -> None:
    prompt["tools"][0]["schema"] = dict(reversed(prompt["tools"][0]["schema"].items()))


def other_lines(prompt: Json) -> None:
    prompt["system"][0] = "Skills:\n- write\n- read"


def new_words(prompt: Json) -> None:
    prompt["system"][0] = "You are another assistant."


def new_key(prompt: Json) -> None:
    prompt["params"] = {"prompt_cache_key": "b"}


@each_row(
    "plant, rule",
    [
        (swapped_tools, "unordered-list"),
        (other_key_order, "unordered-list"),
        (other_lines, "unordered-list"),
        (new_words, "changes-between-samples"),
        (new_key, "cache-key-changes"),
    ],
)
def test_differences_between_samples(plant: Any, rule: str) -> None:
    first = clean()
    first["system"][0] = "Skills:\n- read\n- write"
    first["params"] = {"prompt_cache_key": "a"}
    second = copy.deepcopy(first)
    plant(second)
    samples = [("a", request("openai_chat", first)), ("b", request("openai_chat", second))]
    (finding,) = lint_samples(samples, costs_of("openai_chat"))
    assert (finding.rule, finding.severity, finding.file) == (rule, "error", "b")


def test_samples_with_other_questions_do_not_differ() -> None:
    samples = [("a", request("anthropic", clean())), ("b", request("anthropic", grown(clean())))]
    assert list(lint_samples(samples)) == []


@pytest.mark.parametrize(
    "one, two, rule",
    [
        ("a\nb\nc", "c\na\nb", "unordered-list"),
        ("It is 1:00.", "It is 1:01.", "volatile-clock"),
        ("id 3f9a21c4 x", "id 77b0e918 x", "volatile-nonce"),
        ("kind", "unkind", "changes-between-samples"),
    ],
)
def test_texts_as_samples(one: str, two: str, rule: str) -> None:
    (finding,) = lint_text_samples([("a", one), ("b", two), ("c", two)])
    assert (finding.rule, finding.severity) == (rule, "error")


def test_equal_texts_do_not_differ() -> None:
    assert list(lint_text_samples([("a", "same"), ("b", "same")])) == []


# ── Suppressions ─────────────────────────────────────────────────────────────────────────────────


def kept(text: str) -> list[Finding]:
    return list(suppressed(lint_text(text, "prompts/p.md"), "prompts/p.md", text))


def test_an_inline_suppression_holds_for_its_line_and_the_next() -> None:
    text = "<!-- anaphora: ignore[volatile-date] frozen on purpose -->\nToday is 2026-11-15.\n"
    (finding,) = kept(text)
    assert finding.suppressed == "frozen on purpose"
    far = kept("<!-- anaphora: ignore[volatile-date] why -->\n\nToday is 2026-11-15.\n")
    assert [one.suppressed for one in far] == [None, None]
    assert rules_of(far) == ["volatile-date", "unused-ignore"]


def test_a_suppression_without_a_reason_suppresses_nothing() -> None:
    match = kept("Today is 2026-11-15. anaphora: ignore[volatile-date]")
    assert rules_of(match) == ["volatile-date", "ignore-without-reason"]
    assert match[0].suppressed is None
    assert match[1].severity == "error"


def test_an_unknown_rule_is_reported() -> None:
    (finding,) = [one for one in kept("# anaphora: ignore[volatile-dat] x") if "no rule" in one.why]
    assert finding.rule == "unused-ignore"
