"""Which wire a request is written for, from its structure alone."""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.wire.fields import UNREADABLE

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
_CHAT_PARTS = {"image_url", "input_audio", "file", "refusal"}
_ANTHROPIC_BLOCKS = {"tool_use", "tool_result", "image", "document", "thinking"}


def detect(body: bytes) -> str:
    """The name of the wire; `InvalidRequest` when the request could be of more than one."""
    try:
        request = msgspec.json.decode(body)
    except UNREADABLE as problem:
        raise InvalidRequest(f"not JSON: {problem}") from None
    if not isinstance(request, dict):
        raise InvalidRequest("a request is a JSON object")
    if "input" in request:
        return "openai_responses"
    if not isinstance(request.get("messages"), list):
        raise InvalidRequest("neither `messages` nor `input` in it: not a request of any wire here")
    signs = _signs(request)
    if len(signs) == 1:
        return signs.pop()
    raise InvalidRequest(
        "it could be for anthropic or for openai_chat; say which with --from"
        if not signs
        else "it has fields of both anthropic and openai_chat; say which with --from"
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


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
