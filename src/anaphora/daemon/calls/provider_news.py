"""What one node learns of a provider, for all nodes: failures that open its circuit breaker,
successes that close it, and rate limits that block a model."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import msgspec

from anaphora.client.config import BreakerConfig
from anaphora.client.pool import ProviderPool
from anaphora.client.retry import CircuitBreaker
from anaphora.client.target import Endpoint
from anaphora.daemon.shared_state import SharedState
from anaphora.errors import AnaphoraError, Overloaded, Transport


class _News(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    kind: str
    """`failed`, `succeeded` or `blocked`."""
    provider: str
    model: str = ""
    seconds: float = 0.0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_News).decode


class SharedBreaker(CircuitBreaker):
    """A breaker that counts the failures of all nodes."""

    __slots__ = ("_tell",)

    def __init__(self, settings: BreakerConfig, tell: Callable[[str], None]) -> None:
        super().__init__(settings)
        self._tell = tell

    def failed(self, error: AnaphoraError, at: float) -> None:
        before = self.state(at)
        super().failed(error, at)
        if isinstance(error, Overloaded | Transport):
            self._tell("failed")
        elif before == "half open" and self.state(at) == "closed":
            self._tell("succeeded")

    def succeeded(self, at: float) -> None:
        super().succeeded(at)
        self._tell("succeeded")

    def hear(self, kind: str, at: float) -> None:
        """Another node's call failed or succeeded."""
        if kind == "failed":
            self._count(at)
        else:
            super().succeeded(at)


class ProviderNews:
    """Tells other nodes, and listens to them. Without others it does nothing."""

    def __init__(self, pool: ProviderPool, state: SharedState) -> None:
        self._pool = pool
        self._state = state
        if not state.alone:
            pool.on_endpoint = self._attach
            state.listen(self._hear)

    def blocked(self, provider: str, model: str, seconds: float) -> None:
        """The provider takes no calls of a model for so long."""
        self._state.tell(_encode(_News("blocked", provider, model, seconds)))

    def _attach(self, endpoint: Endpoint) -> None:
        def tell(kind: str) -> None:
            self._state.tell(_encode(_News(kind, endpoint.id)))

        endpoint.breaker = SharedBreaker(endpoint.config.breaker, tell)

    def _hear(self, data: bytes, age: float) -> None:
        try:
            news = _decode(data)
        except (msgspec.DecodeError, UnicodeError):
            return  # of another version
        resolved = self._pool.providers.get(news.provider)
        if resolved is None:
            return
        endpoint, at = self._pool.endpoint(resolved), monotonic() - age
        if news.kind == "blocked":
            endpoint.block(news.model, at + news.seconds)
        elif isinstance(endpoint.breaker, SharedBreaker):
            endpoint.breaker.hear(news.kind, at)
