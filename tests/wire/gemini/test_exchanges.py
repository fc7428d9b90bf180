"""Recorded exchanges with Gemini, on AI Studio, on Vertex and behind a gateway: nothing is lost.

The recordings live beside the repository (see their README) and are never copied into it. They were
re-serialised with sorted keys, so they prove meaning, not bytes. What may differ is listed below,
one by one, independently of the wire's own list.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from support.exchanges import Exchanges, Json

from anaphora import catalog
from anaphora.errors import RequestRejected
from anaphora.rendered import Plan
from anaphora.values import Opaque, Reply, ReplyEnd, Text, Thinking, ToolCall, ToolResult
from anaphora.wire import gemini

every = Exchanges("gemini")


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────

KEPT = {"args", "response", "parameters", "parametersJsonSchema", "responseJsonSchema", "labels"}


def in_camel_case(value: Any) -> Any:
    """Every name of the API's; not those of the app's own objects."""
    if isinstance(value, list):
        return [in_camel_case(item) for item in value]
    if not isinstance(value, dict):
        return value
    reported = {re.sub(r"_(\w)", lambda m: m[1].upper(), name): v for name, v in value.items()}
    return {name: v if name in KEPT else in_camel_case(v) for name, v in reported.items()}


def expected(request: str) -> Json:
    body: Json = in_camel_case(json.loads(request))
    if isinstance(body.get("tools"), dict):
        body["tools"] = [body["tools"]]
    if body.get("tools") == []:
        del body["tools"]
    body.get("systemInstruction", {}).pop("role", None)
    if body.get("generationConfig") == {}:
        del body["generationConfig"]
    for function in (f for t in body.get("tools", ()) for f in t.get("functionDeclarations", ())):
        if function.get("description") == "":
            del function["description"]
    for content in body["contents"]:
        for part in content["parts"]:
            for holder in (part, *part.get("functionResponse", {}).get("parts", ())):
                if "inlineData" in holder:
                    data = base64.urlsafe_b64decode(holder["inlineData"]["data"])
                    holder["inlineData"]["data"] = base64.b64encode(data).decode()
    return body


@every.request
def test_a_recorded_request_round_trips(record: Json) -> None:
    call = gemini.parse(record["request"].encode(), record["path"])
    rendered = gemini.render(call, catalog.profile("google", call.model))
    request = gemini.assemble(rendered, Plan())
    # What has no name here goes back under the name it came with, in either spelling.
    assert in_camel_case(json.loads(request.body.join())) == expected(record["request"])
    assert rendered.notices == ()
    model = re.search(r"models/([^:]+):", record["path"])
    assert model is not None
    assert call.model == model[1]
    suffix = "streamGenerateContent?alt=sse" if record["stream"] else "generateContent"
    assert request.path == f"/v1beta/models/{call.model}:{suffix}"


@every.request
def test_normalisations_of_requests_are_named(record: Json) -> None:
    """Not only carried along: text, calls, results and media are where a reader looks."""
    reported = expected(record["request"])
    call = gemini.parse(record["request"].encode(), record["path"])
    parts = [part for content in reported["contents"] for part in content["parts"]]
    read = [part for message in call.ir.body_chat() for part in message.parts]
    assert len(parts) == len(read)
    names: dict[str, str] = {}
    for encoded, part in zip(parts, read, strict=True):
        if "text" in encoded:
            assert isinstance(part, Thinking if encoded.get("thought") else Text)
            assert part.text == encoded["text"]
        elif "functionCall" in encoded:
            assert isinstance(part, ToolCall)
            assert part.name == encoded["functionCall"]["name"]
            assert json.loads(part.arguments) == encoded["functionCall"]["args"]
            assert part.id == encoded["functionCall"].get("id", part.id) != ""
            names[part.id] = part.name
        elif "functionResponse" in encoded:
            assert isinstance(part, ToolResult)
            # Every result in the recordings answers a call, whether or not it says which.
            assert names[part.call_id] == encoded["functionResponse"]["name"]
            assert part.error == (set(encoded["functionResponse"]["response"]) == {"error"})
        elif "inlineData" in encoded or "fileData" in encoded:
            media = (encoded.get("inlineData") or encoded["fileData"])["mimeType"]
            assert isinstance(part, Opaque) == media.startswith("video/")
    config = reported.get("generationConfig", {})
    assert call.params.max_tokens == config.get("maxOutputTokens")
    assert (call.params.output is not None) == ("responseJsonSchema" in config)


# ── Answers ──────────────────────────────────────────────────────────────────────────────────────


@every.reply
def test_an_answer_is_read_without_loss(record: Json) -> None:
    reported = json.loads(record["response"])
    written = json.loads(gemini.write_reply(gemini.read_reply(record["response"].encode())))
    candidate = reported["candidates"][0]
    candidate.setdefault("index", 0)
    candidate["content"] = {"role": "model", "parts": [], **candidate["content"]}
    assert written == reported


@every.reply
def test_normalisations_of_replies_are_named(record: Json) -> None:
    reported = json.loads(record["response"])
    reply = gemini.read_reply(record["response"].encode())
    candidate = reported["candidates"][0]
    parts = candidate["content"].get("parts", [])
    assert reply.id == reported.get("responseId", "")
    assert reply.model == reported["modelVersion"]
    check_content(reply, parts)
    check_usage(reply, reported["usageMetadata"])
    check_stop(reply, candidate["finishReason"])


def check_content(reply: Reply, parts: list[Json]) -> None:
    texts = [p for p in parts if "text" in p]
    assert reply.text == "".join(p["text"] for p in texts if not p.get("thought"))
    thoughts = [part.text for part in reply.message.parts if isinstance(part, Thinking)]
    assert "".join(thoughts) == "".join(p["text"] for p in texts if p.get("thought"))
    calls = [p["functionCall"] for p in parts if "functionCall" in p]
    assert [(c.name, json.loads(c.arguments)) for c in reply.tool_calls] == [
        (c["name"], c["args"]) for c in calls
    ]
    assert [
        c.id for c in reply.tool_calls if c.extras is None or "gemini.form" not in c.extras
    ] == [c["id"] for c in calls if "id" in c]
    ids = [c.id for c in reply.tool_calls]
    assert all(ids)
    assert len(set(ids)) == len(ids)


def check_usage(reply: Reply, reported: Json) -> None:
    usage = reply.usage
    assert usage.input == reported["promptTokenCount"] + reported.get("toolUsePromptTokenCount", 0)
    assert usage.read == reported.get("cachedContentTokenCount")
    assert usage.reasoning == reported.get("thoughtsTokenCount")
    assert usage.output == reported.get("candidatesTokenCount", 0) + reported.get(
        "thoughtsTokenCount", 0
    )
    assert usage.total == reported["totalTokenCount"]
    assert json.loads(usage.raw or "null") == reported


def check_stop(reply: Reply, reported: str) -> None:
    words = {"STOP": "end", "MAX_TOKENS": "length", "SAFETY": "refusal"}
    expected = words.get(reported, "other")
    if reply.tool_calls and expected == "end":
        expected = "tool_calls"
    assert (reply.stop_reason_raw, reply.stop_reason) == (reported, expected)


# ── Streams and errors ───────────────────────────────────────────────────────────────────────────


@every.stream
def test_a_stream_is_read_without_loss(record: Json) -> None:
    reader = gemini.reader()
    last = (reader.feed(record["response"].encode()) + reader.close())[-1]
    assert isinstance(last, ReplyEnd)
    reply = last.reply
    lines = [line for line in record["response"].splitlines() if line.startswith("data:")]
    reported = [json.loads(line[5:]) for line in lines]
    candidates = [chunk["candidates"][0] for chunk in reported]
    parts = [part for candidate in candidates for part in candidate["content"]["parts"]]
    check_content(reply, parts)
    check_usage(reply, reported[-1]["usageMetadata"])
    check_stop(reply, candidates[-1]["finishReason"])
    # Every signature is still there, and so is everything that was neither text nor a call.
    kept = json.dumps([str(part) for part in reply.message.parts], ensure_ascii=False)
    for part in parts:
        assert part.get("thoughtSignature", "") in kept
    others = [p for p in parts if not {"text", "functionCall"} & set(p)]
    opaque = [json.loads(p.json) for p in reply.message.parts if isinstance(p, Opaque)]
    assert opaque == others
    grounding = [c["groundingMetadata"] for c in candidates if c.get("groundingMetadata")]
    extras = json.loads((reply.extras or {}).get("gemini", "{}"))
    if grounding:
        assert extras["candidate"]["groundingMetadata"] == grounding[-1]


@every.error
def test_an_error_is_read(record: Json) -> None:
    error = gemini.read_error(record["status"], {}, record["response"].encode())
    reported = json.loads(record["response"])["error"]
    assert type(error) is RequestRejected
    assert (error.status, error.code, str(error)) == (400, reported["status"], reported["message"])
