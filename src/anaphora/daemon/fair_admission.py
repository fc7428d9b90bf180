"""The passage of attempts through the rate limits of a provider, in turn among apps."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Self

from anaphora.client.limits import Admission
from anaphora.errors import Throttled


class FairAdmission(Admission):
    """At most one call of an app waits for the rate limits of a provider, so that the calls of
    several apps start in turn."""

    lock: asyncio.Lock | None = None

    async def __aenter__(self) -> Self:
        lock = self.lock
        if lock is None or not self._gate.counts_tokens:
            return await super().__aenter__()
        began = monotonic()
        seconds = None if self._deadline is None else max(0.0, self._deadline - began)
        try:
            async with asyncio.timeout(seconds):
                await lock.acquire()
        except TimeoutError:
            reason = "other calls of the app waited for the rate limits until the deadline"
            raise Throttled(reason, wait=0.0) from None
        try:
            await super().__aenter__()
        finally:
            lock.release()
        self.queued = monotonic() - began
        return self
