"""pydantic-ai with its defaults: an agent goes on with a history of 41 messages. What the user says
is given as a list of parts; the rest it writes as it likes. Runs in the environment of
soak/strangers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from _client_workload import (
    MAX_TOKENS,
    MODELS,
    SCHEMA,
    SYSTEM,
    TOOLS,
    Line,
    arguments,
    script,
    tool_of,
)
from pydantic_ai import Agent
from pydantic_ai.messages import (
    CachePoint,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset


class PydanticAi:
    def __init__(self, who: str, wire: str, url: str) -> None:  # noqa: ARG002
        tools = [
            ToolDefinition(name=name, description=about, parameters_json_schema=SCHEMA)
            for name, about in TOOLS
        ]
        self._agent = Agent(
            _anthropic(url) if wire == "anthropic" else _openai(url, wire),
            instructions=SYSTEM,
            toolsets=[ExternalToolset(tools)],
            model_settings={"max_tokens": MAX_TOKENS},
        )
        # Ours has breakpoints at what the customer line last, and before; OpenAI's has none.
        point = [CachePoint()] if wire == "anthropic" else []
        *history, before, between, (_, last, _) = script()
        marked = ModelRequest(parts=[UserPromptPart([before[1], *point])])
        self._history = [*map(_message, history), marked, _message(between)]
        self._last = [last, *point]

    async def ready(self) -> Callable[[], Awaitable[object]]:
        return self._call

    async def close(self) -> None:
        """The process ends."""

    async def _call(self) -> Any:
        return await self._agent.run(self._last, message_history=self._history)


def _message(line: Line) -> Any:
    role, text, call = line
    if role == "user":
        return ModelRequest(parts=[UserPromptPart([text])])
    if role == "tool":
        return ModelRequest(parts=[ToolReturnPart(tool_of(call), text, call)])
    parts: list[Any] = [TextPart(text)]
    if call:
        parts.append(ToolCallPart(tool_of(call), arguments(call), call))
    return ModelResponse(parts=parts)


def _anthropic(url: str) -> Any:
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(anthropic_client=AsyncAnthropic(api_key="k", base_url=url))
    return AnthropicModel(MODELS["anthropic"], provider=provider)


def _openai(url: str, wire: str) -> Any:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import (
        OpenAIChatModel,
        OpenAIResponsesModel,
    )
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIResponsesModel if wire == "openai_responses" else OpenAIChatModel
    provider = OpenAIProvider(openai_client=AsyncOpenAI(api_key="k", base_url=f"{url}/v1"))
    return model(MODELS[wire], provider=provider)


asker = PydanticAi
