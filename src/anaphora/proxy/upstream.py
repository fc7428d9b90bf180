"""The network as the proxy's upstream: requests and responses as bytes.

Nothing is decompressed, and no time limit applies once the connection is there: models think for
as long as they do.
"""

from __future__ import annotations

from urllib.request import getproxies, proxy_bypass

from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from anaphora.client.config import Timeouts
from anaphora.client.config.secrets import Secret, SecretHeaders
from anaphora.client.transport import errors
from anaphora.client.transport.connections import Address, Connections
from anaphora.client.transport.exchange import NetworkExchange, OutgoingRequest, RequestHead
from anaphora.errors import InvalidConfig, Transport
from anaphora.traffic.calls import Headers, UpstreamRequest

#: The longest line and field of a response's head, and the most fields.
_HEAD_LIMITS = {"max_line_size": 64 * 1024, "max_field_size": 64 * 1024, "max_headers": 512}
#: Seconds of silence after which the system asks whether the other side is still there.
_SILENCE = 60
#: The only limit: that of the connection. The others are never applied.
_TIMEOUTS = Timeouts(connect=30.0)
#: Safe to send again when a kept-alive connection was closed.
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_SWITCHING = 101


class NetworkUpstream:
    """Providers over the network; proxies as the environment says (`HTTPS_PROXY`, `NO_PROXY`), and
    certificates that the system trusts, or those of the file `ca`."""

    def __init__(self, ca: str | None = None) -> None:
        self._connections = Connections(
            ca, 0, closed="the proxy is stopping", head_limits=_HEAD_LIMITS, silence=_SILENCE
        )
        self._addresses: dict[str, UpstreamAddress] = {}

    async def send(self, request: UpstreamRequest) -> NetworkResponse:
        """The response, when its head has arrived."""
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
        exchange = await self._connections.exchange(address, outgoing)
        if exchange.message.code == _SWITCHING:
            exchange.abort()
            asked = HttpProcessingError(message="switching protocols was not asked for")
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
    """A base URL, the proxy on the way to it, and what the heads of its requests begin with."""

    __slots__ = ("_proxy_lines", "_root")

    def __init__(self, base: str) -> None:
        url = errors.read_url(base)
        proxy, proxy_headers = _environment_proxy(url)
        super().__init__(url, proxy, proxy_headers)
        self._root = self.url.raw_path.rstrip("/")
        self._proxy_lines = RequestHead(b"", b"")
        if self.proxy is not None and self.url.scheme == "http":
            # Without a tunnel, an HTTP proxy needs the whole address.
            self._root = f"http://{self.url.raw_authority}{self._root}"
            lines = "".join(f"{name}: {proxy_headers[name]}\r\n" for name in proxy_headers)
            self._proxy_lines = RequestHead(lines.encode("latin-1"), b"")

    def head(self, request: UpstreamRequest) -> RequestHead:
        """Request line and headers: those of the request in their order, and nothing else but what
        says where a body ends."""
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
        """Whether a part of the body came with the head."""
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


def _environment_proxy(url: URL) -> tuple[URL | None, SecretHeaders]:
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
