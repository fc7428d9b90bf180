"""The provider of a request, by the hosts of the catalog and by configured addresses.

Configured addresses are those passed by the caller, and those in the environment variables of the
catalog (`ANTHROPIC_BASE_URL`, `OPENAI_BASE_URL`, `OLLAMA_HOST`, …). Requests to other addresses are
not read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from anaphora import catalog
from anaphora.catalog import Dialect
from anaphora.client.config.environment import base_urls
from anaphora.errors import InvalidRequest
from anaphora.traffic.calls import ProxyRoute, checked_upstream

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: Variables of other tools that hold a base URL, besides those of the catalog.
_OTHER_VARIABLES = {
    "OPENAI_API_BASE": "openai",
    "ANTHROPIC_API_BASE": "anthropic",
    "ANTHROPIC_API_URL": "anthropic",
    "GEMINI_API_BASE": "google",
    "GOOGLE_BASE_URL": "google",
    "DEEPSEEK_API_BASE": "deepseek",
    "GOOGLE_VERTEX_BASE_URL": "google",
    "ANTHROPIC_VERTEX_BASE_URL": "google",
    "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": "bedrock",
    "AWS_ENDPOINT_URL": "bedrock",
    "ANTHROPIC_BEDROCK_BASE_URL": "bedrock",
}
_PORTS = {"http": 80, "https": 443}
#: The number of addresses whose provider is remembered.
_MOST_KNOWN = 256


class RequestAddress:
    """The destination of a request."""

    __slots__ = ("host", "path", "port", "scheme")

    def __init__(self, scheme: str, host: str, port: int | None, path: str) -> None:
        self.scheme, self.host, self.path = scheme, host.lower(), path
        self.port = port or _PORTS.get(scheme, 0)

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = self.port == _PORTS.get(self.scheme)
        return f"{self.scheme}://{host}" + ("" if default else f":{self.port}")


class Addresses:
    """The providers of addresses."""

    def __init__(
        self,
        configured: Mapping[str, str] = {},
        *,
        provider: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`configured`: providers by base URL. `provider`: the provider of all other addresses."""
        self._provider = _provider(provider, "provider") if provider else ""
        named = [(_key(url), _provider(name, "addresses")) for url, name in _pairs(configured)]
        variables = os.environ if variables is None else variables
        found = [*base_urls(variables).items()]
        found += [(name, variables.get(each, "")) for each, name in _OTHER_VARIABLES.items()]
        for name, url in found:
            with contextlib.suppress(InvalidRequest):
                named.append((_key(url), name))
        # The longest base URL first: several providers may share a host.
        self._bases = sorted(named, key=lambda each: len(each[0][1]), reverse=True)
        self._known: dict[tuple[str, str, int, str, str], ProxyRoute | None] = {}

    def route(self, address: RequestAddress, wire: str) -> ProxyRoute | None:
        """None for an address that is neither of the catalog nor configured."""
        key = address.scheme, address.host, address.port, address.path, wire
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._route(address, wire)
        return self._known[key]

    def _route(self, address: RequestAddress, wire: str) -> ProxyRoute | None:
        found = [
            ProxyRoute(prefix="", provider=provider, upstream=origin)
            for (origin, path), provider in self._bases
            if origin == address.origin and f"{address.path}/".startswith(f"{path}/")
        ]
        # A gateway may serve several providers at one address.
        for route in found:
            if any((row.provider, row.wire) == (route.provider, wire) for row in _rows()):
                return route
        if found:
            return found[0]
        row = _row_at(address, wire)
        if row is None and not self._provider:
            return None
        provider = self._provider if row is None else row.provider
        return ProxyRoute(prefix="", provider=provider, upstream=address.origin)


def _rows() -> tuple[Dialect, ...]:
    return catalog.dialects().rows


def _row_at(address: RequestAddress, wire: str) -> Dialect | None:
    """The row of the catalog; for local servers only at their own port. A provider's host may speak
    a wire for which it has no row."""
    if address.host not in _LOOPBACK:
        wires = dict.fromkeys((wire, *(row.wire for row in _rows())))
        found = (catalog.dialects().at_host(address.host, each, address.path) for each in wires)
        return next((row for row in found if row is not None), None)
    for row in _rows():
        url = urlsplit(row.base_url) if row.wire == wire and "{" not in row.base_url else None
        if url is not None and url.hostname in _LOOPBACK and url.port == address.port:
            return row
    return None


def _pairs(configured: object) -> Iterable[tuple[str, str]]:
    if not isinstance(configured, Mapping):
        hint = 'write {"http://127.0.0.1:8000": "vllm"}'
        raise InvalidRequest(f"must map base URLs to providers; {hint}", path="addresses")
    return configured.items()


def _provider(name: str, field: str) -> str:
    known = dict.fromkeys(row.provider for row in _rows())
    provider = catalog.dialects().provider_named(name, known) if isinstance(name, str) else None
    if provider is None:
        raise InvalidRequest(f"no provider {name!r}; there are {', '.join(known)}", path=field)
    return provider


def _key(url: str) -> tuple[str, str]:
    """Origin and path of a base URL."""
    parts = urlsplit(checked_upstream(url, "addresses"))
    address = RequestAddress(parts.scheme, parts.hostname or "", parts.port, "")
    return address.origin, parts.path.rstrip("/")
