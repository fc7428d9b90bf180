"""What real programs send beside the SDKs' types, and need in a response: Codex, Gemini CLI,
LiteLLM, pydantic-ai. The programs themselves run in soak/test_strangers.py."""

from __future__ import annotations

import contextlib
import http.client
import json
from typing import Any

import httpx
import openai
import pytest

from anaphora.emulator.server import Emulator

BEARER = {"authorization": "Bearer k"}
GOOGLE = {"x-goog-api-key": "k"}
GEMINI_3 = "gemini-3.1-pro-preview"

# ── Codex ────────────────────────────────────────────────────────────────────────────────────────

CODEX = {
    "model": "gpt-5.1",
    "stream": True,
    "input": [
        {
            "type": "message",
            "id": "msg_01a1e29c",
            "role": "user",
            "content": [{"type": "input_text", "text": "Count the files."}],
            "internal_chat_message_metadata_passthrough": {
                "turn_id": "01a1e29c",
                "create_time": 1794803284.36,
                "content_item_kinds": ["user.text"],
            },
        }
    ],
    "tools": [
        {
            "type": "function",
            "name": "exec_command",
            "strict": False,
            "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
        }
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a1e29c",
    "client_metadata": {"session_id": "01a1e29c", "turn_id": "01a1e29c"},
}


def test_codex_metadata_is_accepted_in_a_request_and_its_items(emu: Emulator) -> None:
    response = httpx.post(f"{emu.url}/v1/responses", json=CODEX, headers=BEARER)
    assert response.status_code == 200, response.text
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line[:5] == "data:"]
    output = events[-1]["response"]["output"]
    call = next(item for item in output if item["type"] == "function_call")
    metadata = CODEX["input"][0]["internal_chat_message_metadata_passthrough"]  # type: ignore[index]
    passed = {"internal_chat_message_metadata_passthrough": metadata}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "3"}
    items = [*CODEX["input"], *output, result]  # type: ignore[misc]
    second = {**CODEX, "input": [{**item, **passed} for item in items]}
    response = httpx.post(f"{emu.url}/v1/responses", json=second, headers=BEARER)
    assert response.status_code == 200, response.text


def test_other_unknown_fields_are_still_rejected(emu: Emulator) -> None:
    request = {**CODEX, "client_metadata_too": {}}
    response = httpx.post(f"{emu.url}/v1/responses", json=request, headers=BEARER)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "client_metadata_too"


WEBSOCKET = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "htjtMiH9wGZwLQHoN5YRiw==",
    "openai-beta": "responses_websockets=2026-02-06",
}


@pytest.mark.parametrize("headers, status", [(WEBSOCKET, 426), ({}, 404)])
def test_websocket_attempt_is_told_to_use_http(
    emu: Emulator, headers: dict[str, str], status: int
) -> None:
    """Codex uses HTTP at once after a 426, and after seven more attempts otherwise."""
    for path in ("responses", "realtime?model=gpt-realtime-2"):
        response = httpx.get(f"{emu.url}/v1/{path}", headers={**BEARER, **headers})
        assert response.status_code == status
        assert response.json()["error"]["message"]


# ── Gemini CLI ───────────────────────────────────────────────────────────────────────────────────


def generate(emu: Emulator, body: Any, model: str = GEMINI_3, stream: bool = False) -> Any:
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    url = f"{emu.url}/v1beta/models/{model}:{method}"
    return httpx.post(url, json=body, headers=GOOGLE)


def user(*parts: Any) -> Any:
    return {"role": "user", "parts": list(parts)}


def test_json_schema_with_types_in_capitals(emu: Emulator) -> None:
    """The request with which Gemini CLI routes each prompt to a model."""
    schema = {
        "type": "OBJECT",
        "properties": {
            "complexity_reasoning": {"type": "STRING", "description": "Why."},
            "complexity_score": {"type": "INTEGER", "description": "1-100."},
            "tags": {"anyOf": [{"type": "ARRAY", "items": {"type": "STRING"}}, {"type": "NULL"}]},
        },
        "required": ["complexity_reasoning", "complexity_score"],
    }
    config = {"responseMimeType": "application/json", "responseJsonSchema": schema}
    body = {"contents": [user({"text": "Hello"})], "generationConfig": config}
    response = generate(emu, body, "gemini-3.5-flash-lite")
    assert response.status_code == 200, response.text
    *_, part = response.json()["candidates"][0]["content"]["parts"]
    answer = json.loads(part["text"])
    assert isinstance(answer["complexity_reasoning"], str)
    assert isinstance(answer["complexity_score"], int)


def test_function_schema_with_types_in_capitals(emu: Emulator) -> None:
    schema = {"type": "OBJECT", "properties": {"path": {"type": "STRING"}}, "required": ["path"]}
    declared = {"functionDeclarations": [{"name": "read_file", "parametersJsonSchema": schema}]}
    response = generate(emu, {"contents": [user({"text": "read_file"})], "tools": [declared]})
    assert response.status_code == 200, response.text
    *_, part = response.json()["candidates"][0]["content"]["parts"]
    assert isinstance(part["functionCall"]["args"]["path"], str)


FUNCTIONS = [
    {
        "functionDeclarations": [
            {"name": "read_file", "parametersJsonSchema": {"type": "object"}},
            {"name": "list_files", "parametersJsonSchema": {"type": "object"}},
        ]
    }
]


def call_parts(emu: Emulator, model: str, stream: bool) -> list[Any]:
    """The calls of a reply that calls both functions."""
    body = {"contents": [user({"text": "read_file and list_files"})], "tools": FUNCTIONS}
    response = generate(emu, body, model, stream)
    assert response.status_code == 200, response.text
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    chunks = [json.loads(line) for line in lines] if stream else [response.json()]
    parts = [p for chunk in chunks for p in chunk["candidates"][0]["content"]["parts"]]
    return [part for part in parts if "functionCall" in part]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model, signed", [(GEMINI_3, True), ("gemini-2.5-pro", False)])
def test_first_of_several_calls_is_signed_by_gemini_3(
    emu: Emulator, model: str, signed: bool, stream: bool
) -> None:
    first, second = call_parts(emu, model, stream)
    assert ("thoughtSignature" in first) is signed
    assert "thoughtSignature" not in second


def answered(calls: list[Any], *more: Any) -> Any:
    results = [
        {"functionResponse": {"name": call["functionCall"]["name"], "response": {"output": "1"}}}
        for call in calls
    ]
    contents = [
        user({"text": "read_file and list_files"}),
        {"role": "model", "parts": calls},
        user(*results),
        *more,
    ]
    return {"contents": contents, "tools": FUNCTIONS}


def unsigned(parts: list[Any]) -> list[Any]:
    return [{key: part[key] for key in part if key != "thoughtSignature"} for part in parts]


def test_gemini_3_refuses_calls_whose_signature_does_not_come_back(emu: Emulator) -> None:
    calls = call_parts(emu, GEMINI_3, stream=False)
    assert generate(emu, answered(calls)).status_code == 200
    response = generate(emu, answered(unsigned(calls)))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["status"] == "INVALID_ARGUMENT"
    name = calls[0]["functionCall"]["name"]
    assert "missing a thought_signature" in error["message"]
    assert f"`default_api:{name}` , position 2." in error["message"]


def test_only_the_first_call_of_each_step_of_the_current_turn_is_checked(emu: Emulator) -> None:
    calls = call_parts(emu, GEMINI_3, stream=False)
    dummy = {"thoughtSignature": "skip_thought_signature_validator"}
    steps = [{"role": "model", "parts": unsigned(calls)}, answered(calls)["contents"][2]]
    # A dummy is taken, an earlier turn is not checked, and a later step is.
    assert generate(emu, answered([{**unsigned(calls)[0], **dummy}, calls[1]])).status_code == 200
    earlier = answered(unsigned(calls), {"role": "model", "parts": [{"text": "2"}]})
    earlier["contents"].append(user({"text": "Thanks."}))
    assert generate(emu, earlier).status_code == 200
    later = generate(emu, answered(calls, *steps))
    assert later.status_code == 400
    assert "position 4." in later.json()["error"]["message"]
    assert generate(emu, answered(unsigned(calls)), "gemini-2.5-pro").status_code == 200


@pytest.mark.parametrize("text", ["Hello", "read_file"])
def test_last_chunk_of_a_stream_has_content(emu: Emulator, text: str) -> None:
    body = {"contents": [user({"text": text})]} | ({"tools": FUNCTIONS} if "_" in text else {})
    response = generate(emu, body, stream=True)
    *_, last = [json.loads(line[6:]) for line in response.text.splitlines() if line]
    candidate = last["candidates"][0]
    assert candidate["finishReason"] == "STOP"
    assert candidate["content"]["role"] == "model"
    assert [*candidate["content"]["parts"][0]] == ["text"]


# ── LiteLLM, pydantic-ai ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [False, True])
def test_groq_names_its_service_tier(emu: Emulator, stream: bool) -> None:
    body = {"model": "openai/gpt-oss-120b", "messages": [{"role": "user", "content": "Hello"}]}
    url = f"{emu.url}/groq/openai/v1/chat/completions"
    response = httpx.post(url, json=body | {"stream": stream}, headers=BEARER)
    assert response.status_code == 200, response.text
    chunk = response.text.split("data: ")[-2] if stream else response.text
    assert json.loads(chunk)["service_tier"] == "on_demand"


@pytest.mark.parametrize("name", ["user-agent", "accept", "content-type", "x-goog-api-client"])
def test_a_header_that_is_sent_twice_is_accepted(emu: Emulator, name: str) -> None:
    """pydantic-ai sends its User-Agent beside that of Google's SDK."""
    body = json.dumps({"contents": [user({"text": "Hello"})]}).encode()
    connection = http.client.HTTPConnection(emu.host, emu.port)
    connection.putrequest("POST", f"/v1beta/models/{GEMINI_3}:generateContent")
    values = {"content-type": "application/json"}
    for header in ("x-goog-api-key", "content-type", "content-length"):
        value = values.get(header, str(len(body)) if header == "content-length" else "k")
        connection.putheader(header, value)
    for value in ("application/json", "application/json") if name != "user-agent" else ("a", "b"):
        connection.putheader(name, value)
    connection.endheaders(body)
    with contextlib.closing(connection), connection.getresponse() as response:
        assert response.status == 200


# ── The openai SDK's own tests ───────────────────────────────────────────────────────────────────


def test_stored_chat_completions_are_listed_labelled_and_deleted(emu: Emulator) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    with openai.OpenAI(base_url=f"{emu.url}/v1", api_key="k", max_retries=0) as client:
        completions = client.chat.completions
        assert list(completions.list()) == []
        completions.create(model="gpt-4o", messages=messages)
        one, two = (
            completions.create(model=model, messages=messages, store=True, metadata={"on": model})
            for model in ("gpt-4o", "gpt-4o-mini")
        )
        assert [each.id for each in completions.list(limit=1)] == [one.id, two.id]
        assert [each.id for each in completions.list(order="desc")] == [two.id, one.id]
        assert [each.id for each in completions.list(model="gpt-4o-mini")] == [two.id]
        assert [each.id for each in completions.list(metadata={"on": "gpt-4o"})] == [one.id]
        assert completions.retrieve(one.id).choices == one.choices
        completions.update(one.id, metadata={"on": "none"})
        assert [each.id for each in completions.list(metadata={"on": "gpt-4o"})] == []
        (message,) = completions.messages.list(one.id)
        assert (message.role, message.content) == ("user", "Hello")
        assert completions.delete(one.id).deleted
        with pytest.raises(openai.NotFoundError):
            completions.retrieve(one.id)
    with openai.OpenAI(base_url=f"{emu.url}/v1", api_key="other") as client:
        assert list(client.chat.completions.list()) == []
