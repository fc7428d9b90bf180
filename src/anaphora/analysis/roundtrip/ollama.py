"""What a request to Ollama, or an answer, may say in two ways: every difference that
`render(parse(request))` may show, one by one."""

from __future__ import annotations

from typing import Any

from anaphora.analysis.roundtrip.meaning import Body, Normalisation, drop_nulls, drop_when, keep


def _messages(body: Body) -> list[dict[str, Any]]:
    """Those of a request, or the one of an answer."""
    found: list[dict[str, Any]] = body.get("messages") or []
    return [*found, body["message"]] if "message" in body else found


def _calls(body: Body) -> list[dict[str, Any]]:
    return [call for message in _messages(body) for call in message.get("tool_calls") or []]


def _set(holder: dict[str, Any], name: str, value: Any) -> int:
    """A field that is missing means the same as one that says this."""
    if name in holder:
        return 0
    holder[name] = value
    return 1


def _streams(body: Body) -> int:
    return _set(body, "stream", True)


def _list_of_messages(body: Body) -> int:
    return _set(body, "messages", [])


def _small_roles(body: Body) -> int:
    changed = [message for message in _messages(body) if message["role"] != message["role"].lower()]
    for message in changed:
        message["role"] = message["role"].lower()
    return len(changed)


def _content(body: Body) -> int:
    return sum(_set(message, "content", "") for message in _messages(body))


def _said_nothing(body: Body) -> int:
    dropped = 0
    for message in _messages(body):
        dropped += sum(drop_when(message, name, []) for name in ("images", "tool_calls"))
        for name in ("thinking", "tool_name", "tool_call_id"):
            dropped += drop_when(message, name, "")
    return dropped + sum(drop_when(call, "id", "") for call in _calls(body))


def _plain_calls(body: Body) -> int:
    return sum(drop_when(call, "type", "function") for call in _calls(body))


def _arguments(body: Body) -> int:
    return sum(_set(call["function"], "arguments", {}) for call in _calls(body))


def _tools_in_full(body: Body) -> int:
    changed = 0
    for tool in body.get("tools") or []:
        if "function" in tool:
            changed += _set(tool, "type", "function")
            empty = {"properties": {}, "type": "object"}
            changed += _set(tool["function"], "parameters", empty)
    return changed


def _defaults(body: Body) -> int:
    options = body.get("options")
    dropped = drop_when(body, "tools", [])
    if isinstance(options, dict):
        dropped += drop_when(options, "stop", [])
        dropped += drop_when(body, "options", {})
    for tool in body.get("tools") or []:
        dropped += drop_when(tool.get("function") or {}, "description", "")
    return dropped


def _finished(body: Body) -> int:
    messages = body["messages"]

    def unfinished(message: Body) -> bool:
        said = any(message.get(name) for name in ("content", "images", "tool_calls"))
        return message["role"] == "assistant" and bool(message.get("thinking")) and not said

    return keep(messages, lambda at: not unfinished(messages[at]))


REQUEST = (
    Normalisation("null means the same as a missing field", drop_nulls),
    Normalisation("an answer is streamed unless the request says otherwise", _streams),
    Normalisation("a request without messages has none", _list_of_messages),
    Normalisation("roles are written small", _small_roles),
    Normalisation("a message without content has an empty text", _content),
    Normalisation("an empty text or list beside the content says nothing", _said_nothing),
    Normalisation(
        "reasoning that nothing follows is refused, so it is left out with a notice", _finished
    ),
    Normalisation("a call does not say its type", _plain_calls),
    Normalisation("a call without arguments has an empty object of them", _arguments),
    Normalisation("a tool says its type and parameters", _tools_in_full),
    Normalisation("a field that says its default is left out", _defaults),
)


def _role(body: Body) -> int:
    return sum(_set(message, "role", "assistant") for message in _messages(body))


def _end(body: Body) -> int:
    return _set(body, "done", True) + drop_when(body, "done_reason", "stop")


def _moment(body: Body) -> int:
    return _set(body, "created_at", "1970-01-01T00:00:00Z")


REPLY = (
    Normalisation("null means the same as a missing field", drop_nulls),
    Normalisation("an answer is the assistant's", _role),
    Normalisation("a message without content has an empty text", _content),
    Normalisation("an empty text or list beside the content says nothing", _said_nothing),
    Normalisation("a call does not say its type", _plain_calls),
    Normalisation("a call without arguments has an empty object of them", _arguments),
    Normalisation("an answer is done, and stopped, unless it says otherwise", _end),
    Normalisation("an answer without a date was made at the epoch", _moment),
)
