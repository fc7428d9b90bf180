"""Delays the calls of an app as a limit in dollars nears: `slow_from` of its grant.

The cost is held first, which tells how much of the limits is used; then the call waits, and only
then for a provider's rate limits: a waiting call takes no place in them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType

import msgspec

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


class SlowedAdmission(msgspec.Struct, eq=False):
    """Holds the cost of a call's first attempt and waits, before the rate limits admit it."""

    admission: AbstractAsyncContextManager[Admission]
    app: App
    hold: Callable[[], Awaitable[OpenHold]]
    waits: Callable[[float], None]
    """Called with the seconds of the delay, before it."""
    deadline: float
    """On the monotonic clock. At most half of the time until then is waited for."""

    async def __aenter__(self) -> Admission:
        hold = await self.hold()
        left = max(0.0, self.deadline - time.monotonic())
        seconds = min(delay(self.app, hold), left / 2)
        self.waits(seconds)
        if seconds:
            await asyncio.sleep(seconds)
        return await self.admission.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.admission.__aexit__(kind, error, traceback)


def slowed_notices(seconds: float | None) -> tuple[Notice, ...]:
    if not seconds:
        return ()
    text = f"waited {seconds:.1f} s before it was sent: a limit in dollars is nearly used up"
    return (Notice("slowed_down", text, ""),)
