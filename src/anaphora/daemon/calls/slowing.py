"""Delays the calls of an app as a limit in dollars nears: `slow_from` of its grant.

The cost is held first, which tells how much of the limits is used; then the call waits, and only
then for a provider's rate limits: a waiting call takes no place in them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from anaphora.client.limits import Admission
from anaphora.daemon.money.ledger import OpenHold
from anaphora.daemon.values import App
from anaphora.values import Notice

_MOST_SECONDS = 5.0


def delay(app: App, hold: OpenHold) -> float:
    """Seconds that a call waits: none at `slow_from`, 5 with the whole limit used."""
    slow_from = app.grant.llm.slow_from
    if slow_from is None or hold.share <= slow_from:
        return 0.0
    return _MOST_SECONDS * min(1.0, (hold.share - slow_from) / (1.0 - slow_from))


@asynccontextmanager
async def slowed_admission(
    admission: AbstractAsyncContextManager[Admission],
    app: App,
    hold: Callable[[], Awaitable[OpenHold]],
    waits: Callable[[float], None],
    deadline: float,
) -> AsyncIterator[Admission]:
    """Holds the cost of a call's first attempt and waits, at most half of the time until `deadline`
    (monotonic), before the rate limits admit it. `waits` is called with the seconds before."""
    held = await hold()
    seconds = min(delay(app, held), max(0.0, deadline - time.monotonic()) / 2)
    waits(seconds)
    if seconds:
        await asyncio.sleep(seconds)
    async with admission as admitted:
        yield admitted


def slowed_notices(seconds: float | None) -> tuple[Notice, ...]:
    if not seconds:
        return ()
    text = f"waited {seconds:.1f} s before it was sent: a limit in dollars is nearly used up"
    return (Notice("slowed_down", text, ""),)
