"""Requests that the providers reject, with status, code and parameter.

Each row is a request that its provider rejects, and the one thing that is wrong with it. The same
request without that one thing is in order, and so is every recorded one.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from support.tables import each_row

from anaphora import catalog, errors, wire
from anaphora.catalog import Feature, Figure
from anaphora.emulator import EmulatorOptions, strict
from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest
from anaphora.emulator.hosts import HOSTS
from anaphora.emulator.journal import ModelFacts
from anaphora.errors import AnaphoraError, Upstream
from anaphora.prompt import Params
from anaphora.tokens import Counts, for_model
from anaphora.wire.cutting import cut

MODELS = {
    "anthropic": "claude-opus-4-8",
    "openai_chat": "gpt-4o",
    "openai_responses": "gpt-4o",
    "gemini": "gemini-2.5-flash",
    "bedrock": "us.anthropic.claude-sonnet-5",
}
PATHS = {
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "gemini": "/v1beta/models/gemini-2.5-flash:generateContent",
    "bedrock": "/model/us.anthropic.claude-sonnet-5/converse",
}


def error_of(
    name: str, request: EmulatorRequest, facts: ModelFacts, **more: Any
) -> Upstream | None:
    try:
        strict.check(HOSTS[name].checks, request, facts, **more)
    except Upstream as error:
        return error
    return None


def check(
    name: str,
    body: Any,
    *,
    model: str | None = None,
    headers: dict[str, str] | None = None,
    path: str | None = None,
    provider: str | None = None,
    tokens: int | None = None,
) -> Upstream | None:
    """The answer to a request, as the engine asks for it: with what could be read of it."""
    provider = provider or wire.PROVIDERS[name]
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    if model is None:
        model = body.get("model") if isinstance(body, dict) else None
    model = model if isinstance(model, str) else MODELS[name]
    path = path or PATHS[name]
    sent = {"anthropic-version": "2023-06-01"} if headers is None else headers
    request = EmulatorRequest(method="POST", path=path, headers=sent, body=data)
    rules, profile = catalog.rules(provider, model, name), catalog.profile(provider, model)
    params: Params | None = None
    try:
        params = wire.get(name).parse(data, path).params
        rendered = cut(wire.get(name), data, path)
        if tokens is None:
            tokens, _ = Counts(for_model(rendered, profile)).bounds(profile.token_error.value)
    except AnaphoraError:
        pass
    counts = path.endswith("/count_tokens")
    facts = ModelFacts(provider, name, profile, rules)
    return error_of(name, request, facts, params=params, tokens=tokens or 0, counts=counts)


DAY = datetime.date(2026, 11, 14)
USER = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


def text(message: str = "Hello", **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": message, **more}


def claude(*messages: Any, **more: Any) -> dict[str, Any]:
    body = {"model": "claude-opus-4-8", "max_tokens": 100, "messages": [*messages] or [USER]}
    return {**body, **more}


def inline(media_type: str) -> dict[str, Any]:
    return {"type": "base64", "media_type": media_type, "data": "AAAA"}


def without(body: dict[str, Any], field: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != field}


def message_of(role: str, *blocks: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": list(blocks), **more}


CALLED = message_of("assistant", {"type": "tool_use", "id": "t1", "name": "f", "input": {}})
ANSWERED = message_of("user", {"type": "tool_result", "tool_use_id": "t1", "content": "ok"})
SYSTEM = message_of("system", text())
THINKS = {"type": "thinking", "thinking": "Hm.", "signature": "sig"}
FIVE = claude(message_of("user", *(text(cache_control=MARK) for _ in range(5))))
FOUR = claude(message_of("user", *(text(cache_control=MARK) for _ in range(4)), text()))

ANTHROPIC: list[Any] = [
    ("five markers", FIVE, 400, None),
    ("automatic with four taken", {**FOUR, "cache_control": MARK}, 400, None),
    (
        "automatic with another ttl on the last block",
        claude(message_of("user", text(cache_control=HOUR)), cache_control=MARK),
        400,
        "cache_control",
    ),
    (
        "an hour after five minutes",
        claude(message_of("user", text(cache_control=MARK), text(cache_control=HOUR))),
        400,
        "messages.0.content.1.cache_control.ttl",
    ),
    (
        "an hour in system after five minutes on a tool",
        claude(
            tools=[{"name": "f", "input_schema": {"type": "object"}, "cache_control": MARK}],
            system=[text(cache_control=HOUR)],
        ),
        400,
        "system.0.cache_control.ttl",
    ),
    (
        "a marker inside a tool result counts",
        claude(
            USER,
            CALLED,
            message_of(
                "user",
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [text(cache_control=MARK)] * 5,
                },
            ),
        ),
        400,
        None,
    ),
    (
        "an unknown image",
        claude(message_of("user", {"type": "image", "source": inline("image/tiff")})),
        400,
        "messages.0.content.0.source.base64.media_type",
    ),
    (
        "an unknown document",
        claude(message_of("user", {"type": "document", "source": inline("text/csv")})),
        400,
        "messages.0.content.0.source.base64.media_type",
    ),
    (
        "an unknown image in a result",
        claude(
            USER,
            message_of("assistant", {"type": "tool_use", "id": "t", "name": "f", "input": {}}),
            message_of(
                "user",
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": [text(), {"type": "image", "source": inline("image/bmp")}],
                },
            ),
        ),
        400,
        "messages.2.content.0.content.1.source.base64.media_type",
    ),
    (
        "a marker on thinking",
        claude(
            USER,
            message_of("assistant", {"type": "thinking", "thinking": "", "cache_control": MARK}),
            USER,
        ),
        400,
        "messages.1.content.0.thinking.cache_control",
    ),
    (
        "a marker on an empty text",
        claude(message_of("user", text("", cache_control=MARK))),
        400,
        "messages.0.content.0.text",
    ),
    (
        "a ttl that there is not",
        claude(message_of("user", text(cache_control={"type": "ephemeral", "ttl": "2h"}))),
        400,
        "messages.0.content.0.cache_control.ttl",
    ),
    ("a call without an answer", claude(USER, CALLED, USER), 400, "messages.1"),
    ("a call at the end", claude(USER, CALLED), 400, "messages.1"),
    ("an answer without a call", claude(ANSWERED), 400, "messages.0.content.0"),
    ("an unknown role", claude(message_of("tool", text())), 400, "messages.0.role"),
    ("system first", claude(SYSTEM, USER), 400, "messages.0"),
    ("system before the user", claude(USER, SYSTEM, USER), 400, "messages.1"),
    (
        "system behind the assistant",
        claude(USER, message_of("assistant", text()), SYSTEM),
        400,
        "messages.2",
    ),
    (
        "system where no model takes it",
        {**claude(USER, SYSTEM), "model": "claude-sonnet-4-5"},
        400,
        None,
    ),
    ("no max_tokens", without(claude(), "max_tokens"), 400, "max_tokens"),
    ("no model", without(claude(), "model"), 400, "model"),
    ("no messages", {**claude(), "messages": []}, 400, "messages"),
    ("too many tokens requested", claude(max_tokens=128_001), 400, "max_tokens"),
    ("fewer than none", claude(max_tokens=-1), 400, "max_tokens"),
    ("an unknown field", claude(frequency_penalty=1), 400, "frequency_penalty"),
    ("a beta field without its header", claude(context_management={}), 400, "context_management"),
    ("an unknown field of a message", claude({**USER, "name": "me"}), 400, "messages.0.name"),
    (
        "an unknown field of a block",
        claude(message_of("user", text(id="1"))),
        400,
        "messages.0.content.0.text.id",
    ),
    (
        "an unknown block",
        claude(message_of("user", {"type": "video"})),
        400,
        "messages.0.content.0",
    ),
    (
        "an unknown field of a tool",
        claude(tools=[{"name": "f", "input_schema": {}, "parameters": {}}]),
        400,
        "tools.0.custom.parameters",
    ),
    (
        "a small budget",
        claude(thinking={"type": "enabled", "budget_tokens": 10}),
        400,
        "thinking.enabled.budget_tokens",
    ),
    (
        "a budget above the limit",
        claude(thinking={"type": "enabled", "budget_tokens": 2000}),
        400,
        None,
    ),
    (
        "forced tools where the model refuses them",
        {**claude(tool_choice={"type": "any"}), "model": "claude-opus-5-5"},
        400,
        "tool_choice",
    ),
    (
        "thinking disabled where the model refuses it",
        {**claude(thinking={"type": "disabled"}), "model": "claude-opus-5-5"},
        400,
        "thinking",
    ),
    (
        "a thinking budget where the model refuses it",
        {
            **claude(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000),
            "model": "claude-opus-5-5",
        },
        400,
        "thinking",
    ),
    ("a stream that only warms", claude(max_tokens=0, stream=True), 400, "stream"),
    (
        "thinking that only warms",
        claude(max_tokens=0, thinking={"type": "enabled", "budget_tokens": 1024}),
        400,
        "thinking",
    ),
    (
        "a format that only warms",
        claude(max_tokens=0, output_config={"format": {"type": "json_schema", "schema": {}}}),
        400,
        "output_config.format",
    ),
    (
        "a forced tool that only warms",
        claude(max_tokens=0, tool_choice={"type": "tool", "name": "f"}),
        400,
        "tool_choice",
    ),
]


@each_row("body, status, param", [pytest.param(*row[1:], id=row[0]) for row in ANTHROPIC])
def test_anthropic_rejects(body: Any, status: int, param: str | None) -> None:
    error = check("anthropic", body)
    assert error is not None
    assert (error.status, error.code, error.param) == (status, "invalid_request_error", param)
    status_sent, _, written = wire.get("anthropic").write_error(error)
    assert status_sent == status
    assert json.loads(written)["error"]["type"] == "invalid_request_error"


def test_five_markers_are_counted_in_the_error() -> None:
    assert str(check("anthropic", FIVE)).endswith("may be provided. Found 5.")


FINAL = "The final block in an assistant message cannot be `{}`."
UNSIGNED = {"type": "thinking", "thinking": "Hm.", "signature": ""}
REDACTED = {"type": "redacted_thinking", "data": "x"}


@pytest.mark.parametrize(
    "blocks, message",
    [
        ((THINKS,), "messages.1: " + FINAL.format("thinking")),
        ((text(), THINKS), "messages.1: " + FINAL.format("thinking")),
        ((THINKS, REDACTED), "messages.1: " + FINAL.format("redacted_thinking")),
        ((UNSIGNED, text()), "messages.1.content.0: Invalid `signature` in `thinking` block"),
    ],
)
def test_anthropic_rejects_cut_off_reasoning(blocks: Any, message: str) -> None:
    assert str(check("anthropic", claude(USER, message_of("assistant", *blocks), USER))) == message


@each_row(
    "behind, refused",
    [
        ((), True),
        (({"role": "user", "content": "go on"},), True),
        (({"type": "function_call_output", "call_id": "c", "output": ""},), True),
        (({"type": "reasoning", "id": "rs_2", "summary": []},), True),
        (({"type": "message", "role": "assistant", "id": "msg_1", "content": []},), False),
        (({"type": "web_search_call", "id": "ws_1", "status": "completed"},), False),
    ],
)
def test_responses_rejects_reasoning_without_its_item(behind: Any, refused: bool) -> None:
    called = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    outputs = [item for item in behind if item.get("type") == "function_call_output"]
    body = responses(HI, *([called] if outputs else []), THOUGHT, *behind)
    error = check("openai_responses", body)
    expected = "Item 'rs_1' of type 'reasoning' was provided without its required following item."
    assert (str(error) == expected) if refused else error is None


def test_deepseek_rejects_a_message_of_reasoning_alone() -> None:
    message = {"role": "assistant", "reasoning_content": "Hm."}
    body = chat(HI, message, HI, model="deepseek-v4-flash")
    error = check("openai_chat", body, provider="deepseek")
    assert str(error) == "Invalid assistant message: content or tool_calls must be set"
    body["messages"][1] = {**message, "content": ""}
    assert check("openai_chat", body, provider="deepseek") is None


ANTHROPIC_TAKES: list[Any] = [
    ("plain", claude()),
    ("reasoning and text", claude(USER, message_of("assistant", THINKS, text()), USER)),
    (
        "reasoning that goes on in the next message",
        claude(USER, message_of("assistant", THINKS), message_of("assistant", text()), USER),
    ),
    ("four markers", FOUR),
    (
        "automatic on a block that is marked as long",
        claude(
            message_of("user", *(text(cache_control=MARK) for _ in range(4))), cache_control=MARK
        ),
    ),
    (
        "an hour before five minutes",
        claude(message_of("user", text(cache_control=HOUR), text(cache_control=MARK))),
    ),
    ("the assistant first", claude(message_of("assistant", text()), USER)),
    ("calls and answers", claude(USER, CALLED, ANSWERED)),
    ("answers in two messages", claude(USER, CALLED, ANSWERED, USER)),
    ("system behind the user", claude(USER, SYSTEM, message_of("assistant", text()), USER)),
    ("system at the end", claude(USER, SYSTEM)),
    ("only warming", claude(max_tokens=0)),
    ("sampling on the old version", claude(temperature=0.2, top_k=3)),
    (
        "a schema that speaks of cache_control",
        claude(tools=[{"name": "f", "input_schema": {"properties": {"cache_control": {}}}}]),
    ),
]


@each_row("body", [pytest.param(row[1], id=row[0]) for row in ANTHROPIC_TAKES])
def test_anthropic_accepts(body: Any) -> None:
    assert check("anthropic", body) is None


def test_beta_field_is_accepted_with_its_header() -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "context-management-2025-06-27"}
    schema = {"type": "json_schema", "schema": {"type": "object"}}
    betas: list[dict[str, Any]] = [{"context_management": {}}, {"output_format": schema}]
    for fields in betas:
        assert check("anthropic", claude(**fields), headers=headers) is None
        error = check("anthropic", claude(**fields))
        assert error is not None
        assert str(error) == f"{next(iter(fields))}: Extra inputs are not permitted"
    continued = claude(ANSWERED, thread={"type": "continue", "previous_message_id": "msg_1"})
    assert check("anthropic", continued, headers=headers) is None


def test_version_header_is_required_and_matters() -> None:
    error = check("anthropic", claude(), headers={})
    assert error is not None
    assert str(error) == "anthropic-version: header is required"
    new = {"anthropic-version": "2026-10-21"}
    cited = claude(message_of("user", text(citations=[{"type": "char_location"}])))
    document = {
        "type": "document",
        "source": {"type": "text", "data": "a", "media_type": "text/plain"},
    }
    for body, param in [
        (claude(temperature=0.2), "temperature"),
        (cited, "messages.0.content.0.citations"),
        (claude(USER, message_of("assistant", document), USER), "messages.1.content.0"),
    ]:
        assert check("anthropic", body) is None
        refused = check("anthropic", body, headers=new)
        assert refused is not None
        assert refused.param == param


@pytest.mark.long
def test_body_may_have_32_mb() -> None:
    error = check("anthropic", claude(message_of("user", text("x" * 32 * 1024 * 1024))))
    assert isinstance(error, errors.TooLarge)
    assert (error.status, error.code) == (413, "request_too_large")


def test_counting_tokens_needs_no_limit() -> None:
    body = without(claude(), "max_tokens")
    assert check("anthropic", body, path="/v1/messages/count_tokens") is None


# ── OpenAI ───────────────────────────────────────────────────────────────────────────────────────

HI = {"role": "user", "content": "Hello"}
JSON_MODE = {"type": "json_object"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CHAT_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
CHAT_ANSWER = {"role": "tool", "tool_call_id": "c1", "content": "ok"}


CLOSED: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
OPEN = without(CLOSED, "additionalProperties")
OPTIONAL = {**CLOSED, "required": []}
NESTED = {**CLOSED, "properties": {"a": {"type": ["object", "null"], "anyOf": [CLOSED]} | CLOSED}}


def data_url(media_type: str) -> str:
    return f"data:{media_type};base64,AAAA"


def chat_image(media_type: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(media_type)}}


def chat_file(media_type: str) -> dict[str, Any]:
    return {"type": "file", "file": {"file_data": data_url(media_type), "filename": "f"}}


def strict_tool(schema: Any, *, strict: bool | None = True) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "s", "parameters": schema, "strict": strict}}


def chat_format(schema: Any, *, strict: bool = True) -> dict[str, Any]:
    inner = {"name": "n", "schema": schema, "strict": strict}
    return {"type": "json_schema", "json_schema": inner}


def chat(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-4o", "messages": [*messages] or [HI], **more}


SAID = {"role": "assistant", "content": "a"}
CHAT: list[Any] = [
    ("no model", without(chat(), "model"), None, None),
    ("no messages", without(chat(), "messages"), "missing_required_parameter", "messages"),
    ("empty messages", {**chat(), "messages": []}, "empty_array", "messages"),
    ("an unknown field", chat(top_k=3), "unknown_parameter", "top_k"),
    (
        "a marker of Anthropic's",
        chat(message_of("user", text(cache_control=MARK))),
        "unknown_parameter",
        "messages[0].content[0].cache_control",
    ),
    (
        "an unknown role",
        chat({"role": "model", "content": "a"}),
        "invalid_value",
        "messages[0].role",
    ),
    ("a call without an answer", chat(HI, CHAT_CALL, HI), None, "messages.[2].role"),
    ("a call at the end", chat(HI, CHAT_CALL), None, "messages.[2].role"),
    ("an answer without a call", chat(HI, CHAT_ANSWER), None, "messages.[1].role"),
    (
        "an answer without an id",
        chat(HI, CHAT_CALL, without(CHAT_ANSWER, "tool_call_id")),
        None,
        "messages.[2].tool_call_id",
    ),
    ("too many answers", chat(n=129), "integer_above_max_value", "n"),
    ("no answer", chat(n=0), "integer_below_min_value", "n"),
    (
        "a schema without a name",
        chat(response_format={"type": "json_schema", "json_schema": {"schema": {}}}),
        "missing_required_parameter",
        "response_format.json_schema.name",
    ),
    (
        "a format without a schema",
        chat(response_format={"type": "json_schema"}),
        "missing_required_parameter",
        "response_format.json_schema",
    ),
    ("JSON that the prompt does not name", chat(response_format=JSON_MODE), None, "messages"),
    (
        "max_tokens where it reasons",
        chat(model="gpt-5-mini", max_tokens=9),
        "unsupported_parameter",
        "max_tokens",
    ),
    (
        "temperature where it reasons",
        chat(model="gpt-5-mini", temperature=0.2),
        "unsupported_value",
        "temperature",
    ),
    ("stop where it is refused", chat(model="o3", stop=["x"]), "unsupported_parameter", "stop"),
    ("stop of gpt-5.2", chat(model="gpt-5.2", stop="x"), "unsupported_parameter", "stop"),
    ("too hot", chat(temperature=2.1), "decimal_above_max_value", "temperature"),
    (
        "a web search of a model without one",
        chat(web_search_options={}),
        "unknown_parameter",
        "web_search_options",
    ),
    (
        "a developer message of o1-mini",
        chat({"role": "developer", "content": "a"}, HI, model="o1-mini"),
        "unsupported_value",
        "messages[0].role",
    ),
    (
        "a system message of o1-preview",
        chat(HI, {"role": "system", "content": "a"}, model="o1-preview"),
        "unsupported_value",
        "messages[1].role",
    ),
    (
        "an unknown image",
        chat({"role": "user", "content": [chat_image("image/tiff")]}),
        "invalid_image_format",
        "messages[0].content[0].image_url.url",
    ),
    (
        "an unknown file",
        chat({"role": "user", "content": [chat_file("text/markdown")]}),
        "invalid_value",
        "messages[0].content[0].file.file_data",
    ),
    (
        "an open object in a strict tool",
        chat(tools=[strict_tool(OPEN)]),
        "invalid_function_parameters",
        "tools[0].function.parameters",
    ),
    (
        "an optional property in a strict tool",
        chat(tools=[TOOL, strict_tool(OPTIONAL)]),
        "invalid_function_parameters",
        "tools[1].function.parameters",
    ),
    (
        "an open object in a strict format",
        chat(response_format=chat_format({**CLOSED, "properties": {"a": OPEN}})),
        None,
        "response_format",
    ),
    (
        "an optional property in a strict format",
        chat(response_format=chat_format({**CLOSED, "$defs": {"b": {"anyOf": [OPTIONAL]}}})),
        None,
        "response_format",
    ),
    (
        "sound where it is refused",
        chat(
            {
                "role": "user",
                "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "mp3"}}],
            },
            model="gpt-5-mini",
        ),
        "invalid_value",
        "messages[0]",
    ),
    (
        "stream options without a stream",
        chat(stream_options={"include_usage": True}),
        None,
        "stream_options",
    ),
    ("a choice without tools", chat(tool_choice="auto"), None, "tool_choice"),
    (
        "an unknown tool chosen",
        chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}}),
        None,
        "tool_choice",
    ),
]

CALL_ITEM = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT_ITEM = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}


def responses(*items: Any, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-4o", "input": [*items] or [HI], **more}


def file_item(media_type: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "input_file", "file_data": data_url(media_type)}]}


def image_item(media_type: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "input_image", "image_url": data_url(media_type)}]}


def strict_function(schema: Any) -> dict[str, Any]:
    return {"type": "function", "name": "f", "parameters": schema, "strict": True}


def text_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "name": "n", "schema": schema, **more}}


RESPONSES: list[Any] = [
    ("too hot", responses(temperature=3), "decimal_above_max_value", "temperature"),
    (
        "an unknown file",
        responses(HI, file_item("audio/mpeg")),
        "invalid_value",
        "input[1].content[0].file_data",
    ),
    (
        "an unknown image",
        responses(image_item("application/pdf")),
        "invalid_value",
        "input[0].content[0].image_url",
    ),
    (
        "an open object in a strict tool",
        responses(tools=[strict_function({**CLOSED, "properties": {"a": {"items": OPEN}}})]),
        "invalid_function_parameters",
        "tools[0].parameters",
    ),
    (
        "an optional property in a strict tool of a namespace",
        responses(tools=[{"type": "namespace", "tools": [strict_function(OPTIONAL)]}]),
        "invalid_function_parameters",
        "tools[0].tools[0].parameters",
    ),
    (
        "an open object in a strict format",
        responses(text=text_format(OPEN, strict=True)),
        "invalid_json_schema",
        "text.format.schema",
    ),
    (
        "an optional property in a strict format",
        responses(text=text_format(OPTIONAL, strict=True)),
        "invalid_json_schema",
        "text.format.schema",
    ),
    ("no model", without(responses(), "model"), None, None),
    ("an unknown field", responses(n=1), "unknown_parameter", "n"),
    (
        "too short an answer",
        responses(max_output_tokens=15),
        "integer_below_min_value",
        "max_output_tokens",
    ),
    ("a field of Chat", responses(response_format={}), "unsupported_parameter", "response_format"),
    (
        "JSON that only the instructions name",
        responses(instructions="Answer in JSON.", text={"format": JSON_MODE}),
        None,
        "input",
    ),
    (
        "an unknown field of an item",
        responses({**HI, "name": "me"}),
        "unknown_parameter",
        "input[0].name",
    ),
    ("a call without an output", responses(HI, CALL_ITEM), None, "input"),
    ("an output without a call", responses(HI, OUTPUT_ITEM), None, "input"),
    (
        "reasoning without what came behind it",
        responses(HI, THOUGHT, {"role": "assistant", "content": "42"}, HI),
        None,
        "input",
    ),
    ("compaction before the end", responses({"type": "compaction_trigger"}, HI), None, "input"),
    (
        "continued and not stored",
        responses(previous_response_id="resp_1", store=False),
        "previous_response_not_found",
        "previous_response_id",
    ),
    (
        "continued twice over",
        responses(previous_response_id="resp_1", conversation="conv_1"),
        "mutually_exclusive_parameters",
        "previous_response_id",
    ),
    (
        "a schema without a name",
        responses(text={"format": {"type": "json_schema", "schema": {}}}),
        "missing_required_parameter",
        "text.format.name",
    ),
    (
        "temperature where it reasons",
        responses(model="gpt-5-mini", temperature=0.2),
        "unsupported_value",
        "temperature",
    ),
    ("a tool demanded without tools", responses(tool_choice="required"), None, "tool_choice"),
    (
        "an unknown tool chosen",
        responses(
            tools=[{"type": "function", "name": "f"}], tool_choice={"type": "function", "name": "g"}
        ),
        None,
        "tool_choice",
    ),
]


@each_row(
    "name, body, code, param",
    [
        pytest.param(name, *row[1:], id=f"{name}: {row[0]}")
        for name, rows in (("openai_chat", CHAT), ("openai_responses", RESPONSES))
        for row in rows
    ],
)
def test_openai_rejects(name: str, body: Any, code: str | None, param: str | None) -> None:
    error = check(name, body)
    assert error is not None
    assert (error.status, error.code, error.param) == (400, code, param)
    status, _, written = wire.get(name).write_error(error)
    error_fields = json.loads(written)["error"]
    assert (status, error_fields["type"], error_fields["param"], error_fields["code"]) == (
        400,
        "invalid_request_error",
        param,
        code,
    )


@each_row(
    "name, body",
    [
        ("openai_chat", chat()),
        ("openai_chat", chat(HI, CHAT_CALL, CHAT_ANSWER, HI)),
        ("openai_chat", chat({**HI, "id": "1"}, CHAT_CALL, {**CHAT_ANSWER, "name": "f"})),
        ("openai_chat", chat(HI, {**SAID, "provider_specific_fields": {"refusal": None}}, HI)),
        (
            "openai_chat",
            chat(HI, {"role": "assistant", "content": "a", "refusal": None, "annotations": []}, HI),
        ),
        ("openai_chat", chat(max_tokens=9, temperature=0.2, n=128, stop=["x"])),
        ("openai_chat", chat(model="gpt-5-mini", temperature=1, max_completion_tokens=9)),
        ("openai_chat", chat(stream=True, stream_options={"include_usage": True})),
        (
            "openai_chat",
            chat({"role": "system", "content": "Json!"}, HI, response_format=JSON_MODE),
        ),
        ("openai_chat", chat(temperature=2)),
        ("openai_chat", chat({"role": "developer", "content": "a"}, HI)),
        ("openai_chat", chat(model="gpt-4o-search-preview", web_search_options={})),
        ("openai_chat", chat(model="gpt-9-search", web_search_options={})),
        (
            "openai_chat",
            chat(
                {
                    "role": "user",
                    "content": [chat_image("image/webp"), chat_file("application/pdf")],
                }
            ),
        ),
        ("openai_chat", chat(tools=[strict_tool(NESTED), strict_tool({}, strict=None)])),
        ("openai_chat", chat(tools=[strict_tool(OPTIONAL, strict=False)])),
        ("openai_chat", chat(response_format=chat_format(NESTED))),
        ("openai_chat", chat(response_format=chat_format(OPEN, strict=False))),
        (
            "openai_chat",
            chat(
                HI,
                {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "f", "content": "42"},
            ),
        ),
        ("openai_responses", responses(file_item("text/csv"), image_item("image/gif"))),
        ("openai_responses", responses(tools=[strict_function(NESTED)])),
        ("openai_responses", responses(text=text_format(NESTED, strict=True))),
        ("openai_responses", responses(text=text_format(OPEN))),
        ("openai_responses", responses()),
        ("openai_responses", {"model": "gpt-4o", "input": "JSON!", "text": {"format": JSON_MODE}}),
        ("openai_responses", responses(previous_response_id="r", text={"format": JSON_MODE})),
        ("openai_responses", {"model": "gpt-4o", "input": "Hello"}),
        ("openai_responses", responses(tools=[], tool_choice="auto")),
        ("openai_responses", responses(HI, THOUGHT, CALL_ITEM, OUTPUT_ITEM)),
        ("openai_responses", responses(OUTPUT_ITEM, previous_response_id="resp_1")),
        ("openai_responses", responses({"id": "fc_1"}, OUTPUT_ITEM)),
    ],
)
def test_openai_accepts(name: str, body: Any) -> None:
    assert check(name, body) is None


# ── Gemini ───────────────────────────────────────────────────────────────────────────────────────

ASKS = {"role": "user", "parts": [{"text": "Hello"}]}
GEMINI_CALL = {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]}
GEMINI_ANSWER = {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}]}


def gemini(*contents: Any, **more: Any) -> dict[str, Any]:
    return {"contents": [*contents] or [ASKS], **more}


CACHED = {"cachedContent": "cachedContents/1"}
GEMINI: list[Any] = [
    ("no contents", {"contents": []}, None),
    ("an unknown name", gemini(foo=1), None),
    (
        "an unknown name in a part",
        gemini({"role": "user", "parts": [{"txt": ""}]}),
        "contents[0].parts[0]",
    ),
    ("an unknown name in a content", gemini({**ASKS, "id": "1"}), "contents[0]"),
    ("an unknown setting", gemini(generationConfig={"maxTokens": 9}), "generation_config"),
    ("an unknown role", gemini({**ASKS, "role": "system"}), None),
    ("too hot", gemini(generationConfig={"temperature": 2.5}), "generation_config.temperature"),
    (
        "too hot in the other spelling",
        gemini(generation_config={"temperature": 3}),
        "generation_config.temperature",
    ),
    (
        "an unknown image",
        gemini({"role": "user", "parts": [{"inlineData": {"mimeType": "image/tiff", "data": ""}}]}),
        "contents[0].parts[0].inline_data.mime_type",
    ),
    (
        "an unknown file",
        gemini(
            ASKS, {"role": "user", "parts": [{"inline_data": {"mime_type": "application/zip"}}]}
        ),
        "contents[1].parts[0].inline_data.mime_type",
    ),
    ("cached with system text", gemini(**CACHED, systemInstruction=ASKS), None),
    ("cached with tools", gemini(**CACHED, tools=[{"functionDeclarations": []}]), None),
    (
        "cached with a tool config",
        gemini(**CACHED, tool_config={"functionCallingConfig": {}}),
        None,
    ),
    ("a call first", gemini(GEMINI_CALL, GEMINI_ANSWER), None),
    (
        "an answer behind no call",
        gemini(ASKS, {"role": "model", "parts": [{"text": "a"}]}, GEMINI_ANSWER),
        None,
    ),
    ("an answer first", gemini(GEMINI_ANSWER), None),
    ("more calls than answers", gemini(ASKS, GEMINI_CALL, GEMINI_CALL, GEMINI_ANSWER), None),
]


@each_row("body, param", [pytest.param(*row[1:], id=row[0]) for row in GEMINI])
def test_gemini_rejects(body: Any, param: str | None) -> None:
    error = check("gemini", body)
    assert error is not None
    assert (error.status, error.code, error.param) == (400, "INVALID_ARGUMENT", param)
    status, _, written = wire.get("gemini").write_error(error)
    assert (status, json.loads(written)["error"]["status"]) == (400, "INVALID_ARGUMENT")


@each_row(
    "body",
    [
        gemini(),
        gemini({"parts": [{"text": "Hello"}]}),
        gemini(**CACHED),
        gemini(GEMINI_ANSWER, **CACHED),
        gemini(ASKS, GEMINI_CALL, GEMINI_ANSWER),
        gemini(
            {"role": "user", "parts": [{"inline_data": {"mime_type": "audio/ogg", "data": ""}}]}
        ),
    ],
)
def test_gemini_accepts(body: Any) -> None:
    assert check("gemini", body) is None


def test_vertex_requires_a_role() -> None:
    path = (
        "/v1/projects/p/locations/global/publishers/google/models/gemini-2.5-flash:generateContent"
    )
    assert check("gemini", gemini({"parts": [{"text": "Hello"}]}), path=path) is not None


# ── All of them ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name, body, code, param",
    [
        ("anthropic", claude(), "invalid_request_error", None),
        ("openai_chat", chat(), "context_length_exceeded", "messages"),
        ("openai_responses", responses(), "context_length_exceeded", "input"),
        ("gemini", gemini(), "INVALID_ARGUMENT", None),
    ],
)
def test_context_window_is_exact(name: str, body: Any, code: str, param: str | None) -> None:
    """A prompt of the exact window is accepted, and one token more is rejected."""
    profile = catalog.profile(wire.PROVIDERS[name], MODELS[name])
    assert profile.context_tokens is not None
    limit = max(profile.context_tokens.published)
    assert check(name, body, tokens=limit) is None
    error = check(name, body, tokens=limit + 1)
    assert isinstance(error, errors.ContextOverflow)
    assert (error.status, error.code, error.param) == (400, code, param)
    assert wire.get(name).write_error(error)[0] == 400


def test_without_a_count_the_lowest_estimate_decides() -> None:
    """gpt-4 takes 8,192 tokens."""
    assert (
        check("openai_chat", chat({"role": "user", "content": "x" * 8000}, model="gpt-4")) is None
    )
    error = check("openai_chat", chat({"role": "user", "content": "x" * 200_000}, model="gpt-4"))
    assert isinstance(error, errors.ContextOverflow)


@each_row("name", list(wire.WIRES))
@each_row("body", [b"{", b"", b"[]", b'"a"', b"\xff"])
def test_body_that_is_no_object_is_rejected(name: str, body: bytes) -> None:
    error = check(name, body)
    assert isinstance(error, errors.RequestRejected)
    assert wire.get(name).write_error(error)[0] == 400


def test_other_providers_follow_the_catalog_only() -> None:
    """Fields unknown to OpenAI may be valid elsewhere."""
    body = chat(model="deepseek-v4-flash", top_k=3, whatever=1)
    assert check("openai_chat", body, provider="deepseek") is None
    error = check("openai_chat", body, provider="deepseek", tokens=10**9)
    assert isinstance(error, errors.ContextOverflow)


@pytest.mark.parametrize(
    "feature, asking",
    [
        ("sampling", {"top_p": 1}),
        ("altered_sampling", {"temperature": 0.5}),
        ("stop", {"stop": ["x"]}),
        ("forced_tools", {"tools": [TOOL], "tool_choice": "required"}),
    ],
)
def test_other_providers_reject_what_the_catalog_lists(
    feature: Feature, asking: dict[str, Any]
) -> None:
    figure = Figure[tuple[Feature, ...]](value=(feature,), source="a test", date=DAY)
    profile = msgspec.structs.replace(
        catalog.profile("deepseek", "deepseek-v4-flash"), refusals=figure
    )
    rules = catalog.rules("deepseek", "deepseek-v4-flash", "openai_chat")
    body = json.dumps(chat(**asking)).encode()
    request = EmulatorRequest(method="POST", path="/chat/completions", body=body)
    params = wire.get("deepseek").parse(body).params
    facts = ModelFacts("deepseek", "openai_chat", profile, rules)
    error = error_of("openai_chat", request, facts, params=params)
    assert isinstance(error, errors.RequestRejected)
    assert error.param == list(asking)[-1]


def mutants(value: Any) -> Iterator[Any]:
    """The same request with one value of it, anywhere, replaced by something odd."""
    yield from ({}, [], [[]], "x", 0, -1.5, True, None)
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from ({**value, key: mutant} for mutant in mutants(inner))
    if isinstance(value, list):
        for at, inner in enumerate(value):
            yield from ([*value[:at], mutant, *value[at + 1 :]] for mutant in mutants(inner))


BODIES = [
    ("anthropic", [row[1] for row in (*ANTHROPIC, *ANTHROPIC_TAKES)]),
    ("openai_chat", [row[1] for row in CHAT]),
    ("openai_responses", [row[1] for row in RESPONSES]),
    ("gemini", [row[1] for row in GEMINI]),
]


def checked(name: str, body: Any) -> Upstream | None:
    """Held to its own bytes only."""
    provider, model = wire.PROVIDERS[name], MODELS[name]
    rules, profile = catalog.rules(provider, model, name), catalog.profile(provider, model)
    headers, data = {"anthropic-version": "2026-10-21"}, json.dumps(body).encode()
    request = EmulatorRequest(method="POST", path=PATHS[name], headers=headers, body=data)
    return error_of(name, request, ModelFacts(provider, name, profile, rules))


#: Plain messages of each wire.
PLAIN = {
    "anthropic": claude(HI, {"role": "assistant", "content": "Yes?"}, HI),
    "openai_chat": chat({"role": "system", "content": "Be short."}, HI, HI),
    "openai_responses": responses({"role": "user", "content": "Hello", "type": "message"}, HI),
    "gemini": gemini(
        {"role": "user", "parts": [{"text": "Hello"}]}, {"role": "model", "parts": [{"text": "Hi"}]}
    ),
}


@pytest.mark.parametrize("name, bodies", BODIES)
@pytest.mark.long
def test_malformed_request_never_raises(name: str, bodies: list[Any]) -> None:
    """A provider error or none; never an exception."""
    for mutant in (mutant for body in (PLAIN[name], *bodies) for mutant in mutants(body)):
        error = checked(name, mutant)
        assert error is None or wire.get(name).write_error(error)[0] in (400, 413)


@each_row("kind", [[], {}, 5, None, True])
def test_marked_block_of_an_odd_type_never_raises(kind: Any) -> None:
    marker = {"cache_control": {"type": "ephemeral"}}
    block = {"type": kind, "text": "s", **marker}
    for fields in ({"system": [block]}, {"tools": [{"type": kind, "name": "t", **marker}]}):
        error = checked("anthropic", claude(HI, **fields, **marker))
        assert error is None or wire.get("anthropic").write_error(error)[0] == 400


@pytest.mark.parametrize(
    "name, body",
    [
        ("openai_chat", chat(response_format={"type": "json_object"})),
        ("openai_responses", responses(text={"format": {"type": "json_object"}})),
        ("gemini", gemini(generationConfig={"responseMimeType": "application/json"})),
    ],
)
def test_malformed_json_format_never_raises(name: str, body: Any) -> None:
    """An odd request is answered or rejected, and never raises."""
    engine = Engine(EmulatorOptions(any_model=True))
    headers = {"authorization": "Bearer k", "x-goog-api-key": "k"}
    for mutant in mutants(body):
        data = json.dumps(mutant).encode()
        request = EmulatorRequest(method="POST", path=PATHS[name], headers=headers, body=data)
        assert engine.respond(request).status in (200, 400), mutant


@each_row("name", PATHS)
@each_row("body", [b"[" * 100_000, b'{"a":' + b"[" * 100_000 + b"}"])
def test_deeply_nested_body_is_rejected(name: str, body: bytes) -> None:
    headers = {"x-api-key": "k", "x-goog-api-key": "k", "authorization": "Bearer k"}
    headers["anthropic-version"] = "2023-06-01"
    request = EmulatorRequest(method="POST", path=PATHS[name], headers=headers, body=body)
    assert Engine().respond(request).status == 400


@pytest.mark.long
def test_body_nested_near_the_limit_never_raises() -> None:
    """Depths that one reader still takes and the next does not."""
    engine, headers = Engine(), {"authorization": "Bearer k"}
    fields = b'"model":"gpt-4o","messages":[{"role":"user","content":"a"}]'
    for depth in range(700, 1000):
        schema = b'{"a":' * depth + b"1" + b"}" * depth
        tool = b'{"type":"function","function":{"name":"a","parameters":%b}}' % schema
        body = b'{%b,"tools":[%b]}' % (fields, tool)
        request = EmulatorRequest(
            method="POST", path=PATHS["openai_chat"], headers=headers, body=body
        )
        assert engine.respond(request).status in (200, 400), depth
