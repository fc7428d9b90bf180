"""Mistral's own SDK, on its dialect of Chat Completions. Its request types are checked feature by
feature, in `tests/wire/test_mistral_sdk.py`."""

from __future__ import annotations

from typing import Any

from mistralai import client as sdk
from support.sdk.case import SdkCase

from anaphora import errors
from anaphora.values import Message, Reply, Text, Thinking, ToolCall, Usage

REPLY = Reply(
    id="cmpl-7",
    model="mistral-large-latest",
    message=Message(
        id="cmpl-7",
        role="assistant",
        parts=(
            Text("Zürich is 🌧️."),
            ToolCall("call_0001", "look", '{"city": "Zürich", "days": [1, 2]}'),
            ToolCall("call_0002", "look", "{}"),
        ),
    ),
    stop_reason="tool_calls",
    usage=Usage(uncached=3, read=400, output=50),
)
#: As Mistral's reasoning models answer: the thoughts are chunks of the content.
IN_CONTENT = {"openai_chat": '{"field":"content"}'}
THOUGHT = Reply(
    id="cmpl-8",
    model="magistral-medium-latest",
    message=Message(
        id="cmpl-8",
        role="assistant",
        parts=(Thinking("hm", provider="openai_chat", extras=IN_CONTENT), Text("42")),
    ),
    stop_reason="end",
    usage=Usage(uncached=3, output=5),
)


ASK: dict[str, Any] = {
    "model": "mistral-large-latest",
    "messages": [{"role": "user", "content": "hi"}],
}


def client(address: str) -> Any:
    return sdk.Mistral(api_key="not-a-key", server_url=address)


def ask(address: str) -> Any:
    with client(address) as api:
        return api.chat.complete(**ASK, retries=None)


def ask_for_stream(address: str) -> list[Any]:
    with client(address) as api, api.chat.stream(**ASK) as events:
        return [event.data for event in events]


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(chunk.text for chunk in content or () if chunk.type == "text")


def thoughts_of(content: Any) -> str:
    if isinstance(content, str):
        return ""
    chunks = [chunk for chunk in content or () if chunk.type == "thinking"]
    return "".join(inner.text for chunk in chunks for inner in chunk.thinking)


def check_reply(read: Any, reply: Reply) -> None:
    assert (read.id, read.model) == (reply.id, reply.model)
    choice = read.choices[0]
    assert choice.finish_reason == {"tool_calls": "tool_calls", "end": "stop"}[reply.stop_reason]
    assert text_of(choice.message.content) == reply.text
    calls = [(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()]
    assert calls == [(call.id, call.name, call.arguments) for call in reply.tool_calls]
    check_usage(read.usage, reply)
    if reply is THOUGHT:
        assert thoughts_of(choice.message.content) == "hm"


def check_usage(read: Any, reply: Reply) -> None:
    assert read.prompt_tokens == reply.usage.input
    assert read.completion_tokens == reply.usage.output
    if reply.usage.read is not None:
        details = read.additional_properties["prompt_tokens_details"]
        assert details["cached_tokens"] == reply.usage.read


def check_stream(chunks: list[Any], reply: Reply) -> None:
    assert {chunk.id for chunk in chunks} == {reply.id}
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(text_of(delta.content) for delta in deltas) == reply.text
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        for call in delta.tool_calls or ():
            known = calls.setdefault(call.index, ["", "", ""])
            if call.id != "null":  # what the SDK says where nothing is
                known[0] = call.id
            known[1] += call.function.name
            known[2] += call.function.arguments
    expected = [[call.id, call.name, call.arguments] for call in reply.tool_calls]
    assert list(calls.values()) == expected
    counted = [chunk.usage for chunk in chunks if chunk.usage is not None]
    check_usage(counted[-1], reply)
    if reply is THOUGHT:
        assert "".join(thoughts_of(delta.content) for delta in deltas) == "hm"


def check_error(caught: Any, error: errors.Upstream, status: int) -> None:
    assert isinstance(caught, sdk.errors.MistralError)
    assert caught.status_code == status
    # The SDK got what we would have got.
    again = CASE.codec.read_error(caught.status_code, dict(caught.headers), caught.body.encode())
    assert type(again) is type(error)
    assert (str(again), again.param) == (str(error), error.param)
    assert again.retry_after == error.retry_after


CASE = SdkCase(
    name="mistral",
    provider="mistral",
    calls={},
    problems=lambda body: [],
    spoils=[],
    replies={"tools": REPLY, "thoughts": THOUGHT},
    ask=ask,
    ask_for_stream=ask_for_stream,
    check_reply=check_reply,
    check_stream=check_stream,
    stream_error=None,
    errors=[
        errors.RequestRejected("no such thing", param="messages"),
        errors.Unauthenticated("no such key"),
        errors.Forbidden("not yours"),
        errors.NotFound("no such model"),
        errors.RateLimited("slow down", retry_after=3),
        errors.QuotaExhausted("spent"),
        errors.Overloaded("busy"),
        errors.RequestRejected("one field too many", status=422),
    ],
    check_error=check_error,
)
