"""What an Anthropic request may say in two ways: every difference that `render(parse(request))`
may show, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anaphora.analysis.roundtrip.meaning import Body, Normalisation, drop_nulls, drop_when


def _blocks(body: Body) -> Iterator[dict[str, Any]]:
    """Every block of the request, those inside tool results too."""
    yield from body.get("tools") or []
    for holder in ({"content": body.get("system")}, *(body.get("messages") or [])):
        if isinstance(holder.get("content"), list):
            for block in holder["content"]:
                yield block
                if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
                    yield from block["content"]


def _text_as_blocks(body: Body) -> int:
    changed = 0
    for holder, name in ((body, "system"), *((m, "content") for m in body.get("messages") or [])):
        if isinstance(holder.get(name), str):
            holder[name] = [{"type": "text", "text": holder[name]}]
            changed += 1
    return changed


def _result_as_blocks(body: Body) -> int:
    changed = 0
    for block in list(_blocks(body)):
        if block.get("type") == "tool_result" and not isinstance(block.get("content"), list):
            said = block.get("content")
            block["content"] = [{"type": "text", "text": said}] if said else []
            changed += 1
    return changed


def _no_blank_text(body: Body) -> int:
    dropped = 0
    for holder, name in ((body, "system"), *((m, "content") for m in body.get("messages") or [])):
        if isinstance(holder.get(name), list):
            kept = [b for b in holder[name] if b.get("type") != "text" or b["text"].strip()]
            dropped += len(holder[name]) - len(kept)
            holder[name] = kept
    return dropped + drop_when(body, "system", [])


def _merged_neighbours(body: Body) -> int:
    merged: list[dict[str, Any]] = []
    for message in body.get("messages") or []:
        if not message["content"]:
            continue
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1]["content"] += message["content"]
        else:
            merged.append({**message, "content": list(message["content"])})
    before = len(body.get("messages") or [])
    body["messages"] = merged
    return before - len(merged)


def _only_reasoning(content: list[Any]) -> bool:
    """Reasoning, and white space behind it at most."""
    kinds = [block.get("type") for block in content]
    return (
        bool({"thinking", "redacted_thinking"} & set(kinds))
        and all(
            kind != "text" or not block.get("text", "").strip()
            for kind, block in zip(kinds, content, strict=True)
            if kind not in ("thinking", "redacted_thinking")
        )
        and set(kinds) <= {"thinking", "redacted_thinking", "text"}
    )


def _finished(body: Body) -> int:
    """Needs neighbours merged, and merges those that stand side by side afterwards."""
    dropped = 0
    for message in body.get("messages") or []:
        if message["role"] == "assistant" and _only_reasoning(message["content"]):
            dropped += len(message["content"])
            message["content"].clear()
        while message["role"] == "assistant" and message["content"]:
            if message["content"][-1].get("type") not in ("thinking", "redacted_thinking"):
                break
            message["content"].pop()
            dropped += 1
    if dropped:
        _merged_neighbours(body)
    return dropped


def _default_ttl(body: Body) -> int:
    markers = [holder.get("cache_control") for holder in (body, *_blocks(body))]
    return sum(drop_when(marker, "ttl", "5m") for marker in markers if marker is not None)


def _defaults(body: Body) -> int:
    dropped = drop_when(body, "stream", False) + drop_when(body, "tools", [])
    dropped += drop_when(body, "stop_sequences", [])
    dropped += sum(drop_when(body, name, {}) for name in ("metadata", "output_config"))
    for block in _blocks(body):
        dropped += drop_when(block, "is_error", False) + drop_when(block, "description", "")
    return dropped


REQUEST = (
    Normalisation("null means the same as a missing field", drop_nulls),
    Normalisation("text content is a list with one text block", _text_as_blocks),
    Normalisation("a tool result's text is a list with one text block", _result_as_blocks),
    Normalisation("blank text is refused, so it is left out with a notice", _no_blank_text),
    Normalisation("neighbours of one role are one message", _merged_neighbours),
    Normalisation(
        "reasoning that nothing follows is refused, so it is left out with a notice", _finished
    ),
    Normalisation("a marker without a TTL lives five minutes", _default_ttl),
    Normalisation("a field that says its default is left out", _defaults),
)
REPLY = (Normalisation("null means the same as a missing field", drop_nulls),)
