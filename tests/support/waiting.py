"""Waiting for a condition: tests wait for what happens, and never for a time.

    wait_until(lambda: not open_holds(daemon), "the call is settled")
    await until(lambda: transport.sent, "the request is sent")

The limit is the same everywhere and ends only a test that fails: machines are busy.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: Seconds until a test gives up, whatever it waits for.
PATIENCE = 120.0
_PAUSE = 0.005


def wait_until(condition: Callable[[], T | None], what: str = "") -> T:
    """Poll until `condition` holds, and give its value."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        _check(deadline, what)
        time.sleep(_PAUSE)
    return value


async def until(condition: Callable[[], object], what: str = "") -> Any:
    """`wait_until` in an event loop; the condition may be a coroutine function."""
    deadline = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        _check(deadline, what)
        await asyncio.sleep(_PAUSE)


def _check(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(f"not within {PATIENCE:g} s: {what or 'a condition'}")
