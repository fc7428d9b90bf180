"""Figures with their sources, model profiles and cache rules."""

# No postponed annotations: msgspec would evaluate them anew for every kind of figure, which took a
# third of the time of the catalog's first lookup.

import datetime
from typing import Annotated, Any, Generic, Literal, NoReturn, TypeAlias, TypeVar

import msgspec

from anaphora.errors import InvalidCatalog
from anaphora.values import TTL_SECONDS, Section, Ttl, Usage

T = TypeVar("T")

Named: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
Limit: TypeAlias = Annotated[int, msgspec.Meta(gt=0)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Amount: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
ErrorShare: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class Disputed(msgspec.Struct, Generic[T], frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The value that another source or platform publishes."""

    value: T
    source: Named


class Figure(msgspec.Struct, Generic[T], frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A value with its source, and the day it was read there."""

    value: T
    source: Named
    date: datetime.date
    verified: bool = True
    """False: no source states it for this model; the value is a conservative stand-in."""
    disputed: tuple[Disputed[T], ...] = ()
    """Other published values; `value` is the one to use."""

    @property
    def published(self) -> tuple[T, ...]:
        """Every published value, ours first: for rules that must hold under all of them."""
        return (self.value, *(other.value for other in self.disputed))

    def __bool__(self) -> NoReturn:
        # `if profile.strips_thinking:` would be true for every model.
        raise TypeError("a figure has no truth value; use its .value")


Feature: TypeAlias = Literal[
    "sampling",
    "forced_tools",
    "disabled_thinking",
    "budgeted_thinking",
    "assistant_documents",
    "user_text_citations",
    "altered_sampling",
    "stop",
    "unsigned_calls",
    "unbound_thinking",
]
"""Parts of a request that some model or API version refuses with a 400: temperature, top_p and
top_k; tool choice any or a named tool; thinking turned off; thinking with a token budget;
documents in assistant messages; citations on user text; temperature or top_p other than their
default 1; stop sequences; tool calls of the current turn without the signature they came with;
signed thinking behind another prompt than the one it was written for."""

Capability: TypeAlias = Literal[
    "images",
    "documents",
    "audio",
    "video",
    "tools",
    "parallel_tools",
    "structured_output",
    "reasoning",
    "adaptive_thinking",
]
"""Input besides text, and features: tool calls, several of them in one reply, replies that follow a
schema, reasoning, reasoning of a length that the model chooses."""

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""Reasoning effort."""

MaxTokensField: TypeAlias = Literal["max_completion_tokens", "max_tokens"]
"""The name of the output token limit in Chat Completions."""

SystemRole: TypeAlias = Literal["developer", "system", "user"]
"""The role of the system text when it is a message; `user` if the model has no role for it."""

SystemSlot: TypeAlias = Literal["message", "instructions"]
"""Where Responses takes the system text: as the first input message, or as `instructions`."""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model. Facts that no source states are `None`, or a figure that is not `verified`."""

    provider: str
    id: str
    """The catalog's id, without a date; for an unknown model the requested id."""
    known: bool
    """False: the catalog has no row for it; the figures are its provider's defaults."""

    tokenizer: Figure[str]
    bytes_per_token: Figure[Positive]
    """UTF-8 bytes of compact JSON blocks (the bytes of a chunk) per billed token."""
    token_error: Figure[ErrorShare]
    """The error of an estimate by `bytes_per_token`, as a share of the estimate."""
    context_tokens: Figure[Limit] | None = None
    """The context window."""
    output_tokens: Figure[Limit] | None = None
    """The output limit."""
    capabilities: Figure[tuple[Capability, ...]] | None = None
    """Those that its source lists; others are unknown."""
    efforts: Figure[tuple[Effort, ...]] | None = None
    """Least first."""
    retires: Figure[datetime.date] | None = None
    """The first day that it is not available."""

    mid_conversation_system: Figure[bool]
    """Accepts `role: "system"` inside messages."""
    strips_thinking: Figure[bool]
    """Drops earlier thinking at a plain user turn, which voids the cached messages."""
    refusals: Figure[tuple[Feature, ...]]
    """Features that this model refuses on every API version."""

    max_temperature: Figure[Amount] | None = None
    """A higher temperature is refused."""

    # Left out for providers without the concept.
    web_search_options: Figure[bool] | None = None
    """Takes `web_search_options` in Chat Completions."""
    max_tokens_field: Figure[MaxTokensField] | None = None
    system_role: Figure[SystemRole] | None = None
    system_roles: Figure[tuple[SystemRole, ...]] | None = None
    """The roles that system messages may have; None: `system`, and `developer` where it is the
    `system_role`."""
    system_slot: Figure[SystemSlot] | None = None
    reasoning_field: Figure[str] | None = None
    """The field of an assistant message in which Chat hosts accept reasoning."""
    reasoning_needed: Figure[bool] | None = None
    """An assistant message with tool calls is refused without its reasoning."""
    explicit_breakpoints: Figure[bool] | None = None
    """Accepts `prompt_cache_breakpoint` on content, and `prompt_cache_options`."""

    api_version: Figure[str] | None = None
    """The version header to send unless the caller names another."""
    version_refusals: dict[str, Figure[tuple[Feature, ...]]] = {}
    """Features that an API version refuses, by version."""

    def can(self, capability: Capability) -> bool:
        """Whether the capability is known; false also where no source lists any."""
        return self.capabilities is not None and capability in self.capabilities.value

    def refuses(self, feature: Feature, *, api_version: str | None = None) -> bool:
        """Whether a request with that feature is known to be refused on that API version."""
        if feature in self.refusals.value:
            return True
        if api_version is None and self.api_version is not None:
            api_version = self.api_version.value
        by_version = self.version_refusals.get(api_version or "")
        return by_version is not None and feature in by_version.value


Mechanism: TypeAlias = Literal["explicit", "implicit", "both"]
"""Caching by markers in the request, by the provider itself, or either."""

LookbackUnit: TypeAlias = Literal["blocks", "tool_runs", "messages", "breakpoints"]
"""One look-back position: a block; a block, with consecutive tool_use (or tool_result) blocks as
one; a message; or a breakpoint of the same request, so that an earlier write is found only where
the request marks its end again."""

Breakpoint: TypeAlias = Literal["none", "last_block", "last_message", "granules", "units", "slots"]
"""Where the provider ends a prefix by itself: nowhere, at the last eligible block, at the last
eligible message, every `granule_tokens`, where it persisted a unit earlier, or as far as the last
prompt of one of the server's slots is the same."""

Moment: TypeAlias = Literal["request_start", "response_start", "response_end"]

Lifetime: TypeAlias = Literal["exact", "at_least", "at_most"]
"""Whether a TTL is an entry's exact lifetime, its shortest, or its longest."""

Isolation: TypeAlias = Literal["workspace", "organization", "server"]

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


class CacheRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The cache rules of one model, each a `Figure` with its source."""

    provider: str
    model: str

    mechanism: Figure[Mechanism]
    isolation: Figure[Isolation]
    """Entries are shared inside of this only."""

    # The hashed prefix.
    hash_order: Figure[tuple[Section, ...]]
    minimum_tokens: Figure[Count]
    """Shorter prefixes are not cached, without an error."""
    granule_tokens: Figure[Annotated[int, msgspec.Meta(ge=1)]]
    """Cached lengths are multiples of this; 1 where the boundary is exact."""
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
    """Kinds of block, by the wire's names, that may carry a marker."""
    unmarkable: Figure[tuple[str, ...]]
    """Kinds known to be refused. Kinds in neither list are unknown, and left unmarked."""
    automatic_breakpoint: Figure[Breakpoint]
    output_cached: Figure[bool] | None = None
    """The reply is cached as well, so that the next call reads it."""
    visible_output_cached: Figure[bool] | None = None
    """The same for a reply whose bill shows no hidden reasoning, where it differs."""
    uncached_tail: Figure[Count] | None = None
    """At most this many tokens after the last prefix are always computed."""
    trailing_system_reused: Figure[bool] | None = None
    """Whether a prefix that ends with a mid-conversation system message at the end of a request is
    found by the next request; None where no source says."""
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
    """From a request to the start of its response, as far as `ttl_from` needs it and a recording
    lacks it."""
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
    """The same for the first call that follows the first of a conversation, where it differs."""
    cut_short: Figure[Share] | None = None
    """How often only a part of it is found."""
    thinking_dropped: Figure[Share] | None = None
    """How often a model with `strips_thinking` loses the messages at a user turn, where it is not
    known whether the client resends thinking."""
    key_requests: Figure[Count] | None = None
    """Requests per minute that one cache key routes to the same host."""
    route_seconds: Figure[Amount] | None = None
    """How long after its last call a conversation is routed to the same host."""

    # Prices, in multiples of the uncached input price.
    read_price: Figure[Amount]
    automatic_read_price: Figure[Amount] | None = None
    """The price of a hit without a marker, where it differs."""
    write_price: dict[Ttl, Figure[Amount]]
    """By TTL; a TTL without one is written at the input price."""
    storage_price: Figure[Amount] | None = None
    """Dollars per million tokens and hour, where storage is billed."""
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
        inside a block keeps what is before it."""
        return self.automatic_breakpoint.value == "granules"

    @property
    def needs_marks(self) -> bool:
        """Whether a request without markers, handles and the provider's own breakpoint caches
        nothing."""
        if self.mechanism.value == "both":
            own = self.automatic_breakpoint.value in ("granules", "units")
            return self.slots.value > 0 and not own
        return self.mechanism.value == "explicit"

    @property
    def offset(self) -> int:
        """What cached lengths lack to a multiple of a granule."""
        return 0 if self.granule_offset is None else self.granule_offset.value

    def whole_granules(self, tokens: int) -> int:
        """How much of a prefix is cached: whole granules, less their offset, and nothing below the
        minimum."""
        granule, offset = self.granule_tokens.value, self.offset
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
        """These rules with other lengths of cached prefixes, and nothing else."""
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
        """The tokens of the shortest prefix that is cached."""
        granule, offset = self.granule_tokens.value, self.offset
        return max(1, -(-(self.minimum_tokens.value + offset) // granule)) * granule - offset

    def may_read(self, tokens: int) -> bool:
        """Whether a read may have this length."""
        return tokens == 0 or self.whole_granules(tokens) == tokens

    def writing(self, ttl: Ttl) -> float:
        """The price of a write, in multiples of the input price."""
        figure = self.write_price.get(ttl)
        return 1.0 if figure is None else figure.value

    @property
    def unmarked_caching(self) -> tuple[float, float] | None:
        """Lifetime in seconds and read price of unmarked requests, where a provider with markers
        caches those too; None elsewhere."""
        if self.mechanism.value != "both" or self.default_ttl is None:
            return None
        if self.automatic_breakpoint.value not in ("granules", "units"):
            return None
        price = self.read_price if self.automatic_read_price is None else self.automatic_read_price
        return TTL_SECONDS[self.default_ttl.value], price.value

    def voided_by(self, param: CacheParam) -> tuple[Section, ...]:
        """The sections that are invalidated when that parameter changes."""
        figure = self.invalidates.get(param)
        return () if figure is None else figure.value

    def reply_cached(self, reasoning: int | None) -> bool:
        """Whether the next call reads the reply, too. `reasoning` is how many of the reply's tokens
        were hidden reasoning; None: not reported."""
        figure = self.visible_output_cached if reasoning == 0 else None
        figure = self.output_cached if figure is None else figure
        return figure is not None and figure.value

    def _invalid(self, message: str) -> InvalidCatalog:
        return InvalidCatalog(message, row=f"rules of {self.provider} {self.model}".rstrip())


def _replaced(figure: Figure[int], value: int, source: str) -> Figure[int]:
    before = Disputed(value=figure.value, source=figure.source)
    return Figure(value=value, source=source, date=figure.date, verified=False, disputed=(before,))
