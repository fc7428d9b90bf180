"""Limits how many pages are made at the same time: calls of apps go first.

Administrators and apps have queues of their own, so that no app can keep an administrator from the
dashboard by requesting pages; and one app takes only a part of the queue of apps.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from anaphora.errors import Overloaded
from anaphora.serving.exchange import CompleteResponse


class PageQueue:
    """For one event loop."""

    def __init__(self, *, working: int, waiting: int, each: int) -> None:
        """Pages that are made at the same time, and that wait: of all viewers, and of one."""
        self._working = asyncio.Semaphore(working)
        self._most = waiting
        self._most_of_one = each
        self._waiting: Counter[str] = Counter()

    async def run(
        self, viewer: str, making: Coroutine[Any, Any, CompleteResponse]
    ) -> CompleteResponse:
        """Makes a page when there is room for it. Raises `Overloaded` where too many wait. A page
        is made to its end even if its viewer disconnects: a thread cannot be interrupted."""
        if self._waiting[viewer] >= self._most_of_one or self._waiting.total() >= self._most:
            making.close()
            raise Overloaded("Too many pages are requested at once. Try again.", status=503)
        self._waiting[viewer] += 1
        try:
            await self._working.acquire()
        except BaseException:
            making.close()
            raise
        finally:
            self._waiting -= Counter({viewer: 1})  # keeps no viewer who does not wait
        task = asyncio.ensure_future(making)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Future[CompleteResponse]) -> None:
        self._working.release()
        if not task.cancelled():
            task.exception()
