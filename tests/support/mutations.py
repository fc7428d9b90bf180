"""Rich requests of every wire, and each of them changed in one place at a time.

    for name, body in mutations(RICH["anthropic"]):
        ...

Names that an app must not use are in `FORBIDDEN`; a change puts them wherever a reader might look.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

GRANTED, FORBIDDEN = "only_this", "delete_all"
MAX_TOKENS = 64
_SCHEMA: Json = {"type": "object", "properties": {"q": {"type": "string"}}}
_FUNCTION: Json = {"name": GRANTED, "description": "Finds.", "parameters": _SCHEMA}
_CALL: Json = {"id": "c1", "type": "function", "function": {"name": GRANTED, "arguments": "{}"}}
_CHAT: list[Json] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "7"},
    {"role": "user", "content": "And now?"},
]

#: A request of each wire with all that a grant is about. The path names Gemini's and
#: Bedrock's model.
RICH: dict[str, Json] = {
    "anthropic": {
        "model": "claude-sonnet-4-5",
        "max_tokens": MAX_TOKENS,
        "system": [{"type": "text", "text": "Be short."}],
        "tools": [
            {"type": "custom", "name": GRANTED, "description": "Finds.", "input_schema": _SCHEMA},
            {"name": GRANTED + "_2", "input_schema": _SCHEMA},
        ],
        "tool_choice": {"type": "tool", "name": GRANTED},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t1", "name": GRANTED, "input": {"q": "a"}}],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "7"}],
                    },
                    {"type": "text", "text": "And now?"},
                ],
            },
        ],
        "temperature": 1,
        "stop_sequences": ["x"],
        "metadata": {"user_id": "u"},
        "output_config": {"effort": "low"},
    },
    "openai_chat": {
        "model": "gpt-5.2",
        "messages": _CHAT,
        "tools": [
            {"type": "function", "function": _FUNCTION},
            {"type": "function", "function": {"name": GRANTED + "_2", "parameters": _SCHEMA}},
        ],
        "tool_choice": {"type": "function", "function": {"name": GRANTED}},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": _SCHEMA},
        },
        "n": 1,
        "max_completion_tokens": MAX_TOKENS,
        "temperature": 1,
        "stop": ["x"],
        "user": "u",
    },
    "openai_responses": {
        "model": "gpt-5.6",
        "instructions": "Be short.",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "function_call", "call_id": "c1", "name": GRANTED, "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "7"},
            {"role": "user", "content": "And now?"},
        ],
        "tools": [
            {"type": "function", **_FUNCTION},
            {"type": "function", "name": GRANTED + "_2", "parameters": _SCHEMA, "strict": False},
        ],
        "tool_choice": {"type": "function", "name": GRANTED},
        "text": {"format": {"type": "json_schema", "name": "answer", "schema": _SCHEMA}},
        "max_output_tokens": MAX_TOKENS,
        "store": False,
        "metadata": {"a": "b"},
    },
    "gemini": {
        "systemInstruction": {"parts": [{"text": "Be short."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Hi"}]},
            {"role": "model", "parts": [{"functionCall": {"name": GRANTED, "args": {"q": "a"}}}]},
            {
                "role": "user",
                "parts": [{"functionResponse": {"name": GRANTED, "response": {"result": 7}}}],
            },
        ],
        "tools": [
            {
                "functionDeclarations": [
                    _FUNCTION,
                    {"name": GRANTED + "_2", "parametersJsonSchema": _SCHEMA},
                ]
            }
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": [GRANTED]}},
        "generationConfig": {
            "candidateCount": 1,
            "maxOutputTokens": MAX_TOKENS,
            "stopSequences": ["x"],
            "temperature": 1,
        },
    },
    "bedrock": {
        "system": [{"text": "Be short."}, {"cachePoint": {"type": "default"}}],
        "messages": [
            {"role": "user", "content": [{"text": "Hi"}]},
            {
                "role": "assistant",
                "content": [{"toolUse": {"toolUseId": "t1", "name": GRANTED, "input": {"q": "a"}}}],
            },
            {
                "role": "user",
                "content": [
                    {"toolResult": {"toolUseId": "t1", "content": [{"text": "7"}]}},
                    {"text": "And now?"},
                ],
            },
        ],
        "toolConfig": {
            "tools": [
                {
                    "toolSpec": {
                        "name": GRANTED,
                        "description": "Finds.",
                        "inputSchema": {"json": _SCHEMA},
                    }
                },
                {"toolSpec": {"name": GRANTED + "_2", "inputSchema": {"json": _SCHEMA}}},
            ],
            "toolChoice": {"tool": {"name": GRANTED}},
        },
        "inferenceConfig": {"maxTokens": MAX_TOKENS, "stopSequences": ["x"], "temperature": 1},
        "additionalModelRequestFields": {"top_k": 9},
        "requestMetadata": {"a": "b"},
    },
}

_EVIL = {"name": FORBIDDEN, "description": "Deletes.", "parameters": _SCHEMA}
_TYPES = ("function", "custom", "tool_reference", "namespace", "mcp", "web_search", "Function", "x")
#: Members that a change adds to an object.
_ADDED: tuple[tuple[str, Any], ...] = (
    ("name", FORBIDDEN),
    ("Name", FORBIDDEN),
    ("type", "tool_reference"),
    ("type", "function"),
    ("function", _EVIL),
    ("Function", _EVIL),
    ("custom", _EVIL),
    ("input_schema", _SCHEMA),
    ("tools", [{"type": "function", "function": _EVIL, **_EVIL}]),
    ("Tools", [{"type": "function", "function": _EVIL, **_EVIL}]),
    ("functions", [_EVIL]),
    ("functionDeclarations", [_EVIL]),
    ("function_declarations", [_EVIL]),
    ("model", FORBIDDEN),
    ("max_tokens", 100_000),
    ("n", 9),
)


def mutations(body: Json) -> Iterator[tuple[str, Json]]:
    """A name for each change, and the changed body."""
    for path, value in _nodes(body):
        shown = ".".join(map(str, path))
        for what, changed in _values(value):
            yield f"{shown} {what}", _replaced(body, path, changed)
        if path and isinstance(path[-1], str):
            for what, key in _keys(path[-1]):
                yield f"{shown} {what}", _renamed(body, path, key)
            yield f"{shown} twice", _with_member(body, path, _other_case(path[-1]))
        if path:
            yield f"{shown} dropped", _dropped(body, path)
        if isinstance(value, dict) and "properties" not in path:
            for key, member in _ADDED:
                changed = {**copy.deepcopy(value), key: member}
                yield f"{shown} + {key}", _replaced(body, path, changed)


def _nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    yield path, value
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _nodes(each, (*path, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _nodes(each, (*path, index))


def _values(value: Any) -> Iterator[tuple[str, Any]]:
    """What may take the place of a value."""
    if isinstance(value, str):
        for other in (FORBIDDEN, value.title(), value + " ", "System", *_TYPES):
            if other != value:
                yield f"= {other}", other
        yield "as a list", [value]
        yield "as an object", {"name": FORBIDDEN}
    elif isinstance(value, bool):
        yield "negated", not value
    elif isinstance(value, int):
        for number in (value * 1000 + 100_000, -1, 0, str(value * 1000), value + 0.5):
            yield f"= {number!r}", number
    elif isinstance(value, list):
        yield "doubled", copy.deepcopy(value) * 2
        yield "nested", [copy.deepcopy(value)]
        yield "+ a tool", [*copy.deepcopy(value), {"type": "function", "function": _EVIL, **_EVIL}]
        yield (
            "+ a reference",
            [
                *copy.deepcopy(value),
                {"type": "tool_reference", "name": FORBIDDEN, "input_schema": _SCHEMA},
            ],
        )
    elif isinstance(value, dict):
        yield "nested", {"function": copy.deepcopy(value)}
        yield "as a list", [copy.deepcopy(value)]
    yield "= null", None


def _keys(key: str) -> Iterator[tuple[str, str]]:
    yield "in other case", _other_case(key)
    yield "in capitals", key.upper()
    snake = "".join(f"_{each.lower()}" if each.isupper() else each for each in key)
    if snake != key:
        yield "in snake case", snake
    yield "renamed", "functions" if key == "tools" else f"x_{key}"


def _other_case(key: str) -> str:
    return key[:1].upper() + key[1:]


def _holder(body: Json, path: tuple[Any, ...]) -> tuple[Json, Any]:
    """A copy of the body, and the object or list in it that holds the end of the path."""
    changed = copy.deepcopy(body)
    holder: Any = changed
    for step in path[:-1]:
        holder = holder[step]
    return changed, holder


def _replaced(body: Json, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed, holder = _holder(body, path)
    holder[path[-1]] = value
    return changed


def _dropped(body: Json, path: tuple[Any, ...]) -> Json:
    changed, holder = _holder(body, path)
    del holder[path[-1]]
    return changed


def _renamed(body: Json, path: tuple[Any, ...], key: str) -> Json:
    changed, holder = _holder(body, path)
    holder[key] = holder.pop(path[-1])
    return changed


def _with_member(body: Json, path: tuple[Any, ...], key: str) -> Json:
    """With a member that differs from another in case, and holds something forbidden."""
    changed, holder = _holder(body, path)
    holder[key] = _forbidden(holder[path[-1]])
    return changed


def _forbidden(value: Any) -> Any:
    if isinstance(value, str):
        return FORBIDDEN
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        return 100_000
    if isinstance(value, list):
        return [_forbidden(each) for each in value]
    return {key: _forbidden(each) for key, each in value.items()}
