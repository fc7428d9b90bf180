"""Requests that no client of ours sends: valid ones with wrong values anywhere in them."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

KEYED = {"authorization": "Bearer k", "x-api-key": "k", "x-goog-api-key": "k"}

_SCHEMA: Any = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z]", "minLength": 1},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
        "unit": {"anyOf": [{"enum": ["c", "f"]}, {"$ref": "#/$defs/unit"}]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
    "$defs": {"unit": {"type": "string", "multipleOf": 2, "format": "date"}},
}
_IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

ANTHROPIC: Any = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 64,
    "system": [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
    "messages": [
        {"role": "user", "content": [
            {"type": "text", "text": "Hi"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _IMAGE}},
        ]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"city": "A"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "7"}], "is_error": False}]},
        {"role": "user", "content": "And now?"},
    ],
    "tools": [{"name": "look", "description": "Looks.", "input_schema": _SCHEMA}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "metadata": {"user_id": "u"},
    "stop_sequences": ["\n\nHuman:"],
    "temperature": 1,
    "stream": True,
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": _SCHEMA}},
}  # fmt: skip
CHAT: Any = {
    "model": "gpt-4o",
    "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [
            {"type": "text", "text": "Hi"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_IMAGE}", "detail": "low"}},
        ]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{\"city\":\"A\"}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "7"},
        {"role": "user", "content": "And now?"},
    ],
    "tools": [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": _SCHEMA, "strict": True}}],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA, "strict": True}},
    "n": 2, "stop": ["x"], "max_completion_tokens": 64, "temperature": 0.5, "seed": 1, "user": "u",
    "stream": True, "stream_options": {"include_usage": True}, "prompt_cache_key": "k", "logit_bias": {"1": 1},
}  # fmt: skip
RESPONSES: Any = {
    "model": "gpt-5.1",
    "instructions": "Be short.",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}, {"type": "input_image", "image_url": "https://example.com/a.png"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "x"}], "encrypted_content": "abc"},
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "7"},
        {"role": "user", "content": "And now?"},
    ],
    "tools": [{"type": "function", "name": "look", "parameters": _SCHEMA, "strict": True}],
    "tool_choice": "auto", "reasoning": {"effort": "low", "summary": "auto"}, "store": True, "stream": False,
    "text": {"format": {"type": "json_schema", "name": "a", "schema": _SCHEMA, "strict": True}, "verbosity": "low"},
    "max_output_tokens": 64, "previous_response_id": None, "metadata": {"a": "b"}, "include": ["reasoning.encrypted_content"],
    "prompt_cache_options": {"mode": "explicit", "ttl": "30m"}, "prompt_cache_diagnostics": {"compare_with": "resp_1"},
}  # fmt: skip
GEMINI: Any = {
    "systemInstruction": {"parts": [{"text": "Be short."}]},
    "contents": [
        {"role": "user", "parts": [{"text": "Hi"}, {"inlineData": {"mimeType": "image/png", "data": _IMAGE}}]},
        {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {"city": "A"}}, "thoughtSignature": "YQ=="}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"result": 7}}}]},
    ],
    "tools": [{"functionDeclarations": [{"name": "look", "description": "Looks.", "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING", "pattern": "^a", "nullable": True}}}}, {"name": "see", "parametersJsonSchema": _SCHEMA}]}],
    "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look"]}},
    "generationConfig": {"candidateCount": 2, "maxOutputTokens": 64, "stopSequences": ["x"], "temperature": 1, "responseMimeType": "application/json", "responseSchema": {"type": "OBJECT", "properties": {"a": {"type": "INTEGER", "minimum": 1}}}, "thinkingConfig": {"thinkingBudget": 128, "includeThoughts": True}},
    "safetySettings": [], "cachedContent": "cachedContents/abc",
}  # fmt: skip
CACHED: Any = {
    "model": "models/gemini-2.5-flash", "contents": GEMINI["contents"], "ttl": "300s",
    "expireTime": "2030-01-01T00:00:00Z", "displayName": "x", "systemInstruction": GEMINI["systemInstruction"],
}  # fmt: skip
COUNTED: Any = {"generateContentRequest": {"model": "models/gemini-2.5-flash", **GEMINI}}
_GEMINI_PATH = "/v1beta/models/gemini-2.5-flash"

#: Method, path and a valid body for every kind of request.
BODIES: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/v1/messages", ANTHROPIC),
    ("POST", "/v1/messages/count_tokens", ANTHROPIC),
    ("POST", "/minimax/anthropic/v1/messages", ANTHROPIC),
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/deepseek/v1/chat/completions", CHAT),
    ("POST", "/mistral/v1/chat/completions", CHAT),
    ("POST", "/v1/responses", RESPONSES),
    ("POST", "/v1/responses/input_tokens", RESPONSES),
    ("GET", "/v1/responses/resp_1/input_items", {}),
    ("POST", f"{_GEMINI_PATH}:generateContent", GEMINI),
    ("POST", f"{_GEMINI_PATH}:streamGenerateContent", GEMINI),
    ("POST", f"{_GEMINI_PATH}:countTokens", COUNTED),
    ("POST", "/v1beta/cachedContents", CACHED),
    ("PATCH", "/v1beta/cachedContents/abc", CACHED),
    ("GET", "/v1beta/cachedContents", {}),
    ("GET", "/v1/models", {}),
    ("GET", "/v1beta/models", {}),
)

#: What takes the place of a valid value. Texts are JSON: some of them no writer would write.
WRONG = (
    "null", "true", "0", "-1", "1", "1.5", "1e400", "-1e308", "1e308", "9" * 400, "NaN", "-0.0",
    "9223372036854775808", '""', '"x"', '"\\u0000"', '"\\ud800"', '"²"', '"' + "9" * 5000 + '"',
    "[]", "{}", "[null]", '[""]', "[[]]", "[{}]", '{"type":"text"}', '{"type":null}', '{"":{}}',
    '"2026-13-45T99:99:99Z"', '"9999999999999999s"', '"99999-01-01T00:00:00Z"', '"1e9s"',
    "[" * 300 + "]" * 300, '{"a":' * 300 + "1" + "}" * 300, '"data:image/png;base64,%%%"',
    '{"$ref":"#"}', '{"$ref":7}', '{"type":[]}', '{"enum":[]}', '{"type":"wat"}', '{"allOf":[{"$ref":"#"}]}',
    '{"minimum":"x"}', '{"required":7}', '{"properties":[]}', '{"pattern":7}', '{"minItems":1.5}',
)  # fmt: skip
_BROKEN = (
    b"",
    b"\xff\xfe",
    b"{",
    b"[]",
    b"null",
    b'"x"',
    b"\x1f\x8b\x08\x00",
    b"[" * 100_000,
    b"0",
)
#: Stands for a wrong value until the JSON is written.
_MARK = "\u0001wrong\u0001"


def mutated(drawn: random.Random, body: Any) -> bytes:
    """A body with one to three wrong values, or with none that can be read."""
    if drawn.random() < 0.03:
        return drawn.choice(_BROKEN)
    changed = copy.deepcopy(body)
    for _ in range(drawn.choice((1, 1, 2, 3))):
        _change(drawn, changed)
    text = json.dumps(changed)
    quoted = json.dumps(_MARK)
    while quoted in text:
        text = text.replace(quoted, drawn.choice(WRONG), 1)
    return text.encode()


def _change(drawn: random.Random, value: Any) -> None:
    """Replaces, removes, adds or repeats one value anywhere in an object or a list."""
    places = list(_places(value))
    if not places:
        if isinstance(value, dict):
            value[_MARK if drawn.random() < 0.1 else "extra"] = _MARK
        return
    inside, key = drawn.choice(places)
    match drawn.randrange(6):
        case 0:
            del inside[key]
        case 1 if isinstance(inside, list):
            inside.append(copy.deepcopy(inside[key]))
        case 1:
            inside["extra"] = _MARK
        case 2 if len(places) > 1:
            other, name = drawn.choice(places)
            inside[key] = copy.deepcopy(other[name])
        case _:
            inside[key] = _MARK


def _places(value: Any) -> Any:
    """Every object or list inside, with each of its keys or indexes."""
    keys = (
        value.keys()
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else ()
    )
    for key in list(keys):
        yield value, key
        yield from _places(value[key])
