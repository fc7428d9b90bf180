"""A recorded conversation: its messages, and for every call how many of them were sent, when, and
what was billed.

One conversation is one JSON line; further fields are passed over.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.tokens import Size
from anaphora.values import Usage, WriteTtl

Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]

#: A marker that was sent: on the tools, or behind the message of that index, for that long.
Breakpoint: TypeAlias = tuple[Literal["tools"] | Count, Any]


class TraceUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What was billed. `input` is what was neither read nor written."""

    input: Tokens = 0
    cache_read: Tokens = 0
    cache_write_5m: Tokens = 0
    cache_write_1h: Tokens = 0
    cache_write_30m: Tokens = 0
    cache_write_12h: Tokens = 0
    output: Tokens | None = None

    @property
    def written(self) -> int:
        return (
            self.cache_write_5m + self.cache_write_1h + self.cache_write_30m + self.cache_write_12h
        )

    @property
    def cached(self) -> int:
        """What the cache held when the call was over."""
        return self.cache_read + self.written

    @property
    def total(self) -> int:
        return self.input + self.cached

    def usage(self) -> Usage:
        told: dict[WriteTtl, int] = {
            "12h": self.cache_write_12h,
            "1h": self.cache_write_1h,
            "30m": self.cache_write_30m,
            "5m": self.cache_write_5m,
        }
        written = {ttl: tokens for ttl, tokens in told.items() if tokens}
        return Usage(uncached=self.input, read=self.cache_read, written=written, output=self.output)


class TraceCall(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a conversation."""

    messages: Count
    """How many leading messages were sent."""
    t: float | None = None
    t_end: float | None = None
    dur: float | None = None
    seq: int | None = None
    usage: TraceUsage | None = None
    breakpoints: tuple[Breakpoint, ...] | None = None
    """None where nobody recorded them."""
    note: str | None = None
    model: str | None = None
    """The model, when not the conversation's."""

    @property
    def at(self) -> float | None:
        """When it started, as well as that is known."""
        if self.t is not None:
            return self.t
        if self.t_end is not None:
            return self.t_end - (self.dur or 0.0)
        return None


class TraceMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    content: Any = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None
    size: Size | None = None
    """As it stood in the request, where that is known."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation."""

    id: str
    provider: str
    model: str
    calls: tuple[TraceCall, ...]
    messages: tuple[TraceMessage, ...]
    tools: list[Any] | None = None
    tools_size: Size | None = None
    group: str | None = None
    """Conversations of one run, which may share a beginning."""
    source: str = ""
    wire: str | None = None
    """The protocol it was had on, where known: some providers cache otherwise on another."""
    note: str | None = None
    system_tokens_unknown: bool = False
    """The system prompt and tools are not here; only their effect on the counts is."""

    def __post_init__(self) -> None:
        for index, call in enumerate(self.calls):
            if call.messages > len(self.messages):
                raise ValueError(
                    f"calls[{index}].messages is {call.messages}, and there are only"
                    f" {len(self.messages)} messages"
                )


_decode = msgspec.json.Decoder(Trace).decode


def read_line(line: bytes, place: str) -> Trace:
    """The conversation in a line; an error names the place, which is a file and line."""
    try:
        return _decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidRequest(str(problem), path=place) from None
