"""Replies, and their usage as a partition: no token is counted twice.

Providers disagree on whether "input" includes cached tokens. Here every input token is in exactly
one of uncached, read and written; `None` means "not reported", which is not 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Literal, TypeAlias, get_args

from msgspec.structs import force_setattr

from .conversation import Message
from .fields import Extras, FrozenDict, Value, check_extras, check_fields
from .parts import Notice, ToolCall
from .stability import Ttl

#: Written tokens by the TTL they were written for; "unsplit" when the provider gave only a sum.
WriteTtl: TypeAlias = Ttl | Literal["unsplit"]

_WRITE_TTLS = frozenset((*get_args(Ttl), "unsplit"))
_COUNTS = frozenset({int, NoneType})
_TEXTS = frozenset({str, NoneType})


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

    def __post_init__(self) -> None:
        # Made for every reply, so the common case is checked here.
        if (
            type(self.uncached) not in _COUNTS
            or type(self.read) not in _COUNTS
            or (self.written is not None and not _are_counts(self.written))
            or type(self.output) not in _COUNTS
            or type(self.reasoning) not in _COUNTS
            or type(self.overlap) is not int
            or type(self.raw) not in _TEXTS
        ):
            check_fields(self)
        elif type(self.written) is dict:
            force_setattr(self, "written", FrozenDict(self.written))

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


def _are_counts(written: Mapping[WriteTtl, int] | None) -> bool:
    """Whether it is None, or TTLs and counts of the exact types."""
    if written is None:
        return True
    if type(written) is not dict and type(written) is not FrozenDict:
        return False
    for ttl, count in written.items():
        if type(ttl) is not str or ttl not in _WRITE_TTLS or type(count) is not int:
            return False
    return True


#: Why the model stopped; for `other`, `Reply.stop_reason_raw` has the provider's reason.
StopReason: TypeAlias = Literal[
    "end", "length", "stop_sequence", "tool_calls", "pause", "refusal", "context_overflow", "other"
]

_STOP_REASONS = frozenset(get_args(StopReason))


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

    def __post_init__(self) -> None:
        # As in `Usage`.
        reason: str = self.stop_reason
        if (
            not (type(self.id) is type(self.model) is type(reason) is str)
            or reason not in _STOP_REASONS
            or type(self.message) is not Message
            or type(self.usage) is not Usage
            or type(self.stop_reason_raw) not in _TEXTS
            or type(self.stop_sequence) not in _TEXTS
            or self.notices != ()
        ):
            check_fields(self)
        elif self.extras is not None:
            check_extras(self)

    @property
    def text(self) -> str:
        return self.message.text

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.message.parts if isinstance(part, ToolCall))
