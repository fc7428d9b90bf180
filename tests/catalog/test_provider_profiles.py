"""Profiles of the other providers' models, fact by fact, compared with the SDKs where there is one; test
names name the source."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.facts import figure_of, holds
from support.tables import each_row

from anaphora import catalog

#: provider, model; then field, value, a part of its source. "?" leads the source of a stand-in.
PROFILES: dict[tuple[str, str], list[tuple[str, Any, str]]] = {
    ("google", "gemini-2.5-flash"): [
        ("tokenizer", "gemma3", "[G] _local_tokenizer_loader.py"),
        ("context_tokens", 1048576, "[L]"),
        ("mid_conversation_system", False, "[G] types.Content.role"),
    ],
    ("google", "gemini-3.5-flash"): [("tokenizer", "gemma4", "[G] _local_tokenizer_loader.py")],
    ("ollama", "gpt-oss:20b"): [("tokenizer", "o200k", "tiktoken")],
    ("azure", "gpt-5.4"): [
        ("max_tokens_field", "max_completion_tokens", "[O]"),
        ("system_role", "developer", "[O]"),
        ("explicit_breakpoints", False, "?stand-in"),
        ("context_tokens", 922000, "[L]"),
    ],
    ("bedrock", "openai.gpt-5.6-luna"): [
        ("explicit_breakpoints", True, "[L] supports_prompt_cache_breakpoint"),
        ("system_slot", "message", "openai.toml"),
    ],
    ("minimax", "MiniMax-M3"): [
        ("max_tokens_field", "max_completion_tokens", "section 5"),
        ("context_tokens", 1000000, "[L], [GP]"),
    ],
    ("deepseek", "deepseek-chat"): [
        ("max_tokens_field", "max_tokens", "[3p]"),
        ("bytes_per_token", 3.5, "measured on traces/deepseek_reasonix"),
        ("token_error", 0.32, "measured"),
    ],
    ("deepseek", "deepseek-v4-pro"): [("bytes_per_token", 3.5, "?stand-in")],
    ("xai", "grok-4.7"): [
        ("max_tokens_field", "max_completion_tokens", "[3p]"),
        ("strips_thinking", False, "[web] prompt-caching"),
    ],
    ("mistral", "mistral-large-latest"): [
        ("max_tokens_field", "max_tokens", "[M]"),
        ("system_role", "system", "[M]"),
        ("bytes_per_token", 4.0, "?measured with mistral-common"),
    ],
    ("moonshot", "kimi-k3"): [
        ("max_tokens_field", "max_completion_tokens", "[web] platform.kimi.ai")
    ],
    ("alibaba", "qwen3.7-max"): [("max_tokens_field", "max_tokens", "[3p]")],
    ("zai", "glm-4.7"): [("max_tokens_field", "max_tokens", "[web] docs.z.ai")],
    ("groq", "openai/gpt-oss-120b"): [
        ("max_tokens_field", "max_completion_tokens", "[Gq]"),
        ("tokenizer", "o200k", "tiktoken"),
        ("bytes_per_token", 4.4, "measured for o200k"),
    ],
    ("cerebras", "gpt-oss-120b"): [("max_tokens_field", "max_completion_tokens", "[Ce]")],
    ("openrouter", "anthropic/claude-sonnet-4.6"): [
        ("max_tokens_field", "max_completion_tokens", "[R]"),
        ("system_role", "system", "exchanges"),
        ("tokenizer", "claude", "anthropic.toml"),
    ],
    ("openrouter", "openai/gpt-5.6-sol"): [("explicit_breakpoints", True, "[R]")],
    **{
        (name, "glm-5.3"): [("bytes_per_token", 2.5, "?stand-in: anthropic.toml")]
        for name in ("vercel", "litellm", "opencode", "copilot")
    },
    ("vllm", "any/model"): [("max_tokens_field", "max_tokens", "?stand-in")],
    ("llamacpp", "any.gguf"): [("max_tokens_field", "max_tokens", "?stand-in")],
    ("snowflake", "claude-sonnet-4-6"): [
        ("max_tokens_field", "max_completion_tokens", "[L] snowflake"),
        ("output_tokens", 16384, "[L]"),
    ],
    ("crusoe", "openai/gpt-oss-120b"): [("context_tokens", 131072, "[L]")],
    ("together", "openai/gpt-oss-120b"): [("tokenizer", "o200k", "tiktoken")],
    ("huggingface", "deepseek-ai/DeepSeek-R1"): [("system_role", "system", "?stand-in")],
}


@each_row(
    ("provider", "model", "field", "value", "source"),
    [
        pytest.param(*key, *fact, id=f"{key[0]}-{key[1]}-{fact[0]}-{fact[2]}")
        for key, facts in PROFILES.items()
        for fact in facts
    ],
)
def test_profiles(provider: str, model: str, field: str, value: object, source: str) -> None:
    holds(figure_of(catalog.profile(provider, model), field), value, source)


MAX_TOKENS_DISPUTED = [("xai", "grok-4.7"), ("moonshot", "kimi-k3"), ("cerebras", "gpt-oss-120b")]


@pytest.mark.parametrize(("provider", "model"), MAX_TOKENS_DISPUTED)
def test_undocumented_name_is_kept_beside_the_documented_one(provider: str, model: str) -> None:
    field = catalog.profile(provider, model).max_tokens_field
    assert field is not None
    assert field.published == ("max_completion_tokens", "max_tokens")


def test_googles_own_loader_names_the_tokenizers() -> None:
    pytest.importorskip("google.genai")
    spec = find_spec("google.genai._local_tokenizer_loader")
    assert spec is not None
    assert spec.origin is not None
    # Read, not imported: importing it needs a tokenizer library.
    named = dict(re.findall('"(gemini-[^"]+)": "(gemma[0-9])"', Path(spec.origin).read_text()))
    assert len(named) > 10
    ours = {
        profile.id: profile.tokenizer.value
        for profile in catalog.models("google")
        if profile.tokenizer.verified
    }
    assert len(ours) > 5
    assert ours.items() <= named.items()


def test_mistrals_request_has_the_field() -> None:
    pytest.importorskip("mistralai")
    from mistralai.client.models import ChatCompletionRequest

    field = catalog.profile("mistral", "mistral-large-latest").max_tokens_field
    assert field is not None
    assert field.value in ChatCompletionRequest.model_fields
    assert "max_completion_tokens" not in ChatCompletionRequest.model_fields


OTHERS = sorted(set(catalog.shipped().providers) - {"anthropic", "openai"})


@each_row("provider", OTHERS)
def test_every_provider_has_an_expected_profile(provider: str) -> None:
    assert provider in {key[0] for key in PROFILES}
