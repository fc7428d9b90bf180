"""Conversations that came before: a request says again everything that was said, and adds a little.

A conversation is found by how it begins, and goes on in the log that was cut from the request
before it: only what is new is cut. The log lives as long as somebody uses it.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from typing import TypeAlias, cast
from weakref import WeakValueDictionary

import msgspec
from blake3 import blake3

from anaphora.rendered import ChunkLog, Mark
from anaphora.values import Conversation, Message

#: What a log holds of each message that it was cut from: its digest, and the marks in it.
_Source: TypeAlias = list[tuple[bytes, tuple[Mark, ...]]]


class Talk:
    """The messages of one request. The first `known` of them are in the log already; the others go
    into `out`, in order, each ended with `end_message`."""

    __slots__ = ("_digests", "_log", "_source", "_talks", "context", "known", "out")

    def __init__(
        self, talks: SeenTalks, context: Hashable, log: ChunkLog, digests: list[bytes], known: int
    ) -> None:
        self._talks = talks
        self.context = context
        self._log = log
        self._digests = digests
        self._source = cast(_Source, log.source)[:known]
        self.known = known
        self.out = log.continued(log.message_ends[known - 1] if known else 0, known)

    @property
    def count(self) -> int:
        """How many chunks there are so far."""
        return self.out.first_chunk + len(self.out.pieces)

    @property
    def last_role(self) -> str | None:
        """The wire role of the last message that is known; None when none says anything."""
        at = self.out.first_chunk
        return self._log.roles[self._log.wire_message_of(at - 1)] if at else None

    def end_message(self, marks: Sequence[Mark] = ()) -> None:
        """All of a message is in `out`. Its marks count chunks from the conversation's first."""
        index = len(self._source)
        self._source.append((self._digests[index], tuple(marks)))
        self.out.end_message(f"m{index}")

    def end(self) -> ChunkLog:
        """The log with all of them, which the next request goes on from."""
        log, known = self._log, self.known
        if len(self._source) == known:
            return log
        log = log.append(self.out)
        if log is self._log:
            cast(_Source, log.source)[known:] = self._source[known:]
        else:
            log.source = self._source
        self._talks.note(self.context, self._digests[0], log)
        return log

    def marks(self, first: int) -> list[Mark]:
        """All marks, in a prompt where the conversation begins with chunk `first`."""
        placed = [mark for _, marks in self._source for mark in marks]
        return [Mark(first + mark.chunk, mark.ttl, mark.splice) for mark in placed]


@functools.lru_cache(maxsize=256)
def unread(count: int) -> Conversation:
    """Stands for messages that were cut, and not read."""
    return Conversation([Message(role="user", parts=())] * count)


class SeenTalks:
    """The conversations of one wire."""

    def __init__(self) -> None:
        self._logs: WeakValueDictionary[Hashable, ChunkLog] = WeakValueDictionary()

    def begin(self, messages: Sequence[msgspec.Raw], context: Hashable = None) -> Talk:
        """`context` is whatever else decides how these messages are cut."""
        digests = [blake3(bytes(raw)).digest(16) for raw in messages]
        log = self._logs.get((context, digests[0])) if digests else None
        known = 0 if log is None else _shared(cast(_Source, log.source), digests)
        if log is None or not known:
            log = ChunkLog()
            log.source = []
        return Talk(self, context, log, digests, known)

    def note(self, context: Hashable, opening: bytes, log: ChunkLog) -> None:
        """A conversation to be found by its first message."""
        self._logs[context, opening] = log


def _shared(source: _Source, digests: list[bytes]) -> int:
    """How many leading messages are the same."""
    count = 0
    for (known, _), mine in zip(source, digests, strict=False):
        if known != mine:
            break
        count += 1
    return count
