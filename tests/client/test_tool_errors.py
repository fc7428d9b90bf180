"""Tools that fail: logged, in the result of the run, and what the model gets is configurable."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from support.emulated_client import WIRES, connected

import anaphora
from anaphora import Message, ToolRegistry, errors
from anaphora.client.session import Session
from anaphora.client.session.run import RunResult
from anaphora.emulator.server import Emulator
from anaphora.values import ToolCall, ToolResult

SCRIPT = """
replies:
  - match: {text: begin}
    reply:
      tool_calls:
        - {name: look, id: call_1, arguments: {city: Rome}}
        - {name: fail, id: call_2, arguments: {city: SECRET-CITY}}
        - {name: look, id: call_3, arguments: {city: Bern}}
  - match: {text: unknown}
    reply: {tool_calls: [{name: absent, id: call_1, arguments: {}}]}
  - match: {text: invalid}
    reply: {tool_calls: [{name: fail, id: call_1, arguments: {city: 7}}]}
  - match: {text: single}
    reply: {tool_calls: [{name: fail, id: call_1, arguments: {city: Rome}}]}
  - match: {result: "."}
    reply: {text: I see.}
"""
HOME = "anthropic"


class Broken(Exception):
    pass


def registry(problem: BaseException | None, calls: list[str] | None = None) -> ToolRegistry:
    tools = ToolRegistry()
    made = [] if calls is None else calls

    @tools.tool
    async def look(city: str) -> str:
        """Looks."""
        made.append(city)
        return f"found {city}."

    @tools.tool(timeout=0.01 if problem is None else None)
    async def fail(city: str) -> str:
        """Fails."""
        made.append(city)
        if problem is None:
            await asyncio.Event().wait()
        assert problem is not None
        raise problem

    return tools


def results(chat: Session) -> dict[str, ToolResult]:
    parts = [part for message in chat.messages for part in message.parts]
    return {part.call_id: part for part in parts if isinstance(part, ToolResult)}


async def ran(
    scripted: Emulator, content: str, problem: BaseException | None, **options: Any
) -> Any:
    async with connected(scripted, [HOME]) as emulated:
        chat = emulated.client.session(HOME, tools=registry(problem))
        result = await chat.run(content, **options)
        return result, results(chat)


def test_an_error_is_logged_and_in_the_result(
    scripted: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    problem = Broken("no seats at SECRET-HOST")
    with caplog.at_level(logging.DEBUG, "anaphora.tools"):
        result, sent = asyncio.run(ran(scripted, "begin", problem))
    assert isinstance(result, RunResult)
    assert (result.stop_reason, result.turns) == ("done", 2)
    (failed,) = result.tool_errors
    assert (failed.call.id, failed.call.name, failed.error) == ("call_2", "fail", problem)
    assert "raise problem" in failed.traceback
    assert sent["call_2"] == ToolResult(
        "call_2", "Broken: no seats at SECRET-HOST", error=True, name="fail"
    )
    assert (sent["call_1"].content, sent["call_3"].content) == ("found Rome.", "found Bern.")
    record, detail = (each for each in caplog.records if each.name == "anaphora.tools")
    assert (record.levelname, detail.levelname) == ("ERROR", "DEBUG")
    assert "the tool 'fail' failed: Broken at" in record.getMessage()
    assert "\n" not in record.getMessage()
    assert "raise problem" in detail.getMessage()  # the traceback, without frames of the library
    assert str(Path(anaphora.__file__).parent) not in detail.getMessage()
    # Neither arguments nor the exception's message.
    assert "SECRET" not in record.getMessage() + detail.getMessage()


FAILURES = [
    ("unknown", Broken(), errors.InvalidRequest, "there is no tool `absent`"),
    ("invalid", Broken(), errors.InvalidRequest, "city"),
    ("single", None, TimeoutError, "timed out after 0.01 s"),
    ("single", asyncio.CancelledError(), RuntimeError, "CancelledError"),
    ("single", Broken("full"), Broken, "Broken: full"),
]


@pytest.mark.parametrize(
    "content, problem, kind, message", FAILURES, ids=[str(row[2:]) for row in FAILURES]
)
def test_every_failure_takes_the_same_way(
    scripted: Emulator,
    caplog: pytest.LogCaptureFixture,
    content: str,
    problem: BaseException | None,
    kind: type[Exception],
    message: str,
) -> None:
    result, sent = asyncio.run(ran(scripted, content, problem))
    (failed,) = result.tool_errors
    assert isinstance(failed.error, kind)
    assert message in failed.message
    assert sent["call_1"].error
    assert sent["call_1"].content == failed.message
    assert [record.name for record in caplog.records] == ["anaphora.tools"]
    caplog.clear()
    with pytest.raises(kind) as caught:
        asyncio.run(ran(scripted, content, problem, on_tool_error="raise"))
    assert caught.value.__notes__[-1].startswith("raised by the tool ")
    assert len(caplog.records) == 1


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
@pytest.mark.parametrize("parallel", [False, True], ids=["serial", "parallel"])
def test_a_raised_error_leaves_a_run_that_continues(
    scripted: Emulator, wire: str, stream: bool, parallel: bool
) -> None:
    """The results of the other tools are kept, and only calls without a result are made again."""

    async def main() -> None:
        async with connected(scripted, [wire]) as emulated:
            calls: list[str] = []
            tools = registry(Broken("full"), calls)
            chat = emulated.client.session(wire, tools=tools)
            run = chat.run("begin", on_tool_error="raise", parallel=parallel)
            with pytest.raises(Broken, match="full"):
                await read(run) if stream else await run
            expected = ["call_1", "call_3"] if parallel else ["call_1"]
            assert [call_id[-6:] for call_id in names(chat)] == expected
            calls.clear()

            def fail(city: str) -> str:
                """Fails."""  # the same to the model
                calls.append(city)
                return "found it."

            tools.add(fail, replace=True)
            result = await chat.run()
            assert (result.stop_reason, result.text) == ("done", "I see.")
            assert len(results(chat)) == 3
            assert calls == (["SECRET-CITY"] if parallel else ["SECRET-CITY", "Bern"])

    async def read(run: Any) -> None:
        async for _ in run:
            pass

    def names(chat: Session) -> list[str]:
        """The ids that the script gives; some wires have their own."""
        order = {
            part.id: f"call_{number}"
            for message in chat.messages
            for number, part in enumerate(
                (part for part in message.parts if isinstance(part, ToolCall)), 1
            )
        }
        return [order[call_id] for call_id in results(chat)]

    asyncio.run(main())


async def later(call: ToolCall, error: Exception) -> str:
    await asyncio.sleep(0)
    return f"{call.name} is down ({type(error).__name__})."


@pytest.mark.parametrize(
    "decide, content, is_error",
    [
        (lambda call, error: f"{call.name}: try tomorrow.", "fail: try tomorrow.", True),
        (later, "fail is down (Broken).", True),
        (lambda call, error: ToolResult("any", "nothing found."), "nothing found.", False),
    ],
    ids=["text", "async", "result"],
)
def test_a_function_decides_what_the_model_gets(
    scripted: Emulator, decide: Any, content: str, is_error: bool
) -> None:
    result, sent = asyncio.run(ran(scripted, "begin", Broken("secret"), on_tool_error=decide))
    assert (sent["call_2"].content, sent["call_2"].error) == (content, is_error)
    assert len(result.tool_errors) == 1
    assert len(sent) == 3


def test_a_function_that_raises_ends_the_run(scripted: Emulator) -> None:
    def decide(call: ToolCall, error: Exception) -> str:
        raise PermissionError(json.loads(call.arguments)["city"]) from error

    def nothing(*_: object) -> None: ...

    async def main() -> None:
        async with connected(scripted, [HOME]) as emulated:
            chat = emulated.client.session(HOME, tools=registry(Broken()))
            with pytest.raises(PermissionError, match="SECRET-CITY"):
                await chat.run("begin", on_tool_error=decide)
            assert list(results(chat)) == ["call_1", "call_3"]
            with pytest.raises(errors.InvalidRequest, match="on_tool_error: must return a str"):
                await chat.run(on_tool_error=nothing)  # type: ignore[arg-type]
            with pytest.raises(errors.InvalidRequest, match="on_tool_error: must be 'report'"):
                chat.run(on_tool_error="ignore")  # type: ignore[call-overload]
            assert (await chat.run()).text == "I see."

    asyncio.run(main())


def test_the_bound_of_a_run_is_no_error_of_a_tool(scripted: Emulator) -> None:
    async def main() -> None:
        async with connected(scripted, [HOME]) as emulated:
            tools = ToolRegistry()

            @tools.tool
            async def fail(city: str) -> str:
                """Never ends."""
                await asyncio.Event().wait()
                return city

            chat = emulated.client.session(HOME, tools=tools)
            result = await chat.run("single", max_seconds=0.5, on_tool_error="raise")
            assert result.stop_reason == "seconds"
            assert isinstance(result.tool_errors[0].error, TimeoutError)

    asyncio.run(main())


@pytest.mark.parametrize("parallel", [True, False])
def test_cancelled_run_keeps_the_results_of_tools_that_have_ended(
    scripted: Emulator, parallel: bool
) -> None:
    async def main() -> None:
        async with connected(scripted, [HOME]) as emulated:
            tools, made, waiting = ToolRegistry(), [], asyncio.Event()

            @tools.tool
            async def look(city: str) -> str:
                """Looks."""
                made.append(city)
                return f"found {city}."

            @tools.tool
            async def fail(city: str) -> str:
                """Waits, the first time."""
                if not waiting.is_set():
                    waiting.set()
                    await asyncio.Event().wait()
                return f"seen {city}."

            saved: list[Message] = []
            chat = emulated.client.session(HOME, tools=tools, save=saved.append)
            task = asyncio.create_task(chat.run("begin", parallel=parallel))
            await waiting.wait()
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert list(results(chat)) == (["call_1", "call_3"] if parallel else ["call_1"])
            assert saved[-1] == chat.messages[-1]
            assert (await chat.run()).text == "I see."
            assert made == ["Rome", "Bern"]
            assert set(results(chat)) == {"call_1", "call_2", "call_3"}

    asyncio.run(main())


def test_cancelled_callback_keeps_the_results_of_the_other_tools(scripted: Emulator) -> None:
    async def main() -> None:
        async with connected(scripted, [HOME]) as emulated:
            asked = asyncio.Event()

            async def ask(call: ToolCall, error: Exception) -> str:
                asked.set()
                await asyncio.Event().wait()
                return f"{call.name}: {error}"

            made: list[str] = []
            chat = emulated.client.session(HOME, tools=registry(Broken("no"), made))
            task = asyncio.create_task(chat.run("begin", on_tool_error=ask))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert set(results(chat)) == {"call_1", "call_3"}
            await chat.run()
            assert sorted(made) == ["Bern", "Rome", "SECRET-CITY", "SECRET-CITY"]

    asyncio.run(main())
