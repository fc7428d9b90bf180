"""The official SDK reads what we write: single answers, streams and errors, over real HTTP."""

from __future__ import annotations

from typing import Any

import anthropic as sdk
import pytest
from support.byte_server import byte_server

from anaphora import errors
from anaphora.values import (
    Message,
    Opaque,
    Reply,
    ReplyFail,
    Text,
    Thinking,
    ToolCall,
    Usage,
)
from anaphora.wire import anthropic
from anaphora.wire.replies import reply_events

CITED = '{"citations":[{"type":"char_location","cited_text":"x","document_index":0,' + (
    '"document_title":null,"file_id":null,"start_char_index":0,"end_char_index":1}]}'
)
REPLY = Reply(
    id="msg_7",
    model="claude-sonnet-5-5",
    message=Message(
        id="msg_7",
        role="assistant",
        parts=(
            Thinking("Let me see.", "sig==", provider="anthropic"),
            Thinking(data="redacted", provider="anthropic"),
            Text("Zürich is 🌧️."),
            Text("So it says.", {"anthropic": CITED}),
            Opaque(
                "anthropic",
                "server_tool_use",
                '{"type":"server_tool_use","id":"srv_1","name":"web_search","input":{"query":"q"}}',
            ),
            ToolCall("toolu_1", "look_up", '{"city": "Zürich", "days": [1, 2]}'),
        ),
    ),
    stop_reason="tool_calls",
    usage=Usage(uncached=3, read=400, written={"1h": 20, "5m": 5}, output=50, reasoning=11),
)


def client(address: str) -> sdk.Anthropic:
    return sdk.Anthropic(base_url=address, api_key="not-a-key", max_retries=0)


def ask(stream: bool = False) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "model": "claude-sonnet-5-5",
        "max_tokens": 10,
        "messages": [{"role": "user", "content": "hi"}],
    }
    return {**asked, "stream": True} if stream else asked


def check(message: Any) -> None:
    thinking, redacted, text, cited, search, call = message.content
    assert (thinking.thinking, thinking.signature) == ("Let me see.", "sig==")
    assert redacted.data == "redacted"
    assert text.text == "Zürich is 🌧️."
    assert cited.citations[0].cited_text == "x"
    assert (search.name, search.input) == ("web_search", {"query": "q"})
    assert (call.id, call.name, call.input) == (
        "toolu_1",
        "look_up",
        {"city": "Zürich", "days": [1, 2]},
    )
    assert (message.id, message.model, message.stop_reason) == (
        "msg_7",
        "claude-sonnet-5-5",
        "tool_use",
    )
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (3, 400)
    assert (usage.cache_creation_input_tokens, usage.output_tokens) == (25, 50)
    assert usage.cache_creation.ephemeral_1h_input_tokens == 20


def test_the_sdk_reads_a_written_reply() -> None:
    with (
        byte_server(anthropic.write_reply(REPLY), "application/json") as address,
        client(address) as official,
    ):
        check(official.messages.create(**ask()))


def test_the_sdk_accumulates_a_written_stream() -> None:
    writer = anthropic.writer()
    body = b"".join(writer.write(event) for event in reply_events(REPLY))
    with (
        byte_server(body, "text/event-stream") as address,
        client(address) as official,
        official.messages.stream(**ask()) as stream,
    ):
        check(stream.get_final_message())


def test_sdk_raises_written_stream_error() -> None:
    writer = anthropic.writer()
    events = [*reply_events(REPLY)[:4], ReplyFail("Overloaded", "busy", code="overloaded_error")]
    body = b"".join(writer.write(event) for event in events)
    with (
        byte_server(body, "text/event-stream") as address,
        client(address) as official,
        pytest.raises(sdk.APIStatusError, match="busy"),
    ):
        list(official.messages.create(**ask(stream=True)))


@pytest.mark.parametrize(
    "error, raised",
    [
        (errors.RequestRejected("max_tokens: too big"), sdk.BadRequestError),
        (errors.Unauthenticated("no key"), sdk.AuthenticationError),
        (errors.Forbidden("not yours"), sdk.PermissionDeniedError),
        (errors.NotFound("no such model"), sdk.NotFoundError),
        (errors.TooLarge("too big"), sdk.RequestTooLargeError),
        (errors.RateLimited("slow down", retry_after=3), sdk.RateLimitError),
        (errors.Overloaded("busy"), sdk.InternalServerError),
    ],
)
def test_sdk_raises_written_error(error: errors.Upstream, raised: type[Exception]) -> None:
    status, headers, body = anthropic.write_error(error)
    content_type = headers.pop("content-type")
    with (
        byte_server(body, content_type, status, headers) as address,
        client(address) as official,
        pytest.raises(raised, match=str(error)),
    ):
        official.messages.create(**ask())
    read = anthropic.read_error(status, headers, body)
    assert type(read) is type(error)
    assert str(read) == str(error)
    assert read.retry_after == error.retry_after
