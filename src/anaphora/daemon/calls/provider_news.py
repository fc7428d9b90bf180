"""What one node learns of a provider, for all nodes: failures that open its circuit breaker,
successes that close it, and rate limits that block a model."""

from __future__ import annotations

from time import monotonic

import msgspec

from anaphora.client.pool import ProviderPool
from anaphora.client.retry import BreakerNews, CircuitBreaker
from anaphora.client.target import Endpoint
from anaphora.daemon.shared_state import SharedState


class _News(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    kind: str
    """`failed`, `succeeded` or `blocked`."""
    provider: str
    model: str = ""
    seconds: float = 0.0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_News).decode


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
        def tell(kind: BreakerNews) -> None:
            self._state.tell(_encode(_News(kind, endpoint.id)))

        endpoint.breaker = CircuitBreaker(endpoint.config.breaker, tell)

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
        else:
            endpoint.breaker.hear("failed" if news.kind == "failed" else "succeeded", at)
