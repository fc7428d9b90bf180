"""Numbers that depend on nothing but a seed: the same request is answered the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from blake3 import blake3

T = TypeVar("T")


class Dice:
    """A row of numbers, as long as anybody asks."""

    __slots__ = ("_at", "_bytes", "_state")

    def __init__(self, *seeds: bytes) -> None:
        self._state = blake3(b"".join(len(seed).to_bytes(8, "big") + seed for seed in seeds))
        self._bytes = b""
        self._at = 0

    def below(self, limit: int) -> int:
        """A number from 0 up to, not including, `limit`."""
        if self._at + 8 > len(self._bytes):
            # A longer output begins with the shorter one.
            self._bytes = self._state.digest(max(512, 2 * len(self._bytes)))
        drawn = int.from_bytes(self._bytes[self._at : self._at + 8], "big")
        self._at += 8
        return drawn % limit

    def between(self, least: int, most: int) -> int:
        return least + self.below(most - least + 1)

    def one_of(self, things: Sequence[T]) -> T:
        return things[self.below(len(things))]

    def name(self, length: int = 24) -> str:
        """Letters and digits, as ids have them."""
        letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
        return "".join(letters[self.below(len(letters))] for _ in range(length))
