"""Failed attempts: a provider's errors as exceptions, and what follows them.

The policy (`retry.retry_policy`) decides what follows and never sleeps; `AttemptFailures` acts on
it.
"""

from __future__ import annotations

import asyncio
import datetime
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from anaphora import errors
from anaphora.catalog import dialects
from anaphora.errors import (
    AnaphoraError,
    Denied,
    Parse,
    Throttled,
    Timeout,
    Unavailable,
    Upstream,
)
from anaphora.redaction import without_frames
from anaphora.values import Event, Reply, ReplyEnd, ReplyFail
from anaphora.wire.errors import NO_ERROR_OBJECT, shorten

from .retry import AttemptFailed, RetrySteps, retry_policy

if TYPE_CHECKING:
    from anaphora.wire import Reader

    from .in_flight import AttemptCaller, InFlight
    from .target import Endpoint
    from .transport import HttpResponse


class _ErrorBody(msgspec.Struct, frozen=True):
    error: msgspec.Raw


_decode_error = msgspec.json.Decoder(_ErrorBody).decode


#: Statuses of servers that have no such path.
_NOT_THERE = (301, 302, 303, 307, 308, 404, 405)


def status_error(endpoint: Endpoint, answer: HttpResponse, data: bytes) -> Upstream:
    now = datetime.datetime.now(datetime.UTC)
    error = endpoint.wire.read_error(answer.status, answer.headers, data, now)
    name_origin(error, endpoint.base_wire, endpoint.base_url)
    if answer.status in _NOT_THERE and NO_ERROR_OBJECT in str(error):
        # Without the address, which apps of a daemon must not see.
        error.args = (f"{error}; is the base_url of {endpoint.id} right?",)
    return error


def name_origin(error: AnaphoraError, wire: str, base_url: str) -> None:
    """Notes whose error it is: what callers of another wire, and apps of a daemon, may see of it
    depends on that."""
    if isinstance(error, Upstream):
        error.wire = wire
        host = urlsplit(base_url).hostname or ""
        error.own_host = "" if dialects().is_public(host) else host


def _page_error(endpoint: Endpoint, data: bytes) -> Parse | None:
    """The error if a web page is the response: of a login, a portal or another server."""
    if not data[:200].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        return None
    return Parse(f"the response is a web page; is the base_url of {endpoint.id} right?")


def body_error(endpoint: Endpoint, answer: HttpResponse, data: bytes) -> Upstream | None:
    """The error in a body that is no reply: some providers fail with a good status."""
    try:
        error = bytes(_decode_error(data).error)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return None if error == b"null" else status_error(endpoint, answer, data)


def event_error(event: ReplyFail) -> AnaphoraError:
    """The error of a stream's last event, as a response that is not streamed would raise it."""
    kind = getattr(errors, event.error, errors.Upstream)
    if issubclass(kind, errors.Upstream):
        return kind(event.message, code=event.code, status=event.status)
    if kind is errors.Parse:
        return errors.Parse(event.message)
    return errors.Transport(event.message, phase="body")


def stream_error(
    event: ReplyFail, endpoint: Endpoint, answer: HttpResponse, head: bytes | bytearray | None
) -> AnaphoraError:
    """The same with the partial reply. `head`: the body, if no event has reached the caller."""
    error = event_error(event)
    shorten(error)
    name_origin(error, endpoint.base_wire, endpoint.base_url)
    if head is not None and isinstance(error, Parse | errors.Transport):
        data = bytes(head)
        error = body_error(endpoint, answer, data) or _page_error(endpoint, data) or error
    error.partial = event.partial
    return error


def read_reply(endpoint: Endpoint, answer: HttpResponse, data: bytes) -> Reply:
    """The reply of a response that is not streamed; raises the error that it is instead."""
    if answer.status >= 300:
        raise status_error(endpoint, answer, data)
    try:
        return endpoint.wire.read_reply(data)
    except Parse as problem:
        error = body_error(endpoint, answer, data) or _page_error(endpoint, data)
        if error is not None:
            raise error from None
        return _reply_from_stream(endpoint, data, problem)


def _reply_from_stream(endpoint: Endpoint, data: bytes, problem: Parse) -> Reply:
    """The reply in a body that is an event stream although none was requested: some gateways
    always stream. `problem`: why the body could not be read as a single reply."""
    reader = endpoint.wire.reader()
    match [*reader.feed(data), *reader.close()]:
        case [*_, ReplyEnd(reply)]:
            return reply
        case [*_, ReplyFail(partial=partial) as failure] if partial and partial.message.parts:
            error = event_error(failure)
            error.partial = partial
            raise error from None
        case _:
            raise problem from None


def partial_of(events: Iterable[Event]) -> Reply | None:
    return next((event.partial for event in events if isinstance(event, ReplyFail)), None)


class AttemptFailures(ABC):
    """What follows when an attempt of a call fails: another one, after a wait or elsewhere, or the
    end of the call. The base of `Attempts`."""

    _flight: InFlight
    _caller: AttemptCaller
    _timeout: float
    _until: float
    """The end of the call's time, on the monotonic clock."""
    _policy: RetrySteps | None = None
    """Created when something has failed: most calls need none."""
    _whole: tuple[int, ...] = ()
    """Targets whose request was prepared once more."""
    _streamed = False
    """An event has reached the caller."""
    _attempting = _queueing = False
    """An attempt has begun; it waits for rate limits."""
    _queued = _sent = 0.0
    """How long it waited for them, and when it was sent."""
    _answer: HttpResponse | None = None
    """The response to it,"""
    _reader: Reader | None = None
    """and the reader of that, if it is a stream."""

    @abstractmethod
    def _over(self, error: BaseException | None, now: float, request_id: str | None = None) -> None:
        """Adds the attempt that ended to those of the call."""

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
        if self._caller.guards and self._caller.is_left:
            raise error
        prepared = flight.prepared.get(index)
        again = prepared is not None and isinstance(error, prepared.prepare_again_on)
        if again and not self._streamed and index not in self._whole:
            del flight.prepared[index]
            self._whole += (index,)
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

    def _partial(self, error: BaseException) -> Reply | None:
        """What was received of a reply whose stream ended early."""
        if self._reader is None:
            return None
        partial: Reply | None = getattr(error, "partial", None)
        return partial if partial is not None else partial_of(self._reader.close())
