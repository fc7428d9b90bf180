"""What `llm.yaml` says: providers, how to reach them, how patient to be, and routes between them.

Every field has its default here and nowhere else. Times are in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from .origin import Origin

Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]
Dollars = Annotated[float, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1)]


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\Z")
_USER_INFO = re.compile(r"//[^/]*@")


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Common ground of all tables."""


class Timeouts(_Table, frozen=True):
    """How long to wait for what. The whole call, retries and waits included, has `total`."""

    connect: Positive = 10.0
    first_byte: Positive = 120.0
    """From the request's last byte to the answer's first."""
    idle: Positive = 60.0
    """Between two pieces of an answer."""
    total: Positive = 600.0


class Retry(_Table, frozen=True):
    """`max_attempts` is how often a request is sent at most, the first time included."""

    max_attempts: Count = 3
    first_wait: Positive = 0.5
    """The first wait is drawn between 0 and this; each further one from twice as much."""
    longest_wait: Positive = 30.0


class Breaker(_Table, frozen=True):
    """After so many failures of the provider's within a time, it is left alone for a while."""

    failures: Count = 5
    within: Positive = 60.0
    open_for: Positive = 30.0
    probes: Count = 1
    """How many calls may try at once whether it is well again."""


class Rate(_Table, frozen=True):
    """What may be sent; None: as much as the provider's own headers allow."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    """Input tokens, counted as the provider counts them."""
    concurrency: Count | None = None


class Limits(Rate, frozen=True):
    """For the provider as a whole, and for some of its models besides."""

    models: dict[str, Rate] = {}


class PriceTier(_Table, frozen=True):
    """What a call costs when its prompt is longer than `above` tokens, cached ones counted."""

    above: Count
    input: Dollars
    output: Dollars


class ModelPrice(_Table, frozen=True):
    """Dollars per million tokens. Cache prices are multiples of `input`, by the cache rules."""

    input: Dollars
    output: Dollars
    tiers: tuple[PriceTier, ...] = ()
    """Lowest first."""

    def __post_init__(self) -> None:
        starts = [tier.above for tier in self.tiers]
        if starts != sorted(set(starts)):
            raise ValueError("tiers must be listed once each, lowest first")


class Key(_Table, frozen=True):
    """Where the key is: an environment variable, or a file `secrets/<NAME>.txt` beside the
    configuration. Exactly one of the two."""

    env: Name | None = None
    secret: Name | None = None

    def __post_init__(self) -> None:
        if (self.env is None) == (self.secret is None):
            raise ValueError("name either `env` or `secret`")
        if self.env is not None and not _VARIABLE.match(self.env):
            raise ValueError("env names an environment variable; the key itself has no place here")
        if self.secret is not None and not _FILE.match(self.secret):
            raise ValueError("secret is the plain name NAME of a file secrets/NAME.txt")

    def __str__(self) -> str:
        """Where the key is, for people."""
        name = self.env or self.secret or ""
        # Whoever writes the key itself into this place shall not find it in an error or a log.
        shown = name if _reads_like_a_name(name) else "…"
        return f"secrets/{shown}.txt" if self.env is None else f"${shown}"

    def __repr__(self) -> str:
        return f"Key({self})"


def _reads_like_a_name(text: str) -> bool:
    """ANTHROPIC_API_KEY does, sk-proj-9aF3… does not."""
    words = re.split(r"[._-]", text)
    return max(map(len, words)) <= _LONGEST_WORD and sum(map(str.isdigit, text)) <= _MOST_DIGITS


_LONGEST_WORD, _MOST_DIGITS = 20, 8


class Provider(_Table, frozen=True):
    """One way to a provider. `wire` is a wire's name, or a provider's dialect of one."""

    wire: Name | None = None
    """`anthropic`, `openai_responses`, …; left out, the dialect's own."""
    dialect: Name | None = None
    """Whose dialect: `deepseek`, `minimax/anthropic`; left out, the wire's home."""
    base_url: Name | None = None
    key: Key | None = None
    headers: dict[str, str] = {}
    region: str | None = None
    """Fills `{region}` and `{location}` of the address,"""
    account: dict[str, str] = {}
    """and these the rest."""
    model: Name | None = None
    """The model of calls that name none."""
    known_models: tuple[Name, ...] = ()
    """Where given, no other model is asked for."""
    max_tokens: Count = 1024
    """Of calls that name none, on wires that demand it."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    timeouts: Timeouts = Timeouts()
    retry: Retry = Retry()
    breaker: Breaker = Breaker()
    limits: Limits = Limits()
    prices: dict[Name, ModelPrice] = {}
    """By model, instead of the shipped prices; `*` is every other model."""
    proxy: Name | None = None
    ca: Name | None = None
    """A file of certificates to trust instead of the system's."""
    largest_answer: Count = 64 * 1024 * 1024
    """Bytes; an answer that is longer is an error."""

    def __repr__(self) -> str:
        """What differs from the defaults. Headers, and a user in an address, may be secrets."""
        return f"Provider({', '.join(f'{name}={said}' for name, said in self._said())})"

    def _said(self) -> Iterator[tuple[str, str]]:
        plain = Provider()
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value == getattr(plain, name):
                continue
            if name == "headers":
                yield name, f"<{', '.join(value)}>"
            elif isinstance(value, str):
                yield name, repr(_USER_INFO.sub("//…@", value))
            else:
                yield name, repr(value)


class Hop(_Table, frozen=True):
    """One place a call may go to."""

    provider: Name
    model: Name | None = None
    weight: Annotated[float, Meta(ge=0)] = 0
    """Hops with a weight share the calls; those without follow as fallbacks, in order."""


class Config(_Table, frozen=True, dict=True):
    """All of `llm.yaml`."""

    providers: dict[Name, Provider] = {}
    routes: dict[Name, tuple[Hop, ...]] = {}
    """A name that sessions use like a provider's."""

    @property
    def origin(self) -> Origin:
        """File and lines, where it was read from a file; no part of the value."""
        found: Origin = self.__dict__.get("origin", Origin())
        return found

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> Config:
        """What a file would say, for programs without one."""
        from .reading import from_data

        return from_data(data)
