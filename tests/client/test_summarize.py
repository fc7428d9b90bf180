"""`chat.summarize`: a summary is a continuation of the cached conversation, on every wire, and an
answer that is none leaves the conversation unchanged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from support.emulated_client import AT_ONCE, LONG, MODELS, Connected, connected
from support.kept_turns import opened
from support.virtual_emulator import VirtualEmulator, run_virtual

from anaphora import Client, Conversation, Message, RenderedContext, ToolRegistry, emulator
from anaphora.audit import AuditLog, calls
from anaphora.client.response import Response
from anaphora.client.session import Preview, Session, SummaryResult
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.replies.script import Script
from anaphora.emulator.server import Emulator
from anaphora.errors import ColdCache, InvalidRequest, SummaryFailed, Upstream
from anaphora.prompt import PromptIR, Reasoning, Segment
from anaphora.values import SegmentRole, Text, ToolCall, ToolResult

SUMMARY = "Summary of the conversation so far: the user asked about Rome, Athens and Oslo."
SCRIPT = f"""
replies:
  - match: {{text: Summarize}}
    reply: {{text: "{SUMMARY}"}}
  - match: {{schema: true}}
    reply: {{text: "{{}}"}}
  - match: {{text: by tool}}
    reply: {{tool_calls: [{{name: look, arguments: {{city: Rome}}}}]}}
  - match: {{text: declined}}
    reply: {{refusal: No.}}
  - match: {{text: cut off}}
    reply: {{text: Half of a summ, stop: length}}
  - match: {{text: endless}}
    reply: {{text: "{"long and longer " * 1200}"}}
  - match: {{text: thoughts}}
    reply: {{thinking: Only a thought., text: "{SUMMARY}"}}
  - match: {{text: Say nothing}}
    reply: {{text: " "}}
  - match: {{text: look up}}
    reply: {{text: I look., tool_calls: [{{name: look, arguments: {{city: Rome}}}}]}}
  - match: {{result_of: look}}
    reply: {{text: It is sunny.}}
  - reply: {{text: I would go there in May.}}
"""
NAMES = (*MODELS, "bedrock")
every = pytest.mark.parametrize("name", NAMES)
breaks = pytest.mark.breaks_prefix(reason="a summary replaces the beginning of the history")
#: The guard of prefixes does not see Bedrock's requests.
every_breaks = pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=breaks) for name in MODELS), "bedrock"]
)
BUDGET = 2_600


@pytest.fixture(scope="module")
def _scripted() -> Iterator[Emulator]:
    script = Script.decode(SCRIPT, "script.yaml")
    with emulator.running(EmulatorOptions(latency=AT_ONCE, script=script)) as running:
        yield running


@pytest.fixture
def emu(_scripted: Emulator) -> Emulator:
    _scripted.reset()
    return _scripted


def tools() -> ToolRegistry:
    registry = ToolRegistry()

    @registry.tool
    def look(city: str) -> str:
        """Look up the weather of a city."""
        return f"{city}: sunny. " * 40

    return registry


async def begun(emulated: Connected, name: str, **options: Any) -> Session:
    """A session after three exchanges."""
    chat = emulated.client.session(name, system=LONG, tools=tools(), **options)
    for city in ("Rome", "Athens", "Oslo"):
        await chat.send(f"{city}? " + "I have been there before and liked it. " * 200)
    return chat


def read_share(response: Response) -> float:
    read = response.usage.read
    if read is None:  # Ollama bills none
        read = response.record.predicted
    return (read or 0) / (response.usage.input or 1)


def fields(body: bytes) -> dict[str, Any]:
    """A request without its messages."""
    given = json.loads(body)
    return {key: given[key] for key in given if key not in ("messages", "input", "contents")}


def unmarked(value: Any) -> Any:
    """JSON without cache markers."""
    if isinstance(value, list):
        return [unmarked(each) for each in value if each != {"cachePoint": {"type": "default"}}]
    if isinstance(value, dict):
        marks = ("cache_control", "prompt_cache_breakpoint")
        return {key: unmarked(each) for key, each in value.items() if key not in marks}
    return value


def messages(body: bytes) -> list[Any]:
    given = json.loads(body)
    sent = given.get("messages") or given.get("input") or given.get("contents")
    assert isinstance(sent, list)
    plain = unmarked(sent)
    assert isinstance(plain, list)
    return plain


# ── The call ─────────────────────────────────────────────────────────────────────────────────────


@every_breaks
@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
def test_summary_reads_the_conversation_from_the_cache(
    emu: Emulator, name: str, stream: bool
) -> None:
    async def run() -> None:
        async with connected(emu, (name,)) as emulated:
            chat = await begun(emulated, name)
            before, cost = chat.messages, chat.cost_usd
            pending = chat.summarize(BUDGET)
            if stream:
                assert "".join([piece async for piece in pending.text]) == SUMMARY
                assert pending.result is not None
            done = await pending if not stream else pending.result
            assert isinstance(done, SummaryResult)
            response = done.response
            assert response is not None
            assert response.text == SUMMARY
            assert read_share(response) >= 0.85
            assert not response.usage.written_total  # nothing is written that no call reads
            assert response.record.operation == "summarize"
            if cost is not None and response.cost_usd is not None:
                assert chat.cost_usd == cost + response.cost_usd

            last, asked = emulated.transport.bodies[-2:]
            same = {"stream", "stream_options", "prompt_cache_options"}
            assert {key: value for key, value in fields(asked).items() if key not in same} == {
                key: value for key, value in fields(last).items() if key not in same
            }
            assert messages(asked)[: len(messages(last))] == messages(last)
            assert "Summarize this conversation" in json.dumps(messages(asked)[-1])

            kept = len(before) - done.dropped
            assert chat.messages[0] == done.summary
            assert chat.messages[1:] == before[len(before) - kept :]
            assert all(
                new is old for new, old in zip(chat.messages[1:], before[-kept:], strict=True)
            )

            after = await chat.send("And Lisbon?")
            assert after.verdict is not None
            assert after.verdict.cause == "compaction"
            then = await chat.send("And Bern?")
            assert str(then.verdict).startswith("Hit: ")

    asyncio.run(run())


@every
@pytest.mark.parametrize(
    "instruction, problem",
    [
        ("Summarise by tool", "tool_call"),
        ("This is declined", "refusal"),
        ("This is cut off", "truncated"),
        ("This is endless", "over_budget"),
    ],
)
def test_answer_that_is_no_summary_changes_nothing(
    emu: Emulator, name: str, instruction: str, problem: str
) -> None:
    async def run() -> None:
        async with connected(emu, (name,)) as emulated:
            chat = await begun(emulated, name)
            before, cost = chat.conversation, chat.cost_usd
            with pytest.raises(SummaryFailed) as failed:
                await chat.summarize(BUDGET, instruction=instruction, max_tokens=8000)
            error = failed.value
            assert error.problem == problem
            assert instruction not in str(error)
            assert chat.conversation is before
            answer: Response = error.response
            assert chat.last is answer
            assert error.partial is answer.reply
            assert answer.usage.output
            if cost is not None:
                assert answer.cost_usd is not None
                assert chat.cost_usd == cost + answer.cost_usd
            assert emulated.records[-1].operation == "summarize"
            # The next turn reads the cache as if the summary had not been asked for.
            response = await chat.send("And Lisbon?")
            assert str(response.verdict).startswith("Hit: ")
            assert "prefix_breaks" not in [notice.code for notice in response.notices]
            assert len(chat.messages) == len(before) + 2

    asyncio.run(run())


def test_answer_without_text_changes_nothing(emu: Emulator) -> None:
    async def run() -> None:
        async with connected(emu, ("openai_chat",)) as emulated:
            chat = await begun(emulated, "openai_chat")
            before = chat.conversation
            with pytest.raises(SummaryFailed, match="has no text") as failed:
                await chat.summarize(BUDGET, instruction="Say nothing")
            assert failed.value.problem == "empty"
            assert chat.conversation is before

    asyncio.run(run())


def test_summary_is_the_text_without_the_reasoning(emu: Emulator) -> None:
    async def run() -> None:
        async with connected(emu, ("anthropic",)) as emulated:
            thinking = Reasoning(mode="enabled", budget_tokens=1024)
            chat = await begun(emulated, "anthropic", reasoning=thinking, max_tokens=4096)
            done = await chat.summarize(BUDGET, instruction="Share thoughts")
            assert done.summary is not None
            assert done.summary.parts == (Text(SUMMARY),)
            assert done.response is not None
            assert len(done.response.reply.message.parts) == 2

    asyncio.run(run())


@every
def test_failed_call_changes_nothing(emu: Emulator, name: str) -> None:
    async def run() -> None:
        async with connected(emu, (name,), retry={"max_attempts": 1}) as emulated:
            chat = await begun(emulated, name)
            before, cost, last = chat.conversation, chat.cost_usd, chat.last
            emulated.transport.faults = ["529"]
            with pytest.raises(Upstream):
                await chat.summarize(BUDGET)
            emulated.transport.faults = []
            assert chat.conversation is before
            assert (chat.cost_usd, chat.last) == (cost, last)
            assert emulated.records[-1].error == "Overloaded"
            assert str((await chat.send("And Lisbon?")).verdict).startswith("Hit: ")

    asyncio.run(run())


def test_summary_does_not_move_to_a_provider_without_the_cache(emu: Emulator) -> None:
    async def run() -> None:
        hops = {"main": [{"provider": "anthropic"}, {"provider": "openai_chat"}]}
        names = ("anthropic", "openai_chat")
        async with connected(emu, names, routes=hops, retry={"max_attempts": 1}) as emulated:
            chat = await begun(emulated, "main")
            emulated.transport.faults = ["529", None]
            with pytest.raises(Upstream):
                await chat.summarize(BUDGET)
            assert chat.provider == "anthropic"
            assert len(chat.messages) == 6

    asyncio.run(run())


# ── What stays as in the last call ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name, options",
    [
        ("anthropic", {"tool_choice": "none"}),
        (
            "anthropic",
            {"reasoning": Reasoning(mode="enabled", budget_tokens=2048), "max_tokens": 4096},
        ),
        ("openai_responses", {"reasoning": "high", "verbosity": "low"}),
        ("openai_chat", {"output": {"type": "object", "properties": {}}, "max_tokens": 20}),
    ],
)
def test_parameters_of_the_last_call_are_kept(
    emu: Emulator, name: str, options: dict[str, Any]
) -> None:
    async def run() -> None:
        async with connected(emu, (name,)) as emulated:
            chat = await begun(emulated, name, on_prefix_break="off")
            await chat.send("Go on", **options)
            done = await chat.summarize(BUDGET)
            last, asked = map(fields, emulated.transport.bodies[-2:])
            limits = ("max_tokens", "max_completion_tokens", "max_output_tokens")
            if "reasoning" in options:
                assert [last.get(key) for key in limits] == [asked.get(key) for key in limits]
            elif "max_tokens" in options:
                assert not any(asked.get(key) == 20 for key in limits)
            for key in (*limits, "prompt_cache_options"):
                last.pop(key, None)
                asked.pop(key, None)
            assert asked == last
            assert done.response is not None
            assert read_share(done.response) >= 0.85

    asyncio.run(run())


def test_forced_tool_choice_is_refused_before_it_is_paid(emu: Emulator) -> None:
    async def run() -> None:
        async with connected(emu, ("anthropic",)) as emulated:
            chat = await begun(emulated, "anthropic", on_prefix_break="off")
            await chat.send("Go on", tool_choice="required")
            sent = len(emulated.transport.sent)
            chat.append(*(results_of(chat)))
            with pytest.raises(InvalidRequest, match=r"tool_choice: the last call requires"):
                await chat.summarize(BUDGET)
            assert len(emulated.transport.sent) == sent

    asyncio.run(run())


def results_of(chat: Session) -> list[Message]:
    calls = [part for part in chat.messages[-1].parts if isinstance(part, ToolCall)]
    if not calls:
        return []
    return [Message(role="tool", parts=tuple(ToolResult(call.id, "sunny") for call in calls))]


@breaks
def test_instruction_follows_the_state_and_compact_at_does_not_cut(emu: Emulator) -> None:
    async def run() -> None:
        async with connected(emu, ("anthropic",)) as emulated:
            last = (await begun(emulated, "anthropic", state="It is noon.")).last
            assert last is not None
            limit = (last.usage.input or 0) + 100
            chat = await begun(emulated, "anthropic", state="It is noon.", compact_at=limit)
            before = chat.messages
            assert chat.preview("Go on. " * 100).notices  # it would be cut
            done = await chat.summarize(BUDGET)
            sent = messages(emulated.transport.bodies[-1])
            assert "Rome? I have" in json.dumps(sent[0])
            text = json.dumps(sent[-1])
            assert text.index("It is noon.") < text.index("Summarize this conversation")
            assert done.response is not None
            assert read_share(done.response) >= 0.85
            assert done.dropped <= len(before)

    asyncio.run(run())


@breaks
def test_prompt_with_the_opening_stays_summarised(emu: Emulator) -> None:
    """The app's function returns the messages that the history began with at every turn."""
    opening = Conversation(
        message
        for city in ("Rome", "Athens", "Oslo")
        for message in (
            Message.user(f"{city}? " + "I have been there before. " * 200),
            Message.assistant("By train."),
        )
    )

    async def run() -> None:
        async with connected(emu, ("anthropic",)) as emulated:
            prompt = RenderedContext(system_stable=LONG, turns=opening)
            chat = emulated.client.session("anthropic", prompt=lambda: prompt)
            await chat.send("Which is first?")
            done = await chat.summarize(1_500)
            assert done.dropped
            response = await chat.send("And Lisbon?")
            assert response.verdict is not None
            assert response.verdict.cause == "compaction"
            assert chat.messages[0].text == SUMMARY
            assert str((await chat.send("And Bern?")).verdict).startswith("Hit: ")

    asyncio.run(run())


def test_state_at_the_head_leaves_the_instruction_last(emu: Emulator) -> None:
    async def run() -> None:
        async with connected(emu, ("anthropic",)) as emulated:
            state = Segment.of(SegmentRole.VOLATILE_TAIL, Message.user("It is noon."))
            prompt = PromptIR(system_text=LONG, segments=(state,), state_position="head")
            chat = emulated.client.session("anthropic", prompt=prompt)
            await chat.send("Rome? " + "I have been there before. " * 300)
            await chat.summarize(40, on_cold="send")
            assert "Summarize" in json.dumps(messages(emulated.transport.bodies[-1])[-1])
            assert chat.messages[0].text == SUMMARY

    asyncio.run(run())


# ── The history afterwards ───────────────────────────────────────────────────────────────────────


def test_history_within_the_budget_is_not_summarised(emu: Emulator) -> None:
    async def run() -> None:
        async with connected(emu, ("anthropic",)) as emulated:
            chat = await begun(emulated, "anthropic")
            before, sent = chat.conversation, len(emulated.transport.sent)
            done = await chat.summarize(100_000)
            assert (done.summary, done.response, done.dropped) == (None, None, 0)
            assert chat.conversation is before
            assert len(emulated.transport.sent) == sent
            empty = emulated.client.session("anthropic")
            assert (await empty.summarize(10)).summary is None

    asyncio.run(run())


@every_breaks
def test_unfinished_tool_loop_keeps_its_last_step(emu: Emulator, name: str) -> None:
    """A loop without an answer is cut between two steps; the provider accepts what is left."""
    loop: list[Message] = [Message.user("Where is it warm? " + "Look at all cities. " * 300)]
    for at in range(8):
        call = ToolCall(f"call_{at:04}", "look", f'{{"city": "City {at}"}}')
        loop.append(Message(role="assistant", parts=(Text(f"Step {at}."), call)))
        result = ToolResult(call.id, "sunny and warm " * 150, name="look")
        loop.append(Message(role="tool", parts=(result,)))

    async def run() -> None:
        async with connected(emu, (name,)) as emulated:
            chat = emulated.client.session(name, system=LONG, tools=tools(), messages=loop)
            done = await chat.summarize(1_500, on_cold="send")
            assert 0 < done.dropped < len(loop)
            kept = chat.messages[1:]
            assert kept[0].role == "assistant"
            assert [each.parts for each in kept] == [each.parts for each in loop[done.dropped :]]
            assert (await chat.send()).text == "It is sunny."

    asyncio.run(run())


def test_histories_that_cannot_be_summarised_are_errors(emu: Emulator) -> None:
    async def run() -> None:
        async with connected(emu, ("anthropic",)) as emulated:
            client = emulated.client
            asked = [Message.user("Where is it warm? " * 500)]
            with pytest.raises(InvalidRequest, match="the model has to answer all of them"):
                await client.session("anthropic", messages=asked).summarize(100, on_cold="send")
            call = Message(role="assistant", parts=(ToolCall("call_1", "look", "{}"),))
            open_call = client.session("anthropic", tools=tools(), messages=[*asked, call])
            with pytest.raises(InvalidRequest, match="call_1"):
                await open_call.summarize(100, on_cold="send")
            chat = client.session("anthropic")
            for wrong in (0, -5, True, "many", 1.5):
                with pytest.raises(InvalidRequest, match=r"budget_tokens: must be a positive"):
                    chat.summarize(wrong)  # type: ignore[arg-type]
            for instruction in ("", "  ", 5, Message.assistant("Sum up")):
                with pytest.raises(InvalidRequest, match=r"instruction: "):
                    chat.summarize(100, instruction=instruction)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match=r"on_cold: must be 'raise', 'send' or"):
                chat.summarize(100, on_cold="never")  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="unknown keyword"):
                chat.summarize(100, max_token=5)  # type: ignore[call-arg]
            assert not emulated.transport.sent

    asyncio.run(run())


async def drained(events: AsyncIterator[Any]) -> None:
    async for _ in events:
        pass


@breaks
def test_messages_appended_meanwhile_stay(emu: Emulator) -> None:
    async def run() -> None:
        async with connected(emu, ("anthropic",)) as emulated:
            chat = await begun(emulated, "anthropic")
            async for _ in (events := chat.summarize(BUDGET)):
                if len(chat.messages) == 6:
                    chat.append(Message.user("By the way: by train."))
            assert events.result is not None
            assert chat.messages[0].text == SUMMARY
            assert chat.messages[-1].text == "By the way: by train."
            before = await chat.send()
            assert before.stop_reason == "end"

            chat = await begun(emulated, "anthropic")
            events = chat.summarize(BUDGET)
            await anext(stream := aiter(events))
            chat.conversation = chat.conversation.prefix(2)
            with pytest.raises(SummaryFailed) as failed:
                await drained(stream)
            assert failed.value.problem == "history_changed"
            assert len(chat.messages) == 2

    asyncio.run(run())


@every_breaks
def test_forks_of_a_summarised_chat_share_its_beginning(emu: Emulator, name: str) -> None:
    async def run() -> None:
        async with connected(emu, (name,)) as emulated:
            chat = await begun(emulated, name)
            await chat.summarize(BUDGET)
            await chat.send("And Lisbon? " + "I have been there before. " * 100)
            fork = chat.fork()
            one, two = await chat.send("And Bern?"), await fork.send("And Wien?")
            for response in (one, two):
                assert str(response.verdict).startswith("Hit: ")
            assert fork.messages[0].text == chat.messages[0].text == SUMMARY

    asyncio.run(run())


# ── An expired cache ─────────────────────────────────────────────────────────────────────────────

PAUSES = {"anthropic": 7200.0, "openai_chat": 90_000.0, "gemini": 90_000.0, "deepseek": 9e6}


async def paused(virtual: VirtualEmulator, name: str) -> Session:
    chat = virtual.client.session(name, system=LONG)
    for city in ("Rome", "Athens"):
        await chat.send(f"{city}? " + "I have been there before. " * 300)
    await asyncio.sleep(PAUSES[name])
    return chat


@pytest.mark.parametrize("name", PAUSES)
def test_expired_cache_is_an_error_with_the_cost(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async def main(virtual: VirtualEmulator) -> None:
        chat = await paused(virtual, name)
        before, sent = chat.conversation, len(virtual.transport.bodies)
        with pytest.raises(
            ColdCache, match=r"has expired: the last call was .* ago: the input"
        ) as cold:
            await chat.summarize(1_000)
        assert 'on_cold="send"' in str(cold.value)
        assert chat.conversation is before
        assert len(virtual.transport.bodies) == sent
        preview: Preview = cold.value.preview
        assert preview.cold is not None
        assert preview.cold.reason == "expired"
        assert preview.cold.idle == PAUSES[name]
        assert preview.cold.tokens > 3_000
        assert preview.cold.extra_usd is not None
        assert preview.cost_usd is not None
        assert preview.cost_usd > preview.cold.extra_usd > 0
        assert "has expired" in str(preview)

        done = await chat.summarize(1_000, on_cold="send")
        assert done.response is not None
        usage = done.response.usage
        assert not usage.read
        # The whole history is not written again, for no call to read.
        assert (usage.written_total or 0) < 0.6 * (usage.input or 0)
        assert chat.messages[0] == done.summary

    run_virtual(monkeypatch, main, name)


@breaks
def test_function_decides_on_an_expired_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Decimal | None] = []

    async def cheap(preview: Preview) -> bool:
        asked.append(preview.cost_usd)
        return preview.cost_usd is not None and preview.cost_usd < 1

    async def main(virtual: VirtualEmulator) -> None:
        chat = await paused(virtual, "anthropic")
        with pytest.raises(ColdCache):
            await chat.summarize(1_000, on_cold=lambda _: False)
        assert (await chat.summarize(1_000, on_cold=cheap)).dropped
        # Alive again: nothing is asked.
        await chat.send("And Oslo? " + "I have been there before. " * 300)
        assert (await chat.summarize(1_000, on_cold=cheap)).dropped
        assert len(asked) == 1

    run_virtual(monkeypatch, main)


def test_conversation_that_was_never_sent_is_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(virtual: VirtualEmulator) -> None:
        said = [Message.user("Rome? " * 3000), Message.assistant("Yes.")]
        chat = virtual.client.session("anthropic", messages=said, system=LONG)
        with pytest.raises(ColdCache, match="no earlier call is known that sent them") as cold:
            await chat.summarize(500)
        assert cold.value.preview.cold.reason == "not_cached"
        assert not virtual.transport.bodies

    run_virtual(monkeypatch, main)


# ── Elsewhere ────────────────────────────────────────────────────────────────────────────────────


class AsyncStore:
    """A store with async methods, such as Redis."""

    def __init__(self) -> None:
        self.values_of: dict[str, bytes] = {}

    async def get(self, key: str) -> bytes | None:
        return self.values_of.get(key)

    async def set(self, key: str, value: bytes, *, ex: int) -> None:
        self.values_of[key] = value

    async def delete(self, *keys: str) -> None:
        for key in keys:
            self.values_of.pop(key, None)


@pytest.mark.parametrize("name", ["anthropic", "openai_chat", "gemini", "ollama"])
@pytest.mark.parametrize("store", [dict, AsyncStore])
def test_summary_is_stored_with_the_conversation(
    emu: Emulator, name: str, store: Callable[[], Any]
) -> None:
    """Each request has another client; the app loads all of its messages at each."""
    rows: list[Message] = []
    kept = store()

    async def request(act: Callable[[Session], Any]) -> tuple[Any, Session]:
        async with opened(emu.url, name, kept) as client:
            chat = client.session(name, id="u", system=LONG, messages=rows, save=rows.append)
            return await act(chat), chat

    def said(text: str) -> Callable[[Session], Any]:
        return lambda chat: chat.send(text)

    async def run() -> None:
        for city in ("Rome", "Athens", "Oslo"):
            await request(said(f"{city}? " + "I have been there before. " * 300))
        done, chat = await request(lambda chat: chat.summarize(2_000))
        assert read_share(done.response) >= 0.85
        cost = chat.cost_usd
        response, chat = await request(said("And Lisbon?"))
        assert chat.messages[0].text == SUMMARY
        assert len(chat.messages) == 1 + 6 - done.dropped + 2
        assert response.verdict.cause == "compaction"
        if cost is not None:
            assert chat.cost_usd == cost + response.cost_usd
        response, chat = await request(said("And Bern?"))
        assert str(response.verdict).startswith("Hit: ")
        assert len(rows) == 10

    asyncio.run(run())


@breaks
def test_sync_client_and_audit_log(emu: Emulator, tmp_path: Path) -> None:
    claude = {"wire": "anthropic", "base_url": emu.url, "key": {"env": "KEY"}}
    llm = {"providers": {"claude": claude | {"model": MODELS["anthropic"]}}}
    with (
        AuditLog(tmp_path / "audit") as log,
        Client.from_config(llm, environ={"KEY": "any"}, audit=log) as client,
    ):
        chat = client.session("claude", system=LONG)
        for city in ("Rome", "Athens"):
            chat.send(f"{city}? " + "I have been there before. " * 300).result()
        summary = chat.summarize(1_000)
        assert "not sent" in repr(summary)
        assert "".join(summary.text) == SUMMARY
        done = summary.result()
        assert (chat.messages[0], done.dropped) == (done.summary, 3)
        assert chat.summarize(1_000).result().summary is None
        chat.send("And Oslo?").result()
        log.flush()
    rows = [row for _, row in calls(tmp_path / "audit")]
    assert [row.operation for row in rows] == ["chat", "chat", "summarize", "chat"]
    assert [row.verdict for row in rows] == ["first", "hit", "hit", "partial"]
    assert rows[-1].cause == "compaction"
