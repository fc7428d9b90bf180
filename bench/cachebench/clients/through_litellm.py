"""LiteLLM with `cache_control_injection_points`, on tools, system prompt and the last message."""

from __future__ import annotations

from typing import Any

import litellm
from cachebench.clients import openai_chat

Json = dict[str, Any]
POINTS = [
    {"location": "tool_config"},
    {"location": "message", "role": "system"},
    {"location": "message", "index": -1},
]
_PREFIX = {"anthropic": "anthropic", "gemini": "gemini", "deepseek": "deepseek"}
#: Providers that take markers. The others cache by themselves.
_MARKED = ("anthropic", "bedrock", "openai-breakpoints")


class LiteLlm:
    def __init__(self, provider: str, model: str, url: str) -> None:
        prefix = _PREFIX.get(provider, "bedrock/converse" if provider == "bedrock" else "openai")
        path = {"anthropic": "", "deepseek": "/deepseek", "bedrock": "", "gemini": "/v1beta"}
        self._options: Json = {
            "model": f"{prefix}/{model}",
            "max_tokens": 4096,
            "num_retries": 0,
            "api_base": url + path.get(provider, "/v1"),
        }
        if provider == "bedrock":
            self._options["aws_bedrock_runtime_endpoint"] = url
            del self._options["api_base"]
        else:
            self._options["api_key"] = "k"
        if provider in _MARKED:
            self._options["cache_control_injection_points"] = POINTS
        if provider == "openai-breakpoints":
            # Else points are only set if the host is api.openai.com.
            self._options["prompt_cache_options"] = {"mode": "implicit"}

    def begin(self) -> None:
        pass

    def message(self, given: Json) -> Any:
        return openai_chat.message(given)

    def tools(self, given: list[Json]) -> Any:
        return {"tools": openai_chat.tools(given)} if given else {}

    async def call(self, request: Json, tools: Any, messages: list[Any]) -> tuple[Any, list[str]]:
        sent = openai_chat.flat(messages, request["system"])
        answer = await litellm.acompletion(messages=sent, **tools, **self._options)
        reply = answer.choices[0].message
        ids = [call.id for call in reply.tool_calls or ()]
        if self._options["model"].startswith("openai/"):
            # OpenAI refuses a field that the reply has.
            return [reply.model_dump(exclude={"provider_specific_fields"}, exclude_none=True)], ids
        return [reply], ids


contestant = LiteLlm
