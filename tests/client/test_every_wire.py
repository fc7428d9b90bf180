"""Every wire, and some dialects of others: whole answers, streams, tools, thinking, structured output.

The client's usage and cost of a call are compared with the emulator's.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from blake3 import blake3
from support.emulated_client import BEDROCK_MODEL, LONG, MODELS, Connected, connected

from anaphora import AsyncClient, errors
from anaphora.cache.prefix_difference import first_difference
from anaphora.client.response import Response
from anaphora.client.session import Session
from anaphora.emulator.server import Emulator
from anaphora.prompt import Call, Params, PromptIR, Reasoning
from anaphora.tools import ToolRegistry
from anaphora.values import (
    Event,
    Message,
    PartEnd,
    PartStart,
    Reply,
    ReplyEnd,
    ReplyStart,
    Text,
    TextDelta,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
    UsageUpdate,
)

SCRIPT = """
replies:
  - match: {tool: weather, text: weather}
    reply:
      text: I shall look.
      tool_calls:
        - {name: weather, arguments: {city: Rome}}
        - {name: weather, arguments: {city: Oslo}}
  - match: {result_of: weather}
    reply: {text: Sunny in both.}
  - match: {text: ponder}
    reply: {thinking: Let me see., text: I have seen.}
  - match: {text: misshapen}
    reply: {text: '{"city": 17, "nights": 1}'}
  - match: {text: decline}
    reply: {refusal: No.}
"""

NAMES = (*MODELS, "bedrock")


def model_of(name: str) -> str:
    return BEDROCK_MODEL if name == "bedrock" else MODELS[name]


def unpriced(name: str) -> list[str]:
    """The codes of the notices that a call has anyway: a local model has no price."""
    return ["price_unknown"] if name == "ollama" else []


#: The reasoning settings of each wire, and whether it returns the reasoning text.
THINKING: dict[str, tuple[Reasoning, bool]] = {
    "anthropic": (Reasoning(mode="enabled", budget_tokens=1024), True),
    "openai_chat": (Reasoning(effort="low"), False),
    "openai_responses": (Reasoning(effort="low", summary="auto"), True),
    "gemini": (Reasoning(budget_tokens=512, display="summarized"), True),
    "ollama": (Reasoning(effort="low"), True),
    "deepseek": (Reasoning(mode="enabled"), True),
    "minimax/anthropic": (Reasoning(mode="enabled", budget_tokens=1024), True),
    "openrouter": (Reasoning(effort="low"), False),
    "bedrock": (Reasoning(mode="enabled", budget_tokens=1024), True),
}
#: Without a published price or a count of cached tokens.
UNPRICED, UNTOLD = {"ollama"}, {"ollama"}

every = pytest.mark.parametrize("name", NAMES)
both = pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])


@dataclasses.dataclass
class Trip:
    city: str
    nights: int


async def turn(
    chat: Session | AsyncClient, content: Any, *, stream: bool, **options: Any
) -> tuple[Response, list[Event]]:
    """One turn of a conversation, or a call on its own."""
    pending = chat.send(content, **options)
    if not stream:
        return await pending, []
    events = [event async for event in pending]
    assert pending.response is not None
    return pending.response, events


# ── Whole answers and streams ────────────────────────────────────────────────────────────────────


@both
@every
def test_conversation_on_every_wire(scripted: Emulator, name: str, stream: bool) -> None:
    async def main() -> None:
        async with connected(scripted, [name]) as emulated:
            chat = emulated.client.session(name, system=LONG)
            spent = Decimal(0)
            for number, text in enumerate(("Hello", "More", "And more")):
                answered, events = await turn(chat, text, stream=stream)
                check_account(scripted, emulated, answered, name, stream, first=not number)
                if stream:
                    check_events(events, answered.reply)
                assert chat.last is answered
                spent += answered.cost_usd or 0
            assert chat.cost_usd == (None if name in UNPRICED else spent)
            assert [message.role for message in chat.messages] == ["user", "assistant"] * 3
            check_prefixes(scripted, 3)

    asyncio.run(main())


def check_account(
    scripted: Emulator,
    emulated: Connected,
    answered: Response,
    name: str,
    stream: bool,
    *,
    first: bool,
) -> None:
    """Usage, verdict and record compared with the emulator's entry of the same call."""
    billed, usage, record = scripted.requests()[0], answered.usage, answered.record
    assert emulated.records[-1] is record
    assert answered.text
    assert usage.output == billed["output"]
    assert usage.input == billed["read"] + billed["uncached"] + sum(billed["written"].values())
    parts = (usage.uncached or 0) + (usage.read or 0) + (usage.written_total or 0)
    assert parts == usage.input
    assert (usage.read or 0) == (0 if name in UNTOLD else billed["read"])
    assert (answered.cost_usd is None) == (name in UNPRICED)
    if answered.cost_usd is not None:
        assert answered.cost_usd == Decimal(billed["cost_usd"])
    verdict = answered.verdict
    assert verdict is not None
    assert verdict.result == ("first" if first else "hit"), str(verdict)
    assert billed["verdict"]["result"] == verdict.result
    if not first and name not in UNTOLD:
        assert record.predicted == billed["read"]
        assert billed["read"]
    assert answered.raw_hash == blake3(emulated.transport.received[-1]).hexdigest()
    # Replies of Converse name no model.
    model = model_of(name)
    named = "" if name == "bedrock" else model
    assert (record.provider, record.model, record.answered_by) == (name, model, named)
    assert record.streamed is stream
    assert record.error is None
    assert record.response_id == answered.reply.id
    assert record.request_id == (billed["request_id"] if record.request_id else None)
    assert [attempt.error for attempt in record.attempts] == [None]
    assert record.attempts[0].status == 200
    assert record.first is not None
    assert 0 <= record.first <= record.seconds
    assert record.blocks
    assert [notice.code for notice in answered.notices] == unpriced(name)


def check_events(events: list[Event], reply: Reply) -> None:
    assert isinstance(events[0], ReplyStart)
    assert events[-1] == ReplyEnd(reply)
    assert sum(isinstance(event, ReplyEnd | ReplyStart) for event in events) == 2
    kinds = {event.index: event.kind for event in events if isinstance(event, PartStart)}
    ends = [event.index for event in events if isinstance(event, PartEnd)]
    assert list(kinds) == ends == sorted(kinds)
    joined = "".join(event.delta for event in events if isinstance(event, TextDelta))
    assert joined == reply.text
    assert any(isinstance(event, UsageUpdate) for event in events)


def check_prefixes(scripted: Emulator, count: int) -> None:
    """Each request on the wire begins with the one before it."""
    sent = [
        entry.billed.sent.rendered for entry in scripted.engine.journal._entries if entry.billed
    ]
    assert len(sent) == count
    for earlier, later in itertools.pairwise(sent):
        assert first_difference(earlier, later, len(earlier)) is None


def plainly(reply: Reply) -> Any:
    """The content of a reply without its unique ids."""
    parts: list[Any] = []
    for part in reply.message.parts:
        match part:
            case Text(text):
                parts.append(("text", text))
            case Thinking(text):
                parts.append(("thinking", text))
            case ToolCall(_, name, arguments):
                parts.append((name, msgspec.json.decode(arguments)))
            case _:
                parts.append(part)
    counted = msgspec.structs.replace(reply.usage, raw=None)
    return parts, reply.stop_reason, reply.model, counted


@every
@pytest.mark.parametrize("text", ["Hello", "How is the weather?", "ponder"])
def test_stream_equals_the_whole_response(scripted: Emulator, name: str, text: str) -> None:
    async def main() -> None:
        replies = []
        for stream in (False, True):
            scripted.reset()
            async with connected(scripted, [name]) as emulated:
                chat = emulated.client.session(
                    name, system=LONG, tools=weather(), reasoning=THINKING[name][0], max_tokens=4000
                )
                answered, _ = await turn(chat, text, stream=stream)
                replies.append(plainly(answered.reply))
        assert replies[0] == replies[1]

    asyncio.run(main())


@both
@every
def test_single_call(scripted: Emulator, name: str, stream: bool) -> None:
    async def main() -> None:
        async with connected(scripted, [name]) as emulated:
            ir = PromptIR.chat((Message.user("Hello"),))
            call = Call(ir=ir, model=model_of(name), params=Params(max_tokens=200))
            answered, events = await turn(emulated.client, call, stream=stream, provider=name)
            if stream:
                check_events(events, answered.reply)
            billed = scripted.requests()[0]
            assert answered.usage.output == billed["output"]
            assert answered.raw_hash == blake3(emulated.transport.received[-1]).hexdigest()
            assert (answered.cost_usd is None) == (name in UNPRICED)
            if answered.cost_usd is not None:
                assert answered.cost_usd == Decimal(billed["cost_usd"])
            assert answered.verdict is None  # nothing is remembered from call to call
            (record,) = emulated.records
            assert record is answered.record
            assert record.blocks

    asyncio.run(main())


def test_plain_text_is_sent_as_a_call(scripted: Emulator) -> None:
    async def main() -> None:
        async with connected(scripted, ["anthropic"]) as emulated:
            whole = await emulated.client.complete("Hello", "anthropic")
            events = [event async for event in emulated.client.stream("Hello", "anthropic")]
            assert isinstance(events[-1], ReplyEnd)
            assert events[-1].reply.text == whole.text

    asyncio.run(main())


# ── Tools ────────────────────────────────────────────────────────────────────────────────────────


def weather(cities: list[str] | None = None) -> ToolRegistry:
    registry = ToolRegistry()

    @registry.tool
    def weather(city: str) -> str:
        """The weather in a city."""
        if cities is not None:
            cities.append(city)
        return f"sunny in {city}"

    return registry


@both
@every
def test_tools_run_until_the_model_is_done(scripted: Emulator, name: str, stream: bool) -> None:
    async def main() -> None:
        cities: list[str] = []
        async with connected(scripted, [name]) as emulated:
            chat = emulated.client.session(name, system=LONG, tools=weather(cities))
            running = chat.run("How is the weather?", parallel=False)
            if stream:
                steps = [step async for step in running]
                results = [step for step in steps if isinstance(step, ToolResult)]
                assert [result.content for result in results] == ["sunny in Rome", "sunny in Oslo"]
                assert sum(isinstance(step, ReplyEnd) for step in steps) == 2
                assert running.result is not None
                ran = running.result
            else:
                ran = await running
            assert (ran.stop_reason, ran.turns, ran.text) == ("done", 2, "Sunny in both.")
            assert cities == ["Rome", "Oslo"]
            assert [message.role for message in chat.messages] == [
                "user",
                "assistant",
                "tool",
                "assistant",
            ]
            calls = ran.responses[0].tool_calls
            assert [call.name for call in calls] == ["weather"] * 2
            results = [part for part in chat.messages[2].parts if isinstance(part, ToolResult)]
            assert [result.call_id for result in results] == [call.id for call in calls]
            assert ran.last is not None
            assert ran.last.verdict is not None
            assert ran.last.verdict.result == "hit"
            assert ran.cost_usd == chat.cost_usd
            check_prefixes(scripted, 2)
            assert len(emulated.records) == 2

    asyncio.run(main())


# ── Thinking ─────────────────────────────────────────────────────────────────────────────────────


@both
@every
def test_thinking_is_sent_back_unchanged(scripted: Emulator, name: str, stream: bool) -> None:
    """And goes back with the conversation, in the provider's own words, without a notice."""
    settings, shown = THINKING[name]

    async def main() -> None:
        async with connected(scripted, [name]) as emulated:
            chat = emulated.client.session(name, system=LONG, reasoning=settings, max_tokens=4000)
            first, events = await turn(chat, "ponder", stream=stream)
            thoughts = [part for part in first.reply.message.parts if isinstance(part, Thinking)]
            assert [part.text for part in thoughts] == ["Let me see."] * shown
            assert first.text == "I have seen."
            assert shown or first.usage.reasoning
            if stream:
                kinds = [event.kind for event in events if isinstance(event, PartStart)]
                assert kinds == ["thinking"] * shown + ["text"]
            second, _ = await turn(chat, "ponder more", stream=stream)
            assert second.verdict is not None
            assert second.verdict.result == "hit", str(second.verdict)
            assert [notice.code for notice in second.notices] == unpriced(name)
            check_prefixes(scripted, 2)

    asyncio.run(main())


# ── Structured output ────────────────────────────────────────────────────────────────────────────


@both
@every
def test_typed_output_is_parsed(scripted: Emulator, name: str, stream: bool) -> None:
    async def main() -> None:
        async with connected(scripted, [name]) as emulated:
            chat = emulated.client.session(name)
            answered, _ = await turn(chat, "Plan a trip", stream=stream, output=Trip)
            assert isinstance(answered.parsed, Trip)
            assert answered.parsed == Trip(**msgspec.json.decode(answered.text))
            once = await emulated.client.complete("Plan a trip", name, output=Trip)
            assert isinstance(once.parsed, Trip)

    asyncio.run(main())


@both
@every
def test_output_mismatch_is_recorded_once(scripted: Emulator, name: str, stream: bool) -> None:
    """It is `Parse` for the caller; but it was given and paid for, so it is in the conversation, and
    watchers get one record, with the reply and the error."""

    async def main() -> None:
        async with connected(scripted, [name]) as emulated:
            chat = emulated.client.session(name)
            with pytest.raises(errors.Parse) as caught:
                await turn(chat, "misshapen", stream=stream, output=Trip)
            assert "city" in caught.value.path
            (record,) = emulated.records
            check_misshapen(record, caught.value)
            assert [message.role for message in chat.messages] == ["user", "assistant"]
            assert chat.last is not None
            assert chat.last.parsed is None
            assert chat.cost_usd == chat.last.cost_usd
            answered, _ = await turn(chat, "Go on", stream=stream)
            assert answered.text
            emulated.records.clear()
            with pytest.raises(errors.Parse) as caught:
                await turn(emulated.client, "misshapen", stream=stream, provider=name, output=Trip)
            (record,) = emulated.records
            check_misshapen(record, caught.value)

    asyncio.run(main())


def check_misshapen(record: Any, problem: errors.Parse) -> None:
    assert record.error == "Parse"
    assert record.usage != Usage()
    assert record.first is not None
    assert [attempt.error for attempt in record.attempts] == [None]
    assert problem.attempts == record.attempts
    assert problem.partial.text == '{"city": 17, "nights": 1}'


@every
def test_refusal_is_an_output_mismatch(scripted: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(scripted, [name]) as emulated:
            with pytest.raises(errors.Parse, match="the model refused to answer"):
                await emulated.client.session(name).send("decline", output=Trip)
            assert len(emulated.records) == 1

    asyncio.run(main())


# ── Many at once ─────────────────────────────────────────────────────────────────────────────────


@both
@pytest.mark.long
def test_fifty_conversations_on_one_client(scripted: Emulator, stream: bool) -> None:
    """Each keeps to itself: its own messages, its own prefix, its own bill."""

    async def main() -> None:
        async with connected(scripted, NAMES) as emulated:
            chats = [
                emulated.client.session(NAMES[n % len(NAMES)], system=f"{n}. ") for n in range(50)
            ]

            async def conversations(number: int) -> None:
                for index in range(3):
                    await turn(chats[number], f"{number}/{index}", stream=stream)

            await asyncio.gather(*map(conversations, range(50)))
            for number, chat in enumerate(chats):
                user_parts = [message.parts for message in chat.messages if message.role == "user"]
                assert user_parts == [(Text(f"{number}/{turn}"),) for turn in range(3)]
                assert len(chat.messages) == 6
            assert len(emulated.records) == len(scripted.requests()) == 150
            assert {record.error for record in emulated.records} == {None}
            spent = sum(record.cost_usd or 0 for record in emulated.records)
            assert sum(chat.cost_usd or 0 for chat in chats) == spent
            results = [record.verdict.result for record in emulated.records if record.verdict]
            assert results.count("first") == 50

    asyncio.run(main())
