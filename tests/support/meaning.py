"""What providers read in a request, apart from its bytes: `docs/wire-normalisations.md`."""

from __future__ import annotations

import json
from typing import Any

from anaphora import wire

Json = dict[str, Any]

POINTS = [{"cachePoint": {"type": "default", **ttl}} for ttl in ({}, {"ttl": "1h"})]
#: Members that say what their absence says.
DEFAULTS: list[tuple[str, Any]] = [
    ("stream", False), ("is_error", False), ("description", ""), ("instructions", ""),
    ("tools", []), ("tool_calls", []), ("type", "message"), ("type", "function"),
    ("tool_choice", "auto"), ("content", []),
]  # fmt: skip


def base(name: str) -> str:
    return name if name in wire.WIRES else wire.dialect_of(name).wire


def meaning(name: str, body: bytes) -> Any:
    """The request as its provider reads it, without markers: texts as lists of one block,
    neighbours of one role as one message, no member that is null or says what its absence says."""

    kind = "input_text" if base(name) == "openai_responses" else "text"

    def blocks(value: Any) -> Any:
        return [{"type": kind, "text": value}] if isinstance(value, str) else value

    def read(pairs: list[tuple[str, Any]]) -> Json:
        markers = ("cache_control", "prompt_cache_breakpoint", "modelId")
        fields = {
            field: value
            for field, value in pairs
            if (value is not None or field == "strict")
            and field not in markers
            and (field, value) not in DEFAULTS
        }
        for field, value in fields.items():
            if isinstance(value, list) and base(name) == "bedrock":
                fields[field] = [each for each in value if each not in POINTS]
        for field in ("content", "system", "output"):
            if field in fields and fields.get("role") != "assistant":
                fields[field] = blocks(fields[field])
        if isinstance(fields.get("input"), str) and "model" in fields:
            fields["input"] = [
                {
                    "role": "user",
                    "content": [{"type": "input_text", "text": fields["input"]}],
                }
            ]
        if base(name) in ("anthropic", "bedrock") and isinstance(fields.get("messages"), list):
            fields["messages"] = merged(fields["messages"])
        return fields

    return json.loads(body, object_pairs_hook=read, parse_float=float, parse_int=float)


def merged(messages: list[Json]) -> list[Json]:
    found: list[Json] = []
    for message in messages:
        if found and message["role"] == found[-1]["role"]:
            found[-1] = {**message, "content": found[-1]["content"] + message["content"]}
        else:
            found.append(message)
    return found
