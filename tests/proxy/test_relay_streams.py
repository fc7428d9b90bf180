"""Bodies pass as they arrive, and a connection that ends on one side ends on the other."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from support.raw_http import exchange, read_response, request_bytes
from support.socket_upstream import (
    CallList,
    Handler,
    UpstreamConnection,
    answering,
    socket_upstream,
)
from support.waiting import PATIENCE

from anaphora.proxy import relay
from anaphora.proxy.server import Proxy, running
from anaphora.traffic.calls import KEPT_BYTES, UpstreamRequest

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"
)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@contextlib.contextmanager
def relaying(handler: Handler) -> Iterator[tuple[Proxy, CallList]]:
    seen = CallList()
    with (
        socket_upstream(handler) as upstream,
        running([upstream.route()], observers=[seen]) as proxy,
    ):
        yield proxy, seen


@contextlib.contextmanager
def asking(proxy: Proxy, data: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), PATIENCE) as connection:
        connection.sendall(data)
        yield connection


def receive_until(connection: socket.socket, end: bytes) -> bytes:
    received = b""
    while not received.endswith(end):
        piece = connection.recv(65_536)
        assert piece, f"the connection ended after {received!r}"
        received += piece
    return received


def receive_all(connection: socket.socket) -> bytes:
    """Until the connection ends, in whatever way."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65_536):
            received += piece
    return received


# ── Responses ────────────────────────────────────────────────────────────────────────────────────


def test_each_piece_is_forwarded_before_the_next_is_sent() -> None:
    """The upstream sends a piece only when the client has the one before, the head included."""
    arrived = threading.Semaphore(0)

    def handle(connection: UpstreamConnection) -> None:
        connection.read_request()
        for data in (CHUNKED, chunk(b"one"), chunk(b"two"), chunk(b"three"), b"0\r\n\r\n"):
            connection.send(data)
            assert arrived.acquire(timeout=PATIENCE)

    with relaying(handle) as (proxy, seen):
        with asking(proxy, request_bytes("POST", "/up/v1", b"{}")) as connection:
            assert b"text/event-stream" in receive_until(connection, b"\r\n\r\n")
            for data in (b"one", b"two", b"three"):
                arrived.release()
                assert receive_until(connection, data + b"\r\n") == chunk(data)
            arrived.release()
            assert receive_until(connection, b"0\r\n\r\n") == b"0\r\n\r\n"
            arrived.release()
        (call,) = seen.wait()
    assert [piece.data for piece in call.pieces or ()] == [b"one", b"two", b"three"]
    seconds = [piece.seconds for piece in call.pieces or ()]
    assert seconds == sorted(seconds)


def test_slow_client_slows_the_upstream() -> None:
    """What a client does not read is not collected here."""
    piece, most = b"x" * 65_536, 4096
    sent, stuck = [0], threading.Event()

    def handle(connection: UpstreamConnection) -> None:
        connection.read_request()
        connection.send(CHUNKED)
        connection._socket.settimeout(0.5)
        try:
            while sent[0] < most:
                connection.send(chunk(piece))
                sent[0] += 1
        except TimeoutError:
            stuck.set()

    with relaying(handle) as (proxy, _), asking(proxy, request_bytes("GET", "/up/v1")):
        assert stuck.wait(PATIENCE)
    assert sent[0] * len(piece) < 64 * 1024 * 1024


@pytest.mark.parametrize("begun", [False, True], ids=["before the first byte", "within the body"])
def test_client_that_goes_away_ends_the_exchange_upstream(begun: bool) -> None:
    asked, ended = threading.Event(), threading.Event()

    def handle(connection: UpstreamConnection) -> None:
        connection.read_request()
        if begun:
            connection.send(CHUNKED + chunk(b"one"))
        asked.set()
        connection.wait_closed()
        ended.set()

    with relaying(handle) as (proxy, seen):
        with asking(proxy, request_bytes("POST", "/up/v1", b"{}")) as connection:
            assert asked.wait(PATIENCE)
            if begun:
                receive_until(connection, b"one\r\n")
        assert ended.wait(PATIENCE)
        (call,) = seen.wait()
    assert (call.outcome, call.status) == ("cancelled", 200 if begun else 0)
    assert call.request_body == b"{}"


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("head", [CHUNKED, b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"])
def test_upstream_that_ends_within_the_body_ends_the_connection(head: bytes, reset: bool) -> None:
    """A program must not take half a response for a whole one."""
    received = threading.Event()

    def handle(connection: UpstreamConnection) -> None:
        connection.read_request()
        connection.send(head + (chunk(b"half") if head is CHUNKED else b"half"))
        assert received.wait(PATIENCE)
        if reset:
            connection.reset()

    with relaying(handle) as (proxy, seen):
        with asking(proxy, request_bytes("GET", "/up/v1")) as connection:
            answer = receive_until(connection, b"half\r\n" if head is CHUNKED else b"half")
            received.set()
            answer += receive_all(connection)
        (call,) = seen.wait()
    assert not answer.endswith(b"0\r\n\r\n")
    assert (call.outcome, call.status) == ("failed", 200)
    assert "the response broke off" in call.error
    assert [piece.data for piece in call.pieces or ()] == [b"half"]


@pytest.mark.parametrize(
    "answer, reason",
    [
        (b"", "no response (the server disconnected)"),
        (b"garbage\r\n\r\n", "the response is not HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "the response is not HTTP"),
        (
            b"HTTP/1.1 200 OK\r\nX-A: \x01\r\nContent-Length: 2\r\n\r\n{}",
            "the response has an invalid character in the header x-a",
        ),
    ],
)
def test_upstream_without_a_response_is_a_502(answer: bytes, reason: str) -> None:
    def handle(connection: UpstreamConnection) -> None:
        connection.read_request()
        if answer:
            connection.send(answer)

    with relaying(handle) as (proxy, seen):
        response = exchange(proxy.port, request_bytes("POST", "/up/v1", b"{}"))
        (call,) = seen.wait()
    assert response.status == 502
    assert reason in response.json["error"]["message"]
    assert (call.outcome, call.status) == ("failed", 0)
    assert reason in call.error


def test_request_without_a_body_is_sent_again_where_a_kept_connection_was_closed() -> None:
    """The server closes an idle connection just as it is used again."""
    served: list[bytes] = []

    def handle(connection: UpstreamConnection) -> None:
        served.append(connection.read_request())
        connection.send(OK)
        if len(served) == 1:
            connection.read_request()  # ended without a response

    with relaying(handle) as (proxy, _):
        for _ in range(2):
            assert exchange(proxy.port, request_bytes("GET", "/up/v1")).status == 200


# ── Uploads ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("chunked", [False, True], ids=["content-length", "chunked"])
def test_first_byte_of_an_upload_goes_on_before_the_last_arrives(chunked: bool) -> None:
    began = threading.Event()
    bodies: list[bytes] = []

    def handle(connection: UpstreamConnection) -> None:
        head = connection.read_head()
        assert (b"transfer-encoding: chunked" in head) is chunked
        first = chunk(b"first") if chunked else b"first"
        assert connection.read(len(first)) == first
        began.set()
        last = chunk(b"last!") + b"0\r\n\r\n" if chunked else b"last!"
        bodies.append(connection.read(len(last)))
        connection.send(OK)

    framing = {"transfer_encoding": "chunked"} if chunked else {"content_length": "10"}
    with relaying(handle) as (proxy, seen):
        head = request_bytes("PUT", "/up/v1", b"", **framing)
        with asking(proxy, head + (chunk(b"first") if chunked else b"first")) as connection:
            assert began.wait(PATIENCE)
            connection.sendall(chunk(b"last!") + b"0\r\n\r\n" if chunked else b"last!")
            assert read_response(connection).status == 200
        (call,) = seen.wait()
    assert bodies == [chunk(b"last!") + b"0\r\n\r\n" if chunked else b"last!"]
    assert call.request_body == b"firstlast!"


def test_slow_upstream_slows_an_upload() -> None:
    """What a provider does not read is not collected here."""
    size, ended = 1 << 30, threading.Event()

    def handle(connection: UpstreamConnection) -> None:
        connection.read_head()
        assert ended.wait(PATIENCE)

    with relaying(handle) as (proxy, _):
        head = request_bytes("PUT", "/up/v1", b"", content_length=str(size))
        with asking(proxy, head) as connection:
            connection.settimeout(0.5)
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent < size:
                    sent += connection.send(b"x" * 65_536)
        ended.set()
    assert sent < 64 * 1024 * 1024


@pytest.mark.parametrize("chunked", [False, True], ids=["content-length", "chunked"])
def test_aborted_upload_is_never_completed_upstream(chunked: bool) -> None:
    began, ended = threading.Event(), threading.Event()
    rest: list[bytes] = []

    def handle(connection: UpstreamConnection) -> None:
        connection.read_head()
        connection.read(len(chunk(b"first") if chunked else b"first"))
        began.set()
        rest.append(connection.read(100))
        ended.set()

    framing = {"transfer_encoding": "chunked"} if chunked else {"content_length": "99"}
    with relaying(handle) as (proxy, seen):
        head = request_bytes("PUT", "/up/v1", b"", **framing)
        with asking(proxy, head + (chunk(b"first") if chunked else b"first")):
            assert began.wait(PATIENCE)
        assert ended.wait(PATIENCE)
        (call,) = seen.wait()
    assert rest == [b""]
    assert (call.outcome, call.request_body) == ("cancelled", None)


def test_answer_before_the_end_of_an_upload_is_passed_on() -> None:
    answer = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}"

    def handle(connection: UpstreamConnection) -> None:
        connection.read_head()
        connection.send(answer)
        connection.wait_closed()

    with relaying(handle) as (proxy, seen):
        head = request_bytes("PUT", "/up/v1", content_length="1000000")
        with asking(proxy, head + b"begun") as connection:
            assert read_response(connection).status == 413
        (call,) = seen.wait()
    assert (call.status, call.request_body) == (413, None)


def test_client_that_waits_to_be_told_to_continue() -> None:
    with relaying(answering(OK)) as (proxy, _):
        head = request_bytes("POST", "/up/v1", content_length="4", expect="100-continue")
        with asking(proxy, head) as connection:
            assert receive_until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
            connection.sendall(b"body")
            assert read_response(connection).status == 200


def test_upload_waits_for_the_whole_body_where_markers_are_placed() -> None:
    bodies: list[bytes] = []

    def place(request: UpstreamRequest) -> bytes | None:
        assert isinstance(request.body, bytes)
        bodies.append(request.body)
        return None

    with socket_upstream(answering(OK)) as upstream:
        with running([upstream.route()], place=place) as proxy:
            body = b"x" * 1_000_000
            assert exchange(proxy.port, request_bytes("POST", "/up/v1", body)).status == 200
        assert upstream.requests[0].endswith(body)
    assert bodies == [body]


# ── Bodies that are too large to keep ────────────────────────────────────────────────────────────


@pytest.fixture
def keeping_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "KEPT_BYTES", 1000)


@pytest.mark.parametrize("placing", [False, True])
def test_larger_request_is_relayed_and_not_kept(keeping_little: None, placing: bool) -> None:
    body, seen = b"x" * 300_000, CallList()

    def place(request: UpstreamRequest) -> bytes | None:
        raise AssertionError("too large to be placed in")

    with socket_upstream(answering(OK)) as upstream:
        with running(
            [upstream.route()], observers=[seen], place=place if placing else None
        ) as proxy:
            assert exchange(proxy.port, request_bytes("POST", "/up/v1", body)).status == 200
        assert upstream.requests[0].endswith(b"\r\n\r\n" + body)
    (call,) = seen.calls
    assert (call.request_body, call.outcome) == (None, "complete")


def test_larger_response_is_relayed_and_not_kept(keeping_little: None) -> None:
    body = b"x" * 300_000
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + body
    with relaying(answering(answer)) as (proxy, seen):
        assert exchange(proxy.port, request_bytes("GET", "/up/v1")).body == body
        (call,) = seen.wait()
    assert (call.pieces, call.outcome, call.status) == (None, "complete", 200)


def test_kept_size_is_the_documented_one() -> None:
    assert KEPT_BYTES == 32 * 1024 * 1024


# ── Stopping ─────────────────────────────────────────────────────────────────────────────────────


def test_stopping_ends_what_is_under_way_and_observers_get_it() -> None:
    asked, seen = threading.Event(), CallList()

    def handle(connection: UpstreamConnection) -> None:
        connection.read_request()
        connection.send(CHUNKED + chunk(b"one"))
        asked.set()
        connection.wait_closed()

    with socket_upstream(handle) as upstream, contextlib.ExitStack() as stack:
        with running([upstream.route()], observers=[seen]) as proxy:
            connection = stack.enter_context(asking(proxy, request_bytes("GET", "/up/v1")))
            assert asked.wait(PATIENCE)
            receive_until(connection, b"one\r\n")
        assert not receive_all(connection).endswith(b"0\r\n\r\n")
    (call,) = seen.calls
    assert call.outcome == "cancelled"
