"""The client without async, against the emulator and a server that falls silent."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from support.emulated_client import AT_ONCE
from support.raw_server import RawServer, raw_server
from support.waiting import PATIENCE

from anaphora import ToolRegistry, emulator, errors
from anaphora.client.background import Background
from anaphora.client.sync import Client
from anaphora.client.transport.timer import SharedTimer
from anaphora.values import Event, ReplyEnd, TextDelta

LONG = "A beginning that stays the same. " * 600


@pytest.fixture(scope="module")
def running() -> Iterator[emulator.Emulator]:
    with emulator.running(emulator.EmulatorOptions(latency=AT_ONCE)) as emu:
        yield emu


def client_of(url: str) -> Client:
    main = {"wire": "anthropic", "base_url": url, "key": {"env": "KEY"}}
    settings: dict[str, Any] = {"providers": {"main": {**main, "model": "claude-sonnet-4-5"}}}
    return Client.from_config(settings, environ={"KEY": "any"})


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "anaphora"}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threads()
    yield
    assert threads() == before


def test_single_call_and_turn_give_the_same_text(running: emulator.Emulator) -> None:
    with client_of(running.url) as client:
        assert client.providers == ("main",)
        answered = client.complete("Hello?", "main")
        assert answered.text
        assert client.send("Hello?", "main").result().text == answered.text


def test_session_keeps_its_messages_and_forks(running: emulator.Emulator) -> None:
    with client_of(running.url) as client:
        chat = client.session("main", system=LONG)
        assert (chat.preview("One?").usage.input or 0) > 1000
        assert (chat.messages, chat.last) == ((), None)
        first = chat.send("One?").result()
        turn = chat.send("Two?")
        events = list(turn)
        assert isinstance(events[-1], ReplyEnd)
        assert turn.response is chat.last is turn.result()
        assert chat.last is not None
        assert (chat.last.reply.usage.read or 0) > 0
        assert first.text
        assert len(chat.messages) == 4
        branch = chat.fork()
        branch.send("Three?").result()
        assert (len(chat.messages), len(branch.messages)) == (4, 6)
        assert (chat.provider, chat.model) == ("main", "claude-sonnet-4-5")
        chat.close()


def test_stream_prewarm_preview_and_state_work_in_the_sync_client(
    running: emulator.Emulator,
) -> None:
    with client_of(running.url) as client:
        assert client.notices == ()
        *_, last = client.stream("Hello?", "main")
        assert isinstance(last, ReplyEnd)
        chat = client.session("main", system=LONG)
        chat.prewarm()
        before = chat.preview("One?").size
        chat.state = lambda: "It is 09:41."
        assert chat.preview("One?").size > before
        assert (chat.send("One?").result().usage.read or 0) > 1000
        turn = chat.send("Two?")
        turn.result()
        with pytest.raises(errors.InvalidRequest, match="already consumed"):
            list(turn)


def test_call_works_inside_a_running_loop(running: emulator.Emulator) -> None:
    """As in a notebook."""

    async def cell() -> str:
        with client_of(running.url) as client:
            return client.complete("Hello?", "main").text

    assert asyncio.run(cell())


def test_tools_are_run(running: emulator.Emulator) -> None:
    registry = ToolRegistry()

    @registry.add
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    with client_of(running.url) as client:
        run = client.session("main", tools=registry).run("Hello?", max_turns=3)
        ran = run.result()
        assert run.result() is ran
        assert ran.turns >= 1
        again = client.session("main", tools=registry).run("Hello?", max_turns=3)
        assert list(again)
        assert again.result()


def test_errors_are_those_of_the_client(running: emulator.Emulator) -> None:
    client = client_of(running.url)
    with pytest.raises(errors.InvalidRequest, match="no provider 'other'"):
        client.session("other")
    client.close()
    with pytest.raises(errors.InvalidRequest, match="the client is closed"):
        client.complete("Hello?", "main")
    client.close()  # may be called again


CONSUMED: dict[str, Callable[[Client], Callable[[], object]]] = {
    "result": lambda client: client.send("Hello?", "main").result,
    "events": lambda client: partial(next, iter(client.send("Hello?", "main"))),
    "text": lambda client: partial(next, client.send("Hello?", "main").text),
    "run": lambda client: client.session("main").run("Hello?").result,
    "map": lambda client: client.map(["Hello?"], "main").result,
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", CONSUMED)
@pytest.mark.long
def test_call_of_a_closed_client_is_refused_and_not_forgotten(
    running: emulator.Emulator, kind: str
) -> None:
    with client_of(running.url) as client:
        consume = CONSUMED[kind](client)
    with pytest.raises(errors.InvalidRequest, match="the client is closed"):
        consume()
    del consume
    gc.collect()  # it does not warn that its result was never requested


def test_threads_share_a_client(running: emulator.Emulator) -> None:
    texts: list[str] = []
    with client_of(running.url) as client:

        def ask() -> None:
            texts.append(client.complete("Hello?", "main").text)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(texts) == 8


def test_garbage_collected_client_ends_its_thread(running: emulator.Emulator) -> None:
    client = client_of(running.url)
    client.complete("Hello?", "main")
    assert threads()
    del client
    gc.collect()


# ── Calls that are given up ──────────────────────────────────────────────────────────────────────

BEGINNING = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message",'
    b'"role":"assistant","model":"claude-sonnet-4-5","content":[],"stop_reason":null,'
    b'"stop_sequence":null,"usage":{"input_tokens":9,"output_tokens":1}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"text","text":""}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"Well"}}\n\n'
)


async def falls_silent(
    server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await server.read(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + BEGINNING)
    await reader.read()


@contextmanager
def silent_server() -> Iterator[tuple[Background, RawServer]]:
    background = Background("server")
    context = raw_server(falls_silent)
    server = background.call(context.__aenter__)

    async def leave() -> None:
        await context.__aexit__(None, None, None)

    try:
        yield background, server
    finally:
        background.close(leave)


def first_text(events: Iterator[Event]) -> str:
    return next(event.delta for event in events if isinstance(event, TextDelta))


def test_leaving_a_stream_early_cancels_it() -> None:
    with silent_server() as (background, server), client_of(server.url) as client:
        chat = client.session("main")
        events = chat.send("Hello?").__iter__()
        assert first_text(events) == "Well"
        events.close()
        background.call(server.closed)
        assert chat.messages == ()
        again = chat.send("Hello?").__iter__()  # nothing is under way any more
        assert first_text(again) == "Well"
        again.close()


@pytest.mark.parametrize("streamed", [True, False])
def test_keyboard_interrupt_cancels_the_call(streamed: bool) -> None:
    def interrupt_when_asked(server: RawServer) -> None:
        while not server.requests:
            threading.Event().wait(0.01)
        threading.Event().wait(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    with silent_server() as (background, server), client_of(server.url) as client:
        chat = client.session("main")
        other = threading.Thread(target=interrupt_when_asked, args=(server,))
        other.start()
        turn = chat.send("Hello?")
        wait: Callable[[], object] = (lambda: list(turn)) if streamed else turn.result
        with pytest.raises(KeyboardInterrupt):
            wait()
        other.join()
        background.call(server.closed)
        assert chat.messages == ()


def test_timed_out_call_closes_its_connection() -> None:
    with silent_server() as (background, server), client_of(server.url) as client:
        with pytest.raises(errors.Timeout):
            list(client.send("Hello?", "main", timeout=0.1))
        background.call(server.closed)


def test_closing_from_another_thread_cancels_calls() -> None:
    with silent_server() as (background, server), client_of(server.url) as client:
        events = iter(client.session("main").send("Hello?"))
        assert first_text(events) == "Well"
        closing = threading.Thread(target=client.close)
        closing.start()
        with pytest.raises(errors.Transport, match="the client was closed") as caught:
            next(events)
        assert not caught.value.retryable
        closing.join()
        background.call(server.closed)


# ── The thread ───────────────────────────────────────────────────────────────────────────────────


async def nothing() -> None:
    pass


def test_items_come_one_by_one_on_request() -> None:
    made: list[int] = []

    async def numbers() -> Any:
        for number in range(3):
            made.append(number)
            yield number

    background = Background("test")
    steps = background.iterate(numbers)
    assert made == []
    assert (next(steps), made) == (0, [0])
    assert (next(steps), made) == (1, [0, 1])
    assert (list(steps), made) == ([2], [0, 1, 2])
    background.close(nothing)


def test_stream_of_a_closed_client_says_so(running: emulator.Emulator) -> None:
    client = client_of(running.url)
    events = iter(client.send("Hello?", "main"))
    assert next(events)
    client.close()
    with pytest.raises(errors.Transport, match="the client was closed"):
        next(events)


def test_call_that_begins_while_the_client_is_closed_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited for ever."""
    background = Background("test")

    def close_meanwhile() -> None:
        monkeypatch.undo()
        closing = threading.Thread(target=background.close, args=(nothing,))
        closing.start()
        closing.join()

    monkeypatch.setattr("anaphora.client.background.call_site", close_meanwhile)
    with pytest.raises(errors.InvalidRequest, match="the client is closed"):
        background.call(nothing)


def test_timeout_applies_to_all_steps() -> None:
    async def slow() -> Any:
        async with asyncio.timeout(0.05):
            yield "first"
            await asyncio.sleep(60)

    background = Background("test")
    steps = background.iterate(slow)
    assert next(steps) == "first"
    with pytest.raises(TimeoutError):
        next(steps)
    background.close(nothing)


def test_sync_client_in_its_own_thread_is_rejected() -> None:
    background = Background("test")

    async def inner() -> None:
        background.call(nothing)

    with pytest.raises(errors.InvalidRequest, match="would never return"):
        background.call(inner)
    background.close(nothing)


def test_attributes_of_a_session_are_assigned_from_anywhere(running: emulator.Emulator) -> None:
    seen: list[object] = []

    def save(message: object) -> None:
        seen.append(chat.state)
        chat.state = "Saved."

    with client_of(running.url) as client:
        chat = client.session("main", state="Begun.", save=save)
        chat.send("Hello?").result()
        assert (seen[0], chat.state) == ("Begun.", "Saved.")
        with pytest.raises(AttributeError, match="cost_usd of a session cannot be assigned"):
            chat.cost_usd = None
    chat.state = None  # also when the client is closed
    assert chat.state is None


FORKING = """
import gc, os, sys
from anaphora import Client
from anaphora.errors import InvalidRequest

main = {"wire": "anthropic", "base_url": sys.argv[1], "key": {"env": "KEY"}, "model": "claude-sonnet-4-5"}
client = Client.from_config({"providers": {"main": main}}, environ={"KEY": "k"})
assert client.complete("Hello?", "main").text
if not (child := os.fork()):
    for use in (lambda: client.complete("Hello?", "main"), lambda: list(client.stream("Hi", "main"))):
        try:
            use()
        except InvalidRequest as error:
            print(error)
    client.close()
    with Client.from_config({"providers": {"main": main}}, environ={"KEY": "k"}) as own:
        assert own.complete("Hello?", "main").text
    del client
    gc.collect()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert client.complete("Hello?", "main").text
client.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_client_made_before_a_fork_says_what_to_do(running: emulator.Emulator) -> None:
    ran = subprocess.run(
        # Python warns that the client's thread is not in the child since 3.12.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, running.url],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("made before this process was forked") == 2


@pytest.mark.usefixtures("new_objects_only")
@pytest.mark.long
def test_clients_in_turn_leave_no_timers(running: emulator.Emulator) -> None:
    """Each client has a thread and an event loop of its own; calls alternate between the loops."""

    def timers() -> int:
        gc.collect()
        objects = gc.get_objects()
        handles = [each for each in objects if isinstance(each, asyncio.TimerHandle)]
        shared = [each for each in objects if isinstance(each, SharedTimer)]
        return len(shared) + sum(not handle.cancelled() for handle in handles)

    with client_of(running.url) as one, client_of(running.url) as two:
        counts = []
        for _ in range(3):
            for _ in range(20):
                one.complete("Hello?", "main")
                list(two.stream("Hello?", "main"))
            counts.append(timers())
        assert max(counts) < min(counts) + 10
