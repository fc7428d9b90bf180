"""Admits attempts through a provider's rate limits, alternating between apps, over all nodes. Also
shares what one node learns about a provider: failures that open its circuit breaker, successes that
close it, and rate limits that block a model."""

from __future__ import annotations

import asyncio
from time import monotonic
from types import TracebackType

import msgspec

from anaphora.client.config import LimitsConfig, Rate
from anaphora.client.limits import Admission
from anaphora.client.pool import ProviderPool
from anaphora.client.retry import BreakerNews, CircuitBreaker
from anaphora.client.target import Endpoint, Target
from anaphora.daemon.shared_state import MinuteLimit, SharedState, Taken
from anaphora.errors import Denied, RateLimited, Throttled, Transport
from anaphora.values import Usage


class _News(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    kind: str
    """`failed`, `succeeded` or `blocked`."""
    provider: str
    model: str = ""
    seconds: float = 0.0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_News).decode


class ProviderNews:
    """Exchanges news about providers with other nodes. Does nothing on a single node."""

    def __init__(self, pool: ProviderPool, state: SharedState) -> None:
        self._pool = pool
        self._state = state
        if not state.alone:
            pool.on_endpoint = self._attach
            state.listen(self._hear)

    def blocked(self, provider: str, model: str, seconds: float) -> None:
        """Tells that the provider accepts no calls of a model for `seconds`."""
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


#: Seconds for which other nodes count a call without a deadline as running.
_LONGEST = 3600.0


class SharedLimits(msgspec.Struct, frozen=True, eq=False):
    """The configured limits of a target, shared by all nodes."""

    state: SharedState
    news: ProviderNews
    provider: str
    model: str
    limits: tuple[tuple[str, MinuteLimit], ...]

    @classmethod
    def of(cls, state: SharedState, news: ProviderNews, target: Target) -> SharedLimits:
        provider, model, config = target.endpoint.id, target.model, target.endpoint.config.limits
        rates: list[tuple[str, Rate | LimitsConfig]] = [(f"provider {provider}", config)]
        if model in config.models:
            rates.append((f"model {provider} {model}", config.models[model]))
        limits = tuple(
            (name, MinuteLimit(rate.requests_per_minute, rate.tokens_per_minute, rate.concurrency))
            for name, rate in rates
            if rate.requests_per_minute or rate.tokens_per_minute or rate.concurrency
        )
        return cls(state, news, provider, model, limits)


class FairAdmission(msgspec.Struct, eq=False):
    """At most one call of an app waits for the rate limits of a provider, so that the calls of
    several apps start in turn. Wraps an `Admission`."""

    _admission: Admission
    lock: asyncio.Lock | None = None
    """None if nothing limits the call."""
    shared: SharedLimits | None = None
    """None on a single node."""
    _taken: list[Taken] = msgspec.field(default_factory=list)

    async def __aenter__(self) -> Admission:
        lock, admission = self.lock, self._admission
        if self.shared is not None and self.shared.limits:
            admission.on_settle = self._correct
        if lock is None:
            return await admission.__aenter__()
        began = monotonic()
        seconds = None if admission.deadline is None else max(0.0, admission.deadline - began)
        try:
            async with asyncio.timeout(seconds):
                await lock.acquire()
        except TimeoutError:
            reason = "other calls of the app waited for the rate limits until the deadline"
            raise Throttled(reason, wait=0.0) from None
        try:
            await admission.__aenter__()
            if self.shared is not None and self.shared.limits:
                await self._take(self.shared)
        finally:
            lock.release()
        admission.queued = monotonic() - began
        return admission

    async def _take(self, shared: SharedLimits) -> None:
        """Waits until the limits shared by all nodes admit this call."""
        admission = self._admission
        try:
            for name, limit in shared.limits:
                while True:
                    now = monotonic()
                    left = _LONGEST if admission.deadline is None else admission.deadline - now
                    taken = await shared.state.take(name, limit, admission.tokens, seconds=left)
                    if not taken.wait:
                        self._taken.append(taken)
                        break
                    if taken.wait > left:
                        reason = "the rate limits, which all nodes share, would delay the call by"
                        raise Throttled(
                            f"{reason} {taken.wait:.1f} s, beyond its deadline", wait=taken.wait
                        )
                    await asyncio.sleep(taken.wait)
        except BaseException:
            self._give_back(unsent=True)
            if admission.call is not None:
                gate = admission.gate
                gate.limiter.cancel(admission.call, gate.waiting.clock())
                gate.waiting.advance()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._admission.__aexit__(kind, error, traceback)
        shared, gate = self.shared, self._admission.gate
        if shared is None:
            return
        self._give_back(
            unsent=isinstance(error, Denied)
            or (isinstance(error, Transport) and error.phase == "connect")
        )
        if isinstance(error, RateLimited):
            wait = gate.lane.blocked_until - gate.waiting.clock()
            if wait > 0:
                shared.news.blocked(shared.provider, shared.model, wait)

    def _correct(self, usage: Usage) -> None:
        counted = self._admission.gate.lane.counted(usage)
        if self.shared is not None and counted is not None:
            for taken in self._taken:
                self.shared.state.correct(taken, counted)

    def _give_back(self, *, unsent: bool) -> None:
        """Returns the call's share: all of it if the call was not sent."""
        if self.shared is not None:
            for taken in self._taken:
                if unsent:
                    self.shared.state.correct(taken, 0)
                self.shared.state.release(taken)
            self._taken = []
