"""OpenAI-compatible servers, and those of other wires, leave out what an answer's text does not
need, or send null for it. The answer is read all the same."""

from __future__ import annotations

import asyncio
import json
from itertools import product
from typing import Any

from support.raw_server import answering, raw_server, reply
from support.stream_events import stream_of, stream_type
from support.tables import each_row

from anaphora import AsyncClient, Message, Response, wire
from anaphora.values import Reply, Usage

REPLY = Reply(
    id="r",
    model="m",
    message=Message.assistant("Hi."),
    stop_reason="end",
    usage=Usage(uncached=3, output=1),
)
#: Names at any depth, by what they say; the last row is all of them.
FIELDS = {
    "id": "id item_id responseId",
    "model": "model modelVersion",
    "date": "created created_at",
    "object": "object",
    "usage": "usage usageMetadata prompt_eval_count eval_count metrics",
    "role": "role",
    "stop": "finish_reason finishReason stop_reason stopReason stop_sequence status done_reason error",
    "place": "index output_index content_index contentBlockIndex sequence_number",
}
FIELDS["all"] = " ".join(FIELDS.values())
#: In a stream: what tells blocks apart, and says that it is complete.
NEEDED = {("anthropic", "index"), ("gemini", "finishReason")}


def stripped(value: Any, names: set[str], null: bool) -> Any:
    if isinstance(value, list):
        return [stripped(each, names, null) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {name: stripped(each, names, null) for name, each in value.items() if name not in names}
    return kept | ({name: None for name in value if name in names} if null else {})


def body_of(name: str, streamed: bool, names: set[str], null: bool) -> bytes:
    def change(data: bytes) -> bytes:
        return json.dumps(stripped(json.loads(data), names, null)).encode()

    if streamed:
        return b"".join(stream_of(name, REPLY, change))
    return change(wire.get(name).write_reply(REPLY))


async def response_to(name: str, body: bytes, *, streamed: bool) -> tuple[str, Response]:
    """The text that was streamed, and the response."""
    kind = stream_type(name) if streamed else "application/json"
    answer = reply(body, "200 OK", f"Content-Type: {kind}")
    provider = {"wire": name, "key": {"env": "KEY"}, "retry": {"max_attempts": 1}}
    async with raw_server(answering(answer)) as server:
        settings = {"providers": {"local": {**provider, "base_url": server.url}}}
        async with AsyncClient.from_config(settings, environ={"KEY": "k"}) as client:
            turn = client.session("local", model="m").send("Hello.")
            text = "".join([piece async for piece in turn.text]) if streamed else ""
            return text, await turn


@each_row("name, streamed, field, null", product(wire.WIRES, [False, True], FIELDS, [False, True]))
def test_reply_without_a_field(name: str, streamed: bool, field: str, null: bool) -> None:
    names = {one for one in FIELDS[field].split() if not streamed or (name, one) not in NEEDED}
    body = body_of(name, streamed, names, null)
    text, response = asyncio.run(response_to(name, body, streamed=streamed))
    assert response.text == "Hi."
    assert text == ("Hi." if streamed else "")


def test_reply_of_anthropic_without_a_type() -> None:
    for names in ({"type"}, {"type", "id", "model", "role"}):
        body = {**json.loads(wire.get("anthropic").write_reply(REPLY)), "content": []}
        kept = {name: value for name, value in body.items() if name not in names}
        kept["content"] = [{"type": "text", "text": "Hi."}]
        data = json.dumps(kept).encode()
        _, response = asyncio.run(response_to("anthropic", data, streamed=False))
        assert response.text == "Hi."


@each_row("value", [{}, {"output": None}, {"output": []}])
def test_response_that_does_not_repeat_its_output_at_the_end(value: dict[str, Any]) -> None:
    head, _, last = body_of("openai_responses", True, set(), False).rpartition(b"data: ")
    event = json.loads(last)
    del event["response"]["output"]
    event["response"] |= value
    body = head + b"data: " + json.dumps(event).encode() + b"\n\n"
    text, response = asyncio.run(response_to("openai_responses", body, streamed=True))
    assert (text, response.text, response.stop_reason) == ("Hi.", "Hi.", "end")


def test_response_that_is_named_at_its_beginning_only() -> None:
    head, _, last = body_of("openai_responses", True, set(), False).rpartition(b"data: ")
    event = stripped(json.loads(last), {"id", "model"}, False)
    body = head + b"data: " + json.dumps(event).encode() + b"\n\n"
    _, response = asyncio.run(response_to("openai_responses", body, streamed=True))
    assert (response.reply.id, response.reply.message.id, response.model) == ("r", "r", "m")


@each_row("names", [set(), {"id"}])
def test_stored_response_without_an_id_is_not_continued(names: set[str]) -> None:
    """The next turn sends the whole conversation."""
    body = body_of("openai_responses", False, names, False)

    async def main() -> list[bytes]:
        async with raw_server(answering(reply(body))) as server:
            provider = {"wire": "openai_responses", "base_url": server.url, "key": {"env": "KEY"}}
            settings = {"providers": {"local": provider}}
            async with AsyncClient.from_config(settings, environ={"KEY": "k"}) as client:
                chat = client.session("local", model="gpt-5.2", store=True)
                await chat.send("Hello.")
                await chat.send("And?")
            return server.requests

    _, second = asyncio.run(main())
    assert (b"previous_response_id" in second) is not bool(names)
    assert (b"Hello." in second) is bool(names)
