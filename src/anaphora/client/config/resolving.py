"""From what a configuration says to what a client needs: wire, address, key.

    config = read("llm.yaml")
    resolve(config)["anthropic-default"].base_url       "https://api.anthropic.com"

Here names meet what they name: wires the catalog, routes the providers, keys the environment. What
does not fit is said with file and line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from anaphora.catalog import Dialect
from anaphora.errors import MissingSecret
from anaphora.marked import spoken
from anaphora.values import Notice

from .addressing import base_url, check_proxy, idle_fillings
from .checking import check_headers, check_models, check_routes
from .origin import Origin
from .secrets import Secret, exposed, find_key
from .speaking import is_home, row_of
from .values import Config, Key, Provider

#: The header of each kind of authentication, and what stands before the key.
_AUTH: dict[str, tuple[str, str]] = {
    "bearer": ("authorization", "Bearer "),
    "x-api-key": ("x-api-key", ""),
    "api-key": ("api-key", ""),
    "x-goog-api-key": ("x-goog-api-key", ""),
    "none": ("", ""),
}


class Resolved(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A provider, ready to be called."""

    id: str
    wire: str
    """The name that `wire.get` knows."""
    dialect: Dialect | None
    """None: the wire as it is at home."""
    base_url: str
    """Without a slash at its end; the path of a request follows."""
    auth_header: str
    """In lower case; empty where nobody asks for a key."""
    auth_prefix: str
    secret: Secret | None
    """None: there is no key, and none is sent."""
    provider: Provider
    """As configured; `ca` is a path from here."""
    notices: tuple[Notice, ...] = ()

    def headers(self) -> dict[str, str]:
        """What is sent with every request, key included; names in lower case."""
        sent = {name.lower(): value for name, value in self.provider.headers.items()}
        if self.secret is not None and self.auth_header:
            sent[self.auth_header] = self.auth_prefix + self.secret.reveal()
        return sent


def resolve(
    config: Config,
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Resolved]:
    """Every provider by its id. `file` is where the configuration was read, unless it knows."""
    found = {}
    for one, missing in look(config, file, environ):
        if missing is not None:
            raise missing
        found[one.id] = one
    return found


def look(
    config: Config,
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[tuple[Resolved, MissingSecret | None]]:
    """Every provider, and what is wrong with its key; whatever else is wrong is raised."""
    origin, folder = _place(config, file)
    variables = os.environ if environ is None else environ
    for one in check(config, file).values():
        key = one.provider.key
        try:
            yield one if key is None else _with_key(one, key, folder, variables, origin), None
        except MissingSecret as problem:
            yield one, problem


def check(config: Config, file: str | os.PathLike[str] | None = None) -> dict[str, Resolved]:
    """The same without the keys: all that is right or wrong with the file itself."""
    origin, folder = _place(config, file)
    if not config.providers:
        raise origin.invalid("there are no providers")
    check_routes(config, origin)
    return {id: _checked(id, one, folder, origin) for id, one in config.providers.items()}


def _place(config: Config, file: str | os.PathLike[str] | None) -> tuple[Origin, Path]:
    """Where errors are, and the folder that `secrets/` and `ca` are looked for in."""
    origin = config.origin
    if file is not None:
        origin = Origin(os.fspath(file), origin.lines)
    return origin, Path(origin.file).parent


def _checked(id: str, provider: Provider, folder: Path, origin: Origin) -> Resolved:
    row = row_of(id, provider, origin)
    address = base_url(id, provider, row, origin)
    header, prefix = _AUTH[row.auth]
    check_headers(id, provider, header, origin)
    check_models(id, provider, origin)
    check_proxy(id, provider, origin)
    home = is_home(row)
    return Resolved(
        id=id,
        wire=row.wire if home else row.name,
        dialect=None if home else row,
        base_url=address,
        auth_header=header,
        auth_prefix=prefix,
        secret=None,
        provider=_with_ca(id, provider, folder, origin),
        notices=(*idle_fillings(id, provider, row), *_key_notices(id, provider, address, header)),
    )


def _with_ca(id: str, provider: Provider, folder: Path, origin: Origin) -> Provider:
    if provider.ca is None:
        return provider
    file = folder / provider.ca
    if not file.is_file():
        raise origin.invalid(f"there is no file {file}", "providers", id, "ca")
    return msgspec.structs.replace(provider, ca=str(file))


def _with_key(
    one: Resolved, key: Key, folder: Path, environ: Mapping[str, str], origin: Origin
) -> Resolved:
    here = ("providers", one.id, "key")
    secret = find_key(key, folder, environ, origin=origin, path=here)
    told = exposed(key, folder)
    notices = [] if told is None else [Notice("key_exposed", told, spoken(here))]
    return msgspec.structs.replace(one, secret=secret, notices=(*one.notices, *notices))


def _key_notices(id: str, provider: Provider, address: str, header: str) -> list[Notice]:
    if provider.key is None:
        return []
    at = spoken(("providers", id, "key"))
    if not header:
        return [Notice("key_unused", "this provider takes no key; none is sent", at)]
    parts = urlsplit(address)
    if parts.scheme == "http" and not _is_near(parts.hostname or ""):
        return [Notice("key_in_clear", f"goes to {parts.hostname} without encryption", at)]
    return []


def _is_near(host: str) -> bool:
    """Whether a host is this machine, or one of the same private network."""
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return host == "localhost" or host.endswith(".localhost") or "." not in host
