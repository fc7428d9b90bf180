"""Resolve the providers of a configuration: wire, URL, credentials.

    config = ClientConfig.read("llm.yaml")
    resolve(config)["anthropic-default"].base_url       "https://api.anthropic.com"

Names are checked against the catalog, routes against the providers. Errors name file and line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NoReturn
from urllib.parse import SplitResult, urlsplit

import msgspec

from anaphora import wire
from anaphora.catalog import Dialect, dialects, serves_own_only
from anaphora.client.credentials.choosing import CredentialSource
from anaphora.errors import InvalidRequest, MissingSecret
from anaphora.redaction import (
    hides_arguments,
    looks_like_key,
    quoted,
    shown_name,
    shown_text,
)
from anaphora.values import Notice
from anaphora.yaml_values import Origin, nearest, shown_path

from . import ClientConfig, Key, ProviderConfig
from .secrets import ResolvedProvider, SecretVariables, find_key, permission_warning

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

_PLACEHOLDER = re.compile(r"\{(\w*)\}")
#: Values are part of a host or of a path segment, and must not be able to end it.
_VALUE = re.compile(r"[A-Za-z0-9._:-]+\Z")
_LEGAL = re.compile(r"[!-~]+\Z")
_HOST = re.compile(r"[A-Za-z0-9._-]+\Z|[0-9A-Fa-f:.]+(%\w+)?\Z")
_REGION = ("region", "location")


@hides_arguments
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
    variables = SecretVariables(environ)
    del environ  # collectors of tracebacks save local variables
    source = CredentialSource(
        origin=origin,
        folder=folder,
        variables=variables,
        find_key=lambda key, path: find_key(key, folder, variables, origin=origin, path=path),
    )
    for provider in check(config, file).values():
        key = provider.provider.key
        if key is None or provider.provider.credentials is not None:
            try:
                credentials = source.of(provider)
            except MissingSecret as error:
                yield provider, error.with_traceback(None)
            else:
                yield msgspec.structs.replace(provider, credentials=credentials), None
            continue
        path, notices = ("providers", provider.id, "key"), provider.notices
        try:
            secret = find_key(key, folder, variables, origin=origin, path=path)
        except MissingSecret as error:
            yield provider, error.with_traceback(None)
            continue
        if (warning := permission_warning(key, folder)) is not None:
            notices += (Notice("key_exposed", warning, shown_path(path)),)
        yield msgspec.structs.replace(provider, secret=secret, notices=notices), None


@hides_arguments
def check(
    config: ClientConfig, file: str | os.PathLike[str] | None = None
) -> dict[str, ResolvedProvider]:
    """Every provider without its key: checks the configuration itself."""
    origin, folder = _origin(config, file)
    if not config.providers:
        raise origin.invalid("there are no providers")
    _check_routes(config, origin)
    return {
        id: _ProviderCheck(id, one, origin).resolve(folder) for id, one in config.providers.items()
    }


def _origin(config: ClientConfig, file: str | os.PathLike[str] | None) -> tuple[Origin, Path]:
    """The origin for error messages, and the folder that `secrets/` and `ca` are in."""
    origin = config.origin
    if file is not None:
        origin = Origin(os.fspath(file), origin.lines)
    return origin, Path(origin.file).parent


class _ProviderCheck(msgspec.Struct, frozen=True):
    _id: str
    _provider: ProviderConfig
    _origin: Origin

    def _fail(self, reason: str, *path: str) -> NoReturn:
        raise self._origin.invalid(reason, "providers", self._id, *path) from None

    def resolve(self, folder: Path) -> ResolvedProvider:
        self._check_no_keys()
        provider, row = self._provider, self._dialect()
        url = self._base_url(row)
        header, prefix = _AUTH[row.auth]
        self._check_headers(header)
        self._check_models()
        self._check_proxy()
        is_home = row.name == f"{wire.PROVIDERS.get(row.wire)}/{row.wire}"
        if provider.ca is not None:
            file = folder / provider.ca
            if not file.is_file():
                name = "…" if looks_like_key(provider.ca) else file
                self._fail(f"there is no file {name}", "ca")
            provider = msgspec.structs.replace(provider, ca=str(file))
        return ResolvedProvider(
            id=self._id,
            wire=row.wire if is_home else row.name,
            dialect=None if is_home else row,
            base_url=url,
            auth_header=header,
            auth_prefix=prefix,
            secret=None,
            provider=provider,
            own_models_only=_serves_own_only(row, url),
            path_values=self._path_values(row),
            notices=tuple(self._notices(row, url, header)),
        )

    def _notices(self, row: Dialect, url: str, header: str) -> Iterator[Notice]:
        """Values that the URL has no placeholder for; a key that is unused or not encrypted."""
        provider, place = self._provider, shown_path(("providers", self._id))
        names = set(_PLACEHOLDER.findall((provider.base_url or row.base_url) + row.path))
        if row.cloud is not None and row.cloud.kind == "aws":
            names.add("region")  # signatures name it
        unused = [
            (shown_name(name), f"account.{shown_name(name)}")
            for name in provider.account
            if name not in names
        ]
        if provider.region is not None and not names.intersection(_REGION):
            unused.append(("region", "region"))
        for name, field in unused:
            yield Notice("fills_nothing", f"the URL has no {{{name}}}", f"{place}.{field}")
        given = {name.lower() for name in provider.headers}
        for name in row.needed_headers:
            if name not in given:
                reason = f"requests need the header {name}; set it with `headers`"
                yield Notice("header_missing", reason, f"{place}.headers")
        if provider.key is None:
            return
        parts = urlsplit(url)
        if not header:
            yield Notice("key_unused", "this provider takes no key; none is sent", f"{place}.key")
        elif parts.scheme == "http" and not _is_local(parts.hostname or ""):
            reason = f"sent to {parts.hostname} without encryption"
            yield Notice("key_in_clear", reason, f"{place}.key")

    def _dialect(self) -> Dialect:
        """The catalog's row for the provider; for a wire without a dialect, that of the wire's own
        provider."""
        rows = dialects().rows
        known = dict.fromkeys(name for row in rows for name in (row.provider, row.known_as) if name)
        wire_name, name = self._provider.wire, self._provider.dialect
        is_dialect = wire_name is not None and wire_name.partition("/")[0] in known
        if name is None:
            if wire_name is None:
                self._fail("name a `wire` or a `dialect`")
            if wire_name in wire.WIRES:
                return dialects().find(wire.PROVIDERS[wire_name], wire_name)
            if not is_dialect:
                self._fail(_unknown("wire", wire_name, wire.names()), "wire")
            return self._row(wire_name, "wire")
        if name.partition("/")[0] not in known:
            self._fail(_unknown("dialect", name, known), "dialect")
        if wire_name is None:
            return self._row(name, "dialect")
        if wire_name not in wire.WIRES:
            if is_dialect:
                self._fail(
                    f"{shown_name(wire_name)} is a dialect; leave `dialect` out, or name a wire",
                    "wire",
                )
            self._fail(_unknown("wire", wire_name, wire.WIRES), "wire")
        if "/" not in name:
            return self._row(f"{name}/{wire_name}", "wire")
        row = self._row(name, "dialect")
        if row.wire != wire_name:
            self._fail(f"{shown_name(name)} is a dialect of {row.wire}, not of {wire_name}", "wire")
        return row

    def _row(self, name: str, field: str) -> Dialect:
        try:
            return wire.dialect_of(name)
        except InvalidRequest as error:
            self._fail(shown_text(error.reason), field)

    def _base_url(self, row: Dialect) -> str:
        given = self._provider.base_url
        url = _PLACEHOLDER.sub(
            lambda found: self._fill(found[1], row), given or self._regional(row)
        )
        try:
            parts = _split(url)
            if "{" in url or "}" in url:
                raise ValueError("has braces without a name; write {name}")
            if parts.username is not None:
                raise ValueError("contains a user; use `key` or `headers` instead")
            if "?" in url or "#" in url:
                raise ValueError("ends with a query or a fragment; it must end with a path")
            _check_not_doubled(parts.path, row)
        except ValueError as error:
            self._fail(str(error), "dialect" if given is None else "base_url")
        return url.rstrip("/")

    def _regional(self, row: Dialect) -> str:
        """The row's base URL with the host of the region."""
        if not row.region_hosts:
            return row.base_url
        account, default = self._provider.account, row.account_defaults.get("location", "")
        place = self._provider.region or account.get("location", default)
        host = row.region_hosts.get(place, row.region_hosts["*"])
        return row.base_url.replace(urlsplit(row.base_url).netloc, host, 1)

    def _path_values(self, row: Dialect) -> dict[str, str]:
        """The values of the account in request paths."""
        names = dict.fromkeys(_PLACEHOLDER.findall(row.path))
        own = [name for name in names if name not in ("model", "method")]
        return {name: self._fill(name, row) for name in own}

    def _fill(self, name: str, row: Dialect) -> str:
        account, region = self._provider.account, self._provider.region
        value = account.get(name, region if name in _REGION else None)
        if value is None:
            value = row.account_defaults.get(name)
        if value is None:
            near = nearest(name, account)
            advice = f" (is {near} a misspelling?)" if near else ""
            shown = shown_name(name)
            field = "`region`" if name in _REGION else f"`account: {{{shown}: …}}`"
            self._fail(f"the URL contains {{{shown}}}; set it with {field}{advice}")
        if not _VALUE.match(value):
            reason = "is part of the URL: only letters, digits, dots, colons and dashes"
            self._fail(reason, *(("account", name) if name in account else ("region",)))
        return value

    def _check_no_keys(self) -> None:
        """Refuses a key in the wrong place: errors, logs and metrics would show it."""
        provider = self._provider
        named: list[tuple[str | None, tuple[str, ...]]] = [
            (self._id, ()),
            (provider.model, ("model",)),
            (provider.region, ("region",)),
            *(() if provider.credentials is None else provider.credentials.names()),
            *((model, ("known_models",)) for model in provider.known_models),
            *((model, ("models",)) for model in provider.models),
            *((model, ("limits", "models")) for model in provider.limits.models),
            *((model, ("prices",)) for model in provider.prices),
            *((name, ("headers",)) for name in provider.headers),
        ]
        for text, path in named:
            if text is not None and looks_like_key(text):
                self._fail(f"contains what looks like an API key; {Key.example}", *path)

    def _check_proxy(self) -> None:
        """Errors do not quote the URL: it may contain a password."""
        if self._provider.proxy is None:
            return
        try:
            parts = _split(self._provider.proxy)
            if parts.path not in ("", "/") or parts.query or parts.fragment:
                raise ValueError("must be only a proxy's address: http://host:port")
        except ValueError as error:
            self._fail(str(error), "proxy")

    def _check_headers(self, auth: str) -> None:
        """Errors do not show values: they may be secrets."""
        seen: set[str] = set()
        for name, value in self._provider.headers.items():
            lowered = name.lower()
            if not _HEADER_NAME.match(name):
                self._fail("is not a valid header name", "headers", name)
            if not _HEADER_VALUE.match(value):
                self._fail("has an invalid character in its value", "headers", name)
            if lowered == auth:
                self._fail("is the header of the key; use `key` instead", "headers", name)
            if lowered in _TRANSPORT:
                self._fail("is set by the transport; leave it out", "headers", name)
            if lowered in seen:
                self._fail("is given twice", "headers", name)
            seen.add(lowered)

    def _check_models(self) -> None:
        """Every model named elsewhere must be listed in `known_models`, if there are any."""
        provider, known = self._provider, self._provider.known_models
        named: list[tuple[str | None, tuple[str, ...]]] = [
            (provider.model, ("model",)),
            *((model, ("limits", "models", model)) for model in provider.limits.models),
            *((model, ("prices", model)) for model in provider.prices if model != "*"),
        ]
        for model, path in named:
            if model is not None and known and model not in known:
                self._fail(_unlisted(model, self._id, known), *path)


def _serves_own_only(row: Dialect, url: str) -> bool:
    """False behind a proxy or gateway, which may serve any model."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not serves_own_only(row.provider):
        return False
    return any(fnmatchcase(parts.hostname or "", host) for host in row.hosts)


def _is_local(host: str) -> bool:
    """Whether a host is this machine, or in the same private network."""
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return host == "localhost" or host.endswith(".localhost") or "." not in host


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = nearest(name, tuple(known))
    advice = f"did you mean {near}?" if near else "`anaphora models PROVIDER` lists a provider's"
    return f"no {what} {quoted(name)}; {advice}"


def _split(url: str) -> SplitResult:
    if not _LEGAL.match(url):
        raise ValueError("is not a URL: percent-encode spaces and non-ASCII characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("is not a URL: invalid host or port") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("does not begin with https:// or http://")
    if not _HOST.match(parts.hostname or "") or port == 0:
        raise ValueError("has no valid host or port")
    return parts


def _check_not_doubled(path: str, row: Dialect) -> None:
    """Other clients expect /v1 in the URL; here it is part of the wire's path."""
    end = [step for step in path.split("/") if step]
    start = [step for step in row.request_path.split("/") if step]
    for length in range(min(len(end), len(start)), 0, -1):
        if end[-length:] == start[:length]:
            doubled = "/" + "/".join(start[:length])
            raise ValueError(f"ends with {doubled}, which request paths begin with; leave it out")


def _check_routes(config: ClientConfig, origin: Origin) -> None:
    for name, hops in config.routes.items():
        if any(looks_like_key(each) for each in (name, *(hop.model or "" for hop in hops))):
            reason = f"contains what looks like an API key; {Key.example}"
            raise origin.invalid(reason, "routes", name)
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
                raise origin.invalid(
                    f"no provider {quoted(hop.provider)}{advice}", *path, "provider"
                )
            known = provider.known_models
            if hop.model is not None and known and hop.model not in known:
                raise origin.invalid(_unlisted(hop.model, hop.provider, known), *path, "model")


def _unlisted(model: str, id: str, known: tuple[str, ...]) -> str:
    near = nearest(model, known)
    advice = f"; did you mean {near}?" if near else f": {', '.join(known)}"
    return f"{quoted(model)} is not among the known_models of {id}{advice}"
