"""Where calls pass the limits on their way to a provider.

    async with gate.admit(tokens, deadline, on_wait) as admission:
        response = ...
        admission.update(response.headers, time.time())
        admission.settle(reply.usage)

A call that need not wait costs a few microseconds: no task, no future, no timer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from types import TracebackType
from typing import Self

from anaphora.catalog import CacheRules
from anaphora.client.config.values import LimitsConfig
from anaphora.errors import AnaphoraError, Transport
from anaphora.values import Usage

from .limiter import Limiter, ModelLane, Reservation
from .waiting import WaitingCalls


class Gate:
    """The limits of one model, behind those of its provider."""

    __slots__ = ("clock", "lane", "limiter", "waiting")

    def __init__(self, limiter: Limiter, lane: ModelLane, waiting: WaitingCalls) -> None:
        self.limiter = limiter
        self.lane = lane
        self.waiting = waiting
        self.clock = waiting.clock

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
    def counts_reads(self) -> bool:
        """Whether cached tokens count; if not, `admit` takes the number of the others."""
        return self.lane.counts_reads

    @property
    def counts_tokens(self) -> bool:
        """Whether the size of a call that arrives now matters."""
        return self.limiter.counts_tokens(self.lane, self.clock())

    def wait(self, tokens: int) -> float:
        """Seconds that a call would wait if it arrived now, as far as is known."""
        return self.limiter.wait(self.lane, tokens, self.clock())

    def admit(
        self,
        tokens: int,
        deadline: float | None = None,
        on_wait: Callable[[float], None] | None = None,
    ) -> Admission:
        """For `async with`. Raises `Throttled` at once if the wait would exceed the deadline.

        `on_wait` is called with the seconds before the call waits: 0.0 where it waits for a running
        call to end, which takes an unknown time. Such a wait ends with `Throttled` at the deadline.
        """
        return Admission(self, tokens, deadline, on_wait)


class Admission:
    """One call's passage through the gate. Used once."""

    __slots__ = ("_call", "_deadline", "_gate", "_on_wait", "_tokens", "queued")

    def __init__(
        self,
        gate: Gate,
        tokens: int,
        deadline: float | None,
        on_wait: Callable[[float], None] | None,
    ) -> None:
        self._gate = gate
        self._tokens = tokens
        self._deadline = deadline
        self._on_wait = on_wait
        self._call: Reservation | None = None
        self.queued = 0.0
        """Seconds that the call waited."""

    async def __aenter__(self) -> Self:
        gate = self._gate
        now = gate.clock()
        call = self._call = gate.limiter.reserve(gate.lane, self._tokens, now)
        if call.state != "started":
            await gate.waiting.start_of(call, now, self._deadline, self._on_wait)
            self.queued = gate.clock() - now
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        call, gate = self._call, self._gate
        if call is None or (call.state == "over" and error is None):
            return
        now = gate.clock()
        if isinstance(error, AnaphoraError):
            if isinstance(error, Transport) and error.phase == "connect":
                gate.limiter.cancel(call, now)
            elif gate.lane.block(error, now):
                gate.waiting.block(gate.lane)
        gate.limiter.settle(call, None, now)
        if gate.limiter.queue.waiting:
            gate.waiting.advance()

    def update(self, headers: Mapping[str, str], epoch: float) -> None:
        """Learn the limits that response headers state; `epoch` is the Unix time."""
        gate = self._gate
        if gate.lane.update(headers, gate.clock(), epoch) and gate.limiter.queue.waiting:
            gate.limiter.queue.outdated = True
            gate.waiting.advance()

    def settle(self, usage: Usage) -> None:
        """The call is over and was billed for `usage`."""
        gate = self._gate
        if self._call is not None:
            gate.limiter.settle(self._call, usage, gate.clock())
            if gate.limiter.queue.waiting:
                gate.waiting.advance()
