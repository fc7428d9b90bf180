"""The events of a reply as a stream sends them: in pieces."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from anaphora.values import (
    Event,
    PartDelta,
    PartStart,
    Reply,
    ReplyStart,
    ToolArgumentsDelta,
    Usage,
    UsageUpdate,
)
from anaphora.wire.reply_events import reply_events

from .text import split_text

#: Characters of arguments in one event of a stream.
_ARGUMENTS = 16


def stream_events(reply: Reply, now: float | None = None) -> Iterator[Event]:
    """The events of a whole reply as a stream that began at `now`."""
    for event in reply_events(reply):
        match event:
            case ReplyStart():
                yield msgspec.structs.replace(event, created=now)
            case UsageUpdate(usage) if usage != Usage():
                # The input is known from the start; of the output, that it has begun.
                yield UsageUpdate(msgspec.structs.replace(usage, output=1, reasoning=None))
            case UsageUpdate():
                pass
            case PartStart(kind="thinking", extras=extras) if extras:
                # Chat hosts name the field of the message that holds the reasoning.
                fields = msgspec.json.decode(next(iter(extras.values())))
                yield msgspec.structs.replace(event, name=fields.get("field"))
            case PartDelta(delta=text):
                if isinstance(event, ToolArgumentsDelta):
                    starts = range(0, len(text), _ARGUMENTS)
                    pieces = [text[start : start + _ARGUMENTS] for start in starts]
                else:
                    pieces = split_text(text)
                yield from (msgspec.structs.replace(event, delta=piece) for piece in pieces)
            case _:
                yield event
