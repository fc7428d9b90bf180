"""One turn: await it for the answer, or go through its events as they come.

answered = await chat.send("…")
async for event in chat.send("…"): ...
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from anaphora.errors import InvalidRequest
from anaphora.values import Event

from .asking import Asked
from .response import Response

if TYPE_CHECKING:
    from .calling import Calling


class Turn:
    """A turn that is made when it is awaited or gone through, once. Awaited again, it gives the
    answer that it had; nothing is sent twice."""

    def __init__(self, calling: Calling, asked: Asked) -> None:
        self._calling = calling
        self._asked = asked
        self._begun = False
        self._events: AsyncGenerator[Event, None] | None = None
        self.answered: Response | None = None
        """The answer, once there is one."""

    def __await__(self) -> Generator[Any, None, Response]:
        return self._whole().__await__()

    def __aiter__(self) -> AsyncGenerator[Event, None]:
        return self._streamed()

    async def __aenter__(self) -> AsyncGenerator[Event, None]:
        """Events, with the promise that the connection is closed when the block is left."""
        self._events = self._streamed()
        return self._events

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._events is not None:
            await self._events.aclose()

    async def _whole(self) -> Response:
        if self.answered is not None:
            return self.answered
        self._begin()
        self.answered = await self._calling.answer(self._asked)
        return self.answered

    def _streamed(self) -> AsyncGenerator[Event, None]:
        self._begin()
        return self._calling.stream(self._asked, self)

    def _begin(self) -> None:
        if self._begun:
            raise InvalidRequest("a turn is made once; `send` gives another", path="turn")
        self._begun = True
