"""Sends one call: attempts, waits and fallbacks, until it is answered or fails.

The policy (`retry.retry_policy`) decides what comes next and never sleeps; this module acts on it.
Nothing is sent again once an event has reached the caller.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from time import monotonic
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec
from blake3 import blake3

from anaphora.errors import (
    AnaphoraError,
    Denied,
    Throttled,
    Timeout,
    Transport,
    Unavailable,
)
from anaphora.redaction import without_frames
from anaphora.values import Event, Reply, ReplyEnd, ReplyFail, ReplyStart, UsageUpdate

from .config.secrets import SecretHeaders
from .endpoint import Target
from .failures import partial_of, read_reply, status_error, stream_error
from .in_flight import InFlight, PreparedRequest
from .limits import Admission
from .response import Attempt
from .retry import AttemptFailed, RetrySteps, retry_policy
from .transport import HttpResponse
from .transport.timer import Deadline, DeadlinePassed

if TYPE_CHECKING:
    from anaphora.wire import Reader

    from .observe import AttemptGuard
    from .turn import Caller

T = TypeVar("T")

#: Events without content: they are held until the first one with content, so that a stream which
#: breaks before that can be retried.
_SILENT = (ReplyStart, UsageUpdate)

#: In every event that reports a failure.
_FAILURE = b"error"

#: Seconds to wait for the end of a body whose reply is complete, so that the connection is reused.
_LAST_BYTES = 0.5

#: Headers in which providers name a request.
REQUEST_IDS = ("request-id", "x-request-id", "x-goog-request-id", "apim-request-id")


class _RawPiece(msgspec.Struct, frozen=True):
    """The bytes that the events before it came in."""

    data: bytes


class Attempts:
    """Drives one call: use `complete`, `stream` or `pieces`, once. All leave the reply in
    `flight`."""

    def __init__(
        self,
        flight: InFlight,
        caller: Caller,
        *,
        timeout: float,
        on_wait: Callable[[float], None] | None = None,
        guard: AttemptGuard | None = None,
    ) -> None:
        if timeout <= 0:
            raise Timeout(0)  # a request that is sent and not waited for is paid for
        self._flight = flight
        self._caller = caller
        self._timeout = timeout
        self._on_wait = on_wait
        self._guard = guard
        self._reader: Reader | None = None
        """Of the stream of this attempt."""
        self._tee = False
        """Raw pieces follow their events."""
        self._read = 0
        """Bytes of the newest piece whose events have been read."""
        self._until = monotonic() + timeout
        self._timer = flight.targets[0].endpoint.affinity.enter()
        self._deadline = Deadline(timeout, self._timer)
        self._whole: set[int] = set()
        self._policy: RetrySteps | None = None
        """Created when something has failed: most calls need none."""
        self._streamed = False
        """An event has reached the caller."""
        self._attempting = self._queueing = False
        """An attempt has begun; it waits for rate limits."""
        self._queued = self._sent = 0.0
        self._answer: HttpResponse | None = None
        self._key = ""
        """The call's idempotency key: of all its attempts, and of no other call."""

    async def complete(self) -> None:
        try:
            await self._in_time(self._until_answered())
        except BaseException as problem:
            if not self._is_late(problem):
                raise

    def stream(self) -> AsyncGenerator[Event, None]:
        """Events as they come; `flight.reply` is set before the last of them."""
        return cast("AsyncGenerator[Event, None]", self._stream())

    async def pieces(self) -> AsyncGenerator[tuple[tuple[Event, ...], bytes], None]:
        """The same by pieces of the response, as they arrive: the events, and the bytes they came
        in. Bytes behind the last event come without any; of a piece with a failure, which quotes
        the provider, those before the last line of it."""
        self._tee = True
        events: list[Event] = []
        async with aclosing(self._stream()) as stream:
            try:
                async for each in stream:
                    if isinstance(each, _RawPiece):
                        yield tuple(events), each.data
                        events.clear()
                    else:
                        events.append(each)
            except AnaphoraError:
                if events:
                    yield tuple(events), b""
                raise

    async def _stream(self) -> AsyncGenerator[Event | _RawPiece, None]:
        hop = 0
        try:
            while True:
                try:
                    async with aclosing(self._stream_once(hop)) as events:
                        async for event in events:
                            yield event
                    return
                except AnaphoraError as error:
                    if self._flight.reply is not None or not self._attempting:
                        raise
                    hop = await self._in_time(self._next_hop(error, hop))
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
                data = await answer.read()
                reply = read_reply(target.endpoint, answer, data)
                self._flight.body = data
                self._answered(reply, blake3(data).hexdigest(), answer, admission)
            finally:
                await answer.close()

    async def _stream_once(self, index: int) -> AsyncGenerator[Event | _RawPiece, None]:
        target = self._flight.targets[index]
        endpoint, prepared = target.endpoint, await self._in_time(self._prepare(index))
        async with self._admission(target, prepared) as admission:
            answer = await self._in_time(self._send(target, prepared, admission))
            try:
                self._response_began(answer, admission)
                if answer.status >= 300:
                    data = await self._in_time(answer.read())
                    raise status_error(endpoint, answer, data)
                reader, digest = endpoint.wire.reader(), blake3()
                self._reader = reader
                held: list[Event] = []
                head = bytearray()
                pieces = answer.__aiter__()
                while True:
                    piece, events = await self._next_events(pieces, reader)
                    if piece is not None:
                        digest.update(piece)
                        if not self._streamed:
                            head += piece
                    for event in events:
                        if isinstance(event, ReplyFail):
                            begun = self._streamed
                            if begun and self._tee:
                                yield _RawPiece(self._before_failure(bytes(head), piece))
                            raise stream_error(event, endpoint, answer, None if begun else head)
                        if isinstance(event, ReplyEnd):
                            self._answered(event.reply, digest.hexdigest(), answer, admission)
                        if not self._streamed:
                            if isinstance(event, _SILENT):
                                held.append(event)
                                continue
                            self._streamed = True
                            for silent in held:
                                yield silent
                        yield event
                        if self._flight.reply is not None:
                            break
                    if self._tee and self._streamed:
                        yield _RawPiece(bytes(head) if head else piece or b"")
                        head.clear()
                    if self._flight.reply is not None:
                        for rest in await self._drain(pieces):
                            yield _RawPiece(rest)
                        return
                    if piece is None:
                        return
            finally:
                await answer.close()

    async def _next_events(
        self, pieces: AsyncIterator[bytes], reader: Reader
    ) -> tuple[bytes | None, Iterable[Event]]:
        """The next piece of a stream, and its events. Where the connection fails after the last
        event of the reply, these are the events that complete it."""
        failure: Transport | None = None
        try:
            piece = await self._deadline.wait(anext(pieces, None))
            return piece, self._events(reader, piece)
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

    def _events(self, reader: Reader, piece: bytes | None) -> Iterator[Event]:
        """The events in a piece of a stream; at its end, those that complete the reply."""
        self._read = 0
        if piece is None:
            yield from reader.close()
        elif self._tee and _FAILURE in piece:
            for line in piece.splitlines(keepends=True):
                yield from reader.feed(line)
                self._read += len(line)
        else:
            yield from reader.feed(piece)

    def _before_failure(self, head: bytes, piece: bytes | None) -> bytes:
        """What came before the line that completed a failure, in the bytes not yet passed on."""
        if piece is None:
            return head
        return (head[: -len(piece)] if head else b"") + piece[: self._read]

    async def _prepare(self, index: int) -> PreparedRequest:
        flight = self._flight
        flight.index, flight.sent_at = index, 0.0
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
            prepared = await self._caller.prepare(flight, index, index in self._whole)
            flight.prepared[index] = prepared
        return prepared

    def _admission(self, target: Target, prepared: PreparedRequest) -> Admission:
        gate = target.gate
        # An earlier attempt may have learned of a limit.
        tokens = self._caller.count_tokens(target, prepared) if gate.counts_tokens else 0
        self._queueing = True
        return self._caller.admission(target, tokens, self._until, self._on_wait)

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
        answer = self._answer = await target.endpoint.transport.send(outgoing)
        return answer

    def _response_began(self, answer: HttpResponse, admission: Admission) -> None:
        now = self._flight.first_at = time.time()
        self._flight.headers = answer.headers
        self._flight.guarded(
            "limits_failed", None, admission.update, answer.status, answer.headers, now
        )
        if answer.status < 300:
            self._caller.response_began()

    def _answered(
        self, reply: Reply, raw_hash: str, answer: HttpResponse, admission: Admission
    ) -> None:
        flight = self._flight
        flight.reply, flight.raw_hash = reply, raw_hash
        headers, redactor = answer.headers, flight.target.endpoint.redactor
        flight.request_id = next(
            (redactor(headers[name]) for name in REQUEST_IDS if name in headers), None
        )
        now = monotonic()
        self._over(None, now, flight.request_id)
        breaker = flight.target.endpoint.breaker
        if not breaker.calm:
            flight.guarded("limits_failed", None, breaker.succeeded, now)
        flight.guarded("limits_failed", None, admission.settle, reply.usage)

    async def _drain(self, pieces: AsyncIterator[bytes]) -> list[bytes]:
        """Reads the end of the body, and returns it for a tee. The reply is complete, whatever
        happens here."""
        rest: list[bytes] = []

        async def read() -> None:
            while (piece := await anext(pieces, None)) is not None:
                if self._tee:
                    rest.append(piece)

        try:
            seconds = min(_LAST_BYTES, self._until - monotonic())
            await Deadline(seconds, self._timer).wait(read())
        except (AnaphoraError, DeadlinePassed):
            pass
        return rest

    async def _next_hop(self, error: AnaphoraError, index: int) -> int:
        """Where to send next after a failure, once it is time; raises when nothing is left to
        try."""
        flight, now = self._flight, monotonic()
        if isinstance(error, Denied):  # by the guard: nothing was sent
            flight.target.endpoint.breaker.left(now)
            self._over(error, now)
            raise error
        flight.target.endpoint.redactor.clean(error)
        self._hide_exchange(error)
        if not isinstance(error, Unavailable):  # which was raised before the breaker let it in
            flight.target.endpoint.breaker.failed(error, now)
        self._over(error, now)
        prepared = flight.prepared.get(index)
        again = prepared is not None and isinstance(error, prepared.prepare_again_on)
        if again and not self._streamed and index not in self._whole:
            del flight.prepared[index]
            self._whole.add(index)
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

    async def _in_time(self, awaitable: Awaitable[T]) -> T:
        """The result, unless the call's time ends first. Only waits for the provider are limited:
        the caller is not interrupted between two events."""
        try:
            return await self._deadline.wait(awaitable)
        except DeadlinePassed:
            pass  # its context has the frames of what was cancelled
        raise self._time_over()

    def _time_over(self, partial: Reply | None = None) -> AnaphoraError:
        """The error at the end of the call's time: `Throttled` where rate limits used it up."""
        error: AnaphoraError = Timeout(round(self._timeout * 1000))
        error.partial = partial
        if self._queueing:
            error = Throttled("no place became free in the time that the call may take", wait=0.0)
        if self._attempting:
            now = monotonic()
            self._flight.target.endpoint.breaker.failed(error, now)
            self._over(error, now)
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
            self._over(problem, now)
        return False

    def _hide_exchange(self, error: AnaphoraError) -> None:
        """Removes the frames of a request that was sent: their local variables may hold what the
        provider responded, which may quote the key."""
        if self._sent:
            without_frames(error)

    def _over(self, error: BaseException | None, now: float, request_id: str | None = None) -> None:
        """Adds the attempt that ended to those of the call."""
        flight, answer = self._flight, self._answer
        target = flight.target
        attempt = Attempt(
            provider=target.endpoint.id,
            model=target.model,
            at=flight.sent_at or time.time(),
            seconds=now - (self._sent or now),
            queued=self._queued,
            status=answer.status if answer is not None else None,
            request_id=request_id or getattr(error, "request_id", None),
            error=None if error is None else type(error).__name__,
            reason="" if error is None else target.endpoint.redactor(str(error)),
        )
        flight.attempts.append(attempt)
        self._attempting = self._queueing = False
        if self._guard is not None:
            self._guard.end(flight, error, sent=bool(self._sent), partial=self._partial(error))

    def _partial(self, error: BaseException | None) -> Reply | None:
        """What was received of a reply whose stream ended early."""
        if error is None or self._reader is None:
            return None
        partial: Reply | None = getattr(error, "partial", None)
        return partial if partial is not None else partial_of(self._reader.close())
