"""`anaphora.complete` and `anaphora.acomplete`: a model, a text, and keys from the environment."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import msgspec
import pytest
from support.raw_server import RawServer, raw_server
from support.waiting import PATIENCE

import anaphora
from anaphora.client import shared
from anaphora.client.config import environment
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest, MissingSecret, Transport

LONG = "You are terse and to the point. " * 450


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """An environment without any key, and a process without a shared client."""
    for name in environment.variable_names():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(shared, "_shared", shared._SharedClient())
    yield monkeypatch
    client = shared._shared._client
    if client is not None:
        client.close()


@pytest.fixture
def claude(variables: pytest.MonkeyPatch, emu: Emulator) -> pytest.MonkeyPatch:
    variables.setenv("ANTHROPIC_API_KEY", "any")
    variables.setenv("ANTHROPIC_BASE_URL", emu.url)
    return variables


async def through_loop(model: str, content: str) -> str:
    return (await anaphora.acomplete(model, content)).text


WIRES = [
    ("claude-sonnet-5-5", {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": "{url}"}, "anthropic"),
    ("gpt-5.2", {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "{url}/v1"}, "openai"),
    ("openai/gpt-5.2", {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "{url}/v1"}, "openai"),
    (
        "gemini/gemini-3.8-flash",
        {"GEMINI_API_KEY": "k", "GOOGLE_GEMINI_BASE_URL": "{url}"},
        "google",
    ),
    ("ollama/qwen3:0.6b", {"OLLAMA_HOST": "{url}/ollama"}, "ollama"),
    (
        "deepseek-v4-pro",
        {"DEEPSEEK_API_KEY": "k", "DEEPSEEK_BASE_URL": "{url}/deepseek"},
        "deepseek",
    ),
    (
        "openrouter/openai/o3",
        {"OPENROUTER_API_KEY": "k", "OPENROUTER_BASE_URL": "{url}/openrouter/api/v1"},
        "openrouter",
    ),
]


@pytest.mark.parametrize("model, values, provider", WIRES, ids=[model for model, *_ in WIRES])
@pytest.mark.parametrize("awaited", [False, True])
def test_a_model_and_a_text(
    variables: pytest.MonkeyPatch,
    emu: Emulator,
    model: str,
    values: dict[str, str],
    provider: str,
    awaited: bool,
) -> None:
    for name, value in values.items():
        variables.setenv(name, value.format(url=emu.url))
    if awaited:
        response = asyncio.run(anaphora.acomplete(model, "Hi"))
    else:
        response = anaphora.complete(model, "Hi")
    assert response.text
    assert response.record.provider == provider
    (request,) = emu.requests()
    assert request["provider"] == provider


def test_response_has_its_model_and_why_it_stopped(claude: pytest.MonkeyPatch) -> None:
    response = anaphora.complete("claude-sonnet-5-5", "Tell me a story.", max_tokens=3)
    assert (response.model, response.stop_reason) == ("claude-sonnet-5-5", "length")


def test_keywords_are_those_of_the_client(claude: pytest.MonkeyPatch) -> None:
    class Trip(msgspec.Struct):
        city: str

    response = anaphora.complete(
        "claude-sonnet-5-5", "Suggest a trip.", output=Trip, system="Be terse.", max_tokens=77
    )
    assert isinstance(response.parsed, Trip)
    assert response.record.max_tokens == 77
    again = asyncio.run(anaphora.acomplete("claude-sonnet-5-5", "Suggest a trip.", output=Trip))
    assert isinstance(again.parsed, Trip)
    with pytest.raises(InvalidRequest, match="did you mean `max_tokens`"):
        anaphora.complete("claude-sonnet-5-5", "Hi", max_token=7)  # type: ignore[call-overload]


def test_model_and_content_swapped(claude: pytest.MonkeyPatch, emu: Emulator) -> None:
    problem = "the model comes first: anaphora.complete\\('claude-sonnet-5-5', …\\)"
    with pytest.raises(InvalidRequest, match=problem):
        anaphora.complete("Hi", "claude-sonnet-5-5")
    with pytest.raises(InvalidRequest, match=problem):
        asyncio.run(anaphora.acomplete("What is this?", "claude-sonnet-5-5"))
    assert not emu.requests()
    for content in ("gpt-5 or claude-5, which?", "claude-opus-5"):
        assert anaphora.complete("claude-sonnet-5-5", content).text
    assert anaphora.complete(content="Hi", model="claude-sonnet-5-5").text


MESSAGES = [{"role": "user", "content": "a secret question"}]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (
            (),
            {"model": "claude-sonnet-5-5", "messages": MESSAGES, "max_tokens": 5},
            "messages: pass it as the second argument: anaphora.complete('claude-sonnet-5-5',"
            " [{'role': 'user', 'content': …}], max_tokens=…)",
        ),
        (
            ("gpt-5",),
            {"prompt": "Hi"},
            "prompt: pass it as the second argument: anaphora.complete('gpt-5', '…')",
        ),
        (
            ("What is this?",),
            {},
            "content: is missing; write anaphora.complete('claude-sonnet-5-5', '…')",
        ),
        ((), {}, "model: is missing; write anaphora.complete('claude-sonnet-5-5', '…')"),
        (
            ("Hi",),
            {"model": "claude-opus-5-5"},
            "model: the model comes first: anaphora.complete('claude-opus-5-5', …)",
        ),
        (
            ({"model": "claude-opus-5-5", "messages": MESSAGES},),
            {},
            "messages: pass it as the second argument: anaphora.complete('claude-opus-5-5',"
            " [{'role': 'user', 'content': …}])",
        ),
        (
            ("claude-opus-5-5", {"messages": MESSAGES}),
            {},
            "messages: pass it as the second argument: anaphora.complete('claude-opus-5-5',"
            " [{'role': 'user', 'content': …}])",
        ),
        (
            (MESSAGES, "claude-sonnet-5-5"),
            {},
            "model: must be a model's name, not list: the model comes first, as in"
            " anaphora.complete('claude-sonnet-5-5', …)",
        ),
    ],
)
def test_arguments_of_other_libraries_get_the_right_call(
    arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest) as synchronous:
        anaphora.complete(*arguments, **options)
    with pytest.raises(InvalidRequest) as asynchronous:
        asyncio.run(anaphora.acomplete(*arguments, **options))
    assert str(synchronous.value) == str(asynchronous.value) == message


def test_calls_share_what_was_learned(claude: pytest.MonkeyPatch, emu: Emulator) -> None:
    """The second call with the same beginning writes it to the cache, the third reads it."""
    for question in "abc":
        last = anaphora.complete("claude-sonnet-5-5", question, system=LONG)
    assert last.usage.read
    assert asyncio.run(anaphora.acomplete("claude-sonnet-5-5", "d", system=LONG)).usage.read


def test_keys_are_read_at_every_call(claude: pytest.MonkeyPatch, emu: Emulator) -> None:
    claude.delenv("ANTHROPIC_API_KEY")
    before = threads()
    for _ in range(2):
        with pytest.raises(MissingSecret, match="set ANTHROPIC_API_KEY"):
            anaphora.complete("claude-sonnet-5-5", "Hi")
    for key in ("one", "one", "two"):
        claude.setenv("ANTHROPIC_API_KEY", key)
        anaphora.complete("claude-sonnet-5-5", "Hi")
    two, again, one = [request["workspace"] for request in emu.requests()]
    assert one == again != two
    gc.collect()
    assert threads() == before + 1, "the former client has ended its thread"


def threads() -> int:
    return sum(thread.name == "anaphora" for thread in threading.enumerate())


def test_threads_share_one_client(claude: pytest.MonkeyPatch, emu: Emulator) -> None:
    before = threads()
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(anaphora.complete, "claude-sonnet-5-5", f"{n}") for n in range(16)]
        assert all(call.result().text for call in calls)
    assert threads() == before + 1
    assert len(emu.requests()) == 16


def test_loops_one_after_another_and_at_once(claude: pytest.MonkeyPatch, emu: Emulator) -> None:
    async def several() -> list[str]:
        calls = (through_loop("claude-sonnet-5-5", f"{n}") for n in range(3))
        return await asyncio.gather(*calls)

    for _ in range(3):
        assert all(asyncio.run(several()))
    with ThreadPoolExecutor(4) as pool:
        loops = [pool.submit(lambda: asyncio.run(several())) for _ in range(4)]
        assert all(all(loop.result()) for loop in loops)
    # A loop that is closed by hand.
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(several())
    loop.close()
    assert len(emu.requests()) == 3 * 3 + 4 * 3 + 3


def test_plain_call_inside_a_running_loop(claude: pytest.MonkeyPatch) -> None:
    """As in a notebook."""

    async def main() -> None:
        assert anaphora.complete("claude-sonnet-5-5", "Hi").text
        assert await through_loop("claude-sonnet-5-5", "Hi")

    asyncio.run(main())


def test_cancelled_call_is_cancelled_at_the_provider(variables: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        asked, left = asyncio.Event(), asyncio.Event()

        async def hang(
            server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await server.read(reader)
            asked.set()
            await reader.read()  # until the peer hangs up
            left.set()

        async with raw_server(hang) as server:
            variables.setenv("OPENAI_API_KEY", "any")
            variables.setenv("OPENAI_BASE_URL", server.url)
            call = asyncio.create_task(anaphora.acomplete("gpt-5.2", "Hi"))
            await asked.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await left.wait()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anaphora.acomplete("gpt-5.2", "Hi")

    asyncio.run(main())


def test_errors_are_those_of_the_call(variables: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with raw_server(_hang_up) as server:
            variables.setenv("OPENAI_API_KEY", "sk-canary")
            variables.setenv("OPENAI_BASE_URL", server.url)
            variables.setattr("random.random", lambda: 0.0)  # no waits between the attempts
            with pytest.raises(Transport) as raised:
                await anaphora.acomplete("gpt-5.2", "Hi", timeout=PATIENCE)
            assert "sk-canary" not in str(raised.value)

    asyncio.run(main())


async def _hang_up(
    server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    writer.close()


def test_context_variables_reach_the_call(claude: pytest.MonkeyPatch) -> None:
    """Tracing tools keep the current span there."""
    current = ContextVar("current", default="")
    seen: list[str] = []

    class Trip(msgspec.Struct):
        city: str

        def __post_init__(self) -> None:
            seen.append(current.get())

    async def main() -> None:
        current.set("here")
        await anaphora.acomplete("claude-sonnet-5-5", "Suggest a trip.", output=Trip)

    asyncio.run(main())
    assert seen == ["here"]


PROGRAM = """
import asyncio, os, sys, threading
import anaphora

def ask(question):
    assert anaphora.complete("claude-sonnet-5-5", question).text

async def main():
    await asyncio.gather(*(anaphora.acomplete("claude-sonnet-5-5", "Hi") for _ in range(3)))

{steps}
"""

STEPS = {
    "complete": "ask('Hi')",
    "acomplete": "asyncio.run(main()); asyncio.run(main())",
    "both": "ask('Hi'); asyncio.run(main()); ask('Hi')",
    "a changed key": "ask('Hi'); os.environ['ANTHROPIC_API_KEY'] = 'b'; ask('Hi')",
    "a loop that is not closed": "loop = asyncio.new_event_loop(); "
    "loop.run_until_complete(main()); loop.close()",
    "threads": "all = [threading.Thread(target=ask, args=('Hi',)) for _ in range(4)]\n"
    "for each in all: each.start()",
    "no call": "anaphora.complete",
    "an error at the end": "ask('Hi'); sys.exit(0)",
}
FORKS = {
    "after a call": """
ask("Hi")
if not (child := os.fork()):
    ask("Hi")
    asyncio.run(main())
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
ask("Hi")
""",
    "before any": """
if not (child := os.fork()):
    ask("Hi")
    sys.exit(7)
ask("Hi")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
""",
    "during calls of other threads": """
ask("Hi")  # everything is imported
going = [threading.Thread(target=ask, args=(f"{n}",)) for n in range(8)]
for each in going: each.start()
for _ in range(3):
    if not (child := os.fork()):
        ask("Hi")
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
for each in going: each.join()
""",
    "multiprocessing": """
import multiprocessing
ask("Hi")
with multiprocessing.get_context("fork").Pool(2) as pool:
    pool.map(ask, ["a", "b", "c"])
""",
}


def run(steps: str, emu: Emulator) -> None:
    values = {"ANTHROPIC_API_KEY": "a", "ANTHROPIC_BASE_URL": emu.url}
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM.format(steps=steps)],
        env=os.environ | values,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


#: Programs that `both` and `threads` have a part of.
LIKE_OTHERS = {"complete", "acomplete", "no call", "an error at the end"}


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(steps, id=name, marks=[pytest.mark.soak] if name in LIKE_OTHERS else [])
        for name, steps in STEPS.items()
    ],
)
def test_programs_end_without_noise(steps: str, emu: Emulator) -> None:
    if steps == STEPS["threads"] and (3, 12, 0) <= sys.version_info < (3, 12, 2):
        pytest.skip("Python 3.12.0 and 3.12.1 start no thread when the main thread has ended")
    run(steps, emu)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("steps", FORKS.values(), ids=FORKS)
@pytest.mark.long
def test_children_have_a_client_of_their_own(steps: str, emu: Emulator) -> None:
    run(steps, emu)
