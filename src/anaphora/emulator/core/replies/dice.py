"""Numbers that depend on nothing but a seed: the same request is answered the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from blake3 import blake3

T = TypeVar("T")

_LETTERS = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: A letter for every byte: an id is no secret, so some may come a little more often.
_AS_LETTERS = bytes(_LETTERS[byte % len(_LETTERS)] for byte in range(256))


def name_of(length: int, seed: bytes) -> str:
    """Letters and digits, as ids have them: the first that such dice would give."""
    return blake3(seed).digest(length).translate(_AS_LETTERS).decode()


def seed_of(*said: bytes) -> bytes:
    """One seed of several things. More may be put behind it: no two rows of things are the same."""
    return b"".join([b"%d:%b" % (len(thing), thing) for thing in said])


class Dice:
    """A row of numbers, as long as anybody asks."""

    __slots__ = ("_at", "_bytes", "_state")

    def __init__(self, seed: bytes) -> None:
        self._state = blake3(seed)
        self._bytes = b""
        self._at = 0

    def below(self, limit: int) -> int:
        """A number from 0 up to, not including, `limit`."""
        return int.from_bytes(self._draw(8)) % limit

    def between(self, least: int, most: int) -> int:
        return least + self.below(most - least + 1)

    def one_of(self, things: Sequence[T]) -> T:
        return things[int.from_bytes(self._draw(8)) % len(things)]

    def name(self, length: int = 24) -> str:
        """Letters and digits, as ids have them."""
        return self._draw(length).translate(_AS_LETTERS).decode()

    def _draw(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._bytes):
            # A longer output begins with the shorter one, and most need only a few numbers.
            self._bytes = self._state.digest(max(64, 4 * end))
        drawn = self._bytes[self._at : end]
        self._at = end
        return drawn
