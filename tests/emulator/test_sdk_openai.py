"""The official `openai` client: Chat Completions, Responses, stored ones, counting, models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import openai
import pydantic
import pytest

from anaphora.emulator.server import Emulator

MODEL = "gpt-5.6"
OLDER = "gpt-4o"
LONG = "A beginning that stays the same. " * 400
MESSAGES: Any = [{"role": "system", "content": LONG}, {"role": "user", "content": "Hello"}]
SCHEMA: Any = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "when": {"type": "string", "format": "date"},
        "days": {"type": ["integer", "null"], "minimum": 1},
        "kinds": {"type": "array", "items": {"enum": ["rain", "sun"]}, "minItems": 2},
    },
    "required": ["city", "when", "days", "kinds"],
    "additionalProperties": False,
}
CHAT_TOOL: Any = {
    "type": "function",
    "function": {"name": "forecast", "parameters": SCHEMA, "strict": True},
}
TOOL: Any = {"type": "function", "name": "forecast", "parameters": SCHEMA, "strict": True}


class City(pydantic.BaseModel):
    name: str
    people: int


@pytest.fixture
def client(emu: Emulator) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{emu.url}/v1", api_key="one", max_retries=0) as client:
        yield client


# ── Chat Completions ─────────────────────────────────────────────────────────────────────────────


def test_chat_reply(emu: Emulator, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.id.startswith("chatcmpl-")
    assert answer.created > 1_700_000_000
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content


def test_chat_stream(client: openai.OpenAI) -> None:
    single = client.chat.completions.create(model=MODEL, messages=MESSAGES)
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == single.choices[0].message.content
    usage = chunks[-1].usage
    assert usage is not None
    assert single.usage is not None
    assert usage.completion_tokens == single.usage.completion_tokens
    assert len({chunk.created for chunk in chunks}) == 1


def test_stream_usage_is_sent_on_request(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    assert all(chunk.usage is None for chunk in stream)


def test_newer_models_report_writes_and_reads_to_the_token(client: openai.OpenAI) -> None:
    def usage() -> Any:
        return client.chat.completions.create(model=MODEL, messages=MESSAGES).usage

    first, second = usage(), usage()
    wrote = first.prompt_tokens_details.cache_write_tokens
    assert wrote > 1024
    assert second.prompt_tokens_details.cached_tokens == wrote
    assert second.prompt_tokens_details.cache_write_tokens == 0


def test_older_models_read_in_granules_and_report_no_writes(client: openai.OpenAI) -> None:
    def usage() -> Any:
        return client.chat.completions.create(model=OLDER, messages=MESSAGES).usage

    assert usage().prompt_tokens_details.cached_tokens == 0
    again = usage()
    assert again.prompt_tokens_details.cached_tokens % 128 == 0
    assert 1024 <= again.prompt_tokens_details.cached_tokens <= again.prompt_tokens


def test_prediction_that_is_not_used_is_billed(emu: Emulator, client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(model=OLDER, messages=MESSAGES).usage
    guess: Any = {"type": "content", "content": "Something else. " * 20}
    usage = client.chat.completions.create(model=OLDER, messages=MESSAGES, prediction=guess).usage
    assert plain is not None
    assert usage is not None
    details = usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens, details.audio_tokens) == (0, 0)
    rejected = details.rejected_prediction_tokens
    assert rejected is not None
    assert rejected > 20
    assert usage.completion_tokens == plain.completion_tokens + rejected
    assert [call["output"] for call in emu.requests()] == [
        usage.completion_tokens,
        plain.completion_tokens,
    ]


def test_chat_tool_call_has_valid_arguments(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=[CHAT_TOOL])
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    calls: Any = choice.message.tool_calls
    (call,) = calls
    assert call.type == "function"
    assert jsonschema_rs.is_valid(SCHEMA, json.loads(call.function.arguments))
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "Sunny"}
    history = [*MESSAGES, choice.message, result]
    then = client.chat.completions.create(model=MODEL, messages=history, tools=[CHAT_TOOL])
    assert then.choices[0].finish_reason == "stop"


def test_chat_streams_a_tool_call(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, tools=[CHAT_TOOL]
    ) as stream:
        answer = stream.get_final_completion()
    calls: Any = answer.choices[0].message.tool_calls
    (call,) = calls
    assert jsonschema_rs.is_valid(SCHEMA, json.loads(call.function.arguments))


def test_chat_structured_output(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=City)
    assert isinstance(answer.choices[0].message.parsed, City)


def test_chat_json_object(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Say it as JSON"}]
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, response_format={"type": "json_object"}
    )
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


def test_chat_json_object_with_a_schema(client: openai.OpenAI) -> None:
    """As some hosts take it."""
    form: Any = {"type": "json_object", "schema": SCHEMA}
    messages: Any = [{"role": "user", "content": "Say it as JSON"}]
    with_schema = client.with_options(base_url=str(client.base_url).replace("/v1", "/together/v1"))
    answer = with_schema.chat.completions.create(
        model=MODEL, messages=messages, response_format=form
    )
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


def test_tools_are_called_in_json_mode(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "The forecast, as JSON"}]
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, tools=[CHAT_TOOL], response_format={"type": "json_object"}
    )
    assert answer.choices[0].finish_reason == "tool_calls"


def test_forced_tool_is_called(client: openai.OpenAI) -> None:
    other: Any = {"type": "function", "function": {"name": "other", "parameters": {}}}
    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        tools=[other, CHAT_TOOL],
        tool_choice={"type": "function", "function": {"name": "forecast"}},
    )
    calls: Any = answer.choices[0].message.tool_calls
    (call,) = calls
    assert call.type == "function"
    assert call.function.name == "forecast"


@pytest.mark.parametrize("stream", [False, True])
def test_several_replies(client: openai.OpenAI, stream: bool) -> None:
    ask: Any = {"model": OLDER, "messages": MESSAGES, "n": 3}
    one = client.chat.completions.create(model=OLDER, messages=MESSAGES)
    if stream:
        by_index = dict.fromkeys(range(3), "")
        for chunk in client.chat.completions.create(**ask, stream=True):
            for choice in chunk.choices:
                by_index[choice.index] += choice.delta.content or ""
        texts: list[Any] = list(by_index.values())
    else:
        answer = client.chat.completions.create(**ask)
        texts = [choice.message.content for choice in answer.choices]
        assert one.usage is not None
        assert answer.usage.prompt_tokens == one.usage.prompt_tokens
        assert answer.usage.completion_tokens > one.usage.completion_tokens
    assert texts[0] == one.choices[0].message.content
    assert len(set(texts)) == 3


def test_image_in_the_request(client: openai.OpenAI) -> None:
    image: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    messages: Any = [{"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}]
    assert client.chat.completions.create(model=OLDER, messages=messages).choices[0].message.content


# ── Responses ────────────────────────────────────────────────────────────────────────────────────


def test_response(client: openai.OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="Hello", metadata={"a": "b"})
    assert answer.status == "completed"
    assert answer.output_text
    assert answer.metadata == {"a": "b"}
    assert answer.created_at > 1_700_000_000


def test_response_stream(client: openai.OpenAI) -> None:
    single = client.responses.create(model=MODEL, input="Hello")
    with client.responses.stream(model=MODEL, input="Hello") as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert streamed.output_text == single.output_text
    assert streamed.usage is not None
    assert single.usage is not None
    assert streamed.usage.output_tokens == single.usage.output_tokens


def test_response_continues_a_stored_one(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input=LONG)
    second = client.responses.create(model=MODEL, input="More", previous_response_id=first.id)
    assert first.usage is not None
    assert second.usage is not None
    wrote = first.usage.input_tokens_details.cache_write_tokens
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens == wrote > 0
    items = list(client.responses.input_items.list(second.id))
    assert len(items) == 2 + len(first.output)


def test_input_items_are_listed_on_one_page(client: openai.OpenAI) -> None:
    """The latest first."""
    asked: Any = [{"role": "user", "content": f"Question {number}"} for number in range(25)]
    id = client.responses.create(model=MODEL, input=asked).id
    texts = [f"Question {number}" for number in range(25)]

    def of(items: Any) -> list[str]:
        return [item.content[0].text for item in items]

    first: Any = client.responses.input_items.list(id)
    assert (of(first.data), first.has_more) == (texts[::-1], False)
    assert (first.first_id, first.last_id) == (first.data[0].id, first.data[-1].id)
    assert of(client.responses.input_items.list(id, limit=7, order="asc")) == texts
    with pytest.raises(openai.NotFoundError, match="lists of the emulator have one page"):
        client.responses.input_items.list(id, after=first.data[3].id)


def test_what_the_emulator_lacks_is_refused(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "input": "Hello"}
    with pytest.raises(openai.BadRequestError, match="no background responses") as raised:
        client.responses.create(**asked, background=True)
    assert raised.value.param == "background"
    with pytest.raises(openai.NotFoundError, match=r"Not found: POST .*/responses/compact"):
        client.responses.compact(**asked)
    made = client.responses.create(**asked)
    with pytest.raises(openai.NotFoundError, match=r"Not found: POST .*/cancel"):
        client.responses.cancel(made.id)
    with pytest.raises(openai.BadRequestError, match="streams a response once"):
        client.responses.retrieve(made.id, stream=True)


def test_item_references_stand_for_items_of_stored_responses(client: openai.OpenAI) -> None:
    asked: Any = {"role": "user", "content": LONG}
    first = client.responses.create(model=MODEL, input=[asked])
    names: list[Any] = [{"type": "item_reference", "id": item.id} for item in first.output]
    more: Any = {"role": "user", "content": "More"}
    second = client.responses.create(model=MODEL, input=[asked, *names, more])
    continued = client.responses.create(model=MODEL, input=[more], previous_response_id=first.id)
    assert second.usage is not None
    assert continued.usage is not None
    assert second.usage.input_tokens == continued.usage.input_tokens
    unstored = client.responses.create(model=MODEL, input="Hello", store=False)
    unknown: Any = {"type": "item_reference", "id": unstored.output[-1].id}
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.responses.create(model=MODEL, input=[unknown, more])


def test_stored_response_is_fetched_and_deleted(emu: Emulator, client: openai.OpenAI) -> None:
    made = client.responses.create(model=MODEL, input="Hello")
    assert client.responses.retrieve(made.id).output_text == made.output_text
    with (
        openai.OpenAI(base_url=f"{emu.url}/v1", api_key="two", max_retries=0) as other,
        pytest.raises(openai.NotFoundError),
    ):
        other.responses.retrieve(made.id)
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input="More", previous_response_id=made.id)
    assert caught.value.code == "previous_response_not_found"


def test_unstored_response_is_not_found(client: openai.OpenAI) -> None:
    made = client.responses.create(model=MODEL, input="Hello", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_response_calls_a_tool_and_continues(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="Weather?", tools=[TOOL])
    call = first.output[-1]
    assert call.type == "function_call"
    assert jsonschema_rs.is_valid(SCHEMA, json.loads(call.arguments))
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"}
    answer = client.responses.create(
        model=MODEL, input=[result], previous_response_id=first.id, tools=[TOOL]
    )
    assert answer.output_text


def test_response_structured_output(client: openai.OpenAI) -> None:
    answer = client.responses.parse(model=MODEL, input="A city", text_format=City)
    assert isinstance(answer.output_parsed, City)


def test_response_reasoning(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model=MODEL, input="Think", reasoning={"effort": "high", "summary": "auto"}
    )
    thought = answer.output[0]
    assert thought.type == "reasoning"
    assert thought.summary[0].text
    assert answer.usage is not None
    assert answer.usage.output_tokens_details.reasoning_tokens > 0


def test_response_max_output_tokens(client: openai.OpenAI) -> None:
    answer = client.responses.create(model=OLDER, input="Hello", max_output_tokens=16)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


def test_counted_tokens_equal_billed_tokens(client: openai.OpenAI) -> None:
    counted = client.responses.input_tokens.count(model=MODEL, input=LONG, tools=[TOOL])
    answer = client.responses.create(model=MODEL, input=LONG, tools=[TOOL])
    assert answer.usage is not None
    assert counted.input_tokens == answer.usage.input_tokens


@pytest.mark.parametrize(
    "change, reason",
    [
        ({}, None),
        ({"instructions": "Other. " + LONG}, "input_changed"),
        ({"tools": [TOOL]}, "tools_changed"),
        ({"prompt_cache_key": "other"}, "prompt_cache_key_changed"),
    ],
)
def test_diagnosis_of_a_miss(
    client: openai.OpenAI, change: dict[str, Any], reason: str | None
) -> None:
    ask: Any = {"model": MODEL, "instructions": LONG, "input": "Hello"}
    first = client.responses.create(**ask)
    compared: Any = {"prompt_cache_options": {"comparison_response_id": first.id}}
    again = client.responses.create(**{**ask, **change}, **compared)
    diagnostics = again.prompt_cache_diagnostics
    assert diagnostics is not None
    if reason is None:
        assert diagnostics.type == "cache_hit"
    else:
        assert diagnostics.type == "cache_miss"
        assert diagnostics.reason == reason


# ── Both ─────────────────────────────────────────────────────────────────────────────────────────


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


def test_rate_limits_and_ids_are_in_the_headers(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES)
    assert raw.headers["x-request-id"].startswith("req_")
    limit = int(raw.headers["x-ratelimit-limit-tokens"])
    assert int(raw.headers["x-ratelimit-remaining-tokens"]) < limit


@pytest.mark.parametrize(
    "path, error", [("/v1", openai.AuthenticationError), ("/v1/nowhere", openai.NotFoundError)]
)
def test_errors_map_to_sdk_classes(emu: Emulator, path: str, error: type[Exception]) -> None:
    headers = {"Authorization": openai.omit} if path == "/v1" else None
    with (
        openai.OpenAI(base_url=emu.url + path, api_key="k", max_retries=0) as client,
        pytest.raises(error),
    ):
        client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_headers=headers)


def test_unreadable_request_names_its_field(client: openai.OpenAI) -> None:
    wrong: Any = [{"role": "user", "content": [{"type": "text"}]}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=wrong)
    assert "messages" in str(caught.value)


@pytest.mark.long
def test_concurrent_requests(emu: Emulator) -> None:
    async def all_of_them() -> list[str]:
        url = f"{emu.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:

            async def one(number: int) -> str:
                async with client.responses.stream(model=MODEL, input=f"Q{number}") as stream:
                    return (await stream.get_final_response()).output_text

            return await asyncio.gather(*(one(number) for number in range(16)))

    assert len(set(asyncio.run(all_of_them()))) == 16


def test_embeddings_depend_on_the_text(emu: Emulator, client: openai.OpenAI) -> None:
    made = client.embeddings.create(model="text-embedding-3-small", input=["one", "two", "one"])
    first, second, third = (one.embedding for one in made.data)
    assert first == third != second
    assert len(first) == 1536
    assert abs(sum(value * value for value in first) - 1) < 1e-6
    assert made.usage.prompt_tokens == made.usage.total_tokens > 0
    plain = client.embeddings.create(
        model="text-embedding-3-small", input="one", encoding_format="float"
    )
    assert plain.data[0].embedding == pytest.approx(first, abs=1e-6)
    large = client.embeddings.create(
        model="text-embedding-3-large", input=[[1, 2, 3]], dimensions=64
    )
    assert len(large.data[0].embedding) == 64
    assert large.usage.prompt_tokens == 3
    assert emu.requests()[0]["operation"] == "embed"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"input": ""}, "input"),
        ({"input": [""]}, "input"),
        ({"input": ["x"] * 2049}, "too long"),
        ({"dimensions": 1537}, "dimensions must be between"),
        ({"model": "text-embedding-ada-002", "dimensions": 8}, "does not support"),
        ({"encoding_format": "int8"}, "Supported values"),
    ],
)
def test_embeddings_that_are_rejected(
    fields: dict[str, Any], reason: str, client: openai.OpenAI
) -> None:
    asked: Any = {"model": "text-embedding-3-small", "input": "one", **fields}
    with pytest.raises(openai.BadRequestError, match=reason):
        client.embeddings.create(**asked)


def test_embeddings_of_a_chat_model_are_forbidden(client: openai.OpenAI) -> None:
    with pytest.raises(openai.PermissionDeniedError, match="not allowed"):
        client.embeddings.create(model=MODEL, input="one")
