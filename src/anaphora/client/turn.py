"""One turn: await it for the response, or iterate over it to stream.

    response = await chat.send("…")
    async for piece in chat.send("…").text: ...
    async for event in chat.send("…"): ...

A `TurnRequest` describes a turn; a `Caller` (a session, or a single call) makes it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Generic, Self

import msgspec

from anaphora.errors import AnaphoraError
from anaphora.values import Event, Notice, ReplyEnd

from .attempts import Attempts
from .budget import Budget, applying
from .in_flight import AttemptCaller, InFlight, TurnRequest
from .observe import CallAudit, EndedCall, Watchers
from .pending import Pending
from .provider_errors import name_provider
from .response import Parsed, Record, Response
from .target import Target

#: How many cycles of the event loop to wait for a stream that was left by `break`.
CLOSE_TICKS = 8


class Turn(Pending[Response[Parsed]], Generic[Parsed]):
    """A turn that is made when it is awaited or iterated over, once. Awaited again, it returns the
    same response; nothing is sent twice. `text` iterates over the pieces of its text."""

    _kind, _verb = "Turn", "send"

    def __init__(self, caller: Caller, request: TurnRequest) -> None:
        self._caller = caller
        self._request = request
        self._events: AsyncGenerator[Event, None] | None = None
        self.response: Response[Parsed] | None = None
        self._made()

    def made_by_adapter(self, adapter: str, prompt_hash: str) -> Self:
        """The turn, attributed to an adapter in audit logs."""
        self._request = msgspec.structs.replace(
            self._request, adapter=adapter, prompt_hash=prompt_hash
        )
        return self

    def __aiter__(self) -> AsyncGenerator[Event, None]:
        self._consume()
        return self._caller.stream(self._request, self)

    async def __aenter__(self) -> AsyncGenerator[Event, None]:
        """The events; the connection is closed when the block is left."""
        self._events = self.__aiter__()
        return self._events

    async def __aexit__(self, *exc_info: object) -> None:
        if self._events is not None:
            await self._events.aclose()

    async def _complete(self) -> Response[Parsed]:
        if self.response is None:
            self._consume()
            self.response = await self._caller.complete(self._request)
        return self.response


class Caller(AttemptCaller, ABC):
    """Makes calls: from a request to the response and its record."""

    def __init__(
        self, *, timeout: float | None, on_wait: Callable[[float], None] | None, watchers: Watchers
    ) -> None:
        self._timeout = timeout
        self._on_wait = on_wait
        self.watchers = watchers
        self.in_flight = False
        """Whether a call is in flight, for callers that allow only one."""
        self._is_kept = False
        """Whether the conversation is loaded before a call and stored after it."""
        self.budget: Budget | None = None
        """The budget that its calls count in, besides those of their context."""

    async def complete(self, request: TurnRequest) -> Response:
        flight = await self._begin(request, stream=False)
        try:
            if request.cold is not None:
                await self.check_cold(flight, request.cold)
            await self._attempts(flight).complete()
            response = self._respond(flight)
            return await self._stored(response) if self._is_kept else response
        except BaseException as problem:
            self._failed(flight, problem)
            raise
        finally:
            self._end()

    async def stream(self, request: TurnRequest, turn: Turn) -> AsyncGenerator[Event, None]:
        """Events as they arrive; the turn has its response before the last one."""
        flight = await self._begin(request, stream=True)
        try:
            if request.cold is not None:
                await self.check_cold(flight, request.cold)
            attempts = self._attempts(flight)
            async with aclosing(attempts.stream()) as pieces:
                async for events in pieces:
                    for event in events:
                        if isinstance(event, ReplyEnd):
                            attempts.answered(event.reply)
                            turn.response = self._respond(flight)
                            if self._is_kept:
                                turn.response = await self._stored(turn.response)
                        yield event
            if turn.response is not None:
                # The connection may have failed after the last event.
                turn.response = self._noted(turn.response, flight.take_notices())
        except BaseException as problem:
            self._failed(flight, problem)
            raise
        finally:
            self._end()

    async def _begin(self, request: TurnRequest, *, stream: bool) -> InFlight:
        if self.in_flight:
            await self._settled()
        if self.watchers.audit is not None:
            self.watchers.audit.check()
        if self._is_kept:
            await self.load()
        flight = InFlight(request, self._targets_for(request), stream)
        if budgets := applying(self.budget):
            from .costs.holds import BudgetGuard

            flight.guard = BudgetGuard(budgets, self)
        return flight

    @abstractmethod
    def _targets_for(self, request: TurnRequest) -> Sequence[Target]:
        """The targets of the call, the best first. Raises if no call may be made now."""

    @abstractmethod
    def _finish(self, flight: InFlight) -> Response:
        """Remembers and parses a complete reply. Sets `flight.record` before anything can fail;
        raises nothing but `Parse`."""

    async def load(self) -> None:
        """Loads the conversation, once. Never fails."""

    async def _stored(self, response: Response) -> Response:
        """Stores the conversation after a response, with a notice if that fails."""
        return response

    def _end(self) -> None:
        """The call is over, however it ended."""

    async def _settled(self) -> None:
        """Waits until the event loop has closed a stream that was left by `break`."""
        for _ in range(CLOSE_TICKS):
            await asyncio.sleep(0)
            if not self.in_flight:
                return

    def _attempts(self, flight: InFlight) -> Attempts:
        timeout = flight.request.timeout
        if timeout is None:
            timeout = self._timeout
        if timeout is None:
            timeout = flight.targets[0].endpoint.config.timeouts.total
        return Attempts(flight, self, timeout=timeout)

    def _respond(self, flight: InFlight) -> Response:
        response = self._finish(flight)
        flight.observed = True
        if self.watchers or self.watchers.audit is not None:
            return self._noted(response, self._observe(flight, response.record))
        return response

    def _noted(self, response: Response, notices: tuple[Notice, ...]) -> Response:
        """The response with notices of steps after `_finish`."""
        return response.with_notices(notices) if notices else response

    def _observe(self, flight: InFlight, record: Record) -> tuple[Notice, ...]:
        """Reports a call that is over to watchers and to the audit log."""
        notices = self.watchers(record) if self.watchers else ()
        audit = self.watchers.audit
        if audit is None:
            return notices
        notices += flight.guarded("audit_failed", (), self._audit, audit, flight, record)
        return notices + flight.take_notices()

    def _audit(self, audit: CallAudit, flight: InFlight, record: Record) -> tuple[Notice, ...]:
        return audit.call_ended(self._ended(flight, record))

    def _ended(self, flight: InFlight, record: Record) -> EndedCall:
        return flight.ended_call(record)

    def _failed(self, flight: InFlight, problem: BaseException) -> None:
        """Completes and reports the error of a failed call."""
        flight.complete_error(problem)
        if not flight.observed:
            flight.observed = True
            if self.watchers or self.watchers.audit is not None:
                self._observe(flight, flight.failed_record(problem))
        if flight.attempts and isinstance(problem, AnaphoraError):
            name_provider(problem, flight.target)
