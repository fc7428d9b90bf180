"""The OpenAI rows compared with the published tables and the SDK's types."""

from __future__ import annotations

import importlib
import pkgutil
import typing
from typing import Any

import pytest
import typing_extensions
from support.tables import each_row

from anaphora import catalog, tokens
from anaphora.catalog.cache_rules import CacheParam

MODELS = [profile.id for profile in catalog.models("openai")]
NEWER = [
    *("gpt-5.6", "gpt-5.6-sol", "gpt-5.6-terra", "gpt-5.6-luna", "gpt-5.6-cyber"),
    *("gpt-6-astra", "gpt-6-sol", "gpt-6-luna", "gpt-6-cyber", "gpt-6-rosalind"),
    *("gpt-6.1-sol", "gpt-6.1-terra"),
]
UNDESCRIBED = [
    *("computer-use-preview", "gpt-rosalind-research"),
    *("gpt-daybreak-blue-latest", "gpt-daybreak-red-latest"),
]
EARLIER = [model for model in MODELS if model not in {*NEWER, *UNDESCRIBED}]
BEFORE_O1 = [
    model for model in EARLIER if model.startswith(("gpt-3.5", "gpt-4o", "chatgpt-4o"))
] + [model for model in EARLIER if model == "gpt-4" or model.startswith("gpt-4-")]
WITHOUT_SYSTEM = ["o1-mini", "o1-preview"]


def literals(kind: Any) -> list[str]:
    """The strings of a union of literals."""
    if typing.get_origin(kind) is typing.Literal or not typing.get_args(kind):
        return [value for value in typing.get_args(kind) if isinstance(value, str)]
    return [value for item in typing.get_args(kind) for value in literals(item)]


@pytest.mark.parametrize(
    ("module", "name", "least"),
    [("chat_model", "ChatModel", 90), ("responses_model", "ResponsesModel", 110)],
)
def test_every_model_of_the_sdk_is_known(module: str, name: str, least: int) -> None:
    pytest.importorskip("openai")
    listed = literals(getattr(importlib.import_module(f"openai.types.shared.{module}"), name))
    assert len(listed) >= least
    for model in listed:
        profile = catalog.profile("openai", model)
        assert profile.known, model
        assert model.startswith(profile.id)
        assert catalog.rules("openai", model).model == profile.id


@each_row(
    ("model", "found"),
    [
        ("gpt-5.5-2026-04-23", "gpt-5.5"),
        ("gpt-5.4-mini-2026-03-17", "gpt-5.4-mini"),
        ("gpt-4o-2024-11-20", "gpt-4o"),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-05-13"),
        ("gpt-4o-mini-search-preview-2025-03-11", "gpt-4o-mini-search-preview"),
        ("gpt-4-turbo-2024-04-09", "gpt-4-turbo"),
        ("gpt-4-0613", "gpt-4-0613"),
        ("gpt-4-9999", None),
        ("gpt-5.4-mini-2026", None),
        ("ft:gpt-4o-2024-08-06:acme::1", None),
        ("openai/gpt-5", "gpt-5"),  # gateways put the provider first
        ("someone/gpt-5", None),
        ("gpt-7", None),
    ],
)
def test_matching(model: str, found: str | None) -> None:
    profile = catalog.profile("openai", model)
    assert profile.known == (found is not None)
    assert profile.id == (model if found is None else found)


@each_row("model", [*MODELS, "gpt-7"])
def test_request_field_names(model: str) -> None:
    profile = catalog.profile("openai", model)
    assert profile.max_tokens_field is not None
    assert profile.system_role is not None
    assert profile.system_slot is not None
    assert profile.explicit_breakpoints is not None
    assert profile.max_tokens_field.value == "max_completion_tokens"
    role = "system" if model in BEFORE_O1 else "developer"
    assert profile.system_role.value == ("user" if model in WITHOUT_SYSTEM else role)
    if model in BEFORE_O1:
        assert profile.system_roles is not None
        assert profile.system_roles.value == ("system", "developer")
    assert profile.explicit_breakpoints.value == (model in NEWER)
    assert profile.system_slot.value == ("message" if model in NEWER else "instructions")
    described = model in NEWER or model in EARLIER
    for figure in (profile.system_role, profile.system_slot, profile.explicit_breakpoints):
        assert figure.verified == described


def test_system_slot_agrees_with_the_cache_rules() -> None:
    for model in [*MODELS, "gpt-7"]:
        profile, rules = catalog.profile("openai", model), catalog.rules("openai", model)
        assert profile.explicit_breakpoints is not None
        explicit = profile.explicit_breakpoints.value
        assert explicit == (rules.mechanism.value == "both") == bool(rules.markable.value)
        assert explicit == (rules.slots.value > 0)


READ_PRICES = {
    0.5: "gpt-4o gpt-4o-2024-08-06 gpt-4o-mini o1 o3-mini",
    0.25: "gpt-4.1 gpt-4.1-mini gpt-4.1-nano o3 o4-mini",
    0.1: "gpt-5 gpt-5-mini gpt-5-nano gpt-5.1 gpt-5.2 gpt-5.3-chat-latest gpt-5.4 gpt-5.4-mini "
    "gpt-5.5 gpt-5.6-sol gpt-5.6-terra gpt-5.6-luna gpt-6-astra gpt-6-sol gpt-6-luna",
    0.05: "gpt-6.1-sol gpt-6.1-terra",
}


@each_row(
    ("model", "price"),
    [(model, price) for price, names in READ_PRICES.items() for model in names.split()],
)
def test_read_prices(model: str, price: float) -> None:
    figure = catalog.rules("openai", model).read_price
    assert figure.value == price
    assert figure.verified


@each_row(
    "model", ["gpt-5-pro", "gpt-5.2-pro", "gpt-5.5-pro", "o1-pro", "gpt-4o-2024-05-13", "gpt-4"]
)
def test_missing_cached_price_is_an_unverified_full_price(model: str) -> None:
    figure = catalog.rules("openai", model).read_price
    assert figure.value == 1.0
    assert not figure.verified


@each_row("model", EARLIER)
def test_earlier_models_cache_by_themselves(model: str) -> None:
    rules = catalog.rules("openai", model)
    assert rules.mechanism.value == "implicit"
    assert rules.automatic_breakpoint.value == "granules"
    assert (rules.slots.value, rules.automatic_slots.value) == (0, 0)
    assert "text" not in rules.markable.value
    assert "input_text" not in rules.markable.value
    steps = (512, 128) if model in ("gpt-5.5", "gpt-5.4") else (128, 0)
    assert (rules.granule_tokens.value, rules.offset) == steps
    assert rules.granule_tokens.verified
    assert rules.minimum_tokens.value == 1024
    assert rules.hash_order.value == ("system", "tools", "messages")
    assert {ttl: figure.value for ttl, figure in rules.write_price.items()} == {"24h": 1.0}
    assert rules.default_ttl is not None
    assert rules.default_ttl.value == "24h"
    assert rules.default_ttl.verified == model.startswith("gpt-5.5")
    assert rules.lifetime is not None
    assert rules.lifetime.value == "at_most"
    assert rules.lookback_positions is None
    assert rules.reads_beyond_slots is None


@each_row("model", NEWER)
def test_newer_models_have_breakpoints(model: str) -> None:
    rules = catalog.rules("openai", model)
    assert rules.lookback_positions is not None
    assert rules.lookback_unit is not None
    assert rules.lookback_first is not None
    assert rules.automatic_lookback is not None
    assert rules.reads_beyond_slots is not None
    assert rules.default_ttl is not None
    assert rules.lifetime is not None
    assert rules.mechanism.value == "both"
    assert (rules.slots.value, rules.automatic_slots.value) == (4, 1)
    assert rules.reads_beyond_slots.value
    assert rules.automatic_breakpoint.value == "last_message"
    assert rules.automatic_lookback.value == 20
    # First 2 and latest 50 in the guide, latest 80 in the SDK.
    assert rules.lookback_positions.published == (50, 80)
    assert rules.lookback_first.published == (2, 0)
    assert rules.lookback_unit.value == "breakpoints"
    assert rules.ttls.published == (("12h", "30m"), ("30m",))
    assert rules.default_ttl.value == "30m"
    assert rules.lifetime.value == "at_least"
    assert rules.reads_refresh.value
    assert rules.minimum_tokens.value == 1024
    assert rules.granule_tokens.value == 1
    assert rules.hash_order.value == ("system", "tools", "messages")
    assert not rules.hash_order.verified
    assert rules.isolation.value == "organization"
    assert rules.storage_price is None


@each_row("model", NEWER)
def test_write_prices_and_the_unpublished_12h_price(model: str) -> None:
    prices = catalog.rules("openai", model).write_price
    assert prices.keys() == {"30m", "12h"}
    assert prices["30m"].value == 1.25
    assert prices["30m"].verified
    assert prices["12h"].value > prices["30m"].value
    assert not prices["12h"].verified
    assert not catalog.rules("openai", model).longer_ttl_first.verified


ALL = ("system", "tools", "messages")
REASONS: dict[str, tuple[CacheParam | None, tuple[str, ...]]] = {
    "model_changed": ("model", ALL),
    "prompt_cache_key_changed": ("cache_key", ALL),
    "tools_changed": ("tools", ALL[1:]),
    "text_format_changed": ("output_format", ALL),
    "reasoning_effort_changed": ("effort", ALL),
    "verbosity_changed": ("verbosity", ALL),
    "service_tier_changed": ("service_tier", ALL),
    # The blocks themselves.
    "context_compacted": (None, ()),
    "input_changed": (None, ()),
}


@each_row("model", ["gpt-4o", "gpt-5.5", "gpt-5.6-sol", "gpt-6.1-terra", "gpt-7"])
def test_invalidation(model: str) -> None:
    rules = catalog.rules("openai", model)
    for param, sections in REASONS.values():
        if param is not None:
            assert rules.voided_by(param) == sections
    assert set(rules.invalidates) == {param for param, _ in REASONS.values() if param} | {
        "tool_choice"
    }
    assert rules.voided_by("tool_choice") == ()
    assert rules.invalidates["tool_choice"].verified


def test_cache_settings_match_the_sdks_diagnostics() -> None:
    pytest.importorskip("openai")
    response = importlib.import_module("openai.types.responses.response")
    miss = response.PromptCacheDiagnosticsCacheMiss
    assert set(literals(miss.model_fields["reason"].annotation)) == REASONS.keys()


def sdk_parts() -> dict[str, bool]:
    """Part types of the SDK's request types, and whether they take a breakpoint."""
    found: dict[str, bool] = {}
    for package, prefix in (
        ("openai.types.chat", "chat_completion_content_part"),
        ("openai.types.responses", "response_input_"),
        ("openai.types.responses", "response_output_"),
    ):
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            if not (module.name.startswith(prefix) and module.name.endswith("_param")):
                continue
            for value in vars(importlib.import_module(f"{package}.{module.name}")).values():
                if typing_extensions.is_typeddict(value) and "type" in value.__annotations__:
                    hints = typing_extensions.get_type_hints(value)
                    takes = "prompt_cache_breakpoint" in hints
                    for kind in literals(hints["type"]):
                        found[kind] = found.get(kind, False) or takes
    return found


def test_markable_kinds_match_the_sdk() -> None:
    pytest.importorskip("openai")
    rules = catalog.rules("openai", "gpt-5.6-sol")
    parts = sdk_parts()
    assert {"text", "input_text", "refusal", "output_text"} <= parts.keys()
    assert {kind for kind, takes in parts.items() if takes} == set(rules.markable.value)
    assert "output_text" not in rules.markable.value
    assert "not a known kind" not in rules.markable.value
    assert set(rules.unmarkable.value) == {"instructions", "additional_tools"}


def test_ttls_are_those_of_the_sdk() -> None:
    pytest.importorskip("openai")
    ttls: dict[str, set[str]] = {}
    for module in ("responses.response_create_params", "chat.completion_create_params"):
        options = importlib.import_module(f"openai.types.{module}").PromptCacheOptions
        ttls[module] = set(literals(typing_extensions.get_type_hints(options)["ttl"]))
    published = catalog.rules("openai", "gpt-5.6-sol").ttls.published
    assert [set(value) for value in published] == list(ttls.values())


REFUSALS: dict[str, set[catalog.Feature]] = {
    "o1": {"altered_sampling"},
    "o3-mini": {"altered_sampling"},  # a request with stop was answered: exchanges
    "o3": {"altered_sampling", "stop"},
    "o4-mini": {"altered_sampling", "stop"},
    "gpt-5": {"altered_sampling", "stop"},
    "gpt-5-mini": {"altered_sampling", "stop"},
    "gpt-5-nano": {"altered_sampling", "stop"},
    "gpt-5.1": {"stop"},
    "gpt-5.2": {"stop"},
}


@each_row("model", [*MODELS, "gpt-7"])
def test_rejected_parameters_have_a_source(model: str) -> None:
    profile = catalog.profile("openai", model)
    assert set(profile.refusals.value) == REFUSALS.get(model, set())
    assert profile.refusals.verified == (model in REFUSALS)
    assert not profile.refuses("sampling")


def test_sdk_names_the_models_that_reject_stop() -> None:
    pytest.importorskip("openai")
    import inspect

    text = inspect.getsource(importlib.import_module("openai.types.chat.completion_create_params"))
    assert "Not supported with latest reasoning models `o3` and `o4-mini`." in text


@each_row(
    ("model", "tokenizer", "verified"),
    [
        ("gpt-4", "cl100k", True),
        ("gpt-3.5-turbo-0125", "cl100k", True),
        ("gpt-4o", "o200k", True),
        ("gpt-4.1-nano", "o200k", True),
        ("o3", "o200k", True),
        ("gpt-5.5", "o200k", True),
        ("gpt-5.6-luna", "o200k", True),
        ("gpt-6-sol", "o200k", False),
        ("gpt-6.1-sol", "o200k", False),
        ("gpt-7", "o200k", False),
    ],
)
def test_tokenizers(model: str, tokenizer: str, verified: bool) -> None:
    profile = catalog.profile("openai", model)
    assert profile.tokenizer.value == tokenizer
    for figure in (profile.tokenizer, profile.bytes_per_token, profile.token_error):
        assert figure.verified == verified
    assert profile.bytes_per_token.value == (4.4 if verified else 4.0)
    # The measured density lies within the error: 3.59 bytes a token at the densest.
    estimate, error = tokens.tokens_in(7245, 4.4 if verified else 4.0), profile.token_error.value
    assert estimate * (1 - error) <= 2019 <= estimate * (1 + error)


@each_row("model", MODELS)
def test_earlier_reasoning(model: str) -> None:
    profile = catalog.profile("openai", model)
    if model.startswith("gpt-5.6"):
        assert not profile.strips_thinking.value
    elif model.startswith(("gpt-5", "o1", "o3", "o4")):
        assert profile.strips_thinking.value
        assert profile.strips_thinking.verified
    elif model.startswith("gpt-6"):
        assert profile.strips_thinking.value
        assert not profile.strips_thinking.verified


def test_unknown_model_gets_conservative_figures() -> None:
    profile, rules = catalog.profile("openai", "gpt-7"), catalog.rules("openai", "gpt-7")
    others = [catalog.rules("openai", model) for model in MODELS]
    assert not profile.known
    assert not profile.mid_conversation_system.value
    assert rules.mechanism.value == "implicit"
    assert rules.minimum_tokens.value == max(other.minimum_tokens.value for other in others)
    assert rules.granule_tokens.value == max(other.granule_tokens.value for other in others)
    assert rules.read_price.value == max(other.read_price.value for other in others)
    dearest = max(p.value for other in others for p in other.write_price.values() if p.verified)
    assert rules.write_price["30m"].value == dearest
    sizes = [other.bytes_per_token.value for other in catalog.models("openai")]
    assert profile.bytes_per_token.value == min(sizes)
    for figure in (
        *(rules.mechanism, rules.minimum_tokens, rules.granule_tokens, rules.read_price),
        *(rules.slots, rules.ttls, rules.write_price["30m"], rules.reads_refresh),
        *(profile.tokenizer, profile.bytes_per_token, profile.refusals, profile.strips_thinking),
    ):
        assert not figure.verified
