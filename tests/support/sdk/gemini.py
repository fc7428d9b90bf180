"""Google's own SDK."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import jsonschema_rs
import pydantic
from google import genai
from google.genai import _common, types
from support.sdk.case import (
    ALL_SEGMENTS,
    EVERYTHING,
    PDF,
    PNG,
    SCHEMA,
    SdkCase,
    call_of,
    call_with,
    problems_of,
)

from anaphora import errors
from anaphora.prompt import (
    Call,
    OutputSchema,
    Params,
    PromptCachePlan,
    PromptIR,
    Reasoning,
    ToolChoice,
)
from anaphora.values import (
    Audio,
    Bytes,
    CachePolicy,
    Document,
    FileId,
    Image,
    Message,
    Opaque,
    ProviderTool,
    Refusal,
    Reply,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Url,
    Usage,
)

MODEL = "gemini-3-flash-preview"


@functools.cache
def schema() -> Any:
    """The request, put together from the SDK's types: names in camelCase, and no others."""
    request = pydantic.create_model(
        "Request",
        __base__=_common.BaseModel,
        contents=(list[types.Content], ...),
        system_instruction=(types.Content | None, None),
        tools=(list[types.Tool] | None, None),
        tool_config=(types.ToolConfig | None, None),
        generation_config=(types.GenerationConfig | None, None),
        safety_settings=(list[types.SafetySetting] | None, None),
        cached_content=(str | None, None),
        labels=(dict[str, str] | None, None),
        service_tier=(types.ServiceTier | None, None),
        continuation_token=(str | None, None),
        store=(bool | None, None),
    )
    return jsonschema_rs.validator_for(request.model_json_schema(by_alias=True))


def problems(body: dict[str, Any]) -> list[str]:
    return problems_of(schema(), body)


CODE = '{"executableCode":{"id":"e","code":"1+1","language":"PYTHON"},"thoughtSignature":"c2ln"}'
OPEN_API = '{"parameters":{"type":"OBJECT","properties":{"q":{"type":"STRING","nullable":true}}}}'
AS_JSON_SCHEMA = '{"type":"object","properties":{"q":{"type":["string","null"]}}}'
SIGNED = {"gemini": '{"thoughtSignature":"c2ln"}'}

MESSAGES = (
    Message.user(
        "hello",
        Image(PNG, "low"),
        Image(Url("https://x.test/a.png")),
        Image(Url("https://x.test/who-knows")),
        Image(FileId("google", "gs://bucket/a.png", "image/png")),
        Document(PDF, "title.pdf", "context"),
        Document(Bytes(b"plain", "text/plain")),
        Document(Url("https://x.test/a.pdf")),
        Document(FileId("openai", "file-2")),
        Audio(Bytes(b"RIFF", "audio/wav")),
        Audio(Url("https://x.test/a.ogg")),
        Opaque("anthropic", "search_result", "{}"),
        id="ask",
    ),
    Message.assistant(
        Thinking("hm", "sig", provider="anthropic"),
        Thinking("hm", "c2ln", provider="gemini"),
        Text("text", SIGNED),
        Refusal("not that"),
        Opaque("gemini", "executableCode", CODE),
        ToolCall("c1", "search", '{"q": "x"}', SIGNED),
        ToolCall("c2", "search", "cut off {"),
        ToolCall("c3", "bare", ""),
        id="calls",
    ),
    Message.tool("c1", (Text("one"), Image(PNG), Text("two"), Document(PDF)), id="r1"),
    Message.tool("c2", "failed", error=True, id="r2"),
    Message.tool("c3", '{"rows":[1,2]}', id="r3"),
    Message.user(ToolResult("c9", ""), "go on", id="last"),
    Message.system("in French"),
)
TOOLS = (
    Tool("search", "Searches.", SCHEMA, True, CachePolicy.EPHEMERAL_1H),
    Tool("bare"),
    ProviderTool("gemini", "googleSearch", '{"googleSearch":{}}'),
    Tool("openapi", "", AS_JSON_SCHEMA, extras={"gemini.form": OPEN_API}),
    ProviderTool("anthropic", "web_search", '{"type":"web_search_20250305"}'),
)


def call(*, messages: Sequence[Message] = MESSAGES, **fields: Any) -> Call:
    return call_of(MODEL, messages, **fields)


def with_params(**params: Any) -> Call:
    return call_with(MODEL, **params)


CALLS: dict[str, Call] = {
    EVERYTHING: call(tools=TOOLS, params=Params(max_tokens=5)),
    "system as text": call(system="You are terse."),
    "smallest": call(messages=[Message.user("u")], system=()),
    "an empty text": call(messages=[Message.user("")], system=()),
    "a frozen boundary": call(cache=PromptCachePlan(frozen_through="calls", message_ttl="1h")),
    "a state turn": call(tail=[Message.user("state")]),
    "every segment": Call(ir=PromptIR(segments=ALL_SEGMENTS), model=MODEL),
    "tool choice auto": with_params(tool_choice=ToolChoice("auto", parallel=False)),
    "tool choice required": with_params(tool_choice=ToolChoice("required")),
    "tool choice none": with_params(tool_choice=ToolChoice("none")),
    "tool choice tool": with_params(tool_choice=ToolChoice("tool", "search")),
    "a level": with_params(reasoning=Reasoning("adaptive", "max", None, "summarized")),
    "a budget": with_params(reasoning=Reasoning("enabled", None, 2048, "omitted")),
    "no thinking": with_params(reasoning=Reasoning("disabled")),
    "an output schema": with_params(output=OutputSchema(SCHEMA, "n", "d", True)),
    "JSON without a schema": with_params(output="json"),
    "an output schema of Gemini's": call(
        messages=[Message.user("u")],
        params=Params(output=OutputSchema(AS_JSON_SCHEMA)),
        extras={"gemini.form": OPEN_API.replace("parameters", "responseSchema")},
    ),
    "sampling": with_params(temperature=0.5, top_p=0.9, top_k=5, stop=("END",), seed=1),
    "penalties": with_params(frequency_penalty=0.5, presence_penalty=0.5, n=2, max_tokens=9),
    "labels": with_params(metadata={"team": "a", "Not A Label": "x"}, user="8", store=True),
    "a tier": with_params(service_tier="flex"),
    "a stream": with_params(stream=True),
    "extras": call(
        params=Params(max_tokens=7, tool_choice=ToolChoice("required")),
        extras={
            "gemini": '{"generationConfig":{"responseModalities":["TEXT"]},"safetySettings":'
            '[{"category":"HARM_CATEGORY_HATE_SPEECH","threshold":"BLOCK_NONE"}],"toolConfig":'
            '{"functionCallingConfig":{"allowedFunctionNames":["a","b"]},'
            '"includeServerSideToolInvocations":true}}'
        },
    ),
    "a handle": call(
        messages=[Message.user("u")],
        system=(),
        extras={"gemini": '{"cachedContent":"cachedContents/x"}'},
    ),
}


OTHER = '{"content":{"role":"model","parts":[{"text":"ho"}]},"finishReason":"MAX_TOKENS","index":1}'
GROUNDS = '"groundingMetadata":{"webSearchQueries":["rain"]},"avgLogprobs":-0.5'
REPLY = Reply(
    id="resp_7",
    model="gemini-3-flash",
    message=Message(
        id="resp_7",
        role="assistant",
        parts=(
            Thinking("hm", "c2ln", provider="gemini"),
            Text("Zürich is 🌧️.", SIGNED),
            Opaque("gemini", "executableCode", CODE),
            Image(PNG),
            ToolCall("call_1", "look_up", '{"city": "Zürich", "days": [1, 2]}', SIGNED),
            ToolCall("call_2", "look_up", "{}"),
        ),
    ),
    stop_reason="tool_calls",
    usage=Usage(uncached=3, read=400, output=50, reasoning=11),
    extras={
        "gemini": f'{{"createTime":"2026-11-14T10:00:00Z","candidate":{{{GROUNDS}}},'
        f'"candidates":[{OTHER}]}}'
    },
)
REFUSED = Reply(
    id="resp_8",
    model="gemini-3-flash",
    message=Message(id="resp_8", role="assistant", parts=(Refusal("I won't."),)),
    stop_reason="refusal",
    usage=Usage(uncached=3, output=5),
)
BLOCKED = Reply(
    id="resp_9",
    model="gemini-3-flash",
    message=Message(id="resp_9", role="assistant", parts=()),
    stop_reason="refusal",
    stop_reason_raw="PROHIBITED_CONTENT",
    usage=Usage(uncached=3, output=0),
    extras={"gemini": '{"promptFeedback":{"blockReason":"PROHIBITED_CONTENT"}}'},
)


def client(address: str) -> Any:
    options = types.HttpOptions(base_url=address, retry_options=types.HttpRetryOptions(attempts=1))
    return genai.Client(api_key="not-a-key", http_options=options)


def ask(address: str) -> Any:
    with client(address) as api:
        return api.models.generate_content(model=MODEL, contents="hi")


def ask_for_stream(address: str) -> list[Any]:
    with client(address) as api:
        return list(api.models.generate_content_stream(model=MODEL, contents="hi"))


def joined_parts(chunks: list[Any]) -> list[Any]:
    """The parts of all chunks, with the texts that stand together joined."""
    joined: list[Any] = []
    for chunk in chunks:
        for candidate in (chunk.candidates or ())[:1]:
            for part in (candidate.content and candidate.content.parts) or ():
                last = joined[-1] if joined else None
                if (
                    last is not None
                    and part.text is not None
                    and last.text is not None
                    and bool(part.thought) == bool(last.thought)
                ):
                    last.text += part.text
                    last.thought_signature = part.thought_signature or last.thought_signature
                else:
                    joined.append(part)
    return joined


def check_stream(chunks: list[Any], reply: Reply) -> None:
    last = chunks[-1]
    assert (last.response_id, last.model_version) == (reply.id, reply.model)
    parts = joined_parts(chunks)
    text = "".join(p.text for p in parts if p.text and not p.thought)
    refused = [p.text for p in reply.message.parts if isinstance(p, Refusal)]
    assert text == (reply.text or "".join(refused))
    thoughts = [p for p in reply.message.parts if isinstance(p, Thinking)]
    assert [p.text for p in parts if p.thought] == [p.text for p in thoughts]
    calls = [p.function_call for p in parts if p.function_call]
    assert [(c.id, c.name, c.args) for c in calls] == [
        (c.id, c.name, json.loads(c.arguments)) for c in reply.tool_calls
    ]
    usage = last.usage_metadata
    assert usage.prompt_token_count == reply.usage.input
    assert usage.cached_content_token_count == reply.usage.read
    assert usage.candidates_token_count + (usage.thoughts_token_count or 0) == reply.usage.output
    assert usage.total_token_count == reply.usage.total
    if reply is BLOCKED:
        assert not last.candidates
        assert last.prompt_feedback.block_reason == "PROHIBITED_CONTENT"
    else:
        stop = {"tool_calls": "STOP", "refusal": "SAFETY"}[reply.stop_reason]
        assert last.candidates[0].finish_reason == stop
    if reply is REPLY:
        assert all(p.thought_signature == b"sig" for p in parts[:3])
        assert parts[2].executable_code.code == "1+1"
        assert parts[3].inline_data.data == PNG.data
        assert last.candidates[0].grounding_metadata.web_search_queries == ["rain"]
        assert last.candidates[1].content.parts[0].text == "ho"


STATUSES: dict[type[errors.Upstream], tuple[int, str]] = {
    errors.RequestRejected: (400, "INVALID_ARGUMENT"),
    errors.Unauthenticated: (401, "UNAUTHENTICATED"),
    errors.Forbidden: (403, "PERMISSION_DENIED"),
    errors.NotFound: (404, "NOT_FOUND"),
    errors.RateLimited: (429, "RESOURCE_EXHAUSTED"),
    errors.QuotaExhausted: (429, "RESOURCE_EXHAUSTED"),
    errors.Overloaded: (503, "UNAVAILABLE"),
}


def check_error(caught: Any, error: errors.Upstream, status: int) -> None:
    assert isinstance(caught, genai.errors.APIError)
    assert (caught.code, caught.status) == STATUSES[type(error)]
    assert caught.message == str(error)


CASE = SdkCase(
    name="gemini",
    provider="google",
    calls=CALLS,
    problems=problems,
    spoils=[
        lambda body: body.update(temperature=1),
        lambda body: body.update(system_instruction={"parts": []}),
        lambda body: body["generationConfig"].update(maxOutputTokens="many"),
        lambda body: body["contents"][0].update(parts="text"),
        lambda body: body["contents"][0]["parts"][0].update(label="identity"),
        lambda body: body["contents"][0]["parts"][0].update(cache_control={"type": "ephemeral"}),
        lambda body: body["contents"][1]["parts"][4]["functionCall"].update(args="{}"),
        lambda body: body["tools"][0].update(cache="1h"),
    ],
    replies={"tools": REPLY, "refused": REFUSED, "blocked": BLOCKED},
    ask=ask,
    ask_for_stream=ask_for_stream,
    check_reply=lambda read, reply: check_stream([read], reply),
    check_stream=check_stream,
    overload_code="UNAVAILABLE",
    stream_error=genai.errors.ServerError,
    errors=[
        errors.RequestRejected("m", param="contents[0].role"),
        errors.Unauthenticated("m"),
        errors.Forbidden("m"),
        errors.NotFound("m"),
        errors.RateLimited("m", retry_after=3.5),
        errors.QuotaExhausted("m"),
        errors.Overloaded("m"),
    ],
    check_error=check_error,
)
