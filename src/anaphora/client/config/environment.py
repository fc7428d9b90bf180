"""Providers from environment variables: those of the catalog whose key is set.

ANTHROPIC_API_KEY=…                                 anthropic, at its own address
OPENAI_API_KEY=… OPENAI_BASE_URL=http://proxy/v1    openai, at a proxy
OLLAMA_HOST=gpu:11434                               ollama, which needs no key
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from anaphora import catalog
from anaphora.catalog import Dialect, is_maker, maker_of
from anaphora.client.credentials.aws_keys import region_of, require_profile
from anaphora.errors import AnaphoraError, InvalidConfig, MissingSecret

from . import ClientConfig
from .resolve import resolve_each
from .secrets import ResolvedProvider, SecretVariables

#: Output limit for wires that require one: room for a long answer.
MAX_TOKENS = 8192

_PLACEHOLDER = re.compile(r"\{(\w+)\}")

#: Variables by which Google's SDK calls Vertex AI, and the row of its express mode.
_VERTEX = ("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE")
_EXPRESS = ("google", "gemini", "express")
#: Variables whose key is sent as a bearer token, even if the provider has another header.
_BEARER = frozenset({"ANTHROPIC_AUTH_TOKEN"})
_PLACE = re.compile(r"(?P<version>/v\w+)/(projects|publishers)/.*")
_OLLAMA_HOST = re.compile(
    r"(?P<scheme>https?://)?(?P<host>[^/:]*|\[[^]]*\])(?P<port>:\d+)?(?P<path>/.*)?\Z"
)


class Environment:
    """Reads the variables of each provider once, at its first use."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = os.environ if variables is None else variables
        self._problems: dict[str, InvalidConfig] = {}
        self._rows = environment_rows()
        if self._is_express():
            self._rows = self._rows | {"vertex": catalog.dialects().find(*_EXPRESS)}
        self.providers = {
            name: self._resolve(name, row) for name, row in self._rows.items() if self._is_set(row)
        }

    @property
    def config(self) -> ClientConfig:
        """The providers as a configuration."""
        providers = {name: one.provider for name, one in self.providers.items()}
        return ClientConfig(providers=providers)

    def find(self, name: str) -> ResolvedProvider:
        """A provider of the catalog. Raises if its key is missing or a variable is invalid. The
        credentials of a cloud are looked for when they are needed."""
        one = self.providers.get(name)
        if one is None:
            row = self._rows[name]
            if not is_local(row) and not (row.cloud is not None and self._has_address(row)):
                if row.cloud is not None and row.cloud.kind == "aws":
                    variables = SecretVariables(self._variables)
                    if profile := self._variables.get("AWS_PROFILE"):
                        require_profile(variables, profile)
                    region_of(variables)  # raises if its files cannot be read
                    raise MissingSecret(
                        f"no region for {name} in the environment: set AWS_REGION, or `region` in"
                        " ~/.aws/config; the credentials are those of AWS, or a key in "
                        + " or ".join(key_variables(row))
                    )
                what = "key" if row.cloud is None else "address"
                what = "project" if _has_account_path(row) else what
                raise MissingSecret(f"no {what} for {name} in the environment: {advice(name)}")
            one = self.providers[name] = self._resolve(name, row)
        if name in self._problems:
            raise self._problems[name]
        return one

    def require_any(self) -> None:
        """Raises if no variable of any provider is set."""
        if not self.providers:
            for name, row in self._rows.items():
                if row.cloud is not None and self._has_credentials(row):
                    self.find(name)  # raises: its address is not known
            raise MissingSecret(
                f"no key of a provider in the environment ({some_variables()}); set one, or"
                " OLLAMA_HOST. Without a key, call the local emulator: `anaphora emulate`, with"
                " ANTHROPIC_API_KEY=any ANTHROPIC_BASE_URL=http://127.0.0.1:8787"
            )

    def _is_express(self) -> bool:
        """Whether Gemini at Vertex AI is called with a key and no project, as Google's SDK does."""
        chosen = any(self._variables.get(name, "").lower() in ("1", "true") for name in _VERTEX)
        projects = self._rows["vertex"].account_variables["project"]
        return chosen and "GOOGLE_API_KEY" in self._variables and self._first(projects) is None

    def _is_set(self, row: Dialect) -> bool:
        return self._has_credentials(row) and self._has_address(row)

    def _has_credentials(self, row: Dialect) -> bool:
        needed = url_variables(row) if is_local(row) else key_variables(row)
        if self._first(needed) is not None:
            return True
        return row.cloud is not None and self._first(row.cloud.variables) is not None

    def _has_address(self, row: Dialect) -> bool:
        """Whether the values of the account in the provider's URL are known."""
        if self._first(row.url_variables) is not None and not _has_account_path(row):
            return True
        names = _PLACEHOLDER.findall(row.base_url)
        return not any(self._account(row, name) is None for name in names)

    def _account(self, row: Dialect, name: str) -> str | None:
        """A value of the account."""
        found = self._first(row.account_variables.get(name, ()))
        if found is not None:
            return self._variables[found]
        if row.cloud is not None and row.cloud.kind == "aws" and name == "region":
            with suppress(AnaphoraError):  # `find` raises it
                return region_of(SecretVariables(self._variables))
            return None
        return row.account_defaults.get(name)

    def _first(self, names: tuple[str, ...]) -> str | None:
        """The first of these variables that is set."""
        return next((name for name in names if self._variables.get(name)), None)

    def _resolve(self, name: str, row: Dialect) -> ResolvedProvider:
        headers = {
            header: value
            for variable, header in row.header_variables.items()
            if (value := self._variables.get(variable))
        }
        settings: dict[str, Any] = {"dialect": row.name, "max_tokens": MAX_TOKENS}
        if headers:
            settings["headers"] = headers
        if (key := self._first(key_variables(row))) is not None:
            settings["key"] = {"env": key}
        account = {name: self._account(row, name) for name in _PLACEHOLDER.findall(row.base_url)}
        if given := {name: value for name, value in account.items() if value is not None}:
            settings["account"] = given
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
    every: dict[str, Dialect]
    """With the rows of clouds: `vertex`, and `vertex/anthropic` for the models of a maker."""
    variables: frozenset[str]


@functools.cache
def _defaults() -> _Defaults:
    first: dict[str, Dialect] = {}
    for row in catalog.dialects().rows:
        first.setdefault(row.provider, row)
    rows = {name: first[name] for name in sorted(first, key=lambda name: not is_maker(name))}
    every = dict(rows)
    for row in catalog.dialects().rows:
        if row.known_as and row not in every.values():
            taken = row.known_as in every
            every[f"{row.known_as}/{row.provider}" if taken else row.known_as] = row
    read: list[str] = []
    for row in every.values():
        read += (*key_variables(row), *url_variables(row), *row.header_variables)
        read += [name for names in row.account_variables.values() for name in names]
        read += () if row.cloud is None else row.cloud.variables
    read += _VERTEX
    return _Defaults(rows, every, frozenset(read))


def row_name(provider: str, model: str) -> str:
    """The name of a cloud's row for the maker of a model; that of the provider itself if there is
    none."""
    maker = maker_of(model)
    name = f"{provider}/{maker}"
    return name if maker is not None and name in environment_rows() else provider


def default_rows() -> dict[str, Dialect]:
    """The row of each provider of the catalog that is used without a configuration; makers of
    models come before hosts."""
    return _defaults().rows


def environment_rows() -> dict[str, Dialect]:
    """The rows of `default_rows`, and those of clouds: `vertex` and `vertex/anthropic`."""
    return _defaults().every


def state() -> int:
    """A hash of every variable that an `Environment` reads, to detect changes."""
    names = variable_names()
    return hash(frozenset((name, os.environ.get(name)) for name in os.environ if name in names))


def any_set(names: Iterable[str]) -> bool:
    return any(os.environ.get(name) for name in names)


def variable_names() -> frozenset[str]:
    """Every variable that an `Environment` reads."""
    return _defaults().variables


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
    row = environment_rows()[name]
    needed = [
        variables[0]
        for place, variables in row.account_variables.items()
        if place not in row.account_defaults
    ]
    if needed and _has_account_path(row):
        return f"set {' and '.join(needed)}; the credentials are those of Google Cloud"
    if row.cloud is not None and row.cloud.scope:
        names = " or ".join((url_variables(row)[0], *needed))
        return f"set {names}, and {key_variables(row)[0]} unless Entra's tokens are used"
    if "{" in row.base_url and not row.url_variables:
        return f"its URL needs more than a key; configure {name} in llm.yaml"
    variables = [key_variables(row)[0], *(url_variables(row)[:1] if "{" in row.base_url else ())]
    return f"set {' and '.join(variables)}"


def _has_account_path(row: Dialect) -> bool:
    """Whether the account is in the path of the base URL: /v1/projects/{project}/…"""
    return _PLACE.search(row.base_url) is not None


def _base_url(row: Dialect, variable: str, value: str) -> tuple[str, str]:
    """The start of request paths that the URL replaces, and the URL without it. URLs for SDKs and
    other tools may end with a segment that the paths of a wire begin with, such as /v1."""
    if variable == "OLLAMA_HOST":
        value = ollama_url(value)
    url, start = value.rstrip("/"), row.sdk_path
    steps = row.request_path.split("/")
    for length in range(len(steps), 1, -1):
        if url.endswith(doubled := "/".join(steps[:length])):
            return "", url.removesuffix(doubled)
    place = _PLACE.search(row.base_url)
    if place is not None:
        return "", url.removesuffix(place["version"]) + place[0]
    return start, url


def ollama_url(value: str) -> str:
    """The URL of a host as Ollama reads it: scheme, host and port are optional."""
    found = _OLLAMA_HOST.match(value)
    if found is None:
        return value
    host = found["host"] if found["host"] not in ("", "0.0.0.0") else "127.0.0.1"
    port = found["port"] or ("" if found["scheme"] else ":11434")
    path = (found["path"] or "").rstrip("/")
    return f"{found['scheme'] or 'http://'}{host}{port}{path}"
