"""Which wire a request is written for, from its structure alone."""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.wire.reading import DECODE_ERRORS

_CHAT_FIELDS = {
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "modalities",
    "n",
    "parallel_tool_calls",
    "presence_penalty",
    "reasoning_effort",
    "response_format",
    "seed",
    "stop",
    "stream_options",
}
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
    if "input" in request:
        return "openai_responses"
    if "contents" in request:
        return "gemini"
    if not isinstance(request.get("messages"), list):
        raise InvalidRequest(
            "neither `messages` nor `input` nor `contents` in it: not a request of any wire here"
        )
    if _is_ollama(request):
        return "ollama"
    signs = _signs(request)
    if len(signs) == 1:
        return signs.pop()
    raise InvalidRequest(
        "it could be for anthropic or for openai_chat; choose with --from"
        if not signs
        else "it has fields of both anthropic and openai_chat; choose with --from"
    )


def _signs(request: dict[str, Any]) -> set[str]:
    signs = set()
    if _CHAT_FIELDS & set(request):
        signs.add("openai_chat")
    if _ANTHROPIC_FIELDS & set(request):
        signs.add("anthropic")
    for tool in _objects(request.get("tools")):
        signs.add("anthropic" if "input_schema" in tool else "openai_chat")
        if "input_schema" not in tool and "function" not in tool:
            signs.discard("openai_chat")
    for message in _objects(request["messages"]):
        if message.get("role") in ("developer", "tool") or "tool_calls" in message:
            signs.add("openai_chat")
        for part in _objects(message.get("content")):
            if part.get("type") in _CHAT_PARTS:
                signs.add("openai_chat")
            if part.get("type") in _ANTHROPIC_BLOCKS or "cache_control" in part:
                signs.add("anthropic")
    if not signs and request["messages"][:1] and _objects(request["messages"][:1]):
        first = request["messages"][0]
        if first.get("role") == "system":
            # Anthropic takes no system message first.
            signs.add("openai_chat")
    return signs


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


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
