"""A server for any handler: bodies within limits, aborted uploads, errors, and stopping."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from support.raw_http import exchange, read_response, request_bytes
from support.waiting import PATIENCE

from anaphora.errors import InvalidRequest, Io, Upstream
from anaphora.serving.app import HostGuard, ServedApp
from anaphora.serving.exchange import BodyLimits, CompleteResponse, HttpExchange
from anaphora.serving.server import ServerAddress, bound_socket, reserved_port, running

LIMITS = BodyLimits(size=1000)
IMPATIENT = BodyLimits(size=1000, seconds=0.1, rate=1_000_000)
FOREVER = 3600.0
SECRET = {"authorization": "Bearer canary"}


class Echo:
    """Answers with the size of the body; what else it does is in the path."""

    def __init__(self) -> None:
        self.handled: list[str] = []
        self.ended = threading.Event()
        self.reading = threading.Event()

    async def handle(self, request: HttpExchange) -> None:
        self.reading.set()
        if request.path == "/refused":
            raise InvalidRequest("no")
        body = await request.read_body()
        self.handled.append(request.path)
        if request.path == "/bug":
            raise KeyError(request.headers["authorization"])
        if request.path == "/late-bug":
            await request.start(200, {})
            await request.write(b"begun", more=True)
            raise KeyError(request.headers["authorization"])
        try:
            if request.path == "/hang":
                await request.wait(FOREVER)
            if request.path == "/stream":
                await request.start(200, {})
                await request.write(b"begun", more=True)
                await request.wait(FOREVER)
        finally:
            self.ended.set()
        await request.respond(CompleteResponse(200, {}, b"%d" % len(body)))

    def error(self, request: HttpExchange, problem: Upstream) -> CompleteResponse:
        status = problem.status or 500
        return CompleteResponse(status, {"x-path": request.path}, str(problem).encode())


class Served:
    def __init__(self, echo: Echo, address: ServerAddress, app: ServedApp) -> None:
        self.echo, self.port, self.url, self.app = echo, address.port, address.url, app

    def connect(self, data: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        connection.sendall(data)
        return connection


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    echo = Echo()
    app = ServedApp(echo, HostGuard("127.0.0.1"), getattr(request, "param", LIMITS))
    with running(app, host="127.0.0.1", extra="emulator") as address:
        yield Served(echo, address, app)


# ── Bodies ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [0, 7, 994])
@pytest.mark.parametrize("chunked", [False, True])
def test_body_is_read(served: Served, size: int, chunked: bool) -> None:
    content: Any = (b"x" * 7 for _ in range(size // 7)) if chunked else b"x" * size
    assert httpx.post(served.url, content=content).text == str(size)


@pytest.mark.parametrize("size", [1001, 20_000_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_body_above_the_limit_is_refused(served: Served, size: int, chunked: bool) -> None:
    """The client gets the answer, though it has not sent everything."""
    body = b"x" * size
    content: Any = (body[at : at + 65_536] for at in range(0, size, 65_536)) if chunked else body
    answer = httpx.post(f"{served.url}/big", content=content, timeout=PATIENCE)
    assert answer.status_code == 413
    assert answer.text == "the request body is larger than 1,000 bytes"
    assert answer.headers["x-path"] == "/big"
    assert served.echo.handled == []


def test_size_is_refused_before_the_body_is_read(served: Served) -> None:
    answer = exchange(served.port, request_bytes("POST", "/", content_length="1001"))
    assert answer.status == 413


@pytest.mark.parametrize("body", [b"", b"x" * 500])
def test_a_connection_is_not_used_again_behind_a_body_that_was_not_read(
    served: Served, body: bytes
) -> None:
    """The server does not look for the next request there."""
    read = exchange(served.port, request_bytes("POST", "/", body))
    assert "connection: close" not in read.head
    refused = exchange(served.port, request_bytes("POST", "/refused", body))
    assert ("connection: close" in refused.head) == bool(body)


@pytest.mark.parametrize("served", [IMPATIENT], indirect=True, ids=["impatient"])
@pytest.mark.parametrize("pieces", [[], [b"abc"], [b"a", b"b"]])
def test_slow_body_is_refused(served: Served, pieces: list[bytes]) -> None:
    with served.connect(request_bytes("POST", "/", content_length="100")) as connection:
        for piece in pieces:
            connection.sendall(piece)
        assert read_response(connection).status == 408
    assert served.echo.handled == []


def close(connection: socket.socket) -> None:
    connection.close()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("leave", [close, reset])
@pytest.mark.parametrize(
    "data",
    [
        request_bytes("POST", "/", content_length="100"),
        request_bytes("POST", "/", b"abc", content_length="100"),
        request_bytes("POST", "/", b"3\r\nabc\r\n", content_length="", transfer_encoding="chunked"),
    ],
    ids=["no byte", "some bytes", "some chunks"],
)
def test_aborted_upload_is_no_request(
    served: Served, data: bytes, leave: Callable[[socket.socket], None]
) -> None:
    connection = served.connect(data.replace(b"content-length: \r\n", b""))
    assert served.echo.reading.wait(PATIENCE)
    leave(connection)
    assert httpx.get(f"{served.url}/next").text == "0"
    assert served.echo.handled == ["/next"]


def test_malformed_chunk_is_a_bad_request(served: Served) -> None:
    data = request_bytes("POST", "/", transfer_encoding="chunked", content_length="")
    data = data.replace(b"content-length: \r\n", b"") + b"3\r\nabc\r\nwat\r\n"
    answer = exchange(served.port, data)
    assert (answer.status, answer.body) == (400, b"the request body is incomplete")
    assert served.echo.handled == []


@pytest.mark.parametrize("name", ["host", "origin", "sec-fetch-site"])
def test_header_that_decides_is_sent_once(served: Served, name: str) -> None:
    data = request_bytes("GET", "/").replace(b"\r\n\r\n", b"\r\nHost: localhost\r\n\r\n")
    twice = f"\r\n{name}: a\r\n{name}: b\r\n\r\n".encode()
    data = data if name == "host" else request_bytes("GET", "/").replace(b"\r\n\r\n", twice)
    answer = exchange(served.port, data)
    assert (answer.status, answer.body) == (400, f"the header {name} is sent twice".encode())


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────


def test_bug_is_an_error_in_the_format_of_the_caller(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "anaphora"):
        answer = httpx.get(f"{served.url}/bug", headers=SECRET)
    assert answer.status_code == 500
    assert (
        answer.text == "internal error: KeyError; this is a bug of the server, and its log has more"
    )
    assert answer.headers["x-path"] == "/bug"
    assert "GET /bug: KeyError at " in caplog.text
    assert "in handle" in caplog.text
    assert SECRET["authorization"] not in answer.text + caplog.text


def test_bug_in_the_middle_of_a_response_ends_the_connection(served: Served) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{served.url}/late-bug", headers=SECRET)


# ── Waits ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/hang", "/stream"])
def test_response_ends_when_the_client_is_gone(
    served: Served, path: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    connection = served.connect(request_bytes("GET", path))
    if path == "/stream":
        assert connection.recv(100)
    else:
        assert served.echo.reading.wait(PATIENCE)
    connection.close()
    assert served.echo.ended.wait(PATIENCE)
    assert httpx.get(served.url).text == "0"
    assert caplog.text == ""
    assert capfd.readouterr() == ("", "")


def test_stopping_ends_waits_and_uploads() -> None:
    echo = Echo()
    limits = BodyLimits(seconds=FOREVER)
    app = ServedApp(echo, HostGuard("127.0.0.1"), limits)
    with running(app, host="127.0.0.1", extra="emulator") as address:
        served = Served(echo, address, app)
        hanging = served.connect(request_bytes("GET", "/hang"))
        streaming = served.connect(request_bytes("GET", "/stream"))
        uploading = served.connect(request_bytes("POST", "/", b"abc", content_length="100"))
        assert streaming.recv(100)
        while len(app._open) < 3:
            threading.Event().wait(0.01)
    for connection in (hanging, uploading):
        answer = read_response(connection)
        assert (answer.status, answer.body) == (503, b"the server is stopping")
        connection.close()
    rest = b""
    while piece := streaming.recv(100):
        rest += piece
    assert not rest.endswith(b"0\r\n\r\n"), "the client knows that the stream was cut"
    streaming.close()


# ── Addresses ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "host, url",
    [
        ("127.0.0.1", "http://127.0.0.1:8787"),
        ("0.0.0.0", "http://127.0.0.1:8787"),
        ("::1", "http://[::1]:8787"),
        ("::", "http://[::1]:8787"),
    ],
)
def test_url_is_one_that_this_machine_reaches(host: str, url: str) -> None:
    assert ServerAddress(host, 8787).url == url


@pytest.mark.parametrize("port", [-1, 65_536, 99_999])
def test_port_out_of_range(port: int) -> None:
    with pytest.raises(InvalidRequest, match=f"port: must be between 0 and 65535, got {port}"):
        reserved_port("127.0.0.1", port).__enter__()


@pytest.mark.skipif(sys.platform != "linux", reason="ports are held on Linux only")
def test_nothing_else_takes_a_free_port_while_its_server_starts() -> None:
    """A client that connects to a free port may get the same one for its own end, and then reaches
    itself."""
    with reserved_port("127.0.0.1") as port:
        with pytest.raises(Io, match="Address already in use; choose another port"):
            bound_socket("127.0.0.1", port)
        with socket.socket() as client, pytest.raises(OSError, match="Address already in use"):
            client.bind(("127.0.0.1", port))
        with bound_socket("127.0.0.1", port, is_shared=True) as server:
            server.listen()
            for _ in range(20):  # all connections are its own
                with socket.create_connection(("127.0.0.1", port), PATIENCE):
                    server.accept()[0].close()


def test_address_of_another_machine_cannot_be_bound() -> None:
    with pytest.raises(Io, match=r"cannot listen at 192\.0\.2\.1:0: "):
        reserved_port("192.0.2.1").__enter__()


@pytest.mark.parametrize("host", ["localhost", "::1", "0.0.0.0", ""])
def test_server_is_reached_at_the_url_of_its_host(host: str) -> None:
    """Granian itself takes addresses only, and `localhost` is a name."""
    app = ServedApp(Echo(), HostGuard(host))
    with running(app, host=host, extra="emulator") as address:
        assert httpx.get(f"{address.url}/", trust_env=False).text == "0"


def test_unknown_host_is_named() -> None:
    with pytest.raises(Io, match=r"cannot listen at nowhere\.invalid: the host is not known"):
        reserved_port("nowhere.invalid").__enter__()


def test_only_http_is_served() -> None:
    """Granian's lifespan events are not requests."""
    app = ServedApp(Echo(), HostGuard("127.0.0.1"))
    asyncio.run(app({"type": "lifespan"}, None, None))
