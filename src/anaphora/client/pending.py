"""The result of `send` and `run`: a call that is made once, when it is awaited or iterated over."""

from __future__ import annotations

import asyncio
import sys
import warnings
from abc import abstractmethod
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextvars import ContextVar
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.wording import visible

from .response import RIGHT_WORDS, Response, TextStream

#: Packages whose frames are not the application's.
_OWN = frozenset(
    {
        "anaphora",
        "anaphora.client",
        "anaphora.client.fan_out",
        "anaphora.client.session",
        "anaphora.client.transport",
    }
)


T = TypeVar("T")


class Pending(Coroutine[Any, Any, T]):
    """A call that was not made yet, with a result of type `T`. It is a coroutine, so a task can be
    made from it. If it is never made, it warns when it is garbage-collected: an `await` is probably
    missing."""

    _kind: str
    _instead: ClassVar[dict[str, str]] = {}
    """Messages for attributes of other kinds of calls."""
    _verb: str
    """The method that returns it."""
    _use = "await it, or iterate over it"
    _problem = "was never awaited or iterated over"
    _consumed = True
    """False from the end of `__init__` until the call is made."""
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

    def _made(self) -> None:
        """Called at the end of `__init__`: if that raises, the object does not warn."""
        self._site = call_site()
        self._consumed = False

    def _consume(self) -> None:
        if self._consumed:
            kind = self._kind.lower()
            reason = f"this {kind} was already consumed; call {self._verb}() again"
            raise InvalidRequest(reason, path=kind)
        self._consumed = True

    def __await__(self) -> Generator[Any, Any, T]:
        return self._complete().__await__()

    def send(self, value: Any, /) -> Any:
        """A step of a task made from this."""
        return self._step("send", value)

    def throw(self, *problem: Any) -> Any:
        """A task made from this is cancelled, perhaps before its first step."""
        if not self._tasks:
            self._consumed = True
        return self._step("throw", *problem)

    def close(self) -> None:
        """Like `close` of a coroutine: the call is not made, and does not warn."""
        self._consumed = True
        for steps in (self._tasks or {}).values():
            steps.close()

    def _step(self, name: str, *arguments: Any) -> Any:
        """One step. Several tasks may be made from one call, and must not take each other's
        steps."""
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
        """Only the pieces of text, as they arrive: `async for piece in chat.send("…").text`."""
        return TextStream(self.__aiter__, self._verb)

    def made_by_sync_client(self, site: CodeSite) -> None:
        self._site = site
        self._use = "call its result(), or iterate over it"
        self._problem = "was never iterated over, nor its result() called"

    if not TYPE_CHECKING:  # for type checkers there are no such attributes

        def __getattr__(self, name: str) -> Any:
            if name in self._instead:
                raise AttributeError(self._instead[name])
            hint = ""
            if name == "result":
                hint = f": {self._use}; only calls of Client, without async, have result()"
            elif name in RIGHT_WORDS or hasattr(Response, name):
                hint = f": {self._use}, and read {RIGHT_WORDS.get(name, name)} of the response"
            raise AttributeError(f"a {self._kind} has no {name!r}{hint}")

    def __repr__(self) -> str:
        return f"<{self._kind}: {'sent' if self._consumed else f'not sent; {self._use}'}>"

    def __del__(self) -> None:
        if self._consumed or sys.is_finalizing():
            return
        file, line = self._site.file, self._site.line
        problem = f"{self._verb}(…) at {file}:{line} {self._problem}: nothing was sent"
        warnings.warn_explicit(problem, RuntimeWarning, file, line)


class CodeSite(msgspec.Struct, frozen=True, eq=False):
    """A place in the application. Its line is looked up when it is needed."""

    _code: CodeType
    _at: int

    @property
    def file(self) -> str:
        return self._code.co_filename

    @property
    def line(self) -> int:
        for begin, end, line in self._code.co_lines():
            if begin <= self._at < end and line is not None:
                return line
        return self._code.co_firstlineno


def call_site() -> CodeSite:
    """Where the application called the method that makes the object whose `__init__` calls this."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__package__") in _OWN and frame.f_back is not None:
        frame = frame.f_back
    return CodeSite(frame.f_code, frame.f_lasti)


#: The place at which the application waits for a call that runs in another thread.
waiting_site: ContextVar[CodeSite | None] = ContextVar("waiting_site", default=None)

#: Warnings that were shown already, by text and line; see `warnings.warn_explicit`. A text may name
#: any model, so they are forgotten when there are this many.
_shown: dict[Any, Any] = {}
_MOST_SHOWN = 512


def warn(message: str, category: type[Warning]) -> None:
    """Warns at the application's line that made the call."""
    site = waiting_site.get() or call_site()
    text = visible(message)  # a terminal shows it
    if len(_shown) >= _MOST_SHOWN:
        _shown.clear()
    warnings.warn_explicit(text, category, site.file, site.line, registry=_shown)
