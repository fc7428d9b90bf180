"""Our client connected to llama.cpp on each wire it supports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from support.llama import MODEL, Llama
from support.llama_calls import WIRES
from support.llama_model import TEMPLATE

from anaphora.client.client import AsyncClient
from anaphora.client.observe import Watcher
from anaphora.tools import ToolRegistry

T = TypeVar("T")

#: The model's own chat template: the model calls a tool after a user message.
OWN = TEMPLATE.read_text(encoding="utf-8")


def changed(template: str, before: str, after: str) -> str:
    assert before in template
    return template.replace(before, after)


#: The same, but the model calls a tool after every message: an endless loop.
LOOPING = changed(OWN, "{%- if tools and last.role != 'tool' -%}", "{%- if tools -%}")


def with_client(
    llama: Llama, made: Callable[[AsyncClient], Awaitable[T]], watchers: Iterable[Watcher] = ()
) -> T:
    """The result of `made` with a client whose providers are named after the wires."""

    async def main() -> T:
        providers = {
            name: {"dialect": f"llamacpp/{name}", "base_url": llama.address, "model": MODEL}
            for name in WIRES
        }
        config = {"providers": providers}
        async with AsyncClient.from_config(config, environ={}, watchers=watchers) as client:
            return await made(client)

    return asyncio.run(main())


def registry() -> ToolRegistry:
    tools = ToolRegistry()

    @tools.tool
    def look(city: str, days: int) -> str:
        """Look at the weather of a place."""
        return f"{city} will have rain, {days} days of it."

    return tools
