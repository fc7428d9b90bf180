"""The deltas of a streamed call: `llm.delta {id, seq, delta}`.

A delta is a text; joined, the texts are the `text` of the result. Deltas of everything else are
objects, so that they cannot be mistaken for it: `{"thinking": "…"}`, `{"refusal": "…"}`,
`{"tool_call": {"id": …, "name": …, "arguments": "…"}}`. `seq` counts from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from anaphora.values import (
    Event,
    PartDelta,
    PartEnd,
    Refusal,
    RefusalDelta,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCall,
)

from .protocol import write_notification

METHOD = "llm.delta"


class ToolCallFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The id and the name are in the first delta of a tool call."""

    index: int
    """Tells tool calls apart."""
    id: str = ""
    name: str = ""
    arguments: str = ""


class OtherDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is not text of the answer: one of these."""

    thinking: str = ""
    refusal: str = ""
    tool_call: ToolCallFields | None = None


DeltaValue: TypeAlias = str | OtherDelta


class DeltaParams(msgspec.Struct, frozen=True):
    """Params of the notification `llm.delta`."""

    id: msgspec.Raw
    """Of the request."""
    seq: int
    delta: DeltaValue


class DeltaWriter:
    """Writes the events of one stream as notifications, one a line."""

    def __init__(self, id: bytes) -> None:
        self._id = msgspec.Raw(id)
        self._seq = 0
        self._lengths: dict[int, int] = {}
        """Characters of the parts so far: a part may also arrive whole, at its end."""
        self._named: set[int] = set()

    def lines(self, events: Iterable[Event]) -> bytes:
        """Empty where no event has a delta."""
        lines = bytearray()
        for event in events:
            for value in self._values(event):
                params = DeltaParams(self._id, self._seq, value)
                lines += write_notification(METHOD, params) + b"\n"
                self._seq += 1
        return bytes(lines)

    def _values(self, event: Event) -> Iterator[DeltaValue]:
        match event:
            case PartDelta(index, delta):
                self._lengths[index] = self._lengths.get(index, 0) + len(delta)
                if isinstance(event, ToolArgumentsDelta):
                    yield self._tool_call(index, event.call_id, event.name, delta)
                elif isinstance(event, TextDelta) and delta:
                    yield delta
                elif isinstance(event, ThinkingDelta) and delta:
                    yield OtherDelta(thinking=delta)
                elif isinstance(event, RefusalDelta) and delta:
                    yield OtherDelta(refusal=delta)
            case PartEnd(index, part):
                rest = slice(self._lengths.pop(index, 0), None)
                match part:
                    case Text(text) if text[rest]:
                        yield text[rest]
                    case Thinking(text) if text[rest]:
                        yield OtherDelta(thinking=text[rest])
                    case Refusal(text) if text[rest]:
                        yield OtherDelta(refusal=text[rest])
                    case ToolCall(id, name, text) if text[rest] or index not in self._named:
                        yield self._tool_call(index, id, name, text[rest])

    def _tool_call(
        self, index: int, id: str | None, name: str | None, arguments: str
    ) -> OtherDelta:
        if index in self._named:
            return OtherDelta(tool_call=ToolCallFields(index=index, arguments=arguments))
        self._named.add(index)
        fields = ToolCallFields(index=index, id=id or "", name=name or "", arguments=arguments)
        return OtherDelta(tool_call=fields)
