"""The client with a recorder: what ran against the emulator runs again without it."""

from __future__ import annotations

import asyncio
import base64
import errno
import functools
import json
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, ParamSpec
from urllib.parse import quote

import msgspec
import pytest
from client.test_faults import BRISK, FAULTS, HASTY, TOO_LONG
from support.emulated_client import KEY, LONG, MODELS, RecordingTransport, settings

import anaphora
from anaphora import AsyncClient, Client, emulator, errors
from anaphora.client.transport.over_aiohttp import AiohttpTransport
from anaphora.emulator import EmulatorOptions, Latency, Script
from anaphora.emulator.server import Emulator
from anaphora.replay import FixtureStore, Recorder
from anaphora.tools import ToolRegistry

pytestmark = pytest.mark.usefixtures("more_faults")

#: Nothing listens there.
NOWHERE = "http://127.0.0.1:9"
SCRIPT = """
replies:
  - match: {text: begin}
    reply: {text: One moment., tool_calls: [{name: step, arguments: {number: 1}}]}
  - match: {result: did 1}
    reply: {tool_calls: [{name: step, arguments: {number: 2}}]}
  - match: {result: did 2}
    reply: {text: All done.}
  - match: {text: a city}
    reply: {text: '{"name": "Zürich", "people": 450000}'}
"""
Journey = Callable[[AsyncClient, str], Awaitable[Any]]


P = ParamSpec("P")


def in_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that runs in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@pytest.fixture(scope="module")
def emu() -> Iterator[Emulator]:
    options = EmulatorOptions(
        script=Script.decode(SCRIPT, "script.yaml"), latency=Latency(first=0.0)
    )
    with emulator.running(options) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No crash is tested here."""
    monkeypatch.setattr("os.fsync", lambda _: None)


class City(msgspec.Struct):
    name: str
    people: int


def step(number: int) -> str:
    """Do a step."""
    return f"did {number}"


def facts(response: Any) -> Any:
    """What an app sees of a response, but for times."""
    return (
        response.text,
        response.raw_hash,
        response.usage,
        response.cost_usd,
        response.reply,
        response.record.request_id,
        response.parsed,
        [(each.status, each.error) for each in response.record.attempts],
    )


async def one_answer(client: AsyncClient, provider: str) -> Any:
    return facts(await client.send("Hello?", provider))


async def a_stream(client: AsyncClient, provider: str) -> Any:
    turn = client.send("Hello?", provider)
    events = [event async for event in turn]
    return events, facts(await turn)


async def a_session(client: AsyncClient, provider: str) -> Any:
    session = client.session(provider, system=LONG)
    return [facts(await session.send(text)) for text in ("One.", "Two.")]


async def a_tool_loop(client: AsyncClient, provider: str) -> Any:
    tools = ToolRegistry()
    tools.add(step)
    session = client.session(provider, tools=tools)
    run = await session.run("begin")
    return run.text, [facts(response) for response in run.responses]


async def structured_output(client: AsyncClient, provider: str) -> Any:
    response = await client.send("Name a city.", provider, output=City)
    assert response.parsed == City("Zürich", 450000)
    return facts(response)


async def the_same_again(client: AsyncClient, provider: str) -> Any:
    return [facts(await client.send("Hello?", provider)) for _ in range(2)]


async def many_at_once(client: AsyncClient, provider: str) -> Any:
    calls = [client.send(f"Hello {number % 2}?", provider) for number in range(4)]
    return sorted(facts(response)[:2] for response in await asyncio.gather(*calls))


JOURNEYS: list[Journey] = [
    one_answer, a_stream, a_session, a_tool_loop, structured_output, the_same_again, many_at_once,
]  # fmt: skip


def client(url: str, transport: Any, *names: str, **provider: Any) -> AsyncClient:
    config = {"providers": settings(url, names, **provider)}
    return AsyncClient.from_config(config, environ={"KEY": KEY}, transport=transport)


def contents(folder: Path) -> bytes:
    """All files of a folder."""
    return b"".join(path.read_bytes() for path in folder.iterdir())


@pytest.mark.parametrize("provider", MODELS)
@in_a_loop
async def test_recorded_run_is_repeated_offline(
    emu: Emulator, tmp_path: Path, provider: str
) -> None:
    async with client(emu.url, Recorder(tmp_path), provider) as live:
        expected = [await journey(live, provider) for journey in JOURNEYS]
    recorded = len(FixtureStore.open(tmp_path))
    recorder = Recorder(tmp_path, "none")
    async with client(NOWHERE, recorder, provider) as offline:
        for journey, result in zip(JOURNEYS, expected, strict=True):
            assert await journey(offline, provider) == result, journey.__name__
    assert recorder.report.replayed == recorded
    assert recorder.report.misses == ()
    assert KEY.encode() not in contents(tmp_path)


@pytest.mark.parametrize(("provider", "stream"), [("anthropic", False), ("openai_chat", True)])
@in_a_loop
async def test_failed_attempts_are_repeated_offline(
    emu: Emulator, tmp_path: Path, provider: str, stream: bool
) -> None:
    """Every fault of the emulator: the error, the attempts and their reasons."""

    async def outcome(connected: AsyncClient, fault: str) -> Any:
        turn = connected.send(f"Hello, {fault.replace('-', ' ')}?", provider)
        try:
            if stream:
                events = [event async for event in turn]
                return events, facts(await turn)
            return facts(await turn)
        except errors.Upstream as error:
            if fault == TOO_LONG:  # until a date, which is a whole second
                return type(error), error.status, pytest.approx(error.retry_after, abs=2)
            return type(error), error.args, error.status, error.retry_after
        except errors.Transport as error:
            return type(error), error.phase
        except errors.AnaphoraError as error:
            return type(error), error.args

    # The client makes no call for as long as `retry-after` asks.
    ordered = sorted(FAULTS, key=lambda fault: fault == TOO_LONG)
    transport = RecordingTransport()
    recorder = Recorder(tmp_path, transport=transport)
    expected = {}
    async with client(emu.url, recorder, provider, **HASTY) as live:
        for fault in ordered:
            transport.faults = [fault, fault, None]
            expected[fault] = await outcome(live, fault)
    await transport.close()
    async with client(NOWHERE, Recorder(tmp_path, "none"), provider, **HASTY) as offline:
        for fault in ordered:
            assert await outcome(offline, fault) == expected[fault], fault


@in_a_loop
async def test_retried_attempt_is_repeated_offline(emu: Emulator, tmp_path: Path) -> None:
    transport = RecordingTransport()
    transport.faults = ["529", None]
    async with client(
        emu.url, Recorder(tmp_path, transport=transport), "anthropic", **BRISK
    ) as live:
        expected = facts(await live.send("Hello?"))
    await transport.close()
    assert [status for status, _ in expected[-1]] == [529, 200]
    async with client(NOWHERE, Recorder(tmp_path), "anthropic", **BRISK) as offline:
        assert facts(await offline.send("Hello?")) == expected


# ── Ways to use it ───────────────────────────────────────────────────────────────────────────────


def test_synchronous_client(emu: Emulator, tmp_path: Path) -> None:
    texts = []
    for url in (emu.url, NOWHERE):
        environ = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url}
        recorder = anaphora.replay.Recorder(tmp_path)
        with Client.from_env(environ, transport=recorder) as sync:
            texts.append(sync.complete("Hello?", model="claude-sonnet-4-5").text)
    assert texts[0] == texts[1]


@in_a_loop
async def test_recorder_is_a_transport_by_itself(emu: Emulator, tmp_path: Path) -> None:
    """Without the client's own connections, as a transport below another one."""

    class Below:
        def __init__(self, recorder: Recorder) -> None:
            self.send, self.close = recorder.send, recorder.close

    for url in (emu.url, NOWHERE):
        below = Below(Recorder(tmp_path))
        async with client(url, below, "anthropic") as connected:
            await connected.send("Hello?")
        await below.close()


@in_a_loop
async def test_one_recorder_for_several_clients(emu: Emulator, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for provider in ("anthropic", "openai_chat"):
        async with client(emu.url, recorder, provider) as connected:
            await connected.send("Hello?")
    assert recorder.report.recorded == 2


@in_a_loop
async def test_proxy_and_certificates_of_the_client_are_used(tmp_path: Path) -> None:
    """The recorder is put over the transport that the client makes for a provider."""
    recorder, seen = Recorder(tmp_path), list[Any]()
    over = recorder.over

    def noting(transport: Any) -> Any:
        seen.append(transport)
        return over(transport)

    recorder.over = noting  # type: ignore[method-assign]
    async with client(NOWHERE, recorder, "anthropic", retry={"max_attempts": 1}) as connected:
        with pytest.raises(errors.Transport):
            await connected.send("Hello?")
    assert [type(each) for each in seen] == [AiohttpTransport]


@in_a_loop
async def test_stream_keeps_its_cuts_and_its_pace(emu: Emulator, tmp_path: Path) -> None:
    transport = RecordingTransport()
    transport.faults = ["slow-drip; seconds=0.01"]
    async with client(emu.url, Recorder(tmp_path, transport=transport), "anthropic") as live:
        events = [event async for event in live.send("Hello?")]
    await transport.close()
    (entry,) = FixtureStore.open(tmp_path).entries
    pieces = FixtureStore.open(tmp_path).fixture(entry.path).pieces
    assert len(pieces) > 5
    loop = asyncio.get_running_loop()
    for pace in (True, False):
        async with client(NOWHERE, Recorder(tmp_path, pace=pace), "anthropic") as offline:
            started = loop.time()
            assert [event async for event in offline.send("Hello?")] == events
            if pace:  # never faster than it came
                assert loop.time() - started >= pieces[-1].seconds


@in_a_loop
async def test_stream_that_was_left_is_recorded_as_far_as_it_was_read(
    emu: Emulator, tmp_path: Path
) -> None:
    async def first_events(connected: AsyncClient) -> list[Any]:
        events = []
        async for event in connected.send("Hello?"):
            events.append(event)
            if len(events) == 3:
                break
        await asyncio.sleep(0)
        return events

    async with client(emu.url, Recorder(tmp_path), "anthropic") as live:
        events = await first_events(live)
    async with client(NOWHERE, Recorder(tmp_path, "none"), "anthropic") as offline:
        assert await first_events(offline) == events


@in_a_loop
async def test_answer_is_not_lost_when_it_cannot_be_recorded(
    emu: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = client(emu.url, Recorder(tmp_path), "anthropic")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    response = await connected.send("Hello?")
    assert response.text
    with pytest.raises(errors.Io, match=r"1 answer was not recorded.*No space left"):
        await connected.close()


@in_a_loop
async def test_miss_is_not_retried(emu: Emulator, tmp_path: Path) -> None:
    async with client(emu.url, Recorder(tmp_path), "anthropic") as live:
        await live.send("Hello?")
    recorder = Recorder(tmp_path)
    async with client(NOWHERE, recorder, "anthropic") as offline:
        with pytest.raises(errors.NoFixture, match=r'recorded "Hello\?", asked "Hello!"'):
            await offline.send("Hello!")
    assert len(recorder.report.misses) == 1


@in_a_loop
async def test_key_is_nowhere_in_the_folder(tmp_path: Path) -> None:
    """However the provider repeats it, and the app writes it into its prompt."""
    forms = [
        KEY,
        json.dumps(KEY),
        quote(KEY, safe=""),
        base64.b64encode(KEY.encode()).decode(),
        "".join(f"%{byte:02X}" for byte in KEY.encode()),
    ]

    class Echo:
        """Answers with every form of the key, cut within each of them."""

        status = 200
        headers = {"content-type": "application/json", "x-echo": KEY, "set-cookie": f"k={KEY}"}  # noqa: RUF012

        def __init__(self) -> None:
            text = json.dumps(" ".join(forms))
            self.data = (
                '{"id":"m","type":"message","role":"assistant","model":"m","stop_reason":"end_turn",'
                '"usage":{"input_tokens":1,"output_tokens":1},"content":[{"type":"text","text":'
                f"{text}}}]}}"
            ).encode()

        async def send(self, request: Any) -> Echo:
            assert KEY in dict(request.headers).values()
            return self

        async def read(self) -> bytes:
            return self.data

        async def __aiter__(self) -> Any:
            for start in range(0, len(self.data), 5):
                yield self.data[start : start + 5]

        async def close(self) -> None:
            pass

    prompt = f"Is it {' '.join(forms)}?"
    for streams in (False, True):
        async with client(
            NOWHERE, Recorder(tmp_path, "new", transport=Echo()), "anthropic"
        ) as live:
            turn = live.send(prompt)
            if streams:  # read piece by piece
                assert [event async for event in turn]
            await turn
    content = contents(tmp_path)
    assert content.count(b"<secret>") > len(forms)
    for form in forms:
        assert form.strip('"').encode() not in content
    assert KEY.encode().hex().encode() not in content.replace(b"\\u00", b"").lower()
