"""The event loop of a client, and closing it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.emulated_client import LONG, connected
from support.waiting import PATIENCE

from anaphora import AsyncClient
from anaphora.client.session import opening
from anaphora.client.transport import over_aiohttp
from anaphora.client.transport.over_aiohttp import AiohttpTransport
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest, Transport

MODEL = "claude-sonnet-4-5"


def made(url: str, wire: str = "anthropic", **more: Any) -> AsyncClient:
    one = {"wire": wire, "base_url": url, "key": {"env": "KEY"}, "model": MODEL} | more
    return AsyncClient.from_config({"providers": {"one": one, "two": one}}, environ={"KEY": "any"})


@pytest.mark.parametrize("provider", ["one", "two"], ids=["the same provider", "another"])
def test_client_belongs_to_one_loop(emu: Emulator, provider: str) -> None:
    client = made(emu.url)
    chat = client.session(provider)

    async def ask(name: str) -> None:
        await client.complete("Hello", name)

    async def go_through() -> None:
        async for _ in chat.send("Hello"):
            pass

    with asyncio.Runner() as home:
        home.run(ask("one"))
        for elsewhere in (ask(provider), go_through()):
            with pytest.raises(InvalidRequest, match="another event loop"):
                asyncio.run(elsewhere)
        home.run(client.close())


def test_close_does_not_wait_for_a_stopped_loop(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    transports: list[AiohttpTransport] = []

    class KeptTransport(AiohttpTransport):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            transports.append(self)

    monkeypatch.setattr(over_aiohttp, "AiohttpTransport", KeptTransport)
    client = made(emu.url)

    async def ask() -> None:
        await client.complete("Hello", "one")

    with asyncio.Runner() as home:
        home.run(ask())
        asyncio.run(asyncio.wait_for(client.close(), PATIENCE))
        (transport,) = transports
        home.run(transport.close())


def test_close_from_another_thread_runs_in_the_clients_loop(emu: Emulator) -> None:
    client = made(emu.url)
    failed: list[BaseException] = []

    async def main() -> None:
        await client.complete("Hello", "one")

        def close() -> None:
            try:
                asyncio.run(asyncio.wait_for(client.close(), PATIENCE))
            except BaseException as problem:
                failed.append(problem)

        await asyncio.to_thread(close)

    asyncio.run(main())
    assert failed == []


def test_closed_client_sends_nothing(emu: Emulator) -> None:
    async def main() -> None:
        async with made(emu.url) as client:
            chat = client.session("one")
            await chat.send("Hello")
        calls = len(emu.requests())
        with pytest.raises(InvalidRequest, match="closed"):
            await client.complete("Hello", "one")
        with pytest.raises(InvalidRequest, match="closed"):
            client.session("one")
        with pytest.raises(Transport, match="closed"):
            await chat.send("And now?")
        await client.close()
        assert (len(emu.requests()), len(chat.messages)) == (calls, 2)

    asyncio.run(main())


def test_unresponsive_provider_does_not_block_closing(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_RELEASE_TIMEOUT", 0.05)

    async def main() -> None:
        async with connected(emu, ["gemini"], model="gemini-2.0-flash") as emulated:
            chat = emulated.client.session("gemini", system=LONG * 3)
            await chat.send("One")
            await chat.send("Two")
            assert any("cachedContents" in request.url for request in emulated.transport.sent)
            emulated.transport.faults = ["timeout"]
            await asyncio.wait_for(emulated.client.close(), PATIENCE)
            assert emulated.transport.sent[-1].method == "DELETE"

    asyncio.run(main())
