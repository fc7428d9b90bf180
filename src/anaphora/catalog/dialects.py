"""How providers that speak like another one differ from it: one row for each provider and wire.

Most of what is said and heard is the wire's own; a row holds the rest. So a provider that speaks
like one we have is added by adding a row (docs/adding-a-provider.md).
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Container
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from anaphora.errors import InvalidCatalog, InvalidRequest
from anaphora.values import StopReason, Ttl, WriteTtl

FILE = "dialects.toml"

Auth: TypeAlias = Literal["bearer", "x-api-key", "api-key", "x-goog-api-key", "none"]
"""Where the key goes: `Authorization: Bearer …`, a header of that name, or nowhere."""

Param: TypeAlias = Literal[
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "stop",
    "tool_choice",
    "tool_choice.parallel",
    "reasoning.mode",
    "reasoning.effort",
    "reasoning.budget_tokens",
    "reasoning.display",
    "reasoning.summary",
    "output",
    "metadata",
    "user",
    "service_tier",
    "seed",
    "n",
    "frequency_penalty",
    "presence_penalty",
    "verbosity",
    "store",
    "include",
    "truncation",
    "cache.automatic",
    "cache.mode",
    "cache.key",
    "cache.retention",
    "cache.prewarm",
    "cache.diagnose",
]
"""The parameters of a call, by the names they have there."""

Scalar: TypeAlias = str | int | float | bool

ErrorKind: TypeAlias = Literal[
    "rate_limit",
    "quota",
    "overloaded",
    "auth",
    "permission",
    "not_found",
    "context_overflow",
    "too_large",
    "content_refused",
    "invalid",
]


#: Where each wire's requests go unless a row has its own `path`.
_PATHS = {
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "gemini": "/v1beta/models",
    "ollama": "/api/chat",
}

#: Providers that OpenTelemetry's conventions name differently.
_OTEL_PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "xai": "x_ai",
}


def otel_provider(provider: str, host: str) -> str:
    """The provider's name in OpenTelemetry's conventions for generative AI."""
    if provider == "google" and host.endswith("aiplatform.googleapis.com"):
        return "gcp.vertex_ai"
    return _OTEL_PROVIDERS.get(provider, provider)


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Common ground of all tables of a row."""


class Place(_Row, frozen=True):
    """Where a parameter is said, and in which words."""

    at: str = ""
    """A field of the body, dots between its levels; empty when it is a header."""
    header: str = ""
    values: dict[str, Scalar] = {}
    """The provider's word for each of ours; what is not named is said as it is."""
    closed: bool = False
    """Only these words are sent; any other is left out, and told."""


class UsageShape(_Row, frozen=True):
    """Where in the usage object counts stand besides the wire's own places; dots between levels."""

    read: tuple[str, ...] = ()
    uncached: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    written_ttl: WriteTtl | None = None
    """What was written lives that long, whatever it would on the wire's home."""


class ErrorShape(_Row, frozen=True):
    """An object that tells an error, even in an answer with a good status."""

    at: str = "error"
    code: str = "code"
    message: str = "message"
    fine: tuple[str, ...] = ()
    """Codes that mean that there is no error."""
    kinds: dict[str, ErrorKind] = {}
    """What each code means; others go by the status."""
    texts: bool = False
    """Codes are texts even where they look like numbers."""
    status: int | None = None
    """The status it comes with, when that is always the same."""


class Dialect(_Row, frozen=True, kw_only=True):
    """One provider on one wire."""

    provider: str
    wire: str
    surface: str = ""
    """Which of several, where a provider speaks one wire in more than one place; empty: the usual
    one."""
    source: Annotated[str, msgspec.Meta(min_length=1)]
    date: datetime.date
    hosts: tuple[str, ...] = ()
    """The hosts that speak it; `*` stands for anything."""
    base_url: str
    """With `{name}` for what an account has to fill in."""
    path: str = ""
    """Where requests go, when not to the wire's own path. Where that names the model,
    `{model}:{method}` stands for it."""
    auth: Auth = "bearer"
    key_variables: tuple[str, ...] = ()
    """Environment variables that usually hold the key, if not NAME_API_KEY."""
    headers: dict[str, str] = {}
    """Sent with every request, besides the wire's own."""
    fields: dict[Param, str | Literal[False] | Place] = {}
    """Where a parameter goes that the wire says elsewhere, or not at all; false: nowhere."""
    unsaid: tuple[str, ...] = ()
    """Fields that the wire says by itself and this provider refuses."""
    markers: dict[Ttl, dict[str, Any]] | None = None
    """What marks a block for each TTL; empty where nothing does. Left out: the wire's own."""
    usage: UsageShape | None = None
    errors: ErrorShape | None = None
    stops: dict[str, StopReason] = {}
    """Reasons to stop that the wire does not know."""
    whole_calls: bool = False
    """In a stream a tool call is written in one piece: clients want its name in every piece."""

    @property
    def name(self) -> str:
        return _name(self.provider, self.wire, self.surface)

    @property
    def request_path(self) -> str:
        """The path that requests begin with, as far as it is the same for all of them."""
        return self.path or _PATHS[self.wire]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.provider, self.wire, self.surface

    def place(self, param: Param) -> Place | None:
        """Where a parameter goes; None: nowhere. Ask only for those in `fields`."""
        said = self.fields[param]
        if said is False:
            return None
        return Place(at=said) if isinstance(said, str) else said

    def __post_init__(self) -> None:
        for param, said in self.fields.items():
            if said is False:
                continue
            place = Place(at=said) if isinstance(said, str) else said
            if bool(place.at) == bool(place.header):
                raise ValueError(f"fields.{param} needs either `at` or `header`")


#: What other tools call a provider.
_ALIASES = {
    "gemini": "google",
    "google-vertex": "google",
    "vertex": "google",
    "claude": "anthropic",
    "kimi": "moonshot",
    "moonshotai": "moonshot",
    "qwen": "alibaba",
    "dashscope": "alibaba",
    "grok": "xai",
    "zhipu": "zai",
    "azure-openai": "azure",
    "amazon-bedrock": "bedrock",
    "llama.cpp": "llamacpp",
}


class Dialects(msgspec.Struct, frozen=True):
    """All rows; of two with the same provider, wire and surface the later one holds."""

    rows: tuple[Dialect, ...]

    def find(self, provider: str, wire: str | None = None, surface: str = "") -> Dialect:
        """The provider's row for a wire and surface; its first when no wire is named."""
        own = [row for row in self.rows if row.provider == provider]
        if not own:
            known = ", ".join(dict.fromkeys(row.provider for row in self.rows))
            raise InvalidRequest(f"no dialect of {provider!r}; there are {known}", path="provider")
        if wire is None:
            wire = own[0].wire
        there = [row for row in own if row.wire == wire]
        if not there:
            spoken = ", ".join(dict.fromkeys(row.wire for row in own))
            raise InvalidRequest(f"{provider} does not speak {wire!r}, only {spoken}", path="wire")
        for row in there:
            if row.surface == surface:
                return row
        places = ", ".join(repr(row.surface) for row in there)
        raise InvalidRequest(
            f"{provider} has no surface {surface!r} for {wire!r}, only {places}", path="surface"
        )

    def at_host(self, host: str, wire: str, path: str = "") -> Dialect | None:
        """The row for a request that was sent to that address."""
        found = [
            row
            for row in self.rows
            if row.wire == wire and any(fnmatchcase(host, known) for known in row.hosts)
        ]
        # Routers serve several providers at one host, each under a path of its own.
        return next((row for row in found if row.path and row.path == path), *found[:1] or (None,))

    def provider_named(self, name: str, known: Container[str]) -> str | None:
        """The catalog's name of a provider, which may be given by an alias or by its host."""
        low = name.lower()
        low = _ALIASES.get(low, low)
        if low in known:
            return low
        if "." not in low:
            return None
        rows = (self.at_host(low, wire) for wire in dict.fromkeys(row.wire for row in self.rows))
        return next((row.provider for row in rows if row is not None), None)

    def with_rows(self, text: str, *, file: str = "<override>") -> Dialects:
        """These with more rows; a row for a provider, wire and surface that is here takes its
        place."""
        return Dialects(_merged((*self.rows, *_decoded(text, file))))


def decode_dialects(text: str, *, file: str = "<text>") -> Dialects:
    return Dialects(_merged(_decoded(text, file)))


@functools.cache
def dialects() -> Dialects:
    """The rows that come with the package, read on first use."""
    import pkgutil

    data = pkgutil.get_data(__package__, FILE)
    if data is None:
        raise InvalidCatalog("the package was installed without it", file=FILE)
    return decode_dialects(data.decode(), file=FILE)


def _decoded(text: str, file: str) -> tuple[Dialect, ...]:
    # Loaded only here: whoever uses one of the wires as it is reads no rows.
    import tomllib

    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise InvalidCatalog(str(problem), file=file) from None
    found = tables.pop("dialect", [])
    if tables:
        raise InvalidCatalog(f"{min(tables)!r} is not a kind of row; use [[dialect]]", file=file)
    if not isinstance(found, list) or not all(isinstance(table, dict) for table in found):
        raise InvalidCatalog("write rows as [[dialect]]", file=file)
    rows = []
    for index, table in enumerate(found):
        named = _name(table.get("provider", "?"), table.get("wire", "?"), table.get("surface"))
        try:
            rows.append(msgspec.convert(table, Dialect, builtin_types=(datetime.date,)))
        except msgspec.ValidationError as problem:
            row = f"dialect {index + 1} ({named})"
            raise InvalidCatalog(str(problem), file=file, row=row) from None
    return tuple(rows)


def _merged(rows: tuple[Dialect, ...]) -> tuple[Dialect, ...]:
    return tuple({row.key: row for row in rows}.values())


def _name(provider: str, wire: str, surface: str | None) -> str:
    return f"{provider}/{wire}/{surface}" if surface else f"{provider}/{wire}"
