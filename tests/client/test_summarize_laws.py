"""Laws of `summarize` over generated histories: units stay whole, the budget is kept, messages that
stay are unchanged, and the provider accepts what is left."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import emulated_client
from support.virtual_emulator import EngineTransport

from anaphora import AsyncClient, Conversation, Message, RenderedContext
from anaphora.client.session import Session, SummaryResult
from anaphora.client.session.summarize import history_sizes
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.engine import Engine
from anaphora.emulator.replies.script import Script
from anaphora.errors import AnaphoraError, InvalidRequest, SummaryFailed
from anaphora.prompt import compact
from anaphora.prompt.context import TokenCount, droppable
from anaphora.values import Part, Text, Thinking, Tool, ToolCall, ToolResult, to_json

SUMMARY = "Summary of the conversation so far: they spoke of cities."
SCRIPT = f"""
replies:
  - match: {{text: Summarize}}
    reply: {{text: "{SUMMARY}"}}
  - reply: {{text: Fine.}}
"""
BREAKS = pytest.mark.breaks_prefix(reason="a summary replaces the beginning of the history")
#: The guard of prefixes does not see Bedrock's requests.
NAMES = [*(pytest.param(name, marks=BREAKS) for name in emulated_client.WIRES), "bedrock"]
LOOK = Tool("look", "Look up a city.", '{"type":"object","properties":{"city":{"type":"string"}}}')

WORDS = st.integers(1, 60).map(lambda count: "warm and sunny " * count)


@st.composite
def histories(draw: st.DrawFn, reasons: bool = False) -> list[Message]:
    """Exchanges with and without tools. The last one may lack its answer."""
    found: list[Message] = []
    exchanges, calls = draw(st.integers(1, 5)), 0
    for number in range(exchanges):
        found += [Message.user(draw(WORDS)) for _ in range(draw(st.sampled_from([1, 1, 1, 2])))]
        for _ in range(draw(st.integers(0, 3))):
            parts: list[Part] = [Thinking(draw(WORDS))] if reasons and draw(st.booleans()) else []
            count = draw(st.integers(1, 2))
            made = [ToolCall(f"call_{calls + at:05}", "look", "{}") for at in range(count)]
            calls += count
            found.append(Message(role="assistant", parts=(*parts, Text("I look."), *made)))
            results = [ToolResult(call.id, draw(WORDS), name="look") for call in made]
            found.append(Message(role="tool", parts=tuple(results)))
        if number < exchanges - 1 or draw(st.booleans()):
            found.append(Message.assistant(draw(WORDS)))
    return found


def calls_of(messages: tuple[Message, ...]) -> list[str]:
    return [p.id for message in messages for p in message.parts if isinstance(p, ToolCall)]


def results_of(messages: tuple[Message, ...]) -> list[str]:
    return [p.call_id for message in messages for p in message.parts if isinstance(p, ToolResult)]


def pending_of(messages: tuple[Message, ...]) -> int:
    """The number of messages at the end that the model has not answered."""
    count = 0
    while count < len(messages) and messages[-1 - count].role != "assistant":
        count += 1
    return count


def counter(chat: Session) -> TokenCount:
    turns = chat.turns
    prompt = turns.history.next_prompt()
    return history_sizes(turns, turns.state(turns.route.current), prompt).counter()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories(), budget=st.integers(5, 1500))
@pytest.mark.long
def test_units_stay_whole_and_the_budget_is_kept(
    name: str, history: list[Message], budget: int
) -> None:
    async def run() -> None:
        options = EmulatorOptions(script=Script.decode(SCRIPT, "script.yaml"))
        transport = EngineTransport(Engine(options))
        config = {"providers": emulated_client.settings("http://emulator.invalid", (name,))}
        async with AsyncClient.from_config(
            config, environ={"KEY": "any"}, transport=transport
        ) as client:
            chat = client.session(name, system="Be brief.", tools=[LOOK], messages=history)
            await check(chat, transport, budget)

    asyncio.run(run())


async def check(chat: Session, transport: EngineTransport, budget: int) -> None:
    before, tokens = chat.messages, counter(chat)
    total, pending = sum(map(tokens, before)), pending_of(before)
    outcome: SummaryResult | AnaphoraError
    try:
        outcome = await chat.summarize(budget, on_cold="send")
    except (InvalidRequest, SummaryFailed) as problem:
        outcome = problem
    if isinstance(outcome, InvalidRequest):
        assert "has to answer all" in str(outcome)
        assert pending == len(before)
        assert not transport.bodies
        return
    if isinstance(outcome, SummaryFailed):
        assert outcome.problem == "over_budget"
        assert tokens(Message.user(SUMMARY)) > budget
        assert chat.messages == before
        return
    assert isinstance(outcome, SummaryResult)
    done = outcome
    if done.summary is None:
        assert total <= budget
        assert not transport.bodies
        assert chat.messages == before
        return
    kept = chat.messages[1:]
    assert total > budget
    assert chat.messages[0].text == SUMMARY
    assert len(kept) == len(before) - done.dropped < len(before)
    for new, old in zip(kept, before[done.dropped :], strict=True):
        assert new is old
        assert to_json(new) == to_json(old)
    assert sorted(calls_of(kept)) == sorted(results_of(kept))
    assert len(kept) >= pending
    left = tokens(Message.user(SUMMARY)) + sum(map(tokens, kept))
    if left > budget:
        assert "over_budget" in [notice.code for notice in done.notices]
        assert done.dropped == droppable(Conversation(before))[-1]
    elif done.dropped > 1:
        # No further unit would have fitted.
        earlier = [start for start in droppable(Conversation(before)) if start < done.dropped]
        assert left + sum(map(tokens, before[earlier[-1] : done.dropped])) > budget
    prompt = chat.turns.history.next_prompt()
    assert prompt.ir.cache.frozen_through == chat.messages[-1].id
    response = await chat.send(None if pending else "Go on")
    assert response.text == "Fine."


@settings(max_examples=100)
@given(history=histories(reasons=True), budget=st.integers(5, 1500))
def test_cut_loop_begins_with_its_reasoning(history: list[Message], budget: int) -> None:
    """Providers refuse a tool loop whose first call lacks the reasoning before it."""
    turns = Conversation(history)
    done = compact(
        RenderedContext(turns=turns),
        budget=budget,
        tokens=lambda message: len(to_json(message.parts)) // 4,
        summary=Message.user(SUMMARY),
        all_summarized=True,
    )
    kept = done.context.turns[1:]
    if not done.dropped or not kept or turns[done.dropped - 1].role != "tool":
        return
    # It was cut between two steps of the loop that is open at the end.
    start = done.dropped
    while (
        start
        and turns[start - 1].role in ("tool", "assistant")
        and (turns[start - 1].role == "tool" or calls_of((turns[start - 1],)))
    ):
        start -= 1
    loop = [part for message in turns[start:] for part in message.parts]
    if any(isinstance(part, Thinking) for part in loop):
        assert kept[0].role != "assistant" or isinstance(kept[0].parts[0], Thinking)
