"""A request of every wire with all that is usual in one, and a way to plant a field in each of its
objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
SCHEMA = {"type": "object", "properties": {"where": {"type": "string"}}}
NAME = "xPlanted"

#: The model of each, as the catalog knows it.
MODELS = {
    "anthropic": "claude-opus-5-5",
    "openai_chat": "gpt-5.6",
    "openai_responses": "gpt-5.6",
    "gemini": "gemini-2.5-flash",
    "bedrock": "us.anthropic.claude-opus-5-5",
}
PATHS = {
    "gemini": "/v1beta/models/gemini-2.5-flash:generateContent",
    "bedrock": "/model/us.anthropic.claude-opus-5-5/converse",
}

_KEPT = {"type": "ephemeral"}

ANTHROPIC: Json = {
    "model": MODELS["anthropic"],
    "max_tokens": 4000,
    "system": [{"type": "text", "text": "Be terse.", "cache_control": _KEPT}],
    "tools": [
        {"name": "look", "description": "Looks.", "input_schema": SCHEMA, "cache_control": _KEPT},
        {"type": "web_search_20250305", "name": "web_search", "user_location": {"city": "Bern"}},
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "adaptive", "display": "omitted"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    "metadata": {"user_id": "u"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": PNG},
                },
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "A text."},
                    "citations": {"enabled": True},
                },
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                {
                    "type": "text",
                    "text": "A picture.",
                    "citations": [
                        {
                            "type": "char_location",
                            "cited_text": "A",
                            "document_index": 0,
                            "document_title": None,
                            "start_char_index": 0,
                            "end_char_index": 1,
                        }
                    ],
                },
                {
                    "type": "tool_use",
                    "id": "t1",
                    "name": "look",
                    "input": {"where": "here", "more": {"a": 1}},
                    "caller": {"type": "direct"},
                },
                {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"q": "x"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "seen", "cache_control": _KEPT}],
                }
            ],
        },
        {"role": "system", "content": "Answer in French."},
        {"role": "assistant", "content": "Oui."},
        {"role": "user", "content": "And now?"},
    ],
}

CHAT: Json = {
    "model": MODELS["openai_chat"],
    "max_completion_tokens": 500,
    "tools": [
        {
            "type": "function",
            "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA},
        },
        {"type": "custom", "custom": {"name": "run", "format": {"type": "text"}}},
    ],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    "prompt_cache_options": {"mode": "explicit"},
    "web_search_options": {"user_location": {"type": "approximate"}},
    "metadata": {"team": "t"},
    "messages": [
        {"role": "developer", "content": [{"type": "text", "text": "Be terse."}]},
        {
            "role": "user",
            "content": [
                {
                    "type": "text",
                    "text": "What is this?",
                    "prompt_cache_breakpoint": {"mode": "explicit"},
                },
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
                {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
                {"type": "file", "file": {"file_id": "file_1"}},
            ],
        },
        {
            "role": "assistant",
            "content": "A picture.",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"where":"here"}'},
                },
                {"id": "c2", "type": "custom", "custom": {"name": "run", "input": "x"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "seen"}]},
        {"role": "tool", "tool_call_id": "c2", "content": "ran"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "system", "content": "Answer in French."},
        {"role": "user", "content": "And now?"},
    ],
}

RESPONSES: Json = {
    "model": MODELS["openai_responses"],
    "max_output_tokens": 500,
    "tools": [
        {"type": "function", "name": "look", "parameters": SCHEMA, "strict": False},
        {"type": "web_search", "user_location": {"type": "approximate", "city": "Bern"}},
    ],
    "tool_choice": {"type": "function", "name": "look"},
    "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "prompt_cache_options": {"mode": "explicit"},
    "metadata": {"team": "t"},
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "Be terse."}],
        },
        {
            "type": "message",
            "role": "user",
            "content": [
                {
                    "type": "input_text",
                    "text": "What is this?",
                    "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"},
                },
                {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
                {"type": "input_file", "file_id": "file_1"},
            ],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "encrypted_content": "eA==",
        },
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "status": "completed",
            "content": [
                {
                    "type": "output_text",
                    "text": "A picture.",
                    "annotations": [{"type": "file_citation", "file_id": "f", "index": 0}],
                },
                {"type": "refusal", "refusal": "No more."},
            ],
        },
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"where":"here"}'},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "seen"}],
        },
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "x"}},
        {"role": "system", "content": "Answer in French."},
        {"role": "assistant", "content": "Oui."},
        {"role": "user", "content": "And now?"},
    ],
}

GEMINI: Json = {
    "systemInstruction": {"parts": [{"text": "Be terse."}]},
    "tools": [
        {"functionDeclarations": [{"name": "look", "parametersJsonSchema": SCHEMA}]},
        {"googleSearch": {"timeRangeFilter": {"startTime": "2026-01-01T00:00:00Z"}}},
    ],
    "toolConfig": {
        "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look"]},
        "retrievalConfig": {"latLng": {"latitude": 1, "longitude": 2}},
    },
    "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    "generationConfig": {
        "maxOutputTokens": 500,
        "responseMimeType": "application/json",
        "responseJsonSchema": SCHEMA,
        "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 100},
    },
    "labels": {"team": "t"},
    "contents": [
        {
            "role": "user",
            "parts": [
                {"text": "What is this?"},
                {"inlineData": {"mimeType": "image/png", "data": PNG}},
                {"fileData": {"mimeType": "application/pdf", "fileUri": "https://x/files/1"}},
            ],
        },
        {
            "role": "model",
            "parts": [
                {"text": "Hm.", "thought": True, "thoughtSignature": "c2ln"},
                {"text": "A picture."},
                {"functionCall": {"id": "c1", "name": "look", "args": {"where": {"a": 1}}}},
                {"executableCode": {"language": "PYTHON", "code": "1"}},
                {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "c1", "name": "look", "response": {"result": {"a": 1}}}}
            ],
        },
        {"role": "user", "parts": [{"text": "And now?"}]},
    ],
}


_POINT = {"cachePoint": {"type": "default"}}

CONVERSE: Json = {
    "inferenceConfig": {"maxTokens": 4000, "stopSequences": ["END"]},
    "toolConfig": {
        "tools": [
            {
                "toolSpec": {
                    "name": "look",
                    "description": "Looks.",
                    "inputSchema": {"json": SCHEMA},
                }
            },
            {"systemTool": {"name": "nova_code_interpreter"}},
            _POINT,
        ],
        "toolChoice": {"auto": {}},
    },
    "system": [{"text": "Be terse."}, {"cachePoint": {"type": "default", "ttl": "5m"}}],
    "additionalModelRequestFields": {
        "thinking": {"type": "adaptive", "display": "omitted"},
        "output_config": {"effort": "low"},
    },
    "additionalModelResponseFieldPaths": ["/usage/output_tokens_details"],
    "outputConfig": {
        "textFormat": {
            "type": "json_schema",
            "structure": {"jsonSchema": {"schema": json.dumps(SCHEMA), "name": "a"}},
        }
    },
    "guardrailConfig": {"guardrailIdentifier": "g", "guardrailVersion": "1"},
    "performanceConfig": {"latency": "standard"},
    "serviceTier": {"type": "flex"},
    "requestMetadata": {"team": "t"},
    "messages": [
        {
            "role": "user",
            "content": [
                {"text": "What is this?"},
                {"image": {"format": "png", "source": {"bytes": PNG}}},
                {
                    "document": {
                        "name": "notes",
                        "format": "pdf",
                        "source": {"bytes": "JVBERi0xLjc="},
                        "citations": {"enabled": True},
                    }
                },
                _POINT,
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
                {
                    "citationsContent": {
                        "content": [{"text": "A picture."}],
                        "citations": [
                            {
                                "title": "notes",
                                "sourceContent": [{"text": "A"}],
                                "location": {
                                    "documentPage": {"documentIndex": 0, "start": 1, "end": 1}
                                },
                            }
                        ],
                    }
                },
                {"toolUse": {"toolUseId": "t1", "name": "look", "input": {"where": {"a": 1}}}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "toolResult": {
                        "toolUseId": "t1",
                        "content": [{"text": "seen"}, {"json": {"seen": {"a": 1}}}],
                        "status": "error",
                    }
                },
                {"guardContent": {"text": {"text": "check this", "qualifiers": ["query"]}}},
            ],
        },
        {"role": "assistant", "content": [{"text": "Oui."}]},
        {"role": "user", "content": [{"text": "And now?"}]},
    ],
}

REQUESTS: dict[str, Json] = {
    "anthropic": ANTHROPIC,
    "openai_chat": CHAT,
    "openai_responses": RESPONSES,
    "gemini": GEMINI,
    "bedrock": CONVERSE,
}


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all objects in a value, the outermost first."""
    if isinstance(value, dict):
        yield path
        for name, item in value.items():
            yield from places(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


def planted(value: Any, path: tuple[str | int, ...], planting: Any = "kept") -> Any:
    """The value with one more field in the object at a path."""
    changed = json.loads(json.dumps(value))
    inner = changed
    for step in path:
        inner = inner[step]
    inner[NAME] = planting
    return changed


def written(path: tuple[str | int, ...]) -> str:
    return "$" + "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in path)


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()
