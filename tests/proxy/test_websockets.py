"""WebSockets through the proxy: OpenAI's SDK over Responses and Realtime, and other messages."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from support.raw_http import exchange, request_bytes
from support.waiting import PATIENCE
from support.websocket_emulator import websocket_emulator

from anaphora import emulator
from anaphora.cli.watch_output import call_lines
from anaphora.emulator import Emulator
from anaphora.proxy.observing import Observer
from anaphora.proxy.recording import RecordedUpstream
from anaphora.proxy.routes import default_routes
from anaphora.proxy.server import Proxy, running
from anaphora.replay.player import Player
from anaphora.traffic.calls import RelayedCall
from anaphora.traffic.judging import Judge
from anaphora.traffic.placing import Placer

KEY = "sk-canary-4Qm8"


@pytest.fixture(scope="module")
def provider() -> Iterator[Emulator]:
    with websocket_emulator() as emu:
        yield emu


class Calls:
    def __init__(self) -> None:
        self.ended: list[RelayedCall] = []

    def call_ended(self, call: RelayedCall) -> None:
        self.ended.append(call)


def sdk(proxy: Proxy) -> openai.OpenAI:
    url = f"{proxy.url_of('openai')}/v1"
    websocket_url = url.replace("http", "ws", 1)
    return openai.OpenAI(api_key=KEY, base_url=url, websocket_base_url=websocket_url)


def ask(connection: Any, **fields: Any) -> Any:
    """The response to a request, or the error that answers it."""
    connection.response.create(**fields)
    for event in connection:
        if event.type in ("response.completed", "response.done"):
            return event.response
        if event.type == "error":
            return event
    raise AssertionError("the connection was closed")


@contextlib.asynccontextmanager
async def realtime_server(usage: dict[str, Any] | None) -> AsyncIterator[str]:
    """A server that answers each message by a `response.done` with this usage."""

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_json({"type": "session.created", "session": {"model": "gpt-realtime-2"}})
        async for _ in socket:
            await socket.send_json({"type": "response.done", "response": {"usage": usage}})
        return socket

    app = web.Application()
    for path in ("/v1/realtime", "/v1/responses"):
        app.router.add_get(path, serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def served(
    usage: dict[str, Any] | None, talk: Callable[[str], Awaitable[None]], observer: Observer
) -> None:
    """Runs `talk` with the address of a proxy in front of such a server."""

    def through(base: str) -> None:
        async def run() -> None:
            await talk(proxy.url)

        with running(default_routes({"openai": base}), observers=[observer]) as proxy:
            asyncio.run(run())
            assert proxy.settle(PATIENCE)

    async def both() -> None:
        async with realtime_server(usage) as base:
            await asyncio.to_thread(through, base)

    asyncio.run(both())


#: The SDK's own way to open a connection.
sdk_warnings = pytest.mark.filterwarnings("ignore:connect\\(\\) must be used:DeprecationWarning")


# ── Responses ────────────────────────────────────────────────────────────────────────────────────


@sdk_warnings
def test_responses_are_judged_as_over_http(provider: Emulator) -> None:
    judge = Judge()
    with running(default_routes({"openai": provider.url}), observers=[judge]) as proxy:
        with sdk(proxy).responses.connect() as connection:
            first = ask(
                connection,
                model="gpt-5.5",
                instructions="Answer briefly. " * 800,
                input=[{"role": "user", "content": "One?"}],
                store=False,
            )
            # Only what is new, and the id of what it continues.
            ask(
                connection,
                model="gpt-5.5",
                instructions="Answer briefly. " * 800,
                input=[{"role": "user", "content": "Two?"}],
                previous_response_id=first.id,
                store=False,
            )
            refused = ask(connection, model="no-such-model", input="x")
        assert proxy.settle(PATIENCE)
    assert "no-such-model" in refused.error.message
    one, two, three = judge.calls
    assert [call.kind for call in judge.calls] == ["judged", "judged", "error"]
    assert (one.conversation, one.turn, two.conversation, two.turn) == (1, 1, 1, 2)
    assert two.verdict is not None
    assert two.verdict.result == "hit"
    assert two.usage is not None
    assert two.usage.read is not None
    assert two.usage.read > 1000
    assert three.status == 400
    assert judge.summary().spent_usd == (one.cost_usd or 0) + (two.cost_usd or 0)


def test_messages_that_are_no_calls_pass(provider: Emulator) -> None:
    calls = Calls()

    async def leave(url: str) -> None:
        async with aiohttp.ClientSession() as session, session.ws_connect(url) as socket:
            await socket.send_str('{"type": "response.create", "model": "gpt-5.5"')  # no JSON
            assert "not a JSON object" in (await socket.receive()).data
            await socket.send_bytes(b"\x00")
            assert "not a JSON object" in (await socket.receive()).data
            await socket.send_str('{"type": "response.steer"}')
            assert "response.create" in (await socket.receive()).data

    with running(default_routes({"openai": provider.url}), observers=[calls]) as proxy:
        asyncio.run(leave(f"{proxy.url}/openai/v1/responses"))
        assert proxy.settle(PATIENCE)
    assert calls.ended == []


def test_a_connection_that_is_closed_early_is_a_failed_call() -> None:
    calls = Calls()

    async def leave(url: str) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{url}/openai/v1/responses") as socket,
        ):
            create = '{"type": "response.create", "model": "gpt-5.5", "input": "x"}'
            await socket.send_str(create)
            assert (await socket.receive()).json()["type"] == "session.created"
            assert (await socket.receive()).json()["type"] == "response.done"  # no end of Responses

    served(None, leave, calls)
    [call] = calls.ended
    assert (call.method, call.outcome, call.error) == ("POST", "failed", "the WebSocket was closed")


def test_a_request_that_is_sent_ahead_is_part_of_the_next_one(provider: Emulator) -> None:
    """As Codex does: nothing is generated, and the next request continues it by its id."""
    judge = Judge()
    system = {"model": "gpt-5.5", "instructions": "Answer briefly. " * 800, "store": False}

    async def talk(url: str) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, headers={"authorization": f"Bearer {KEY}"}) as socket,
        ):
            previous: dict[str, str] = {}
            for question, generate in (("One?", False), ("Two?", True), ("Three?", True)):
                text = [{"role": "user", "content": question}]
                create = {"type": "response.create", **system, "input": text, **previous}
                await socket.send_str(json.dumps({**create, "generate": generate}))
                while (event := (await socket.receive()).json())["type"] != "response.completed":
                    assert event["type"] != "error", event
                previous = {"previous_response_id": event["response"]["id"]}

    with running(default_routes({"openai": provider.url}), observers=[judge]) as proxy:
        asyncio.run(talk(f"{proxy.url}/openai/v1/responses"))
        assert proxy.settle(PATIENCE)
    assert [(call.kind, call.conversation, call.turn) for call in judge.calls] == [
        ("judged", 1, 1),
        ("judged", 1, 2),
    ]
    assert judge.calls[1].verdict is not None
    assert judge.calls[1].verdict.result == "hit"


def test_a_message_that_cannot_be_read_is_relayed(
    provider: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    """An `input` that is no list, sent ahead: the provider says what is wrong."""

    async def talk(url: str) -> list[str]:
        found = []
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, headers={"authorization": f"Bearer {KEY}"}) as socket,
        ):
            for message in (
                '{"type": "response.create", "model": "gpt-5.5", "input": [], "generate": false}',
                '{"type": "response.create", "model": "gpt-5.5", "input": 5,'
                ' "previous_response_id": "resp_ahead0"}',
            ):
                await socket.send_str(message)
                while (event := (await socket.receive()).json()["type"]) == "response.created":
                    pass
                found.append(event)
        return found

    with running(default_routes({"openai": provider.url}), observers=[Calls()]) as proxy:
        url = f"{proxy.url}/openai/v1/responses"
        assert asyncio.run(talk(url)) == ["response.completed", "error"]
    assert "reading a WebSocket message failed: TypeError" in caplog.text


def test_two_streams_of_a_connection_are_two_calls(provider: Emulator) -> None:
    judge = Judge()

    async def both(url: str) -> set[str]:
        headers = {"authorization": f"Bearer {KEY}"}
        ended: set[str] = set()
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, headers=headers) as socket,
        ):
            for stream in ("left", "right"):
                text = {"model": "gpt-5.5", "input": f"I am {stream}.", "stream_id": stream}
                await socket.send_str(json.dumps({"type": "response.create", **text}))
            while len(ended) < 2:
                event = (await socket.receive()).json()
                if event["type"] == "response.completed":
                    ended.add(event["stream_id"])
        return ended

    with running(default_routes({"openai": provider.url}), observers=[judge]) as proxy:
        assert asyncio.run(both(f"{proxy.url}/openai/v1/responses")) == {"left", "right"}
        assert proxy.settle(PATIENCE)
    assert [call.kind for call in judge.calls] == ["judged", "judged"]


# ── Realtime ─────────────────────────────────────────────────────────────────────────────────────


@sdk_warnings
def test_realtime_is_counted_by_its_usage() -> None:
    judge = Judge()
    usage = {"input_tokens": 900, "output_tokens": 20, "total_tokens": 920}

    async def talk(url: str) -> None:
        base = f"{url}/openai/v1"
        client = openai.AsyncOpenAI(
            api_key=KEY, base_url=base, websocket_base_url=base.replace("http", "ws", 1)
        )
        async with client, client.realtime.connect(model="gpt-realtime-2") as connection:
            for _ in range(2):
                await connection.response.create()
                async for event in connection:
                    if event.type == "response.done":
                        assert event.response.usage is not None
                        assert event.response.usage.input_tokens == 900
                        break

    served(usage, talk, judge)
    one, two = judge.calls
    assert (one.kind, two.kind, two.model) == ("realtime", "realtime", "gpt-realtime-2")
    assert two.usage is not None
    assert (two.usage.input, two.usage.output) == (900, 20)
    assert two.cost_usd == (Decimal(4) * 900 + Decimal(24) * 20) / 1_000_000
    summary = judge.summary()
    assert (summary.realtime.calls, summary.judged.calls) == (2, 0)
    assert summary.spent_usd == summary.realtime.cost_usd > 0
    [line] = [str(line) for line in call_lines(two)]
    assert "of 900 tokens" in line


@pytest.mark.parametrize(
    ("usage", "reason"),
    [
        (None, ""),
        (
            {"input_tokens": 9, "output_tokens": 9, "output_token_details": {"audio_tokens": 5}},
            "it has audio or images, which have prices of their own",
        ),
    ],
)
def test_realtime_without_a_known_cost(usage: dict[str, Any] | None, reason: str) -> None:
    judge = Judge()

    async def once(url: str) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{url}/openai/v1/realtime") as socket,
        ):
            await socket.send_str('{"type": "response.create"}')
            assert (await socket.receive()).json()["type"] == "session.created"
            assert (await socket.receive()).json()["type"] == "response.done"

    served(usage, once, judge)
    [call] = judge.calls
    assert (call.kind, call.reason, call.cost_usd) == ("realtime", reason, None)
    assert judge.summary().spent_usd is None


# ── Refusals ─────────────────────────────────────────────────────────────────────────────────────


async def handshake_status(url: str, **headers: str) -> int:
    headers = {"authorization": f"Bearer {KEY}", **headers}
    try:
        async with aiohttp.ClientSession() as session, session.ws_connect(url, headers=headers):
            return 101
    except aiohttp.WSServerHandshakeError as problem:
        return problem.status


def test_a_refused_handshake_has_the_status_of_the_provider() -> None:
    with emulator.running() as without, running(default_routes({"openai": without.url})) as proxy:
        status = asyncio.run(handshake_status(f"{proxy.url}/openai/v1/responses"))
        assert status == 426  # Codex uses HTTP then
        status = asyncio.run(handshake_status(f"{proxy.url}/openai/v1/files"))
        assert status == 502  # a usual answer, which is no WebSocket
        status = asyncio.run(handshake_status(f"{proxy.url}/nowhere/v1/responses"))
        assert status == 404
    with running(default_routes({"openai": without.url})) as proxy:  # it has ended
        status = asyncio.run(handshake_status(f"{proxy.url}/openai/v1/responses"))
        assert status == 502


def test_recordings_and_markers_are_for_http(provider: Emulator, tmp_path: Path) -> None:
    routes = default_routes({"openai": provider.url})
    player = Player(tmp_path / "recordings", "all")
    with running(routes, upstream=RecordedUpstream(player)) as proxy:
        for upgrade in ("websocket", "WebSocket"):
            head = request_bytes(
                "GET", "/openai/v1/responses", connection="Upgrade", upgrade=upgrade
            )
            answer = exchange(proxy.port, head)
            assert answer.status == 426
            assert "upgrade: http/1.1" in answer.head
        assert asyncio.run(handshake_status(f"{proxy.url}/openai/v1/responses")) == 426
    placer = Placer()
    with running(routes, observers=[placer], place=placer) as proxy:
        assert asyncio.run(handshake_status(f"{proxy.url}/openai/v1/responses")) == 426


def test_pages_of_other_sites_open_no_websocket(provider: Emulator) -> None:
    with running(default_routes({"openai": provider.url})) as proxy:
        url = f"{proxy.url}/openai/v1/responses"
        assert asyncio.run(handshake_status(url, origin="https://evil.example")) == 403
