"""Forms of a Chat Completions request or reply that mean the same."""

from __future__ import annotations

from typing import Any

from anaphora.catalog import Dialect

from .normalise import (
    DEFAULTS,
    DEVELOPER,
    EMPTY_SCHEMA,
    NO_PARAMETERS,
    NULLS,
    PARALLEL,
    UNFINISHED,
    Body,
    Normalisation,
    as_text_list,
    auto_tool_choice,
    change,
    drop,
    drop_nulls,
    fill,
    has_text,
    keep,
    objects_at,
    rename_role,
)

#: Parameters whose field has another name than they have in a call.
_FIELDS = {"reasoning.effort": "reasoning_effort"}
_REASONING = {"reasoning_content", "reasoning", "reasoning_details"}


def _refusal_in_content(body: Body) -> int:
    refused = [one for one in objects_at(body, "messages[]") if isinstance(one.get("refusal"), str)]
    for message in refused:
        if text := message.pop("refusal"):
            part = {"type": "refusal", "refusal": text}
            message["content"] = [*(message.get("content") or []), part]
    return len(refused)


def _is_finished(message: Body) -> bool:
    """False for an assistant message that contains nothing but reasoning."""
    parts = message.get("content") or []
    fields = {name for name, value in message.items() if value != []}
    if message.get("role") != "assistant" or not fields <= {"role", "content", *_REASONING}:
        return True
    reasons = bool(fields & _REASONING or parts)
    return not (reasons and all(part.get("type") == "thinking" for part in parts))


def _blank_system(body: Body) -> int:
    """Blank texts of the leading system message, which is refused when it is empty."""
    messages = body.get("messages") or []
    if not messages or messages[0].get("role") not in ("system", "developer"):
        return 0
    parts = messages[0].get("content") or []
    messages[0]["content"] = [part for part in parts if has_text(part)]
    dropped = len(parts) - len(messages[0]["content"])
    if not messages[0]["content"]:
        del messages[0]
    return dropped


def _token_limit(body: Body) -> int:
    if "max_tokens" not in body:
        return 0
    body["max_completion_tokens"] = body.pop("max_tokens")
    return 1


def _function_types(body: Body) -> int:
    functions = [*objects_at(body, "tools[]"), *objects_at(body, "messages[].tool_calls[]")]
    untyped = [one for one in functions if "function" in one and "type" not in one]
    for function in untyped:
        function["type"] = "function"
    return len(untyped)


def _report_usage(body: Body) -> int:
    if not body.get("stream"):
        return 0
    before = body.get("stream_options") or {}
    body["stream_options"] = {"include_usage": True, **before}
    return int(body["stream_options"] != before)


def dialect_rule(row: Dialect) -> Normalisation:
    """Parameters that a client sends in OpenAI's form, and the host takes in its own."""

    def move(body: Body) -> int:
        moved = 0
        for param in row.fields:
            place, name = row.place(param), _FIELDS.get(param, param)
            if place is None or not place.at or name == place.at or body.get(name) is None:
                continue
            *outer, last = place.at.split(".")
            inside = body
            for level in outer:
                inside = inside.setdefault(level, {})
            if last not in inside:
                value = body.pop(name)
                inside[last] = place.values.get(value, value) if isinstance(value, str) else value
                moved += 1
        return moved

    return Normalisation("a parameter in OpenAI's form is in the host's", move)


REQUEST = (
    Normalisation(NULLS, drop_nulls),
    Normalisation(
        "text content is a list with one text part",
        change("messages[]", "content", as_text_list("text")),
    ),
    Normalisation("a refusal beside the content is a part of it", _refusal_in_content),
    Normalisation(UNFINISHED, keep("", "messages", _is_finished)),
    Normalisation(DEVELOPER, rename_role("messages[]"), notice="role_changed"),
    Normalisation("blank texts of the system prompt are left out", _blank_system),
    Normalisation("the token limit has the name that the model's profile gives it", _token_limit),
    Normalisation(
        "a stop text is a list with one",
        change("", "stop", lambda stop: [stop] if isinstance(stop, str) else stop),
    ),
    Normalisation(
        "tool choice any is required",
        change("", "tool_choice", lambda choice: "required" if choice == "any" else choice),
    ),
    Normalisation("functions have a type", _function_types),
    Normalisation(NO_PARAMETERS, fill("tools[].function", "parameters", EMPTY_SCHEMA)),
    Normalisation(PARALLEL, auto_tool_choice),
    Normalisation("streams always report usage", _report_usage),
    Normalisation(
        "a breakpoint without a TTL lives thirty minutes",
        drop("messages[].content[].prompt_cache_breakpoint", "30m", "ttl"),
    ),
    Normalisation(
        DEFAULTS,
        drop("", False, "stream"),
        drop("", [], "tools", "stop"),
        drop("", {}, "prompt_cache_options"),
        drop("messages[]", [], "content", "tool_calls"),
        drop("messages[]", "", "reasoning_content"),
        drop("tools[].function", "", "description"),
    ),
)


def _joined_texts(content: Any) -> Any:
    if isinstance(content, list) and all({*part} == {"type", "text"} for part in content):
        return "".join(part["text"] for part in content)
    return content


def _frame(body: Body) -> int:
    """Some hosts leave out envelope fields that clients do not read."""
    choices = (body.get("choices") or [])[:1]
    added = 0
    for holder, name, value in (
        (body, "id", ""),
        (body, "model", ""),
        (body, "created", 0),
        *((choice, "index", 0) for choice in choices),
        *((choice.get("message", {}), "role", "assistant") for choice in choices),
    ):
        added += name not in holder
        holder.setdefault(name, value)
    return added


def _object(body: Body) -> int:
    changed = int(body.get("object") != "chat.completion")
    body["object"] = "chat.completion"
    return changed


REPLY = (
    Normalisation(NULLS, drop_nulls),
    Normalisation(
        "a list of texts is one text", change("choices[].message", "content", _joined_texts)
    ),
    Normalisation(
        "an empty text or list is left out",
        drop("choices[].message", "", "content", "refusal", "reasoning", "reasoning_content"),
        drop("choices[].message", [], "annotations", "tool_calls"),
    ),
    Normalisation(
        "calls have a type and arguments",
        fill("choices[].message.tool_calls[]", "type", "function"),
        fill("choices[].message.tool_calls[].function", "arguments", ""),
    ),
    Normalisation("the object is a chat completion", _object),
    Normalisation("the envelope of a reply is complete", _frame),
)
