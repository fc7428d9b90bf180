"""The rules of a provider's cache, as figures with their sources."""

# No postponed annotations, as in values.py.

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from anaphora.errors import InvalidCatalog
from anaphora.values import TTL_SECONDS, Section, Ttl, Usage

from .values import Amount, Count, Disputed, Figure, Share

Mechanism: TypeAlias = Literal["explicit", "implicit", "both"]
"""Caching by markers in the request, by the provider itself, or either."""

LookbackUnit: TypeAlias = Literal["blocks", "tool_runs", "messages", "breakpoints"]
"""One look-back position: a block; a block, with consecutive tool_use (or tool_result) blocks as
one; a message; or a breakpoint of the same request, so that an earlier write is found only if
the request marks its end again."""

Breakpoint: TypeAlias = Literal["none", "last_block", "last_message", "granules", "units", "slots"]
"""Where the provider ends a prefix by itself: nowhere, at the last eligible block, at the last
eligible message, every `granule_tokens`, where it persisted a unit earlier, or as far as the last
prompt of one of the server's slots is the same."""

Moment: TypeAlias = Literal["request_start", "response_start", "response_end"]

Lifetime: TypeAlias = Literal["exact", "at_least", "at_most"]
"""Whether a TTL is an entry's exact lifetime, its shortest, or its longest."""

Isolation: TypeAlias = Literal[
    "workspace", "organization", "project", "subscription", "region", "server"
]
"""`project` is Google Cloud's, `subscription` Azure's, `region` an account in one region of AWS."""

Clash: TypeAlias = Literal["slots_full", "other_ttl"]
"""Conflicts of a marker for the whole request: block markers in every slot, or one with another TTL
at its position. One with the same TTL is no conflict."""

Prewarm: TypeAlias = Literal["max_tokens", "option"]
"""How to cache a prompt without a reply: by `max_tokens` 0, or by an option."""

CacheParam: TypeAlias = Literal[
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
"""Parameters whose change invalidates cached sections although no block changed."""


#: More tokens than any prompt has.
_NO_MAXIMUM = 2**62


class CacheRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The cache rules of one model, each a `Figure` with its source."""

    provider: str
    model: str

    mechanism: Figure[Mechanism]
    isolation: Figure[Isolation]
    """The scope within which entries are shared."""

    # The hashed prefix.
    hash_order: Figure[tuple[Section, ...]]
    minimum_tokens: Figure[Count]
    """Shorter prefixes are not cached, without an error."""
    maximum_tokens: Figure[Count] | None = None
    """Longer prefixes are not cached; None: no limit is known."""
    granule_tokens: Figure[Annotated[int, msgspec.Meta(ge=1)]]
    """Cached lengths are multiples of this; 1 if the boundary is exact."""
    granule_offset: Figure[Count] | None = None
    """Cached lengths are this much less than multiples of `granule_tokens`; None: nothing."""
    invalidates: dict[CacheParam, Figure[tuple[Section, ...]]]
    """The sections that a change of each parameter invalidates."""

    # Where a prefix may end.
    slots: Figure[Count]
    """Markers of a request that write."""
    reads_beyond_slots: Figure[bool] | None = None
    """A request may carry more markers than slots: the last ones write, the others only read."""
    markable: Figure[tuple[str, ...]]
    """Block types, by the wire's names, that may carry a marker."""
    unmarkable: Figure[tuple[str, ...]]
    """Block types known to be refused. Types in neither list are unknown, and left unmarked."""
    automatic_breakpoint: Figure[Breakpoint]
    output_cached: Figure[bool] | None = None
    """The reply is cached as well, so that the next call reads it."""
    visible_output_cached: Figure[bool] | None = None
    """The same for a reply whose bill shows no hidden reasoning, if it differs."""
    uncached_tail: Figure[Count] | None = None
    """At most this many tokens after the last prefix are always computed."""
    trailing_system_reused: Figure[bool] | None = None
    """Whether a prefix that ends with a mid-conversation system message at the end of a request is
    found by the next request; None if no source says."""
    automatic_slots: Figure[Count]
    """Slots that the automatic breakpoint takes from `slots`."""
    automatic_refused: Figure[tuple[Clash, ...]] | None = None
    """When a request for it is refused with a 400."""
    server_tool_ttl: Figure[Ttl] | None = None
    """The TTL of the breakpoint that server tools add to a request with any marker."""
    lookback_positions: Figure[Count] | None = None
    """How far before a marker an earlier write is found, the marker's position included."""
    lookback_unit: Figure[LookbackUnit] | None = None
    lookback_first: Figure[Count] | None = None
    """Additional positions from the start of the request."""
    automatic_lookback: Figure[Count] | None = None
    """Ends of earlier messages that the automatic breakpoint looks up without a marker."""

    # Lifetime.
    ttls: Figure[tuple[Ttl, ...]]
    """Longest first, which is the order they may appear in."""
    longer_ttl_first: Figure[bool]
    """A longer TTL after a shorter one is refused."""
    default_ttl: Figure[Ttl] | None = None
    lifetime: Figure[Lifetime] | None = None
    reads_refresh: Figure[bool]
    ttl_from: Figure[Moment]
    response_seconds: Figure[Amount] | None = None
    """Seconds from a request to the start of its response, used if `ttl_from` needs it and a
    recording lacks it."""
    readable_from: Figure[Moment]
    visibility_delay: Figure[Amount]
    """Seconds after `readable_from` in which a read may still find the older entry."""
    late_writes: Figure[Share] | None = None
    """How often a write is not visible yet within `visibility_delay`."""
    aborted_writes: Figure[bool] | None = None
    """An aborted call has written as well."""
    prewarm: Figure[Prewarm] | None = None

    # Routing to the server that has the entry.
    missed: Figure[Share] | None = None
    """How often an existing prefix is not found at all."""
    first_missed: Figure[Share] | None = None
    """The same for the first call that follows the first of a conversation, if it differs."""
    cut_short: Figure[Share] | None = None
    """How often only a part of it is found."""
    thinking_dropped: Figure[Share] | None = None
    """How often a model with `strips_thinking` loses the messages at a user turn, if it is not
    known whether the client resends thinking."""
    key_requests: Figure[Count] | None = None
    """Requests per minute that one cache key routes to the same host."""
    route_seconds: Figure[Amount] | None = None
    """How long after its last call a conversation is routed to the same host."""

    # Prices, in multiples of the uncached input price.
    read_price: Figure[Amount]
    automatic_read_price: Figure[Amount] | None = None
    """The price of a hit without a marker, if it differs."""
    write_price: dict[Ttl, Figure[Amount]]
    """By TTL; a TTL without one is written at the input price."""
    storage_price: Figure[Amount] | None = None
    """Dollars per million tokens and hour, if storage is billed."""
    reads_limited: Figure[bool] | None = None
    """Cache reads count toward the limit of tokens per minute."""

    def __post_init__(self) -> None:
        ttls = self.ttls.value
        seconds = [TTL_SECONDS[ttl] for ttl in ttls]
        if seconds != sorted(set(seconds), reverse=True):
            raise self._invalid("ttls must be listed once each, longest first")
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
        if self.offset >= self.granule_tokens.value:
            raise self._invalid("granule_offset must be less than granule_tokens")

    @property
    def caches_tokens(self) -> bool:
        """Whether a prompt without markers is cached token by token, in granules: a difference
        inside a block keeps the part before it."""
        return self.automatic_breakpoint.value == "granules"

    @property
    def needs_marks(self) -> bool:
        """Whether a request without markers or handles caches nothing, as the provider sets no
        breakpoint itself."""
        if self.mechanism.value == "both":
            own = self.automatic_breakpoint.value in ("granules", "units")
            return self.slots.value > 0 and not own
        return self.mechanism.value == "explicit"

    @property
    def keeps_only_marked(self) -> bool:
        """Whether requests may have markers, and those without any cache nothing."""
        return self.needs_marks and self.slots.value > 0

    @property
    def offset(self) -> int:
        """The difference between cached lengths and multiples of a granule."""
        return 0 if self.granule_offset is None else self.granule_offset.value

    def whole_granules(self, tokens: int) -> int:
        """The cached length of a prefix: whole granules, less their offset, and 0 below the
        minimum."""
        granule = self.granule_tokens.value
        offset = 0 if self.granule_offset is None else self.granule_offset.value
        whole = (tokens + offset) // granule * granule - offset
        return whole if whole >= self.minimum_tokens.value else 0

    def input_cost(self, usage: Usage) -> float:
        """The cost of the input, in input tokens."""
        cost = (usage.uncached or 0) + (usage.read or 0) * self.read_price.value
        for ttl, tokens in (usage.written or {}).items():
            cost += tokens * (1.0 if ttl == "unsplit" else self.writing(ttl))
        return cost

    def with_granules(
        self, granule: int, offset: int, minimum: int, *, source: str
    ) -> "CacheRules":
        """These rules with other granules, otherwise unchanged."""
        changed = dict[str, Any]()
        if (granule, offset) != (self.granule_tokens.value, self.offset):
            changed["granule_tokens"] = _replaced(self.granule_tokens, granule, source)
            less = _replaced(self.granule_tokens, offset, source)
            changed["granule_offset"] = msgspec.structs.replace(less, disputed=())
        if minimum != self.minimum_tokens.value:
            changed["minimum_tokens"] = _replaced(self.minimum_tokens, minimum, source)
        return msgspec.structs.replace(self, **changed) if changed else self

    @property
    def shortest_prefix(self) -> int:
        """Tokens of the shortest cacheable prefix."""
        granule, offset = self.granule_tokens.value, self.offset
        return max(1, -(-(self.minimum_tokens.value + offset) // granule)) * granule - offset

    @property
    def longest_prefix(self) -> int:
        """Tokens of the longest cacheable prefix."""
        return _NO_MAXIMUM if self.maximum_tokens is None else self.maximum_tokens.value

    def writing(self, ttl: Ttl) -> float:
        """The price of a write, in multiples of the input price."""
        figure = self.write_price.get(ttl)
        return 1.0 if figure is None else figure.value

    @property
    def unmarked_caching(self) -> tuple[float, float] | None:
        """Lifetime in seconds and read price of unmarked requests, if a provider with markers
        caches those as well; else None."""
        if self.mechanism.value != "both" or self.default_ttl is None:
            return None
        if self.automatic_breakpoint.value not in ("granules", "units"):
            return None
        price = self.read_price if self.automatic_read_price is None else self.automatic_read_price
        return TTL_SECONDS[self.default_ttl.value], price.value

    def voided_by(self, param: CacheParam) -> tuple[Section, ...]:
        """The sections that a change of that parameter invalidates."""
        figure = self.invalidates.get(param)
        return () if figure is None else figure.value

    def reply_cached(self, reasoning: int | None) -> bool:
        """Whether the next call also reads the reply. `reasoning` is the number of the reply's
        hidden reasoning tokens; None: not reported."""
        figure = self.visible_output_cached if reasoning == 0 else None
        figure = self.output_cached if figure is None else figure
        return figure is not None and figure.value

    def _invalid(self, message: str) -> InvalidCatalog:
        return InvalidCatalog(message, row=f"rules of {self.provider} {self.model}".rstrip())


def _replaced(figure: Figure[int], value: int, source: str) -> Figure[int]:
    before = Disputed(value=figure.value, source=figure.source)
    return Figure(value=value, source=source, date=figure.date, verified=False, disputed=(before,))
