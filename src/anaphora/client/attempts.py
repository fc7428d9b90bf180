"""Sends one call: attempts, until one is answered or no target is left. `provider_errors.py` turns
providers' errors into exceptions.

Nothing is sent again once an event has reached the caller.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, aclosing
from time import monotonic
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

from anaphora.errors import (
    AnaphoraError,
    BudgetExceeded,
    Denied,
    Throttled,
    Timeout,
    Transport,
    Unavailable,
)
from anaphora.redaction import without_frames
from anaphora.values import Event, Reply, ReplyEnd, ReplyFail, ReplyStart, UsageUpdate
from anaphora.wire.response_headers import request_id_in

from .config.secrets import SecretHeaders
from .in_flight import AttemptCaller, InFlight, PreparedRequest
from .limits import Admission
from .provider_errors import name_meant_block, partial_of, read_reply, status_error, stream_error
from .response import Attempt
from .retry import AttemptFailed, RetrySteps, retry_policy
from .target import Target
from .transport import HttpResponse, read_error_body
from .transport.timer import Deadline, DeadlinePassed

if TYPE_CHECKING:
    from anaphora.wire import Reader


#: Events without content: they are held until the first one with content, so that a stream which
#: breaks before that can be retried.
_SILENT = (ReplyStart, UsageUpdate)

#: Every event that reports a failure contains it.
_FAILURE = b"error"
#: Headers of the frames of AWS's event stream that report one.
_EXCEPTION, _ERROR = b":exception-type", b":error-code"
_SLICE = 16

#: Seconds to wait for the end of a body whose reply is complete, so that the connection is reused.
_LAST_BYTES = 0.5


class Attempts:
    """Drives one call: use `complete` or `stream`, once. Both leave the reply in `flight`."""

    _flight: InFlight
    _caller: AttemptCaller
    _timeout: float
    _until: float
    """The end of the call's time, on the monotonic clock."""
    _policy: RetrySteps | None = None
    """Created at the first failure: most calls need none."""
    _prepared_again: tuple[int, ...] = ()
    """Targets whose request was prepared a second time."""
    _streamed = False
    """An event has reached the caller."""
    _attempting = _queueing = False
    """An attempt has begun; it may be waiting for rate limits."""
    _queued = _sent = 0.0
    """Seconds that the attempt waited for rate limits, and when it was sent."""
    _answer: HttpResponse | None = None
    """The attempt's response."""
    _reader: Reader | None = None
    """Reads the response, if it is a stream."""
    _admitted: Admission
    _digest: blake3
    """The hash of the body so far."""
    data = b""
    """The bytes of the events that `stream` has just yielded."""
    _key = ""
    """The call's idempotency key, the same for all its attempts."""

    def __init__(self, flight: InFlight, caller: AttemptCaller, *, timeout: float) -> None:
        if timeout <= 0:
            raise Timeout(0)  # a request that is sent and not waited for is paid for
        self._flight = flight
        self._caller = caller
        self._timeout = timeout
        self._until = monotonic() + timeout
        self._timer = flight.targets[0].endpoint.affinity.enter()
        extend = caller.time_over if caller.guards else None
        self._guard = caller if caller.guards else flight.guard
        self._deadline = Deadline(timeout, self._timer, extend)
        """Limits waits for the provider alone: the caller is not interrupted between two events."""

    async def complete(self) -> None:
        try:
            await self._deadline.wait(self._until_answered(), self._time_over)
        except BaseException as problem:
            if not self._is_late(problem):
                raise

    async def stream(self) -> AsyncGenerator[list[Event], None]:
        """The events of each piece of the response, as it arrives; `data` holds the bytes of the
        piece. Call `answered` at the last event. Bytes after that come without events. Of a piece
        with a failure, `data` lacks the last line, which quotes the provider."""
        hop = 0
        try:
            while True:
                try:
                    async with aclosing(self._stream_once(hop)) as pieces:
                        async for events in pieces:
                            yield events
                    return
                except AnaphoraError as error:
                    if self._flight.reply is not None or not self._attempting:
                        raise
                    hop = await self._deadline.wait(self._next_hop(error, hop), self._time_over)
        except BaseException as problem:
            if not self._is_late(problem):
                raise

    async def _until_answered(self) -> None:
        hop = 0
        while True:
            try:
                return await self._complete_once(hop)
            except AnaphoraError as error:
                if self._flight.reply is not None:
                    raise
                hop = await self._next_hop(error, hop)

    async def _complete_once(self, index: int) -> None:
        target = self._flight.targets[index]
        prepared = await self._prepare(index)
        async with self._admission(target, prepared) as admission:
            answer = await self._send(target, prepared, admission)
            try:
                self._response_began(answer, admission)
                fine = answer.status < 300
                data = await (answer.read() if fine else read_error_body(answer))
                reply = read_reply(target.endpoint, answer, data)
                self._flight.body = data
                self._digest.update(data)
                self.answered(reply)
            finally:
                await answer.close()

    async def _stream_once(self, index: int) -> AsyncGenerator[list[Event], None]:
        target = self._flight.targets[index]
        endpoint, late = target.endpoint, self._time_over
        prepared = await self._deadline.wait(self._prepare(index), late)
        async with self._admission(target, prepared) as admission:
            answer = await self._deadline.wait(self._send(target, prepared, admission), late)
            try:
                self._response_began(answer, admission)
                if answer.status >= 300:
                    data = await self._deadline.wait(read_error_body(answer), late)
                    raise status_error(endpoint, answer, data)
                model = endpoint.listed_model(target.model)
                reader = self._reader = endpoint.wire.reader(model)
                pieces = answer.__aiter__()
                held: list[Event] = []
                self.data = b""
                while True:
                    before = self.data
                    piece, events = await self._next_events(pieces, reader)
                    last = events[-1] if events else None
                    failure = last if isinstance(last, ReplyFail) else None
                    held += events if failure is None else events[:-1]
                    if not self._streamed:
                        for event in held:
                            if not isinstance(event, _SILENT):
                                self._streamed = True
                                break
                    if failure is not None and not self._streamed:
                        raise stream_error(failure, endpoint, answer, before + (piece or b""))
                    if self._streamed:
                        yield held
                        held, self.data = [], b""
                    if failure is not None:
                        raise stream_error(failure, endpoint, answer, None)
                    if isinstance(last, ReplyEnd):
                        self.data = await self._drain(pieces)
                        if self.data:
                            yield []
                        return
                    if piece is None:
                        return
            finally:
                await answer.close()

    async def _next_events(
        self, pieces: AsyncIterator[bytes], reader: Reader
    ) -> tuple[bytes | None, list[Event]]:
        """The next piece of a stream and its events. If the connection fails after the last event
        of the reply, the events that complete the reply."""
        failure: Transport | None = None
        try:
            piece = await self._deadline.wait(anext(pieces, None))
            return piece, self._read(reader, piece)
        except DeadlinePassed:
            pass  # its context has the frames of what was cancelled
        except Transport as problem:
            failure = problem
        events = reader.close()
        if any(isinstance(event, ReplyEnd) for event in events):
            return None, events
        partial = partial_of(events)
        if failure is None:
            raise self._time_over(partial)
        failure.partial = partial
        raise failure

    def _read(self, reader: Reader, piece: bytes | None) -> list[Event]:
        """The events in a piece of a stream; at its end, those that complete the reply. Adds the
        bytes to `data`, except the line that completes a failure."""
        if piece is None:
            return reader.close()
        self._digest.update(piece)
        events: list[Event] = []
        read = 0
        parts: Iterable[bytes] = (piece,)
        if _EXCEPTION in piece or _ERROR in piece:
            parts = (piece[at : at + _SLICE] for at in range(0, len(piece), _SLICE))
        elif _FAILURE in piece:
            parts = piece.splitlines(keepends=True)
        for part in parts:
            events += reader.feed(part)
            if events and isinstance(events[-1], ReplyFail):
                break
            read += len(part)
        self.data += piece[:read]
        return events

    async def _prepare(self, index: int) -> PreparedRequest:
        flight = self._flight
        flight.index, flight.target, flight.sent_at = index, flight.targets[index], 0.0
        self._attempting = True
        self._queued = self._sent = 0.0
        self._answer = self._reader = None
        endpoint = flight.targets[index].endpoint
        breaker = endpoint.breaker
        if not breaker.calm and (wait := breaker.enters(monotonic())):
            raise Unavailable(
                f"{endpoint.id} failed repeatedly; its circuit breaker is open for {wait:.0f} s",
                wait=wait,
            )
        prepared = flight.prepared.get(index)
        if prepared is None:
            prepared = await self._caller.prepare(flight, index, index in self._prepared_again)
            flight.prepared[index] = prepared
        return prepared

    def _admission(
        self, target: Target, prepared: PreparedRequest
    ) -> AbstractAsyncContextManager[Admission]:
        gate = target.gate
        # An earlier attempt may have learned of a limit.
        tokens = self._caller.count_tokens(target, prepared) if gate.counts_tokens else 0
        self._queueing = True
        return self._caller.admission(target, tokens, self._until)

    async def _send(
        self, target: Target, prepared: PreparedRequest, admission: Admission
    ) -> HttpResponse:
        self._queueing, self._queued = False, admission.queued
        if self._guard is not None:
            await self._guard.begin(self._flight)
        self._sent, self._flight.sent_at = monotonic(), time.time()
        outgoing = prepared.outgoing
        assert outgoing is not None
        header = target.endpoint.config.idempotency_header
        if header is not None:
            self._key = self._key or uuid.uuid4().hex
            headers = SecretHeaders({**outgoing.headers, header: self._key})
            outgoing = msgspec.structs.replace(outgoing, headers=headers)
        transport = target.endpoint.transport
        if self._guard is not None:
            # Called before any of it is written: now, if the transport would not.
            if getattr(transport, "tells_writing", False):
                outgoing = msgspec.structs.replace(outgoing, on_write=self._guard.sending)
            else:
                self._guard.sending()
        answer = self._answer = await transport.send(outgoing)
        return answer

    def _response_began(self, answer: HttpResponse, admission: Admission) -> None:
        flight = self._flight
        now = flight.first_at = time.time()
        headers = flight.headers = answer.headers
        self._admitted, self._digest = admission, blake3()
        try:
            admission.update(headers, now)
        except Exception as problem:
            flight.failed("limits_failed", problem)
        if answer.status < 300:
            self._caller.response_began()

    def answered(self, reply: Reply) -> None:
        """The reply is complete."""
        flight = self._flight
        flight.reply, flight.raw_hash = reply, self._digest.hexdigest()
        if not flight.target.profile.known:
            flight.target.endpoint.learn_model(flight.target, reply.model)
        now = monotonic()
        self._end_attempt(None, now)
        breaker = flight.target.endpoint.breaker
        if not breaker.calm:
            flight.guarded("limits_failed", None, breaker.succeeded, now)
        try:
            self._admitted.settle(reply.usage)
        except Exception as problem:
            flight.failed("limits_failed", problem)

    async def _drain(self, pieces: AsyncIterator[bytes]) -> bytes:
        """Reads the end of the body. Failures are ignored: the reply is complete."""
        if getattr(self._answer, "ended", False):
            return b""
        rest: list[bytes] = []

        async def read() -> None:
            while (piece := await anext(pieces, None)) is not None:
                rest.append(piece)

        try:
            seconds = min(_LAST_BYTES, self._until - monotonic())
            await Deadline(seconds, self._timer).wait(read())
        except (AnaphoraError, DeadlinePassed):
            pass
        return b"".join(rest)

    # ── What follows a failure ───────────────────────────────────────────────────────────────────

    async def _next_hop(self, error: AnaphoraError, index: int) -> int:
        """The next hop after a failure, after the wait before it; raises when none is left."""
        flight, now = self._flight, monotonic()
        if isinstance(error, Denied | BudgetExceeded):  # by the guard: nothing was sent
            flight.target.endpoint.breaker.left(now)
            self._end_attempt(error, now)
            raise error
        flight.target.endpoint.redactor.clean(error)
        self._hide_exchange(error)
        if not isinstance(error, Unavailable):  # which was raised before the breaker let it in
            flight.target.endpoint.breaker.failed(error, now)
        self._end_attempt(error, now)
        if self._caller.guards and self._caller.is_left:
            raise error
        prepared = flight.prepared.get(index)
        if prepared is not None and prepared.outgoing is not None and not self._caller.guards:
            name_meant_block(error, flight.targets[index].endpoint, prepared.outgoing.body)
        again = prepared is not None and isinstance(error, prepared.prepare_again_on)
        if again and not self._streamed and index not in self._prepared_again:
            del flight.prepared[index]
            self._prepared_again += (index,)
            return index
        if self._policy is None:
            retries = [self._caller.retry_of(target) for target in flight.targets]
            self._policy = retry_policy(retries, deadline=self._until, draw=random.random)
            next(self._policy)  # the attempt that failed
        try:
            step = self._policy.send(AttemptFailed(error, now, self._streamed))
        except StopIteration as end:
            final: AnaphoraError = end.value
            raise final from (None if final is error else error)
        if step.wait:
            last = flight.attempts[-1]
            flight.attempts[-1] = msgspec.structs.replace(last, wait=step.wait)
            await asyncio.sleep(step.wait)
        return step.hop

    def _time_over(self, partial: Reply | None = None) -> AnaphoraError:
        """The error at the end of the call's time: `Throttled` if rate limits used it up."""
        error: AnaphoraError = Timeout(round(self._timeout * 1000))
        error.partial = partial
        if self._queueing:
            error = Throttled("the rate limits let no call start before the deadline", wait=0.0)
        if self._attempting:
            now = monotonic()
            self._flight.target.endpoint.breaker.failed(error, now)
            self._end_attempt(error, now)
        return error

    def _is_late(self, problem: BaseException) -> bool:
        """Whether the reply was complete before the problem: then it is only reported. Otherwise
        the attempt ends here: it was cancelled, or failed inside the client."""
        if self._flight.reply is not None and isinstance(problem, Exception):
            self._flight.failed("connection_failed", problem)
            return True
        if isinstance(problem, AnaphoraError):
            self._hide_exchange(problem)
        elif self._attempting:
            now = monotonic()
            self._flight.target.endpoint.breaker.left(now)
            self._end_attempt(problem, now)
        return False

    def _hide_exchange(self, error: AnaphoraError) -> None:
        """Removes the frames of a request that was sent: their local variables may hold the
        response, which may quote the key."""
        if self._sent:
            without_frames(error)

    def _partial(self, error: BaseException) -> Reply | None:
        """The received part of a reply whose stream ended early."""
        if self._reader is None:
            return None
        partial: Reply | None = getattr(error, "partial", None)
        return partial if partial is not None else partial_of(self._reader.close())

    # ── Time, and the end of an attempt ──────────────────────────────────────────────────────────

    def _end_attempt(self, error: BaseException | None, now: float) -> None:
        """Adds the ended attempt to those of the call."""
        flight, answer = self._flight, self._answer
        target = flight.target
        request_id: str | None = getattr(error, "request_id", None)
        if request_id is None and answer is not None:
            found = request_id_in(answer.headers)
            request_id = None if found is None else target.endpoint.redactor(found)
        if error is None:
            flight.request_id = request_id
        attempt = Attempt(
            provider=target.endpoint.id,
            model=target.model,
            at=flight.sent_at or time.time(),
            seconds=now - (self._sent or now),
            queued=self._queued,
            status=answer.status if answer is not None else None,
            request_id=request_id,
            error=None if error is None else type(error).__name__,
            reason="" if error is None else target.endpoint.redactor(str(error)),
        )
        flight.attempts.append(attempt)
        self._attempting = self._queueing = False
        if self._guard is not None:
            partial = None if error is None else self._partial(error)
            self._guard.end(flight, error, sent=bool(self._sent), partial=partial)
