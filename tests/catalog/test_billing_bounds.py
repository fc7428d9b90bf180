"""The most that parts of a request can be billed, from dated rows."""

from __future__ import annotations

from decimal import Decimal

from support.tables import each_row

from anaphora import catalog
from anaphora import wire as wires
from anaphora.catalog.api_limits import (
    bounds_of,
    fastest_tokens,
    price_multiple,
    server_tool_of,
    stops_when_cut,
)
from anaphora.catalog.prices import tool_overhead


@each_row("wire", wires.WIRES)
def test_overhead_covers_the_estimate(wire: str) -> None:
    overhead = bounds_of("", "", wire).overhead
    assert overhead.request >= 64
    assert overhead.tools >= tool_overhead(wire)


def test_last_row_that_matches_counts() -> None:
    assert (
        bounds_of("openai", "gpt-4o-mini-2024-07-18").media.image
        > bounds_of("openai", "gpt-5.2").media.image
    )
    assert (
        bounds_of("some host", "model").media.image
        == bounds_of("openai", "gpt-4o-mini").media.image
    )


@each_row(
    ("provider", "type", "model", "known"),
    [
        ("anthropic", "web_search_20250305", "claude-opus-5-5", True),
        ("anthropic", "web_search", "claude-opus-5-5", False),
        ("openai", "web_search", "gpt-5.2", True),
        ("openai", "image_generation", "gpt-5.2", False),
        ("google", "googleSearch", "gemini-2.5-pro", True),
        ("google", "googleSearch", "gemini-3.1-pro", False),
        ("groq", "browser_search", "openai/gpt-oss-120b", False),
    ],
)
def test_tool_without_a_row_is_unknown(provider: str, type: str, model: str, known: bool) -> None:
    assert (server_tool_of(provider, type, model) is not None) is known


def test_models_that_search_by_themselves() -> None:
    assert bounds_of("groq", "groq/compound-mini").calls_own_tools
    assert bounds_of("openrouter", "openai/gpt-5.2:online").calls_own_tools
    assert not bounds_of("openai", "gpt-5.2").calls_own_tools


def test_multiples_of_the_price() -> None:
    assert price_multiple("anthropic", "inference_geo", "us") == Decimal("1.1")
    assert price_multiple("anthropic", "inference_geo", "global") == 1
    assert price_multiple("anthropic", "speed", "ludicrous") is None


def test_thinking_on_top_of_the_limit() -> None:
    assert bounds_of("alibaba", "qwen3-max").thinking > 0
    assert bounds_of("openai", "gpt-5.2").thinking == 0


def test_who_stops_when_a_stream_is_cut() -> None:
    """Unknown counts as going on."""
    stops = {name for name in catalog.shipped().providers if stops_when_cut(name)}
    assert stops == {"openai", "azure", "anthropic", "xai", "deepseek", "together"}
    assert not stops_when_cut("a provider without a row")


def test_fastest_output() -> None:
    """300 tokens a second where nothing is known; faster hosts have a row."""
    assert fastest_tokens("openai", "gpt-5.2") == 300
    assert fastest_tokens("a provider without a row", "m") == 300
    assert fastest_tokens("cerebras", "gpt-oss-120b") > 3000
