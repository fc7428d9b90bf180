"""The clouds' own clients run a tool loop at the emulator, and read their cache at turn two: boto3,
anthropic's clients for the clouds, AzureOpenAI, google-genai."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import anthropic
import boto3
import openai
import pytest
from botocore.config import Config
from google import genai
from google.genai import types
from google.oauth2.credentials import Credentials
from support.tables import each_row

from anaphora import emulator
from anaphora.emulator import EmulatorOptions, Script
from anaphora.emulator.server import Emulator

ACCESS, SECRET = "AKIAEMULATED00000000", "emulated/secret+key"
LONG = "Look before you leap, and say what you saw. " * 900
PROFILE = "arn:aws:bedrock:us-east-1:000000000000:inference-profile/us.anthropic.claude-sonnet-5"
CLAUDE, VERSIONED = "us.anthropic.claude-sonnet-5", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"place": {"type": "string"}},
    "required": ["place"],
}
NAMED: dict[str, Any] = {"name": "look", "description": "Looks at a place."}
REPLIES = [
    {
        "match": {"text": "Look"},
        "reply": {"tool_calls": [{"name": "look", "arguments": {"place": "Rome"}}]},
    },
    {"match": {"result_of": "look"}, "reply": {"text": "It is sunny."}},
]


class Said(NamedTuple):
    """A reply as its client read it."""

    call: str
    """The id of its tool call."""
    given: Any
    """The arguments."""
    text: str
    read: int
    written: int


@pytest.fixture(scope="module")
def emu() -> Iterator[Emulator]:
    script = Script.decode(json.dumps({"replies": REPLIES}), "the script")
    options = EmulatorOptions(script=script)
    with emulator.running(options) as running:
        yield running


# ── boto3 ────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def runtime(url: str, access: str = ACCESS, secret: str = SECRET) -> Any:
    return boto3.client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}),
    )


def converse(url: str, model: str, stream: bool) -> list[Said]:
    client = runtime(url)
    messages: list[Any] = [{"role": "user", "content": [{"text": "Look"}]}]
    said: list[Said] = []
    while not said or said[-1].call:
        asked = {
            "modelId": model,
            "messages": messages,
            "system": [{"text": LONG}, {"cachePoint": {"type": "default"}}],
            "toolConfig": {"tools": [{"toolSpec": {**NAMED, "inputSchema": {"json": SCHEMA}}}]},
        }
        if stream:
            blocks, usage = streamed_blocks(client.converse_stream(**asked)["stream"])
        else:
            answer = client.converse(**asked)
            blocks, usage = answer["output"]["message"]["content"], answer["usage"]
            assert usage["totalTokens"] == sum(
                usage[name]
                for name in (
                    "inputTokens",
                    "outputTokens",
                    "cacheReadInputTokens",
                    "cacheWriteInputTokens",
                )
            )
        use: Any = next((each["toolUse"] for each in blocks if "toolUse" in each), {})
        text = "".join(each.get("text", "") for each in blocks)
        read, written = usage["cacheReadInputTokens"], usage["cacheWriteInputTokens"]
        said.append(Said(use.get("toolUseId", ""), use.get("input"), text, read, written))
        result = {"toolUseId": said[-1].call, "content": [{"text": "Sun"}]}
        messages += [
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": [{"toolResult": result}]},
        ]
    return said


def streamed_blocks(events: Any) -> tuple[list[Any], Any]:
    """The blocks and the counts of a stream. Texts begin without an event."""
    blocks: dict[int, Any] = {}
    usage = None
    for event in events:
        if "contentBlockStart" in event:
            start = event["contentBlockStart"]
            assert "toolUse" in start["start"]
            use = {**start["start"]["toolUse"], "input": ""}
            blocks[start["contentBlockIndex"]] = {"toolUse": use}
        elif "contentBlockDelta" in event:
            delta, at = event["contentBlockDelta"]["delta"], event["contentBlockDelta"]
            index = at["contentBlockIndex"]
            if "toolUse" in delta:
                blocks[index]["toolUse"]["input"] += delta["toolUse"]["input"]
            else:
                blocks.setdefault(index, {"text": ""})["text"] += delta["text"]
        elif "metadata" in event:
            usage = event["metadata"]["usage"]
    for block in blocks.values():
        if "toolUse" in block:
            block["toolUse"]["input"] = json.loads(block["toolUse"]["input"])
    return list(blocks.values()), usage


def invoke(url: str, model: str, stream: bool) -> list[Said]:
    """The body is Anthropic's, and read here by anthropic's own types."""
    client = runtime(url)

    def create(**body: Any) -> anthropic.types.Message:
        data = json.dumps({**body, "anthropic_version": "bedrock-2023-05-31"})
        if not stream:
            answer = client.invoke_model(modelId=model, body=data)
            message = anthropic.types.Message.model_validate_json(answer["body"].read())
            counts = answer["ResponseMetadata"]["HTTPHeaders"]
            read = counts["x-amzn-bedrock-cache-read-input-token-count"]
            assert int(read) == message.usage.cache_read_input_tokens
            return message
        answer = client.invoke_model_with_response_stream(modelId=model, body=data)
        events = [json.loads(each["chunk"]["bytes"]) for each in answer["body"]]
        metrics = events[-1]["amazon-bedrock-invocationMetrics"]
        message, partial = events[0]["message"], ""
        for event in events:
            if event["type"] == "content_block_start":
                message["content"].append(event["content_block"])
            elif event["type"] == "content_block_delta":
                if "text" in event["delta"]:
                    message["content"][-1]["text"] += event["delta"]["text"]
                partial += event["delta"].get("partial_json", "")
        if partial:
            message["content"][-1]["input"] = json.loads(partial)
        assert metrics["inputTokenCount"] == message["usage"]["input_tokens"]
        return anthropic.types.Message.model_validate(message)

    return messages_loop(create)


# ── anthropic's clients ──────────────────────────────────────────────────────────────────────────


def messages_loop(create: Callable[..., anthropic.types.Message]) -> list[Said]:
    system = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]
    messages: list[Any] = [{"role": "user", "content": "Look"}]
    said: list[Said] = []
    while not said or said[-1].call:
        tools = [{**NAMED, "input_schema": SCHEMA}]
        message = create(max_tokens=300, system=system, tools=tools, messages=messages)
        use = next((each for each in message.content if each.type == "tool_use"), None)
        text = "".join(each.text for each in message.content if each.type == "text")
        read = message.usage.cache_read_input_tokens or 0
        written = message.usage.cache_creation_input_tokens or 0
        given: tuple[str, Any] = (use.id, use.input) if use else ("", None)
        said.append(Said(*given, text, read, written))
        content = [each.model_dump(exclude_none=True) for each in message.content]
        messages += [
            {"role": "assistant", "content": content},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": said[-1].call, "content": "Sun"}
                ],
            },
        ]
    return said


def sdk(client: Any, model: str, stream: bool) -> list[Said]:
    def create(**body: Any) -> anthropic.types.Message:
        if not stream:
            return client.messages.create(model=model, **body)  # type: ignore[no-any-return]
        with client.messages.stream(model=model, **body) as events:
            return events.get_final_message()  # type: ignore[no-any-return]

    with client:
        return messages_loop(create)


SIGNED: dict[str, Any] = {
    "aws_access_key": ACCESS,
    "aws_secret_key": SECRET,
    "aws_region": "us-east-1",
    "max_retries": 0,
}


def anthropic_bedrock(url: str, model: str, stream: bool) -> list[Said]:
    return sdk(anthropic.AnthropicBedrock(base_url=url, **SIGNED), model, stream)


def anthropic_mantle(url: str, model: str, stream: bool) -> list[Said]:
    client = anthropic.AnthropicBedrockMantle(base_url=f"{url}/bedrock/anthropic", **SIGNED)
    return sdk(client, model, stream)


def anthropic_vertex(url: str, model: str, stream: bool) -> list[Said]:
    client = anthropic.AnthropicVertex(
        region="global", project_id="p", access_token="ya29.t", base_url=f"{url}/v1", max_retries=0
    )
    return sdk(client, model, stream)


def anthropic_foundry(url: str, model: str, stream: bool) -> list[Said]:
    base = f"{url}/azure/anthropic"
    client = anthropic.AnthropicFoundry(api_key="k", base_url=base, max_retries=0)
    return sdk(client, model, stream)


# ── AzureOpenAI and google-genai ─────────────────────────────────────────────────────────────────


def azure_openai(url: str, model: str, stream: bool) -> list[Said]:
    messages: list[Any] = [{"role": "system", "content": LONG}, {"role": "user", "content": "Look"}]
    said: list[Said] = []
    with openai.AzureOpenAI(
        azure_endpoint=url, api_version="2024-10-21", api_key="k", max_retries=0
    ) as client:
        while not said or said[-1].call:
            asked: dict[str, Any] = {
                "model": model,
                "messages": messages,
                "tools": [{"type": "function", "function": {**NAMED, "parameters": SCHEMA}}],
            }
            if stream:
                with client.chat.completions.stream(
                    **asked, stream_options={"include_usage": True}
                ) as events:
                    completion: Any = events.until_done().get_final_completion()
            else:
                completion = client.chat.completions.create(**asked)
            message = completion.choices[0].message
            call = next(iter(message.tool_calls or ()), None)
            read = completion.usage.prompt_tokens_details.cached_tokens
            given: tuple[str, Any] = (
                (call.id, json.loads(call.function.arguments)) if call else ("", None)
            )
            said.append(Said(*given, message.content or "", read, 0))
            called = message.model_dump(include={"role", "content", "tool_calls"})
            messages.append(called)
            if call:
                for each in called["tool_calls"]:
                    each.pop("index", None)
                    each["function"].pop("parsed_arguments", None)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "Sun"})
    return said


def google_vertex(url: str, model: str, stream: bool) -> list[Said]:
    options = types.HttpOptions(base_url=url, retry_options=types.HttpRetryOptions(attempts=1))
    credentials = Credentials(token="ya29.t")  # type: ignore[no-untyped-call]
    declared = types.FunctionDeclaration(**NAMED, parameters_json_schema=SCHEMA)
    config = types.GenerateContentConfig(
        system_instruction=LONG,
        tools=[types.Tool(function_declarations=[declared])],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    contents = [types.Content(role="user", parts=[types.Part(text="Look")])]
    said: list[Said] = []
    with genai.Client(
        vertexai=True, project="p", location="global", credentials=credentials, http_options=options
    ) as client:
        while not said or said[-1].call:
            asked: dict[str, Any] = {"model": model, "contents": contents, "config": config}
            if stream:
                pieces = list(client.models.generate_content_stream(**asked))
            else:
                pieces = [client.models.generate_content(**asked)]
            found = [each.candidates[0].content for each in pieces if each.candidates]
            parts = [part for each in found if each is not None for part in each.parts or ()]
            call = next((part.function_call for part in parts if part.function_call), None)
            usage = pieces[-1].usage_metadata
            assert usage is not None
            given: tuple[str, Any] = (call.name or "", call.args) if call else ("", None)
            text = "".join(part.text or "" for part in parts)
            said.append(Said(*given, text, usage.cached_content_token_count or 0, 0))
            result = types.Part.from_function_response(name="look", response={"result": "Sun"})
            contents += [
                types.Content(role="model", parts=parts),
                types.Content(role="user", parts=[result]),
            ]
    return said


JUDGES: dict[str, tuple[Callable[[str, str, bool], list[Said]], str]] = {
    "Converse": (converse, CLAUDE),
    "Converse, an id with a colon": (converse, VERSIONED),
    "Converse, an ARN": (converse, PROFILE),
    "Converse of Nova": (converse, "us.amazon.nova-2-lite-v1:0"),
    "InvokeModel": (invoke, VERSIONED),
    "AnthropicBedrock": (anthropic_bedrock, VERSIONED),
    "AnthropicBedrock, an ARN": (anthropic_bedrock, PROFILE),
    "AnthropicBedrockMantle": (anthropic_mantle, "anthropic.claude-opus-5-5"),
    "AnthropicVertex": (anthropic_vertex, "claude-sonnet-4-5@20250929"),
    "AnthropicFoundry": (anthropic_foundry, "claude-sonnet-5-5"),
    "AzureOpenAI": (azure_openai, "gpt-5.2"),
    "google-genai": (google_vertex, "gemini-2.5-flash"),
}


@each_row("name", list(JUDGES))
@each_row("stream", [False, True])
@pytest.mark.long
def test_tool_loop_reads_the_cache_at_turn_two(emu: Emulator, name: str, stream: bool) -> None:
    emu.reset()
    judge, model = JUDGES[name]
    first, second = judge(emu.url, model, stream)
    assert (first.given, first.text) == ({"place": "Rome"}, "")
    assert (second.call, second.text) == ("", "It is sunny.")
    assert (first.read, second.written) == (0, 0)
    assert second.read > 5000
    if first.written:
        assert second.read == first.written
    calls = emu.requests()
    assert [call["status"] for call in calls] == [200, 200]


# ── Refusals ─────────────────────────────────────────────────────────────────────────────────────

HI: dict[str, Any] = {"role": "user", "content": [{"text": "Hello"}]}
POINT: dict[str, Any] = {"cachePoint": {"type": "default"}}
HOUR: dict[str, Any] = {"cachePoint": {"type": "default", "ttl": "1h"}}
TOOLS: dict[str, Any] = {"tools": [{"toolSpec": {**NAMED, "inputSchema": {"json": SCHEMA}}}]}
CALLED: dict[str, Any] = {
    "role": "assistant",
    "content": [{"toolUse": {"toolUseId": "t1", "name": "look", "input": {"place": "Rome"}}}],
}
NOVA, LLAMA = "us.amazon.nova-2-lite-v1:0", "us.meta.llama4-maverick-17b-instruct-v1:0"
VIDEO = {"video": {"format": "mp4", "source": {"bytes": b"x"}}}
STORED = {"image": {"format": "png", "source": {"s3Location": {"uri": "s3://b/i.png"}}}}
MALFORMED = "The model returned the following errors: Malformed input request: #/"


def result(*content: Any, **more: Any) -> dict[str, Any]:
    return {"toolResult": {"toolUseId": "t1", "content": list(content), **more}}


def after_call(*content: Any) -> list[Any]:
    return [HI, CALLED, {"role": "user", "content": list(content)}]


def of_user(*content: Any) -> list[Any]:
    return [{"role": "user", "content": list(content)}]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown model": (
        {"modelId": "claude-sonnet", "messages": [HI]},
        "The provided model identifier is invalid.",
    ),
    "a misspelled model": (
        {"modelId": "us.anthropic.claude-sonet-5", "messages": [HI]},
        "The provided model identifier is invalid. (Did you mean anthropic.claude-sonnet-5?",
    ),
    "a point after tools on Nova": (
        {"modelId": NOVA, "messages": [HI], "toolConfig": {"tools": [*TOOLS["tools"], POINT]}},
        f"{MALFORMED}toolConfig/tools/1: extraneous key [cachePoint] is not permitted",
    ),
    "a point beside a result on Nova": (
        {
            "modelId": NOVA,
            "messages": after_call(result({"text": "Sun"}), POINT),
            "toolConfig": TOOLS,
        },
        f"{MALFORMED}messages/2/content/1: extraneous key [cachePoint] is not permitted",
    ),
    "a point on Llama": (
        {"modelId": LLAMA, "messages": [HI], "system": [{"text": "Be brief."}, POINT]},
        "You invoked an unsupported model or your request did not allow prompt caching.",
    ),
    "a point on an OpenAI model": (
        {"modelId": "openai.gpt-5.6-sol", "messages": of_user({"text": "Hello"}, POINT)},
        "You invoked an unsupported model or your request did not allow prompt caching.",
    ),
    "an hour on Nova": (
        {"modelId": NOVA, "messages": [HI], "system": [{"text": "Be brief."}, HOUR]},
        "This model doesn't support the ttl '1h' of a cachePoint.",
    ),
    "a longer lifetime after a shorter one": (
        {
            "modelId": CLAUDE,
            "messages": of_user({"text": "Hello"}, HOUR),
            "system": [{"text": "Be brief."}, POINT],
        },
        "The model returned the following errors: messages.0.content.1.cache_control.ttl: a ttl='1h'",
    ),
    "five points": (
        {"modelId": CLAUDE, "messages": of_user(*[{"text": "Hello"}, POINT] * 5)},
        "The model returned the following errors: A maximum of 4 blocks with cache_control may be",
    ),
    "a history of tools without tools": (
        {"modelId": CLAUDE, "messages": after_call(result({"text": "Sun"}))},
        "The toolConfig field must be defined when using toolUse and toolResult content blocks.",
    ),
    "an empty result": (
        {"modelId": NOVA, "messages": after_call(result()), "toolConfig": TOOLS},
        "The content field at messages.2.content.0.toolResult cannot be empty.",
    ),
    "an empty error": (
        {"modelId": CLAUDE, "messages": after_call(result(status="error")), "toolConfig": TOOLS},
        "The content field at messages.2.content.0.toolResult cannot be empty when status value is",
    ),
    "a result without a call": (
        {"modelId": CLAUDE, "messages": of_user(result({"text": "Sun"})), "toolConfig": TOOLS},
        "The number of toolResult blocks at messages.0.content exceeds the number of toolUse",
    ),
    "a call without a result": (
        {"modelId": CLAUDE, "messages": [HI, CALLED, HI], "toolConfig": TOOLS},
        "Expected toolResult blocks at messages.2.content for the following Ids: t1",
    ),
    "white space": (
        {"modelId": NOVA, "messages": of_user({"text": "  "})},
        "The text field in the ContentBlock object at messages.0.content.0 is blank.",
    ),
    "no content": (
        {"modelId": CLAUDE, "messages": [{"role": "user", "content": []}]},
        "The content field in the Message object at messages.0 is empty.",
    ),
    "the assistant first": (
        {"modelId": NOVA, "messages": [{"role": "assistant", "content": [{"text": "Hello"}]}, HI]},
        "A conversation must start with a user message.",
    ),
    "a video": (
        {"modelId": CLAUDE, "messages": of_user({"text": "What is it?"}, VIDEO)},
        "This model doesn't support the video content block that you provided.",
    ),
    "an image in S3": (
        {"modelId": CLAUDE, "messages": of_user({"text": "What is it?"}, STORED)},
        "This model doesn't support the s3Uri field. Remove s3Uri and try again.",
    ),
    "a text beside a result on Llama": (
        {
            "modelId": LLAMA,
            "messages": after_call(result({"text": "Sun"}), {"text": "And now?"}),
            "toolConfig": TOOLS,
        },
        "messages.2.content: Conversation blocks and tool result blocks cannot be provided in the",
    ),
    "a temperature on an OpenAI model": (
        {
            "modelId": "openai.gpt-5.6-sol",
            "messages": [HI],
            "inferenceConfig": {"temperature": 0.5},
        },
        "This model doesn't support the temperature field. Remove temperature and try again.",
    ),
}


@each_row("name", list(REFUSED))
@each_row("stream", [False, True])
def test_refusal(emu: Emulator, name: str, stream: bool) -> None:
    asked, message = REFUSED[name]
    client = runtime(emu.url)
    with pytest.raises(client.exceptions.ValidationException) as raised:
        (client.converse_stream if stream else client.converse)(**asked)
    answer = raised.value.response
    assert answer["Error"]["Message"].startswith(message)
    metadata = answer["ResponseMetadata"]
    assert (metadata["HTTPStatusCode"], bool(metadata["RequestId"])) == (400, True)
    assert metadata["HTTPHeaders"]["date"]


def test_what_other_families_take_is_answered(emu: Emulator) -> None:
    client = runtime(emu.url)
    blank = client.converse(modelId=CLAUDE, messages=of_user({"text": "Hello"}, {"text": " "}))
    empty = client.converse(modelId=CLAUDE, messages=after_call(result()), toolConfig=TOOLS)
    hour = client.converse(modelId=CLAUDE, messages=of_user({"text": "Hello"}, HOUR))
    plain = client.converse(modelId=LLAMA, messages=[HI])
    assert all(each["stopReason"] for each in (blank, empty, hour))
    assert "cacheReadInputTokens" not in plain["usage"]


def test_streams_of_openai_models_count_cached_tokens_twice(emu: Emulator) -> None:
    client = runtime(emu.url)
    asked = {"modelId": "openai.gpt-5.6-sol", "messages": [HI], "system": [{"text": LONG}]}
    _, second = client.converse(**asked)["usage"], client.converse(**asked)["usage"]
    read = second["cacheReadInputTokens"]
    assert read > 5000 > second["inputTokens"]
    _, streamed = streamed_blocks(client.converse_stream(**asked)["stream"])
    assert streamed["inputTokens"] == read + second["inputTokens"]
    assert streamed["totalTokens"] == second["totalTokens"] + read


def test_counted_tokens(emu: Emulator) -> None:
    client = runtime(emu.url)
    converse = {"messages": [HI], "system": [{"text": LONG}]}
    model = "anthropic.claude-sonnet-4-5-20250929-v1:0"
    counted = client.count_tokens(modelId=model, input={"converse": converse})["inputTokens"]
    usage = client.converse(modelId=model, **converse)["usage"]
    assert counted == usage["inputTokens"]
    body = {
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": 10,
        "system": LONG,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    invoked = {"invokeModel": {"body": json.dumps(body).encode()}}
    assert abs(client.count_tokens(modelId=model, input=invoked)["inputTokens"] - counted) < 20
    with pytest.raises(client.exceptions.ValidationException, match="support counting tokens"):
        client.count_tokens(modelId=VERSIONED, input={"converse": converse})


def test_bodies_of_other_families_are_not_invoked(emu: Emulator) -> None:
    client = runtime(emu.url)
    with pytest.raises(client.exceptions.ValidationException, match="call it with Converse"):
        client.invoke_model(modelId=NOVA, body=b'{"messages":[]}')
    with pytest.raises(client.exceptions.ValidationException, match=r"key \[anthropic_version\]"):
        client.invoke_model(modelId=CLAUDE, body=b'{"messages":[]}')
