"""Sends a request with credentials: a refused one again, once, if they can be renewed."""

from __future__ import annotations

from msgspec.structs import replace

from anaphora.client.config.secrets import Credentials, SecretHeaders
from anaphora.client.transport import HttpRequest, HttpResponse, HttpTransport


async def send_authenticated(
    transport: HttpTransport, request: HttpRequest, credentials: Credentials
) -> HttpResponse:
    response = await transport.send(await _authenticated(request, credentials))
    if response.status < 400 or not credentials.renews(response.status, response.headers):
        return response
    await response.close()
    return await transport.send(await _authenticated(request, credentials))


async def _authenticated(request: HttpRequest, credentials: Credentials) -> HttpRequest:
    own = await credentials.headers(request.method, request.url, request.headers, request.body)
    headers = SecretHeaders({**request.headers, **own})
    return replace(request, headers=headers, credentials=None)


class AuthenticatingTransport:
    """A transport of the app's, which sends requests with the headers of their credentials."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self.tells_writing = getattr(transport, "tells_writing", False)

    async def send(self, request: HttpRequest) -> HttpResponse:
        if request.credentials is None:
            return await self._transport.send(request)
        return await send_authenticated(self._transport, request, request.credentials)

    async def close(self) -> None:
        await self._transport.close()
