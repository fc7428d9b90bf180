"""Hands the record of a call to every watcher, and lets none of them break the call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeAlias

from anaphora.client.after import failure_notice, line_of, log
from anaphora.client.response import Record
from anaphora.values import Notice

Watcher: TypeAlias = Callable[[Record], None]


class Watchers:
    """Several watchers as one that never raises.

    A watcher that raises is logged the first time, and goes on being called.
    """

    __slots__ = ("_watchers", "_failed")

    def __init__(self, watchers: Iterable[Watcher] = ()) -> None:
        self._watchers = tuple(watchers)
        self._failed: set[int] = set()

    def __bool__(self) -> bool:
        """False: there are none, so that no record need be made."""
        return bool(self._watchers)

    def __call__(self, record: Record) -> tuple[Notice, ...]:
        """Returns a notice for each watcher that failed."""
        notices: list[Notice] = []
        for number, watcher in enumerate(self._watchers):
            try:
                watcher(record)
            except Exception as problem:
                notices.append(failure_notice("observer_failed", problem))
                if number not in self._failed:
                    self._failed.add(number)
                    _log_failure(watcher, problem)
        return tuple(notices)


def _log_failure(watcher: Watcher, problem: Exception) -> None:
    """Without the exception's message: it may quote the record."""
    named = getattr(watcher, "__qualname__", None) or type(watcher).__qualname__
    what = f"the watcher {named} failed with {type(problem).__name__} at"
    where = line_of(problem.__traceback__)
    log(logging.WARNING, f"{what} {where}; further failures of it are not logged", problem)
