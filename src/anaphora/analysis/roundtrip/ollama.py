"""Forms of a request to Ollama, or of a reply, that mean the same."""

from __future__ import annotations

from .normalise import (
    DEFAULTS,
    EMPTY_SCHEMA,
    NULLS,
    UNFINISHED,
    Body,
    Normalisation,
    change,
    drop,
    drop_nulls,
    fill,
    keep,
)


def _is_finished(message: Body) -> bool:
    """False for an assistant message that contains nothing but thinking."""
    content = any(message.get(name) for name in ("content", "images", "tool_calls"))
    return message["role"] != "assistant" or not message.get("thinking") or content


def _message_rules(messages: str) -> tuple[Normalisation, ...]:
    """The rules for messages at a path: those of a request, or the one of a reply."""
    calls = f"{messages}.tool_calls[]"
    return (
        Normalisation("a message without content has an empty text", fill(messages, "content", "")),
        Normalisation(
            "an empty text or list beside the content is left out",
            drop(messages, [], "images", "tool_calls"),
            drop(messages, "", "thinking", "tool_name", "tool_call_id"),
            drop(calls, "", "id"),
        ),
        Normalisation("a call has no type", drop(calls, "function", "type")),
        Normalisation(
            "a call without arguments has an empty object of them",
            fill(f"{calls}.function", "arguments", {}),
        ),
    )


def _typed_tools(body: Body) -> int:
    untyped = [t for t in body.get("tools") or [] if "function" in t and "type" not in t]
    for tool in untyped:
        tool["type"] = "function"
    return len(untyped)


REQUEST = (
    Normalisation(NULLS, drop_nulls),
    Normalisation("a reply is streamed by default", fill("", "stream", True)),
    Normalisation("a request without messages has none", fill("", "messages", [])),
    Normalisation("roles are lower case", change("messages[]", "role", str.lower)),
    *_message_rules("messages[]"),
    Normalisation(UNFINISHED, keep("", "messages", _is_finished)),
    Normalisation(
        "a tool has a type and parameters",
        _typed_tools,
        fill("tools[].function", "parameters", EMPTY_SCHEMA),
    ),
    Normalisation(
        DEFAULTS,
        drop("", [], "tools"),
        drop("options", [], "stop"),
        drop("", {}, "options"),
        drop("tools[].function", "", "description"),
    ),
)

REPLY = (
    Normalisation(NULLS, drop_nulls),
    Normalisation("a reply is the assistant's", fill("message", "role", "assistant")),
    *_message_rules("message"),
    Normalisation(
        "a reply is done, and stopped, by default",
        fill("", "done", True),
        drop("", "stop", "done_reason"),
    ),
    Normalisation(
        "a reply without a date was made at the epoch",
        fill("", "created_at", "1970-01-01T00:00:00Z"),
    ),
)
