"""`async for piece in chat.send("…").text`: the text of a turn or of a run, in pieces."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from support.emulated_client import WIRES, Connected, connected

from anaphora import Client, ToolRegistry, errors
from anaphora.client.response import TextStream
from anaphora.emulator.server import Emulator

SCRIPT = """
replies:
  - match: {text: fare}
    reply:
      thinking: I have to look.
      text: Let me look.
      tool_calls: [{name: look, id: call_1, arguments: {city: Rome}}]
  - match: {result: "89"}
    reply: {text: It is 89 EUR.}
"""


def tools() -> ToolRegistry:
    registry = ToolRegistry()

    @registry.tool
    def look(city: str) -> str:
        """Looks for a fare."""
        return f"{city}: 89"

    return registry


def sync_client(url: str) -> Client:
    claude = {"wire": "anthropic", "base_url": url, "key": {"env": "KEY"}}
    settings: dict[str, Any] = {"providers": {"p": {**claude, "model": "claude-sonnet-4-5"}}}
    return Client.from_config(settings, environ={"KEY": "any"})


async def read(stream: TextStream) -> list[str]:
    return [piece async for piece in stream]


def call_of(emulated: Connected, wire: str, way: str) -> Any:
    client = emulated.client
    if way == "client":
        return client.send("Tell me of Rome.", wire)
    return getattr(client.session(wire), way)("Tell me of Rome.")


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("way", ["send", "run", "client"])
def test_pieces_are_the_text_of_the_response(emu: Emulator, wire: str, way: str) -> None:
    async def main() -> None:
        async with connected(emu) as emulated:
            call = call_of(emulated, wire, way)
            pieces = await read(call.text)
            assert len(pieces) > 1
            assert all(pieces)
            response = await call
            assert "".join(pieces) == response.text
            assert len(emulated.transport.sent) == 1

    asyncio.run(main())


def test_text_has_neither_thinking_nor_arguments(scripted: Emulator) -> None:
    async def main() -> None:
        async with connected(scripted) as emulated:
            turn = emulated.client.session("anthropic", tools=tools()).send("The fare?")
            assert "".join(await read(turn.text)) == "Let me look."
            assert turn.response is not None
            assert turn.response.tool_calls

    asyncio.run(main())


def test_text_of_a_run_is_that_of_all_its_turns(scripted: Emulator) -> None:
    async def main() -> None:
        async with connected(scripted) as emulated:
            run = emulated.client.session("anthropic", tools=tools()).run("The fare?")
            assert "".join(await read(run.text)) == "Let me look.It is 89 EUR."
            assert (await run).text == "It is 89 EUR."

    asyncio.run(main())


@pytest.mark.parametrize("first", ["await", "events", "text"])
@pytest.mark.parametrize("name", ["send", "run"])
def test_text_comes_once(emu: Emulator, name: str, first: str) -> None:
    async def main() -> None:
        async with connected(emu) as emulated:
            call = getattr(emulated.client.session("anthropic"), name)("Hello?")
            if first == "await":
                await call
            else:
                assert [item async for item in (call if first == "events" else call.text)]
            with pytest.raises(errors.InvalidRequest, match=rf"consumed; call {name}\(\) again"):
                await read(call.text)
            assert len(emulated.transport.sent) == 1

    asyncio.run(main())


@pytest.mark.parametrize("name", ["send", "run"])
def test_failure_is_raised(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(emu) as emulated:
            emulated.transport.faults = ["cut; after=5"]
            chat = emulated.client.session("anthropic")
            pieces: list[str] = []

            async def stream() -> None:
                async for piece in getattr(chat, name)("Hello?").text:
                    pieces.append(piece)  # noqa: PERF401

            with pytest.raises(errors.Transport) as caught:
                await stream()
            assert caught.value.partial is not None
            assert "".join(pieces) == caught.value.partial.text

    asyncio.run(main())


def test_break_closes_the_connection(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu) as emulated:
            chat = emulated.client.session("anthropic")
            async for _ in chat.send("Hello?").text:
                break
            await chat.send("And now?")
            assert emulated.transport.in_use == 0
            async with chat.send("And then?").text as pieces:
                async for _ in pieces:
                    assert emulated.transport.in_use == 1
                    break
            assert emulated.transport.in_use == 0
            assert len(chat.messages) == 2

    asyncio.run(main())


def test_the_sync_client_streams_text(scripted: Emulator) -> None:
    with sync_client(scripted.url) as client:
        turn = client.session("p").send("Hello?")
        pieces = list(turn.text)
        assert len(pieces) > 1
        assert "".join(pieces) == turn.result().text
        with pytest.raises(errors.InvalidRequest, match="already consumed"):
            next(turn.text)
        assert "".join(client.send("Hello?", "p").text) == turn.result().text
        run = client.session("p", tools=tools()).run("The fare?")
        assert "".join(run.text) == "Let me look.It is 89 EUR."
        assert run.result().turns == 2


def test_break_ends_the_call_of_the_sync_client(emu: Emulator) -> None:
    with sync_client(emu.url) as client:
        chat = client.session("p")
        for _ in chat.send("Hello?").text:
            break
        assert chat.messages == ()
        assert chat.send("Hello?").result().text


@pytest.mark.parametrize("name", ["text", "events", "close"])
def test_block_ends_the_call_of_the_sync_client(emu: Emulator, name: str) -> None:
    """Also where the stream has a name, so that `break` alone does not end it."""
    with sync_client(emu.url) as client:
        chat = client.session("p")
        turn = chat.send("Hello?")
        stream = turn.text
        if name == "close":
            stream.close()  # nothing to end yet
            next(stream)
            stream.close()
            stream.close()
        elif name == "text":
            with stream as pieces:
                next(pieces)
        else:
            with turn as events:
                next(events)
        assert chat.messages == ()
        assert chat.send("Hello?").result().text
        assert stream is not None


# ── Calls that were forgotten ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["send", "run"])
def test_a_call_that_is_never_made_warns(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(emu) as emulated:
            chat = emulated.client.session("anthropic")
            line = sys._getframe().f_lineno + 2
            with pytest.warns(RuntimeWarning) as caught:
                getattr(chat, name)("Hello?")
            (warning,) = caught
            place = f"{__file__}:{line}"
            problem = "was never awaited or iterated over: nothing was sent"
            assert str(warning.message) == f"{name}(…) at {place} {problem}"
            assert (warning.filename, warning.lineno) == (__file__, line)
            with pytest.warns(RuntimeWarning, match="never awaited"):
                repr(getattr(chat, name)("Hello?").text)
            with pytest.warns(RuntimeWarning, match=r"send\(…\) .* never awaited"):
                emulated.client.send("Hello?", "anthropic")
            assert emulated.transport.sent == []

    asyncio.run(main())


def test_a_call_of_the_sync_client_that_is_never_made_warns(emu: Emulator) -> None:
    with sync_client(emu.url) as client:
        chat = client.session("p")
        ways = (chat.send, chat.run, lambda text: client.send(text, "p"), lambda _: client_text())

        def client_text() -> object:
            return client.send("Hello?", "p").text

        for way in ways:
            with pytest.warns(RuntimeWarning, match=r"nor its result\(\) called") as caught:
                way("Hello?")
            assert [warning.filename for warning in caught] == [__file__]
        assert emu.requests() == []


def test_a_call_that_was_made_or_could_not_be_made_is_silent(emu: Emulator) -> None:
    """Warnings are errors in these tests."""

    async def main() -> None:
        async with connected(emu) as emulated:
            chat = emulated.client.session("anthropic")
            with pytest.raises(errors.InvalidRequest):
                chat.run("Hello?", max_turns=0)
            with pytest.raises(errors.InvalidRequest):
                chat.send("Hello?", timeout=-1)
            await chat.send("Hello?")
            async with chat.send("Hello?"):
                pass
            async with chat.send("Hello?").text:
                pass
            # A task that is cancelled before its first step.
            for call in (chat.send("Hello?"), chat.run("Hello?")):
                task = asyncio.ensure_future(call)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            for call in (chat.send("Hello?"), chat.run("Hello?")):
                call.close()
            assert len(emulated.transport.sent) == 1

    asyncio.run(main())


@pytest.mark.parametrize("name", ["send", "run"])
def test_a_task_can_be_made_of_a_call(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(emu) as emulated:
            chat = emulated.client.session("anthropic")
            await chat.send("Hello?")
            async with asyncio.TaskGroup() as group:
                calls = [getattr(chat.fork(), name)(f"Question {number}") for number in range(3)]
                tasks = [group.create_task(call) for call in calls]
                assert f"coro=<{name}(…)()>" in repr(tasks[0])
            assert [await call for call in calls] == [task.result() for task in tasks]
            assert all(task.result().text for task in tasks)
            assert len(emulated.transport.sent) == 4
            # Cancelled in flight.
            emulated.transport.faults = ["timeout", None]
            task = asyncio.create_task(getattr(chat, name)("Hello?"))
            while len(emulated.transport.sent) == 4:  # noqa: ASYNC110
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await getattr(chat, name)("Hello?")).text

    asyncio.run(main())


def test_representations_name_what_to_do(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu) as emulated:
            chat = emulated.client.session("anthropic")
            turn, run = chat.send("Hello?"), chat.run("Hello?")
            assert repr(turn) == "<Turn: not sent; await it, or iterate over it>"
            assert repr(run) == "<Run: not sent; await it, or iterate over it>"
            assert repr(turn.text) == (
                "<TextStream: iterate over it, or await send(…) for its text>"
            )
            await turn
            await run
            assert repr(turn) == "<Turn: sent>"

    asyncio.run(main())
    with sync_client(emu.url) as client:
        turn = client.send("Hello?", "p")
        assert repr(turn) == "<SyncTurn: not sent; call its result(), or iterate over it>"
        assert repr(turn.text) == "<SyncTextStream: iterate over it, or use result().text>"
        assert "".join(turn.text)
        assert repr(turn) == "<SyncTurn: sent>"
