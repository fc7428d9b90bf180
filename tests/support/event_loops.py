"""Tests that are coroutines: each runs in an event loop of its own."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from .waiting import until

P = ParamSpec("P")


def in_event_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is a coroutine."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def to_the_end() -> None:
            before = _watched_sockets()
            await test(*args, **kwargs)
            await _closed_connections(before)

        asyncio.run(to_the_end())

    return run


async def _closed_connections(before: int) -> None:
    """A TLS connection that is closed waits for the other side's last record. A loop that ends
    before leaves its socket to the garbage collector, which fails whatever test runs then."""
    await until(lambda: _watched_sockets() <= before, "connections are closed")


def _watched_sockets() -> int:
    return len(asyncio.get_running_loop()._selector.get_map())  # type: ignore[attr-defined]
