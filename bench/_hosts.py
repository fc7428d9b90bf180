"""Conversations of the client behind routers with three hosts and random routing, against the
emulator's engine in the same process."""

from __future__ import annotations

import asyncio

from _engine import EngineTransport

from anaphora import AsyncClient
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.engine import Engine

ROUTERS = {
    "openrouter": "deepseek/deepseek-v4-flash",
    "vercel": "deepseek/deepseek-v4-flash",
    "huggingface": "deepseek-ai/DeepSeek-V4-Flash",
}
HOSTS = ("DeepInfra", "Novita", "Together")
GUIDE = "A rule of the house, which every answer follows. " * 700
#: Settings of an app that chooses hosts itself, by which nothing is pinned.
CHOSEN = {"openrouter": '{"provider":{"sort":"price"}}'}


def read_share(
    router: str, hosts: tuple[str, ...], conversations: int, turns: int, extras: str = ""
) -> float:
    """The share of all input tokens that is read from caches."""
    options = EmulatorOptions(router_hosts=hosts, tool_calls=False)
    transport = EngineTransport(Engine(options))
    url = f"http://emulator.invalid/{router}"
    row = {"dialect": router, "base_url": url, "key": {"env": "KEY"}, "model": ROUTERS[router]}

    async def main() -> float:
        read = total = 0
        config = {"providers": {router: row}}
        client = AsyncClient.from_config(config, environ={"KEY": "any"}, transport=transport)
        async with client:
            for name in range(conversations):
                chat = client.session(
                    router,
                    system=f"Conversation {name}. {GUIDE}",
                    extras={"openai_chat": extras} if extras else None,
                )
                for turn in range(turns):
                    usage = (await chat.send(f"Question {turn}?")).usage
                    read, total = read + (usage.read or 0), total + (usage.input or 0)
        return read / total

    return asyncio.run(main())


def pinned_read_share(quick: bool) -> float:
    """The read share behind three hosts over that behind one, at the router that has the lowest."""
    size = (3, 8) if quick else (12, 24)
    ratios = {}
    for router in ROUTERS:
        one, three = read_share(router, HOSTS[:1], *size), read_share(router, HOSTS, *size)
        ratios[router] = three / one
        line = f"{router:16}read share with one host {one:.3f}, with three hosts {three:.3f}"
        if router in CHOSEN:
            line += f", unpinned {read_share(router, HOSTS, *size, CHOSEN[router]):.3f}"
        print(line)
    return min(ratios.values())
