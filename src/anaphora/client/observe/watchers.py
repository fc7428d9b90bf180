"""Telling everybody who watches, without letting any of them break the call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TypeAlias

from anaphora.client.record import Record

Watcher: TypeAlias = Callable[[Record], None]

_log = logging.getLogger("anaphora")


class Watchers:
    """Several watchers as one that never raises.

    A watcher that does is told of in the log, the first time only, and goes on being called.
    """

    __slots__ = ("_watchers", "_failed")

    def __init__(self, watchers: Iterable[Watcher] = ()) -> None:
        self._watchers = tuple(watchers)
        self._failed: set[int] = set()

    def __bool__(self) -> bool:
        """False: nobody watches, so that no record need be made."""
        return bool(self._watchers)

    def __call__(self, record: Record) -> None:
        for number, watcher in enumerate(self._watchers):
            try:
                watcher(record)
            except Exception as problem:
                if number not in self._failed:
                    self._failed.add(number)
                    _tell(watcher, problem)


def _tell(watcher: Watcher, problem: Exception) -> None:
    """Names the class and the line, not the message: it may quote the record."""
    named = getattr(watcher, "__qualname__", None) or type(watcher).__qualname__
    _log.warning(
        "the watcher %s failed with %s at %s; the call goes on, and it is not told again",
        named,
        type(problem).__name__,
        _line(problem.__traceback__),
    )


def _line(traceback: TracebackType | None) -> str:
    if traceback is None:
        return "an unknown line"
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
