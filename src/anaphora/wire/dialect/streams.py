"""Streams in a provider's own words: the wire's reader and writer, and what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from anaphora.errors import AnaphoraError, Upstream
from anaphora.values import (
    Event,
    PartDelta,
    PartEnd,
    PartStart,
    ReplyEnd,
    ReplyFail,
    UsageUpdate,
)
from anaphora.wire.building import ReplyBuilder, replay

from .answers import KINDS, find_error, read_counts
from .reasoning import own_part

if TYPE_CHECKING:
    from . import Spoken

#: A body that is no stream is kept up to this size; an answer in one piece may be that long.
_MOST = 16 * 1024 * 1024


class SpokenReader:
    """The wire's reader, with the provider's own counts, reasons to stop and errors.

    A provider that tells errors with a good status may answer a request for a stream with a plain
    JSON body: an error, or an answer in one piece. Both are read.
    """

    def __init__(self, inner: Any, spoken: Spoken) -> None:
        self._inner = inner
        self._spoken = spoken
        self._plain: bytearray | None = None
        self._begun = spoken.dialect.errors is None

    def feed(self, data: bytes) -> list[Event]:
        if not self._begun:
            start = data.lstrip()
            if not start:
                return []
            self._begun = True
            if start[:1] == b"{":
                self._plain = bytearray()
        if self._plain is not None:
            self._plain += data[: max(0, _MOST + 1 - len(self._plain))]
            return []
        return [self._heard(event) for event in self._inner.feed(data)]

    def close(self) -> list[Event]:
        if self._plain is None:
            return [self._heard(event) for event in self._inner.close()]
        body, self._plain = bytes(self._plain), None
        try:
            return replay(self._spoken.read_reply(body))
        except AnaphoraError as problem:
            return ReplyBuilder().fail(problem)

    def _heard(self, event: Event) -> Event:
        dialect = self._spoken.dialect
        if isinstance(event, UsageUpdate):
            return UsageUpdate(read_counts(event.usage, dialect.usage))
        if isinstance(event, PartEnd):
            return PartEnd(event.index, own_part(event.part, dialect))
        if isinstance(event, ReplyFail):
            return self._failed(event)
        if not isinstance(event, ReplyEnd):
            return event
        reply = self._spoken.heard(event.reply)
        error: Upstream | None = None
        if dialect.errors is not None:
            error = find_error((reply.extras or {}).get(dialect.wire, "{}"), dialect.errors)
        if error is None:
            return ReplyEnd(reply)
        name = type(error).__name__
        return ReplyFail(name, str(error), code=error.code, partial=reply)

    def _failed(self, event: ReplyFail) -> ReplyFail:
        """The failure by the provider's own codes, and what came before it as it meant that."""
        shape = self._spoken.dialect.errors
        kind = shape.kinds.get(event.code or "") if shape is not None else None
        return msgspec.structs.replace(
            event,
            error=event.error if kind is None else KINDS[kind].__name__,
            partial=None if event.partial is None else self._spoken.heard(event.partial),
        )


class SpokenWriter:
    """The wire's writer, with counts where the provider puts them, and calls whole where it sends
    them so."""

    def __init__(self, inner: Any, spoken: Spoken) -> None:
        self._inner = inner
        self._spoken = spoken
        self._calls: set[int] = set()
        """The parts that are told when they are complete."""

    def write(self, event: Event) -> bytes:
        if self._spoken.dialect.whole_calls and self._comes_later(event):
            return b""
        if isinstance(event, UsageUpdate):
            event = UsageUpdate(self._spoken.counted(event.usage))
        elif isinstance(event, ReplyEnd):
            usage = self._spoken.counted(event.reply.usage)
            event = ReplyEnd(msgspec.structs.replace(event.reply, usage=usage))
        written: bytes = self._inner.write(event)
        return written

    def _comes_later(self, event: Event) -> bool:
        if isinstance(event, PartStart) and event.kind == "tool_call":
            self._calls.add(event.index)
        return isinstance(event, PartStart | PartDelta) and event.index in self._calls
