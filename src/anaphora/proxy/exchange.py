"""The interfaces around the relay.

A request goes from the program to an `Upstream` and back. When it has ended, each `Observer` gets
the `RelayedCall`: the bytes of both directions as they passed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

from anaphora.traffic.calls import Headers, RelayedCall, UpstreamRequest


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
