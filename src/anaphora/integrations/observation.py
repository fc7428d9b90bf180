"""Observed calls, and the observers that get their verdicts.

One judge for the whole process compares each call with earlier ones of any client: a web backend
may make a client for each request. A call is judged once, however many observers get its verdict.
Prompts are kept in memory, bounded, and nowhere else.

Nothing here may change an answer: failures are logged, and the call continues.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TypeAlias

from msgspec.structs import replace

from anaphora.client.arguments import callback_of, watchers_of
from anaphora.client.failures import log
from anaphora.client.observe import Watcher, Watchers
from anaphora.client.response import Attempt, Record
from anaphora.errors import InvalidRequest
from anaphora.traffic.accounts import is_signed
from anaphora.traffic.calls import (
    KEPT_BYTES,
    OUTCOMES,
    Headers,
    ProxyRoute,
    RelayedCall,
    ResponsePiece,
    UpstreamRequest,
    decoded_path,
    header_of,
    wire_at,
)
from anaphora.traffic.judging import CallJudge
from anaphora.traffic.placing import Placer
from anaphora.traffic.sums import CallSums, JudgedCall
from anaphora.values import Usage
from anaphora.wire.cloud_paths import provider_at

from .addresses import Addresses, RequestAddress

OnVerdict: TypeAlias = Callable[[JudgedCall], object]

#: The most calls that an observation keeps.
_MOST_CALLS = 1000
#: Statuses of invalid requests.
INVALID = (400, 422)

_logger = logging.getLogger("anaphora.observe")

#: The observations of the current context.
_ACTIVE: ContextVar[tuple[Observation, ...]] = ContextVar("anaphora_observing", default=())
#: True while calls are not observed: inside an observed transport, and in observers.
_SUSPENDED: ContextVar[bool] = ContextVar("anaphora_observed", default=False)


class Observation:
    """Observers, their settings, and the calls that they saw."""

    def __init__(
        self,
        *,
        on_verdict: OnVerdict | None = None,
        watchers: Iterable[Watcher] = (),
        mark: bool = False,
        provider: str = "",
        addresses: Mapping[str, str] = {},
        of_client: bool = False,
    ) -> None:
        """`of_client`: for a client that was passed to `observe`. Its calls to unknown addresses
        are recorded as well, but not judged; without observers, verdicts are logged."""
        if on_verdict is not None:
            callback_of(on_verdict, "on_verdict")
        if not isinstance(mark, bool):
            raise InvalidRequest(f"must be a bool, not {type(mark).__name__}", path="mark")
        self._on_verdict = on_verdict
        self._watchers = Watchers(checked := watchers_of(watchers))
        self.mark = mark
        self.addresses = Addresses(addresses, provider=provider)
        self._of_client = of_client
        self._logs = of_client and on_verdict is None and not checked
        self._calls: deque[JudgedCall] = deque(maxlen=_MOST_CALLS)
        self._lock = threading.Lock()
        self._sums = CallSums()
        self._failed = False
        self._unknown: set[str] = set()
        """Addresses of unknown providers that were reported."""
        self.closed = False

    @property
    def calls(self) -> tuple[JudgedCall, ...]:
        """The latest calls in the order they ended, errors and calls without a verdict included."""
        with self._lock:
            return tuple(self._calls)

    @property
    def sums(self) -> CallSums:
        """The sums of all calls that have a verdict."""
        with self._lock:
            return self._sums.copied()

    def route(self, address: RequestAddress, wire: str) -> ProxyRoute | None:
        found = self.addresses.route(address, wire)
        if found is None and self._of_client:
            if address.origin not in self._unknown:
                self._unknown.add(address.origin)
                _logger.warning(
                    "calls to %s are not judged: the catalog does not know its provider; name it:"
                    " observe(client, provider=…)", address.origin,
                )  # fmt: skip
            return ProxyRoute(prefix="", provider="", upstream=address.origin)
        return found

    def call_ended(self, judged: JudgedCall, record: Callable[[], Record]) -> None:
        with self._lock:
            self._calls.append(judged)
            if judged.verdict is not None:
                self._sums.add(judged)
        if judged.verdict is not None and self._on_verdict is not None:
            try:
                self._on_verdict(judged)
            except Exception as error:
                if not self._failed:
                    self._failed = True
                    name = getattr(self._on_verdict, "__qualname__", "on_verdict")
                    message = f"{name} failed with {type(error).__name__}; logged once"
                    log(logging.WARNING, message, error)
        if self._watchers and judged.kind in OUTCOMES:
            self._watchers(record())
        if self._logs:
            level = logging.WARNING if judged.broke else logging.INFO
            if _logger.isEnabledFor(level):
                _logger.log(level, "%s", judged.line(excerpts=False))


class ObservedCall:
    """One request and its response, as they pass."""

    def __init__(
        self, observations: tuple[Observation, ...], call: RelayedCall, began: float
    ) -> None:
        self._observations = observations
        self._call = call
        self._began = began
        self._data: list[bytes] = []
        self._size = 0
        self._ended = False

    @property
    def placed(self) -> bytes | None:
        """The body with markers, if some were placed."""
        return self._call.sent_body

    def place(self) -> None:
        """Places markers, unless the request is signed."""
        call = self._call
        if call.request_body is None or is_signed(call.request_headers):
            return
        placed = shared().placer(
            UpstreamRequest(
                method=call.method,
                route=call.route,
                path=call.path,
                query=call.query,
                started=call.started,
                headers=call.request_headers,
                body=call.request_body,
            )
        )
        if placed is not None and placed != call.request_body:
            call.sent_body = placed

    def may_be_rejected(self, status: int) -> bool:
        """Whether the response may be a refusal of the markers."""
        return self.placed is not None and status in INVALID

    def was_rejected(self, status: int, headers: Headers, data: bytes) -> bool:
        """Ends the call with an error. Returns whether the error is about the markers: then the
        request is sent again without them."""
        with guarded("observing a response"):
            self.respond(status, headers)
            self.add(data)
            self.end("complete")
            return shared().placer.rejects(self._call.route.upstream)
        return False

    def respond(self, status: int, headers: Headers) -> None:
        """The response has begun."""
        call = self._call
        call.status, call.response_headers = status, headers
        call.began = time.monotonic() - self._began

    def add(self, data: bytes) -> None:
        """A part of the response's body, which may be content-encoded."""
        self._size += len(data)
        if self._size <= KEPT_BYTES:
            self._data.append(data)
        else:
            self._data.clear()

    def end(
        self,
        outcome: Literal["complete", "cancelled", "failed"],
        error: BaseException | None = None,
    ) -> None:
        """Judges the call and tells the observers; later calls of this have no effect."""
        if self._ended:
            return
        self._ended = True
        call = self._call
        call.outcome = outcome
        call.error = "" if error is None else type(error).__name__
        call.ended = time.monotonic() - self._began
        if self._size <= KEPT_BYTES:
            data = b"".join(self._data)
            call.pieces = [ResponsePiece(call.ended, data)] if data else []
        self._data.clear()
        with guarded("judging a call"), suspended():
            judged = shared().judge(call)
            for observation in self._observations:
                with guarded("telling observers"):
                    observation.call_ended(judged, functools.partial(_record, call, judged))


class _SharedJudge:
    """The judge of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._judge = CallJudge()
        self.placer = Placer()
        self.numbers = itertools.count(1)

    def judge(self, call: RelayedCall) -> JudgedCall:
        with self._lock:
            if call.sent_body is not None:
                self.placer.call_ended(call)
            return self._judge.judge(call)


@functools.cache
def shared() -> _SharedJudge:
    return _SharedJudge()


if hasattr(os, "register_at_fork"):
    # A fork while the lock is held would leave it locked in the child.
    os.register_at_fork(after_in_child=shared.cache_clear)


# ── Which calls are observed ─────────────────────────────────────────────────────────────────────


def active() -> tuple[Observation, ...]:
    """The observations of this context, the outermost first."""
    if _SUSPENDED.get():
        return ()
    return tuple([each for each in _ACTIVE.get() if not each.closed])


def activate(observation: Observation) -> Callable[[], None]:
    """Adds an observation to this context; returns a function that removes it."""
    token = _ACTIVE.set((*_ACTIVE.get(), observation))

    def deactivate() -> None:
        observation.closed = True
        try:
            _ACTIVE.reset(token)
        except ValueError:  # ended in another context, as fixtures of some test runners are
            _ACTIVE.set(tuple([each for each in _ACTIVE.get() if each is not observation]))

    return deactivate


@contextmanager
def included(observation: Observation) -> Iterator[None]:
    """Adds the calls of this block to the observation."""
    current = _ACTIVE.get()
    token = _ACTIVE.set(current if observation in current else (*current, observation))
    try:
        yield
    finally:
        _ACTIVE.reset(token)


class suspended:
    """No call is observed in this block."""

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        self._token = _SUSPENDED.set(True)

    def __exit__(self, *_: object) -> None:
        _SUSPENDED.reset(self._token)


class guarded:
    """Logs errors of this block; the call continues."""

    __slots__ = ("_step",)

    def __init__(self, step: str) -> None:
        self._step = step

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, Exception):
            return False
        log(logging.ERROR, f"{self._step} failed: {type(error).__name__}", error)
        return True


def begin(
    own: Observation | None,
    method: str,
    address: RequestAddress,
    query: str,
    headers: Callable[[], Headers],
    body: Callable[[], bytes | None],
) -> ObservedCall | None:
    """Begins to observe a request; None if it calls no model, or nothing observes it. Headers and
    body are only read if it is observed."""
    if method != "POST" or _SUSPENDED.get():
        return None
    if (wire := wire_at(decoded_path(address.path))) is None:
        return None
    observations = [*active(), *([] if own is None else [own])]
    routes = {each: route for each in observations if (route := each.route(address, wire))}
    if not routes:
        return None
    with guarded("reading a request"):
        data, known = body(), [*routes.values()]
        route = next((route for route in known if route.provider), known[0])
        route = replace(route, provider=provider_at(address.path, route.provider))
        call = ObservedCall(
            tuple(routes),
            RelayedCall(
                number=next(shared().numbers),
                started=time.time(),
                method=method,
                route=route,
                path=address.path,
                query=query,
                request_headers=headers(),
                request_body=None if data is None or len(data) > KEPT_BYTES else data,
            ),
            time.monotonic(),
        )
        if any(each.mark for each in routes):
            with guarded("placing markers"):
                call.place()
        return call
    return None


def _record(call: RelayedCall, judged: JudgedCall) -> Record:
    """The record of the call, like those of Anaphora's own client."""
    verdict = judged.verdict
    outcome = OUTCOMES[judged.kind]
    content_type = header_of(call.response_headers, "content-type").lower()
    error = None if outcome == "ok" else outcome
    attempt = Attempt(
        provider=judged.provider,
        model=judged.model,
        at=judged.at,
        seconds=judged.seconds,
        status=judged.status or None,
        error=error,
    )
    return Record(
        provider=judged.provider,
        system=judged.provider,
        wire=judged.wire,
        host=call.route.host,
        model=judged.model,
        streamed="application/json" not in content_type,
        at=judged.at,
        first=call.began,
        seconds=judged.seconds,
        usage=judged.usage or Usage(),
        predicted=None if judged.predicted is None else judged.predicted.read,
        verdict=verdict,
        cost_usd=judged.cost_usd,
        saved=None if verdict is None else verdict.saved,
        error=error,
        attempts=(attempt,),
        notices=judged.notices,
    )
