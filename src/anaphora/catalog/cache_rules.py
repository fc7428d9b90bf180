"""How one provider caches one model's prompts: what planner, simulator and verdict all read."""

from typing import Annotated, Literal, TypeAlias

import msgspec

from anaphora.errors import InvalidCatalog
from anaphora.values import TTL_SECONDS, Section, Ttl

from .figure import Figure

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Amount: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]

Mechanism: TypeAlias = Literal["explicit", "implicit", "both"]
"""Markers in the request, the provider's own doing, or either."""

LookbackUnit: TypeAlias = Literal["blocks", "tool_runs", "messages", "breakpoints"]
"""What one look-back position is: a block; a block, with consecutive tool_use (or tool_result)
blocks taken as one; a message; or a breakpoint of the same request, so that an earlier write is
found only where the request marks its end again."""

Breakpoint: TypeAlias = Literal["none", "last_block", "last_message", "granules", "units", "slots"]
"""Where the provider ends a prefix by itself: nowhere, at the last eligible block, at the last
eligible message, every `granule_tokens`, where it persisted a unit earlier, or wherever the last
prompt of one of the server's slots agrees."""

Moment: TypeAlias = Literal["request_start", "response_start", "response_end"]

Lifetime: TypeAlias = Literal["exact", "at_least", "at_most"]
"""What a TTL promises: the entry's end, its earliest end, or its latest."""

Isolation: TypeAlias = Literal["workspace", "organization", "server"]

Clash: TypeAlias = Literal["slots_full", "other_ttl"]
"""What a marker for the whole request may run into: markers of its own in every slot, or one with
another TTL where it would go. One with the same TTL is no clash: there is nothing to add."""

Prewarm: TypeAlias = Literal["max_tokens", "option"]
"""How to have a prompt cached without an answer: ask for none of it, or say so."""

Knob: TypeAlias = Literal[
    "model",
    "tools",
    "tool_choice",
    "parallel_tools",
    "thinking",
    "effort",
    "verbosity",
    "output_format",
    "speed",
    "service_tier",
    "cache_key",
    "betas",
    "web_search",
    "citations",
    "images",
]
"""What can void cached sections without a block of theirs changing."""


class CacheRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The rules of one model's cache. Every one is a `Figure`, so it can say where it is from."""

    provider: str
    model: str

    mechanism: Figure[Mechanism]
    isolation: Figure[Isolation]
    """Who shares entries: nobody outside this."""

    # What is hashed.
    hash_order: Figure[tuple[Section, ...]]
    minimum_tokens: Figure[Count]
    """Shorter prefixes are not cached, and nothing says so."""
    granule_tokens: Figure[Annotated[int, msgspec.Meta(ge=1)]]
    """Cached lengths are multiples of this; 1 where the boundary is exact."""
    invalidates: dict[Knob, Figure[tuple[Section, ...]]]
    """The sections that a change of each parameter voids."""

    # Where a prefix may end.
    slots: Figure[Count]
    """Markers of a request that write."""
    reads_beyond_slots: Figure[bool] | None = None
    """A request may carry more markers: the latest write, the others only look up. Not true, or
    not stated: it may not."""
    markable: Figure[tuple[str, ...]]
    """Kinds of block, in the wire's own words, that may carry a marker."""
    unmarkable: Figure[tuple[str, ...]]
    """Kinds known to be refused. A kind in neither list is unknown: leave it unmarked."""
    automatic_breakpoint: Figure[Breakpoint]
    output_cached: Figure[bool] | None = None
    """The answer is cached along, so that the next call reads it too."""
    uncached_tail: Figure[Count] | None = None
    """Tokens behind the last prefix that are computed in any case, at most."""
    automatic_slots: Figure[Count]
    """Slots that the automatic breakpoint takes from `slots`."""
    automatic_refused: Figure[tuple[Clash, ...]] | None = None
    """When a request that asks for it is answered with a 400."""
    server_tool_ttl: Figure[Ttl] | None = None
    """How long the breakpoint lasts that server tools add when a request has any marker."""
    lookback_positions: Figure[Count] | None = None
    """How far before a marker an earlier write is found, the marker's own position counted."""
    lookback_unit: Figure[LookbackUnit] | None = None
    lookback_first: Figure[Count] | None = None
    """Positions from the request's start that are looked at besides."""
    automatic_lookback: Figure[Count] | None = None
    """Ends of earlier messages that the automatic breakpoint looks up without a marker."""

    # How long it lasts.
    ttls: Figure[tuple[Ttl, ...]]
    """Longest first, which is the order they may appear in."""
    longer_ttl_first: Figure[bool]
    """A longer TTL after a shorter one is refused."""
    default_ttl: Figure[Ttl] | None = None
    lifetime: Figure[Lifetime] | None = None
    reads_refresh: Figure[bool]
    ttl_from: Figure[Moment]
    readable_from: Figure[Moment]
    visibility_delay: Figure[Amount]
    """Seconds after `readable_from` in which a read may still find the older entry."""
    aborted_writes: Figure[bool] | None = None
    """A call that was broken off has written all the same."""
    prewarm: Figure[Prewarm] | None = None

    # How a request finds the server that has its entry.
    missed: Figure[Share] | None = None
    """How often a prefix that is there is not found at all."""
    cut_short: Figure[Share] | None = None
    """How often less of it is found than is there."""
    key_requests: Figure[Count] | None = None
    """Requests a minute that one cache key keeps together."""
    route_seconds: Figure[Amount] | None = None
    """How long after its last call a conversation is led to the same host."""

    # What it costs, in multiples of the uncached input price.
    read_price: Figure[Amount]
    automatic_read_price: Figure[Amount] | None = None
    """What a hit that no marker asked for costs, where that differs."""
    write_price: dict[Ttl, Figure[Amount]]
    """By TTL; a TTL without one is written at the input price."""
    storage_price: Figure[Amount] | None = None
    """Dollars per million tokens and hour, where keeping an entry is billed."""
    reads_limited: Figure[bool] | None = None
    """What is read counts toward the limit of tokens a minute."""

    def __post_init__(self) -> None:
        ttls = self.ttls.value
        seconds = [TTL_SECONDS[ttl] for ttl in ttls]
        if seconds != sorted(set(seconds), reverse=True):
            raise self._invalid("ttls are each listed once, longest first")
        if self.default_ttl is not None and self.default_ttl.value not in ttls:
            raise self._invalid(f"default_ttl {self.default_ttl.value} is not among the ttls")
        if unpriced := [ttl for ttl in self.write_price if ttl not in ttls]:
            raise self._invalid(f"write_price for {unpriced[0]}, which is not among the ttls")
        if len(set(self.hash_order.value)) != len(self.hash_order.value):
            raise self._invalid("hash_order names a section twice")
        if both := set(self.markable.value) & set(self.unmarkable.value):
            raise self._invalid(f"{min(both)} is both markable and unmarkable")
        if (self.lookback_positions is None) != (self.lookback_unit is None):
            raise self._invalid("lookback_positions and lookback_unit come together")

    def may_mark(self, kind: str) -> bool:
        """Whether a block of that kind is known to take a marker."""
        return kind in self.markable.value

    def voided_by(self, param: Knob) -> tuple[Section, ...]:
        """The sections that must be written again when that parameter changes."""
        figure = self.invalidates.get(param)
        return () if figure is None else figure.value

    def _invalid(self, message: str) -> InvalidCatalog:
        return InvalidCatalog(message, row=f"rules of {self.provider} {self.model}".rstrip())
