"""Observes calls of aiohttp's sessions by a middleware. Anaphora's own client uses no session, so
it is not observed here."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiohttp
from aiohttp.payload import BytesPayload

from anaphora.traffic.calls import Headers

from .addresses import RequestAddress
from .observation import Observation, ObservedCall, active, begin, guarded

_Handler = Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]]


class ObservingMiddleware:
    """The innermost middleware, which sees requests as they are sent."""

    def __init__(self, observation: Observation | None, *, decompressed: bool) -> None:
        self.observation = observation
        self._decompressed = decompressed

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: _Handler
    ) -> aiohttp.ClientResponse:
        call = self._begin(request)
        if call is None:
            return await handler(request)
        body = request.body
        if call.placed is not None:
            await request.update_body(call.placed)
        try:
            response = await handler(request)
            rejectable = call.may_be_rejected(response.status)
            data = await response.read() if rejectable else b""
        except Exception as error:
            call.end("failed", error)
            raise
        except BaseException as error:
            call.end("cancelled", error)
            raise
        rejected = False
        with guarded("observing a response"):
            headers = _pairs(response.headers)
            if self._decompressed:
                headers = tuple([pair for pair in headers if pair[0] != "content-encoding"])
            if rejectable:
                rejected = call.was_rejected(response.status, headers, data)
            else:
                call.respond(response.status, headers)
                response.content = TeedReader(response.content, call)
        if not rejected:
            return response
        await request.update_body(body)
        return await self(request, handler)

    def _begin(self, request: aiohttp.ClientRequest) -> ObservedCall | None:
        with guarded("reading a request"):
            url, payload = request.url, request.body
            address = RequestAddress(url.scheme, url.raw_host or "", url.port, url.raw_path)

            def body() -> bytes | None:
                return bytes(payload._value) if isinstance(payload, BytesPayload) else None

            query = url.raw_query_string
            return begin(
                self.observation,
                request.method,
                address,
                query,
                lambda: _pairs(request.headers),
                body,
            )
        return None


class TeedReader(aiohttp.StreamReader):
    """The body of a response, which also passes its data to the observed call."""

    __slots__ = ("_call", "_reader")

    def __init__(self, reader: aiohttp.StreamReader, call: ObservedCall) -> None:
        self._reader, self._call = reader, call

    async def read(self, n: int = -1) -> bytes:
        return await self._seen(self._reader.read(n))

    async def readany(self) -> bytes:
        return await self._seen(self._reader.readany())

    async def readexactly(self, n: int) -> bytes:
        return await self._seen(self._reader.readexactly(n))

    async def readline(self, **options: Any) -> bytes:
        return await self._seen(self._reader.readline(**options))

    async def readuntil(self, *separator: Any, **options: Any) -> bytes:
        return await self._seen(self._reader.readuntil(*separator, **options))

    async def readchunk(self) -> tuple[bytes, bool]:
        try:
            data, ended = await self._reader.readchunk()
        except Exception as error:
            self._call.end("failed", error)
            raise
        self._add(data)
        return data, ended

    def read_nowait(self, n: int = -1) -> bytes:
        data = self._reader.read_nowait(n)
        self._add(data)
        return data

    def set_exception(self, exc: Any, *cause: Any) -> None:
        """Called when the response is closed before its end, or the connection is lost."""
        self._reader.set_exception(exc, *cause)
        self._call.end("cancelled")

    async def _seen(self, reading: Awaitable[bytes]) -> bytes:
        try:
            data = await reading
        except Exception as error:
            self._call.end("failed", error)
            raise
        self._add(data)
        return data

    def _add(self, data: bytes) -> None:
        self._call.add(data)
        if self._reader.at_eof():
            self._call.end("complete")


def _delegate(name: str) -> property:
    return property(
        lambda self: getattr(self._reader, name),
        lambda self, value: setattr(self._reader, name, value),
    )


#: Methods that a reader builds on its other methods.
_OWN = {"__aiter__", "iter_any", "iter_chunked", "iter_chunks"}
for _name in dir(aiohttp.StreamReader):
    if _name not in vars(TeedReader) and _name not in _OWN and not _name.startswith("__"):
        setattr(TeedReader, _name, _delegate(_name))


def _pairs(headers: Any) -> Headers:
    return tuple([(name.lower(), value) for name, value in headers.items()])


# ── Sessions ─────────────────────────────────────────────────────────────────────────────────────


def observe_session(session: aiohttp.ClientSession, observation: Observation) -> None:
    """Observes a session; replaces an earlier observation."""
    others = [each for each in session._middlewares if not isinstance(each, ObservingMiddleware)]
    own = ObservingMiddleware(observation, decompressed=session._auto_decompress)
    session._middlewares = (*others, own)


def hooks() -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    """Functions that `observing` replaces: class, name, and a wrapper for the old function."""
    yield aiohttp.ClientSession, "_request", _request_hook


def _request_hook(original: Any) -> Any:
    @functools.wraps(original)
    async def request(
        session: aiohttp.ClientSession, *args: Any, **options: Any
    ) -> aiohttp.ClientResponse:
        if active():
            given = options.get("middlewares")
            middlewares = tuple(session._middlewares if given is None else given)
            if not any(isinstance(each, ObservingMiddleware) for each in middlewares):
                asked = options.get("auto_decompress")
                decompressed = session._auto_decompress if asked is None else asked
                own = ObservingMiddleware(None, decompressed=decompressed)
                options["middlewares"] = (*middlewares, own)
        response: aiohttp.ClientResponse = await original(session, *args, **options)
        return response

    return request
