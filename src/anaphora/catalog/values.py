"""Figures with their sources, model profiles, and TOML files decoded as structs."""

# No postponed annotations: msgspec would evaluate them for every kind of figure, a third of the
# time of the catalog's first lookup.

import datetime
import functools
import threading
from collections.abc import Callable, Container
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NoReturn, TypeAlias, TypeVar

import msgspec

from anaphora.errors import InvalidCatalog
from anaphora.values import Ttl

T = TypeVar("T")

Named: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
Limit: TypeAlias = Annotated[int, msgspec.Meta(gt=0)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Amount: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
ErrorShare: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=1)]


#: msgspec crashes if two threads decode into a new type at once. Before Python 3.12
#: `cached_property` held a lock.
_DECODING = threading.RLock()


class decoded_once(functools.cached_property[T]):
    def __get__(self, instance: Any, owner: Any = None) -> T:  # type: ignore[override]
        with _DECODING:
            value: T = super().__get__(instance, owner)
            return value


class Disputed(msgspec.Struct, Generic[T], frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A value that another source or platform publishes."""

    value: T
    source: Named


class Figure(msgspec.Struct, Generic[T], frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A value with its source, and the day it was read there."""

    value: T
    source: Named
    date: datetime.date
    verified: bool = True
    """False: no source states it for this model; the value is a stand-in."""
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
    "forced_tools_while_thinking",
    "disabled_thinking",
    "budgeted_thinking",
    "assistant_documents",
    "user_text_citations",
    "altered_sampling",
    "stop",
    "unsigned_calls",
    "unbound_thinking",
    "output_schema",
    "assistant_first",
    "parts_beside_results",
    "images_in_results",
    "documents_in_results",
    "binary_documents_in_results",
    "result_status",
    "stored_images",
    "video",
    "citations",
]
"""Parts of a request that some model or API version refuses with a 400: temperature, top_p and
top_k; tool choice any or a named tool, always or while thinking is on; thinking turned off;
thinking with a token budget; documents in assistant messages; citations on user text;
temperature or top_p other than their default 1; stop sequences; tool calls of the current turn
without the signature they came with; signed thinking after another prompt than the one it was
written for; an output schema and strict tools; a conversation that begins with the assistant;
anything, or documents and video, in one message with tool results; images, documents, or
documents that are not text inside them; their status; images in the provider's storage; video;
citations of documents."""

Family: TypeAlias = Literal["claude", "nova", "openai", "gpt-oss", "qwen"]
"""Models that take parameters of their own in the same form."""

CachePlace: TypeAlias = Literal[
    "tools", "system", "text", "image", "document", "toolUse", "toolResult"
]
"""The lists and blocks of Converse that a cache point may follow."""

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
    """The first day on which it is not available."""

    mid_conversation_system: Figure[bool]
    """Accepts `role: "system"` inside messages."""
    strips_thinking: Figure[bool]
    """Drops earlier thinking at a plain user turn, which invalidates the cached messages."""
    refusals: Figure[tuple[Feature, ...]]
    """Features that this model refuses on every API version."""

    max_temperature: Figure[Amount] | None = None
    """A higher temperature is refused."""

    # Omitted for providers without the concept.
    web_search_options: Figure[bool] | None = None
    """Takes `web_search_options` in Chat Completions."""
    max_tokens_field: Figure[MaxTokensField] | None = None
    system_role: Figure[SystemRole] | None = None
    system_roles: Figure[tuple[SystemRole, ...]] | None = None
    """The roles that system messages may have; None: `system`, and `developer` if it is the
    `system_role`."""
    system_slot: Figure[SystemSlot] | None = None
    reasoning_field: Figure[str] | None = None
    """The field of an assistant message in which Chat hosts accept reasoning."""
    reasoning_needed: Figure[bool] | None = None
    """An assistant message with tool calls is refused without its reasoning."""
    only_strings: Figure[bool] | None = None
    """Chat contents that are lists are refused: several texts are joined by a blank line."""
    explicit_breakpoints: Figure[bool] | None = None
    """Accepts `prompt_cache_breakpoint` on content, and `prompt_cache_options`."""

    converse_family: Figure[Family] | None = None
    """The form of the model's own parameters on Converse."""
    converse_refusals: Figure[tuple[Feature, ...]] | None = None
    """Features that this model refuses on Converse, besides its `refusals`."""
    cache_points: Figure[tuple[CachePlace, ...]] | None = None
    """Where Converse takes a cache point for this model: anywhere else it refuses the request."""
    cache_point_ttls: Figure[tuple[Ttl, ...]] | None = None
    """The TTLs of cache points; None: all."""

    api_version: Figure[str] | None = None
    """The version header to send unless the caller sets another."""
    version_refusals: dict[str, Figure[tuple[Feature, ...]]] = {}
    """Features that an API version refuses, by version."""

    as_sent: bool = False
    """Requests are rendered as another program wrote them (`wire.cutting`); no row sets it."""

    def can(self, capability: Capability) -> bool:
        """Whether the capability is known; also False if no source lists any."""
        return self.capabilities is not None and capability in self.capabilities.value

    def refuses(self, feature: Feature, *, api_version: str | None = None) -> bool:
        """Whether a request with that feature is known to be refused by that API version."""
        if feature in self.refusals.value:
            return True
        if api_version is None and self.api_version is not None:
            api_version = self.api_version.value
        by_version = self.version_refusals.get(api_version or "")
        return by_version is not None and feature in by_version.value


# ── TOML files ───────────────────────────────────────────────────────────────────────────────────


def read_toml(text: str, file: str, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text, parse_float=parse_float)
    except tomllib.TOMLDecodeError as error:
        raise InvalidCatalog(f"not TOML: {error}", file=file) from error


def with_decimals(value: Any, fields: Container[str], field: str = "") -> Any:
    """The content of a file with whole numbers in these fields as decimals."""
    if isinstance(value, dict):
        return {name: with_decimals(item, fields, name) for name, item in value.items()}
    if isinstance(value, list):
        return [with_decimals(item, fields) for item in value]
    return Decimal(value) if field in fields and type(value) is int else value


def decode_structs(content: dict[str, Any], file: str, **kinds: type[Any]) -> list[tuple[Any, ...]]:
    """The rows of a file as structs, by kind; raises for other content."""
    if others := content.keys() - kinds:
        use = " or ".join(f"[[{kind}]]" for kind in kinds)
        raise InvalidCatalog(f"{min(others)!r} is not a kind of row; use {use}", file=file)
    return [
        tuple(
            convert(table, struct, file, f"{kind}[{index}] ({_title(table)})")
            for index, table in enumerate(tables_of(content, kind, file))
        )
        for kind, struct in kinds.items()
    ]


def tables_of(content: dict[str, Any], kind: str, file: str) -> list[dict[str, Any]]:
    tables = content.get(kind, [])
    if isinstance(tables, list) and all(isinstance(table, dict) for table in tables):
        return tables
    raise InvalidCatalog(f"write rows as [[{kind}]]", file=file, row=kind)


def _title(table: dict[str, Any]) -> str:
    return "/".join(str(table[key]) for key in ("provider", "wire", "surface") if key in table)


def convert(value: Any, kind: type[T], file: str, row: str, field: str = "") -> T:
    try:
        # TOML has dates; a quoted date is an error.
        return msgspec.convert(value, kind, builtin_types=(datetime.date, datetime.time, Decimal))
    except msgspec.ValidationError as error:
        message = f"{field}: {error}" if field else str(error)
        raise InvalidCatalog(message, file=file, row=row) from error


# ── Figures as they are written ──────────────────────────────────────────────────────────────────


def as_figure(value: Any, provenance: dict[str, Any]) -> Any:
    """A plain value as a figure with the row's source and date; a table of figures one by one."""
    if not isinstance(value, dict):
        return {"value": value, **provenance}
    if "value" not in value:
        return {key: as_figure(item, provenance) for key, item in value.items()}
    return value if "source" in value else {**provenance, **value}


def verified_part(value: Any, provenance: dict[str, Any]) -> Any:
    """The part of a row's field that is verified; None if nothing is."""
    if isinstance(value, dict) and "value" not in value:
        kept = {key: verified_part(item, provenance) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not None} or None
    figure = as_figure(value, provenance)
    return figure if figure.get("verified", True) else None


def derived(value: Any, provenance: dict[str, Any], file: str) -> Any:
    """A figure as a stand-in derived from another provider's file."""
    if isinstance(value, dict) and "value" not in value:
        return {key: derived(item, provenance, file) for key, item in value.items()}
    figure = as_figure(value, provenance)
    return {**figure, "source": f"derived: {file}: {figure.get('source', '')}", "verified": False}
