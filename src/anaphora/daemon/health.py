"""Checks that the parts a daemon depends on respond.

health = HealthChecks({"store": Part(store.probe, lambda: store.problem)})
task = asyncio.create_task(health.run())
health.down()                       {"store": Outage(since=…, reason="connection refused")}

Parts are probed every second in the background. Otherwise the failure of an idle part would only be
noticed by the next call, which a balancer would still send here.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from anaphora.client.failures import log
from anaphora.errors import AnaphoraError

#: Seconds between probes, and for a response.
_EVERY, _TIMEOUT = 1.0, 2.0


class Part(msgspec.Struct, frozen=True):
    ask: Callable[[], Awaitable[None]]
    """Probes the part; `problem` has the result."""
    problem: Callable[[], str | None]
    """Why it does not respond; None or empty if it does."""


class Outage(msgspec.Struct, frozen=True):
    since: float
    """Unix time at which it was first noticed."""
    reason: str


def utc(seconds: float) -> str:
    """`2026-11-18T07:00:00Z`"""
    at = datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)
    return at.isoformat().replace("+00:00", "Z")


class HealthChecks:
    """Probes parts periodically. Used from one event loop."""

    def __init__(self, parts: Mapping[str, Part], clock: Callable[[], float] = time.time) -> None:
        self._parts = parts
        self._clock = clock
        self._since: dict[str, float] = {}
        self._silent: dict[str, str] = {}
        """Parts that timed out and report no problem themselves."""

    def down(self) -> dict[str, Outage]:
        """The parts that do not respond."""
        found = {}
        for name, part in self._parts.items():
            reason = part.problem() or self._silent.get(name)
            if reason:
                since = self._since.setdefault(name, self._clock())
                found[name] = Outage(since, reason)
            else:
                self._since.pop(name, None)
        return found

    async def run(self) -> None:
        """Probes until cancelled."""
        while True:
            await asyncio.gather(*(self._ask(name, part) for name, part in self._parts.items()))
            self.down()
            await asyncio.sleep(_EVERY)

    async def _ask(self, name: str, part: Part) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT):
                await part.ask()
        except TimeoutError:
            self._silent[name] = f"no answer for {_TIMEOUT:g} s"
            return
        except AnaphoraError:
            pass  # `problem` says it
        except Exception as problem:
            log(logging.ERROR, f"{name} was not probed: {type(problem).__name__}", problem)
        self._silent.pop(name, None)
