"""A whole reply as the events of a stream, also where a provider sends one instead of a stream."""

from __future__ import annotations

from collections.abc import Callable

from anaphora.errors import AnaphoraError
from anaphora.values import (
    Event,
    PartEnd,
    PartStart,
    Refusal,
    Reply,
    ReplyEnd,
    ReplyStart,
    Text,
    Thinking,
    ToolArgumentsDelta,
    ToolCall,
    UsageUpdate,
)

from .reading import DECODE_ERRORS
from .replies import ReplyBuilder, deltas_of


def reply_events(reply: Reply) -> list[Event]:
    """A whole reply as the events of a stream."""
    events: list[Event] = [ReplyStart(reply.id, reply.model, extras=reply.extras)]
    events.append(UsageUpdate(reply.usage))
    for index, part in enumerate(reply.message.parts):
        if isinstance(part, ToolCall):
            events.append(PartStart(index, "tool_call", part.id, part.name, extras=part.extras))
            events.append(ToolArgumentsDelta(index, part.arguments, part.id, part.name))
        elif isinstance(part, Text | Thinking | Refusal):
            start = PartStart(index, type(part).__name__.lower(), extras=part.extras)
            events.append(start)
            if part.text:
                events.append(deltas_of(start)(index, part.text))
        else:
            events.append(PartStart(index, "opaque"))
        events.append(PartEnd(index, part))
    return [*events, ReplyEnd(reply)]


def whole_body_events(
    build: ReplyBuilder, body: bytes, read_reply: Callable[[bytes], Reply]
) -> list[Event]:
    """The events of a reply that came as one JSON body instead of a stream."""
    try:
        reply = read_reply(body)
    except (AnaphoraError, *DECODE_ERRORS) as problem:
        return build.fail(problem)
    build.started = build.ended = True
    return reply_events(reply)
