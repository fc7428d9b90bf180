"""The text of a turn or a run, piece by piece as it comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Any, Self

from anaphora.values import TextPieces

if TYPE_CHECKING:
    from .pending import Pending


class TextStream(AsyncIterator[str]):
    """The text of a turn, or of all turns of a run, in pieces.

    As a context manager it closes the connection when the block is left.
    """

    def __init__(self, call: Pending[Any]) -> None:
        self._call = call
        self._events: AsyncGenerator[Any, None] | None = None
        self._pieces = TextPieces()

    def __aiter__(self) -> Self:
        self._begin()
        return self

    async def __anext__(self) -> str:
        async for event in self._events or self._begin():
            if text := self._pieces.feed(event):
                return text
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if self._events is not None:
            await self._events.aclose()

    def _begin(self) -> AsyncGenerator[Any, None]:
        if self._events is None:
            self._events = self._call.__aiter__()
        return self._events

    def __repr__(self) -> str:
        return f"<TextStream: iterate over it, or await {self._call._verb}(…) for its text>"
