"""Programs with the official SDKs that ask one question after the other through a proxy."""

from __future__ import annotations

from typing import Any

import anthropic
import boto3
import botocore.exceptions
import openai
from google import genai
from google.genai import errors as genai_errors

from anaphora.proxy.server import Proxy

GUIDE = "You plan journeys, and say so in one line. " * 1500
AWS = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "example"}

History = list[tuple[str, str]]


class Claude:
    Refused = anthropic.APIStatusError

    def __init__(self, proxy: Proxy, headers: dict[str, str]) -> None:
        url = proxy.url_of("anthropic")
        self._client = anthropic.Anthropic(base_url=url, api_key="any", default_headers=headers)

    def ask(self, history: History, *, stream: bool = False) -> str:
        system: Any = [{"type": "text", "text": GUIDE, "cache_control": {"type": "ephemeral"}}]
        messages: Any = [{"role": role, "content": text} for role, text in history]
        messages[-1]["content"] = [
            {"type": "text", "text": history[-1][1], "cache_control": {"type": "ephemeral"}}
        ]
        given: dict[str, Any] = {"model": "claude-sonnet-5-5", "max_tokens": 20}
        if stream:
            with self._client.messages.stream(system=system, messages=messages, **given) as events:
                return str(events.get_final_text())
        return str(self._client.messages.create(system=system, messages=messages, **given).content)


class Chat:
    Refused = openai.APIStatusError

    def __init__(self, proxy: Proxy, headers: dict[str, str]) -> None:
        url = proxy.url_of("openai")
        self._client = openai.OpenAI(base_url=url, api_key="any", default_headers=headers)

    def ask(self, history: History, *, stream: bool = False) -> str:
        messages: Any = [{"role": role, "content": text} for role, text in history]
        messages = [{"role": "system", "content": GUIDE}, *messages]
        if stream:
            events = self._client.chat.completions.create(
                model="gpt-5.2", messages=messages, stream=True
            )
            return "".join(e.choices[0].delta.content or "" for e in events if e.choices)
        reply = self._client.chat.completions.create(model="gpt-5.2", messages=messages)
        return str(reply.choices[0].message.content)


class Responses(Chat):
    def ask(self, history: History, *, stream: bool = False) -> str:
        items: Any = [{"role": role, "content": text} for role, text in history]
        given: dict[str, Any] = {"model": "gpt-5.2", "instructions": GUIDE, "store": False}
        if stream:
            with self._client.responses.stream(input=items, **given) as events:
                return str(events.get_final_response().output_text)
        return str(self._client.responses.create(input=items, **given).output_text)


class Gemini:
    Refused = genai_errors.APIError

    def __init__(self, proxy: Proxy, headers: dict[str, str]) -> None:
        http = genai.types.HttpOptions(base_url=proxy.url_of("google"), headers=headers)
        self._client = genai.Client(api_key="any", http_options=http)

    def ask(self, history: History, *, stream: bool = False) -> str:
        roles = {"user": "user", "assistant": "model"}
        contents: Any = [{"role": roles[role], "parts": [{"text": text}]} for role, text in history]
        config = genai.types.GenerateContentConfig(system_instruction=GUIDE)
        given: Any = {"model": "gemini-2.5-flash", "contents": contents, "config": config}
        if stream:
            events = self._client.models.generate_content_stream(**given)
            return "".join(event.text or "" for event in events)
        return str(self._client.models.generate_content(**given).text)


def add(request: Any, headers: dict[str, str]) -> None:
    for name, value in headers.items():
        request.headers[name] = value


class Bedrock:
    Refused = botocore.exceptions.ClientError

    def __init__(self, proxy: Proxy, headers: dict[str, str]) -> None:
        self._client: Any = boto3.client(
            "bedrock-runtime",
            region_name="us-east-1",
            endpoint_url=proxy.url_of("bedrock"),
            aws_access_key_id=AWS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=AWS["AWS_SECRET_ACCESS_KEY"],
        )
        if headers:
            events = self._client.meta.events
            events.register("before-sign.*.*", lambda request, **_: add(request, headers))

    def ask(self, history: History, *, stream: bool = False) -> str:
        point = {"cachePoint": {"type": "default"}}
        messages: Any = [{"role": role, "content": [{"text": text}]} for role, text in history]
        messages[-1]["content"].append(point)
        given = {
            "modelId": "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
            "system": [{"text": GUIDE}, point],
            "messages": messages,
        }
        if stream:
            events = self._client.converse_stream(**given)["stream"]
            deltas = (event.get("contentBlockDelta", {}).get("delta", {}) for event in events)
            return "".join(delta.get("text", "") for delta in deltas)
        reply = self._client.converse(**given)
        return "".join(each.get("text", "") for each in reply["output"]["message"]["content"])


PROGRAMS: dict[str, Any] = {
    "anthropic": Claude,
    "openai_chat": Chat,
    "openai_responses": Responses,
    "gemini": Gemini,
    "bedrock": Bedrock,
}


def status_of(problem: Any) -> int:
    if isinstance(problem, botocore.exceptions.ClientError):
        return int(problem.response["ResponseMetadata"]["HTTPStatusCode"])
    return int(getattr(problem, "status_code", None) or problem.code)
