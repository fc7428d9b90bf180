"""LangChain: an agent of `create_agent`, with the provider's caching middleware if it has one. The
agent's tools are given as tools that it does not run itself: each call is one request."""

from __future__ import annotations

import warnings
from typing import Any

from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import StructuredTool

Json = dict[str, Any]


class LangChain:
    def __init__(self, provider: str, model: str, url: str) -> None:
        self._model, self._middleware = _model(provider, model, url)

    def begin(self) -> None:
        pass

    def message(self, given: Json) -> Any:
        if given["role"] == "user":
            return [HumanMessage(given["text"])]
        if given["role"] == "tool":
            return [
                ToolMessage(content=each["text"], tool_call_id=each["id"])
                for each in given["results"]
            ]
        calls = [
            {"name": call["name"], "args": call["arguments"], "id": call["id"]}
            for call in given["calls"]
        ]
        return [AIMessage(content=given["text"], tool_calls=calls)]

    def tools(self, given: list[Json]) -> Any:
        return [
            StructuredTool(
                name=tool["name"],
                description=tool["about"],
                args_schema=tool["schema"],
                func=lambda **_: "",
            )
            for tool in given
        ]

    async def call(self, request: Json, tools: Any, messages: list[Any]) -> tuple[Any, list[str]]:
        asked = ModelRequest(
            model=self._model,
            messages=[message for each in messages for message in each],
            system_message=SystemMessage(request["system"]) if request["system"] else None,
            tools=tools,
            tool_choice=None,
            response_format=None,
            state={"messages": []},
            runtime=None,
            model_settings={},
        )
        if self._middleware is None:
            answer = await _send(asked)
        else:
            answer = await self._middleware.awrap_model_call(asked, _send)
        reply = answer.result[0]
        return [reply], [call["id"] for call in reply.tool_calls]


async def _send(request: Any) -> Any:
    """What `create_agent` does with a request (langchain/agents/factory.py)."""
    model = (
        request.model.bind_tools(request.tools, **request.model_settings)
        if request.tools
        else (request.model.bind(**request.model_settings))
    )
    messages = [request.system_message] if request.system_message else []
    return ModelResponse(result=[await model.ainvoke([*messages, *request.messages])])


def _model(provider: str, model: str, url: str) -> tuple[Any, Any]:
    if provider == "anthropic":
        from langchain_anthropic import ChatAnthropic
        from langchain_anthropic.middleware import AnthropicPromptCachingMiddleware

        chat = ChatAnthropic(model=model, base_url=url, api_key="k", max_tokens=4096, max_retries=0)
        return chat, AnthropicPromptCachingMiddleware()
    if provider == "bedrock":
        from langchain_aws import ChatBedrockConverse
        from langchain_aws.middleware import BedrockPromptCachingMiddleware

        aws = ChatBedrockConverse(
            model=model,
            provider="anthropic",
            endpoint_url=url,
            region_name="us-east-1",
            max_tokens=4096,
        )
        return aws, BedrockPromptCachingMiddleware()
    if provider == "gemini":
        from langchain_google_genai import ChatGoogleGenerativeAI

        google = ChatGoogleGenerativeAI(
            model=model, base_url=url, api_key="k", max_output_tokens=4096, max_retries=1
        )
        return google, None
    if provider == "deepseek":
        from langchain_deepseek import ChatDeepSeek

        deep = ChatDeepSeek(
            model=model, base_url=f"{url}/deepseek", api_key="k", max_tokens=4096, max_retries=0
        )
        return deep, None
    from langchain_openai import ChatOpenAI

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options: Json = {"use_responses_api": False}
        openai = ChatOpenAI(
            model=model,
            base_url=f"{url}/v1",
            api_key="k",
            max_tokens=4096,
            max_retries=0,
            **options,
        )
    return openai, None


contestant = LangChain
