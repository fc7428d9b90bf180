"""A request's body on any wire, as the texts that it holds, in their order."""

from __future__ import annotations

import json
from typing import Any


def system_texts(body: bytes) -> list[str]:
    """The system prompt: a separate field or the first message."""
    fields = json.loads(body)
    if "contents" in fields:
        parts = fields.get("systemInstruction", {}).get("parts", [])
        return [part["text"] for part in parts]
    if "instructions" in fields:
        return [fields["instructions"]]
    if "system" in fields:
        return [block["text"] for block in fields["system"]]
    listed = fields.get("input") or fields["messages"]
    lead = listed[0]
    return _texts(lead["content"]) if lead["role"] in ("system", "developer") else []


def message_texts(body: bytes) -> list[str]:
    """Every text behind the system prompt."""
    fields = json.loads(body)
    listed = fields.get("contents") or fields.get("input") or fields["messages"]
    leads = "contents" not in fields and "system" not in fields and "instructions" not in fields
    if leads and listed[0].get("role") in ("system", "developer"):
        listed = listed[1:]
    return [
        text
        for message in listed
        for text in _texts(message.get("content", message.get("parts", [])))
    ]


def marked(body: bytes) -> list[str]:
    """The texts of an Anthropic request that carry a marker, in the order of the hash."""
    fields = json.loads(body)
    blocks = [*fields.get("system", [])]
    blocks += [block for message in fields["messages"] for block in message["content"]]
    return [block["text"] for block in blocks if "cache_control" in block]


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content if "text" in part]
