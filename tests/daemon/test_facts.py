"""What a request asks for is found, wherever it stands in it and however it is written."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import catalog
from anaphora import wire as wires
from anaphora.daemon.faces import FACES
from anaphora.daemon.facts.reading import RequestFacts, read_facts
from anaphora.daemon.facts.request import known_fields
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, OutputSchema, Params, PromptIR, Reasoning, ToolChoice
from anaphora.rendered import Plan
from anaphora.values import Message, Tool
from anaphora.wire.reading import decode_members

GEMINI_PATH = "/v1beta/models/gemini-3.1-pro:generateContent"
PATHS = {"gemini": GEMINI_PATH}

BODIES: dict[str, dict[str, Any]] = {
    "anthropic": {
        "model": "claude-opus-5-5",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "hi"}],
    },
    "openai_chat": {"model": "gpt-6.1-sol", "messages": [{"role": "user", "content": "hi"}]},
    "openai_responses": {"model": "gpt-6.1-sol", "input": "hi"},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
    "ollama": {"model": "llama3.2", "messages": [{"role": "user", "content": "hi"}]},
}
EVERY_WIRE = pytest.mark.parametrize("wire", BODIES)


def facts_of(wire: str, changes: dict[str, Any] | None = None, **headers: str) -> RequestFacts:
    """The facts of a small request of a wire with these fields."""
    body = json.dumps(BODIES[wire.partition("/")[2] or wire] | (changes or {})).encode()
    path = PATHS.get(wire, "")
    listed = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return read_facts(wire, decode_members(body), path, listed)


def with_block(wire: str, block: Any) -> RequestFacts:
    """The facts of a request whose only message holds a text and this block."""
    texts = {"gemini": {"text": "hi"}, "openai_responses": {"type": "input_text", "text": "hi"}}
    content = [texts.get(wire, {"type": "text", "text": "hi"}), block]
    field = {"gemini": "contents", "openai_responses": "input"}.get(wire, "messages")
    inner = "parts" if wire == "gemini" else "content"
    return facts_of(wire, {field: [{"role": "user", inner: content}]})


@EVERY_WIRE
def test_plain_request_asks_for_nothing_special(wire: str) -> None:
    facts = facts_of(wire)
    assert facts.model
    assert facts.n == 1
    special = ("tools", "server_tools", "remote_mcp", "handles", "tiers", "betas", "unknown")
    assert not any(getattr(facts, name) for name in special)
    assert facts.stream is (wire == "ollama")


# ── Limits ───────────────────────────────────────────────────────────────────────────────────────

LIMITS = [
    ("anthropic", {"max_tokens": 7}, "max_tokens"),
    ("openai_chat", {"max_tokens": 7}, "max_tokens"),
    ("openai_chat", {"max_completion_tokens": 7}, "max_completion_tokens"),
    ("openai_chat", {"max_tokens": 3, "max_completion_tokens": 7}, "max_completion_tokens"),
    ("openai_responses", {"max_output_tokens": 7}, "max_output_tokens"),
    ("gemini", {"generationConfig": {"maxOutputTokens": 7}}, "generationConfig.maxOutputTokens"),
    ("gemini", {"generation_config": {"max_output_tokens": 7}}, "generationConfig.maxOutputTokens"),
    ("ollama", {"options": {"num_predict": 7}}, "options.num_predict"),
]


@each_row(("wire", "fields", "name"), LIMITS)
def test_output_limit_is_found_in_every_field(wire: str, fields: Any, name: str) -> None:
    facts = facts_of(wire, fields)
    assert (facts.max_tokens, facts.max_tokens_field) == (7, name)


@each_row("value", [-1, 1.5, True, "7", [7], 2**32])
def test_limit_that_is_no_whole_number_is_rejected(value: object) -> None:
    with pytest.raises(InvalidRequest, match="max_tokens"):
        facts_of("anthropic", {"max_tokens": value})


def test_limit_that_would_lower_a_bound_is_rejected() -> None:
    """Gemini takes numbers as text too, and a negative fee would pay for the rest."""
    thinking = {"generationConfig": {"thinkingConfig": {"thinkingBudget": "90000"}}}
    with pytest.raises(InvalidRequest, match="must be a number"):
        facts_of("gemini", thinking)
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": -5}
    with pytest.raises(InvalidRequest, match="max_uses: must be at least 0"):
        facts_of("anthropic", {"tools": [search]})


@pytest.mark.parametrize("value", [-2, -1, 0])
def test_limit_of_ollama_below_one_is_none(value: int) -> None:
    facts = facts_of("ollama", {"options": {"num_predict": value}})
    assert facts.max_tokens is None
    assert facts.unlimited_output


@pytest.mark.parametrize(("wire", "fields", "name"), LIMITS)
def test_limit_of_zero(wire: str, fields: Any, name: str) -> None:
    """It warms Anthropic's cache. To other hosts, some of them Ollama behind the paths of OpenAI,
    it is an error or no limit at all."""
    zero = json.loads(json.dumps(fields).replace("7", "0"))
    if wire == "anthropic":
        assert facts_of(wire, zero).max_tokens == 0
    elif wire != "ollama":
        with pytest.raises(InvalidRequest, match="must be at least 1, not 0"):
            facts_of(wire, zero)


def test_field_under_two_names_is_rejected() -> None:
    """D12: Gemini would read one of them, and we the other."""
    twice = {"generationConfig": {"maxOutputTokens": 7}, "generation_config": {}}
    with pytest.raises(InvalidRequest, match="generationConfig: is given twice"):
        facts_of("gemini", twice)
    inside = {"generationConfig": {"maxOutputTokens": 7, "max_output_tokens": 9000}}
    with pytest.raises(InvalidRequest, match="given twice"):
        facts_of("gemini", inside)


def test_number_of_answers() -> None:
    assert facts_of("openai_chat", {"n": 3}).n == 3
    assert facts_of("gemini", {"generationConfig": {"candidateCount": 4}}).n == 4
    with pytest.raises(InvalidRequest, match="at least 1"):
        facts_of("openai_chat", {"n": 0})


# ── Models ───────────────────────────────────────────────────────────────────────────────────────


@each_row(
    ("wire", "fields", "param"),
    [
        ("anthropic", {"fallbacks": [{"model": "other"}]}, "fallbacks[0].model"),
        ("openai_chat", {"models": ["other"]}, "models[0]"),
        ("openai_chat", {"fallbacks": ["other"]}, "fallbacks[0]"),
        (
            "anthropic",
            {"tools": [{"type": "advisor_20260301", "name": "advisor", "model": "other"}]},
            "tools[0].model",
        ),
        (
            "openai_responses",
            {"tools": [{"type": "image_generation", "model": "other"}]},
            "tools[0].model",
        ),
        ("gemini", {"model": "models/other"}, "model"),
    ],
)
def test_every_model_that_a_body_names_is_found(wire: str, fields: Any, param: str) -> None:
    """D11."""
    assert (param, "other") in facts_of(wire, fields).models


def test_gemini_names_model_and_stream_in_the_path() -> None:
    path = "/v1beta/models/gemini-3.8-flash:streamGenerateContent?alt=sse"
    facts = read_facts("gemini", decode_members(b'{"contents":[]}'), path)
    assert facts.model == "gemini-3.8-flash"
    assert facts.stream


# ── Tools ────────────────────────────────────────────────────────────────────────────────────────


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {}}}


FUNCTIONS = [
    ("anthropic", {"tools": [{"name": "find", "input_schema": {}}]}, "tools[0]"),
    ("anthropic", {"tools": [{"type": "custom", "name": "find"}]}, "tools[0]"),
    ("openai_chat", {"tools": [function("find")]}, "tools[0]"),
    ("openai_chat", {"tools": [{"type": "custom", "custom": {"name": "find"}}]}, "tools[0]"),
    ("openai_chat", {"functions": [{"name": "find"}]}, "functions[0]"),
    ("openai_responses", {"tools": [{"type": "function", "name": "find"}]}, "tools[0]"),
    (
        "openai_responses",
        {
            "tools": [
                {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "find"}]}
            ]
        },
        "tools[0].tools[0]",
    ),
    (
        "openai_responses",
        {"input": [{"type": "additional_tools", "tools": [{"type": "function", "name": "find"}]}]},
        "input[0]",
    ),
    (
        "anthropic",
        {
            "messages": [
                {
                    "role": "system",
                    "content": [
                        {"type": "tool_addition", "tool": {"name": "find", "input_schema": {}}}
                    ],
                }
            ]
        },
        "messages[0].content[0]",
    ),
    (
        "gemini",
        {"tools": [{"functionDeclarations": [{"name": "find"}]}]},
        "tools[0].functionDeclarations[0]",
    ),
    (
        "gemini",
        {"tools": {"function_declarations": {"name": "find"}}},
        "tools[0].functionDeclarations[0]",
    ),
    ("ollama", {"tools": [function("find")]}, "tools[0]"),
]


@each_row(("wire", "fields", "param"), FUNCTIONS)
def test_functions_are_found(wire: str, fields: Any, param: str) -> None:
    assert facts_of(wire, fields).tools == ((param, "find"),)


SERVER_TOOLS = [
    ("anthropic", {"tools": [{"type": "web_search_20250305", "name": "w", "max_uses": 3}]}, 3),
    ("anthropic", {"tools": [{"type": "code_execution_20260120", "name": "c"}]}, None),
    ("anthropic", {"tools": [{"type": "computer_20250124", "name": "computer"}]}, None),
    ("openai_chat", {"web_search_options": {}}, 1),
    (
        "openai_chat",
        {"tools": [{"type": "openrouter:web_search", "parameters": {"max_uses": 2}}]},
        2,
    ),
    ("openai_responses", {"tools": [{"type": "web_search"}]}, None),
    ("openai_responses", {"tools": [{"type": "file_search", "vector_store_ids": []}]}, None),
    ("openai_responses", {"tools": [{"type": "image_generation"}]}, None),
    ("openai_responses", {"tools": [{"type": "computer_use_preview"}]}, None),
    (
        "openai_responses",
        {"input": [{"type": "additional_tools", "tools": [{"type": "shell"}]}]},
        None,
    ),
    ("gemini", {"tools": [{"googleSearch": {}}]}, None),
    ("gemini", {"tools": [{"google_search": {}}]}, None),
    ("gemini", {"tools": [{"functionDeclarations": [], "urlContext": {}}]}, None),
    ("gemini", {"tools": {"codeExecution": {}}}, None),
    ("ollama", {"tools": [{"type": "web_search"}]}, None),
]


@each_row(("wire", "fields", "calls"), SERVER_TOOLS)
def test_server_tools_are_found(wire: str, fields: Any, calls: int | None) -> None:
    (tool,) = facts_of(wire, fields).server_tools
    assert tool.max_calls == calls


@pytest.mark.parametrize(
    ("wire", "fields"),
    [
        ("anthropic", {"mcp_servers": [{"type": "url", "url": "https://mcp.example"}]}),
        ("anthropic", {"tools": [{"type": "mcp_toolset", "mcp_server_name": "m"}]}),
        ("openai_responses", {"tools": [{"type": "mcp", "server_url": "https://mcp.example"}]}),
        ("gemini", {"tools": [{"mcpServers": [{"name": "m"}]}]}),
    ],
)
def test_remote_mcp_is_found(wire: str, fields: Any) -> None:
    assert facts_of(wire, fields).remote_mcp


# ── Stored objects ───────────────────────────────────────────────────────────────────────────────

HANDLES = [
    ("openai_responses", {"previous_response_id": "id1"}, "response"),
    ("openai_responses", {"conversation": "id1"}, "conversation"),
    ("openai_responses", {"conversation": {"id": "id1"}}, "conversation"),
    ("openai_responses", {"prompt_cache_options": {"comparison_response_id": "id1"}}, "response"),
    ("openai_responses", {"input": [{"type": "item_reference", "id": "id1"}]}, "item"),
    (
        "openai_responses",
        {"tools": [{"type": "code_interpreter", "container": "id1"}]},
        "container",
    ),
    (
        "openai_responses",
        {
            "tools": [
                {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["id1"]}}
            ]
        },
        "file",
    ),
    (
        "openai_responses",
        {"tools": [{"type": "file_search", "vector_store_ids": ["id1"]}]},
        "file",
    ),
    ("anthropic", {"container": "id1"}, "container"),
    ("anthropic", {"container": {"id": "id1"}}, "container"),
    ("anthropic", {"thread": {"type": "continue", "previous_message_id": "id1"}}, "response"),
    ("anthropic", {"diagnostics": {"previous_message_id": "id1"}}, "response"),
    ("gemini", {"cachedContent": "cachedContents/id1"}, "cached_content"),
    ("gemini", {"cached_content": "id1"}, "cached_content"),
    ("gemini", {"tools": [{"fileSearch": {"file_search_store_names": ["id1"]}}]}, "file"),
]


@each_row(("wire", "fields", "kind"), HANDLES)
def test_handles_are_found(wire: str, fields: Any, kind: str) -> None:
    found = [(handle.kind, handle.id) for handle in facts_of(wire, fields).handles]
    assert found == [(kind, "id1")]


FILES = [
    ("anthropic", {"type": "image", "source": {"type": "file", "file_id": "id1"}}),
    ("anthropic", {"type": "document", "source": {"type": "file", "file_id": "id1"}}),
    ("anthropic", {"type": "container_upload", "file_id": "id1"}),
    (
        "anthropic",
        {
            "type": "tool_result",
            "tool_use_id": "t",
            "content": [{"type": "image", "source": {"type": "file", "file_id": "id1"}}],
        },
    ),
    ("openai_chat", {"type": "file", "file": {"file_id": "id1"}}),
    ("openai_responses", {"type": "input_file", "file_id": "id1"}),
    ("openai_responses", {"type": "input_image", "file_id": "id1"}),
    ("gemini", {"fileData": {"fileUri": "files/id1"}}),
    ("gemini", {"file_data": {"file_uri": "https://generativelanguage.googleapis.com/files/id1"}}),
]


@each_row(("wire", "block"), FILES)
def test_files_in_messages_are_found(wire: str, block: Any) -> None:
    (handle,) = with_block(wire, block).handles
    assert handle.kind == "file"
    assert handle.id.endswith("id1")


def test_files_in_buckets_need_an_entry_in_the_grant() -> None:
    """No app owns what the operator's account can read there."""
    facts = with_block("gemini", {"fileData": {"fileUri": "gs://bucket/secret.pdf"}})
    assert facts.unknown == ("fileData.fileUri",)
    assert facts.handles == ()


def test_escaped_names_are_read_like_plain_ones() -> None:
    """D12: `\\u0069` is an `i`, in names and types alike."""
    body = (
        rb'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":'
        rb'[{"type":"\u0069mage","source":{"type":"file","f\u0069le_id":"id1"}}]}]}'
    )
    facts = read_facts("anthropic", decode_members(body), "")
    assert facts.media.images == 1
    assert [handle.id for handle in facts.handles] == ["id1"]


def test_arguments_of_tools_are_no_handles() -> None:
    call = {"type": "tool_use", "id": "t", "name": "open", "input": {"file_id": "mine"}}
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    messages = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [image]}]
    assert facts_of("anthropic", {"messages": messages}).handles == ()


# ── Media ────────────────────────────────────────────────────────────────────────────────────────

DATA = "QUFB" * 1000
MEDIA = [
    ("anthropic", {"type": "image", "source": {"type": "base64", "data": DATA}}, "images"),
    ("anthropic", {"type": "image", "source": {"type": "url", "url": "https://e.com"}}, "images"),
    ("anthropic", {"type": "document", "source": {"type": "base64", "data": DATA}}, "documents"),
    (
        "openai_chat",
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
        "images",
    ),
    ("openai_chat", {"type": "input_audio", "input_audio": {"data": DATA}}, "audio"),
    ("openai_chat", {"type": "file", "file": {"file_data": DATA}}, "documents"),
    (
        "openai_responses",
        {"type": "input_image", "image_url": f"data:image/png;base64,{DATA}"},
        "images",
    ),
    ("openai_responses", {"type": "input_file", "file_url": "https://e.com/a.pdf"}, "documents"),
    ("gemini", {"inlineData": {"mimeType": "image/png", "data": DATA}}, "images"),
    ("gemini", {"inline_data": {"mime_type": "application/pdf", "data": DATA}}, "documents"),
    ("gemini", {"inlineData": {"mimeType": "audio/wav", "data": DATA}}, "audio"),
    ("gemini", {"inlineData": {"mimeType": "Audio/wav", "data": DATA}}, "audio"),
    (
        "gemini",
        {"fileData": {"mimeType": "video/mp4", "fileUri": "https://youtu.be/x"}},
        "audio",
    ),
    ("gemini", {"fileData": {"fileUri": "https://youtu.be/x"}}, "audio"),
]


@each_row(("wire", "block", "kind"), MEDIA)
def test_media_are_counted(wire: str, block: Any, kind: str) -> None:
    media = with_block(wire, block).media
    assert getattr(media, kind) == media.images + media.documents + media.audio == 1
    assert media.inline >= (len(DATA) if DATA in json.dumps(block) else 0)


def test_images_of_ollama_are_counted() -> None:
    messages = [{"role": "user", "content": "hi", "images": [DATA, DATA]}]
    media = facts_of("ollama", {"messages": messages}).media
    assert (media.images, media.inline) == (2, 2 * len(DATA))


def test_text_that_looks_like_an_image_stays_text() -> None:
    """Otherwise long text would be held for at the price of a picture."""
    document = {"type": "document", "source": {"type": "text", "data": DATA}}
    assert with_block("anthropic", document).media.inline == 0
    image = {"type": "image", "source": {"type": "base64", "data": DATA}}
    hidden = {"type": "text", "text": "hi", "citations": [image]}
    assert with_block("anthropic", hidden).media.inline == 0


@each_row("depth", [0, 1, 2])
def test_lifetimes_of_markers_are_found_in_inner_blocks(depth: int) -> None:
    """They are part of the price that a call can have."""
    block: Any = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    for _ in range(depth + 1):
        block = {"type": "document", "source": {"type": "content", "content": [block]}}
    assert with_block("anthropic", block).cache_ttls == ("1h",)


def test_each_medium_is_excepted_once() -> None:
    """Two equal images are two spans; one inside another is text."""
    image = {"type": "image", "source": {"type": "base64", "data": DATA}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image, image]}
    media = with_block("anthropic", result).media
    assert (media.images, media.inline) == (2, 2 * len(DATA))
    first, second = media.spans
    assert first.end < second.start
    nested = {"type": "image", "source": {"type": "image", "data": DATA, "source": image}}
    assert with_block("anthropic", nested).media.spans == ()


@pytest.mark.parametrize(
    ("wire", "block"),
    [
        ("anthropic", {"type": "hologram", "id": "h"}),
        ("openai_chat", {"type": "document_url", "document_url": "https://e.com/a.pdf"}),
        ("openai_responses", {"type": "hologram"}),
        ("gemini", {"hologram": {}}),
    ],
)
def test_new_kind_of_block_counts_as_a_document(wire: str, block: Any) -> None:
    """It may be anything, so it is held for like the largest medium."""
    assert with_block(wire, block).media.documents == 1


def test_ollama_reads_names_in_any_case() -> None:
    messages = [{"role": "user", "content": "hi", "Images": [DATA]}]
    assert facts_of("ollama", {"messages": messages}).media.images == 1


def test_part_with_a_member_under_two_names_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="two names"):
        with_block("gemini", {"inlineData": {"data": DATA}, "inline_data": {"data": "x"}})


@pytest.mark.parametrize(
    "part",
    [
        {"fileData": {"fileUri": None, "file_uri": "gs://bucket/x"}},
        {"fileData": {"fileUri": "https://example.com/y", "file_uri": "gs://bucket/x"}},
        {"inlineData": {"mimeType": "image/png", "mime_type": "video/mp4", "data": DATA}},
        {"functionResponse": {"name": "f", "parts": [{"inlineData": {}, "inline_data": {}}]}},
    ],
)
def test_members_inside_a_part_have_one_name(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="two names"):
        with_block("gemini", part)


def test_the_data_of_tools_may_have_any_names() -> None:
    args = {"file_uri": "gs://a", "fileUri": "gs://b"}
    part = {"functionCall": {"name": "f", "args": args}}
    assert with_block("gemini", part).unknown == ()


@pytest.mark.parametrize(
    "message",
    [
        [{"type": "tool_addition", "tool": {"name": "find"}}],
        {"role": "user", "content": [[{"type": "tool_addition", "tool": {"name": "find"}}]]},
        {
            "role": "user",
            "content": "x",
            "extra": {"type": "tool_addition", "tools": [{"name": "find"}]},
        },
    ],
)
def test_tools_are_found_where_no_block_is_expected(message: Any) -> None:
    facts = facts_of("anthropic", {"messages": [message]})
    assert [name for _, name in facts.tools] == ["find"]


def test_buckets_are_found_where_no_block_is_expected() -> None:
    file = {"fileData": {"file_uri": "gs://bucket/secret.pdf"}}
    facts = with_block("gemini", {"toolResponse": {"response": {"parts": [file]}}})
    assert facts.unknown == ("fileData.fileUri",)


def test_stored_prompt_is_found() -> None:
    for prompt, found in (({"id": "pmpt_1"}, True), ("pmpt_1", True), (None, False)):
        assert facts_of("openai_responses", {"prompt": prompt}).stored_prompt is found


def test_whole_numbers_of_gemini_may_be_floats() -> None:
    config = {"maxOutputTokens": 16.0, "candidateCount": 2.0}
    facts = facts_of("gemini", {"contents": [], "generationConfig": config})
    assert (facts.max_tokens, facts.n) == (16, 2)
    assert type(facts.max_tokens) is int
    for wrong in ({"maxOutputTokens": 16.5}, {"candidateCount": True}):
        with pytest.raises(InvalidRequest):
            facts_of("gemini", {"contents": [], "generationConfig": wrong})
    with pytest.raises(InvalidRequest):
        facts_of("anthropic", {"max_tokens": 16.0, "messages": []})


def test_files_that_an_answer_cited_are_no_handles() -> None:
    citation = {"type": "char_location", "file_id": "file_1", "cited_text": "tea"}
    document = {"type": "document", "source": {"type": "text", "data": "tea"}}
    text = {"type": "text", "text": "tea", "citations": [citation]}
    messages = [{"role": "user", "content": [document]}, {"role": "assistant", "content": [text]}]
    assert facts_of("anthropic", {"messages": messages}).handles == ()


# ── Tiers, betas, storage, unknown fields ────────────────────────────────────────────────────────


@each_row(
    ("wire", "fields"),
    [
        ("anthropic", {"speed": "fast"}),
        ("openai_chat", {"service_tier": "priority"}),
        ("openai_responses", {"service_tier": "flex"}),
        ("gemini", {"serviceTier": "PRIORITY"}),
        ("gemini", {"service_tier": "flex"}),
    ],
)
def test_service_tiers_are_found(wire: str, fields: Any) -> None:
    assert facts_of(wire, fields).tiers


@pytest.mark.parametrize("tier", ["auto", "default", "standard", "standard_only"])
def test_standard_tier_needs_no_permission(tier: str) -> None:
    assert not facts_of("openai_chat", {"service_tier": tier}).tiers


def test_betas_are_read_from_headers() -> None:
    betas = facts_of("anthropic", anthropic_beta="one, two", Anthropic_Beta="three").betas
    assert [beta.value for beta in betas] == ["one", "two", "three"]


def test_background_and_storage() -> None:
    facts = facts_of("openai_responses", {"background": True, "store": True})
    assert facts.background
    assert facts.store
    assert facts_of("openai_responses").store is None


UNKNOWN = [
    *((wire, {"unheard": 1}, "unheard") for wire in BODIES),
    ("anthropic", {"workspace_id": "w"}, "workspace_id"),
    ("anthropic", {"container": {"skills": []}}, "container.skills"),
    ("anthropic", {"thinking": {"type": "enabled", "new": 1}}, "thinking.new"),
    (
        "anthropic",
        {"context_management": {"edits": [{"type": "compact_20260112"}]}},
        "context_management.compact_20260112",
    ),
    ("openai_chat", {"audio": {"voice": "x"}}, "audio"),
    ("openai_chat", {"modalities": ["text", "audio"]}, "modalities"),
    ("openai_chat", {"plugins": [{"id": "web"}]}, "plugins"),
    ("openai_chat", {"stream_options": {"new": 1}}, "stream_options.new"),
    ("openai_chat", {"prompt": {"id": "pmpt_1"}}, "prompt"),
    ("openai_responses", {"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ("openai_responses", {"context_management": []}, "context_management"),
    ("gemini", {"generationConfig": {"new": 1}}, "generationConfig.new"),
    ("gemini", {"generation_config": {"new_one": 1}}, "generationConfig.newOne"),
    (
        "gemini",
        {"generationConfig": {"responseModalities": ["IMAGE"]}},
        "generationConfig.responseModalities",
    ),
    (
        "gemini",
        {"generationConfig": {"thinkingConfig": {"new": 1}}},
        "generationConfig.thinkingConfig.new",
    ),
    ("gemini", {"continuationToken": "x"}, "continuationToken"),
    ("ollama", {"options": {"num_gpu": 1}}, "options.num_gpu"),
]


@each_row(("wire", "fields", "path"), UNKNOWN)
def test_unknown_fields_are_found(wire: str, fields: Any, path: str) -> None:
    assert facts_of(wire, fields).unknown == (path,)


def test_null_is_no_field() -> None:
    assert facts_of("openai_chat", {"unheard": None, "tools": None, "n": None}).unknown == ()
    assert facts_of("openai_responses", {"reasoning": {"mode": None}}).unbounded == ()
    thinking = {"thinkingBudget": None, "includeThoughts": True}
    facts = facts_of("gemini", {"generationConfig": {"thinkingConfig": thinking}})
    assert facts.thinking_budget == 0


def test_fields_of_a_dialect_are_known_there() -> None:
    fields = {"reasoning": {"effort": "high", "exclude": True}}
    assert facts_of("openai_chat", fields).unknown == ("reasoning",)
    assert facts_of("openrouter/openai_chat", fields).unknown == ()


@pytest.mark.parametrize("messages", [None, 7, "text", [7], [[]], [{"content": {"a": 1}}]])
@EVERY_WIRE
def test_messages_of_any_form_are_read(wire: str, messages: object) -> None:
    """What is wrong with them is for the wire to say."""
    field = {"gemini": "contents", "openai_responses": "input"}.get(wire, "messages")
    assert facts_of(wire, {field: messages}).media.inline == 0


# ── Laws ─────────────────────────────────────────────────────────────────────────────────────────

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "text", "image", "tool_addition", "fast", "id1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from("type id name tool tools content source model file_id edits".split()),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=20)
@given(data=st.data())
@EVERY_WIRE
def test_values_of_any_type_are_read_or_rejected(wire: str, data: st.DataObject) -> None:
    known = known_fields(wire)
    names = st.sampled_from(sorted({*known.top, "models", "fallbacks"}))
    fields = data.draw(st.dictionaries(names, json_values, min_size=1, max_size=3))
    with suppress(InvalidRequest):
        facts_of(wire, fields)


def test_deep_nesting_is_no_error_of_ours() -> None:
    deep = b"[" * 400 + b"]" * 400
    body = b'{"model":"m","max_tokens":1,"messages":%s}' % deep
    assert read_facts("anthropic", decode_members(body), "").media.images == 0


PARAMS: list[dict[str, Any]] = [
    {"max_tokens": 9},
    {"temperature": 1.0},
    {"top_p": 1.0},
    {"top_k": 5},
    {"stop": ("x",)},
    {"seed": 1},
    {"frequency_penalty": 0.1},
    {"presence_penalty": 0.1},
    {"verbosity": "low"},
    {"user": "u"},
    {"metadata": {"user_id": "u"}},
    {"include": ("reasoning.encrypted_content",)},
    {"truncation": "auto"},
    {"stream": True},
    {"output": OutputSchema('{"type":"object"}', "answer")},
    {"reasoning": Reasoning(effort="high")},
    {"reasoning": Reasoning(mode="enabled", budget_tokens=2000), "max_tokens": 4000},
    {"reasoning": Reasoning(mode="adaptive", display="omitted")},
    {"reasoning": Reasoning(summary="auto")},
    {"tool_choice": ToolChoice(mode="auto", parallel=False)},
]


#: Of the wires that have a face.
SPOKEN = [row.name for row in catalog.dialects().rows if row.wire in FACES]


@each_row("name", [*BODIES, *SPOKEN])
def test_requests_that_we_render_have_no_unknown_fields(name: str) -> None:
    """Calls by JSON-RPC are rendered: their parameters need no entry in a grant."""
    codec, provider = wires.get(name), wires.provider_of(name)
    tool = Tool("find", "Finds.", '{"type":"object"}')
    for params in PARAMS:
        call = Call(
            ir=PromptIR.chat([Message.user("hi")], system="Be brief."),
            model="some-model",
            tools=(tool,),
            params=Params(**{"max_tokens": 9} | params),
        )
        try:
            request = codec.assemble(
                codec.render(call, catalog.profile(provider, "some-model")), Plan()
            )
        except InvalidRequest:
            continue
        facts = read_facts(name, decode_members(request.body.join()), request.path)
        assert facts.unknown == (), params
        assert [tool.value for tool in facts.tools] == ["find"]
