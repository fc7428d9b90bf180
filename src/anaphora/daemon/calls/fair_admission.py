"""Admits attempts through a provider's rate limits, alternating between apps."""

from __future__ import annotations

import asyncio
from time import monotonic
from types import TracebackType

import msgspec

from anaphora.client.limits import Admission
from anaphora.errors import Throttled


class FairAdmission(msgspec.Struct, eq=False):
    """At most one call of an app waits for the rate limits of a provider, so that the calls of
    several apps start in turn. Wraps an `Admission`."""

    _admission: Admission
    lock: asyncio.Lock

    async def __aenter__(self) -> Admission:
        admission, began = self._admission, monotonic()
        seconds = None if admission.deadline is None else max(0.0, admission.deadline - began)
        try:
            async with asyncio.timeout(seconds):
                await self.lock.acquire()
        except TimeoutError:
            reason = "other calls of the app waited for the rate limits until the deadline"
            raise Throttled(reason, wait=0.0) from None
        try:
            await admission.__aenter__()
        finally:
            self.lock.release()
        admission.queued = monotonic() - began
        return admission

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._admission.__aexit__(kind, error, traceback)
