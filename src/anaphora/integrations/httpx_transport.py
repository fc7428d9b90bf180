"""Observes calls on httpx and httpx2, which are two packages with one interface.

`ObservedTransport` wraps the existing transport, whose proxies and options stay in effect. It
serves both packages, sync and async, and takes classes from the package of the request.
"""

from __future__ import annotations

import functools
import importlib
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from anaphora.traffic.calls import Headers

from .addresses import RequestAddress
from .observation import Observation, ObservedCall, active, begin, guarded, suspended

PACKAGES = ("httpx", "httpx2")
#: The options that the vendors' SDKs give their connections.
_LIMITS = {"max_connections": 1000, "max_keepalive_connections": 100}
_SILENCE, _PROBES = 60, 5


class ObservedTransport:
    """A transport around another one. Without another one it makes its own: with the limits and
    keep-alive options of the SDKs, and the proxies of the environment."""

    def __init__(self, inner: Any = None, observation: Observation | None = None) -> None:
        self.inner = inner
        self.observation = observation

    def __getattr__(self, name: str) -> Any:
        if name in ("inner", "observation"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __repr__(self) -> str:
        return f"<ObservedTransport of {self.inner!r}>"

    # ── One request ──────────────────────────────────────────────────────────────────────────────

    def handle_request(self, request: Any) -> Any:
        package = _package_of(request)
        inner = self._own(package, "Client") if self.inner is None else self.inner
        call = _begin(self.observation, request)
        if call is None:
            return inner.handle_request(request)
        try:
            with suspended():
                response = inner.handle_request(_sent(request, call, package))
                rejectable = call.may_be_rejected(response.status_code)
                if rejectable:
                    stream = response.stream
                    data = b"".join(stream)
                    stream.close()
        except BaseException as error:
            call.end("failed", error)
            raise
        if rejectable:
            response.stream = sys.modules[package].ByteStream(data)
            if call.was_rejected(response.status_code, _pairs(response.headers), data):
                return self.handle_request(request)
            return response
        with guarded("observing a response"):
            _tee(response, call, _streams(package)[0])
        return response

    async def handle_async_request(self, request: Any) -> Any:
        package = _package_of(request)
        inner = self._own(package, "AsyncClient") if self.inner is None else self.inner
        call = _begin(self.observation, request)
        if call is None:
            return await inner.handle_async_request(request)
        try:
            with suspended():  # the transport may be built on aiohttp, which is observed as well
                response = await inner.handle_async_request(_sent(request, call, package))
                rejectable = call.may_be_rejected(response.status_code)
                if rejectable:
                    stream = response.stream
                    data = b"".join([piece async for piece in stream])
                    await stream.aclose()
        except Exception as error:
            call.end("failed", error)
            raise
        except BaseException as error:
            call.end("cancelled", error)
            raise
        if rejectable:
            response.stream = sys.modules[package].ByteStream(data)
            if call.was_rejected(response.status_code, _pairs(response.headers), data):
                return await self.handle_async_request(request)
            return response
        with guarded("observing a response"):
            _tee(response, call, _streams(package)[1])
        return response

    def _own(self, package: str, client: str) -> Any:
        """The transport that is made if none was given."""
        module = importlib.import_module(package)
        self.inner = _EnvironmentTransport(getattr(module, client), module)
        return self.inner

    # ── Its end ──────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        if self.inner is not None:
            self.inner.close()

    async def aclose(self) -> None:
        if self.inner is not None:
            await self.inner.aclose()

    def __enter__(self) -> ObservedTransport:
        if self.inner is not None:
            self.inner.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        if self.inner is not None:
            self.inner.__exit__(*details)

    async def __aenter__(self) -> ObservedTransport:
        if self.inner is not None:
            await self.inner.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> None:
        if self.inner is not None:
            await self.inner.__aexit__(*details)


class _EnvironmentTransport:
    """The default transports of a client of the package: a transport passed to the client would
    disable the proxies of the environment."""

    def __init__(self, client: Any, module: Any) -> None:
        limits = module.Limits(**_LIMITS)
        self._client = client(limits=limits, timeout=None)
        for transport in (self._client._transport, *self._client._mounts.values()):
            _keep_alive(transport)

    def handle_request(self, request: Any) -> Any:
        return self._client._transport_for_url(request.url).handle_request(request)

    async def handle_async_request(self, request: Any) -> Any:
        return await self._client._transport_for_url(request.url).handle_async_request(request)

    def close(self) -> None:
        self._client.close()

    async def aclose(self) -> None:
        await self._client.aclose()

    def __enter__(self) -> None:
        self._client.__enter__()

    def __exit__(self, *details: Any) -> None:
        self._client.__exit__(*details)

    async def __aenter__(self) -> None:
        await self._client.__aenter__()

    async def __aexit__(self, *details: Any) -> None:
        await self._client.__aexit__(*details)


def _keep_alive(transport: Any) -> None:
    """Enables TCP keep-alive like the SDKs, so that connections notice when the peer is gone."""
    pool = getattr(transport, "_pool", None)
    if pool is None or getattr(pool, "_socket_options", ()) is not None:
        return
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (
        ("TCP_KEEPINTVL", _SILENCE), ("TCP_KEEPCNT", _PROBES), ("TCP_KEEPIDLE", _SILENCE),
    ):  # fmt: skip
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    pool._socket_options = options


# ── Requests and responses ───────────────────────────────────────────────────────────────────────


def _package_of(request: Any) -> str:
    package: str = type(request).__module__.partition(".")[0]
    if package in PACKAGES:
        return package
    for base in type(request).__mro__:  # an application's own subclass
        if (name := base.__module__.partition(".")[0]) in PACKAGES:
            return name
    return package


def _begin(own: Observation | None, request: Any) -> ObservedCall | None:
    with guarded("reading a request"):
        url = request.url
        address = RequestAddress(url.scheme, url.host, url.port, url.path)

        def headers() -> Headers:
            return _pairs(request.headers)

        def body() -> bytes | None:
            # A body that is generated while it is sent cannot be read before.
            data: bytes | None = getattr(request, "_content", None)
            return data

        query = url.query.decode("latin-1")
        return begin(own, request.method, address, query, headers, body)
    return None


def _sent(request: Any, call: ObservedCall, package: str) -> Any:
    """The request with the markers that were placed."""
    placed = call.placed
    if placed is None:
        return request
    headers = [
        (name, b"%d" % len(placed) if name.lower() == b"content-length" else value)
        for name, value in request.headers.raw
    ]
    return sys.modules[package].Request(
        request.method, request.url, headers=headers, content=placed, extensions=request.extensions
    )


def _tee(response: Any, call: ObservedCall, stream: Any) -> None:
    headers = _pairs(response.headers)
    content = getattr(response, "_content", None)
    if content is not None:  # read already: a transport that does not stream, like those of tests
        call.respond(response.status_code, _decoded(headers))
        call.add(content)
        call.end("complete")
        return
    call.respond(response.status_code, headers)
    response.stream = stream(response.stream, call)


def _pairs(headers: Any) -> Headers:
    return tuple([(name.lower(), value) for name, value in headers.multi_items()])


def _decoded(headers: Headers) -> Headers:
    return tuple([pair for pair in headers if pair[0] != "content-encoding"])


@functools.cache
def _streams(package: str) -> tuple[Any, Any]:
    """Stream classes of a package, sync and async, that pass their data to the observed call."""
    module = sys.modules[package]

    class TeedStream(module.SyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, stream: Any, call: ObservedCall) -> None:
            self._stream, self._call = stream, call

        def __iter__(self) -> Iterator[bytes]:
            add = self._call.add
            try:
                for data in self._stream:
                    add(data)
                    yield data
            except Exception as error:
                self._call.end("failed", error)
                raise
            self._call.end("complete")

        def close(self) -> None:
            try:
                self._stream.close()
            finally:
                self._call.end("cancelled")

    class TeedAsyncStream(module.AsyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, stream: Any, call: ObservedCall) -> None:
            self._stream, self._call = stream, call

        async def __aiter__(self) -> AsyncIterator[bytes]:
            add = self._call.add
            try:
                async for data in self._stream:
                    add(data)
                    yield data
            except Exception as error:
                self._call.end("failed", error)
                raise
            self._call.end("complete")

        async def aclose(self) -> None:
            try:
                await self._stream.aclose()
            finally:
                self._call.end("cancelled")

    return TeedStream, TeedAsyncStream


# ── Clients ──────────────────────────────────────────────────────────────────────────────────────


def is_client(value: Any) -> bool:
    """Whether it is a client of one of the packages."""
    names = {base.__module__.partition(".")[0] for base in type(value).__mro__}
    return bool(names & {*PACKAGES}) and hasattr(value, "_transport") and hasattr(value, "_mounts")


def observe_client(client: Any, observation: Observation) -> None:
    """Wraps the transports of a client: the one it has, and those for proxies. An observation
    that it had before is replaced."""
    client._transport = _wrapped(client._transport, observation)
    for pattern, transport in client._mounts.items():
        if transport is not None:
            client._mounts[pattern] = _wrapped(transport, observation)


def _wrapped(transport: Any, observation: Observation) -> ObservedTransport:
    inner = transport.inner if isinstance(transport, ObservedTransport) else transport
    return ObservedTransport(inner, observation)


def hooks() -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    """Functions that `observing` replaces: class, name, and a wrapper for the old function."""
    for package in PACKAGES:
        try:
            module = importlib.import_module(package)
        except ImportError:
            continue
        yield module.Client, "_transport_for_url", _transport_hook
        yield module.AsyncClient, "_transport_for_url", _transport_hook


def _transport_hook(original: Any) -> Any:
    @functools.wraps(original)
    def transport_for_url(client: Any, url: Any) -> Any:
        transport = original(client, url)
        if isinstance(transport, ObservedTransport) or not active():
            return transport
        return ObservedTransport(transport)

    return transport_for_url
