"""Replies, and their usage as a partition: no token is counted twice.

Providers disagree on whether "input" includes cached tokens. Here every input token is in exactly
one of uncached, read and written; `None` means "not reported", which is not 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from .conversation import Message
from .fields import Extras, Value
from .parts import Notice, ToolCall
from .stability import Ttl

#: Written tokens by the TTL they were written for; "unsplit" when the provider gave only a sum.
WriteTtl: TypeAlias = Ttl | Literal["unsplit"]


class Usage(Value, frozen=True, kw_only=True):
    """Token counts of one call."""

    uncached: int | None = None
    """Input that was neither read from nor written to the cache."""
    read: int | None = None
    """Input read from the cache."""
    written: Mapping[WriteTtl, int] | None = None
    """Input written to the cache, by TTL."""
    output: int | None = None
    """All output, reasoning included."""
    reasoning: int | None = None
    """The part of `output` that was reasoning."""
    overlap: int = 0
    """Input tokens that the provider counted twice."""
    raw: str | None = None
    """The provider's usage object, as JSON text."""

    @property
    def written_total(self) -> int | None:
        return None if self.written is None else sum(self.written.values())

    @property
    def input(self) -> int | None:
        """All input tokens; unknown when nothing about the input was reported."""
        uncached, read, written = self.uncached, self.read, self.written
        if uncached is None and read is None and written is None:
            return None
        return (uncached or 0) + (read or 0) + (sum(written.values()) if written else 0)

    @property
    def total(self) -> int | None:
        tokens = self.input
        return None if tokens is None or self.output is None else tokens + self.output


#: Why the model stopped; for `other`, `Reply.stop_reason_raw` has the provider's reason.
StopReason: TypeAlias = Literal[
    "end", "length", "stop_sequence", "tool_calls", "pause", "refusal", "context_overflow", "other"
]


class Reply(Value, frozen=True, kw_only=True):
    """A provider's whole reply."""

    id: str
    model: str
    """The model that replied."""
    message: Message
    stop_reason: StopReason
    stop_reason_raw: str | None = None
    """The provider's reason."""
    stop_sequence: str | None = None
    usage: Usage = Usage()
    notices: tuple[Notice, ...] = ()
    extras: Extras | None = None

    @property
    def text(self) -> str:
        return self.message.text

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.message.parts if isinstance(part, ToolCall))
