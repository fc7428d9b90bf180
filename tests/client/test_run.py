"""The tool loop: its bounds, its tools, and going on after a crash."""

from __future__ import annotations

import asyncio
import threading
from decimal import Decimal
from typing import Any

import pytest
from support.emulated_client import LONG, WIRES, Connected, connected
from support.waiting import PATIENCE, until

from anaphora import errors
from anaphora.client.session import Session
from anaphora.client.session.run import RunResult
from anaphora.emulator.server import Emulator
from anaphora.tools import ToolRegistry
from anaphora.values import Message, ReplyEnd, ToolResult, from_json, to_json

SCRIPT = """
replies:
  - match: {text: begin}
    reply:
      text: First I do two things.
      tool_calls:
        - {name: step, id: call_1, arguments: {number: 1}}
        - {name: step, id: call_2, arguments: {number: 2}}
  - match: {result: did 2}
    reply:
      tool_calls: [{name: step, id: call_3, arguments: {number: 3}}]
  - match: {result: did 3}
    reply:
      tool_calls: [{name: step, id: call_4, arguments: {number: 4}}]
  - match: {result: did 4}
    reply: {text: All done.}
  - match: {result: out of order}
    reply: {text: I see that it failed.}
  - match: {text: cut off}
    reply:
      tool_calls: [{name: step, id: call_9, arguments: {number: 9}}]
      stop: length
  - match: {text: cannot}
    reply: {refusal: I had rather not.}
  - match: {text: rest}
    reply: {text: Half of it., stop: pause}
"""
both = pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
#: Pauses exist with Anthropic only.
HOME = "anthropic"


def steps(done: list[int], wait: asyncio.Event | None = None, at: int = 0) -> ToolRegistry:
    """A tool that keeps what it did; at one of its calls it waits."""
    registry = ToolRegistry()

    @registry.tool
    async def step(number: int) -> str:
        """Does a step."""
        if wait is not None and number == at:
            await wait.wait()
        done.append(number)
        return f"did {number}"

    return registry


async def ran(chat: Session, content: str | None, *, stream: bool, **bounds: Any) -> RunResult:
    running = chat.run(content, **bounds)
    if not stream:
        return await running
    steps = [step async for step in running]
    assert running.result is not None
    assert sum(isinstance(step, ReplyEnd) for step in steps) == running.result.turns
    return running.result


def roles(chat: Session) -> str:
    """The first letters."""
    return "".join(message.role[0] for message in chat.messages)


# ── Bounds ───────────────────────────────────────────────────────────────────────────────────────


@both
def test_run_ends_when_the_model_is_done(scripted: Emulator, stream: bool) -> None:
    async def main() -> None:
        done: list[int] = []
        async with connected(scripted, [HOME]) as emulated:
            chat = emulated.client.session(HOME, system=LONG, tools=steps(done))
            found = await ran(chat, "begin", stream=stream)
            assert (found.stop_reason, found.turns, found.text) == ("done", 4, "All done.")
            assert sorted(done) == [1, 2, 3, 4]
            assert roles(chat) == "uatatata"
            assert found.cost_usd == chat.cost_usd
            assert found.seconds > 0
            hits = [answer.verdict.result for answer in found.responses if answer.verdict]
            assert hits == ["first", "hit", "hit", "hit"]

    asyncio.run(main())


@both
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_max_turns_bounds_a_run_that_can_be_continued(
    scripted: Emulator, turns: int, stream: bool
) -> None:
    async def main() -> None:
        done: list[int] = []
        async with connected(scripted, [HOME]) as emulated:
            chat = emulated.client.session(HOME, tools=steps(done))
            first = await ran(chat, "begin", stream=stream, max_turns=turns)
            assert (first.stop_reason, first.turns) == ("turns", turns)
            assert roles(chat)[-1] == "t"  # every tool call has a result, so the run can continue
            rest = await ran(chat, None, stream=stream)
            assert (rest.stop_reason, rest.turns) == ("done", 4 - turns)
            assert sorted(done) == [1, 2, 3, 4]
            assert len(emulated.transport.sent) == 4

    asyncio.run(main())


@both
def test_max_cost_bounds_a_run(scripted: Emulator, stream: bool) -> None:
    async def main() -> None:
        async with connected(scripted, [HOME]) as emulated:
            chat = emulated.client.session(HOME, tools=steps([]))
            found = await ran(chat, "begin", stream=stream, max_cost_usd="0.000001")
            assert (found.stop_reason, found.turns) == ("cost_usd", 1)
            assert found.cost_usd is not None
            assert found.cost_usd > Decimal("0.000001")
            again = emulated.client.session(HOME, tools=steps([]))
            found = await ran(again, "begin", stream=stream, max_cost_usd=100)
            assert found.stop_reason == "done"

    asyncio.run(main())


def test_run_with_a_cost_bound_needs_a_price(scripted: Emulator) -> None:
    async def main() -> None:
        async with connected(scripted, ["ollama"]) as emulated:
            chat = emulated.client.session("ollama", tools=steps([]))
            with pytest.raises(errors.InvalidRequest, match="max_cost_usd"):
                await chat.run("begin", max_cost_usd=1)
            assert not emulated.transport.sent

    asyncio.run(main())


@both
def test_seconds_bound_a_turn(scripted: Emulator, stream: bool) -> None:
    """The turn under way is given up, and may be made again."""

    async def main() -> None:
        done: list[int] = []
        async with connected(scripted, [HOME]) as emulated:
            chat = emulated.client.session(HOME, tools=steps(done))
            emulated.transport.faults = [None, "timeout"]
            found = await ran(chat, "begin", stream=stream, max_seconds=0.4)
            assert (found.stop_reason, found.turns) == ("seconds", 1)
            assert roles(chat) == "uat"
            assert [record.error for record in emulated.records] == [None, "Timeout"]
            emulated.transport.faults = []
            assert (await ran(chat, None, stream=stream)).text == "All done."
            assert sorted(done) == [1, 2, 3, 4]

    asyncio.run(main())


def test_seconds_bound_the_tools(scripted: Emulator) -> None:
    async def main() -> None:
        done: list[int] = []
        async with connected(scripted, [HOME]) as emulated:
            never = asyncio.Event()
            chat = emulated.client.session(HOME, tools=steps(done, never, at=2))
            found = await ran(chat, "begin", stream=False, max_seconds=0.3)
            assert (found.stop_reason, found.turns) == ("seconds", 1)
            assert done == [1]
            one, two = (part for part in chat.messages[-1].parts if isinstance(part, ToolResult))
            assert (one.error, one.content) == (False, "did 1")
            assert two.error
            assert "timed out" in str(two.content)

    asyncio.run(main())


@both
@pytest.mark.parametrize("text, stopped", [("cut off", "length"), ("cannot", "refusal")])
def test_other_stop_reasons_end_the_run_after_one_turn(
    scripted: Emulator, text: str, stopped: str, stream: bool
) -> None:
    """Cut off in the middle of a call: it is not made."""

    async def main() -> None:
        done: list[int] = []
        async with connected(scripted, [HOME]) as emulated:
            chat = emulated.client.session(HOME, tools=steps(done))
            found = await ran(chat, text, stream=stream)
            assert (found.stop_reason, found.turns) == (stopped, 1)
            assert not done

    asyncio.run(main())


@both
@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses", "gemini"])
def test_refusal_ends_the_run_on_other_wires(scripted: Emulator, wire: str, stream: bool) -> None:
    async def main() -> None:
        async with connected(scripted, [wire]) as emulated:
            found = await ran(emulated.client.session(wire), "cannot", stream=stream)
            assert (found.stop_reason, found.turns) == ("refusal", 1)

    asyncio.run(main())


@both
def test_pause_does_not_end_the_run(scripted: Emulator, stream: bool) -> None:
    """The model gets its partial reply back and continues."""

    async def main() -> None:
        async with connected(scripted, [HOME]) as emulated:
            chat = emulated.client.session(HOME)
            found = await ran(chat, "rest", stream=stream)
            assert [answer.reply.stop_reason for answer in found.responses] == ["pause", "end"]
            assert roles(chat) == "uaa"
            assert b"Half of it." in emulated.transport.bodies[-1]

    asyncio.run(main())


@pytest.mark.parametrize("turns", [0, -1])
def test_zero_turns_are_rejected(scripted: Emulator, turns: int) -> None:
    async def main() -> None:
        async with connected(scripted, [HOME]) as emulated:
            with pytest.raises(errors.InvalidRequest, match="max_turns"):
                emulated.client.session(HOME).run("begin", max_turns=turns)

    asyncio.run(main())


# ── Tools ────────────────────────────────────────────────────────────────────────────────────────


def test_tools_run_in_parallel_by_default(scripted: Emulator) -> None:
    """Two that wait for each other end only when both run."""

    async def main() -> None:
        async with connected(scripted, [HOME]) as emulated:
            met, seconds = threading.Barrier(2), PATIENCE
            registry = ToolRegistry()

            @registry.tool
            def step(number: int) -> str:
                """Does a step."""
                if number <= 2:
                    met.wait(seconds)
                return f"did {number}"

            chat = emulated.client.session(HOME, tools=registry)
            assert (await chat.run("begin")).text == "All done."
            met.reset()
            seconds = 0.1
            alone = emulated.client.session(HOME, tools=registry)
            await alone.run("begin", parallel=False, max_turns=1)
            results = [part for part in alone.messages[-1].parts if isinstance(part, ToolResult)]
            assert [result.error for result in results] == [True, True]

    asyncio.run(main())


@both
@pytest.mark.parametrize("wire", WIRES)
def test_failed_tool_is_a_result_for_the_model(scripted: Emulator, wire: str, stream: bool) -> None:
    async def main() -> None:
        registry = ToolRegistry()

        @registry.tool
        def step(number: int) -> str:
            """Does a step."""
            raise RuntimeError("out of order")

        async with connected(scripted, [wire]) as emulated:
            chat = emulated.client.session(wire, tools=registry)
            found = await ran(chat, "begin", stream=stream)
            assert (found.stop_reason, found.text) == ("done", "I see that it failed.")
            results = [part for part in chat.messages[2].parts if isinstance(part, ToolResult)]
            assert [result.error for result in results] == [True, True]
            assert "out of order" in str(results[0].content)

    asyncio.run(main())


def test_without_a_registry_the_app_adds_the_results(scripted: Emulator) -> None:
    async def main() -> None:
        async with connected(scripted, [HOME]) as emulated:
            chat = emulated.client.session(HOME, tools=steps([]).tools())
            with pytest.raises(errors.InvalidRequest, match="has no function to run it"):
                await chat.run("begin")
            assert chat.last is not None
            results = [
                ToolResult(call_id=call.id, content="did 4", name=call.name)
                for call in chat.last.tool_calls
            ]
            assert (await chat.send(results)).text == "All done."

    asyncio.run(main())


def test_new_content_is_rejected_before_tool_results(scripted: Emulator) -> None:
    async def main() -> None:
        async with connected(scripted, [HOME]) as emulated:
            chat = emulated.client.session(HOME, tools=steps([]))
            await chat.send("begin")
            with pytest.raises(errors.InvalidRequest, match="has no result yet"):
                await chat.run("Something else")
            assert (await chat.run()).text == "All done."

    asyncio.run(main())


@both
def test_run_of_a_finished_conversation_is_an_error(scripted: Emulator, stream: bool) -> None:
    """In the session that made it, and in one that gets its messages."""

    async def main() -> None:
        async with connected(scripted, [HOME]) as emulated:
            chat = emulated.client.session(HOME, tools=steps([]))
            await chat.run("begin")
            again = emulated.client.session(HOME, tools=steps([]), messages=chat.conversation)
            sent = len(scripted.requests())
            for session in (chat, again):
                run = session.run()
                with pytest.raises(errors.InvalidRequest, match="ends with the model's answer"):
                    await (anext(aiter(run)) if stream else run)
            assert len(scripted.requests()) == sent
            assert (await chat.run("begin")).text == "All done."

    asyncio.run(main())


@both
def test_abandoned_run_allows_the_next_turn(scripted: Emulator, stream: bool) -> None:
    async def main() -> None:
        async with connected(scripted, [HOME]) as emulated:
            chat = emulated.client.session(HOME, tools=steps([]))
            async for event in chat.run("begin"):
                if isinstance(event, ReplyEnd) is stream:
                    break
            found = await chat.run()
            assert found.text == "All done."

    asyncio.run(main())


# ── After a crash ────────────────────────────────────────────────────────────────────────────────


async def crashes(emulated: Connected, wire: str, at: int, stream: bool) -> list[bytes]:
    """Runs until a tool hangs, and is killed there; what was saved until then."""
    saved: list[bytes] = []
    never = asyncio.Event()
    chat = emulated.client.session(
        wire,
        system=LONG,
        tools=steps([], never, at=at),
        save=lambda message: saved.append(to_json(message)),
    )
    task = asyncio.create_task(ran(chat, "begin", stream=stream))
    calls = {1: 1, 3: 2, 4: 3}[at]
    sent = emulated.transport.sent
    await until(lambda: len(sent) >= calls and len(saved) >= 2 * calls, "a tool hangs")
    killed = saved.copy()  # a process that is killed keeps no more results
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return killed


@pytest.mark.parametrize(
    "wire, at, stream",
    [
        pytest.param(
            wire, at, stream, marks=[pytest.mark.soak] if (number + at) % 2 == stream else []
        )
        for number, wire in enumerate(WIRES)
        for at in (1, 3, 4)
        for stream in (False, True)
    ],
)
def test_run_continues_after_a_crash(scripted: Emulator, wire: str, at: int, stream: bool) -> None:
    """From its saved messages another process sends the very bytes that the first one would have."""

    def unmarked(body: bytes) -> bytes:
        return body.replace(b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"30m"}', b"")

    async def main() -> None:
        async with connected(scripted, [wire]) as emulated:
            chat = emulated.client.session(wire, system=LONG, tools=steps([]))
            await ran(chat, "begin", stream=stream)
            whole = emulated.transport.bodies
            assert len(whole) == 4
        scripted.reset()
        async with connected(scripted, [wire]) as emulated:
            saved = await crashes(emulated, wire, at, stream)
            before = emulated.transport.bodies
        done: list[int] = []
        async with connected(scripted, [wire]) as emulated:
            messages = [from_json(data, Message) for data in saved]
            again = emulated.client.session(wire, system=LONG, tools=steps(done), messages=messages)
            found = await ran(again, None, stream=stream)
            assert found.text == "All done."
            assert sorted(done) == {1: [1, 2, 3, 4], 3: [3, 4], 4: [4]}[at]
            sent = [*before, *emulated.transport.bodies]
            if wire == "openai_responses":
                # There a planner marks again where it wrote last, and a new one cannot know that.
                sent, whole = list(map(unmarked, sent)), list(map(unmarked, whole))
            assert sent == whole
            assert again.messages == chat.messages

    asyncio.run(main())
