"""How a provider deviates from the wire that it uses: one row for each provider and wire.

A row holds only the differences, so a provider with a known protocol is added by adding a row
(docs/adding-a-provider.md).
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Container
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.values import StopReason, Ttl, WriteTtl

from .names import ALIASES
from .values import Figure, decode_structs, read_toml

FILE = "dialects.toml"
_FIELD = re.compile(r"\{\w+\}")

Auth: TypeAlias = Literal["bearer", "x-api-key", "api-key", "x-goog-api-key", "none"]
"""Where the key goes: `Authorization: Bearer …`, a header of that name, or nowhere."""

Cloud: TypeAlias = Literal["aws", "google", "azure"]

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
"""Parameters of a call."""

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


#: Path of each wire's requests, unless a row has its own `path`.
_PATHS = {
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "gemini": "/v1beta/models",
    "bedrock": "/model",
}

#: Ends of the paths that name an operation after the model, by envelope or wire.
_OPERATIONS = {
    "invoke": ("/invoke", "/invoke-with-response-stream"),
    "bedrock": ("/converse", "/converse-stream"),
}

#: Providers with another name in OpenTelemetry's conventions.
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


class ParamPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The field or header of a parameter, and its values."""

    at: str = ""
    """A field of the body, with dots between levels; empty if it is a header."""
    header: str = ""
    values: dict[str, Scalar] = {}
    """The provider's value for each of ours; other values are sent unchanged."""
    closed: bool = False
    """Only these values are sent; any other is left out with a notice."""


class UsageShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Additional fields of the usage object; dots between levels."""

    read: tuple[str, ...] = ()
    uncached: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    written_ttl: WriteTtl | None = None
    """The TTL of writes, if it is not the wire's."""


class ErrorShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An object that reports an error, even in a response with a success status."""

    at: str = "error"
    code: str = "code"
    message: str = "message"
    fine: tuple[str, ...] = ()
    """Codes that are not errors."""
    kinds: dict[str, ErrorKind] = {}
    """The error of each code; others are classified by the status."""
    texts: bool = False
    """Codes are strings even if they look like numbers."""
    status: int | None = None
    """The HTTP status, if always the same."""


_CLOUD_VARIABLES: dict[Cloud, tuple[str, ...]] = {
    "aws": (
        *("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    ),
    "google": ("GOOGLE_CLOUD_PROJECT", "ANTHROPIC_VERTEX_PROJECT_ID", "GOOGLE_VERTEX_PROJECT"),
    "azure": ("AZURE_OPENAI_ENDPOINT", "AZURE_RESOURCE_NAME", "ANTHROPIC_FOUNDRY_RESOURCE"),
}


class CloudAuth(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The cloud whose credentials authenticate requests without a key."""

    kind: Cloud
    service: str = ""
    """AWS: the name of the service in signatures."""
    scope: str = ""
    """Azure: the scope of tokens."""

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables that show that its credentials are meant to be used."""
        return _CLOUD_VARIABLES[self.kind]

    def __post_init__(self) -> None:
        if bool(self.service) != (self.kind == "aws") or bool(self.scope) != (self.kind == "azure"):
            raise ValueError("cloud: `service` is for aws, `scope` for azure")


class Router(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a provider that passes requests on to several hosts names the one that answered, and how
    a request asks for one. Dots are between levels."""

    answer: str = ""
    """The field of an answer that names the host."""
    answer_header: str = ""
    """The same in a header."""
    pin: str = ""
    """The list of a request with the hosts to try, in their order. Empty: the host is asked for
    after the model's name and a colon, and no other one is tried."""
    chosen_by: tuple[str, ...] = ()
    """Fields by which a request chooses its hosts itself."""
    chosen_models: tuple[str, ...] = ()
    """Patterns of model names that choose hosts."""


class Dialect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One provider on one wire."""

    provider: str
    wire: str
    surface: str = ""
    """One of several endpoints of a provider with the same wire; empty: the default."""
    known_as: str = ""
    """The name of a cloud, if it is not the provider: `vertex`. Models of its makers have a row
    each."""
    source: Annotated[str, msgspec.Meta(min_length=1)]
    date: datetime.date
    hosts: tuple[str, ...] = ()
    """The hosts; `*` is a wildcard."""
    base_url: str
    """With `{name}` for values of the account."""
    region_hosts: dict[str, str] = {}
    """The host of `base_url` by region, if it differs; `*`: other regions."""
    path: str = ""
    """The path, if not the wire's. With `{model}` and `{method}` if it names them, and `{name}` for
    other values of the account."""
    methods: dict[Literal["once", "stream"], str] = {}
    """The method in the path, if it is not the wire's."""
    count_path: str = ""
    """The path of requests that count tokens, with `{model}` if it names it; empty: there are
    none."""
    account_defaults: dict[str, str] = {}
    """Values of the account that need not be given."""
    account_variables: dict[str, tuple[str, ...]] = {}
    """Environment variables that usually hold values of the account."""
    envelope: Literal["", "invoke"] = ""
    """What is around the wire's bodies: that of InvokeModel, or nothing."""
    auth: Auth = "bearer"
    deployments: bool = False
    """The model of a request is the free name of a deployment; the answer names the model."""
    cloud: CloudAuth | None = None
    """The credentials of requests without a key."""
    key_variables: tuple[str, ...] = ()
    """Environment variables that usually hold the key, if not NAME_API_KEY."""
    url_variables: tuple[str, ...] = ()
    """Environment variables that usually hold the base URL, if not NAME_BASE_URL."""
    header_variables: dict[str, str] = {}
    """Further environment variables of the provider's SDK, and the header that each is sent in."""
    sdk_path: str = ""
    """The start of request paths that the base URL of the provider's SDK includes."""
    own_paths: tuple[str, ...] = ()
    """Path prefixes that a proxy accepts without the provider's name; the longest match counts.
    Stated on the provider's first row, like the next three fields."""
    unread_path: str = ""
    """A path prefix of an API that a proxy passes on, and does not read."""
    own_header: str = ""
    """A header that only clients of the provider send."""
    short_path: str = ""
    """The request path as written by some clients, without its version."""
    default_model: Figure[str] | None = None
    """The model of `anaphora ask` without one. Stated on the provider's first row."""
    headers: dict[str, str] = {}
    """Sent with every request, in addition to the wire's."""
    needed_headers: tuple[str, ...] = ()
    """Headers with values of the account, which a configuration must give."""
    fields: dict[Param, str | Literal[False] | ParamPlace] = {}
    """Parameters with another place than the wire's; false: not sent."""
    constants: dict[str, str] = {}
    """Fields that every body has, unless the call sets them."""
    omitted: tuple[str, ...] = ()
    """Fields that the wire sends by default and this provider refuses."""
    markers: dict[Ttl, dict[str, Any]] | None = None
    """The marker of a block for each TTL; empty if there is none. None: the wire's."""
    usage: UsageShape | None = None
    errors: ErrorShape | None = None
    stops: dict[str, StopReason] = {}
    """Additional stop reasons."""
    salt_field: str = ""
    """The field of a cache salt: requests with different salts share no entries."""
    router: Router | None = None
    """None: the provider has one host, or does not name those that it has."""
    reply_fields: tuple[str, ...] = ()
    """Fields of an answer's message that are facts about the answer: they are not sent back with
    the message."""
    whole_calls: bool = False
    """Streamed tool calls are written in one piece, for clients that expect the name in every
    one."""

    @property
    def name(self) -> str:
        """`provider/wire`, or `provider/wire/surface`."""
        return f"{self.provider}/{self.wire}/{self.surface}".rstrip("/")

    @property
    def request_path(self) -> str:
        """The fixed beginning of request paths."""
        return self.path or _PATHS[self.wire]

    def has_path(self, path: str) -> bool:
        """Whether it is the path of requests of this row."""
        if (steps := _OPERATIONS.get(self.envelope or self.wire)) is not None:
            return path.endswith(steps) and f"{self.request_path}/" in path
        own = self.path.partition("?")[0]
        if "{" not in own:
            return bool(own) and own == path
        return re.search(_template(own), path) is not None

    def place(self, param: Param) -> ParamPlace | None:
        """The place of a parameter of `fields`; None: not sent."""
        value = self.fields[param]
        if value is False:
            return None
        return ParamPlace(at=value) if isinstance(value, str) else value

    def __post_init__(self) -> None:
        for param in self.fields:
            place = self.place(param)
            if place is not None and bool(place.at) == bool(place.header):
                raise ValueError(f"fields.{param} needs either `at` or `header`")


def _template(path: str) -> str:
    """Finds a path with placeholders at the end of another."""
    return "[^/]+".join(map(re.escape, _FIELD.split(path))) + r"\Z"


class Dialects(msgspec.Struct, frozen=True):
    """All rows; of two with the same provider, wire and surface the later one counts."""

    rows: tuple[Dialect, ...]

    def find(self, provider: str, wire: str | None = None, surface: str = "") -> Dialect:
        """The provider's row for a wire and surface; its first row if no wire is given."""
        own = [row for row in self.rows if row.provider == provider]
        if not own:
            own = [row for row in self.rows if row.known_as == provider]
            surface = surface or next((row.surface for row in own), "")
        if not own:
            known = ", ".join(dict.fromkeys(row.provider for row in self.rows))
            raise InvalidRequest(f"no dialect of {provider!r}; there are {known}", path="provider")
        if wire is None:
            wire = own[0].wire
        there = [row for row in own if row.wire == wire]
        if not there:
            wires = ", ".join(dict.fromkeys(row.wire for row in own))
            raise InvalidRequest(f"{provider} does not support {wire!r}, only {wires}", path="wire")
        for row in there:
            if row.surface == surface:
                return row
        places = ", ".join(repr(row.surface) for row in there)
        raise InvalidRequest(
            f"{provider} has no surface {surface!r} for {wire!r}, only {places}", path="surface"
        )

    def at_path(self, provider: str, wire: str, path: str) -> Dialect | None:
        """The provider's row for requests to a path; at other paths its default row for the wire.
        None if it has none."""
        own = [row for row in self.rows if (row.provider, row.wire) == (provider, wire)]
        default = next((row for row in own if not row.surface), *own[:1] or (None,))
        if len(own) == 1:
            return default
        return next((row for row in own if row.has_path(path)), default)

    def at_host(self, host: str, wire: str, path: str = "") -> Dialect | None:
        """The row for a request to that URL."""
        found = [
            row
            for row in self.rows
            if row.wire == wire and any(fnmatchcase(host, known) for known in row.hosts)
        ]
        # Routers serve several providers at one host, each under its own path.
        return next((row for row in found if row.has_path(path)), *found[:1] or (None,))

    def is_public(self, host: str) -> bool:
        """Whether this host is shared by all users of a provider: it contains no account, and is
        not a server of the user."""
        return host != "localhost" and any(host in row.hosts for row in self.rows)

    def provider_named(self, name: str, known: Container[str]) -> str | None:
        """The catalog's name of a provider, given by name, alias or host."""
        low = name.lower()
        low = ALIASES.get(low, low)
        if low in known:
            return low
        if "." not in low:
            return None
        rows = (self.at_host(low, wire) for wire in dict.fromkeys(row.wire for row in self.rows))
        return next((row.provider for row in rows if row is not None), None)

    def with_rows(self, text: str, *, file: str = "<override>") -> Dialects:
        """These with more rows, which replace rows of the same provider, wire and surface."""
        (rows,) = decode_structs(read_toml(text, file), file, dialect=Dialect)
        return Dialects(tuple({row.name: row for row in (*self.rows, *rows)}.values()))


def decode_dialects(text: str, *, file: str = "<text>") -> Dialects:
    return Dialects(()).with_rows(text, file=file)
