"""The messages of a body, as its readers hand them on: where they are, and their digests."""

from __future__ import annotations

import platform
from array import array
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, TypeAlias, overload

import msgspec
from blake3 import blake3

from .reading import Members

#: BLAKE3 has vector instructions on x86, where SHA-256 has its own ones in few processors; on ARM
#: SHA-256 has them.
long_hash: Callable[[Any], Any] = blake3 if platform.machine() in ("x86_64", "AMD64") else sha256

#: A longer piece to hash makes Python release its lock; a thread that takes it may keep it for
#: milliseconds. From so many bytes on, hashing them at once is worth that.
QUIET, _WORTH_A_RELEASE = 2047, 8192

#: Bytes of a digest.
DIGEST = 32


def feed(state: Any, data: memoryview) -> None:
    """Adds bytes to a hash."""
    size = data.nbytes
    if QUIET < size < _WORTH_A_RELEASE:
        for start in range(0, size, QUIET):
            state.update(data[start : start + QUIET])
    else:
        state.update(data)


def digest_of(data: msgspec.Raw | memoryview) -> bytes:
    view = memoryview(data)
    if view.nbytes <= QUIET:
        short: bytes = long_hash(view).digest()
        return short
    state = long_hash(b"")
    feed(state, view)
    digest: bytes = state.digest()
    return digest


class RawElements(Sequence[msgspec.Raw]):
    """The elements of a list in a body: where the first ones are is known, the others were
    decoded."""

    __slots__ = ("_begin", "_between", "_data", "_ends", "_first", "_new")

    def __init__(
        self, data: bytes, begin: int, between: int, ends: array[int], new: list[msgspec.Raw]
    ) -> None:
        """`begin` is the offset of the first one, `ends` are those at which the known ones end,
        `between` is the size of what separates two."""
        self._data = memoryview(data)
        self._begin = begin
        self._between = between
        self._ends = ends
        self._new = new
        self._first = 0

    def __len__(self) -> int:
        return len(self._ends) + len(self._new) - self._first

    @overload
    def __getitem__(self, index: int) -> msgspec.Raw: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[msgspec.Raw]: ...
    def __getitem__(self, index: int | slice) -> msgspec.Raw | Sequence[msgspec.Raw]:
        known = len(self._ends)
        if isinstance(index, slice):
            count = known + len(self._new) - self._first
            first, stop, step = index.indices(count)
            new = first + self._first - known
            if new >= 0 and step == 1:
                return self._new[new : new + max(0, stop - first)]
            if stop < count or step != 1:
                return [self[each] for each in range(first, stop, step)]
            rest = RawElements.__new__(RawElements)
            rest._data, rest._begin, rest._between = self._data, self._begin, self._between
            rest._ends, rest._new, rest._first = self._ends, self._new, self._first + first
            return rest
        index += self._first if index >= 0 else known + len(self._new)
        if index >= known:
            return self._new[index - known]
        begin = self._ends[index - 1] + self._between if index else self._begin
        return msgspec.Raw(self._data[begin : self._ends[index]])


class ListElements(msgspec.Struct, eq=False, kw_only=True):
    """The elements of one list of a body."""

    name: str
    """The field that holds the list."""
    raws: Sequence[msgspec.Raw]
    """Each as it was sent."""
    notes: ElementNotes
    begin: int
    """The offset of the first one in the body."""
    before: tuple[tuple[str, int, int], ...]
    """The members before the list, with the offsets of their values."""

    def joined(self, first: int) -> bytes:
        """A list of the elements from there on."""
        return b"[" + b",".join(self.raws[first:]) + b"]"


class ElementNotes(msgspec.Struct, eq=False):
    """What is known of the elements of a list, without their text."""

    digests: bytes
    """Of each, one after the other: objects of their own would take three times the memory."""
    log: Any = None
    """Where `splitting` finds the chunks that it cut before."""

    def begin(self, count: int) -> ElementNotes:
        """Those of the first elements, to which others may be added."""
        return ElementNotes(self.digests[: DIGEST * count], self.log)


class DecodedBody(msgspec.Struct, frozen=True, eq=False):
    """A body whose members were read before, and the elements of one of its lists."""

    members: Members
    elements: ListElements | None = None


#: What requests are split from.
SplitInput: TypeAlias = bytes | Members | DecodedBody
