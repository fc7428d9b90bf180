"""The official `anthropic` client, talking to the emulator."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import anthropic
import jsonschema_rs
import pydantic
import pytest

from anaphora import emulator
from anaphora.emulator.server import Emulator

MODEL = "claude-opus-5-5"
LONG = "A beginning that stays the same. " * 400
ASK: Any = {"model": MODEL, "max_tokens": 300, "messages": [{"role": "user", "content": "Hello"}]}
MARKED: Any = {"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "minLength": 3},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 7},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def client(emu: Emulator) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=emu.url, api_key="one", max_retries=0) as client:
        yield client


def test_whole_reply(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ASK)
    assert message.id.startswith("msg_")
    assert (message.model, message.stop_reason) == (MODEL, "end_turn")
    assert message.content[0].type == "text"
    assert message.usage.output_tokens > 0


def test_same_request_gets_the_same_reply(client: anthropic.Anthropic) -> None:
    first, second = client.messages.create(**ASK), client.messages.create(**ASK)
    assert first.content == second.content
    assert first.id != second.id


def test_stream_has_the_text_and_usage_of_the_whole_reply(client: anthropic.Anthropic) -> None:
    ask = {**ASK, "system": [MARKED]}
    single = client.messages.create(**ask)
    with client.messages.stream(**ask) as stream:
        pieces = list(stream.text_stream)
        streamed = stream.get_final_message()
    assert len(pieces) > 3
    assert "".join(pieces) == single.content[0].text
    assert streamed.stop_reason == single.stop_reason
    assert streamed.usage.output_tokens == single.usage.output_tokens
    assert streamed.usage.cache_read_input_tokens == single.usage.cache_creation_input_tokens


def test_marked_prefix_is_written_read_and_expires(
    emu: Emulator, client: anthropic.Anthropic
) -> None:
    ask = {**ASK, "system": [MARKED]}
    first = client.messages.create(**ask).usage
    assert first.cache_creation_input_tokens
    assert not first.cache_read_input_tokens
    assert first.cache_creation is not None
    assert first.cache_creation.ephemeral_5m_input_tokens == first.cache_creation_input_tokens
    second = client.messages.create(**ask).usage
    assert second.cache_read_input_tokens == first.cache_creation_input_tokens
    assert second.input_tokens == first.input_tokens
    emu.advance(301)
    third = client.messages.create(**ask).usage
    assert third.cache_creation_input_tokens == first.cache_creation_input_tokens


def test_read_renews_the_lifetime(emu: Emulator, client: anthropic.Anthropic) -> None:
    ask = {**ASK, "system": [MARKED]}
    client.messages.create(**ask)
    for _ in range(3):
        emu.advance(200)
        assert client.messages.create(**ask).usage.cache_read_input_tokens


def test_writes_are_reported_by_ttl(emu: Emulator, client: anthropic.Anthropic) -> None:
    hour: Any = {**MARKED, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    usage = client.messages.create(**{**ASK, "system": [hour]}).usage
    assert usage.cache_creation is not None
    assert usage.cache_creation.ephemeral_1h_input_tokens == usage.cache_creation_input_tokens
    emu.advance(3000)
    assert client.messages.create(**{**ASK, "system": [hour]}).usage.cache_read_input_tokens


def test_each_key_has_its_own_workspace(emu: Emulator, client: anthropic.Anthropic) -> None:
    ask = {**ASK, "system": [MARKED]}
    client.messages.create(**ask)
    with anthropic.Anthropic(base_url=emu.url, api_key="two", max_retries=0) as other:
        assert not other.messages.create(**ask).usage.cache_read_input_tokens


def test_key_order_in_a_schema_matters(client: anthropic.Anthropic) -> None:
    def ask(schema: dict[str, Any]) -> Any:
        tool = {**WEATHER, "input_schema": schema, "cache_control": {"type": "ephemeral"}}
        return client.messages.create(
            **{**ASK, "tools": [{**WEATHER, "name": "x" * 60, "description": LONG}, tool]}
        ).usage

    schema = WEATHER["input_schema"]
    ask(schema)
    assert ask(schema).cache_read_input_tokens
    assert not ask(dict(reversed(schema.items()))).cache_read_input_tokens


def test_counted_tokens_equal_billed_tokens(client: anthropic.Anthropic) -> None:
    ask = {**ASK, "system": [MARKED], "tools": [WEATHER]}
    counted = client.messages.count_tokens(
        model=MODEL, messages=ask["messages"], system=ask["system"], tools=ask["tools"]
    )
    usage = client.messages.create(**ask).usage
    billed = usage.input_tokens + (usage.cache_creation_input_tokens or 0)
    assert counted.input_tokens == billed


def test_tool_call_has_valid_arguments(client: anthropic.Anthropic) -> None:
    ask = {**ASK, "tools": [WEATHER]}
    message = client.messages.create(**ask)
    assert message.stop_reason == "tool_use"
    call = message.content[-1]
    assert call.type == "tool_use"
    assert call.name == "get_weather"
    assert jsonschema_rs.is_valid(WEATHER["input_schema"], call.input)
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny"}
    history = [
        *ASK["messages"],
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(**{**ask, "messages": history})
    assert answer.stop_reason == "end_turn"


def test_streamed_tool_call(client: anthropic.Anthropic) -> None:
    ask = {**ASK, "tools": [WEATHER]}
    single = client.messages.create(**ask)
    with client.messages.stream(**ask) as stream:
        streamed = stream.get_final_message()
    assert [block.to_dict() for block in streamed.content] == [
        block.to_dict() for block in single.content
    ]


class City(pydantic.BaseModel):
    name: str
    people: int


def test_structured_output(client: anthropic.Anthropic) -> None:
    parsed = client.messages.parse(**ASK, output_format=City)
    assert isinstance(parsed.parsed_output, City)


def test_thinking_is_signed(client: anthropic.Anthropic) -> None:
    ask = {**ASK, "max_tokens": 2000, "thinking": {"type": "adaptive"}}
    message = client.messages.create(**ask)
    thought = message.content[0]
    assert thought.type == "thinking"
    assert thought.signature
    with client.messages.stream(**ask) as stream:
        streamed = stream.get_final_message().content[0]
    assert streamed.type == "thinking"
    assert streamed.signature == thought.signature


def test_image_in_the_request(client: anthropic.Anthropic) -> None:
    pixel = base64.b64encode(PNG).decode()
    image: Any = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": pixel},
    }
    ask = {**ASK, "messages": [{"role": "user", "content": [image, {"type": "text", "text": "?"}]}]}
    assert client.messages.create(**ask).usage.input_tokens > 0


@pytest.mark.parametrize(
    "source",
    [
        {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQKJSVFT0YK"},
        {"type": "text", "media_type": "text/plain", "data": "A few lines."},
    ],
)
def test_document_in_the_request(client: anthropic.Anthropic, source: Any) -> None:
    document: Any = {"type": "document", "source": source, "title": "notes"}
    ask = {**ASK, "messages": [{"role": "user", "content": [document, MARKED]}]}
    assert client.messages.create(**ask).usage.cache_creation_input_tokens


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def test_max_tokens(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**{**ASK, "max_tokens": 5})
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens <= 5


def test_stop_sequence(client: anthropic.Anthropic) -> None:
    text = client.messages.create(**ASK).content[0].text
    word = text.split()[3]
    message = client.messages.create(**ASK, stop_sequences=[word])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", word)
    assert word not in message.content[0].text


def test_rate_limits_and_ids_are_in_the_headers(client: anthropic.Anthropic) -> None:
    first = client.messages.with_raw_response.create(**ASK)
    assert first.headers["request-id"].startswith("req_")
    left = "anthropic-ratelimit-requests-remaining"
    second = client.messages.with_raw_response.create(**ASK)
    assert int(second.headers[left]) == int(first.headers[left]) - 1
    assert "anthropic-ratelimit-input-tokens-reset" in second.headers


def test_models_are_listed(client: anthropic.Anthropic) -> None:
    listed = [model.id for model in client.models.list()]
    assert MODEL in listed
    assert len(listed) == len(set(listed)) > 20
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("no-such-model")


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"max_tokens": -1}, anthropic.BadRequestError, "max_tokens"),
        ({"messages": []}, anthropic.BadRequestError, "messages"),
        ({"system": [MARKED] * 5}, anthropic.BadRequestError, "cache_control"),
        ({"extra_body": {"wat": 1}}, anthropic.BadRequestError, "wat"),
    ],
)
def test_errors_map_to_sdk_classes(
    client: anthropic.Anthropic, change: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        client.messages.create(**{**ASK, **change})
    assert message in str(caught.value)


def test_prompt_beyond_the_window_is_rejected(client: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": "word " * 1_200_000}]
    with pytest.raises(anthropic.BadRequestError, match="too long"):
        client.messages.create(**{**ASK, "messages": messages})


def test_only_listed_keys_are_accepted() -> None:
    with emulator.running(emulator.EmulatorOptions(keys=frozenset({"good"}))) as emu:
        for key, good in (("good", True), ("bad", False)):
            with anthropic.Anthropic(base_url=emu.url, api_key=key, max_retries=0) as client:
                if good:
                    assert client.messages.create(**ASK).content
                else:
                    with pytest.raises(anthropic.AuthenticationError):
                        client.messages.create(**ASK)


def test_missing_key_is_rejected(emu: Emulator) -> None:
    with (
        anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError) as caught,
    ):
        client.messages.create(**ASK, extra_headers={"Authorization": anthropic.omit})
    assert caught.value.request_id


def test_diagnosis_of_a_miss(client: anthropic.Anthropic) -> None:
    def ask(system: str, previous: str | None) -> Any:
        block = {**MARKED, "text": system}
        return client.messages.create(
            **{**ASK, "system": [block]}, diagnostics={"previous_message_id": previous}
        )

    first = ask(LONG, None)
    assert first.diagnostics is None
    same = ask(LONG, first.id)
    assert same.diagnostics is None
    changed = ask("Now: " + LONG, first.id)
    assert changed.diagnostics is not None
    reason = changed.diagnostics.cache_miss_reason
    assert reason is not None
    assert reason.type == "system_changed"
    assert reason.cache_missed_input_tokens == first.usage.cache_creation_input_tokens
    unknown = ask(LONG, "msg_unknown").diagnostics
    assert unknown is not None
    assert unknown.cache_miss_reason is not None
    assert unknown.cache_miss_reason.type == "previous_message_not_found"


def test_diagnosis_in_a_stream(client: anthropic.Anthropic) -> None:
    first = client.messages.create(**{**ASK, "system": [MARKED]})
    ask = {**ASK, "system": [{**MARKED, "text": "Other. " + LONG}]}
    with client.messages.stream(**ask, diagnostics={"previous_message_id": first.id}) as stream:
        diagnostics = stream.get_final_message().diagnostics
    assert diagnostics is not None
    assert diagnostics.cache_miss_reason is not None
    assert diagnostics.cache_miss_reason.type == "system_changed"


def test_concurrent_requests(emu: Emulator) -> None:
    async def all_of_them() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=emu.url, api_key="k", max_retries=0) as client:

            async def one(number: int) -> str:
                ask = {**ASK, "messages": [{"role": "user", "content": f"Question {number}"}]}
                async with client.messages.stream(**ask) as stream:
                    return await stream.get_final_text()

            return await asyncio.gather(*(one(number) for number in range(16)))

    assert len(set(asyncio.run(all_of_them()))) == 16


@pytest.mark.parametrize("stream", [False, True])
def test_document_with_citations_is_cited(client: anthropic.Anthropic, stream: bool) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "The grass is green. The end."}
    documents: Any = [
        {"type": "document", "source": source, "title": "Plain"},
        {"type": "document", "source": source, "title": "Cited", "citations": {"enabled": True}},
    ]
    content: Any = [*documents, {"type": "text", "text": "What is green?"}]
    ask: Any = {**ASK, "messages": [{"role": "user", "content": content}]}
    if stream:
        with client.messages.stream(**ask) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**ask)
    [block] = message.content
    assert block.type == "text"
    [citation] = block.citations or []
    assert citation.type == "char_location"
    assert (citation.document_index, citation.document_title) == (1, "Cited")
    place = slice(citation.start_char_index, citation.end_char_index)
    assert source["data"][place] == citation.cited_text == "The grass is green"
