"""Observers of relayed calls, in a separate thread with a lower priority than the relay.

Both threads share one interpreter: an observer's work would delay bytes in transit. While the relay
is very busy, which takes many programs, observers wait: a few seconds at most, and only while not
too many bodies wait for them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias
from urllib.parse import urlsplit

import msgspec

from anaphora.client.failures import log
from anaphora.client.transport.decoding import Decompressor, InvalidCompression
from anaphora.errors import Denied
from anaphora.traffic.calls import RelayedCall, UpstreamRequest
from anaphora.values import Notice

#: Bytes of bodies that wait for observers: above the first, observers do not wait for the relay;
#: above the second, new calls wait for observers.
_PATIENT_BYTES = 64 * 1024 * 1024
_WAITING_BYTES = 256 * 1024 * 1024
#: Seconds that a call waits for the relay to become less busy.
_PATIENT_SECONDS = 3.0
#: The relay is busy above this many pieces per second, counted over the last seconds.
_BUSY, _LAST_SECONDS = 1000.0, 0.02
#: It is not busy if no call has been open for this many seconds and many calls wait for observers.
_QUIET_SECONDS = 0.005
#: Seconds between two checks of what waits.
_LOOK = 0.005
#: Maximum number of calls prepared together, and bytes of their bodies.
_MOST_TOGETHER, _BYTES_TOGETHER = 32, 2 * 1024 * 1024

Check: TypeAlias = Callable[[UpstreamRequest], Awaitable[Denied | None]]
"""Why a request is not sent, as the error that the program gets; None to send it. Gets requests
with a body, with the program's own headers, in the relay's event loop. A body over 32 MB has not
arrived yet: it is an iterator, which belongs to the relay."""
#: A call, and when it ended.
_Waiting: TypeAlias = tuple[RelayedCall, float]


class Observer(Protocol):
    """Called for each ended call, in order, in a thread beside the relay. Exceptions are logged and
    do not affect the relay.

    An observer may also have `prepare(calls)`, which is called before `call_ended` when several
    calls wait. One with `check(request)` may refuse requests before they are sent (see `Check`).
    """

    def call_ended(self, call: RelayedCall) -> None: ...


class ObserverThread:
    """Gives each ended call to the observers, in order, beside the relay."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        found: tuple[Any, ...] = tuple(observers)
        self._observers: tuple[Observer, ...] = found
        self.checks: list[Check] = [each.check for each in found if hasattr(each, "check")]
        self._preparing: list[Any] = [each for each in self._observers if hasattr(each, "prepare")]
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._calls = 0
        self._open = 0
        self._stopping = False
        self._pieces, self._counted = 0.0, 0.0
        self._thread: threading.Thread | None = None
        if self._observers:
            name = "anaphora-proxy-observers"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    @property
    def is_needed(self) -> bool:
        """Whether any observer uses what is kept of a call."""
        return bool(self._observers)

    @property
    def is_busy(self) -> bool:
        """Whether a call has not been observed yet."""
        return self._calls > 0

    async def wait_for_room(self) -> None:
        """Returns when the waiting bodies fit in memory."""
        while self._waiting > _WAITING_BYTES:  # noqa: ASYNC110 - another thread's doing
            await asyncio.sleep(_LOOK)

    def call_began(self) -> None:
        """A call is being relayed, until `add`."""
        self._open += 1

    def piece_passed(self, now: float) -> None:
        """A piece was relayed, at a time of `time.monotonic`."""
        if self._thread is not None:
            self._pieces = 1 + self._pieces * math.exp((self._counted - now) / _LAST_SECONDS)
            self._counted = now

    def add(self, call: RelayedCall) -> None:
        self._open -= 1
        if self._thread is not None:
            with self._lock:
                self._waiting += _size(call)
                self._calls += 1
            self._queue.put((call, time.monotonic()))

    def close(self) -> None:
        """Returns when every call has been observed."""
        if self._thread is not None:
            self._stopping = True
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while waiting := self._next():
            self._wait_for_relay(waiting[0][1] + _PATIENT_SECONDS)
            calls = [call for call, _ in waiting]
            sizes = [_size(call) for call in calls]
            for call in calls:
                try:
                    call.notices += bypass_notices(call)
                except Exception as problem:
                    log(logging.ERROR, "looking for addresses in a response failed", problem)
            if len(calls) > 1:
                self._prepare(calls)
            for call, size in zip(calls, sizes, strict=True):
                for observer in self._observers:
                    self._notify(observer, call)
                with self._lock:
                    self._waiting -= size
                    self._calls -= 1

    def _next(self) -> list[_Waiting]:
        """The next calls, up to a limit. Empty: there are no more calls."""
        found: list[_Waiting] = []
        size = 0
        while (waiting := self._queue.get()) is not None:
            found.append(waiting)
            size += _size(waiting[0])
            if len(found) == _MOST_TOGETHER or size > _BYTES_TOGETHER or self._queue.empty():
                return found
        if found:
            self._queue.put(None)  # the end, which is not reached yet
        return found

    def _prepare(self, calls: list[RelayedCall]) -> None:
        for observer in self._preparing:
            try:
                observer.prepare(calls)
            except Exception as problem:
                name = type(observer).__name__
                log(logging.ERROR, f"the observer {name} failed to prepare calls", problem)

    def _wait_for_relay(self, until: float) -> None:
        while not self._stopping and self._waiting < _PATIENT_BYTES:
            now = time.monotonic()
            if now >= until or self._rate(now) < _BUSY:
                return
            time.sleep(_LOOK)

    def _rate(self, now: float) -> float:
        """Pieces per second, weighted towards the latest."""
        many = self._calls >= _MOST_TOGETHER
        if many and not self._open and now - self._counted > _QUIET_SECONDS:
            return 0.0
        return self._pieces * math.exp((self._counted - now) / _LAST_SECONDS) / _LAST_SECONDS

    def _notify(self, observer: Observer, call: RelayedCall) -> None:
        try:
            observer.call_ended(call)
        except Exception as problem:
            name = type(observer).__name__
            text = f"the observer {name} failed for call {call.number}: {type(problem).__name__}"
            log(logging.ERROR, text, problem)


def _size(call: RelayedCall) -> int:
    pieces = sum(len(piece.data) for piece in call.pieces or ())
    return pieces + len(call.request_body or b"") + len(call.sent_body or b"")


#: Headers that hold a URL, and what goes there.
_HEADERS = {
    "x-goog-upload-url": "the upload goes",
    "location": "a client that follows the redirect goes",
}
#: Members of a JSON body that hold a URL, and what comes from there.
_MEMBERS = {"results_url": "the results of the batch come"}
#: Only short bodies have one: those of batches.
_LONGEST = 1024 * 1024
_CODE = "bypasses_proxy"


class _Addresses(msgspec.Struct):
    results_url: str | None = None


_decode = msgspec.json.Decoder(_Addresses).decode


def bypass_notices(call: RelayedCall) -> tuple[Notice, ...]:
    """A notice for each URL in a response that bypasses the proxy."""
    found = [(value, what) for name, value in call.response_headers if (what := _HEADERS.get(name))]
    found += [(value, _MEMBERS[name]) for name, value in _in_body(call)]
    notices = []
    for address, what in found:
        host = _host(address)
        if host:
            message = f"{what} to {host} directly, past the proxy"
            notices.append(Notice(_CODE, message.replace("come to", "come from")))
    return tuple(notices)


def _host(address: str) -> str:
    """The host of an absolute URL; the rest may contain a token."""
    try:
        return urlsplit(address).netloc.rpartition("@")[2]
    except ValueError:
        return ""


def _in_body(call: RelayedCall) -> list[tuple[str, str]]:
    if not call.pieces or "batch" not in call.path:
        return []
    body = b"".join(piece.data for piece in call.pieces)
    if len(body) > _LONGEST:
        return []
    decompressor = Decompressor.of(dict(call.response_headers).get("content-encoding"))
    try:
        if decompressor is not None:
            body = decompressor.feed(body, _LONGEST)
        address = _decode(body).results_url
    except (InvalidCompression, msgspec.DecodeError, UnicodeError, RecursionError):
        return []
    return [] if address is None else [("results_url", address)]
