"""Functions of HTTP libraries that are replaced while calls are observed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

#: A class, the name of its function, and a wrapper for the old function.
Hook: TypeAlias = tuple[Any, str, Callable[[Any], Any]]


class ReplacedFunctions:
    """The first user puts the hooks in, the last one takes them out."""

    def __init__(self, hooks: Callable[[], Iterable[Hook]]) -> None:
        self._hooks = hooks
        self._lock = threading.Lock()
        self._users = 0
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    @contextmanager
    def in_use(self) -> Iterator[None]:
        self._add()
        try:
            yield
        finally:
            self._remove()

    def _add(self) -> None:
        with self._lock:
            self._users += 1
            known = {(owner, name) for owner, name, _, _ in self._replaced}
            for owner, name, wrap in self._hooks():
                if (owner, name) not in known:
                    original = getattr(owner, name)
                    hook = wrap(original)
                    setattr(owner, name, hook)
                    self._replaced.append((owner, name, original, hook))

    def _remove(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            for owner, name, original, hook in reversed(self._replaced):
                # A hook that another tool has wrapped stays: it does nothing outside a block.
                if vars(owner).get(name) is hook:
                    setattr(owner, name, original)
            self._replaced.clear()
