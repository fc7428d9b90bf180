"""Where requests go: the route table, from configuration alone, and providers over the network.

Every provider of the catalog has the prefix `/PROVIDER`: `/deepseek/chat/completions` goes to
`https://api.deepseek.com/chat/completions`. The paths of Anthropic, OpenAI, Gemini and Ollama also
work without a prefix, since some programs allow no path in their base URL.

Requests and responses pass as bytes. Nothing is decompressed, and only connecting has a timeout: a
model may think for any time.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Container, Iterable, Mapping
from hmac import compare_digest
from typing import TYPE_CHECKING, Protocol
from urllib.request import getproxies, proxy_bypass

import msgspec
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from anaphora import catalog, wire
from anaphora.catalog import Dialect
from anaphora.client.config import Timeouts
from anaphora.client.config.environment import default_rows
from anaphora.client.config.secrets import Secret, SecretHeaders
from anaphora.client.credentials.sigv4 import scope_in
from anaphora.client.transport import errors
from anaphora.client.transport.connections import Address, Connections
from anaphora.client.transport.exchange import (
    NetworkExchange,
    OutgoingRequest,
    RequestHead,
    send_request,
)
from anaphora.errors import InvalidConfig, InvalidRequest, RequestRejected, Transport
from anaphora.redaction import shown_name
from anaphora.traffic.calls import (
    Headers,
    ProxyRoute,
    UpstreamRequest,
    checked_upstream,
    is_unread,
)
from anaphora.wire import Wire
from anaphora.wire.cloud_paths import provider_at

from .command_line import TABLES

if TYPE_CHECKING:
    from .signing import RequestSigner

_PLACEHOLDER = re.compile(r"\{\w+\}")
#: A region in a signature, and a location in a path of Vertex AI: parts of a host.
_REGION = re.compile(r"[a-z]{2,}(?:-[a-z]+)+-[0-9]{1,2}")
_LOCATION = re.compile(r"/locations/([a-z0-9-]{1,63})(?=[/:])")
#: Of Bedrock's other service, which Claude Code reaches by the same base URL.
_CONTROL_PATHS = ("/inference-profiles", "/foundation-models")
#: The format of errors for requests without a route.
_DEFAULT_WIRE = "openai_chat"


def default_routes(overrides: Mapping[str, str] = {}, region: str = "") -> list[ProxyRoute]:
    """A route for every provider of the catalog's dialects, and for every cloud; `overrides` are
    other base URLs by provider or cloud. Those whose URL depends on the account (Azure) have a
    route only if overridden. `region` is that of requests to AWS that name none."""
    bases = {row.provider: row.base_url for row in reversed(catalog.dialects().rows)}
    named = {}
    for name, url in overrides.items():
        provider = route_named(name, bases)
        if provider is None:
            known = ", ".join(sorted({*bases, *(row.name for row in TABLES.routes)}))
            raise InvalidRequest(f"no provider {name!r}; there are {known}", path="upstream")
        named[provider] = checked_upstream(url, name)
    clouds = [
        ProxyRoute(
            prefix=row.prefix or f"/{row.name}",
            provider=row.provider,
            upstream=named.pop(row.name, row.upstream),
            name=row.name,
            region=region,
            secret=Secret(secrets.token_urlsafe(24)) if "{region}" in row.upstream else None,
        )
        for row in TABLES.routes
    ]
    bases = {**dict(reversed(bases.items())), **named}
    routes = [
        ProxyRoute(prefix=f"/{provider}", provider=provider, upstream=url)
        for provider, url in bases.items()
        if "{" not in url
    ]
    routes += [route for route in clouds if "{account}" not in route.upstream]
    return routes + [
        ProxyRoute(prefix="", provider=provider, upstream=bases[provider])
        for provider, row in default_rows().items()
        if row.own_paths
    ]


def route_named(name: str, providers: Container[str]) -> str | None:
    """The route of a cloud or of a provider, given by name, alias or host."""
    if any(row.name == name for row in TABLES.routes):
        return name
    return catalog.dialects().provider_named(name, providers)


class RouteTable:
    """Routes by path prefix. Neither Host nor an absolute URI matters."""

    def __init__(self, routes: Iterable[ProxyRoute]) -> None:
        self.routes = tuple(routes)
        self._prefixed: dict[str, ProxyRoute] = {}
        self._own: dict[str, ProxyRoute] = {}
        for route in self.routes:
            upstream = _PLACEHOLDER.sub("x", route.upstream)
            checked_upstream(upstream, f"route {route.prefix or route.provider}")
            if not route.prefix:
                self._own[route.provider] = route
            elif not route.prefix.startswith("/") or "/" in route.prefix[1:]:
                reason = f"a prefix is one step of a path, such as /anthropic: {route.prefix!r}"
                raise InvalidRequest(reason, path="prefix")
            else:
                self._prefixed[route.prefix[1:]] = route
        rows = self._rows = default_rows()
        known = [(rows[name], route) for name, route in self._own.items() if name in rows]
        # Models and files of several providers have the same path.
        self._own_headers = [(row.own_header, route) for row, route in known if row.own_header]
        self._own_paths = [(start, route) for row, route in known for start in row.own_paths]
        self._own_paths.sort(key=lambda one: len(one[0]), reverse=True)
        # A single route without a prefix takes every path.
        self._only = next(iter(self._own.values())) if len(self._own) == 1 else None

    def find(self, path: str, headers: Mapping[str, str]) -> tuple[ProxyRoute, str] | None:
        """The route of a percent-encoded path, and the path at the provider, below the route's base
        URL. None if there is no route. Raises if the region of a cloud is not known."""
        found = self._found(path, headers)
        if found is None or not found[0].name:
            return found
        return _at_cloud(*found, headers), found[1]

    def _found(self, path: str, headers: Mapping[str, str]) -> tuple[ProxyRoute, str] | None:
        first, slash, rest = path[1:].partition("/")
        route = self._prefixed.get(first) if path.startswith("/") else None
        if route is not None:
            route, path = _of_program(route, slash + rest)
        else:
            route = self._own_route(path, headers)
            if route is None:
                return None
        row = self._rows.get(route.provider)
        if row is not None and row.short_path and path == row.short_path:
            path = row.request_path
        elif is_unread(route.provider, path.removeprefix("/v1")):
            path = path.removeprefix("/v1")  # its own programs append it to any base URL
        return route, path

    def codec(self, path: str, headers: Mapping[str, str]) -> Wire:
        """The format of errors that a caller of this path expects."""
        found = self._found(path, headers)
        row = None
        if found is not None:
            row = dialect_at(provider_at(found[1], found[0].provider), found[1])
        return wire.get(_DEFAULT_WIRE) if row is None else wire.codec_for(row)

    def _own_route(self, path: str, headers: Mapping[str, str]) -> ProxyRoute | None:
        if not path.startswith("/"):
            return None
        if self._only is not None:
            return self._only
        for name, route in self._own_headers:
            if name in headers:
                return route
        return next((route for start, route in self._own_paths if path.startswith(start)), None)


def _of_program(route: ProxyRoute, path: str) -> tuple[ProxyRoute, str]:
    """The route and the path without the secret, if it is there."""
    step, slash, rest = path[1:].partition("/")
    if route.secret is None or not compare_digest(step.encode(), route.secret.reveal().encode()):
        return route, path
    return msgspec.structs.replace(route, signs=True), slash + rest


def _at_cloud(route: ProxyRoute, path: str, headers: Mapping[str, str]) -> ProxyRoute:
    """The route of one request: with the region that its signature or path names, and the provider
    whose model it calls."""
    upstream, region = route.upstream, route.region
    if "{region}" in upstream:
        scope = scope_in(headers.get("authorization", ""))
        region = region if scope is None else scope.region
        if not _REGION.fullmatch(region):
            reason = f"not a region of AWS: {shown_name(region)}" if region else "no region of AWS"
            raise RequestRejected(f"{reason}: set AWS_REGION for the command", status=400)
        if path.startswith(_CONTROL_PATHS):
            upstream = upstream.replace("bedrock-runtime.", "bedrock.")
        upstream = upstream.replace("{region}", region)
    elif "{vertex}" in upstream:
        hosts = catalog.dialects().find("google", "gemini", "vertex").region_hosts
        found = _LOCATION.search(path)
        location = "global" if found is None else found[1]
        host = hosts.get(location, hosts["*"]).replace("{location}", location)
        upstream = upstream.replace("{vertex}", host)
    provider = provider_at(path, route.provider)
    return msgspec.structs.replace(route, upstream=upstream, provider=provider)


def dialect_at(provider: str, path: str) -> Dialect | None:
    """A provider's dialect at a path below its base URL; its default one at other paths. None for a
    provider without dialects."""
    rows = [row for row in catalog.dialects().rows if row.provider == provider]
    return next((row for row in rows if path.startswith(row.request_path)), *rows[:1] or (None,))


#: Maximum line and field length of a response's head, and number of fields.
_HEAD_LIMITS = {"max_line_size": 64 * 1024, "max_field_size": 64 * 1024, "max_headers": 512}
#: Seconds of silence after which the system sends TCP keep-alive probes.
_SILENCE = 60
#: Only the connect timeout is used.
_TIMEOUTS = Timeouts(connect=30.0)
#: Safe to send again when a kept-alive connection was closed.
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_SWITCHING = 101


class UpstreamResponse(Protocol):
    """A response whose body may still be arriving."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Headers: ...
    def __aiter__(self) -> AsyncIterator[bytes]:
        """The body as it arrives, still encoded."""
        ...

    async def close(self) -> None:
        """Ends the exchange; the upstream stops generating if the body was not read to its end."""
        ...


class ResponseSource(Protocol):
    """The provider over the network, or recordings of it. Raises `errors.Transport`."""

    async def send(self, request: UpstreamRequest) -> UpstreamResponse: ...
    async def close(self) -> None: ...


class NetworkUpstream:
    """Providers over the network; proxies from the environment (`HTTPS_PROXY`, `NO_PROXY`), and
    certificates that the system trusts, or those of the file `ca`."""

    def __init__(self, ca: str | None = None, signer: RequestSigner | None = None) -> None:
        """`signer` signs the requests again that a program has signed for the proxy."""
        self._signer = signer
        self._connections = Connections(
            ca, 0, closed="the proxy is stopping", head_limits=_HEAD_LIMITS, silence=_SILENCE
        )
        self._addresses: dict[str, UpstreamAddress] = {}
        self.ca = ca

    async def send(self, request: UpstreamRequest) -> NetworkResponse:
        """Returns the response when its head has arrived."""
        if self._signer is None:
            return await self._send(request)
        signed, credentials = await self._signer.signed(request)
        response = await self._send(signed)
        if credentials is None or not credentials.renews(response.status, dict(response.headers)):
            return response
        await response.close()
        signed, _ = await self._signer.signed(request)
        return await self._send(signed)

    async def _send(self, request: UpstreamRequest) -> NetworkResponse:
        address = self._addresses.get(request.route.upstream)
        if address is None:
            address = UpstreamAddress(request.route.upstream)
            self._addresses[request.route.upstream] = address
        is_whole = isinstance(request.body, bytes)
        outgoing = OutgoingRequest(
            request.method,
            address.head(request),
            request.body,
            _TIMEOUTS,
            repeatable=is_whole and request.method in _IDEMPOTENT,
            chunked=not is_whole and not _has_length(request),
        )
        exchange = await send_request(self._connections, address, outgoing)
        if exchange.message.code == _SWITCHING:
            exchange.abort()
            asked = HttpProcessingError(message="unexpected response: switching protocols")
            raise errors.no_response(
                asked, _TIMEOUTS, address.url, address.proxy, written=True, reused=False
            )
        return NetworkResponse(exchange)

    async def close(self) -> None:
        self._connections.closed = True
        for exchange in tuple(self._connections.active.values()):
            if exchange is not None:
                exchange.abort()
        await self._connections.close()


class UpstreamAddress(Address):
    """A base URL, the proxy on the way to it, and the constant beginning of its request heads."""

    __slots__ = ("_proxy_lines", "_root")

    def __init__(self, base: str) -> None:
        url = errors.read_url(base)
        proxy, proxy_headers = environment_proxy(url)
        super().__init__(url, proxy, proxy_headers)
        self._root = self.url.raw_path.rstrip("/")
        self._proxy_lines = RequestHead(b"", b"")
        if self.proxy is not None and self.url.scheme == "http":
            # Without a tunnel, an HTTP proxy needs the absolute URL.
            self._root = f"http://{self.url.raw_authority}{self._root}"
            lines = "".join(f"{name}: {proxy_headers[name]}\r\n" for name in proxy_headers)
            self._proxy_lines = RequestHead(lines.encode("latin-1"), b"")

    def head(self, request: UpstreamRequest) -> RequestHead:
        """Request line and headers: those of the request in order, and only the framing of the body
        added."""
        query = f"?{request.query}" if request.query else ""
        target = self._root + request.path
        if not target.startswith(("/", "http")):
            target = f"/{target}"
        lines = [f"{request.method} {target}{query} HTTP/1.1", *map(": ".join, request.headers), ""]
        framing = ""
        if not isinstance(request.body, bytes):
            if not _has_length(request):
                framing = "transfer-encoding: chunked\r\n"
        elif request.body and not _has_length(request):
            framing = f"content-length: {len(request.body)}\r\n"
        end = bytes(self._proxy_lines.with_body()) + framing.encode() + b"\r\n"
        return RequestHead("\r\n".join(lines).encode("latin-1"), end)


class NetworkResponse:
    """A response; its body is read once, by iteration."""

    def __init__(self, exchange: NetworkExchange) -> None:
        message, content = exchange.message, exchange.content
        self.status: int = message.code
        self.headers: Headers = tuple(
            [
                (name.decode("latin-1").lower(), value.decode("latin-1"))
                for name, value in message.raw_headers
            ]
        )
        self._exchange = exchange
        self._arrived = b"" if content.exception() else content.read_nowait()

    @property
    def has_begun(self) -> bool:
        """Whether part of the body came with the head."""
        return bool(self._arrived)

    def __aiter__(self) -> NetworkResponse:
        return self

    async def __anext__(self) -> bytes:
        exchange = self._exchange
        data, self._arrived = self._arrived, b""
        if not data:
            data = await exchange.receive()
        if exchange.content.at_eof():
            exchange.release()
        if data:
            return data
        raise StopAsyncIteration

    async def close(self) -> None:
        self._exchange.end()


def _has_length(request: UpstreamRequest) -> bool:
    return any(name == "content-length" for name, _ in request.headers)


def environment_proxy(url: URL) -> tuple[URL | None, SecretHeaders]:
    """The proxy that the environment names for a URL, without credentials, and its headers."""
    if proxy_bypass(f"{url.raw_host}:{url.port}"):
        return None, SecretHeaders()
    proxies = {name: Secret(address) for name, address in getproxies().items()}
    found = proxies.get(url.scheme) or proxies.get("all")
    if found is None:
        return None, SecretHeaders()
    try:
        return errors.read_proxy(found)
    except InvalidConfig as error:
        failure = Transport(f"{errors.host_of(url)}: the environment's {error}")
    raise failure
