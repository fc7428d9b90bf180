"""The server on asyncio, at a Unix socket and at a port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.certificates import write_certificate
from support.raw_http import read_response, request_bytes
from support.waiting import PATIENCE

from anaphora.errors import Io, Upstream
from anaphora.serving.app import HostGuard, ServedApp
from anaphora.serving.connection_limits import PEER, ConnectionLimits, PeerCredentials
from anaphora.serving.exchange import BodyLimits, CompleteResponse, HttpExchange
from anaphora.serving.listening import tcp_server, unix_server
from anaphora.serving.server import ServerAddress, in_thread

LIMITS = BodyLimits(size=100_000, write_seconds=0.2)
CONNECTIONS = ConnectionLimits(connections=8, header_bytes=8192, idle_seconds=0.3)
PIECE = b"x" * 65_536


class Handler:
    """Does what the path says."""

    def __init__(self) -> None:
        self.disconnected = threading.Event()
        self.peer: PeerCredentials | None = None
        self.written = 0

    async def handle(self, request: HttpExchange) -> None:
        self.peer = request.scope.get(PEER)
        body = await request.read_body()
        # aiohttp adds a type to a response that has none: only the others are written as they are.
        head = {"content-type": "text/plain"} if request.query_string == b"typed" else {}
        if request.path == "/hang":
            request.watch()
            try:
                await request.run(asyncio.sleep(60))
            finally:
                self.disconnected.set()
        if request.path == "/endless":
            await request.start(200, head)
            try:
                while True:
                    await request.write(PIECE, more=True)
                    self.written += len(PIECE)
            finally:
                self.disconnected.set()
        if request.path == "/stream":
            await request.start(200, {"content-type": "text/plain"})
            for piece in (b"one ", b"two ", b"three"):
                await request.write(piece, more=True)
            await request.write(b"")
            return
        if request.path == "/empty":
            await request.respond(CompleteResponse(204, {}, b""))
            return
        if request.path == "/late-bug":
            await request.start(200, head)
            await request.write(b"begun", more=True)
            raise KeyError
        if request.path == "/header":
            value = request.headers["x-value"].replace("~", "\r\n")
            head |= {"content-type": "text/plain", "x-value": value}
            await request.respond(CompleteResponse(200, head, b"whole"))
            return
        text = f"{request.method} {request.path} {request.query_string.decode()} {len(body)}"
        await request.respond(CompleteResponse(200, {}, text.encode()))

    def error(self, request: HttpExchange, problem: Upstream) -> CompleteResponse:
        return CompleteResponse(problem.status or 500, {}, str(problem).encode())


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture(params=["socket", "port"])
def served(
    request: pytest.FixtureRequest, handler: Handler, tmp_path: Path
) -> Iterator[Path | ServerAddress]:
    app = ServedApp(handler, HostGuard("127.0.0.1"), LIMITS)
    if request.param == "socket":
        path = tmp_path / "test.sock"
        with in_thread(lambda: unix_server(app, path, limits=CONNECTIONS)):
            yield path
    else:
        with in_thread(lambda: tcp_server(app, host="127.0.0.1", limits=CONNECTIONS)) as address:
            yield address


@pytest.fixture
def client(served: Path | ServerAddress) -> Iterator[httpx.Client]:
    path = str(served) if isinstance(served, Path) else None
    base_url = "http://localhost" if isinstance(served, Path) else served.url
    transport = httpx.HTTPTransport(uds=path, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    with httpx.Client(transport=transport, base_url=base_url) as client:
        yield client


def connect(served: Path | ServerAddress, data: bytes) -> socket.socket:
    if isinstance(served, Path):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(served))
    else:
        connection = socket.create_connection((served.host, served.port))
    connection.settimeout(PATIENCE)
    if data:  # the peer may have closed the connection already
        connection.sendall(data)
    return connection


def test_socket_names_the_peer(
    client: httpx.Client, handler: Handler, served: Path | ServerAddress
) -> None:
    answer = client.post("/a%20b?c=d", content=PIECE)
    assert answer.text == "POST /a b c=d 65536"
    if isinstance(served, Path):
        assert handler.peer == PeerCredentials(os.getpid(), os.getuid(), os.getgid())
        assert served.stat().st_mode & 0o777 == 0o600
    else:
        assert handler.peer is None


def test_stream_arrives_in_pieces_on_one_connection(client: httpx.Client) -> None:
    for _ in range(2):
        with client.stream("GET", "/stream") as answer:
            assert answer.headers["transfer-encoding"] == "chunked"
            assert b"".join(answer.iter_raw()) == b"one two three"


def test_head_of_a_stream_goes_with_its_first_piece(served: Path | ServerAddress) -> None:
    asked = request_bytes("GET", "/stream")
    with connect(served, asked + asked) as connection:
        received = b""
        while received.count(b"0\r\n\r\n") < 2:
            received += connection.recv(65_536)
    _, first, second = received.split(b"HTTP/1.1 200 OK\r\n")
    for answer in (first, second):
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head.lower().split(b"\r\n")
        assert b"content-length" not in head.lower()
        assert body == b"4\r\none \r\n4\r\ntwo \r\n5\r\nthree\r\n0\r\n\r\n"


def test_responses_without_a_body_keep_the_connection(
    client: httpx.Client, served: Path | ServerAddress
) -> None:
    for _ in range(2):
        assert client.post("/empty").status_code == 204
        head = client.head("/any")
        assert (head.status_code, head.content) == (200, b"")
    requests = request_bytes("POST", "/empty") + request_bytes("HEAD", "/") + b"GET / HTTP/1.1\r\n"
    with connect(served, requests + b"host: localhost\r\nconnection: close\r\n\r\n") as connection:
        received = b""
        while piece := connection.recv(65_536):
            received += piece
    assert received.count(b"HTTP/1.1 ") == 3
    assert received.endswith(b"\r\n\r\nGET /  0")


def test_client_that_waits_for_100_continue_is_told_to_send(served: Path | ServerAddress) -> None:
    head = request_bytes("POST", "/", content_length="3", expect="100-continue")
    with connect(served, head) as connection:
        assert connection.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"abc")
        assert read_response(connection).body == b"POST /  3"
    refused = request_bytes("POST", "/", content_length="200000", expect="100-continue")
    with connect(served, refused) as connection:
        assert read_response(connection).status == 413


def test_body_above_the_limit_is_refused(client: httpx.Client) -> None:
    assert client.post("/", content=PIECE * 2).status_code == 413


@pytest.mark.parametrize("query", ["", "?typed"])
def test_error_within_a_response_cuts_the_connection(client: httpx.Client, query: str) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        client.get(f"/late-bug{query}")
    assert client.get("/").status_code == 200


def test_disconnect_cancels_the_work(served: Path | ServerAddress, handler: Handler) -> None:
    connect(served, request_bytes("GET", "/hang")).close()
    assert handler.disconnected.wait(PATIENCE)


@pytest.mark.parametrize("query", ["", "?typed"])
def test_slow_reader_is_disconnected(
    served: Path | ServerAddress, handler: Handler, query: str
) -> None:
    with connect(served, request_bytes("GET", f"/endless{query}")) as connection:
        assert handler.disconnected.wait(PATIENCE)
        # The system keeps megabytes for a connection over TCP.
        assert handler.written < 200 * len(PIECE)
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(1 << 20):
                received += len(piece)
    assert received <= handler.written + len(PIECE) + 1000


@pytest.mark.parametrize("head", [b"NO HTTP\r\n\r\n", b"GET / HTTP/1.1\r\nx: " + b"y" * 9000])
def test_invalid_head_is_refused_without_details(served: Path | ServerAddress, head: bytes) -> None:
    with connect(served, head + b"\r\n\r\n") as connection:
        answer = read_response(connection)
    assert answer.status == 400
    assert answer.body == b"the request is not valid HTTP\n"


def test_idle_connection_and_slow_head_are_closed(served: Path | ServerAddress) -> None:
    with connect(served, b"GET / HTTP/1.1\r\n") as connection:
        assert connection.recv(100) == b""


def test_connections_above_the_limit_are_closed(served: Path | ServerAddress) -> None:
    held = [connect(served, b"") for _ in range(CONNECTIONS.connections)]
    try:
        with connect(served, b"") as one_more, contextlib.suppress(ConnectionResetError):
            assert one_more.recv(1) == b""
    finally:
        for connection in held:
            connection.close()


def test_head_and_body_of_a_response_are_one_piece(served: Path | ServerAddress) -> None:
    with connect(served, request_bytes("GET", "/one")) as connection:
        received = connection.recv(65_536)
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert received.endswith(b"\r\n\r\nGET /one  0")


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [("1.1", "keep-alive", True), ("1.1", "close", False), ("1.0", "close", False)],
)
def test_whole_response_has_the_usual_head(
    served: Path | ServerAddress, version: str, connection: str, kept: bool
) -> None:
    head = f"Host: localhost\r\nx-value: a\r\nConnection: {connection}\r\n\r\n"
    with connect(served, f"GET /header HTTP/{version}\r\n{head}".encode()) as opened:
        response = read_response(opened)
        lines = response.head.split("\r\n")
        assert (response.status, response.body) == (200, b"whole")
        assert {"content-length: 5", "server: anaphora", "x-value: a"} < set(lines)
        assert [line[-4:] for line in lines if line.startswith("date: ")] == [" gmt"]
        assert ("connection: close" in lines) == (not kept and version == "1.1")
        opened.settimeout(PATIENCE)
        if kept:
            opened.sendall(request_bytes("GET", "/other"))
            assert read_response(opened).status == 200
        else:
            assert opened.recv(1) == b""


def test_header_with_a_line_break_is_not_written(client: httpx.Client) -> None:
    with pytest.raises(httpx.HTTPError):
        client.get("/header", headers={"x-value": "a~x-added: 1"})


def test_path_that_is_too_long_is_named(tmp_path: Path) -> None:
    app = ServedApp(Handler(), HostGuard("127.0.0.1"))
    with (
        pytest.raises(Io, match="may have 107 bytes"),
        in_thread(lambda: unix_server(app, tmp_path / ("x" * 100) / "test.sock")),
    ):
        pass


def test_tls_uses_a_renewed_certificate_for_new_connections(tmp_path: Path) -> None:
    first, second = (write_certificate(tmp_path, name) for name in ("first", "second"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(first.cert, first.key)
    app = ServedApp(Handler(), HostGuard("127.0.0.1"), LIMITS)

    def answer(cafile: Path, path: str) -> str:
        with httpx.Client(verify=ssl.create_default_context(cafile=cafile)) as client:
            return client.get(f"{address.url}{path}").text

    with in_thread(lambda: tcp_server(app, host="127.0.0.1", tls=context)) as address:
        assert address.url.startswith("https://127.0.0.1:")
        assert answer(first.cert, "/one") == "GET /one  0"
        context.load_cert_chain(second.cert, second.key)
        assert answer(second.cert, "/two") == "GET /two  0"
        with pytest.raises(httpx.ConnectError):
            answer(first.cert, "/three")
