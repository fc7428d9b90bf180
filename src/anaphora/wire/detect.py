"""Which wire a request is written for, from its structure alone."""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.wire.reading import DECODE_ERRORS

_CHAT_FIELDS = set(
    "frequency_penalty logit_bias logprobs max_completion_tokens modalities n parallel_tool_calls"
    " presence_penalty reasoning_effort response_format seed stop stream_options".split()
)
_ANTHROPIC_FIELDS = {"system", "stop_sequences", "top_k", "output_config", "cache_control"}
#: Fields of Ollama's alone: what it takes besides is OpenAI's, too.
_OLLAMA_FIELDS = {"options", "think", "keep_alive", "format", "truncate", "shift"}
_CHAT_PARTS = {"image_url", "input_audio", "file", "refusal"}
_ANTHROPIC_BLOCKS = {"tool_use", "tool_result", "image", "document", "thinking"}


def detect(body: bytes) -> str:
    """The name of the wire; `InvalidRequest` when the request could be of more than one."""
    try:
        request = msgspec.json.decode(body)
    except DECODE_ERRORS as problem:
        raise InvalidRequest(f"not JSON: {problem}") from None
    if not isinstance(request, dict):
        raise InvalidRequest("a request is a JSON object")
    for field, wire in (("input", "openai_responses"), ("contents", "gemini")):
        if field in request:
            return wire
    if not isinstance(request.get("messages"), list):
        raise InvalidRequest(
            "neither `messages` nor `input` nor `contents` in it: not a request of any wire here"
        )
    if _is_ollama(request):
        return "ollama"
    chat, anthropic = _signs_of_chat(request), _signs_of_anthropic(request)
    messages = _objects(request["messages"][:1])
    if not (chat or anthropic) and messages and messages[0].get("role") == "system":
        return "openai_chat"  # Anthropic takes no system message first
    if chat != anthropic:
        return "openai_chat" if chat else "anthropic"
    raise InvalidRequest(
        "it has fields of both anthropic and openai_chat; choose with --from"
        if chat
        else "it could be for anthropic or for openai_chat; choose with --from"
    )


def _signs_of_chat(request: dict[str, Any]) -> bool:
    messages = _objects(request["messages"])
    return (
        bool(_CHAT_FIELDS & set(request))
        or any("function" in t and "input_schema" not in t for t in _objects(request.get("tools")))
        or any(m.get("role") in ("developer", "tool") or "tool_calls" in m for m in messages)
        or any(part.get("type") in _CHAT_PARTS for part in _parts(messages))
    )


def _signs_of_anthropic(request: dict[str, Any]) -> bool:
    return (
        bool(_ANTHROPIC_FIELDS & set(request))
        or any("input_schema" in tool for tool in _objects(request.get("tools")))
        or any(
            part.get("type") in _ANTHROPIC_BLOCKS or "cache_control" in part
            for part in _parts(_objects(request["messages"]))
        )
    )


def _is_ollama(request: dict[str, Any]) -> bool:
    """Something that only Ollama has, and nothing that it has not: content is a text, and
    arguments are an object."""
    fields, messages = set(request), _objects(request["messages"])
    if (_CHAT_FIELDS - {"logprobs"} | _ANTHROPIC_FIELDS) & fields:
        return False
    if any(isinstance(message.get("content"), list) for message in messages):
        return False
    calls = [call for message in messages for call in _objects(message.get("tool_calls"))]
    functions = [function for call in calls if isinstance(function := call.get("function"), dict)]
    return (
        bool(_OLLAMA_FIELDS & fields)
        or any("images" in message or "tool_name" in message for message in messages)
        or any(isinstance(function.get("arguments"), dict) for function in functions)
    )


def _parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [part for message in messages for part in _objects(message.get("content"))]


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
