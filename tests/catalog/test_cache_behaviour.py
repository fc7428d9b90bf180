"""Cache behaviour beyond reads and writes at markers: replies, automatic breakpoints, routing.

Simulator and emulator play it by these rows, so each is held to its value and its source.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.facts import figure_of, holds
from support.tables import each_row

from anaphora import catalog

#: provider, model, wire; then field, value, a part of its source. "?" leads the source of a
#: stand-in.
FACTS: dict[tuple[str, str, str | None], list[tuple[str, Any, str]]] = {
    ("anthropic", "claude-opus-4-5", None): [
        ("output_cached", False, "[Ad] prompt caching"),
        ("automatic_refused", ("slots_full", "other_ttl"), "[Ad] prompt caching"),
        ("server_tool_ttl", "5m", "[Ad] prompt caching"),
        ("uncached_tail", 10, "real traffic"),
        ("aborted_writes", True, "real traffic"),
        ("lifetime", "exact", "real traffic"),
        ("prewarm", "max_tokens", "[Ad] prompt caching"),
        ("reads_limited", False, "[Ad] prompt caching"),
    ],
    ("openai", "gpt-5.2", None): [
        ("output_cached", False, "not behind hidden reasoning"),
        ("visible_output_cached", True, "36 of 39"),
        ("missed", 0.04, "real traffic"),
        ("cut_short", 0.15, "real traffic"),
        ("key_requests", 15, "[Og]"),
        ("reads_limited", True, "[Og]"),
    ],
    ("openai", "gpt-4o", None): [("output_cached", True, "no hidden reasoning precedes it")],
    ("openai", "gpt-5.6", None): [("output_cached", False, "[Og] gpt-5.6 and later")],
    ("openai", "gpt-5.6", "openai_responses"): [("prewarm", "option", "[O] Responses")],
    ("openai", "gpt-next", None): [("output_cached", False, "?stand-in")],
    ("deepseek", "deepseek-v4-pro", None): [("output_cached", True, "[web] kv_cache")],
    ("vllm", "any/model", None): [("output_cached", True, "[web] docs.vllm.ai")],
    ("llamacpp", "any.gguf", None): [
        ("automatic_breakpoint", "slots", "[LC]"),
        ("output_cached", True, "tests/engines"),
        ("uncached_tail", 1, "tried"),
    ],
    ("ollama", "qwen3:0.6b", None): [
        ("automatic_breakpoint", "slots", "ollamarunner"),
        ("output_cached", True, "ollamarunner"),
        ("uncached_tail", 1, "ollamarunner"),
    ],
    ("openrouter", "openai/gpt-5.5", None): [("route_seconds", 600.0, "[web] openrouter.ai")],
}


@each_row(
    ("provider", "model", "on", "field", "value", "source"),
    [
        pytest.param(*key, *fact, id=f"{key[0]}-{key[1]}-{key[2]}-{fact[0]}-{fact[2]}")
        for key, facts in FACTS.items()
        for fact in facts
    ],
)
def test_facts(
    provider: str, model: str, on: str | None, field: str, value: object, source: str
) -> None:
    holds(figure_of(catalog.rules(provider, model, on), field), value, source)


#: provider, model, wire, field; every published reading, the stricter one first.
READINGS: list[tuple[str, str, str | None, str, tuple[object, ...]]] = [
    ("anthropic", "claude-opus-5", None, "lookback_unit", ("blocks", "tool_runs")),
    ("openai", "gpt-5.6", None, "lookback_positions", (50, 80)),
    ("openai", "gpt-5.6", None, "lookback_first", (2, 0)),
    ("bedrock", "openai.gpt-5.6-luna", None, "lookback_positions", (50, 80)),
    ("openrouter", "openai/gpt-5.6-sol", None, "lookback_positions", (50, 80)),
]


@each_row(("provider", "model", "on", "field", "published"), READINGS)
def test_both_published_readings_are_kept(
    provider: str, model: str, on: str | None, field: str, published: tuple[object, ...]
) -> None:
    assert figure_of(catalog.rules(provider, model, on), field).published == published


def test_chat_completions_cannot_prewarm() -> None:
    assert catalog.rules("openai", "gpt-5.6", "openai_chat").prewarm is None


def test_providers_that_cache_replies_hide_no_reasoning() -> None:
    for profile in catalog.models("openai"):
        along = catalog.rules("openai", profile.id).output_cached
        assert along is not None
        if along.value:
            assert not profile.can("reasoning")


def test_only_google_bills_storage() -> None:
    billed = {
        profile.provider
        for profile in catalog.models()
        if catalog.rules(profile.provider, profile.id).storage_price is not None
    }
    assert billed == {"google"}
    assert catalog.rules("google", "gemini-4-argon").storage_price is None
