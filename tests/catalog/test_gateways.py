"""Gateways have the cache rules of the providers behind them, and figures of their own."""

from __future__ import annotations

import msgspec
import pytest
from support.tables import each_row

from anaphora import catalog
from anaphora.catalog.names import GATEWAYS, vendor_of

PROVIDERS = catalog.shipped().providers

#: What the bill, the routing and the account decide is the gateway's.
OWN = {"provider", "model", "isolation", "key_requests", "route_seconds", "reads_limited"}
PRICES = {"read_price", "automatic_read_price", "write_price", "storage_price"}


@each_row(
    "model, expected",
    [
        ("deepseek/deepseek-v4-flash", ("deepseek", "deepseek-v4-flash")),
        ("moonshotai/kimi-k3", ("moonshot", "kimi-k3")),
        ("z-ai/glm-4.6", ("zai", "glm-4.6")),
        ("zai/glm-4.6", ("zai", "glm-4.6")),
        ("x-ai/grok-4.7", ("xai", "grok-4.7")),
        ("mistralai/mistral-large-4", ("mistral", "mistral-large-4")),
        ("qwen/qwen3-max", ("alibaba", "qwen3-max")),
        ("minimax/minimax-m2:free", ("minimax", "minimax-m2")),
        ("vertex_ai/gemini-2.5-pro", ("google", "gemini-2.5-pro")),
        ("openrouter/anthropic/claude-opus-5", ("anthropic", "claude-opus-5")),
        ("litellm_proxy/kimi-k3", ("moonshot", "kimi-k3")),
        ("glm-5.3", ("zai", "glm-5.3")),
        ("meta-llama/llama-3.3-70b", None),
        ("some-model", None),
        ("fireworks_ai/deepseek-v4-flash", None),
    ],
)
def test_who_serves_a_model(model: str, expected: tuple[str, str] | None) -> None:
    assert vendor_of(model, PROVIDERS) == expected


@each_row(
    "gateway, model, vendor, known_as",
    [
        ("vercel", "deepseek/deepseek-v4-flash", "deepseek", "deepseek-v4-flash"),
        ("vercel", "anthropic/claude-opus-4.7", "anthropic", "claude-opus-4-7"),
        ("vercel", "minimax/minimax-m2.7", "minimax", "MiniMax-M2.7"),
        ("vercel", "zai/glm-of-next-year", "zai", "glm-of-next-year"),
        ("litellm", "moonshot/kimi-k3", "moonshot", "kimi-k3"),
        ("opencode", "gpt-5.5", "openai", "gpt-5.5"),
        ("openrouter", "deepseek/deepseek-chat", "deepseek", "deepseek-chat"),
        ("openrouter", "moonshotai/kimi-k3", "moonshot", "kimi-k3"),
        ("openrouter", "openai/gpt-5.4", "openai", "gpt-5.4"),
    ],
)
def test_all_but_its_own_figures_are_the_vendors(
    gateway: str, model: str, vendor: str, known_as: str
) -> None:
    own = OWN | PRICES if gateway == "openrouter" else OWN
    ours, theirs = (
        msgspec.to_builtins(rules)
        for rules in (catalog.rules(gateway, model), catalog.rules(vendor, known_as))
    )
    for field, figure in theirs.items():
        if field in own or field in ("write_price", "invalidates") or figure is None:
            continue
        if not figure["verified"] and "derived" not in ours[field]["source"]:
            continue  # neither knows it
        assert ours[field]["value"] == figure["value"], field
    figure = catalog.rules(gateway, model).granule_tokens
    assert figure.source.startswith("derived: ")
    assert not figure.verified


@pytest.mark.parametrize("gateway", sorted(GATEWAYS))
def test_a_model_of_an_unknown_host_has_the_gateways_stand_ins(gateway: str) -> None:
    rules, defaults = catalog.rules(gateway, "acme/model-1"), catalog.rules(gateway, "")
    assert msgspec.structs.replace(rules, model="") == defaults
    assert not rules.granule_tokens.verified


def test_a_gateway_bills_by_its_own_prices() -> None:
    """However long the provider behind it keeps a prefix."""
    rules = catalog.rules("openrouter", "deepseek/deepseek-v4-flash")
    assert rules.ttls.value == catalog.rules("deepseek", "deepseek-v4-flash").ttls.value
    assert {ttl: figure.source for ttl, figure in rules.write_price.items()} == {
        "1h": "[GP]: no price for writing"
    }
    unpriced = catalog.rules("openrouter", "moonshotai/kimi-k3")
    assert unpriced.read_price.value == 1.0
    assert {figure.value for figure in unpriced.write_price.values()} == {1.25}


def test_rows_on_top_of_a_vendor_are_the_gateways_as_well() -> None:
    mine = catalog.shipped().with_rows(
        'provider = "deepseek"\n[[rules]]\nsource = "me"\ndate = 2026-11-17\ngranule_tokens = 32\n'
    )
    for gateway in ("openrouter", "vercel"):
        assert mine.rules(gateway, "deepseek/deepseek-v4-pro").granule_tokens.value == 32
    shipped = catalog.rules("vercel", "deepseek/deepseek-v4-pro")
    assert shipped.granule_tokens.value == 128


@each_row(
    "name, provider",
    [
        ("vercel", "vercel"),
        ("ai-gateway", "vercel"),
        ("ai-gateway.vercel.sh", "vercel"),
        ("litellm", "litellm"),
        ("litellm_proxy", "litellm"),
        ("opencode", "opencode"),
        ("github-copilot", "copilot"),
    ],
)
def test_names_of_gateways(name: str, provider: str) -> None:
    assert catalog.provider_named(name) == provider
