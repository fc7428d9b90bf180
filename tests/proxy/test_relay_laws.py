"""Laws of the relay, for any headers and any pieces."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.raw_http import exchange
from support.socket_upstream import SocketUpstream, UpstreamConnection, socket_upstream
from support.waiting import PATIENCE

from anaphora.proxy.server import Proxy, running

#: Headers that the hops decide about, or that say where a message ends.
DECIDED = {
    "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect", "host",
    "content-length", "proxy-authorization", "proxy-authenticate", "proxy-connection", "origin",
    "sec-fetch-site", "date", "server",
}  # fmt: skip
names = st.from_regex(r"[a-z][a-z0-9_-]{0,20}", fullmatch=True).filter(
    lambda name: name not in DECIDED
)
values = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=60)
headers = st.lists(st.tuples(names, values), max_size=12)


class Scripted:
    """Answers with the bytes that a test has set."""

    answer = b""

    def __call__(self, connection: UpstreamConnection) -> None:
        while connection.read_request():
            connection.send(self.answer)


@pytest.fixture(scope="module")
def script() -> Scripted:
    return Scripted()


@pytest.fixture(scope="module")
def upstream(script: Scripted) -> Iterator[SocketUpstream]:
    with socket_upstream(script) as running_upstream:
        yield running_upstream


@pytest.fixture(scope="module")
def proxy(upstream: SocketUpstream) -> Iterator[Proxy]:
    with running([upstream.route()]) as running_proxy:
        yield running_proxy


def together(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Duplicates of a name at its first place."""
    order = list(dict.fromkeys(name for name, _ in pairs))
    return sorted(pairs, key=lambda pair: order.index(pair[0]))


def lines(pairs: list[tuple[str, str]]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in pairs).encode()


def pairs_of(head: bytes) -> list[tuple[str, str]]:
    split = (line.partition(": ") for line in head.decode().split("\r\n")[1:] if line)
    return [(name, value) for name, _, value in split if name not in DECIDED]


@given(sent=headers)
def test_headers_of_a_request_pass(
    proxy: Proxy, upstream: SocketUpstream, script: Scripted, sent: list[tuple[str, str]]
) -> None:
    script.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    upstream.requests.clear()
    exchange(proxy.port, b"GET /up/v1 HTTP/1.1\r\nHost: localhost\r\n" + lines(sent) + b"\r\n")
    (request,) = upstream.requests
    assert pairs_of(request) == together(sent)


@given(given_back=headers, status=st.integers(200, 599).filter(lambda code: code not in (204, 304)))
def test_headers_of_a_response_pass(
    proxy: Proxy, script: Scripted, given_back: list[tuple[str, str]], status: int
) -> None:
    head = f"HTTP/1.1 {status} Any\r\nContent-Length: 2\r\n".encode()
    script.answer = head + lines(given_back) + b"\r\n{}"
    answer = exchange(proxy.port, b"GET /up/v1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (answer.status, answer.body) == (status, b"{}")
    expected = [(name, value.lower()) for name, value in together(given_back)]
    assert pairs_of(answer.head.encode()) == expected


@given(pieces=st.lists(st.binary(min_size=1, max_size=5000), max_size=20))
def test_body_of_a_response_passes_in_whatever_chunks_it_comes(
    proxy: Proxy, script: Scripted, pieces: list[bytes]
) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    script.answer = head + chunks + b"0\r\n\r\n"
    received = b""
    with socket.create_connection(("127.0.0.1", proxy.port), PATIENCE) as connection:
        connection.sendall(b"GET /up/v1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while data := connection.recv(65_536):
                received += data
    assert dechunked(received.partition(b"\r\n\r\n")[2]) == b"".join(pieces)


def dechunked(data: bytes) -> bytes:
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            assert data == b"\r\n"
            return body
        body, data = body + data[:length], data[length + 2 :]
