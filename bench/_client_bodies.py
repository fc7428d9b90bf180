"""The call as each wire has it, as one writes it by hand. Only the standard library, because the
clients live in several environments.

`body` is the document that ours sends: contents are lists of parts wherever ours are, neighbours of
one role are one message where ours merges them, and breakpoints stand where ours puts them.
`plain` is the shortest equivalent, with contents as strings: what one often writes.
"""

from __future__ import annotations

import json

from _client_workload import (
    MAX_TOKENS,
    MODELS,
    SCHEMA,
    SYSTEM,
    TOOLS,
    Json,
    arguments,
    script,
    tool_of,
)


def body(wire: str) -> Json:
    """The whole request, in the form that ours has."""
    return _BODIES[wire](True)


def plain(wire: str) -> Json:
    """The whole request, with contents as strings."""
    return _BODIES[wire](False)


def mark(*blocks: Json) -> None:
    """Breakpoints on Anthropic's wire."""
    for block in blocks:
        block["cache_control"] = {"type": "ephemeral"}


def _text(text: str, kind: str = "text") -> Json:
    return {"type": kind, "text": text}


# ── Anthropic ────────────────────────────────────────────────────────────────────────────────────


def _anthropic(parts: bool) -> Json:
    messages: list[Json] = [
        {"role": "user" if role == "tool" else role, "content": _blocks(role, text, call, parts)}
        for role, text, call in script()
    ]
    if parts:
        messages = _merged(messages)
    body: Json = {
        "model": MODELS["anthropic"],
        "max_tokens": MAX_TOKENS,
        "tools": [
            {"name": name, "description": about, "input_schema": SCHEMA} for name, about in TOOLS
        ],
        "system": [_text(SYSTEM)] if parts else SYSTEM,
        "messages": messages,
    }
    if parts:
        # Where ours puts them: tools, system prompt, and the last two user turns.
        turns = messages[-3]["content"][-1], messages[-1]["content"][-1]
        mark(body["tools"][-1], body["system"][-1], *turns)
    return body


def _blocks(role: str, text: str, call: str, parts: bool) -> list[Json] | str:
    if role == "tool":
        content = [_text(text)] if parts else text
        return [{"type": "tool_result", "tool_use_id": call, "content": content}]
    if call:
        use = {"id": call, "name": tool_of(call), "input": arguments(call)}
        return [_text(text), {"type": "tool_use", **use}]
    return [_text(text)] if parts else text


def _merged(messages: list[Json]) -> list[Json]:
    """Neighbours of one role as one message."""
    merged: list[Json] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1]["content"] += message["content"]
        else:
            merged.append(message)
    return merged


# ── OpenAI ───────────────────────────────────────────────────────────────────────────────────────


def _chat(parts: bool) -> Json:
    """A lone text is a string in both."""
    system = "developer" if parts else "system"
    messages: list[Json] = [{"role": system, "content": SYSTEM}]
    for role, text, call in script():
        if role == "tool":
            messages.append({"role": "tool", "tool_call_id": call, "content": text})
        elif call:
            function = {"name": tool_of(call), "arguments": json.dumps(arguments(call))}
            calls = [{"id": call, "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": text, "tool_calls": calls})
        else:
            messages.append({"role": role, "content": text})
    functions = [
        {"name": name, "description": about, "parameters": SCHEMA} for name, about in TOOLS
    ]
    return {
        "model": MODELS["openai_chat"],
        "tools": [{"type": "function", "function": function} for function in functions],
        "messages": messages,
        "max_completion_tokens": MAX_TOKENS,
    }


def _responses(parts: bool) -> Json:
    """An assistant message is a string in both: with parts it would need an id."""

    def content(text: str) -> list[Json] | str:
        return [_text(text, "input_text")] if parts else text

    messages: list[Json] = []
    for role, text, call in script():
        if role == "tool":
            output = {"call_id": call, "output": content(text)}
            messages.append({"type": "function_call_output", **output})
            continue
        text_content = text if role == "assistant" else content(text)
        kind = {"type": "message"} if parts else {}
        messages.append({**kind, "role": role, "content": text_content})
        if call:
            function = {"name": tool_of(call), "arguments": json.dumps(arguments(call))}
            messages.append({"type": "function_call", "call_id": call, **function})
    strict = {"strict": None} if parts else {}
    functions = [
        {"name": name, "description": about, "parameters": SCHEMA, **strict}
        for name, about in TOOLS
    ]
    return {
        "model": MODELS["openai_responses"],
        "instructions": SYSTEM,
        "tools": [{"type": "function", **function} for function in functions],
        "input": messages,
        "max_output_tokens": MAX_TOKENS,
    }


_BODIES = {"anthropic": _anthropic, "openai_chat": _chat, "openai_responses": _responses}
