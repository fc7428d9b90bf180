"""Functions of HTTP libraries that are replaced while calls are observed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

#: A class, the name of its function, and a wrapper for the old function.
Hook: TypeAlias = tuple[Any, str, Callable[[Any], Any]]
Hooks: TypeAlias = Callable[[], Iterable[Hook]]


class ReplacedFunctions:
    """The first user of some hooks puts them in, the last one takes them out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: Counter[Hooks] = Counter()
        self._replaced: dict[Hooks, list[tuple[Any, str, Any, Any]]] = {}

    @contextmanager
    def in_use(self, hooks: Hooks) -> Iterator[None]:
        self._add(hooks)
        try:
            yield
        finally:
            self._remove(hooks)

    def _add(self, hooks: Hooks) -> None:
        with self._lock:
            self._users[hooks] += 1
            replaced = self._replaced.setdefault(hooks, [])
            known = {(owner, name) for owner, name, _, _ in replaced}
            for owner, name, wrap in hooks():
                if (owner, name) not in known:
                    original = getattr(owner, name)
                    hook = wrap(original)
                    setattr(owner, name, hook)
                    replaced.append((owner, name, original, hook))

    def _remove(self, hooks: Hooks) -> None:
        with self._lock:
            self._users[hooks] -= 1
            if self._users[hooks]:
                return
            for owner, name, original, hook in reversed(self._replaced.pop(hooks)):
                # A hook that another tool has wrapped stays: it does nothing outside a block.
                if vars(owner).get(name) is hook:
                    setattr(owner, name, original)


#: Shared by blocks of `observing` and by observed sessions, so that a call is seen once.
HOOKS = ReplacedFunctions()
