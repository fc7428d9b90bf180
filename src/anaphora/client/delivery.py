"""One call on its way: over attempts, waits and hops, until it is answered or given up.

The policy (`retry.attempts`) decides what comes next and never sleeps; here is where things happen.
Nothing is sent again once an event of an answer has reached the caller.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Sequence,
)
from contextlib import aclosing
from time import monotonic
from typing import Any

import msgspec
from blake3 import blake3

from anaphora.errors import (
    AnaphoraError,
    Parse,
    Throttled,
    Timeout,
    Transport,
    Unavailable,
)
from anaphora.values import Event, Reply, ReplyEnd, ReplyFail, ReplyStart, UsageUpdate

from .after import AfterAnswer
from .budget import Budget
from .delivered import Delivered, Prepare, Prepared
from .endpoint import Stop, request_id
from .failing import from_stream, partial_of, raised, refused, told
from .retry import Failed, Try, Wait, attempts
from .transport import HttpResponse
from .trying import Trying

#: Events that say nothing yet: they wait for the first that does, so that a stream which breaks
#: before it said anything can be tried again.
_SILENT = (ReplyStart, UsageUpdate)

#: How long the end of a body is waited for when the answer in it is complete, so that the
#: connection can be used again; in seconds.
_LAST_BYTES = 0.5


#: What every policy begins with.
_FIRST = Try(0)


class Delivery:
    """One call. `single` or `stream` may be used once."""

    def __init__(
        self,
        stops: Sequence[Stop],
        prepare: Prepare,
        *,
        timeout: float,
        on_wait: Callable[[float], None] | None = None,
        after: AfterAnswer | None = None,
    ) -> None:
        self._stops = stops
        self._prepare = prepare
        self._timeout = timeout
        self._on_wait = on_wait
        self._after_answer = after or AfterAnswer()
        self._prepared: dict[int, Prepared] = {}
        self._gone: set[int] = set()
        """Stops where what the call leant on is there no more."""
        self._deadline = 0.0
        self._policy: Generator[Try | Wait, Failed | None, AnaphoraError] | None = None
        self._heard = False
        self.at = 0
        self._trying = Trying()
        self.tries = self._trying.made
        """Every attempt that is over."""
        self.delivered: Delivered | None = None

    async def single(self) -> Delivered:
        """The whole answer."""
        self._begin()
        budget = Budget(self._timeout)
        try:
            step: Try | Wait = _FIRST
            while True:
                if isinstance(step, Wait):
                    await asyncio.sleep(step.seconds)
                    step = self._waited()
                    continue
                try:
                    return await self._single(step.hop)
                except Exception as error:
                    if self.delivered is not None:
                        self._late_failure(error)
                        return self.delivered
                    if not isinstance(error, AnaphoraError):
                        raise
                    step = self._after(error, step.hop)
        except asyncio.CancelledError as problem:
            if budget.is_why():
                late = self._late()
                if self.delivered is not None:  # only closing the connection took too long
                    self._late_failure(late)
                    return self.delivered
                raise late from None
            self._left(problem)
            raise
        except AnaphoraError:
            raise
        except BaseException as problem:
            self._left(problem)
            raise
        finally:
            budget.end()

    async def stream(self) -> AsyncGenerator[Event, None]:
        """Events as they come; `delivered` is there when they have ended."""
        self._begin()
        step: Try | Wait = _FIRST
        while True:
            if isinstance(step, Wait):
                await self._in_time(asyncio.sleep(step.seconds))
                step = self._waited()
                continue
            try:
                async with aclosing(self._streamed(step.hop)) as events:
                    async for event in events:
                        yield event
                return
            except Exception as error:
                if self.delivered is not None:
                    self._late_failure(error)
                    return
                if not isinstance(error, AnaphoraError):
                    self._left(error)
                    raise
                if not self._trying.begun:
                    raise  # the budget has ended, and that is noted
                step = self._after(error, step.hop)
            except BaseException as problem:
                self._left(problem)
                raise

    # ── One attempt ──────────────────────────────────────────────────────────────────────────────

    async def _single(self, at: int) -> Delivered:
        stop = self._stops[at]
        prepared = await self._ready(at)
        gate = stop.model.gate
        # What limits there are, the attempt before may have told.
        tokens = prepared.tokens() if gate.counts_tokens else 0
        self._trying.queueing = True
        async with gate.admit(tokens, self._deadline, self._on_wait) as admission:
            self._trying.passed(admission.queued)
            answer = await self._send(stop, prepared)
            try:
                first = time.time()
                self._safely(admission.update, answer.headers, first)
                data = await answer.read()
                if answer.status >= 300:
                    raise refused(stop.endpoint, answer, data)
                try:
                    reply = stop.endpoint.wire.read_reply(data)
                except Parse as problem:
                    if (error := told(stop.endpoint, answer, data)) is not None:
                        raise error from None
                    reply = from_stream(stop.endpoint, data, problem)
                raw = blake3(data).hexdigest()
                delivered = self._arrived(at, prepared, reply, raw, first, answer)
                self._safely(admission.settle, reply.usage)
            finally:
                await answer.close()
        return delivered

    async def _streamed(self, at: int) -> AsyncGenerator[Event, None]:
        stop = self._stops[at]
        prepared = await self._in_time(self._ready(at))
        gate = stop.model.gate
        # What limits there are, the attempt before may have told.
        tokens = prepared.tokens() if gate.counts_tokens else 0
        self._trying.queueing = True
        async with gate.admit(tokens, self._deadline, self._on_wait) as admission:
            self._trying.passed(admission.queued)
            answer = await self._in_time(self._send(stop, prepared))
            try:
                first = time.time()
                self._safely(admission.update, answer.headers, first)
                if answer.status >= 300:
                    raise refused(stop.endpoint, answer, await self._in_time(answer.read()))
                reader, digest = stop.endpoint.wire.reader(), blake3()
                waiting: list[Event] = []
                head = bytearray()
                pieces = answer.__aiter__()
                while True:
                    try:
                        data = await self._in_time(anext(pieces, None))
                    except (Transport, Timeout) as problem:
                        # What was said before it broke off is not lost.
                        problem.partial = partial_of(reader.close())
                        raise
                    if data is not None:
                        digest.update(data)
                        if not self._heard:
                            head += data
                    for event in reader.close() if data is None else reader.feed(data):
                        if isinstance(event, ReplyFail):
                            error = raised(event)
                            if not self._heard and isinstance(error, Parse | Transport):
                                error = told(stop.endpoint, answer, bytes(head)) or error
                            error.partial = event.partial
                            raise error
                        if isinstance(event, ReplyEnd):
                            self._arrived(
                                at, prepared, event.reply, digest.hexdigest(), first, answer
                            )
                            self._safely(admission.settle, event.reply.usage)
                        if not self._heard:
                            if isinstance(event, _SILENT):
                                waiting.append(event)
                                continue
                            self._heard = True
                            for silent in waiting:
                                yield silent
                        yield event
                        if self.delivered is not None:
                            await self._drain(pieces)
                            return
                    if data is None:
                        return
            finally:
                await answer.close()

    async def _drain(self, pieces: AsyncIterator[bytes]) -> None:
        """Nothing that happens to the connection now makes the answer less complete."""
        try:
            async with asyncio.timeout(min(_LAST_BYTES, self._deadline - monotonic())):
                while await anext(pieces, None) is not None:
                    pass
        except (AnaphoraError, TimeoutError):
            pass

    async def _ready(self, at: int) -> Prepared:
        self.at, self._trying.begun = at, True
        wait = self._stops[at].endpoint.breaker.enters(monotonic())
        if wait:
            name = self._stops[at].endpoint.id
            raise Unavailable(
                f"{name} failed too often lately and is tried again in {wait:.0f} s", wait=wait
            )
        prepared = self._prepared.get(at)
        if prepared is None:
            prepared = self._prepared[at] = await self._prepare(at, at in self._gone)
        return prepared

    async def _send(self, stop: Stop, prepared: Prepared) -> HttpResponse:
        self._trying.sent(monotonic())
        answer = self._trying.answer = await stop.endpoint.transport.send(prepared.outgoing)
        return answer

    # ── What happened ────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> None:
        if self._timeout <= 0:
            raise Timeout(0)  # a request that is sent and left alone is paid for
        self._deadline = monotonic() + self._timeout

    def _asked(self) -> Generator[Try | Wait, Failed | None, AnaphoraError]:
        """The policy, made when something has failed: most calls need none."""
        if self._policy is None:
            retries = [stop.endpoint.config.retry for stop in self._stops]
            self._policy = attempts(retries, deadline=self._deadline, draw=random.random)
            first = next(self._policy)
            assert first == _FIRST, "a call begins by being sent to its first stop"
        return self._policy

    def _waited(self) -> Try | Wait:
        """What comes after a wait."""
        return next(self._asked())

    def _arrived(
        self,
        at: int,
        prepared: Prepared,
        reply: Reply,
        raw: str,
        first: float,
        answer: HttpResponse,
    ) -> Delivered:
        now, stop = monotonic(), self._stops[at]
        named = request_id(answer.headers)
        self.delivered = Delivered(
            stop=at,
            prepared=prepared,
            reply=reply,
            raw_hash=raw,
            at=self._trying.sent_at,
            first=first,
            request_id=named,
        )
        self._trying.over(stop, now, None, named)
        self._safely(stop.endpoint.breaker.succeeded, now)
        return self.delivered

    def _safely(self, step: Callable[..., None], *args: object) -> None:
        """What limits and breaker learn of an answer is not worth the answer."""
        self._after_answer.run("limits_failed", None, step, *args)

    def _late_failure(self, problem: Exception) -> None:
        """The answer is complete: nothing is sent again."""
        self._after_answer.failed("connection_failed", problem)

    def _after(self, error: AnaphoraError, at: int) -> Try | Wait:
        """What comes next; raises when nothing does."""
        now = monotonic()
        if not isinstance(error, Unavailable):  # that one was not let in
            self._stops[at].endpoint.breaker.failed(error, now)
        self._trying.over(self._stops[at], now, error)
        prepared = self._prepared.get(at)
        leant = prepared is not None and isinstance(error, prepared.gone)
        if leant and not self._heard and at not in self._gone:
            # Everything is said again, once.
            del self._prepared[at]
            self._gone.add(at)
            return Try(at)
        try:
            step = self._asked().send(Failed(error, now, self._heard))
        except StopIteration as end:
            final: AnaphoraError = end.value
            raise final from (None if final is error else error)
        if isinstance(step, Wait):
            self.tries[-1] = msgspec.structs.replace(self.tries[-1], wait=step.seconds)
        return step

    async def _in_time(self, coming: Awaitable[Any]) -> Any:
        """What comes, before the call's budget ends. Only waiting for the provider is measured:
        what the caller does between two events is not interrupted."""
        scope = asyncio.timeout(self._deadline - monotonic())
        try:
            async with scope:
                return await coming
        except TimeoutError:
            if not scope.expired():
                raise
            raise self._late() from None

    def _late(self) -> AnaphoraError:
        """The budget has ended; where our own limits used it up, that is said."""
        error: AnaphoraError = Timeout(round(self._timeout * 1000))
        if self._trying.queueing:
            error = Throttled("no place became free in the time that the call may take", wait=0.0)
        if self._trying.begun:
            now, stop = monotonic(), self._stops[self.at]
            stop.endpoint.breaker.failed(error, now)
            self._trying.over(stop, now, error)
        return error

    def _left(self, problem: BaseException) -> None:
        """Nobody waits for the answer any more, or something that is no concern of the provider's
        went wrong."""
        if self._trying.begun:
            now, stop = monotonic(), self._stops[self.at]
            stop.endpoint.breaker.left(now)
            self._trying.over(stop, now, problem)
