"""Streams in a provider's own words: the wire's reader and writer, and what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from anaphora.errors import Upstream
from anaphora.values import (
    Event,
    PartDelta,
    PartEnd,
    PartStart,
    ReplyEnd,
    ReplyFail,
    UsageUpdate,
)

from .answers import KINDS, find_error, read_counts
from .reasoning import own_part

if TYPE_CHECKING:
    from . import Spoken


class SpokenReader:
    """The wire's reader, with the provider's own counts, reasons to stop and errors."""

    def __init__(self, inner: Any, spoken: Spoken) -> None:
        self._inner = inner
        self._spoken = spoken

    def feed(self, data: bytes) -> list[Event]:
        return [self._heard(event) for event in self._inner.feed(data)]

    def close(self) -> list[Event]:
        return [self._heard(event) for event in self._inner.close()]

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
