"""Calls that overlap: an entry can be read once the response that writes it has begun."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import openai
import pytest
from support.emulated_client import connected
from support.waiting import PATIENCE

from anaphora import catalog, emulator
from anaphora.analysis.trace.format import read_line
from anaphora.analysis.trace.predict import Predictor
from anaphora.cache.simulator import Mark, Simulator, TokenRuns
from anaphora.emulator import EmulatorOptions, Latency
from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest
from anaphora.emulator.server import Emulator

LONG = "A beginning that stays the same. " * 400
MARKED: Any = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]
CLAUDE = "claude-opus-5-5"
CALLS = 20


@pytest.fixture(scope="module")
def serving() -> Iterator[Emulator]:
    """Without a latency: every response is sent as soon as it may be."""
    with emulator.running() as running:
        yield running


@pytest.fixture
def emu(serving: Emulator) -> Emulator:
    serving.reset()
    return serving


def question(number: int) -> list[Any]:
    return [{"role": "user", "content": f"Question {number}?"}]


def claude(client: Any, number: int) -> Any:
    return client.messages.create(
        model=CLAUDE, max_tokens=64, system=MARKED, messages=question(number)
    )


def gpt(client: Any, number: int) -> Any:
    system: Any = {"role": "system", "content": LONG}
    return client.chat.completions.create(model="gpt-4o", messages=[system, *question(number)])


def outcomes(emu: Emulator) -> list[str]:
    """`read` or `written` for each call, the first call first."""
    return ["read" if call["read"] else "new" for call in reversed(emu.requests())]


async def fan_out(emu: Emulator, provider: str, *, warm: bool) -> None:
    ask: Any
    client: Any
    if provider == "anthropic":
        ask = claude
        client = anthropic.AsyncAnthropic(base_url=emu.url, api_key="k", max_retries=0)
    else:
        ask = gpt
        client = openai.AsyncOpenAI(base_url=f"{emu.url}/v1", api_key="k", max_retries=0)
    async with client:
        if warm:
            await ask(client, 0)
        calls: list[Awaitable[Any]] = [ask(client, number) for number in range(warm, CALLS)]
        await asyncio.gather(*calls)


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
@pytest.mark.long
def test_calls_at_once_read_nothing(
    emu: Emulator, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine sends them one after another.
    monkeypatch.setattr("anaphora.emulator.server._TOGETHER", 1.0)
    monkeypatch.setattr("anaphora.emulator.server._LONGEST_HOLD", PATIENCE)
    asyncio.run(fan_out(emu, provider, warm=False))
    assert outcomes(emu) == ["new"] * CALLS


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_calls_after_a_first_one_all_read(emu: Emulator, provider: str) -> None:
    asyncio.run(fan_out(emu, provider, warm=True))
    assert outcomes(emu) == ["new"] + ["read"] * (CALLS - 1)


def test_threads_at_once_read_nothing(emu: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anaphora.emulator.server._TOGETHER", 1.0)
    monkeypatch.setattr("anaphora.emulator.server._LONGEST_HOLD", PATIENCE)
    barrier = threading.Barrier(CALLS)
    with (
        anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client,
        ThreadPoolExecutor(CALLS) as pool,
    ):

        def ask(number: int) -> int:
            barrier.wait()
            usage = claude(client, number).usage
            return int(usage.cache_creation_input_tokens)

        assert all(pool.map(ask, range(CALLS)))
        causes = [call["verdict"]["cause"] for call in emu.requests()]
    assert causes[0] == "not_yet_visible"


def test_latency_decides_what_overlaps() -> None:
    """A call that is sent while the first one waits for its response reads nothing, and the next
    one reads what both wrote."""
    engine = Engine(EmulatorOptions(latency=Latency(first=1.0)))
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    for number, now in enumerate((0.0, 0.9, 2.0)):
        fields = {"model": CLAUDE, "max_tokens": 64, "system": MARKED}
        body = json.dumps({**fields, "messages": question(number)}).encode()
        engine.respond(
            EmulatorRequest(method="POST", path="/v1/messages", headers=headers, body=body, now=now)
        )
    reads = [call["read"] for call in reversed(engine.journal.entries())]
    assert [bool(read) for read in reads] == [False, False, True]


@pytest.mark.long
def test_stream_is_readable_when_it_begins() -> None:
    """Anthropic's entries can be read while the response is still streamed, OpenAI's after it."""
    options = EmulatorOptions(latency=Latency(first=0.0, pace=0.2))
    with emulator.running(options) as emu:
        with (
            anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client,
            client.messages.stream(
                model=CLAUDE, max_tokens=64, system=MARKED, messages=question(1)
            ) as stream,
        ):
            next(iter(stream))
            claude(client, 2)
        assert outcomes(emu) == ["new", "read"]
        emu.reset()
        with openai.OpenAI(base_url=f"{emu.url}/v1", api_key="k", max_retries=0) as other:
            system: Any = {"role": "system", "content": LONG}
            chunks = other.chat.completions.create(
                model="gpt-4o", messages=[system, *question(1)], stream=True
            )
            next(iter(chunks))
            gpt(other, 2)
            assert outcomes(emu) == ["new", "new"]
            list(chunks)
            gpt(other, 3)
            assert outcomes(emu) == ["new", "new", "read"]


def test_aborted_call_writes() -> None:
    """A response that never begins does not keep its entry unreadable."""
    options = EmulatorOptions()
    with (
        emulator.running(options) as emu,
        anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client,
    ):
        with pytest.raises(anthropic.APIConnectionError):
            client.with_options(default_headers={"x-emulator-fault": "reset"}).messages.create(
                model=CLAUDE, max_tokens=64, system=MARKED, messages=question(1)
            )
        claude(client, 2)
        assert outcomes(emu) == ["new", "read"]


def test_sessions_predict_what_overlapping_calls_are_billed(emu: Emulator) -> None:
    async def run() -> None:
        async with connected(emu, ["anthropic"]) as made:
            sessions = [made.client.session(system=LONG) for _ in range(CALLS)]
            together = await asyncio.gather(
                *(session.send(f"Question {at}?") for at, session in enumerate(sessions))
            )
            after = await made.client.session(system=LONG).send("Another?")
        assert [response.record.usage.read for response in together] == [0] * CALLS
        assert [response.record.predicted for response in together] == [0] * CALLS
        assert after.record.usage.read == after.record.predicted
        assert after.record.predicted

    asyncio.run(run())


# ── Simulator ────────────────────────────────────────────────────────────────────────────────────


def marked_prompt(tail: object) -> TokenRuns:
    return TokenRuns.given([("shared", 5000), (tail, 20)], markers=(Mark(0, "5m"),))


@pytest.mark.parametrize("model", [("anthropic", CLAUDE), ("openai", "gpt-4o"), ("deepseek", "x")])
def test_entry_is_readable_with_the_first_response(model: tuple[str, str]) -> None:
    """The second call is answered first: from then on both beginnings can be read."""
    simulator = Simulator(catalog.rules(*model))
    late = simulator.start(marked_prompt(1), at=0.0)
    early = simulator.start(marked_prompt(2), at=0.1)
    assert (late.outcome.read, early.outcome.read) == (0, 0)
    assert simulator.predict(marked_prompt(3), at=0.2).read == 0
    early.respond(began=0.3, ended=0.3)
    assert simulator.predict(marked_prompt(3), at=0.4).read > 4000
    late.respond(began=9.0, ended=9.0)
    assert simulator.predict(marked_prompt(3), at=0.4).read > 4000


def trace(number: int, **times: float) -> bytes:
    messages = [
        {"role": "system", "content": LONG},
        {"role": "user", "content": f"Question {number}?"},
    ]
    call = {"messages": 2, "breakpoints": [[0, "5m"]], **times}
    fields = {"id": f"t{number}", "provider": "anthropic", "model": CLAUDE, "group": "run"}
    return json.dumps({**fields, "messages": messages, "calls": [call]}).encode()


@pytest.mark.parametrize(
    ("first", "rest", "reads"),
    [
        ({"t": 0.0, "t_end": 4.0}, 0.05, 0),
        ({"t": 0.0, "dur": 4.0}, 3.9, 0),
        ({"t": 0.0, "t_end": 4.0}, 4.1, 19),
        ({"t": 0.0, "t_end": 4.0, "t_first": 1.0}, 1.1, 19),
        ({"t": 0.0}, 0.05, 19),
    ],
)
def test_traces_with_overlapping_calls(first: dict[str, float], rest: float, reads: int) -> None:
    lines = [trace(0, **first)]
    lines += [trace(at, t=rest + at * 0.001, t_end=rest + 5) for at in range(1, CALLS)]
    played = Predictor().play([read_line(line, "file:1") for line in lines])
    assert sum(call.outcome.read > 0 for call in played) == reads
