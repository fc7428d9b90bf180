"""Resolve the providers of a configuration: wire, URL, credentials.

    config = ClientConfig.read("llm.yaml")
    resolve(config)["anthropic-default"].base_url       "https://api.anthropic.com"

Names are checked against the catalog, routes against the providers. Errors name file and line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import msgspec

from anaphora import wire
from anaphora.catalog import Dialect, dialects
from anaphora.errors import InvalidRequest, MissingSecret
from anaphora.values import Notice
from anaphora.yaml_values import Origin, dotted, nearest

from .addresses import base_url, check_proxy, unused_placeholders
from .secrets import Secret, find_key, permission_warning
from .values import ClientConfig, Key, ProviderConfig

#: The header of each kind of authentication, and the prefix of the key in it.
_AUTH: dict[str, tuple[str, str]] = {
    "bearer": ("authorization", "Bearer "),
    "x-api-key": ("x-api-key", ""),
    "api-key": ("api-key", ""),
    "x-goog-api-key": ("x-goog-api-key", ""),
    "none": ("", ""),
}

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_HEADER_VALUE = re.compile(r"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?\Z")
#: Headers that the transport sets.
_TRANSPORT = ("content-length", "transfer-encoding", "connection")


class ResolvedProvider(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A provider, ready to be called."""

    id: str
    wire: str
    """A name for `wire.get`."""
    dialect: Dialect | None
    """None: the wire's own provider."""
    base_url: str
    """Without a trailing slash; the path of a request follows."""
    auth_header: str
    """In lower case; empty if the provider takes no key."""
    auth_prefix: str
    secret: Secret | None
    """None: no key is configured."""
    provider: ProviderConfig
    """The configuration; `ca` is relative to the working directory."""
    notices: tuple[Notice, ...] = ()

    def headers(self) -> dict[str, str]:
        """The headers of every request, the key included; names in lower case."""
        headers = {name.lower(): value for name, value in self.provider.headers.items()}
        if self.secret is not None and self.auth_header:
            headers[self.auth_header] = self.auth_prefix + self.secret.reveal()
        return headers


def resolve(
    config: ClientConfig,
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, ResolvedProvider]:
    """Every provider by its id. `file` replaces the file that the configuration was read from."""
    providers = {}
    for provider, missing in resolve_each(config, file, environ):
        if missing is not None:
            raise missing
        providers[provider.id] = provider
    return providers


def resolve_each(
    config: ClientConfig,
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[tuple[ResolvedProvider, MissingSecret | None]]:
    """Every provider, with the error if its key is missing; other errors are raised."""
    origin, folder = _origin(config, file)
    variables = os.environ if environ is None else environ
    for provider in check(config, file).values():
        key = provider.provider.key
        try:
            if key is not None:
                provider = _with_key(provider, key, folder, variables, origin)
            yield provider, None
        except MissingSecret as error:
            yield provider, error


def check(
    config: ClientConfig, file: str | os.PathLike[str] | None = None
) -> dict[str, ResolvedProvider]:
    """Every provider without its key: checks the configuration itself."""
    origin, folder = _origin(config, file)
    if not config.providers:
        raise origin.invalid("there are no providers")
    _check_routes(config, origin)
    return {id: _checked(id, one, folder, origin) for id, one in config.providers.items()}


def _origin(config: ClientConfig, file: str | os.PathLike[str] | None) -> tuple[Origin, Path]:
    """The origin for error messages, and the folder that `secrets/` and `ca` are in."""
    origin = config.origin
    if file is not None:
        origin = Origin(os.fspath(file), origin.lines)
    return origin, Path(origin.file).parent


def _checked(id: str, provider: ProviderConfig, folder: Path, origin: Origin) -> ResolvedProvider:
    row = _dialect_row(id, provider, origin)
    url = base_url(id, provider, row, origin)
    header, prefix = _AUTH[row.auth]
    _check_headers(id, provider, header, origin)
    _check_models(id, provider, origin)
    check_proxy(id, provider, origin)
    is_home = row.name == f"{wire.PROVIDERS.get(row.wire)}/{row.wire}"
    return ResolvedProvider(
        id=id,
        wire=row.wire if is_home else row.name,
        dialect=None if is_home else row,
        base_url=url,
        auth_header=header,
        auth_prefix=prefix,
        secret=None,
        provider=_with_ca(id, provider, folder, origin),
        notices=(*unused_placeholders(id, provider, row), *_key_notices(id, provider, url, header)),
    )


def _with_ca(id: str, provider: ProviderConfig, folder: Path, origin: Origin) -> ProviderConfig:
    if provider.ca is None:
        return provider
    file = folder / provider.ca
    if not file.is_file():
        raise origin.invalid(f"there is no file {file}", "providers", id, "ca")
    return msgspec.structs.replace(provider, ca=str(file))


# ── Keys ─────────────────────────────────────────────────────────────────────────────────────────


def _with_key(
    provider: ResolvedProvider, key: Key, folder: Path, environ: Mapping[str, str], origin: Origin
) -> ResolvedProvider:
    path = ("providers", provider.id, "key")
    secret = find_key(key, folder, environ, origin=origin, path=path)
    notices = provider.notices
    if (warning := permission_warning(key, folder)) is not None:
        notices += (Notice("key_exposed", warning, dotted(path)),)
    return msgspec.structs.replace(provider, secret=secret, notices=notices)


def _key_notices(id: str, provider: ProviderConfig, url: str, header: str) -> list[Notice]:
    if provider.key is None:
        return []
    path = dotted(("providers", id, "key"))
    if not header:
        return [Notice("key_unused", "this provider takes no key; none is sent", path)]
    parts = urlsplit(url)
    if parts.scheme == "http" and not _is_local(parts.hostname or ""):
        return [Notice("key_in_clear", f"sent to {parts.hostname} without encryption", path)]
    return []


def _is_local(host: str) -> bool:
    """Whether a host is this machine, or in the same private network."""
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return host == "localhost" or host.endswith(".localhost") or "." not in host


# ── Wires and dialects ───────────────────────────────────────────────────────────────────────────


def _dialect_row(id: str, provider: ProviderConfig, origin: Origin) -> Dialect:
    """The catalog's row for a provider; for a wire alone, that of its own provider."""

    def fail(reason: str, field: str) -> NoReturn:
        raise origin.invalid(reason, "providers", id, field) from None

    def find(name: str, field: str) -> Dialect:
        try:
            return wire.dialect_of(name)
        except InvalidRequest as error:
            fail(error.reason, field)

    known = dict.fromkeys(row.provider for row in dialects().rows)
    wire_name, name = provider.wire, provider.dialect
    is_dialect = wire_name is not None and wire_name.partition("/")[0] in known
    if name is None:
        if wire_name is None:
            raise origin.invalid("name a `wire` or a `dialect`", "providers", id)
        if wire_name in wire.WIRES:
            return dialects().find(wire.PROVIDERS[wire_name], wire_name)
        if not is_dialect:
            fail(_unknown("wire", wire_name, wire.names()), "wire")
        return find(wire_name, "wire")
    if name.partition("/")[0] not in known:
        fail(_unknown("dialect", name, known), "dialect")
    if wire_name is None:
        return find(name, "dialect")
    if wire_name not in wire.WIRES:
        if is_dialect:
            fail(f"{wire_name} is a dialect; leave `dialect` out, or name a wire", "wire")
        fail(_unknown("wire", wire_name, wire.WIRES), "wire")
    if "/" not in name:
        return find(f"{name}/{wire_name}", "wire")
    row = find(name, "dialect")
    if row.wire != wire_name:
        fail(f"{name} is a dialect of {row.wire}, not of {wire_name}", "wire")
    return row


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = nearest(name, tuple(known))
    advice = f"did you mean {near}?" if near else "`anaphora wires` lists all of them"
    return f"no {what} {name!r}; {advice}"


# ── Headers, models, routes ──────────────────────────────────────────────────────────────────────


def _check_headers(id: str, provider: ProviderConfig, auth: str, origin: Origin) -> None:
    """Values are never shown: they may be secrets."""
    seen: set[str] = set()
    for name, value in provider.headers.items():
        path = ("providers", id, "headers", name)
        lowered = name.lower()
        if not _HEADER_NAME.match(name):
            raise origin.invalid("is not a valid header name", *path)
        if not _HEADER_VALUE.match(value):
            raise origin.invalid("has an invalid character in its value", *path)
        if lowered == auth:
            raise origin.invalid("is the header of the key; use `key` instead", *path)
        if lowered in _TRANSPORT:
            raise origin.invalid("is set by the transport; leave it out", *path)
        if lowered in seen:
            raise origin.invalid("is given twice", *path)
        seen.add(lowered)


def _check_models(id: str, provider: ProviderConfig, origin: Origin) -> None:
    """Every model named elsewhere must be listed in `known_models`, if there are any."""
    known = provider.known_models
    named: list[tuple[str, tuple[str, ...]]] = [
        *((model, ("limits", "models", model)) for model in provider.limits.models),
        *((model, ("prices", model)) for model in provider.prices if model != "*"),
    ]
    if provider.model is not None:
        named.insert(0, (provider.model, ("model",)))
    for model, path in named:
        if known and model not in known:
            raise origin.invalid(_unlisted(model, id, known), "providers", id, *path)


def _check_routes(config: ClientConfig, origin: Origin) -> None:
    for name, hops in config.routes.items():
        if name in config.providers:
            raise origin.invalid("is also the id of a provider; choose another", "routes", name)
        if not hops:
            raise origin.invalid("is empty; name a provider", "routes", name)
        for index, hop in enumerate(hops):
            path = ("routes", name, index)
            provider = config.providers.get(hop.provider)
            if provider is None:
                near = nearest(hop.provider, config.providers)
                advice = f"; did you mean {near}?" if near else ""
                raise origin.invalid(f"no provider {hop.provider!r}{advice}", *path, "provider")
            known = provider.known_models
            if hop.model is not None and known and hop.model not in known:
                raise origin.invalid(_unlisted(hop.model, hop.provider, known), *path, "model")


def _unlisted(model: str, id: str, known: tuple[str, ...]) -> str:
    near = nearest(model, known)
    advice = f"; did you mean {near}?" if near else f": {', '.join(known)}"
    return f"{model!r} is not among the known_models of {id}{advice}"
