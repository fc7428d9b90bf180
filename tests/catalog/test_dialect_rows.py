"""Facts of each dialect row, as its sources state them."""

from __future__ import annotations

from typing import Any

import pytest
from support.tables import each_row

from anaphora.catalog import Dialect, dialects


def named(name: str) -> Dialect:
    provider, *rest = name.split("/")
    return dialects().find(provider, *rest)


@each_row(
    ("name", "address"),
    [
        ("azure", "https://{resource}.openai.azure.com/openai/v1/chat/completions"),
        ("azure/openai_responses", "https://{resource}.openai.azure.com/openai/v1/responses"),
        ("deepseek", "https://api.deepseek.com/chat/completions"),
        ("deepseek/openai_responses", "https://api.deepseek.com/responses"),
        ("deepseek/anthropic", "https://api.deepseek.com/anthropic/v1/messages"),
        ("minimax/anthropic", "https://api.minimax.io/anthropic/v1/messages"),
        ("moonshot/anthropic", "https://api.moonshot.ai/anthropic/v1/messages"),
        ("alibaba", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1/chat/completions"),
        ("zai", "https://api.z.ai/api/paas/v4/chat/completions"),
        ("groq", "https://api.groq.com/openai/v1/chat/completions"),
        ("openrouter", "https://openrouter.ai/api/v1/chat/completions"),
        ("bedrock", "https://bedrock-runtime.{region}.amazonaws.com"),
        ("bedrock/openai_responses", "https://bedrock-mantle.{region}.api.aws/openai/v1/responses"),
        ("bedrock/anthropic", "https://bedrock-mantle.{region}.api.aws/anthropic/v1/messages"),
        (
            "google/gemini/vertex",
            "https://aiplatform.googleapis.com/v1/projects/{project}/locations/{location}"
            "/publishers/google/models/{model}:{method}",
        ),
    ],
)
def test_addresses(name: str, address: str) -> None:
    row = named(name)
    assert row.base_url + row.path == address


ADAPTIVE = {"adaptive": "adaptive", "enabled": "adaptive", "disabled": "disabled"}
TIERS = {"auto": "auto", "default": "standard_only", "standard_only": "standard_only"}
ON = {"enabled": True, "adaptive": True, "disabled": False}
TYPE = {"enabled": "enabled", "adaptive": "enabled", "disabled": "disabled"}


@each_row(
    ("name", "param", "at", "values"),
    [
        ("minimax", "reasoning.mode", "thinking.type", ADAPTIVE),
        ("deepseek", "reasoning.mode", "thinking.type", TYPE),
        ("moonshot", "reasoning.mode", "thinking.type", TYPE),
        ("zai", "reasoning.mode", "thinking.type", TYPE),
        ("zai", "user", "user_id", {}),
        ("mistral", "seed", "random_seed", {}),
        ("mistral", "top_k", "top_k", {}),
        ("mistral", "service_tier", "service_tier", TIERS),
        ("alibaba", "reasoning.mode", "enable_thinking", ON),
        ("alibaba", "reasoning.budget_tokens", "thinking_budget", {}),
        ("alibaba", "top_k", "top_k", {}),
        ("groq", "service_tier", "service_tier", {"default": "on_demand"}),
        ("openrouter", "reasoning.effort", "reasoning.effort", {}),
        ("openrouter", "reasoning.budget_tokens", "reasoning.max_tokens", {}),
        ("openrouter", "reasoning.mode", "reasoning.enabled", ON),
        ("openrouter", "top_k", "top_k", {}),
        ("openrouter/openai_responses", "stop", "stop", {}),
        ("snowflake/openai_chat/claude", "reasoning.effort", "reasoning.effort", {}),
        ("snowflake/openai_chat/claude", "reasoning.budget_tokens", "reasoning.max_tokens", {}),
        ("vllm", "reasoning.mode", "chat_template_kwargs.enable_thinking", ON),
        ("vllm", "reasoning.budget_tokens", "thinking_token_budget", {}),
        ("vllm", "top_k", "top_k", {}),
        ("vllm/openai_responses", "seed", "seed", {}),
        ("llamacpp", "reasoning.mode", "chat_template_kwargs.enable_thinking", ON),
        ("llamacpp", "reasoning.budget_tokens", "thinking_budget_tokens", {}),
    ],
)
def test_renamed_fields(name: str, param: Any, at: str, values: dict[str, Any]) -> None:
    place = named(name).place(param)
    assert place is not None
    assert (place.at, place.values) == (at, values)


def test_grok_conversation_header() -> None:
    place = named("xai").place("cache.key")
    assert place is not None
    assert (place.header, place.at) == ("x-grok-conv-id", "")
    assert "cache.key" not in named("xai/openai_responses").fields  # there it is prompt_cache_key


@each_row(
    ("name", "nowhere"),
    [
        ("google/openai_chat", "seed frequency_penalty metadata store cache.key"),
        ("mistral", "user store verbosity"),
        ("mistral/openai_responses", "store truncation reasoning.summary"),
        ("groq", "frequency_penalty presence_penalty metadata store verbosity cache.key"),
        ("cerebras", "metadata store verbosity"),
        ("vllm", "cache.key"),  # a salt keeps others out, and is no key
        ("vllm/openai_responses", "cache.key"),
        ("llamacpp", "cache.key"),
        ("ollama/openai_chat", "cache.key"),
        ("openrouter", ""),
        ("deepseek", ""),
    ],
)
def test_fields_that_are_not_sent(name: str, nowhere: str) -> None:
    row = named(name)
    refused = {param for param, name in row.fields.items() if name is False}
    assert refused == {*nowhere.split(), "cache.retention"}


@each_row(
    ("name", "markers"),
    [
        ("openai", None),
        ("anthropic", None),
        ("alibaba", {"5m": {"cache_control": {"type": "ephemeral"}}}),
        ("minimax/anthropic", {"5m": {"cache_control": {"type": "ephemeral"}}}),
        (
            "openrouter",
            {
                "5m": {"cache_control": {"type": "ephemeral"}},
                "1h": {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
            },
        ),
        ("deepseek/anthropic", {}),
        ("ollama/anthropic", {}),
        ("vllm/anthropic", {}),
        ("llamacpp/anthropic", {}),
    ],
)
def test_markers(name: str, markers: dict[str, Any] | None) -> None:
    assert named(name).markers == markers


@pytest.mark.parametrize(
    ("name", "stops"),
    [
        ("deepseek", {"insufficient_system_resource": "other"}),
        ("mistral", {"error": "other"}),
        ("zai", {"sensitive": "refusal", "network_error": "other"}),
        ("openrouter", {"error": "other"}),
    ],
)
def test_stops(name: str, stops: dict[str, str]) -> None:
    assert named(name).stops == stops


@each_row(
    ("name", "at", "code", "kinds"),
    [
        (
            "minimax",
            "base_resp",
            "status_code",
            {"1002": "rate_limit", "1004": "auth", "1008": "quota", "1027": "content_refused"},
        ),
        ("minimax/anthropic", "base_resp", "status_code", {"2013": "invalid", "2056": "quota"}),
        (
            "zai",
            "error",
            "code",
            {"1113": "quota", "1211": "not_found", "1301": "content_refused", "1302": "rate_limit"},
        ),
        (
            "moonshot",
            "error",
            "type",
            {"exceeded_current_quota_error": "quota", "engine_overloaded_error": "overloaded"},
        ),
        ("alibaba", "error", "code", {"Arrearage": "quota", "InvalidApiKey": "auth"}),
    ],
)
def test_errors(name: str, at: str, code: str, kinds: dict[str, str]) -> None:
    shape = named(name).errors
    assert shape is not None
    assert (shape.at, shape.code) == (at, code)
    assert kinds.items() <= shape.kinds.items()


def test_minimax_errors_are_the_same_on_both_wires() -> None:
    assert named("minimax").errors == named("minimax/anthropic").errors
    assert named("minimax").errors is not None


def test_usage_paths() -> None:
    deepseek, qwen = named("deepseek").usage, named("alibaba").usage
    assert deepseek is not None
    assert (deepseek.read, deepseek.uncached) == (
        ("prompt_cache_hit_tokens",),
        ("prompt_cache_miss_tokens",),
    )
    assert qwen is not None
    assert qwen.written == ("prompt_tokens_details.cache_creation_input_tokens",)
    assert qwen.written_ttl == "5m"


@each_row(
    ("name", "auth"),
    [
        ("openai", "bearer"),
        ("azure", "api-key"),
        ("anthropic", "x-api-key"),
        ("google", "x-goog-api-key"),
        ("google/gemini/vertex", "bearer"),
        ("google/openai_chat", "bearer"),
        ("minimax/anthropic", "bearer"),
        ("deepseek/anthropic", "x-api-key"),
        ("moonshot/anthropic", "bearer"),
    ],
)
def test_keys(name: str, auth: str) -> None:
    assert named(name).auth == auth


# ── Held against a vendor's own types ────────────────────────────────────────────────────────────


def test_mistral_fields_match_its_row() -> None:
    pytest.importorskip("mistralai")
    from mistralai.client.models import ChatCompletionRequest

    known = set(ChatCompletionRequest.model_fields)
    row = named("mistral")
    for param, name in row.fields.items():
        place = None if name is False else row.place(param)
        if place is not None:
            assert place.at in known
        else:
            assert {param, f"prompt_{param.replace('.', '_')}"}.isdisjoint(known)
    assert known.isdisjoint(row.omitted)
    assert {"top_p", "n", "metadata", "parallel_tool_calls", "prompt_cache_key"} <= known
