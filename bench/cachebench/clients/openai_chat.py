"""Messages in the format of OpenAI's Chat Completions, as dicts."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]


def message(given: Json) -> list[Json]:
    if given["role"] == "user":
        return [{"role": "user", "content": given["text"]}]
    if given["role"] == "tool":
        return [
            {"role": "tool", "tool_call_id": result["id"], "content": result["text"]}
            for result in given["results"]
        ]
    reply: Json = {"role": "assistant", "content": given["text"] or None}
    if given["calls"]:
        reply["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
            }
            for call in given["calls"]
        ]
    return [reply]


def tools(given: list[Json]) -> list[Json]:
    return [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool["about"],
                "parameters": tool["schema"],
            },
        }
        for tool in given
    ]


def flat(messages: list[list[Json]], system: str) -> list[Json]:
    found = [{"role": "system", "content": system}] if system else []
    for each in messages:
        found += each
    return found
