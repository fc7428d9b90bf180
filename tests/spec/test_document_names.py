"""Every public name of the five source documents that SPEC keeps is importable as written there.

Left out: what only Rust has (`BoxStream`, `stream_boxed`), private helpers, and the replay adapter,
which comes with replay.
"""

from __future__ import annotations

import importlib

import msgspec
import pytest
from support.tables import each_row

from anaphora import RenderedContext, errors
from anaphora.client import adapter
from anaphora.daemon import LLM_COMPLETE_METHOD, LlmCompleteInput, LlmCompleteResponse
from anaphora.prompt import PrefixFingerprint
from anaphora.prompt.context import ContextFingerprint

NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    # 000: prompt blocks
    "anaphora": {
        "CachePolicy": ("NONE", "EPHEMERAL_5M", "EPHEMERAL_1H", "is_cached"),
        "PromptBlock": ("label", "text", "cache", "plain", "cached_long", "cached_short"),
        # 001: rendered context
        "RenderedContext": (
            "system_text",
            "system_stable",
            "system_knowledge",
            "turns",
            "state_turn",
            "frozen_prefix_len",
            "prefix_fingerprint",
        ),
        # 002: canonical request
        "PromptIR": (
            "system_text",
            "system_blocks",
            "segments",
            "cache",
            "continuation",
            "run",
            "system_field",
            "body_chat",
            "flatten",
            "responses_input",
            "continuation_delta",
            "responses_request_options",
        ),
        "Message": ("role", "id", "system", "user", "assistant"),
    },
    "anaphora.prompt": {
        "flatten_blocks": (),
        "PrefixFingerprint": ("extends", "common_turn_prefix"),
        "Segment": ("role", "messages"),
        "Continuation": ("previous_response_id", "last_committed_assistant_id"),
        "PromptCachePlan": (),
        "ResponsesRequestOptions": (
            "store",
            "text_verbosity",
            "input_messages",
            "instructions",
            "previous_response_id",
        ),
    },
    "anaphora.values": {
        "Role": (),
        "SegmentRole": (
            "STABLE_PREFIX",
            "DYNAMIC_CONTEXT",
            "SYSTEM_REMAINDER",
            "CONVERSATION",
            "VOLATILE_TAIL",
        ),
    },
    # 003: delegated completion
    "anaphora.daemon": {
        "LLM_COMPLETE_METHOD": (),
        "LlmChatMessage": ("role", "content"),
        "LlmCompleteInput": (
            "provider",
            "model",
            "messages",
            "max_tokens",
            "temperature",
            "system_prompt",
        ),
        "LlmUsage": ("prompt_tokens", "completion_tokens", "total_tokens"),
        "LlmCompleteResponse": ("content", "model", "usage"),
    },
    # 004: adapter
    "anaphora.client.adapter": {
        "LlmAdapter": ("adapter_id", "complete", "stream"),
        "LlmRole": (),
        "LlmMessage": ("role", "content"),
        "TokenUsage": ("prompt_tokens", "completion_tokens"),
        "LlmRequest": (
            "model",
            "system",
            "messages",
            "temperature",
            "max_tokens",
            "json_schema",
            "timeout_ms",
            "prompt_hash",
        ),
        "LlmResponse": ("text", "parsed_json", "model", "usage", "raw_hash"),
        "LlmError": (),
        "StreamChunk": ("delta", "finish_reason"),
        "blake3_hex": (),
    },
    "anaphora.errors": {
        "Transport": (),
        "Upstream": (),
        "InvalidRequest": (),
        "Timeout": (),
        "Parse": (),
        "NoFixture": (),
        "FixtureIntegrityFailed": (),
        "Io": (),
    },
}


@each_row("module, name", [(module, name) for module, names in NAMES.items() for name in names])
def test_every_name_of_the_documents_is_importable(module: str, name: str) -> None:
    value = getattr(importlib.import_module(module), name)
    missing = [member for member in NAMES[module][name] if not hasattr(value, member)]
    assert not missing


def test_b5_the_prefix_fingerprint_is_the_one_that_a_context_returns() -> None:
    assert PrefixFingerprint is ContextFingerprint
    assert type(RenderedContext().prefix_fingerprint()) is PrefixFingerprint


def test_e4_the_adapter_raises_what_its_error_name_catches() -> None:
    for name in NAMES["anaphora.errors"]:
        assert issubclass(getattr(errors, name), adapter.LlmError)


INPUT = {
    "provider": "deepseek-19c7",
    "model": "deepseek-v4-flash",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "¿Qué?"}],
}


@pytest.mark.parametrize(
    "more", [{}, {"max_tokens": 512, "temperature": 0.7, "system_prompt": "Be kind."}]
)
def test_d1_params_round_trip_without_absent_fields(more: dict[str, object]) -> None:
    given = INPUT | more
    assert LLM_COMPLETE_METHOD == "nexo/admin/llm/complete"
    read = msgspec.json.decode(msgspec.json.encode(given), type=LlmCompleteInput)
    assert msgspec.json.decode(msgspec.json.encode(read)) == given


@each_row(
    "change, path",
    [
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"temperature": 2.1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2**32}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"provider": " "}, "provider"),
    ],
)
def test_d3_bad_params_name_their_place(change: dict[str, object], path: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(INPUT | change, LlmCompleteInput)
    assert path in str(caught.value)


def test_d1_a_result_always_has_its_usage() -> None:
    encoded = msgspec.json.decode(msgspec.json.encode(LlmCompleteResponse(content="Hi", model="m")))
    zero = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    assert encoded == {"content": "Hi", "model": "m", "usage": zero}
    read = msgspec.json.decode(b'{"content":"Hi","model":"m"}', type=LlmCompleteResponse)
    assert read.usage.total_tokens == 0
