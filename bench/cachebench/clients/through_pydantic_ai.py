"""pydantic-ai with its setting `cache=True`, by which it places the provider's markers itself."""

from __future__ import annotations

from typing import Any

from pydantic_ai.direct import model_request
from pydantic_ai.messages import (
    InstructionPart,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

Json = dict[str, Any]


class PydanticAi:
    def __init__(self, provider: str, model: str, url: str) -> None:
        self._model = _model(provider, model, url)
        self._settings: Any = {"max_tokens": 4096, "cache": True}
        self._names: dict[str, str] = {}

    def begin(self) -> None:
        self._names.clear()

    def message(self, given: Json) -> Any:
        if given["role"] == "user":
            return ModelRequest(parts=[UserPromptPart(given["text"])])
        if given["role"] == "tool":
            return ModelRequest(
                parts=[
                    ToolReturnPart(self._names.get(each["id"], "tool"), each["text"], each["id"])
                    for each in given["results"]
                ]
            )
        parts: list[Any] = [TextPart(given["text"])] if given["text"] else []
        for call in given["calls"]:
            self._names[call["id"]] = call["name"]
            parts.append(ToolCallPart(call["name"], call["arguments"], call["id"]))
        return ModelResponse(parts=parts)

    def tools(self, given: list[Json]) -> Any:
        return [
            ToolDefinition(
                name=tool["name"], description=tool["about"], parameters_json_schema=tool["schema"]
            )
            for tool in given
        ]

    async def call(self, request: Json, tools: Any, messages: list[Any]) -> tuple[Any, list[str]]:
        system = request["system"]
        instructions = [InstructionPart(content=system, dynamic=False)] if system else None
        parameters = ModelRequestParameters(
            function_tools=tools, allow_text_output=True, instruction_parts=instructions
        )
        reply = await model_request(
            self._model,
            messages,
            model_settings=self._settings,
            model_request_parameters=parameters,
        )
        ids = []
        for part in reply.parts:
            if isinstance(part, ToolCallPart):
                self._names[part.tool_call_id] = part.tool_name
                ids.append(part.tool_call_id)
        return reply, ids


def _model(provider: str, model: str, url: str) -> Any:
    if provider == "anthropic":
        from anthropic import AsyncAnthropic
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        client = AsyncAnthropic(api_key="k", base_url=url, max_retries=0)
        return AnthropicModel(model, provider=AnthropicProvider(anthropic_client=client))
    if provider == "gemini":
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

        return GoogleModel(model, provider=GoogleProvider(api_key="k", base_url=url))
    if provider == "bedrock":
        from pydantic_ai.models.bedrock import BedrockConverseModel
        from pydantic_ai.providers.bedrock import BedrockProvider

        return BedrockConverseModel(model, provider=BedrockProvider(base_url=url))
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel

    if provider == "deepseek":
        from pydantic_ai.providers.deepseek import DeepSeekProvider

        other = AsyncOpenAI(api_key="k", base_url=f"{url}/deepseek", max_retries=0)
        return OpenAIChatModel(model, provider=DeepSeekProvider(openai_client=other))
    from pydantic_ai.providers.openai import OpenAIProvider

    openai = AsyncOpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0)
    return OpenAIChatModel(model, provider=OpenAIProvider(openai_client=openai))


contestant = PydanticAi
