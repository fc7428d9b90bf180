"""The ways to consume a call that is made once: as a coroutine, also in tasks, and as the pieces of
its text."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Self, TypeVar

from anaphora.values import TextPieces

if TYPE_CHECKING:
    from .pending import CodeSite

T = TypeVar("T")


class ConsumedOnce(Coroutine[Any, Any, T]):
    """A call as a coroutine, so that a task can be made of it. The base of `Pending`."""

    _kind: str
    _verb: str
    """The method that returns it."""
    _use = "await it, or iterate over it"
    _problem = "was never awaited or iterated over"
    _consumed = True
    """False from the end of `__init__` on, until the call is made."""
    _site: CodeSite
    """Where the application called the method."""
    _tasks: dict[object, Coroutine[Any, Any, T]] | None = None

    @property
    def __name__(self) -> str:
        """For the `repr` of a task."""
        return f"{self._verb}(…)"

    @abstractmethod
    def __aiter__(self) -> AsyncGenerator[Any, None]: ...

    @abstractmethod
    async def _complete(self) -> T: ...

    def __await__(self) -> Generator[Any, Any, T]:
        return self._complete().__await__()

    def send(self, value: Any, /) -> Any:
        """A step of a task that was made of this."""
        return self._step("send", value)

    def throw(self, *problem: Any) -> Any:
        """A task that was made of this is cancelled, perhaps before its first step."""
        if not self._tasks:
            self._consumed = True
        return self._step("throw", *problem)

    def close(self) -> None:
        """As of a coroutine: one that was closed is not made, and does not warn."""
        self._consumed = True
        for steps in (self._tasks or {}).values():
            steps.close()

    def _step(self, name: str, *arguments: Any) -> Any:
        """Several tasks may be made of one call; they must not take the steps of each other."""
        if self._tasks is None:
            self._tasks = {}
        task = asyncio.current_task()
        steps = self._tasks.get(task)
        if steps is None:
            steps = self._tasks[task] = self._complete()
        try:
            return getattr(steps, name)(*arguments)
        except BaseException:  # the last step
            del self._tasks[task]
            raise

    @property
    def text(self) -> TextStream:
        """The pieces of text alone, as they come: `async for piece in chat.send("…").text`."""
        return TextStream(self)

    def made_by_sync_client(self, site: CodeSite) -> None:
        self._site = site
        self._use = "call its result(), or iterate over it"
        self._problem = "was never iterated over, nor its result() called"

    def __repr__(self) -> str:
        return f"<{self._kind}: {'sent' if self._consumed else f'not sent; {self._use}'}>"


class TextStream(AsyncIterator[str]):
    """The text of a turn, or of all turns of a run, in pieces.

    As a context manager it closes the connection when the block is left.
    """

    def __init__(self, call: ConsumedOnce[Any]) -> None:
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
