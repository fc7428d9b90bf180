"""Observes calls on `http.client`, the standard library's. urllib3, requests, botocore and boto3,
httplib2 and the sync transports of google-auth are built on it.

Requests are read from the bytes that are sent, after a library may have signed them, and are never
changed: no markers are placed here.
"""

from __future__ import annotations

import functools
import http.client
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from anaphora.traffic.calls import KEPT_BYTES, Headers, header_of

from .addresses import RequestAddress
from .observation import Observation, ObservedCall, active, begin, guarded, included
from .replaced import HOOKS, Hook

#: Classes whose objects send by `http.client`, and the method that does.
_SENDERS = {
    "requests.sessions.Session": "send",
    "botocore.httpsession.URLLib3Session": "send",
    "urllib3.poolmanager.PoolManager": "urlopen",
    "httplib2.Http": "request",
}
#: Attribute of a connection: the request that is being sent.
_SENDING = "_anaphora_sending"
#: Attribute of a method that `observe` has wrapped: the method itself.
_ORIGINAL = "_anaphora_original"
_HTTPS = 443


class _SentRequest:
    """A request while it is sent."""

    def __init__(self, method: str, target: str) -> None:
        self.method, self.target = method, target
        self.busy = False
        """Whether it is inside `send`, which may connect first and send its own CONNECT."""
        self._data: list[bytes] | None = []
        self._size = 0

    def add(self, data: Any) -> None:
        """Adds bytes that were sent. A body that is generated while it is sent cannot be kept."""
        if self._data is None:
            return
        if not isinstance(data, bytes | bytearray | memoryview):
            self._data = None
            return
        self._size += len(data)
        if self._size > 2 * KEPT_BYTES:
            self._data = None
        else:
            self._data.append(bytes(data))

    def begin(self, connection: Any) -> ObservedCall | None:
        address, query = _address(connection, self.target)
        head, _, body = b"".join(self._data or ()).partition(b"\r\n\r\n")

        def headers() -> Headers:
            lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
            return tuple([(_text(name).lower(), _text(value)) for name, _, value in lines])

        def complete() -> bytes | None:
            if self._data is None:
                return None
            given = headers()
            if header_of(given, "transfer-encoding").lower() == "chunked":
                return Unchunked().feed(body)
            return body if header_of(given, "content-length") == str(len(body)) else None

        return begin(None, self.method, address, query, headers, complete)


def _text(value: bytes) -> str:
    return value.strip().decode("latin-1")


def _address(connection: Any, target: str) -> tuple[RequestAddress, str]:
    parts = urlsplit(target)
    if parts.scheme:  # to a proxy, without a tunnel
        url = RequestAddress(parts.scheme, parts.hostname or "", parts.port, parts.path)
        return url, parts.query
    scheme = "https" if connection.default_port == _HTTPS else "http"
    tunnelled = getattr(connection, "_tunnel_host", None)
    host = tunnelled or connection.host
    port = connection._tunnel_port if tunnelled else connection.port
    path, _, query = target.partition("?")
    return RequestAddress(scheme, host, port, path), query


class Unchunked:
    """Removes the framing of a chunked body."""

    def __init__(self) -> None:
        self._rest = b""
        self._left = 0
        """Bytes left of the current chunk, with the line break after it."""
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        data, found = self._rest + data, []
        while data and not self.ended:
            if self._left:
                content = data[: max(self._left - 2, 0)]
                taken = content or data[: self._left]
                found.append(content)
                self._left -= len(taken)
                data = data[len(taken) :]
                continue
            line, complete, after = data.partition(b"\n")
            if not complete:
                break
            size = int(line.partition(b";")[0], 16)
            self.ended, self._left, data = size == 0, size + 2, after
        self._rest = data
        return b"".join(found)


class TeedFile:
    """The file that a response is read from, which also passes its data to the observed call."""

    def __init__(self, file: Any, call: ObservedCall, response: http.client.HTTPResponse) -> None:
        self._file, self._call = file, call
        self._unchunked = Unchunked() if response.chunked else None
        self._left: int | None = response.length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int | None = -1, /) -> bytes:
        return self._seen(self._file.read, size, to_end=size is None or size < 0)

    def read1(self, size: int = -1, /) -> bytes:
        return self._seen(self._file.read1, size)

    def readline(self, size: int = -1, /) -> bytes:
        return self._seen(self._file.readline, size)

    def readinto(self, buffer: Any, /) -> int:
        count: int = 0

        def read(into: Any) -> bytes:
            nonlocal count
            count = self._file.readinto(into)
            return bytes(memoryview(into)[:count])

        self._seen(read, buffer)
        return count

    def close(self) -> None:
        try:
            self._file.close()
        finally:
            self._call.end("cancelled")

    def _seen(self, read: Callable[[Any], bytes], size: Any, *, to_end: bool = False) -> bytes:
        try:
            data = read(size)
        except Exception as error:
            self._call.end("failed", error)
            raise
        with guarded("observing a response"):
            self._add(data, at_end=to_end or (not data and size != 0))
        return data

    def _add(self, data: bytes, *, at_end: bool) -> None:
        if self._unchunked is not None:
            self._call.add(self._unchunked.feed(data))
            complete = self._unchunked.ended
        else:
            self._call.add(data)
            if self._left is not None:
                self._left -= len(data)
            complete = at_end if self._left is None else self._left <= 0
        if complete:
            self._call.end("complete")
        elif at_end:
            self._call.end("failed")


# ── Hooks ────────────────────────────────────────────────────────────────────────────────────────


def hooks() -> Iterator[Hook]:
    connection = http.client.HTTPConnection
    yield connection, "putrequest", _putrequest_hook
    yield connection, "send", _send_hook
    yield connection, "getresponse", _getresponse_hook


def _putrequest_hook(original: Any) -> Any:
    @functools.wraps(original)
    def putrequest(connection: Any, method: str, url: str, *args: Any, **options: Any) -> None:
        vars(connection).pop(_SENDING, None)
        original(connection, method, url, *args, **options)
        if active():
            setattr(connection, _SENDING, _SentRequest(method, url))

    return putrequest


def _send_hook(original: Any) -> Any:
    @functools.wraps(original)
    def send(connection: Any, data: Any) -> None:
        sending = vars(connection).get(_SENDING)
        if sending is None or sending.busy:
            original(connection, data)
            return
        sending.busy = True
        try:
            sending.add(data)
            original(connection, data)
        except BrokenPipeError:
            raise  # a server may answer before it has read all: libraries read the response
        except BaseException as error:
            vars(connection).pop(_SENDING, None)
            with guarded("reading a request"):
                call = sending.begin(connection)
                if call is not None:
                    call.end("failed", error)
            raise
        finally:
            sending.busy = False

    return send


def _getresponse_hook(original: Any) -> Any:
    @functools.wraps(original)
    def getresponse(connection: Any, *args: Any, **options: Any) -> Any:
        sending = vars(connection).pop(_SENDING, None)
        call: ObservedCall | None = None
        if sending is not None:
            with guarded("reading a request"):
                call = sending.begin(connection)
        if call is None:
            return original(connection, *args, **options)
        try:
            response = original(connection, *args, **options)
        except BaseException as error:
            call.end("failed", error)
            raise
        with guarded("observing a response"):
            headers = [(name.lower(), value) for name, value in response.headers.items()]
            call.respond(response.status, tuple(headers))
            if response.fp is None:  # without a body
                call.end("complete")
            else:
                response.fp = TeedFile(response.fp, call, response)
        return response

    return getresponse


# ── Sessions ─────────────────────────────────────────────────────────────────────────────────────


def sender_of(value: Any) -> str | None:
    """The name of the method with which an object sends by `http.client`; None for other
    objects."""
    names = [f"{base.__module__}.{base.__qualname__}" for base in type(value).__mro__]
    return next((_SENDERS[name] for name in names if name in _SENDERS), None)


def observe_sender(sender: Any, observation: Observation) -> None:
    """Observes an object that sends; replaces an earlier observation."""
    name = sender_of(sender)
    assert name is not None
    current = getattr(sender, name)
    original = getattr(current, _ORIGINAL, current)

    @functools.wraps(original)
    def send(*args: Any, **options: Any) -> Any:
        with HOOKS.in_use(hooks), included(observation):
            return original(*args, **options)

    setattr(send, _ORIGINAL, original)
    setattr(sender, name, send)
