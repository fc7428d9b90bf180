"""Sections that came before: an agent sends the same tools and system prompt at every turn, and so
do all its conversations.

They are found by their bytes, and live as long as somebody uses them: the memo only points at them
weakly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias, TypeVar, cast
from weakref import WeakValueDictionary

import msgspec

from anaphora.prompt import PromptBlock
from anaphora.rendered import ChunkLog, ChunkRun, Mark
from anaphora.values import Tool

from .fields import Fields
from .reading import DECODE_ERRORS, request_error

#: How many lists of tools each wire remembers as it read them.
TOOLS = 64
#: How many system prompts, which may be long.
SYSTEMS = 16
#: How many sets of parameters, which mostly come again with every turn.
PARAMS = 64

T = TypeVar("T")


def seen(most: int) -> Callable[[Callable[[bytes], T]], Callable[[bytes], T]]:
    """Remembers what was read of some bytes. What whoever gets it could change is everybody's
    own."""

    def remembering(read: Callable[[bytes], T]) -> Callable[[bytes], T]:
        @functools.lru_cache(maxsize=most)
        def known(raw: bytes) -> tuple[T, bool]:
            found = read(raw)
            return found, has_mutable_extras(found)

        @functools.wraps(read)
        def reading(raw: bytes) -> T:
            found, changeable = known(raw)
            return _copied(found) if changeable else found

        return reading

    return remembering


def has_mutable_extras(found: object) -> bool:
    """Whether any of these tools or blocks brought extras: those are dictionaries, and equal to
    themselves however they are changed."""
    if isinstance(found, tuple):
        return any(map(has_mutable_extras, found))
    return getattr(found, "extras", None) is not None


def _copied(found: T) -> T:
    if isinstance(found, tuple):
        return cast(T, tuple(map(_copied, found)))
    if not has_mutable_extras(found):
        return found
    read = cast(PromptBlock | Tool, found)
    return cast(T, msgspec.structs.replace(read, extras=dict(read.extras or {})))


#: A run, and the marks in it, counted from its first chunk.
Cut: TypeAlias = tuple[ChunkRun, tuple[Mark, ...]]

#: Stands in for the log in what the log itself holds: one that held itself would never be let go.
_NO_LOG = ChunkLog()


_elements = msgspec.json.Decoder(list[msgspec.Raw] | None).decode


def elements_of(name: str, raw: bytes) -> list[msgspec.Raw]:
    """The elements of a list that stood under this name in a request; none where it was null."""
    try:
        return _elements(raw) or []
    except DECODE_ERRORS:
        pass  # so that the error names the place
    fields = Fields(b'{"%b":%b}' % (name.encode(), raw), "$", request_error)
    found: list[msgspec.Raw] | None = fields.maybe(name, list[msgspec.Raw])
    return found or []


class SeenSections:
    """Sections cut from a request's bytes, one memo for each wire."""

    def __init__(self) -> None:
        self._logs: WeakValueDictionary[tuple[str, bytes], ChunkLog] = WeakValueDictionary()

    def get(self, name: str, raw: bytes, cut: Callable[[bytes], Cut | None]) -> Cut | None:
        """What `cut` makes of these bytes, which depends on nothing else."""
        log = self._logs.get((name, raw))
        if log is not None:
            bare, held = cast(Cut, log.source)
            return msgspec.structs.replace(bare, log=log), held
        found = cut(raw)
        if found is not None:
            run, marks = found
            run.log.source = msgspec.structs.replace(run, log=_NO_LOG), marks
            self._logs[name, raw] = run.log
        return found
