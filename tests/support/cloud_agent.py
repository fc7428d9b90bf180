"""A program that talks to the clouds by their own clients, which get their addresses, regions and
credentials from the environment: `python cloud_agent.py converse vertex …`. Each conversation has two
turns or more; a line says what the last one read from the cache."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

GUIDE = "Look before you leap, and say what you saw. " * 600
QUESTIONS = ("What do you see?", "And then?")
CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"


def runtime() -> Any:
    import boto3

    return boto3.client("bedrock-runtime")


def converse(*, stream: bool = False, marked: bool = True) -> Iterator[int]:
    client = runtime()
    point: list[Any] = [{"cachePoint": {"type": "default"}}] if marked else []
    messages: list[Any] = []
    for question in QUESTIONS if marked else QUESTIONS * 2:
        messages.append({"role": "user", "content": [{"text": question}]})
        asked = {
            "modelId": CLAUDE,
            "system": [{"text": f"Converse {stream}. {GUIDE}"}, *point],
            "messages": messages,
            "inferenceConfig": {"maxTokens": 40},
        }
        if stream:
            events = [*client.converse_stream(**asked)["stream"]]
            usage = events[-1]["metadata"]["usage"]
            deltas = [each.get("contentBlockDelta", {}).get("delta", {}) for each in events]
            text = "".join(each.get("text", "") for each in deltas)
        else:
            answer = client.converse(**asked)
            usage, text = answer["usage"], answer["output"]["message"]["content"][0]["text"]
        messages.append({"role": "assistant", "content": [{"text": text}]})
        yield usage["cacheReadInputTokens"]


def body(name: str, messages: list[Any]) -> dict[str, Any]:
    text = f"{name} {GUIDE}"
    system = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
    return {"max_tokens": 40, "system": system, "messages": messages}


def invoke(*, stream: bool = False) -> Iterator[int]:
    client, messages = runtime(), []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        fields = {**body(f"Invoke {stream}.", messages), "anthropic_version": "bedrock-2023-05-31"}
        data = json.dumps(fields)
        if stream:
            answer = client.invoke_model_with_response_stream(modelId=CLAUDE, body=data)
            events = [json.loads(each["chunk"]["bytes"]) for each in answer["body"]]
            usage = events[0]["message"]["usage"]
            text = "".join(each.get("delta", {}).get("text", "") for each in events)
        else:
            answer = json.loads(client.invoke_model(modelId=CLAUDE, body=data)["body"].read())
            usage, text = answer["usage"], answer["content"][0]["text"]
        messages.append({"role": "assistant", "content": text})
        yield usage["cache_read_input_tokens"]


def of_anthropic(name: str, model: str, **options: Any) -> Iterator[int]:
    import anthropic

    messages: list[Any] = []
    with getattr(anthropic, name)(max_retries=0, **options) as client:
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            reply = client.messages.create(model=model, **body(f"{name}.", messages))
            messages.append({"role": "assistant", "content": reply.content[0].text})
            yield reply.usage.cache_read_input_tokens


def azure() -> Iterator[int]:
    import openai

    messages: list[Any] = [{"role": "system", "content": f"Azure. {GUIDE}"}]
    with openai.AzureOpenAI(api_version="2024-10-21", max_retries=0) as client:
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            reply: Any = client.chat.completions.create(model="gpt-5.2", messages=messages)
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
            yield reply.usage.prompt_tokens_details.cached_tokens


def gemini() -> Iterator[int]:
    from google import genai
    from google.genai import types

    config = types.GenerateContentConfig(system_instruction=f"Gemini. {GUIDE}")
    contents: list[Any] = []
    with genai.Client(vertexai=True) as client:
        for question in QUESTIONS:
            contents.append(types.Content(role="user", parts=[types.Part(text=question)]))
            reply: Any = client.models.generate_content(
                model="gemini-2.5-flash", contents=contents, config=config
            )
            contents.append(reply.candidates[0].content)
            yield reply.usage_metadata.cached_content_token_count or 0


CLIENTS: dict[str, Callable[[], Iterator[int]]] = {
    "converse": converse,
    "converse-stream": lambda: converse(stream=True),
    "converse-unmarked": lambda: converse(marked=False),
    "invoke": invoke,
    "invoke-stream": lambda: invoke(stream=True),
    "bedrock": lambda: of_anthropic("AnthropicBedrock", CLAUDE),
    "mantle": lambda: of_anthropic("AnthropicBedrockMantle", "anthropic.claude-opus-5-5"),
    "vertex": lambda: of_anthropic(
        "AnthropicVertex", "claude-sonnet-4-5@20250929", region="global"
    ),
    "foundry": lambda: of_anthropic("AnthropicFoundry", "claude-sonnet-5-5"),
    "azure": azure,
    "gemini": gemini,
}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        *_, last = CLIENTS[name]()
        print(name, last)
