"""The HTTP transport: a protocol of two methods, implemented by `over_aiohttp.AiohttpTransport`.

response = await transport.send(request)      returns when status and headers have arrived
body = await response.read()                  the whole body, or
async for data in response: ...               the body as it arrives
await response.close()                        in every case
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec

from anaphora.client.config import Timeouts
from anaphora.client.config.secrets import SecretHeaders
from anaphora.redaction import shown_url
from anaphora.wire.errors import MAX_ERROR_BYTES


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A complete request, credentials included. Its repr shows no header value and no token in
    the URL."""

    method: str
    url: str
    headers: SecretHeaders
    body: bytes
    timeouts: Timeouts
    max_response_bytes: int
    provider: str = ""
    """The provider of the catalog, and"""
    path: str = ""
    """the path as the provider's own, whatever the base URL is; both for transports that record."""
    on_write: Callable[[], None] | None = None
    """Called right before the first byte of the request is written to a connection, by a transport
    that `tells_writing`. If it raises, nothing is written."""

    def __repr__(self) -> str:
        return f"<HttpRequest {self.method} {shown_url(self.url)}, {len(self.body)} bytes>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("method", self.method), ("url", shown_url(self.url))]


class HttpResponse(Protocol):
    """A response whose body may still be arriving."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self) -> bytes:
        """The whole body; the connection goes back to the pool."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def close(self) -> None:
        """Release the connection: to the pool if the body was read to its end, else close it.
        May be called more than once."""
        ...


async def read_error_body(response: HttpResponse) -> bytes:
    """The body of an error, of which no more than `MAX_ERROR_BYTES` are read: the caller closes the
    connection then."""
    data = bytearray()
    async for piece in response:
        data += piece
        if len(data) >= MAX_ERROR_BYTES:
            break
    return bytes(data[:MAX_ERROR_BYTES])


async def read_answer(response: HttpResponse) -> bytes:
    """The whole body; of an error, what `read_error_body` reads."""
    if response.status >= 300:
        return await read_error_body(response)
    return await response.read()


class HttpTransport(Protocol):
    """Raises `errors.Transport` for every network failure. One that calls `on_write` of a request
    has a true attribute `tells_writing`."""

    async def send(self, request: HttpRequest) -> HttpResponse: ...
    async def close(self) -> None: ...


@runtime_checkable
class TransportLayer(HttpTransport, Protocol):
    """A transport that works on top of another: the client gives it the one it would use for a
    provider, with its proxy and certificates."""

    def over(self, transport: HttpTransport) -> HttpTransport: ...
