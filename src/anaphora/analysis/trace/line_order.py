"""Lines that name the line before them, in that order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class LineOrder(Generic[T]):
    """Passes on each line once its parent was passed on. A line whose parent is not in the file
    comes at the end."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._waiting: dict[str, list[tuple[int, str, T]]] = {}
        """By the parent, with the number of the line, and its id."""
        self._number = 0
        self.moved = 0
        """The lines that stood before their parents."""

    def add(self, id: object, parent: object, line: T) -> list[T]:
        """The lines that can be read now. Those without an id or a parent can be at once."""
        self._number += 1
        return self._add((self._number, id if isinstance(id, str) else "", line), parent)

    def _add(self, one: tuple[int, str, T], parent: object) -> list[T]:
        if isinstance(parent, str) and parent not in self._known and parent != one[1]:
            self._waiting.setdefault(parent, []).append(one)
            return []
        ready, read = [one], []
        while ready:
            _, id, line = ready.pop()
            read.append(line)
            if id and id not in self._known:
                self._known.add(id)
                children = self._waiting.pop(id, [])
                self.moved += len(children)
                ready += reversed(children)
        return read

    def rest(self) -> Iterator[T]:
        """The lines whose parents are missing, and those behind them."""
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            ids = {id for lines in waiting.values() for _, id, _ in lines}
            # Lines that are each other's parents come as they are.
            self._known |= waiting.keys() - ids or waiting.keys()
            again = [(line, parent) for parent, lines in waiting.items() for line in lines]
            for line, parent in sorted(again, key=lambda pair: pair[0][0]):
                yield from self._add(line, parent)
