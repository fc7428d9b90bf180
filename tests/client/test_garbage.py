"""A call that is over leaves nothing for the garbage collector: a prompt of a megabyte would stay in
memory until it comes, and every next one would need memory that is new."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import anaphora
from anaphora.emulator.server import Emulator


async def _one_shot(client: Any) -> Callable[[], Awaitable[object]]:
    return lambda: client.complete("Good morning", "local", model="claude-sonnet-4-5")


async def _turn(client: Any) -> Callable[[], Awaitable[object]]:
    chat = client.session("local", model="claude-sonnet-4-5")
    return lambda: chat.send("Good morning")


async def _streamed_turn(client: Any) -> Callable[[], Awaitable[object]]:
    chat = client.session("local", model="claude-sonnet-4-5")

    async def stream() -> None:
        async for _ in chat.send("Good morning"):
            pass

    return stream


async def _left_over(url: str, way: Any) -> set[str]:
    """Our types among the objects that only the garbage collector frees after one call."""
    provider = {"wire": "anthropic", "base_url": url, "key": {"env": "KEY"}}
    settings = {"providers": {"local": provider}}
    async with anaphora.AsyncClient.from_config(settings, environ={"KEY": "k"}) as client:
        call = await way(client)
        await call()
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await call()
            gc.collect()
            return {
                type(one).__name__
                for one in gc.garbage
                if type(one).__module__.startswith("anaphora")
            }
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()


@pytest.mark.usefixtures("new_objects_only")
@pytest.mark.parametrize("way", [_one_shot, _turn, _streamed_turn])
def test_no_reference_cycles_are_left(emu: Emulator, way: Any) -> None:
    assert asyncio.run(_left_over(emu.url, way)) == set()
