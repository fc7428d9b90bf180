"""One call that the proxy relays, and the interfaces around the relay.

A request goes from the program to an `Upstream` and back. When it has ended, each `Observer` gets
the `RelayedCall`: the bytes of both directions as they passed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from anaphora.values import Notice

#: Larger bodies are relayed, but not kept for observers.
KEPT_BYTES = 32 * 1024 * 1024

#: Names in lower case, duplicates kept, in the order they were sent.
Headers: TypeAlias = tuple[tuple[str, str], ...]


def header_of(headers: Headers, name: str) -> str:
    """The value of a header, the last where it is sent twice; empty where it is missing."""
    return next((value for each, value in reversed(headers) if each == name), "")


class ProxyRoute(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests below a path prefix go. Only configuration decides that, never a request."""

    prefix: str
    """The first step of the path, `/anthropic`; empty for the default route of a wire's paths."""
    provider: str
    """A provider of the catalog; empty where it is not known, and calls are not judged."""
    upstream: str
    """The base URL, such as https://api.anthropic.com."""


class UpstreamRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A request as it goes upstream, credentials included. Its repr shows neither headers nor
    query."""

    method: str
    route: ProxyRoute
    path: str
    """As it goes upstream, still percent-encoded, without the query."""
    query: str
    """As it was sent, which may hold a key."""
    headers: Headers
    body: bytes | AsyncIterator[bytes]
    """Pieces where it is too large to keep; for the network also where it is still arriving."""

    def __repr__(self) -> str:
        return f"<UpstreamRequest {self.method} {self.route.upstream}{self.path}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("method", self.method), ("path", self.path)]


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
        """Ends the exchange; upstream stops generating where the body was not read to its end."""
        ...


class Upstream(Protocol):
    """The provider over the network, or recordings of it. Raises `errors.Transport`."""

    async def send(self, request: UpstreamRequest) -> UpstreamResponse: ...
    async def close(self) -> None: ...


class Piece(msgspec.Struct, frozen=True):
    """A part of a response, and when it came: seconds after the request was sent."""

    seconds: float
    data: bytes


class RelayedCall(msgspec.Struct, kw_only=True, eq=False):
    """A request and its response, as they passed. Never written anywhere as it is: headers and
    query hold keys."""

    number: int
    started: float
    """Seconds since 1970."""
    method: str
    route: ProxyRoute
    path: str
    query: str
    request_headers: Headers
    request_body: bytes | None
    """As it was received, before markers were placed; None where it was too large to keep, or did
    not arrive to its end."""
    sent_body: bytes | None = None
    """What went upstream, where that differs: markers were placed."""
    status: int = 0
    """0 where no response began."""
    response_headers: Headers = ()
    pieces: list[Piece] | None = None
    """Still content-encoded; None where the response was too large to keep."""
    began: float | None = None
    """When the response's headers came, in seconds after the request was sent."""
    ended: float = 0.0
    outcome: Literal["complete", "cancelled", "failed"] = "complete"
    """`cancelled`: the program went away. `failed`: upstream did not answer, or not to its end."""
    error: str = ""
    """Why it failed, without secrets."""
    notices: tuple[Notice, ...] = ()
    """Addresses in the response that bypass the proxy: what is sent there is not seen."""

    def __repr__(self) -> str:
        return f"<RelayedCall {self.number} {self.method} {self.path} {self.status}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("number", self.number), ("method", self.method), ("path", self.path)]


class Observer(Protocol):
    """Called for each call after it ended, in the order they ended, beside the relay: in a thread
    of its own. What it raises is logged and does not affect the relay."""

    def call_ended(self, call: RelayedCall) -> None: ...


@runtime_checkable
class PreparingObserver(Protocol):
    """An observer that does more at once for several calls than for each of them."""

    def prepare(self, calls: Sequence[RelayedCall]) -> None:
        """Called before `call_ended` for each of these calls, in this order."""
        ...


@runtime_checkable
class IdleWorker(Protocol):
    """An observer with work that is not urgent, which is done while there is no call to observe."""

    def work_left(self) -> bool:
        """Does a small part of it, and says whether there is more."""
        ...
