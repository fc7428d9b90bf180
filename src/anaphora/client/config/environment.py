"""Providers from environment variables: those of the catalog whose key is set.

ANTHROPIC_API_KEY=…                                 anthropic, at its own address
OPENAI_API_KEY=… OPENAI_BASE_URL=http://proxy/v1    openai, at a proxy
OLLAMA_HOST=gpu:11434                               ollama, which needs no key
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from anaphora import catalog
from anaphora.catalog import Dialect, is_maker
from anaphora.errors import InvalidConfig, MissingSecret

from . import ClientConfig
from .resolve import resolve_each
from .secrets import ResolvedProvider

#: Output limit for wires that require one: room for a long answer.
MAX_TOKENS = 8192

_REMEMBER = "ANAPHORA_REMEMBER"
#: Variables whose key is sent as a bearer token, even if the provider has another header.
_BEARER = frozenset({"ANTHROPIC_AUTH_TOKEN"})
_OLLAMA_HOST = re.compile(
    r"(?P<scheme>https?://)?(?P<host>[^/:]*|\[[^]]*\])(?P<port>:\d+)?(/.*)?\Z"
)


class Environment:
    """Reads the variables of each provider once, at its first use."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = os.environ if variables is None else variables
        self._problems: dict[str, InvalidConfig] = {}
        self.providers = {
            name: self._resolve(name, row)
            for name, row in default_rows().items()
            if self._is_set(row)
        }

    @property
    def config(self) -> ClientConfig:
        """The providers as a configuration."""
        providers = {name: one.provider for name, one in self.providers.items()}
        return ClientConfig(providers=providers)

    def find(self, name: str) -> ResolvedProvider:
        """A provider of the catalog. Raises if its key is missing or a variable is invalid."""
        one = self.providers.get(name)
        if one is None:
            row = default_rows()[name]
            if not is_local(row):
                raise MissingSecret(f"no key for {name} in the environment: {advice(name)}")
            one = self.providers[name] = self._resolve(name, row)
        if name in self._problems:
            raise self._problems[name]
        return one

    def require_any(self) -> None:
        """Raises if no variable of any provider is set."""
        if not self.providers:
            raise MissingSecret(
                f"no key of a provider in the environment ({some_variables()}); set one, or"
                " OLLAMA_HOST"
            )

    def _is_set(self, row: Dialect) -> bool:
        if "{" in row.base_url and not self._first(row.url_variables):
            return False
        needed = url_variables(row) if is_local(row) else key_variables(row)
        return self._first(needed) is not None

    def _first(self, names: tuple[str, ...]) -> str | None:
        """The first of these variables that is set."""
        return next((name for name in names if self._variables.get(name)), None)

    def _resolve(self, name: str, row: Dialect) -> ResolvedProvider:
        headers = {
            header: value
            for variable, header in row.header_variables.items()
            if (value := self._variables.get(variable))
        }
        settings: dict[str, Any] = {"dialect": name, "max_tokens": MAX_TOKENS}
        if headers:
            settings["headers"] = headers
        if (key := self._first(key_variables(row))) is not None:
            settings["key"] = {"env": key}
        start, url = "", self._first(url_variables(row))
        if url is not None:
            start, settings["base_url"] = _base_url(row, url, self._variables[url])
        try:
            one = self._resolved(name, settings)
        except InvalidConfig as error:
            reason = str(error).removeprefix(f"providers.{name}.base_url: ")
            self._problems[name] = InvalidConfig(f"the environment variable ${url}: {reason}")
            settings.pop("base_url")
            one, start = self._resolved(name, settings), ""
        if key in _BEARER:
            one = msgspec.structs.replace(one, auth_header="authorization", auth_prefix="Bearer ")
        return msgspec.structs.replace(one, path_start=start)

    def _resolved(self, name: str, settings: dict[str, Any]) -> ResolvedProvider:
        config = ClientConfig.from_mapping({"providers": {name: settings}})
        ((one, missing),) = resolve_each(config, environ=self._variables)
        if missing is not None:
            self._problems[name] = missing
        return one


class _Defaults(NamedTuple):
    """The providers that are used without a configuration; constant for the process."""

    rows: dict[str, Dialect]
    variables: frozenset[str]


@functools.cache
def _defaults() -> _Defaults:
    first: dict[str, Dialect] = {}
    for row in catalog.dialects().rows:
        first.setdefault(row.provider, row)
    rows = {name: first[name] for name in sorted(first, key=lambda name: not is_maker(name))}
    read = [name for row in rows.values() for name in (*key_variables(row), *url_variables(row))]
    read += [name for row in rows.values() for name in row.header_variables]
    return _Defaults(rows, frozenset(read))


def default_rows() -> dict[str, Dialect]:
    """The row of each provider of the catalog that is used without a configuration; makers of
    models come before hosts."""
    return _defaults().rows


def state() -> int:
    """A hash of every variable that an `Environment` reads, to detect changes."""
    names = variable_names()
    return hash(frozenset((name, os.environ.get(name)) for name in os.environ if name in names))


def variable_names() -> frozenset[str]:
    """Every variable that an `Environment` reads."""
    return _defaults().variables


def remembers(*, default: bool = False) -> bool:
    """Whether beginnings of prompts are kept in the user's index (`client/seen.py`)."""
    value = os.environ.get(_REMEMBER, "").strip().lower()
    if value in ("", "0", "1", "false", "true", "no", "yes", "off", "on"):
        return value in ("1", "true", "yes", "on") if value else default
    raise InvalidConfig(f"${_REMEMBER} must be 1 or 0, got {value[:20]!r}")


def key_variables(row: Dialect) -> tuple[str, ...]:
    return row.key_variables or (f"{row.provider.upper()}_API_KEY",)


def url_variables(row: Dialect) -> tuple[str, ...]:
    return row.url_variables or (f"{row.provider.upper()}_BASE_URL",)


def base_urls(variables: Mapping[str, str]) -> dict[str, str]:
    """The base URLs in variables, by provider; invalid ones are left out."""
    found = {}
    for name, row in default_rows().items():
        for variable in url_variables(row):
            if value := variables.get(variable):
                _, url = _base_url(row, variable, value)
                if re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", url):
                    found[name] = url
                break
    return found


def some_variables() -> str:
    """The most common key variables, for a message."""
    rows = tuple(default_rows().values())
    return ", ".join((*(key_variables(row)[0] for row in rows[:3]), "…"))


def is_local(row: Dialect) -> bool:
    """Whether the provider is a server on the user's machine, which needs no key."""
    return row.base_url.startswith("http:")


def advice(name: str) -> str:
    """Which variables to set for a provider."""
    row = default_rows()[name]
    if "{" in row.base_url and not row.url_variables:
        return f"its URL needs more than a key; configure {name} in llm.yaml"
    variables = [key_variables(row)[0], *(url_variables(row)[:1] if "{" in row.base_url else ())]
    return f"set {' and '.join(variables)}"


def _base_url(row: Dialect, variable: str, value: str) -> tuple[str, str]:
    """The start of request paths that the URL replaces, and the URL without it. URLs for SDKs and
    other tools may end with a segment that the paths of a wire begin with, such as /v1."""
    if variable == "OLLAMA_HOST":
        return "", ollama_url(value)
    url, start = value.rstrip("/"), row.sdk_path
    steps = row.request_path.split("/")
    for length in range(len(steps), 1, -1):
        if url.endswith(doubled := "/".join(steps[:length])):
            return "", url.removesuffix(doubled)
    return start, url


def ollama_url(value: str) -> str:
    """The URL of a host as Ollama reads it: scheme, host and port are optional."""
    found = _OLLAMA_HOST.match(value)
    if found is None:
        return value
    host = found["host"] if found["host"] not in ("", "0.0.0.0") else "127.0.0.1"
    port = found["port"] or ("" if found["scheme"] else ":11434")
    return f"{found['scheme'] or 'http://'}{host}{port}"
