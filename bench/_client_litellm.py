"""LiteLLM with its defaults, given the messages as dicts in OpenAI's form, as it wants them for
every provider, contents as lists of parts. Runs in the environment of soak/strangers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import litellm
from _client_bodies import body, mark
from _client_workload import MAX_TOKENS, MODELS

_PREFIX = {"anthropic": "anthropic", "openai_chat": "openai"}


class LiteLlm:
    def __init__(self, who: str, wire: str, url: str) -> None:  # noqa: ARG002
        request = body("openai_chat")
        if wire == "anthropic":
            request["messages"][0]["role"] = "system"  # `developer` is OpenAI's word
            messages = request["messages"]
            blocks = (messages[at]["content"][-1] for at in (0, -3, -1))
            mark(request["tools"][-1], *blocks)
        self._options: dict[str, Any] = {
            "model": f"{_PREFIX[wire]}/{MODELS[wire]}",
            "messages": request["messages"],
            "tools": request["tools"],
            "max_tokens": MAX_TOKENS,
            "api_key": "k",
            "api_base": url if wire == "anthropic" else f"{url}/v1",
        }

    async def ready(self) -> Callable[[], Awaitable[object]]:
        return self._call

    async def close(self) -> None:
        """The process ends."""

    async def _call(self) -> Any:
        return await litellm.acompletion(**self._options)


asker = LiteLlm
