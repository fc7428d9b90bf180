"""The official SDKs, used as their first pages show: openai (OpenAI and DeepSeek), anthropic,
google-genai and boto3. A reply is sent back as the object that the SDK returned."""

from __future__ import annotations

import asyncio
from typing import Any

from cachebench.clients import openai_chat

Json = dict[str, Any]
MAX_TOKENS = 4096


class OpenAi:
    def __init__(self, provider: str, model: str, url: str) -> None:
        from openai import AsyncOpenAI

        base = f"{url}/deepseek" if provider == "deepseek" else f"{url}/v1"
        self._client = AsyncOpenAI(api_key="k", base_url=base, max_retries=0)
        limit = "max_tokens" if provider == "deepseek" else "max_completion_tokens"
        self._options: Json = {"model": model, limit: MAX_TOKENS}

    def begin(self) -> None:
        pass

    def message(self, given: Json) -> Any:
        return openai_chat.message(given)

    def tools(self, given: list[Json]) -> Any:
        return {"tools": openai_chat.tools(given)} if given else {}

    async def call(self, request: Json, tools: Any, messages: list[Any]) -> tuple[Any, list[str]]:
        sent: Any = openai_chat.flat(messages, request["system"])
        answer = await self._client.chat.completions.create(messages=sent, **tools, **self._options)
        reply = answer.choices[0].message
        return [reply], [call.id for call in reply.tool_calls or ()]


class Anthropic:
    """`options` are further fields of every request."""

    def __init__(self, model: str, url: str, **options: Any) -> None:
        from anthropic import AsyncAnthropic

        self._client = AsyncAnthropic(api_key="k", base_url=url, max_retries=0)
        self._options: Json = {"model": model, "max_tokens": MAX_TOKENS, **options}

    def begin(self) -> None:
        pass

    def message(self, given: Json) -> Any:
        if given["role"] == "user":
            return {"role": "user", "content": given["text"]}
        if given["role"] == "tool":
            blocks = [
                {"type": "tool_result", "tool_use_id": result["id"], "content": result["text"]}
                for result in given["results"]
            ]
            return {"role": "user", "content": blocks}
        blocks = [{"type": "text", "text": given["text"]}] if given["text"] else []
        blocks += [
            {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["arguments"]}
            for call in given["calls"]
        ]
        return {"role": "assistant", "content": blocks}

    def tools(self, given: list[Json]) -> Any:
        return [
            {"name": tool["name"], "description": tool["about"], "input_schema": tool["schema"]}
            for tool in given
        ]

    async def call(self, request: Json, tools: Any, messages: list[Any]) -> tuple[Any, list[str]]:
        answer = await self._client.messages.create(
            system=request["system"], tools=tools, messages=messages, **self._options
        )
        ids = [block.id for block in answer.content if block.type == "tool_use"]
        return {"role": "assistant", "content": answer.content}, ids


class Gemini:
    def __init__(self, model: str, url: str) -> None:
        from google import genai
        from google.genai import types

        self._types, self._model = types, model
        self._names: dict[str, str] = {}
        options = types.HttpOptions(base_url=url)
        self._client = genai.Client(api_key="k", http_options=options)

    def begin(self) -> None:
        self._names.clear()

    def message(self, given: Json) -> Any:
        types = self._types
        if given["role"] == "user":
            return types.Content(role="user", parts=[types.Part(text=given["text"])])
        if given["role"] == "tool":
            # Gemini names the function. A reply's calls have their names as ids.
            parts = [
                types.Part.from_function_response(
                    name=self._names.get(result["id"], result["id"]),
                    response={"result": result["text"]},
                )
                for result in given["results"]
            ]
            return types.Content(role="user", parts=parts)
        self._names |= {call["id"]: call["name"] for call in given["calls"]}
        parts = [types.Part(text=given["text"])] if given["text"] else []
        parts += [
            types.Part.from_function_call(name=call["name"], args=call["arguments"])
            for call in given["calls"]
        ]
        return types.Content(role="model", parts=parts)

    def tools(self, given: list[Json]) -> Any:
        declared = [
            self._types.FunctionDeclaration(
                name=tool["name"], description=tool["about"], parameters_json_schema=tool["schema"]
            )
            for tool in given
        ]
        return [self._types.Tool(function_declarations=declared)] if declared else []

    async def call(self, request: Json, tools: Any, messages: list[Any]) -> tuple[Any, list[str]]:
        config = self._types.GenerateContentConfig(
            system_instruction=request["system"],
            tools=tools,
            max_output_tokens=MAX_TOKENS,
            automatic_function_calling=self._types.AutomaticFunctionCallingConfig(disable=True),
        )
        answer = await self._client.aio.models.generate_content(
            model=self._model, contents=messages, config=config
        )
        assert answer.candidates
        names = [str(call.name) for call in answer.function_calls or ()]
        return answer.candidates[0].content, names


class Bedrock:
    def __init__(self, model: str, url: str) -> None:
        import boto3
        from botocore.config import Config

        config = Config(retries={"total_max_attempts": 1})
        self._client = boto3.client("bedrock-runtime", endpoint_url=url, config=config)
        self._model = model

    def begin(self) -> None:
        pass

    def message(self, given: Json) -> Any:
        if given["role"] == "user":
            return {"role": "user", "content": [{"text": given["text"]}]}
        if given["role"] == "tool":
            blocks: list[Json] = [
                {
                    "toolResult": {
                        "toolUseId": result["id"],
                        "content": [{"text": result["text"]}],
                    }
                }
                for result in given["results"]
            ]
            return {"role": "user", "content": blocks}
        blocks = [{"text": given["text"]}] if given["text"] else []
        blocks += [
            {
                "toolUse": {
                    "toolUseId": call["id"],
                    "name": call["name"],
                    "input": call["arguments"],
                }
            }
            for call in given["calls"]
        ]
        return {"role": "assistant", "content": blocks}

    def tools(self, given: list[Json]) -> Any:
        specs = [
            {
                "toolSpec": {
                    "name": tool["name"],
                    "description": tool["about"],
                    "inputSchema": {"json": tool["schema"]},
                }
            }
            for tool in given
        ]
        return {"toolConfig": {"tools": specs}} if specs else {}

    async def call(self, request: Json, tools: Any, messages: list[Any]) -> tuple[Any, list[str]]:
        answer = await asyncio.to_thread(self._converse, request["system"], tools, messages)
        reply = answer["output"]["message"]
        ids = [block["toolUse"]["toolUseId"] for block in reply["content"] if "toolUse" in block]
        return reply, ids

    def _converse(self, system: str, tools: Any, messages: list[Any]) -> Any:
        return self._client.converse(
            modelId=self._model,
            system=[{"text": system}],
            messages=merged(messages),
            inferenceConfig={"maxTokens": MAX_TOKENS},
            **tools,
        )


def merged(messages: list[Json]) -> list[Json]:
    """Converse takes no two messages of one role in a row."""
    found: list[Json] = []
    for each in messages:
        if found and found[-1]["role"] == each["role"]:
            content = [*found[-1]["content"], *each["content"]]
            found[-1] = {"role": each["role"], "content": content}
        else:
            found.append(each)
    return found


def contestant(provider: str, model: str, url: str) -> Any:
    if provider == "anthropic":
        return Anthropic(model, url)
    if provider == "gemini":
        return Gemini(model, url)
    if provider == "bedrock":
        return Bedrock(model, url)
    return OpenAi(provider, model, url)
