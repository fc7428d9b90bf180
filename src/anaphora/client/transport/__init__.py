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
from anaphora.client.config.secrets import Credentials, SecretHeaders
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
    """The provider's name in the catalog, for transports that record."""
    path: str = ""
    """The path at the provider's own base URL, for transports that record."""
    credentials: Credentials | None = None
    """What the connection's transport adds headers with, when it sends the request."""
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
    """At most `MAX_ERROR_BYTES` of an error's body; the caller closes the connection."""
    data = bytearray()
    async for piece in response:
        data += piece
        if len(data) >= MAX_ERROR_BYTES:
            break
    return bytes(data[:MAX_ERROR_BYTES])


async def read_answer(response: HttpResponse) -> bytes:
    """The whole body; for an error, the result of `read_error_body`."""
    if response.status >= 300:
        return await read_error_body(response)
    return await response.read()


class HttpTransport(Protocol):
    """Raises `errors.Transport` for every network failure. If it calls `on_write` of requests, its
    attribute `tells_writing` is true. `AuthenticatingTransport` adds the headers of
    `HttpRequest.credentials` for transports that do not."""

    async def send(self, request: HttpRequest) -> HttpResponse: ...
    async def close(self) -> None: ...


@runtime_checkable
class TransportLayer(HttpTransport, Protocol):
    """A transport on top of another: the client passes it the one for a provider, with its proxy
    and certificates."""

    def over(self, transport: HttpTransport) -> HttpTransport: ...
