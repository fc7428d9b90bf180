"""Recorded agent conversations as calls: what was sent at each one, and what was billed for it.

The recordings live beside the repository (see their README) and are never copied into it.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from anaphora import catalog
from anaphora.prompt import Call, Params, PromptIR
from anaphora.rendered import Rendered
from anaphora.values import (
    Bytes,
    Conversation,
    Image,
    Message,
    Part,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)
from anaphora.wire import anthropic, gemini, openai_chat, openai_responses

FOLDER = Path(__file__).parents[3] / "shared" / "traces"

Json = dict[str, Any]

#: How each provider's calls are rendered. Taken from the modules before any test runs: the watch
#: that renders everything twice would be quadratic on conversations of hundreds of turns.
RENDER: dict[str, Any] = {
    "anthropic": anthropic.render,
    "google": gemini.render,
    "openai-responses": openai_responses.render,
}
OTHERS: Any = openai_chat.render

MEDIA = frozenset(("image", "input_image", "document"))


class Sent(NamedTuple):
    """One call of a conversation."""

    rendered: Rendered
    billed: int
    """Input tokens, cached or not."""


class Trace(NamedTuple):
    id: str
    profile: catalog.Profile
    complete: bool
    """System prompt and tools are in the recording, not only in the bill."""
    sent: tuple[Sent, ...]


def missing() -> str | None:
    return None if FOLDER.exists() else f"no recorded conversations at {FOLDER}"


@functools.cache
def traces(name: str) -> tuple[Trace, ...]:
    """The conversations of a file, as far as they were billed and their provider is known."""
    return tuple(_traces(name))


def _traces(name: str) -> Iterator[Trace]:
    for row in _rows(name):
        if row["provider"] not in catalog.shipped().providers:
            continue
        profile = catalog.profile(row["provider"], row["model"])
        sent = tuple(_sent(row, profile))
        if sent:
            yield Trace(row["id"], profile, not row.get("system_tokens_unknown"), sent)


def _rows(name: str) -> Iterator[Json]:
    with gzip.open(FOLDER / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _sent(row: Json, profile: catalog.Profile) -> Iterator[Sent]:
    name = "openai-responses" if "openai-responses" in row["id"] else row["provider"]
    render = RENDER.get(name, OTHERS)
    messages = [_message(one, number) for number, one in enumerate(row["messages"])]
    head = 1 if messages and messages[0].role == "system" else 0
    system = messages[0].text if head else ""
    tools = tuple(_tools(row["tools"] or ()))
    conversation = Conversation()
    before: Rendered | None = None
    for made in row["calls"]:
        length = made["messages"] - head
        if made["usage"] is None or length <= 0:
            continue
        if length < len(conversation):
            conversation, before = Conversation(), None
        new = messages[head + len(conversation) : head + length]
        conversation = conversation.append(*new)
        ir = PromptIR.chat(conversation, system=system)
        call = Call(ir=ir, model=row["model"], tools=tools, params=Params(max_tokens=1024))
        rendered = render(call, profile, before)
        before = rendered
        billed = sum(tokens for name, tokens in made["usage"].items() if name != "output")
        if billed:
            yield Sent(rendered, billed)


def _tools(rows: Sequence[Json]) -> Iterator[Tool]:
    for row in rows:
        if "functionDeclarations" in row:
            yield from _tools(row["functionDeclarations"])
            continue
        function = row.get("function", row)
        schema = function.get("parameters") or function.get("input_schema") or {"type": "object"}
        yield Tool(function["name"], function.get("description") or "", json.dumps(schema))


def _message(row: Json, number: int) -> Message:
    content = row["content"]
    if row["role"] == "tool":
        content_parts = (
            content if isinstance(content, str) else tuple(_shown(one) for one in content)
        )
        result = ToolResult(row["tool_call_id"] or f"call_{number - 1}", content_parts)
        return Message(role="tool", parts=(result,))
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    parts = [part for block in blocks if (part := _part(block)) is not None]
    for call in row.get("tool_calls") or ():
        function = call.get("function", call)
        arguments = function.get("arguments") or "{}"
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        parts.append(ToolCall(call["id"] or f"call_{number}", function["name"], text))
    return Message(role=row["role"], parts=tuple(parts))


def _part(block: Json) -> Part | None:
    if block["type"] == "thinking":
        text = block.get("thinking") or block["text"]
        return Thinking(text, signature=block.get("signature"), provider="anthropic")
    return _shown(block) if block.get("text") or block["type"] in MEDIA else None


def _shown(block: Json) -> Text | Image:
    # Of an image it is only known that there was one; some recordings shorten its bytes.
    media = block["type"] in MEDIA
    return Image(Bytes(bytes(50_000), "image/png")) if media else Text(block["text"])
