"""Makes a call of an app through the client, which runs the attempts and requests the steps of
each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from types import TracebackType

import msgspec

from anaphora.client.attempts import Attempts
from anaphora.client.config import RetryConfig
from anaphora.client.costs.settling import reads_on
from anaphora.client.in_flight import AttemptCaller, InFlight, PreparedRequest, TurnRequest
from anaphora.client.limits import Admission
from anaphora.client.target import Target
from anaphora.daemon.calls.call import AppCall, AppReply, CallOutcome, StreamPiece
from anaphora.daemon.calls.pipeline import CallPipeline, CallStep, CallTools
from anaphora.daemon.faces import face_of
from anaphora.daemon.faces.framing import UsageFilter, WholeEvents, WholeFrames
from anaphora.errors import Throttled, Timeout
from anaphora.values import Reply, ReplyEnd

from .answer import JudgeCache, stream_head, stream_piece

ADAPTER = "daemon"
_ANSWERED = CallOutcome()


class FairAdmission(msgspec.Struct, eq=False):
    """At most one call of an app waits for the rate limits of a provider, so that the calls of
    several apps start in turn. Wraps an `Admission`."""

    _admission: Admission
    lock: asyncio.Lock

    async def __aenter__(self) -> Admission:
        admission, began = self._admission, time.monotonic()
        seconds = None if admission.deadline is None else max(0.0, admission.deadline - began)
        try:
            async with asyncio.timeout(seconds):
                await self.lock.acquire()
        except TimeoutError:
            reason = "other calls of the app waited for the rate limits until the deadline"
            raise Throttled(reason, wait=0.0) from None
        try:
            await admission.__aenter__()
        finally:
            self.lock.release()
        admission.queued = time.monotonic() - began
        return admission

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._admission.__aexit__(kind, error, traceback)


class SendAttempt(CallStep):
    """Notes that the attempt may reach its provider from now on."""

    name = "send"

    async def before(self, call: AppCall) -> None:
        call.sent, call.written = True, False


class ClientCall(AttemptCaller):
    """Makes one call of an app to the targets found for it."""

    guards = True

    def __init__(self, pipeline: CallPipeline, tools: CallTools, call: AppCall) -> None:
        self._pipeline = pipeline
        self._tools = tools
        self._call = call

    def _begin(self, *, stream: bool) -> InFlight:
        call = self._call
        request = TurnRequest(timeout=call.timeout, adapter=ADAPTER)
        flight = call.flight = InFlight(request, call.targets, stream)
        call.began = time.monotonic()
        return flight

    def _attempts(self, flight: InFlight) -> Attempts:
        timeout = self._call.timeout
        if timeout is None:
            timeout = flight.targets[0].endpoint.config.timeouts.total
        return Attempts(flight, self, timeout=timeout)

    async def complete(self) -> AppReply:
        call, flight = self._call, self._begin(stream=False)
        try:
            await self._attempts(flight).complete()
            await self._answered(flight)
        except BaseException as problem:
            self._failed(flight, problem)
            raise
        assert call.reply is not None
        return call.reply

    async def pieces(self) -> AsyncGenerator[StreamPiece, None]:
        """The response in pieces. The call's head is set with the first, its reply with the
        last."""
        call, flight = self._call, self._begin(stream=True)
        try:
            attempts = self._attempts(flight)
            async with aclosing(attempts.stream()) as pieces:
                whole: WholeEvents | WholeFrames | UsageFilter = WholeEvents()
                async for found in pieces:
                    events, data = tuple(found), attempts.data
                    if events and isinstance(events[-1], ReplyEnd):
                        attempts.answered(events[-1].reply)
                    if call.head is None:
                        call.head = stream_head(call, flight, events)
                        whole = face_of(call.head.wire).whole_events()
                        whole = UsageFilter() if call.hides_usage else whole
                    if flight.reply is not None and call.reply is None:
                        await self._answered(flight)
                    if call.left is None:
                        yield stream_piece(call, events, whole.feed(data))
                if call.left is None and (rest := whole.close()):
                    yield stream_piece(call, (), rest)
        except BaseException as problem:
            self._failed(flight, problem)
            raise

    async def _answered(self, flight: InFlight) -> None:
        judge = self._pipeline.steps.get("judge")
        try:
            if isinstance(judge, JudgeCache):
                await judge.judge_ahead(self._call)
        finally:  # it was answered, even if it is cancelled now
            self._pipeline.after("answer", self._call, _ANSWERED)
            self._pipeline.after("reply", self._call, _ANSWERED)
            # Not earlier: if a step fails, `_failed` writes the row of the failed call.
            flight.observed = True

    def _failed(self, flight: InFlight, problem: BaseException) -> None:
        flight.complete_error(problem)
        outcome = CallOutcome(problem)
        self._pipeline.after("answer", self._call, outcome)
        if not flight.observed:
            flight.observed = True
            self._pipeline.after("reply", self._call, outcome)

    # ── What the client asks for ─────────────────────────────────────────────────────────────────

    async def prepare(self, flight: InFlight, index: int, again: bool) -> PreparedRequest:  # noqa: ARG002
        call = self._call
        await self._pipeline.before["prepare"](call)
        assert call.prepared is not None
        return call.prepared

    def retry_of(self, target: Target) -> RetryConfig:
        return target.endpoint.config.retry

    def admission(
        self, target: Target, tokens: int, deadline: float
    ) -> AbstractAsyncContextManager[Admission]:
        tools, gate = self._tools, target.gate
        admission = gate.admit(tokens, deadline)
        if not gate.counts_tokens:
            return admission
        return FairAdmission(admission, tools.lock(self._call.app.id, target.endpoint.id))

    async def begin(self, flight: InFlight) -> None:  # noqa: ARG002
        await self._pipeline.before["begin"](self._call)

    def sending(self) -> None:
        call = self._call
        call.written = True
        if call.hold is not None:
            call.hold.sending()

    def end(
        self,
        flight: InFlight,  # noqa: ARG002
        error: BaseException | None,
        *,
        sent: bool,
        partial: Reply | None,
    ) -> None:
        self._pipeline.after("end", self._call, CallOutcome(error, sent, partial))

    # ── An app that has gone ─────────────────────────────────────────────────────────────────────

    @property
    def is_left(self) -> bool:
        return self._call.left is not None

    def time_over(self) -> float:
        call = self._call
        if call.leave is None or call.timeout is None:
            return 0.0
        if not call.leave(Timeout(round(call.timeout * 1000))):
            return 0.0
        return seconds_to_read_on(call)


def seconds_to_read_on(call: AppCall) -> float:
    """How many seconds the answer of the current attempt is read on when the app has left. 0: the
    connection is closed, for example if nothing was sent yet."""
    flight = call.flight
    if flight is None or flight.reply is not None or call.hold is None or not call.written:
        return 0.0
    if not reads_on(flight.target, stream=flight.stream):
        return 0.0
    total = flight.target.endpoint.config.timeouts.total
    return max(0.0, call.began + total - time.monotonic())
