"""What the caller allows a call to take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from anaphora.errors import Timeout

T = TypeVar("T")


class Budget:
    """Begins when it is made. The client keeps to it as well; here it holds whatever the client is
    busy with, and the error names the caller's own figure."""

    def __init__(self, timeout_ms: int) -> None:
        self._ms = timeout_ms
        self.seconds = timeout_ms / 1000
        self._deadline = asyncio.get_running_loop().time() + self.seconds

    async def spent_on(self, work: Awaitable[T]) -> T:
        scope = asyncio.timeout_at(self._deadline)
        try:
            async with scope:
                return await work
        except Timeout:
            raise Timeout(self._ms) from None
        except TimeoutError:
            if not scope.expired():
                raise
            raise Timeout(self._ms) from None
