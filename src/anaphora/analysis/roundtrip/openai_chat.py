"""What a Chat Completions request may say in two ways: every difference that
`render(parse(request))` may show, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anaphora.analysis.roundtrip.meaning import Body, Normalisation, drop_nulls, drop_when, keep


def _messages(body: Body) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body.get("messages") or []
    return found


def _parts(body: Body) -> Iterator[dict[str, Any]]:
    for message in _messages(body):
        if isinstance(message.get("content"), list):
            yield from message["content"]


def _text_as_parts(body: Body) -> int:
    changed = 0
    for message in _messages(body):
        if isinstance(message.get("content"), str):
            message["content"] = [{"type": "text", "text": message["content"]}]
            changed += 1
    return changed


def _refusal_in_content(body: Body) -> int:
    refused = [message for message in _messages(body) if isinstance(message.get("refusal"), str)]
    for message in refused:
        if text := message.pop("refusal"):
            part = {"type": "refusal", "refusal": text}
            message["content"] = [*(message.get("content") or []), part]
    return len(refused)


def _system_role(body: Body) -> int:
    developers = [message for message in _messages(body) if message.get("role") == "developer"]
    for message in developers:
        message["role"] = "system"
    return len(developers)


def _finished(body: Body) -> int:
    messages = _messages(body)
    told = {"reasoning_content", "reasoning", "reasoning_details"}

    def unfinished(message: Body) -> bool:
        parts = message.get("content") or []
        said = {name for name, value in message.items() if value != []}
        if message.get("role") != "assistant" or not said <= {"role", "content", *told}:
            return False
        thinks = said & told or parts
        return bool(thinks) and all(part.get("type") == "thinking" for part in parts)

    return keep(messages, lambda at: not unfinished(messages[at]))


def _blank_system(body: Body) -> int:
    """In the system message that leads them, which is refused with nothing in it."""
    messages = _messages(body)
    if not messages or messages[0].get("role") not in ("system", "developer"):
        return 0
    parts = messages[0].get("content") or []
    said = [part for part in parts if part.get("type") != "text" or part["text"].strip()]
    messages[0]["content"] = said
    if not said:
        del messages[0]
    return len(parts) - len(said)


def _token_limit(body: Body) -> int:
    if "max_tokens" not in body:
        return 0
    body["max_completion_tokens"] = body.pop("max_tokens")
    return 1


def _stop_as_list(body: Body) -> int:
    if not isinstance(body.get("stop"), str):
        return 0
    body["stop"] = [body["stop"]]
    return 1


def _any_is_required(body: Body) -> int:
    if body.get("tool_choice") != "any":
        return 0
    body["tool_choice"] = "required"
    return 1


def _functions_say_their_type(body: Body) -> int:
    changed = 0
    calls = [call for message in _messages(body) for call in message.get("tool_calls") or []]
    for function in [*(body.get("tools") or []), *calls]:
        if "function" in function and "type" not in function:
            function["type"] = "function"
            changed += 1
    return changed


def _streams_report_usage(body: Body) -> int:
    if not body.get("stream"):
        return 0
    before = body.get("stream_options") or {}
    body["stream_options"] = {"include_usage": True, **before}
    return int(body["stream_options"] != before)


def _no_parameters(body: Body) -> int:
    changed = 0
    for tool in body.get("tools") or []:
        if isinstance(tool.get("function"), dict) and "parameters" not in tool["function"]:
            tool["function"]["parameters"] = {"properties": {}, "type": "object"}
            changed += 1
    return changed


def _parallel(body: Body) -> int:
    if "parallel_tool_calls" not in body or "tool_choice" in body:
        return 0
    body["tool_choice"] = "auto"
    return 1


def _default_ttl(body: Body) -> int:
    markers = [part.get("prompt_cache_breakpoint") for part in _parts(body)]
    return sum(drop_when(marker, "ttl", "30m") for marker in markers if marker is not None)


def _defaults(body: Body) -> int:
    dropped = drop_when(body, "stream", False)
    dropped += sum(drop_when(body, name, []) for name in ("tools", "stop"))
    dropped += drop_when(body, "prompt_cache_options", {})
    for message in _messages(body):
        dropped += sum(drop_when(message, name, []) for name in ("content", "tool_calls"))
        dropped += drop_when(message, "reasoning_content", "")
    for tool in body.get("tools") or []:
        dropped += drop_when(tool.get("function") or {}, "description", "")
    return dropped


REQUEST = (
    Normalisation("null means the same as a missing field", drop_nulls),
    Normalisation("text content is a list with one text part", _text_as_parts),
    Normalisation("a refusal beside the content is a part of it", _refusal_in_content),
    Normalisation(
        "reasoning that nothing follows is refused, so it is left out with a notice", _finished
    ),
    Normalisation("without developer messages, system ones", _system_role, "role_changed"),
    Normalisation("blank texts of the system prompt are left out", _blank_system),
    Normalisation("the model's profile names the token limit", _token_limit),
    Normalisation("a stop text is a list with one", _stop_as_list),
    Normalisation("tool choice any is required", _any_is_required),
    Normalisation("functions say their type", _functions_say_their_type),
    Normalisation("no parameters are an empty object of them", _no_parameters),
    Normalisation("with parallel_tool_calls, tool_choice auto is said", _parallel),
    Normalisation("streams always report usage", _streams_report_usage),
    Normalisation("a breakpoint without a TTL lives thirty minutes", _default_ttl),
    Normalisation("a field that says its default is left out", _defaults),
)


def _choices(body: Body) -> list[dict[str, Any]]:
    return [choice.get("message") or {} for choice in body.get("choices") or []]


def _said_nothing(body: Body) -> int:
    dropped = 0
    for message in _choices(body):
        for name in ("content", "refusal", "reasoning", "reasoning_content"):
            dropped += drop_when(message, name, "")
        for name in ("annotations", "tool_calls"):
            dropped += drop_when(message, name, [])
    return dropped


def _one_text(body: Body) -> int:
    changed = 0
    for message in _choices(body):
        parts = message.get("content")
        if isinstance(parts, list) and all({*part} == {"type", "text"} for part in parts):
            message["content"] = "".join(part["text"] for part in parts)
            changed += 1
    return changed


def _framed(body: Body) -> int:
    """Hosts leave out of the frame what nobody reads; it is said in full."""
    before = sum(map(len, (body, *(body.get("choices") or []), *_choices(body))))
    for name, empty in (("id", ""), ("model", ""), ("created", 0)):
        body.setdefault(name, empty)
    for choice in (body.get("choices") or [])[:1]:
        choice.setdefault("index", 0)
        choice.get("message", {}).setdefault("role", "assistant")
    return sum(map(len, (body, *(body.get("choices") or []), *_choices(body)))) - before


def _calls_in_full(body: Body) -> int:
    changed = 0
    for message in _choices(body):
        for call in message.get("tool_calls") or []:
            if "type" not in call or "arguments" not in call.get("function", {}):
                call.setdefault("type", "function")
                call.get("function", {}).setdefault("arguments", "")
                changed += 1
    return changed


def _object(body: Body) -> int:
    if body.get("object") == "chat.completion":
        return 0
    body["object"] = "chat.completion"
    return 1


REPLY = (
    Normalisation("null means the same as a missing field", drop_nulls),
    Normalisation("a list of texts is one text", _one_text),
    Normalisation("an empty text or list says nothing", _said_nothing),
    Normalisation("calls say their type and arguments", _calls_in_full),
    Normalisation("the object is a chat completion", _object),
    Normalisation("the answer's frame is said in full", _framed),
)
