"""Keys pass the proxy: no log, error or repr shows them."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable
from io import StringIO

import pytest
from rich.console import Console
from support.raw_http import exchange, request_bytes
from support.socket_upstream import (
    CallList,
    Handler,
    UpstreamConnection,
    answering,
    socket_upstream,
)
from support.waiting import PATIENCE

from anaphora.proxy.relay import RelayHandler
from anaphora.proxy.server import running
from anaphora.traffic.calls import RelayedCall, UpstreamRequest

KEY = "sk-canary-0123456789abcdef"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nSet-Cookie: session=%b\r\n\r\n{}" % KEY.encode()
HEADERS = {
    "x_api_key": KEY,
    "authorization": f"Bearer {KEY}",
    "cookie": f"session={KEY}",
    "x_goog_api_key": KEY,
}


def silent(connection: UpstreamConnection) -> None:
    connection.read_request()


def breaking_off(connection: UpstreamConnection) -> None:
    connection.read_request()
    connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf")
    connection.reset()


class FailingObserver:
    def call_ended(self, call: RelayedCall) -> None:
        raise ValueError(dict(call.request_headers)["x-api-key"])


def failing_place(request: UpstreamRequest) -> bytes | None:
    raise ValueError(dict(request.headers)["x-api-key"])


def failing_codec(self: RelayHandler, relaying: object, headers: object) -> None:
    raise ValueError(str(headers))


#: What goes wrong: how the upstream answers, an observer, a place function, a part of the relay.
FAULTS: dict[str, tuple[Handler, object, Callable[..., bytes | None] | None, bool]] = {
    "nothing": (answering(OK), None, None, False),
    "no response": (silent, None, None, False),
    "not HTTP": (answering(b"garbage\r\n\r\n"), None, None, False),
    "half a response": (breaking_off, None, None, False),
    "an observer": (answering(OK), FailingObserver(), None, False),
    "placing": (answering(OK), None, failing_place, False),
    "the relay": (answering(OK), None, None, True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_key_is_in_no_log_and_no_error(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    handler, observer, place, bug = FAULTS[fault]
    seen = CallList()
    observers = [seen] if observer is None else [observer, seen]
    if bug:
        monkeypatch.setattr(RelayHandler, "_request", failing_codec)
    with socket_upstream(handler) as upstream:
        with running([upstream.route()], observers=observers, place=place) as proxy:  # type: ignore[arg-type]
            received = asked(proxy.port)
        arrived = b"".join(upstream.requests)
    (call,) = seen.calls
    assert (KEY.encode() in arrived) is not bug, "the provider gets the key"
    if fault == "nothing":
        assert KEY.encode() in received, "and its cookies come back"
    else:
        assert KEY.encode() not in received.partition(b"\r\n\r\n")[2]
    for text in (caplog.text, call.error, repr(call), rich(call), str(call.notices)):
        assert KEY not in text
    logged = any(record.name == "anaphora" for record in caplog.records)
    assert logged is (observer is not None or place is not None or bug)


def asked(port: int) -> bytes:
    """All that comes back of a request with the key in every place where one may be."""

    body = f'{{"key":"{KEY}"}}'.encode()
    data = request_bytes("POST", f"/up/v1/messages?key={KEY}", body, connection="close", **HEADERS)
    received = b""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        connection.sendall(data)
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(65_536):
                received += piece
    return received


def rich(value: object) -> str:
    out = StringIO()
    Console(file=out, width=1000).print(value)
    return out.getvalue()


def test_request_on_its_way_is_not_shown() -> None:
    with socket_upstream(answering(OK)) as upstream:
        request = UpstreamRequest(
            method="POST",
            route=upstream.route(),
            path="/v1",
            query=f"key={KEY}",
            headers=(("x-api-key", KEY),),
            body=KEY.encode(),
        )
    assert KEY not in repr(request) + rich(request)
    assert "POST" in repr(request)


def test_unknown_path_with_a_key_in_its_query() -> None:
    with socket_upstream(answering(OK)) as upstream, running([upstream.route()]) as proxy:
        answer = exchange(proxy.port, request_bytes("GET", f"/other?key={KEY}"))
    assert answer.status == 404
    assert KEY.encode() not in answer.body
