"""The configuration `llm.yaml`: its fields with their defaults. Times are in seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from anaphora.errors import InvalidConfig, Io
from anaphora.redaction import (
    ELLIPSIS,
    hides_arguments,
    looks_like_key,
    shown_name,
    shown_url,
)
from anaphora.yaml_values import Origin, from_python, read_yaml

from .accounts import CloudCredentials
from .tables import Count as Count
from .tables import Dollars as Dollars
from .tables import Key as Key
from .tables import Name as Name
from .tables import Positive as Positive

#: A longer file is not a configuration.
_MAX_BYTES = 4 * 1024 * 1024


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the tables here."""


class Timeouts(_Table, frozen=True):
    """Time limits; `total` is for the whole call, retries and waits included."""

    connect: Positive = 10.0
    first_byte: Positive = 120.0
    """From the last byte of the request to the first of the response."""
    idle: Positive = 60.0
    """Between two pieces of a response."""
    total: Positive = 600.0


class RetryConfig(_Table, frozen=True):
    example: ClassVar[str] = "write `retry: {max_attempts: 3}`"

    max_attempts: Count = 3
    """The most times that a request is sent, the first included."""
    first_wait: Positive = 0.5
    """The first wait is drawn between 0 and this; each further one from twice as much."""
    longest_wait: Positive = 60.0
    """If a provider states a longer wait, the next hop is tried, or the call fails."""


class BreakerConfig(_Table, frozen=True):
    """A provider that fails `failures` times `within` that many seconds is not called for
    `open_for` seconds."""

    failures: Count = 5
    within: Positive = 60.0
    open_for: Positive = 30.0
    probes: Count = 1
    """The number of concurrent calls that may then test whether it has recovered."""


class Rate(_Table, frozen=True):
    """Limits of a model; None: those of the provider's response headers."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    """Input tokens, counted as the provider counts them."""
    concurrency: Count | None = None


class LimitsConfig(_Table, frozen=True):
    """Limits of the provider as a whole, and additional ones of single models."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    concurrency: Count | None = None
    models: dict[str, Rate] = {}
    longest_wait: Positive = 3600.0
    """A provider that states a longer wait, in an error or in a header, is tried again after this
    many seconds."""


class PriceTier(_Table, frozen=True):
    """Prices of calls whose prompt has more than `above` tokens, cached ones included."""

    above: Count
    input: Dollars
    output: Dollars


class NamedModel(_Table, frozen=True):
    """The model behind a name of the user's own."""

    model: Name
    """As in the catalog: `anthropic.claude-sonnet-5`."""


class ModelPrice(_Table, frozen=True):
    """Dollars per million tokens. Cache prices are multiples of `input`, by the cache rules."""

    input: Dollars
    output: Dollars
    tiers: tuple[PriceTier, ...] = ()

    def __post_init__(self) -> None:
        starts = [tier.above for tier in self.tiers]
        if starts != sorted(set(starts)):
            raise ValueError("tiers must be listed once each, lowest first")


class ProviderConfig(_Table, frozen=True):
    wire: Name | None = None
    """`anthropic`, `openai_responses`, …; by default that of the dialect."""
    dialect: Name | None = None
    """`deepseek`, `minimax/anthropic`, …; by default that of the wire's own provider."""
    base_url: Name | None = None
    key: Key | None = None
    credentials: CloudCredentials | None = None
    """Credentials of a cloud instead of a key; by default, those that its SDK would find."""
    headers: dict[str, str] = {}
    region: str | None = None
    """Replaces `{region}` and `{location}` in the URL."""
    account: dict[str, str] = {}
    """Replaces the other placeholders of the URL, by name: `project`, `resource`, …"""
    model: Name | None = None
    """The model of calls that name none."""
    models: dict[Name, NamedModel] = {}
    """The models behind names that do not tell: ARNs of application inference profiles."""
    known_models: tuple[Name, ...] = ()
    """If given, calls of other models are refused."""
    max_tokens: Count = 1024
    """For calls that set none, on wires that require it."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    timeouts: Timeouts = Timeouts()
    retry: RetryConfig = RetryConfig()
    breaker: BreakerConfig = BreakerConfig()
    limits: LimitsConfig = LimitsConfig()
    prices: dict[Name, ModelPrice] = {}
    """By model, instead of the shipped prices; `*` is every other model."""
    proxy: Name | None = None
    ca: Name | None = None
    """A file of certificates to trust instead of the system's."""
    max_response_bytes: Count = 64 * 1024 * 1024
    """The maximum size of a response in bytes; a longer one is an error."""
    idempotency_header: Name | None = None
    """A header with an idempotency key: new for each call, the same for its retries. For gateways
    that drop duplicates; no provider of the catalog documents one."""
    on_abort: Literal["read_on", "cancel"] | None = None
    """What a daemon does when the app disconnects: read the response to its usage, or close the
    connection. The default depends on whether the provider goes on and bills, by the catalog."""

    def __repr__(self) -> str:
        """The fields that differ from the defaults, without header values and URL credentials."""
        shown = (f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"ProviderConfig({', '.join(shown)})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return list(self._shown())

    def _shown(self) -> Iterator[tuple[str, Any]]:
        defaults = ProviderConfig()
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value == getattr(defaults, name):
                continue
            if name == "headers":
                yield name, tuple(value)
            elif name == "account":
                yield name, {shown_name(key): shown_name(text) for key, text in value.items()}
            elif name in ("base_url", "proxy"):
                yield name, shown_url(value)
            else:
                yield name, value


class Hop(_Table, frozen=True):
    """One target of a route."""

    example: ClassVar[str] = "write `{provider: ID}`"

    provider: Name
    model: Name | None = None
    weight: Annotated[float, Meta(ge=0)] = 0
    """Hops with a weight share the calls; the others are fallbacks, in order."""


class ClientConfig(_Table, frozen=True, dict=True):
    providers: dict[Name, ProviderConfig] = {}
    routes: dict[Name, tuple[Hop, ...]] = {}
    """By a name that sessions use like a provider's id."""
    daemon: dict[str, Any] = {}
    """Settings of `anaphora serve`, which checks them as strictly; clients ignore them."""

    @property
    def origin(self) -> Origin:
        """File and lines; not part of the value, so equal configurations compare equal."""
        origin: Origin = self.__dict__.get("origin", Origin())
        return origin

    @classmethod
    @hides_arguments
    def of(cls, source: object) -> ClientConfig:
        """From the path of `llm.yaml`, or its content."""
        if isinstance(source, ClientConfig):
            return source
        if isinstance(source, Mapping):
            return cls.from_mapping(source)
        if isinstance(source, str | Path):
            return cls.read(source)
        raise InvalidConfig(
            f"must be the path of llm.yaml, or its content, not {type(source).__name__}"
        )

    @classmethod
    @hides_arguments
    def read(cls, path: str | os.PathLike[str]) -> ClientConfig:
        return cls.from_text(read_config_file(path), os.fspath(path))

    @classmethod
    @hides_arguments
    def from_text(cls, text: str, file: str = "<text>") -> ClientConfig:
        """The configuration in a YAML text; `file` is the name for error messages."""
        config, config.__dict__["origin"] = read_yaml(text, file, ClientConfig)
        return config

    @classmethod
    @hides_arguments
    def from_mapping(cls, data: Mapping[str, Any]) -> ClientConfig:
        return from_python(dict(data), ClientConfig)


@hides_arguments
def read_config_file(path: str | os.PathLike[str]) -> str:
    """The text of a configuration file."""
    file = os.fspath(path)
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        shown = ELLIPSIS if looks_like_key(file) else file
        raise Io(f"{shown}: cannot be read: {error.strerror or error}") from None
    if len(data) > _MAX_BYTES:
        raise InvalidConfig(f"longer than {_MAX_BYTES:,} bytes", file=file)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidConfig("not UTF-8", file=file, line=line) from None


def schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of `llm.yaml`, for editors. It checks types, but no names of
    wires or routes."""
    tables = msgspec.json.schema(ClientConfig)
    tables["$defs"]["Key"]["oneOf"] = [{"required": ["env"]}, {"required": ["secret"]}]
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "title": "llm.yaml", **tables}
