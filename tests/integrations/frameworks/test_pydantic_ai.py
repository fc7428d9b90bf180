"""pydantic-ai's own agents on `AnaphoraModel`, against the emulator."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, ModelRetry, NativeOutput, ToolOutput, VideoUrl
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UserError
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolReturnPart,
)
from pydantic_ai.models.fallback import FallbackModel
from support.emulated_client import KEY, LONG, settings
from support.unread_prefix import CALLS, assert_noticed, never_readable

import anaphora
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest
from anaphora.integrations.framework_client import kept_reply
from anaphora.integrations.pydantic_ai import AnaphoraModel
from anaphora.integrations.pydantic_messages import assistant_message
from anaphora.values import Message, Thinking

WIRES = ("anthropic", "openai_chat", "openai_responses", "gemini")


@pytest.fixture
def client(emu: Emulator) -> Iterator[anaphora.Client]:
    config = {"providers": settings(emu.url, WIRES)}
    with anaphora.Client.from_config(config, environ={"KEY": KEY}) as client:
        yield client


@pytest.fixture(params=WIRES)
def model(client: anaphora.Client, request: pytest.FixtureRequest) -> AnaphoraModel:
    name = {
        "anthropic": "claude-sonnet-4-5",
        "openai_chat": "gpt-5.2",
        "openai_responses": "gpt-5.6",
        "gemini": "gemini-2.5-flash",
    }[request.param]
    return AnaphoraModel(name, provider=request.param, client=client)


class Plan(BaseModel):
    city: str
    days: int


def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def run(agent: Any, *args: Any, **options: Any) -> Any:
    """A run in an event loop of its own."""
    return asyncio.run(agent.run(*args, **options))


def part_names(result: Any) -> list[str]:
    return [type(part).__name__ for message in result.all_messages() for part in message.parts]


def test_a_run_calls_tools_and_answers(model: AnaphoraModel, emu: Emulator) -> None:
    agent = Agent(model, instructions="Be terse.", tools=[weather])
    result = run(agent, "What is the weather in Rome?")
    names = part_names(result)
    assert [n for n in names if n != "ThinkingPart"] == [
        "UserPromptPart",
        "ToolCallPart",
        "ToolReturnPart",
        "TextPart",
    ]
    assert result.output
    assert result.usage.requests == len([e for e in emu.requests() if "read" in e]) == 2


@pytest.mark.parametrize("form", ["tool", "native"])
def test_structured_output(model: AnaphoraModel, form: str) -> None:
    output: Any = ToolOutput(Plan) if form == "tool" else NativeOutput(Plan)
    plan = run(Agent(model, output_type=output), "Three days in Rome").output
    assert isinstance(plan, Plan)


def test_a_model_that_refuses_a_forced_tool_uses_its_native_output(emu: Emulator) -> None:
    environ = {"ANTHROPIC_API_KEY": "any", "ANTHROPIC_BASE_URL": emu.url}
    with anaphora.Client.from_env(environ) as client:
        model = AnaphoraModel("claude-sonnet-5-5", client=client)
        assert isinstance(run(Agent(model, output_type=Plan), "Rome").output, Plan)
        agent = Agent(model, output_type=ToolOutput(Plan), tools=[weather], retries=5)
        assert run(agent, "Rome").output


def test_a_stream_has_the_same_text_and_usage_as_its_response(model: AnaphoraModel) -> None:
    agent = Agent(model, tools=[weather])

    async def main() -> tuple[str, Any]:
        async with agent.run_stream("What is the weather in Rome?") as stream:
            pieces = [piece async for piece in stream.stream_text(delta=True)]
            return "".join(pieces), stream

    text, stream = asyncio.run(main())
    last = stream.all_messages()[-1]
    assert isinstance(last, ModelResponse)
    assert text == "".join(part.content for part in last.parts if isinstance(part, TextPart))
    assert last.finish_reason == "stop"
    assert last.usage.output_tokens > 0
    assert isinstance(getattr(last.usage, "cost", Decimal(0)), Decimal)
    assert last.provider_response_id
    assert "ToolReturnPart" in part_names(stream)


def test_a_stream_that_is_left_early_is_cancelled(model: AnaphoraModel) -> None:
    async def main() -> None:
        async with Agent(model).run_stream("Tell me something long") as stream:
            async for _ in stream.stream_text(delta=True):
                break

    asyncio.run(main())
    assert run(Agent(model), "Still there?").output


def test_usage_has_reads_and_writes_of_the_cache(client: anaphora.Client) -> None:
    model = AnaphoraModel("claude-sonnet-4-5", provider="anthropic", client=client)
    agent = Agent(model, instructions=LONG)
    first = run(agent, "One?")
    second = run(agent, "Two?", message_history=first.all_messages())
    third = run(agent, "Three?", message_history=second.all_messages())
    assert second.usage.cache_write_tokens > 1000
    assert third.usage.cache_read_tokens >= second.usage.cache_write_tokens
    usage = third.usage
    assert usage.input_tokens >= usage.cache_read_tokens + usage.cache_write_tokens
    if hasattr(usage, "cost"):
        assert 0 < usage.cost < second.usage.cost


def input_units(calls: list[dict[str, Any]]) -> float:
    """What the prompts cost, in tokens at the input price."""
    units = (
        call["uncached"] + 0.1 * call["read"] + 1.25 * sum(call["written"].values())
        for call in calls
    )
    return float(sum(units))


def test_a_tool_loop_costs_as_much_as_that_of_a_session(
    client: anaphora.Client, emu: Emulator
) -> None:
    question = "What is the weather in Rome?"
    model = AnaphoraModel("claude-sonnet-4-5", provider="anthropic", client=client)
    run(Agent(model, instructions=LONG + "One.", tools=[weather]), question)
    ours = [entry for entry in reversed(emu.requests()) if "read" in entry]
    chat = client.session(
        "anthropic", model="claude-sonnet-4-5", system=LONG + "Two.", tools=[weather]
    )
    chat.run(question).result()
    session = [entry for entry in reversed(emu.requests()) if "read" in entry][len(ours) :]
    assert len(ours) == len(session) == 2
    assert ours[1]["read"] > 1000
    assert input_units(ours) < 1.05 * input_units(session)


def test_a_call_that_no_other_follows_is_not_marked(client: anaphora.Client, emu: Emulator) -> None:
    """A tool for the output ends the run, unlike a function."""
    model = AnaphoraModel("claude-sonnet-4-5", provider="anthropic", client=client)
    run(Agent(model, instructions=LONG + "One."), "Rome?")
    run(Agent(model, instructions=LONG + "Two.", output_type=ToolOutput(Plan)), "Rome?")
    assert [entry["written"] for entry in emu.requests() if "read" in entry] == [{}, {}]


def test_twenty_concurrent_runs_write_the_prefix_at_most_twice(
    client: anaphora.Client, emu: Emulator
) -> None:
    model = AnaphoraModel("claude-sonnet-4-5", provider="anthropic", client=client)
    agent = Agent(model, instructions=LONG)

    async def main() -> None:
        await asyncio.gather(*(agent.run(f"What is {number}?") for number in range(20)))

    asyncio.run(main())
    billed = [entry for entry in emu.requests() if "read" in entry]
    assert len(billed) == 20
    paid = [max(sum(e["written"].values()), e["uncached"]) > 1000 for e in billed]
    assert sum(paid) <= 2


def test_calls_that_did_not_read_the_prefix_say_so(
    client: anaphora.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_readable(monkeypatch)
    model = AnaphoraModel("gpt-5.6", provider="openai_responses", client=client)
    agent = Agent(model, instructions=LONG)

    async def main() -> list[Any]:
        return await asyncio.gather(*(agent.run(f"What is {each}?") for each in range(CALLS)))

    details = [each.all_messages()[-1].provider_details or {} for each in asyncio.run(main())]
    assert_noticed(each.get("notices", ()) for each in details)


def test_one_model_runs_in_several_event_loops(model: AnaphoraModel) -> None:
    agent = Agent(model)
    for _ in range(2):
        assert asyncio.run(agent.run("Hello?")).output


@pytest.mark.parametrize("streamed", [False, True])
def test_reasoning_goes_back_as_it_came(client: anaphora.Client, streamed: bool) -> None:
    """The emulator checks signatures, and a call that continues another reads all of it."""
    model = AnaphoraModel("claude-sonnet-5-5", provider="anthropic", client=client)
    thinks: Any = {"thinking": "high", "max_tokens": 16000}
    agent = Agent(model, tools=[weather], instructions=LONG, model_settings=thinks)

    async def main(question: str, history: Any = None) -> Any:
        if not streamed:
            return await agent.run(question, message_history=history)
        async with agent.run_stream(question, message_history=history) as stream:
            await stream.get_output()
            return stream

    history = list(asyncio.run(main("What is the weather in Rome?")).all_messages())
    replies = [each for each in history if isinstance(each, ModelResponse)]
    thinking = [p for each in replies for p in each.parts if isinstance(p, ThinkingPart)]
    assert thinking
    assert all(part.signature for part in thinking)
    again = asyncio.run(main("And tomorrow?", history)).all_messages()[len(history) :]
    usage = next(each.usage for each in again if isinstance(each, ModelResponse))
    assert usage.cache_read_tokens > 0.9 * replies[-1].usage.input_tokens

    stored = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(history))
    assert asyncio.run(main("And then?", stored)).all_messages()


def test_what_the_application_has_changed_is_sent_as_changed() -> None:
    kept = Message.assistant(Thinking("so", signature="abc", provider="anthropic"), "Yes.")
    reply = ModelResponse(parts=[TextPart("Yes.")], provider_details={"anaphora": kept_reply(kept)})
    assert assistant_message(reply) == kept
    reply.parts = [TextPart("No.")]
    assert assistant_message(reply) == Message.assistant("No.")


def test_images_and_documents_are_sent(model: AnaphoraModel) -> None:
    png = bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
        "0000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
    )
    content = ["What is this?", BinaryContent(png, media_type="image/png")]
    assert run(Agent(model), content).output
    with pytest.raises(UserError, match="VideoUrl"):
        run(Agent(model), ["?", VideoUrl("https://example.org/a.mp4")])


def test_a_failed_tool_is_reported_to_the_model(model: AnaphoraModel) -> None:
    def fails(city: str) -> str:
        """The weather of a city."""
        if len(calls) < 1:
            calls.append(city)
            raise ModelRetry("name a real city")
        return "sunny"

    calls: list[str] = []
    result = run(Agent(model, tools=[fails], retries=3), "Weather?")
    assert calls
    assert result.output


def test_errors_are_those_of_pydantic_ai(client: anaphora.Client) -> None:
    config = {"providers": settings("http://127.0.0.1:9", ["anthropic"])}
    config["providers"]["anthropic"]["retry"] = {"max_attempts": 1}
    with anaphora.Client.from_config(config, environ={"KEY": KEY}) as broken:
        dead = AnaphoraModel("claude-sonnet-4-5", client=broken)
        live = AnaphoraModel("claude-sonnet-4-5", provider="anthropic", client=client)
        assert run(Agent(FallbackModel(dead, live)), "Hello?").output
        with pytest.raises(ModelAPIError) as failed:
            run(Agent(dead), "Hello?")
        assert type(failed.value) is ModelAPIError
    too_long = Agent(live, model_settings={"max_tokens": 10_000_000})
    with pytest.raises(ModelHTTPError, match="max_tokens") as rejected:
        run(too_long, "Hello?")
    assert rejected.value.status_code == 400
    with pytest.raises(UserError, match="temperature"):
        run(Agent(live, model_settings={"temperature": 7}), "Hello?")


def test_wrong_arguments_are_named(client: anaphora.Client) -> None:
    with pytest.raises(InvalidRequest, match="model"):
        AnaphoraModel("no-such-model-at-all", client=client)
    wrong: Any = object()
    with pytest.raises(InvalidRequest, match=r"client: must be an anaphora\.Client"):
        AnaphoraModel("gpt-5.2", client=wrong)


def test_a_tool_return_with_a_file_reaches_the_model(client: anaphora.Client) -> None:
    def picture() -> list[Any]:
        """A picture."""
        return ["here:", BinaryContent(b"\x89PNG\r\n\x1a\n" + b"\0" * 20, media_type="image/png")]

    model = AnaphoraModel("claude-sonnet-4-5", provider="anthropic", client=client)
    result = run(Agent(model, tools=[picture]), "Show me")
    returned = [p for m in result.all_messages() for p in m.parts if isinstance(p, ToolReturnPart)]
    assert returned
    assert result.output
