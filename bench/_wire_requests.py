"""One conversation as a request of every wire: 42 messages and about 40 KB, tool calls in it.

Gemini's is what its SDK sends, which leaves out the ids of calls. Newer servers give them, so there
is a second form, with ids.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import httpx2
from google import genai
from google.genai import types

Json = dict[str, Any]

TURNS = 14


def requests() -> Iterator[tuple[str, str, bytes]]:
    """The wire, the form, and the body."""
    yield "anthropic", "", _body(max_tokens=10, messages=_each(_anthropic))
    yield "openai_chat", "", _body(max_tokens=10, messages=_each(_chat))
    yield "openai_responses", "", _body(max_output_tokens=9, input=_each(_responses))
    yield "gemini", "google-genai", _sent_by_genai()
    yield "gemini", "with ids", json.dumps({"contents": _each(_gemini_with_ids)}).encode()
    config = {"inferenceConfig": {"maxTokens": 10}}
    yield "bedrock", "", json.dumps({"messages": _each(_converse), **config}).encode()


def _text() -> str:
    rng = random.Random(3)
    return "".join(rng.choice("abcdefghij klmnop qrstu") for _ in range(900))


TEXT = _text()


def _each(turn: Any) -> list[Any]:
    """All turns: what `turn` makes of an id and arguments, behind each other."""
    return [
        message
        for at in range(TURNS)
        for message in turn(f"t{at}", {"path": f"src/{at}.py", "limit": at})
    ]


def _body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


def _anthropic(call_id: str, arguments: Json) -> list[Json]:
    call = {"type": "tool_use", "id": call_id, "name": "read", "input": arguments}
    result = {"type": "tool_result", "tool_use_id": call_id, "content": TEXT}
    return [
        {"role": "user", "content": TEXT},
        {"role": "assistant", "content": [{"type": "text", "text": TEXT}, call]},
        {"role": "user", "content": [result]},
    ]


def _converse(call_id: str, arguments: Json) -> list[Json]:
    call = {"toolUseId": call_id, "name": "read", "input": arguments}
    result = {"toolUseId": call_id, "content": [{"text": TEXT}], "status": "success"}
    return [
        {"role": "user", "content": [{"text": TEXT}]},
        {"role": "assistant", "content": [{"text": TEXT}, {"toolUse": call}]},
        {"role": "user", "content": [{"toolResult": result}]},
    ]


def _chat(call_id: str, arguments: Json) -> list[Json]:
    function = {"name": "read", "arguments": json.dumps(arguments)}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return [
        {"role": "user", "content": TEXT},
        {"role": "assistant", "content": TEXT, "tool_calls": calls},
        {"role": "tool", "tool_call_id": call_id, "content": TEXT},
    ]


def _responses(call_id: str, arguments: Json) -> list[Json]:
    call = {"call_id": call_id, "name": "read", "arguments": json.dumps(arguments)}
    return [
        {"role": "user", "content": TEXT},
        {"role": "assistant", "content": TEXT},
        {"type": "function_call", **call},
        {"type": "function_call_output", "call_id": call_id, "output": TEXT},
    ]


def _gemini_with_ids(call_id: str, arguments: Json) -> list[Json]:
    """As a model of the third generation wants it back: signed, and by id."""
    call = {"id": call_id, "name": "read", "args": arguments}
    result = {"id": call_id, "name": "read", "response": {"output": TEXT}}
    return [
        {"role": "user", "parts": [{"text": TEXT}]},
        {
            "role": "model",
            "parts": [{"text": TEXT}, {"functionCall": call, "thoughtSignature": "c2lnbmVk"}],
        },
        {"role": "user", "parts": [{"functionResponse": result}]},
    ]


def _genai(_: str, arguments: Json) -> list[types.Content]:
    """A result is in `result`, where the SDK puts what a function gives that it calls itself."""
    call = types.Part.from_function_call(name="read", args=arguments)
    result = types.Part.from_function_response(name="read", response={"result": TEXT})
    return [
        types.Content(role="user", parts=[types.Part(text=TEXT)]),
        types.Content(role="model", parts=[types.Part(text=TEXT), call]),
        types.Content(role="user", parts=[result]),
    ]


# ── What the SDKs send ───────────────────────────────────────────────────────────────────────────


def _sent_by_genai() -> bytes:
    sent: list[bytes] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.read())
        return httpx2.Response(200, json={"candidates": []})

    http = types.HttpOptions(httpx_client=httpx2.Client(transport=httpx2.MockTransport(answer)))
    with genai.Client(api_key="none", http_options=http) as client:
        config = types.GenerateContentConfig(max_output_tokens=10)
        client.models.generate_content(model="m", contents=_each(_genai), config=config)
    return sent[0]
