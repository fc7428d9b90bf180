"""Requests for the emulator as agents send them: a system prompt, tools, a conversation; on four
wires, streamed and in one piece."""

from __future__ import annotations

import json
from typing import Any

_SYSTEM = "You are the assistant of a small shop. Answer shortly, and look things up. " * 60
_TURNS = 6
_PROPERTIES = {
    "order": {"type": "string", "description": "The number of the order, as the customer has it"},
    "detail": {"type": "boolean", "description": "Whether every item is wanted"},
}
_SCHEMA = {"type": "object", "properties": _PROPERTIES, "required": ["order"]}
_TOOLS = [(f"look_up_{at}", f"Looks up an order of kind {at}, with its state.") for at in range(6)]


def _turns(number: int) -> list[tuple[str, str]]:
    conversation = [
        (
            "assistant" if at % 2 else "user",
            f"Conversation {number}, turn {at}: {'and so it goes on. ' * 12}",
        )
        for at in range(_TURNS)
    ]
    return [*conversation, ("user", f"What became of order {number}?")]


def anthropic(number: int, stream: bool) -> tuple[str, dict[str, str], dict[str, Any]]:
    mark = {"cache_control": {"type": "ephemeral"}}
    tools = [
        {"name": name, "description": about, "input_schema": _SCHEMA} for name, about in _TOOLS
    ]
    messages: list[dict[str, Any]] = [
        {"role": role, "content": text} for role, text in _turns(number)
    ]
    messages[-1]["content"] = [{"type": "text", "text": messages[-1]["content"], **mark}]
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 300,
        "tools": tools,
        "system": [{"type": "text", "text": _SYSTEM, **mark}],
        "messages": messages,
        "stream": stream,
    }
    return "/v1/messages", {"x-api-key": "k", "anthropic-version": "2023-06-01"}, body


def chat(number: int, stream: bool) -> tuple[str, dict[str, str], dict[str, Any]]:
    functions = [
        {"name": name, "description": about, "parameters": _SCHEMA} for name, about in _TOOLS
    ]
    messages = [("system", _SYSTEM), *_turns(number)]
    body: dict[str, Any] = {
        "model": "gpt-4o",
        "messages": [{"role": role, "content": text} for role, text in messages],
        "tools": [{"type": "function", "function": function} for function in functions],
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    return "/v1/chat/completions", {"authorization": "Bearer k"}, body


def responses(number: int, stream: bool) -> tuple[str, dict[str, str], dict[str, Any]]:
    body = {
        "model": "gpt-4o",
        "instructions": _SYSTEM,
        "input": [{"role": role, "content": text} for role, text in _turns(number)],
        "tools": [
            {"type": "function", "name": name, "description": about, "parameters": _SCHEMA}
            for name, about in _TOOLS
        ],
        "stream": stream,
    }
    return "/v1/responses", {"authorization": "Bearer k"}, body


def gemini(number: int, stream: bool) -> tuple[str, dict[str, str], dict[str, Any]]:
    roles = {"assistant": "model", "user": "user"}
    functions = [
        {"name": name, "description": about, "parameters": _SCHEMA} for name, about in _TOOLS
    ]
    body = {
        "systemInstruction": {"parts": [{"text": _SYSTEM}]},
        "contents": [
            {"role": roles[role], "parts": [{"text": text}]} for role, text in _turns(number)
        ],
        "tools": [{"functionDeclarations": functions}],
    }
    verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return f"/v1beta/models/gemini-2.5-flash:{verb}", {"x-goog-api-key": "k"}, body


WIRES = {"anthropic": anthropic, "openai chat": chat, "responses": responses, "gemini": gemini}


def raw(path: str, headers: dict[str, str], body: dict[str, Any]) -> bytes:
    """The request as it goes over a socket."""
    data = json.dumps(body).encode()
    about = {"host": "127.0.0.1", "content-type": "application/json", **headers}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in about.items())]
    lines.append(f"content-length: {len(data)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def mixed(count: int, names: tuple[str, ...] = tuple(WIRES), first: int = 0) -> list[bytes]:
    """Different requests from number `first` on, half of them streams, the wires in turn."""
    return [
        raw(*WIRES[names[at % len(names)]](at, bool(at // len(names) % 2)))
        for at in range(first, first + count)
    ]
