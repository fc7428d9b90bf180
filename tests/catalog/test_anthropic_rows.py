"""The Anthropic rows compared with the published tables and the SDK's types."""

from __future__ import annotations

import importlib
import pkgutil
import typing

import anthropic.types
import pytest
import typing_extensions
from anthropic.types.model_param import ModelParam
from support.tables import each_row

from anaphora import catalog
from anaphora.catalog.cache_rules import CacheParam

SDK_MODELS: list[str] = [
    model for literal in typing.get_args(ModelParam) for model in typing.get_args(literal)
]
MODELS = [profile.id for profile in catalog.models("anthropic")]


def test_sdk_lists_models() -> None:
    assert len(SDK_MODELS) >= 22


@each_row("model", SDK_MODELS)
def test_every_model_of_the_sdk_is_known(model: str) -> None:
    profile = catalog.profile("anthropic", model)
    assert profile.known
    assert model.startswith(profile.id)
    assert catalog.rules("anthropic", model).model == profile.id


MINIMUMS = {
    512: "opus-5-5 opus-5 fable-5 fable-5-1 mythos-5 mythos-5-1 sonnet-5-5 haiku-5-5",
    1024: "opus-4-8 sonnet-5 sonnet-4-6 sonnet-4-5",
    2048: "opus-4-7 mythos-preview",
    4096: "opus-4-6 opus-4-5 haiku-4-5",
}


@each_row(
    ("model", "tokens"),
    [(model, tokens) for tokens, names in MINIMUMS.items() for model in names.split()],
)
def test_minimums(model: str, tokens: int) -> None:
    minimum = catalog.rules("anthropic", f"claude-{model}").minimum_tokens
    assert minimum.value == tokens
    assert minimum.verified


@pytest.mark.parametrize(
    ("model", "published"), [("mythos-preview", (2048, 512)), ("opus-4-7", (2048, 4096))]
)
def test_disputed_minimums_keep_both_values(model: str, published: tuple[int, ...]) -> None:
    assert catalog.rules("anthropic", f"claude-{model}").minimum_tokens.published == published


READ_PRICES = {
    0.1: "opus-5 opus-4-8 opus-4-7 opus-4-6 opus-4-5 sonnet-5 sonnet-4-6 sonnet-4-5 haiku-5-5 "
    "haiku-4-5 fable-5 mythos-5 mythos-preview",
    0.05: "opus-5-5 sonnet-5-5",
    0.025: "fable-5-1 mythos-5-1",
}


@each_row(
    ("model", "price"),
    [(model, price) for price, names in READ_PRICES.items() for model in names.split()],
)
def test_prices(model: str, price: float) -> None:
    rules = catalog.rules("anthropic", f"claude-{model}")
    assert rules.read_price.value == price
    assert rules.read_price.verified
    assert {ttl: figure.value for ttl, figure in rules.write_price.items()} == {
        "5m": 1.25,
        "1h": 2.0,
    }


@pytest.mark.parametrize("model", ["claude-fable-5-2", "claude-mythos-5-2"])
def test_unpublished_figures_are_stand_ins(model: str) -> None:
    rules = catalog.rules("anthropic", model)
    assert not rules.minimum_tokens.verified
    assert not rules.read_price.verified
    published = [catalog.rules("anthropic", other) for other in MODELS]
    assert rules.minimum_tokens.value == max(each.minimum_tokens.value for each in published)
    assert rules.read_price.value == max(each.read_price.value for each in published)


ALL = ("tools", "system", "messages")


@each_row(
    ("param", "sections"),
    [
        ("tools", ALL),
        ("model", ALL),
        ("betas", ALL),
        ("web_search", ALL[1:]),
        ("citations", ALL[1:]),
        ("speed", ALL[1:]),
        ("tool_choice", ALL[2:]),
        ("parallel_tools", ALL[2:]),
        ("images", ALL[2:]),
        ("thinking", ALL[2:]),
        ("effort", ALL[2:]),
        ("output_format", ALL[2:]),
        ("cache_key", ()),
    ],
)
def test_invalidation(param: CacheParam, sections: tuple[str, ...]) -> None:
    assert catalog.rules("anthropic", "claude-opus-5-5").voided_by(param) == sections


def test_one_model_in_full() -> None:
    rules = catalog.rules("anthropic", "claude-opus-5-5")
    assert rules.lookback_positions is not None
    assert rules.lookback_unit is not None
    assert rules.default_ttl is not None
    assert rules.mechanism.value == "explicit"
    assert rules.hash_order.value == ALL
    assert (rules.slots.value, rules.automatic_slots.value) == (4, 1)
    assert rules.automatic_breakpoint.value == "last_block"
    assert rules.lookback_positions.value == 20
    assert rules.lookback_unit.published == ("blocks", "tool_runs")
    assert rules.ttls.value == ("1h", "5m")
    assert rules.longer_ttl_first.value
    assert rules.default_ttl.value == "5m"
    assert rules.reads_refresh.value
    assert (rules.ttl_from.value, rules.readable_from.value) == ("response_start", "response_start")
    assert rules.visibility_delay.value == 2.5
    assert rules.isolation.published == ("workspace", "organization", "project")
    assert rules.granule_tokens.value == 1
    assert rules.storage_price is None


def sdk_blocks() -> dict[str, bool]:
    """Block types of the SDK's request types, and whether they take `cache_control`."""
    found: dict[str, bool] = {}
    for module in pkgutil.iter_modules(anthropic.types.__path__):
        if not module.name.endswith("_block_param"):
            continue
        for value in vars(importlib.import_module(f"anthropic.types.{module.name}")).values():
            if typing_extensions.is_typeddict(value) and "type" in value.__annotations__:
                hints = typing_extensions.get_type_hints(value)
                kinds = typing.get_args(hints["type"])
                found |= dict.fromkeys(kinds, "cache_control" in hints)
    return found


def test_markable_kinds_match_the_sdk() -> None:
    rules = catalog.rules("anthropic", "claude-opus-5-5")
    blocks = sdk_blocks()
    assert {"text", "tool_use", "thinking"} <= blocks.keys()
    assert {kind for kind, takes in blocks.items() if takes} <= set(rules.markable.value)
    assert not [
        kind for kind, takes in blocks.items() if not takes and kind in rules.markable.value
    ]
    assert "thinking" not in rules.markable.value
    assert "not a known kind" not in rules.markable.value


TAKES_SYSTEM = {
    *("opus-4-8", "opus-5", "opus-5-5", "fable-5", "fable-5-1", "mythos-5", "mythos-5-1"),
    "sonnet-5-5",
}
RETIRED = {"opus-4", "opus-4-0", "opus-4-1", "sonnet-4", "sonnet-4-0"}
OLD_TOKENIZER = {"opus-4-6", "sonnet-4-6", "haiku-4-5", "opus-4-5", "sonnet-4-5", *RETIRED}
UNPUBLISHED = {"fable-5-2", "mythos-5-2"}
STRIPS = {"haiku-5-5", "haiku-4-5", "sonnet-4-5", *RETIRED, *UNPUBLISHED}


@each_row("model", MODELS)
def test_profiles(model: str) -> None:
    profile = catalog.profile("anthropic", model)
    name = model.removeprefix("claude-")
    assert profile.mid_conversation_system.value == (name in TAKES_SYSTEM)
    assert profile.strips_thinking.value == (name in STRIPS)
    assert (profile.tokenizer.value == "claude") == (name in OLD_TOKENIZER)
    assert (profile.bytes_per_token.value > 3) == (name in OLD_TOKENIZER)
    assert profile.refuses("forced_tools") == (name in {"opus-5-5", "fable-5-1", "sonnet-5-5"})
    assert profile.refuses("budgeted_thinking") == (name in {"opus-5-5", "fable-5-1"})
    assert profile.refuses("disabled_thinking") == (name in {"opus-5-5", "fable-5-1"})
    assert profile.max_tokens_field is None
    assert profile.system_role is None
    assert profile.system_slot is None
    assert profile.explicit_breakpoints is None


def test_api_version_decides_about_sampling() -> None:
    profile = catalog.profile("anthropic", "claude-opus-4-8")
    assert profile.api_version is not None
    assert profile.api_version.published == ("2023-06-01", "2026-10-21")
    assert not profile.refuses("sampling")
    assert not profile.refuses("sampling", api_version="2023-06-01")
    assert profile.refuses("sampling", api_version="2026-10-21")
    assert profile.refuses("assistant_documents", api_version="2026-10-21")
    assert not profile.refuses("forced_tools", api_version="2026-10-21")
