"""What `send` and `run` return: a call that is made once, when it is awaited or iterated over."""

from __future__ import annotations

import sys
import warnings
from contextvars import ContextVar
from types import CodeType
from typing import Any, TypeVar

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.wording import visible

from .consuming import ConsumedOnce

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


class Pending(ConsumedOnce[T]):
    """A call that was not made yet, with a result of type `T`. One that is never made warns when it
    is collected: most often an `await` was forgotten."""

    def _made(self) -> None:
        """Called at the end of `__init__`: an object that could not be made does not warn."""
        self._site = call_site()
        self._consumed = False

    def _consume(self) -> None:
        if self._consumed:
            kind = self._kind.lower()
            reason = f"this {kind} was already consumed; call {self._verb}() again"
            raise InvalidRequest(reason, path=kind)
        self._consumed = True

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


#: Where the application waits for a call that runs in another thread.
waiting_site: ContextVar[CodeSite | None] = ContextVar("waiting_site", default=None)

#: What was shown already, by text and line; see `warnings.warn_explicit`.
_shown: dict[Any, Any] = {}


def warn(message: str, category: type[Warning]) -> None:
    """Warns at the application's line that made the call."""
    site = waiting_site.get() or call_site()
    text = visible(message)  # a terminal shows it
    warnings.warn_explicit(text, category, site.file, site.line, registry=_shown)
