"""Forms of an Anthropic request that mean the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .normalise import (
    DEFAULTS,
    NULLS,
    UNFINISHED,
    Body,
    Normalisation,
    as_text_list,
    change,
    drop,
    drop_nulls,
    has_text,
    keep,
    objects_at,
)

_THINKING = ("thinking", "redacted_thinking")


def _blocks(body: Body) -> Iterator[Body]:
    """Every block of the request, those inside tool results included."""
    yield from objects_at(body, "tools[]")
    yield from objects_at(body, "system[]")
    for block in objects_at(body, "messages[].content[]"):
        yield block
        if block.get("type") == "tool_result":
            yield from objects_at(block, "content[]")


def _markers(body: Body) -> list[Body]:
    markers = [holder.get("cache_control") for holder in (body, *_blocks(body))]
    return [marker for marker in markers if marker is not None]


def _result_as_blocks(body: Body) -> int:
    changed = 0
    for block in objects_at(body, "messages[].content[]"):
        content = block.get("content")
        if block.get("type") == "tool_result" and not isinstance(content, list):
            block["content"] = [{"type": "text", "text": content}] if content else []
            changed += 1
    return changed


def _merge_neighbours(body: Body) -> int:
    messages = body.get("messages") or []
    merged: list[dict[str, Any]] = []
    for message in messages:
        if not message["content"]:
            continue
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1]["content"] += message["content"]
        else:
            merged.append({**message, "content": list(message["content"])})
    body["messages"] = merged
    return len(messages) - len(merged)


def _drop_unfinished(body: Body) -> int:
    """Needs merged neighbours, and merges those that become neighbours."""
    dropped = 0
    for message in body.get("messages") or []:
        content = message["content"]
        if message["role"] != "assistant":
            continue
        thinking = [block for block in content if block.get("type") in _THINKING]
        blank = [block for block in content if block.get("type") == "text" and not has_text(block)]
        if thinking and len(thinking) + len(blank) == len(content):
            dropped += len(content)
            content.clear()
        while content and content[-1].get("type") in _THINKING:
            content.pop()
            dropped += 1
    if dropped:
        _merge_neighbours(body)
    return dropped


REQUEST = (
    Normalisation(NULLS, drop_nulls),
    Normalisation(
        "text content is a list with one text block",
        change("", "system", as_text_list("text")),
        change("messages[]", "content", as_text_list("text")),
    ),
    Normalisation("a tool result's text is a list with one text block", _result_as_blocks),
    Normalisation(
        "blank text is refused, so it is left out with a notice",
        keep("", "system", has_text),
        keep("messages[]", "content", has_text),
        drop("", [], "system"),
    ),
    Normalisation("neighbours of one role are one message", _merge_neighbours),
    Normalisation(UNFINISHED, _drop_unfinished),
    Normalisation("a marker without a TTL lives five minutes", drop(_markers, "5m", "ttl")),
    Normalisation(
        DEFAULTS,
        drop("", False, "stream"),
        drop("", [], "tools", "stop_sequences"),
        drop("", {}, "metadata", "output_config"),
        drop(_blocks, False, "is_error"),
        drop(_blocks, "", "description"),
    ),
)
REPLY = (Normalisation(NULLS, drop_nulls),)
