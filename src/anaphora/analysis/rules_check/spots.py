"""The positions of a conversation as a look-back counts them: blocks, not messages."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Literal, TypeAlias

from anaphora.analysis.trace.form import Trace, TraceCall, TraceMessage
from anaphora.catalog import LookbackUnit

Spot: TypeAlias = Literal["call", "result", "other"]

_KINDS: dict[object, Spot] = {"tool_use": "call", "tool_result": "result"}


class Spots:
    """Worked out when somebody asks: most calls tell nothing of their markers."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @functools.cached_property
    def _laid(self) -> tuple[list[Spot], list[int]]:
        """What each position is, and the last position of each message. The tools are one, and so
        is a system prompt that is not here."""
        kinds: list[Spot] = ["other"]
        ends: list[int] = []
        for message in self._trace.messages:
            kinds += _of(message)
            ends.append(len(kinds) - 1)
        return kinds, ends

    def end(self, call: TraceCall) -> int:
        """The last position that a call sent."""
        return self._laid[1][call.messages - 1] if call.messages else 0

    def marked(self, call: TraceCall) -> list[int] | None:
        """Where a call had markers, in order; None where nobody recorded them."""
        if call.breakpoints is None:
            return None
        ends = self._laid[1]
        places = (where for where, _ in call.breakpoints)
        return sorted(
            {
                0 if where == "tools" else ends[where]
                for where in places
                if where == "tools" or where < call.messages
            }
        )

    def steps(self, marker: int, entry: int, unit: LookbackUnit) -> int:
        """How far before a marker an entry stands, the marker's own position counted."""
        kinds = self._laid[0]
        steps = 0
        last: Spot | None = None
        for position in range(marker, entry - 1, -1):
            kind = kinds[position]
            if unit != "tool_runs" or kind == "other" or kind != last:
                steps += 1
            last = kind
        return steps


def _of(message: TraceMessage) -> Iterator[Spot]:
    content = message.content
    if message.role == "tool":
        yield "result"
    elif isinstance(content, list):
        for block in content:
            yield _KINDS.get(block.get("type") if isinstance(block, dict) else None, "other")
    elif content or not message.tool_calls:
        yield "other"
    for _ in message.tool_calls or ():
        yield "call"
