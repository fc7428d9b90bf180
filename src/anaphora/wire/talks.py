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

#: What a log holds of the messages that it was cut from: the digest of each, and the marks with the
#: index of the message that they stand in.
_Source: TypeAlias = tuple[list[bytes], list[tuple[int, Mark]]]


class Talk:
    """The messages of one request. The first `known` of them are in the log already; the others go
    into `out`, in order, each ended with `end_message`."""

    __slots__ = ("_digests", "_ended", "_log", "_marks", "_talks", "context", "known", "out")

    def __init__(
        self, talks: SeenTalks, context: Hashable, log: ChunkLog, digests: list[bytes], known: int
    ) -> None:
        self._talks = talks
        self.context = context
        self._log = log
        self._digests = digests
        marks = cast(_Source, log.source)[1]
        self._marks = [placed for placed in marks if placed[0] < known] if marks else []
        self.known = self._ended = known
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
        index, self._ended = self._ended, self._ended + 1
        self._marks += [(index, mark) for mark in marks]
        self.out.end_message(f"m{index}")

    def end(self) -> ChunkLog:
        """The log with all of them, which the next request goes on from."""
        log, known = self._log, self.known
        if self._ended == known:
            return log
        log = log.append(self.out)
        log.source = self._digests, self._marks
        self._talks.note(self.context, self._digests[0], log)
        return log

    def marks(self, first: int) -> list[Mark]:
        """All marks, in a prompt where the conversation begins with chunk `first`."""
        return [Mark(first + mark.chunk, mark.ttl, mark.splice) for _, mark in self._marks]


@functools.lru_cache(maxsize=256)
def placeholder_messages(count: int) -> Conversation:
    """Stands for messages that were cut, and not read."""
    return Conversation([Message(role="user", parts=())] * count)


class SeenTalks:
    """The conversations of one wire."""

    def __init__(self) -> None:
        self._logs: WeakValueDictionary[Hashable, ChunkLog] = WeakValueDictionary()

    def begin(self, messages: Sequence[msgspec.Raw], context: Hashable = None) -> Talk:
        """`context` is whatever else decides how these messages are cut."""
        digests = [blake3(raw).digest(16) for raw in messages]
        log = self._logs.get((context, digests[0])) if digests else None
        known = 0 if log is None else _shared(cast(_Source, log.source)[0], digests)
        if log is None or not known:
            log = ChunkLog()
            log.source = [], []
        return Talk(self, context, log, digests, known)

    def note(self, context: Hashable, opening: bytes, log: ChunkLog) -> None:
        """A conversation to be found by its first message."""
        self._logs[context, opening] = log


def _shared(known: list[bytes], mine: list[bytes]) -> int:
    """How many leading messages are the same."""
    most = min(len(known), len(mine))
    if known[:most] == mine[:most]:
        return most
    return next(at for at in range(most) if known[at] != mine[at])
