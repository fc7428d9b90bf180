"""Client-side rate limits: requests and tokens per minute and concurrent calls, for a provider and
for single models, from the configuration and from the provider's response headers.

    async with gate.admit(tokens, deadline, on_wait) as admission:
        response = ...
        admission.update(response.headers, time.time())
        admission.settle(reply.usage)

`Limiter` is the arithmetic, without a clock; `Gate` lets calls wait for it. A call that nothing
limits costs a few microseconds: no task, no future, no timer.

Configured limits hold for every window of 60 seconds. A whole minute's quota may be sent at once,
then nothing until the first calls are a minute old. That is stricter than a token bucket and than
counting by calendar minute, so a provider that uses either does not refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from types import TracebackType
from typing import Self

import msgspec

from anaphora.catalog import CacheRules
from anaphora.client.config import LimitsConfig
from anaphora.errors import AnaphoraError
from anaphora.values import Usage
from anaphora.wire.response_headers import read_limits

from .limiter import Limiter
from .waiting import WaitingCalls
from .windows import SCARCE, ModelLane, Reservation

__all__ = ["Admission", "Gate", "Limiter", "ModelLane", "Reservation"]


class Gate(msgspec.Struct, frozen=True, eq=False):
    """The limits of one model, behind those of its provider."""

    limiter: Limiter
    lane: ModelLane
    waiting: WaitingCalls

    @classmethod
    def of(cls, limits: LimitsConfig, clock: Callable[[], float] = monotonic) -> Gate:
        """A provider's gate, for calls of no particular model. Deadlines are on `clock`."""
        limiter = Limiter(limits)
        return cls(limiter, limiter.lane(""), WaitingCalls(limiter, clock))

    def of_model(self, name: str, rules: CacheRules | None = None) -> Gate:
        """A model's gate behind the same provider limits. `rules` define how tokens are counted."""
        counts = rules is None or rules.reads_limited is None or rules.reads_limited.value
        return Gate(self.limiter, self.limiter.lane(name, counts_reads=counts), self.waiting)

    @property
    def counts_tokens(self) -> bool:
        """Whether a call that arrives now may be limited, so that its tokens have to be counted."""
        limiter, lane = self.limiter, self.lane
        if limiter.shared is not None or lane.own is not None or lane.stated:
            return True
        return limiter.waiting > 0 or self.waiting.clock() < lane.blocked_until

    def wait(self, tokens: int) -> float:
        """Seconds until the limits let a call arriving now start, with no regard to those that
        wait."""
        return self.limiter.wait(self.lane, tokens, self.waiting.clock())

    def admit(
        self,
        tokens: int,
        deadline: float | None = None,
        on_wait: Callable[[float], None] | None = None,
    ) -> Admission:
        """For `async with`. Raises `Throttled` at once if the wait would exceed the deadline.

        `on_wait` is called before the wait with the seconds that it takes at least: calls before
        it, and running ones that have to end, take an unknown time. A wait that is longer ends with
        `Throttled` at the deadline.
        """
        return Admission(self, tokens, deadline, on_wait)


class Admission(msgspec.Struct, eq=False):
    """The admission of one call. Used once."""

    gate: Gate
    tokens: int
    deadline: float | None
    _on_wait: Callable[[float], None] | None
    call: Reservation | None = None
    """None if nothing limits the call."""
    queued: float = 0.0
    """Seconds that the call waited."""

    async def __aenter__(self) -> Self:
        gate = self.gate
        if gate.counts_tokens:
            now = gate.waiting.clock()
            call = self.call = gate.limiter.reserve(gate.lane, self.tokens, now)
            if call.state != "started":
                await gate.waiting.start_of(call, now, self.deadline, self._on_wait)
                self.queued = gate.waiting.clock() - now
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        gate = self.gate
        if isinstance(error, AnaphoraError):
            gate.waiting.failed(self.call, gate.lane, error)
        if self.call is not None:
            gate.waiting.settle(self.call, None)

    def update(self, headers: Mapping[str, str], epoch: float) -> None:
        """The response began: learn the limits that its headers state. `epoch` is the Unix time."""
        gate = self.gate
        if gate.lane.stated or read_limits(headers, at_most=SCARCE):
            gate.waiting.update(gate.lane, headers, epoch)

    def settle(self, usage: Usage) -> None:
        if self.call is not None:
            self.gate.waiting.settle(self.call, usage)
