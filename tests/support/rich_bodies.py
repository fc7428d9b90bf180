"""A rich request of each wire, and the same changed in one place at a time.

    for name, body in changed_bodies("anthropic"):
        ...

The changes are about what readers have to agree on: functions, markers, roles, ids, inline bytes.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator
from typing import Any

from . import rich

Json = dict[str, Any]
Path = tuple[str | int, ...]

_PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(90))).decode()
_PDF = base64.b64encode(b"%PDF-1.7\n" + bytes(range(90))).decode()
_WAV = base64.b64encode(b"RIFF" + bytes(range(90))).decode()
_SCHEMA: Json = {"type": "object", "properties": {"q": {"type": "string"}}}
_MARK: Json = {"type": "ephemeral", "ttl": "5m"}
_BREAKPOINT: Json = {"mode": "explicit"}


def _function(name: str) -> Json:
    return {"name": name, "description": "Finds.", "parameters": _SCHEMA}


RICH: dict[str, Json] = {
    "anthropic": {
        "model": "claude-sonnet-4-5",
        "max_tokens": 64,
        "system": [
            {"type": "text", "text": "Be short."},
            {"type": "text", "text": "And kind.", "cache_control": {**_MARK, "ttl": "1h"}},
        ],
        "tools": [
            {"name": "find", "description": "Finds.", "input_schema": _SCHEMA},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 2},
        ],
        "tool_choice": {"type": "auto"},
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look at these."},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": _PNG},
                    },
                    {
                        "type": "document",
                        "title": "Notes",
                        "source": {"type": "base64", "media_type": "application/pdf", "data": _PDF},
                        "cache_control": _MARK,
                    },
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                    {"type": "tool_use", "id": "t1", "name": "find", "input": {"q": "a"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [
                            {"type": "text", "text": "7"},
                            {
                                "type": "image",
                                "source": {
                                    "type": "base64",
                                    "media_type": "image/png",
                                    "data": _PNG,
                                },
                            },
                        ],
                    },
                    {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
                    {"type": "text", "text": "And now?", "cache_control": _MARK},
                ],
            },
            {"role": "assistant", "content": "Eight."},
            {"role": "user", "content": "Thanks."},
        ],
        "temperature": 1,
        "stop_sequences": ["x"],
        "metadata": {"user_id": "u"},
        "output_config": {"effort": "low"},
    },
    "openai_chat": {
        "model": "gpt-5.6",
        "messages": [
            {"role": "system", "content": "Be short."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Hi", "prompt_cache_breakpoint": _BREAKPOINT},
                    {
                        "type": "image_url",
                        "image_url": {"url": f"data:image/png;base64,{_PNG}", "detail": "low"},
                    },
                    {"type": "input_audio", "input_audio": {"data": _WAV, "format": "wav"}},
                    {
                        "type": "file",
                        "file": {
                            "filename": "a.pdf",
                            "file_data": f"data:application/pdf;base64,{_PDF}",
                        },
                    },
                    {"type": "file", "file": {"file_id": "file-1"}},
                ],
            },
            {
                "role": "assistant",
                "content": "Let me see.",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "find", "arguments": '{"q":"a"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "7"}]},
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "name": "ann", "content": "And now?"},
        ],
        "tools": [
            {"type": "function", "function": _function("find")},
            {"type": "function", "function": {"name": "count", "parameters": _SCHEMA}},
        ],
        "tool_choice": {"type": "function", "function": {"name": "find"}},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": _SCHEMA},
        },
        "prompt_cache_options": {"mode": "explicit"},
        "max_completion_tokens": 64,
        "temperature": 1,
        "stop": ["x"],
        "user": "u",
    },
    "openai_responses": {
        "model": "gpt-5.6",
        "instructions": "Be short.",
        "input": [
            {
                "type": "message",
                "role": "user",
                "content": [
                    {
                        "type": "input_text",
                        "text": "Hi",
                        "prompt_cache_breakpoint": {**_BREAKPOINT, "ttl": "12h"},
                    },
                    {"type": "input_image", "image_url": f"data:image/png;base64,{_PNG}"},
                    {
                        "type": "input_file",
                        "filename": "a.pdf",
                        "file_data": f"data:application/pdf;base64,{_PDF}",
                    },
                    {"type": "input_file", "file_id": "file-1"},
                ],
            },
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
            },
            {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [
                    {"type": "input_text", "text": "7", "prompt_cache_breakpoint": _BREAKPOINT},
                    {"type": "input_image", "image_url": f"data:image/png;base64,{_PNG}"},
                ],
            },
            {"type": "item_reference", "id": "msg_1"},
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": "And now?"},
        ],
        "tools": [
            {"type": "function", **_function("find")},
            {"type": "web_search", "search_context_size": "low"},
        ],
        "tool_choice": {"type": "function", "name": "find"},
        "text": {"format": {"type": "json_schema", "name": "answer", "schema": _SCHEMA}},
        "previous_response_id": "resp_1",
        "max_output_tokens": 64,
        "store": False,
        "metadata": {"a": "b"},
    },
    "gemini": {
        "systemInstruction": {"parts": [{"text": "Be short."}]},
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "Hi"},
                    {"inlineData": {"mimeType": "image/png", "data": _PNG}},
                    {"inlineData": {"mimeType": "audio/wav", "data": _WAV}},
                    {
                        "fileData": {
                            "mimeType": "application/pdf",
                            "fileUri": "https://generativelanguage.googleapis.com/v1beta/files/f1",
                        }
                    },
                ],
            },
            {
                "role": "model",
                "parts": [
                    {"text": "Hm.", "thought": True},
                    {
                        "functionCall": {"id": "c1", "name": "find", "args": {"q": "a"}},
                        "thoughtSignature": "c2ln",
                    },
                ],
            },
            {
                "role": "user",
                "parts": [
                    {
                        "functionResponse": {
                            "id": "c1",
                            "name": "find",
                            "response": {"result": 7},
                            "parts": [{"inlineData": {"mimeType": "image/png", "data": _PNG}}],
                        }
                    },
                    {"text": "And now?"},
                ],
            },
            {"parts": [{"text": "Thanks."}]},
        ],
        "tools": [
            {
                "functionDeclarations": [
                    _function("find"),
                    {"name": "count", "parametersJsonSchema": _SCHEMA},
                ]
            },
            {"googleSearch": {}},
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
        "generationConfig": {
            "candidateCount": 1,
            "maxOutputTokens": 64,
            "stopSequences": ["x"],
            "temperature": 1,
            "responseMimeType": "application/json",
            "responseJsonSchema": _SCHEMA,
            "thinkingConfig": {"thinkingBudget": 64},
        },
        "cachedContent": "cachedContents/c1",
        "labels": {"a": "b"},
    },
}

RICH["bedrock"] = rich.CONVERSE

#: Where each request is sent; the paths of Gemini and Bedrock name the model.
PATHS = {
    "bedrock": rich.PATHS["bedrock"],
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "gemini": "/v1beta/models/gemini-2.5-flash:generateContent",
}

#: Members that a change adds to an object: markers, ids, media and definitions where none are.
_ADDED: tuple[tuple[str, Any], ...] = (
    ("cache_control", _MARK),
    ("cache_control", {**_MARK, "ttl": "1h"}),
    ("prompt_cache_breakpoint", _BREAKPOINT),
    ("cachePoint", {"type": "default", "ttl": "1h"}),
    ("file_id", "file_9"),
    ("id", "id_9"),
    ("tools", [{"type": "function", "function": _function("late"), **_function("late")}]),
    ("content", [{"type": "text", "text": "In.", "cache_control": _MARK}]),
    ("source", {"type": "base64", "media_type": "image/png", "data": _PNG}),
    ("images", [_PNG]),
    ("inlineData", {"mimeType": "image/png", "data": _PNG}),
    ("unheard_of", {"file_id": "file_8"}),
)
_TYPES = ("text", "input_text", "tool_result", "document", "unheard_of")
_ROLES = ("user", "assistant", "system", "tool", "unheard_of")


def changed_bodies(wire: str) -> Iterator[tuple[str, Json]]:
    """A name for each change, and the changed body. No two bodies are the same."""
    seen: set[str] = set()
    for name, body in [("as it is", RICH[wire]), *_changes(RICH[wire])]:
        if repr(body) not in seen:
            seen.add(repr(body))
            yield name, body


def _changes(body: Json) -> Iterator[tuple[str, Json]]:
    for path, value in _nodes(body):
        shown = ".".join(map(str, path))
        for what, changed in _values(path, value):
            yield f"{shown} {what}", _replaced(body, path, changed)
        yield f"{shown} dropped", _without(body, path)
        if isinstance(path[-1], str):
            yield f"{shown} renamed", _renamed(body, path, f"x_{path[-1]}")
            yield f"{shown} in other case", _renamed(body, path, _other_case(path[-1]))
        if isinstance(value, dict):
            for key, member in _ADDED:
                if key not in value:
                    yield f"{shown} + {key}", _replaced(body, path, {**value, key: member})


def _nodes(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All values below the body. What a schema or arguments hold is the app's own."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in items:
        yield (*path, key), each
        own = key in ("input_schema", "parameters", "schema", "args", "input", "format")
        own = own and isinstance(each, dict) and "json_schema" not in each and "type" not in each
        if isinstance(each, (dict, list)) and each and not own and key != "properties":
            yield from _nodes(each, (*path, key))


def _values(path: Path, value: Any) -> Iterator[tuple[str, Any]]:
    """What takes the place of a value."""
    key = path[-1]
    if key == "type":
        others: tuple[str, ...] = _TYPES
    elif key == "role":
        others = _ROLES
    else:
        others = (value + "2", "") if isinstance(value, str) else ()
    for other in others:
        if other != value:
            yield f"= {other}", other
    if isinstance(value, str) and len(value) > 100:
        yield "cut", value[:-4]
    if isinstance(value, list):
        yield "doubled", value * 2
        yield "reversed", value[::-1]
        yield "emptied", []
        yield "nested", [value]
        yield "+ a block", [*value, {"type": "unheard_of", "content": value, "source": _MARK}]
    if isinstance(value, dict):
        yield "as a list", [value]
        yield "nested", {"content": value}
        yield "+ null", {**value, "x_null": None}
    if not isinstance(value, str):
        yield "as text", "x"
    if not isinstance(value, (int, float)):
        yield "as a number", 7
    yield "= null", None


def _other_case(key: str) -> str:
    """In snake case where the name has capitals, else with one."""
    snake = "".join(f"_{each.lower()}" if each.isupper() else each for each in key)
    return snake if snake != key else key[:1].upper() + key[1:]


def _holder(body: Json, path: Path) -> tuple[Json, Any]:
    """A copy of the body, and the object or list in it that holds the end of the path."""
    changed = copy.deepcopy(body)
    holder: Any = changed
    for step in path[:-1]:
        holder = holder[step]
    return changed, holder


def _replaced(body: Json, path: Path, value: Any) -> Json:
    changed, holder = _holder(body, path)
    holder[path[-1]] = copy.deepcopy(value)
    return changed


def _without(body: Json, path: Path) -> Json:
    changed, holder = _holder(body, path)
    del holder[path[-1]]
    return changed


def _renamed(body: Json, path: Path, key: str) -> Json:
    """The member under another name, in its place."""
    changed, holder = _holder(body, path)
    items = [(key if name == path[-1] else name, each) for name, each in holder.items()]
    holder.clear()
    holder.update(items)
    return changed
