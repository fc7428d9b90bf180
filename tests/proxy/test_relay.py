"""What passes the proxy is what was sent, in both directions."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.raw_http import exchange, read_response, request_bytes
from support.socket_upstream import (
    CallList,
    SocketUpstream,
    UpstreamConnection,
    answering,
    socket_upstream,
)
from support.waiting import PATIENCE

from anaphora.proxy.server import Proxy, running

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer: up\r\nDate: then\r\n\r\n{}"
KEY = "sk-canary-0123456789"
#: What a proxy has to take away; the client adds what Connection names.
HOPS = {
    "Connection": "keep-alive, X-Between",
    "X-Between": "hop",
    "Keep-Alive": "timeout=5",
    "Proxy-Connection": "keep-alive",
    "Proxy-Authorization": "Basic eDp5",
    "TE": "trailers",
}


@pytest.fixture(scope="module")
def upstream() -> Iterator[SocketUpstream]:
    with socket_upstream(answering(OK)) as running_upstream:
        yield running_upstream


@pytest.fixture(scope="module")
def proxy(upstream: SocketUpstream) -> Iterator[Proxy]:
    with running([upstream.route()]) as running_proxy:
        yield running_proxy


def sent_upstream(proxy: Proxy, upstream: SocketUpstream, data: bytes) -> bytes:
    """What arrives of a request."""
    upstream.requests.clear()
    assert exchange(proxy.port, data).status == 200
    (request,) = upstream.requests
    return request


def relayed(answer: bytes, request: bytes | None = None) -> bytes:
    """What comes of an answer, as bytes, until the connection is closed."""
    data = request or request_bytes("GET", "/up/v1", Connection="close")
    with (
        socket_upstream(answering(answer)) as upstream,
        running([upstream.route()]) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), PATIENCE) as connection,
    ):
        connection.sendall(data)
        received = b""
        while piece := connection.recv(65_536):
            received += piece
    return received


# ── The request ──────────────────────────────────────────────────────────────────────────────────


def test_request_arrives_as_it_was_sent(proxy: Proxy, upstream: SocketUpstream) -> None:
    head = (
        b"POST /up/v1/messages?beta=true&q=%20a+b HTTP/1.1\r\nhost: localhost\r\n"
        b"x-api-key: k\r\nuser-agent: one\r\nuser-agent: two\r\nx-empty: \r\naccept: */*\r\n"
        b"content-length: 17\r\n\r\n"
    )
    body = b'{ "b" :1,\n"a":\t2}'
    arrived = sent_upstream(proxy, upstream, head + body)
    address = upstream.url.removeprefix("http://").encode()
    expected = head.replace(b"/up/v1", b"/v1").replace(b"localhost", address)
    assert arrived == expected + body


def test_duplicates_of_a_header_keep_their_order_and_come_together(
    proxy: Proxy, upstream: SocketUpstream
) -> None:
    head = b"GET /up/v1 HTTP/1.1\r\nHost: localhost\r\nX-A: 1\r\nX-B: 1\r\nx-a: 2\r\nX-A: 1\r\n\r\n"
    assert b"x-a: 1\r\nx-a: 2\r\nx-a: 1\r\nx-b: 1" in sent_upstream(proxy, upstream, head)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/files/a%2Fb%20c",
        "/v1/%C3%A9?x=%C3%A9",
        "/v1beta/models/gemini-2.5-pro:generateContent?alt=sse&key=k",
        "/v1//double/../dots/./",
        "/v1/a;b=c,d'e(f)",
        "/v1/?",
        "/",
        "/?a=b",
    ],
)
def test_path_and_query_keep_their_encoding(
    path: str, proxy: Proxy, upstream: SocketUpstream
) -> None:
    line = sent_upstream(proxy, upstream, request_bytes("GET", f"/up{path}")).split(b"\r\n")[0]
    # A question mark with nothing behind it is not told apart from none.
    assert line.decode() == f"GET {path.removesuffix('?')} HTTP/1.1"


def test_root_of_a_route_is_the_root_upstream(proxy: Proxy, upstream: SocketUpstream) -> None:
    assert sent_upstream(proxy, upstream, request_bytes("GET", "/up")).startswith(b"GET / HTTP/1.1")


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
def test_every_method_passes(method: str, proxy: Proxy, upstream: SocketUpstream) -> None:
    body = b"x" if method in ("POST", "PUT", "PATCH") else b""
    arrived = sent_upstream(proxy, upstream, request_bytes(method, "/up/v1", body))
    assert arrived.startswith(f"{method} /v1 ".encode())
    assert arrived.endswith(b"\r\n\r\n" + body)


def test_nothing_is_added_to_a_bare_request(proxy: Proxy, upstream: SocketUpstream) -> None:
    arrived = sent_upstream(proxy, upstream, b"GET /up/v1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    address = upstream.url.removeprefix("http://")
    assert arrived.decode() == f"GET /v1 HTTP/1.1\r\nhost: {address}\r\n\r\n"


def test_hop_by_hop_headers_end_at_the_proxy(proxy: Proxy, upstream: SocketUpstream) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in HOPS.items())
    head = f"GET /up/v1 HTTP/1.1\r\nHost: localhost\r\n{lines}X-Kept: yes\r\n\r\n"
    arrived = sent_upstream(proxy, upstream, head.encode()).decode()
    assert [line.partition(":")[0] for line in arrived.split("\r\n")[1:-2]] == ["host", "x-kept"]


def test_host_stays_where_connection_names_it(proxy: Proxy, upstream: SocketUpstream) -> None:
    """HTTP has no request without it."""
    head = b"GET /up/v1 HTTP/1.1\r\nHost: localhost\r\nConnection: host, x-a\r\nX-A: 1\r\n\r\n"
    arrived = sent_upstream(proxy, upstream, head).decode()
    address = upstream.url.removeprefix("http://")
    assert arrived == f"GET /v1 HTTP/1.1\r\nhost: {address}\r\n\r\n"


def test_compressed_request_is_not_decompressed(proxy: Proxy, upstream: SocketUpstream) -> None:
    body = gzip.compress(b"{}" * 100)
    request = request_bytes("POST", "/up/v1", body, content_encoding="gzip")
    assert sent_upstream(proxy, upstream, request).endswith(b"\r\n\r\n" + body)


@given(st.binary(max_size=300_000), st.integers(1, 5))
def test_body_arrives_in_whatever_pieces_it_is_sent(
    proxy: Proxy, upstream: SocketUpstream, body: bytes, pieces: int
) -> None:
    upstream.requests.clear()
    data = request_bytes("POST", "/up/v1", body)
    cut = len(data) // pieces + 1
    with socket.create_connection(("127.0.0.1", proxy.port), PATIENCE) as connection:
        for start in range(0, len(data), cut):
            connection.sendall(data[start : start + cut])
        assert read_response(connection).status == 200
    assert upstream.requests[0].partition(b"\r\n\r\n")[2] == body


def test_connection_upstream_is_used_again(upstream: SocketUpstream) -> None:
    with socket_upstream(answering(OK)) as fresh, running([fresh.route()]) as proxy:
        for _ in range(3):
            assert exchange(proxy.port, request_bytes("POST", "/up/v1", b"{}")).status == 200
        assert (fresh.connections, len(fresh.requests)) == (1, 3)


# ── The response ─────────────────────────────────────────────────────────────────────────────────


def test_response_arrives_as_it_was_sent() -> None:
    answer = (
        b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n"
        b"x-empty: \r\ncontent-type: application/json\r\nserver: up\r\n"
        b'date: Mon, 16 Nov 2026 08:00:00 GMT\r\ncontent-length: 12\r\n\r\n{ "e" : 429}'
    )
    head, _, body = relayed(answer).partition(b"\r\n\r\n")
    expected, _, content = answer.partition(b"\r\n\r\n")
    assert body == content
    # The server that hands it on closes the connection, as it was asked to.
    lines = [line for line in head.split(b"\r\n") if line != b"connection: close"]
    assert lines == expected.split(b"\r\n")


def test_hop_by_hop_headers_of_a_response_end_at_the_proxy() -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in HOPS.items())
    answer = f"HTTP/1.1 200 OK\r\n{lines}X-Kept: yes\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    head = relayed(answer).partition(b"\r\n\r\n")[0].lower()
    assert b"x-kept: yes" in head
    for name in ("x-between", "keep-alive", "proxy-", "\r\nte:"):
        assert name.encode() not in head


def test_compressed_response_is_not_decompressed() -> None:
    body = gzip.compress(b'{"a":1}' * 1000)
    size = len(body)
    answer = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {size}\r\n\r\n"
    head, _, received = relayed(answer.encode() + body).partition(b"\r\n\r\n")
    assert received == body
    assert b"content-encoding: gzip" in head.lower()


@pytest.mark.parametrize(
    "status, location", [(301, "https://elsewhere.example/v1"), (307, "/v2"), (308, "")]
)
def test_redirect_is_passed_on_and_not_followed(status: int, location: str) -> None:
    answer = f"HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
    head = relayed(answer.encode()).decode()
    assert head.startswith(f"HTTP/1.1 {status} ")
    assert f"location: {location}\r\n" in head


def test_head_keeps_its_length() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"
    received = relayed(answer, request_bytes("HEAD", "/up/v1", Connection="close"))
    assert b"content-length: 1234\r\n" in received
    assert received.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_response_without_a_body(status: str) -> None:
    received = relayed(f"HTTP/1.1 {status}\r\nETag: x\r\n\r\n".encode())
    assert received.startswith(f"HTTP/1.1 {status}".encode())
    assert b"transfer-encoding" not in received
    assert received.endswith(b"\r\n\r\n")


def test_empty_response() -> None:
    received = relayed(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    assert b"content-length: 0" in received
    assert received.endswith(b"\r\n\r\n")


def test_trailers_are_left_out_and_the_body_is_complete() -> None:
    answer = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
        b"3\r\nabc\r\n0\r\nX-Sum: 6\r\n\r\n"
    )
    head, _, body = relayed(answer).partition(b"\r\n\r\n")
    assert b"trailer" not in head.lower()
    assert body == b"3\r\nabc\r\n0\r\n\r\n"


def test_body_that_ends_with_the_connection() -> None:
    def handle(connection: UpstreamConnection) -> None:
        connection.read_request()
        connection.send(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    with socket_upstream(handle) as upstream, running([upstream.route()]) as proxy:
        answer = exchange(proxy.port, request_bytes("GET", "/up/v1"))
    assert answer.body == b"9\r\nall of it\r\n0\r\n\r\n"


def test_interim_responses_are_not_taken_for_the_response() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    assert relayed(interim + OK).endswith(b"\r\n\r\n{}")


def test_long_head_passes() -> None:
    """Some providers report a lot in headers."""
    answer = f"HTTP/1.1 200 OK\r\nX-Long: {'x' * 20_000}\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    assert b"x" * 20_000 in relayed(answer)


# ── What observers get ───────────────────────────────────────────────────────────────────────────


def test_observer_gets_what_passed(upstream: SocketUpstream) -> None:
    seen = CallList()
    with running([upstream.route()], observers=[seen]) as proxy:
        exchange(proxy.port, request_bytes("POST", "/up/v1/x?key=1", b'{"a":1}', x_api_key="k"))
    (call,) = seen.calls
    assert (call.method, call.path, call.query) == ("POST", "/v1/x", "key=1")
    assert call.request_body == b'{"a":1}'
    assert ("x-api-key", "k") in call.request_headers
    assert (call.status, call.outcome, call.error) == (200, "complete", "")
    assert b"".join(piece.data for piece in call.pieces or ()) == b"{}"
    assert ("server", "up") in call.response_headers
    assert call.began is not None
    assert call.began <= call.ended


def test_calls_are_observed_before_the_proxy_ends_and_in_order(upstream: SocketUpstream) -> None:
    seen = CallList()
    with running([upstream.route()], observers=[seen]) as proxy:
        for number in range(20):
            exchange(proxy.port, request_bytes("GET", f"/up/{number}"))
    assert [call.path for call in seen.calls] == [f"/{number}" for number in range(20)]
    assert [call.number for call in seen.calls] == list(range(1, 21))


def test_failing_observer_does_not_affect_the_relay_or_others(
    upstream: SocketUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        def call_ended(self, call: object) -> None:
            raise ValueError(KEY)

    seen = CallList()
    with running([upstream.route()], observers=[Failing(), seen]) as proxy:
        assert exchange(proxy.port, request_bytes("GET", "/up/v1")).status == 200
    assert len(seen.calls) == 1
    assert "the observer Failing failed for call 1: ValueError" in caplog.text
    assert KEY not in caplog.text


def test_placed_body_goes_upstream_and_both_are_kept(upstream: SocketUpstream) -> None:
    seen, longer = CallList(), b'{"placed":true}'
    upstream.requests.clear()
    with running([upstream.route()], observers=[seen], place=lambda _: longer) as proxy:
        exchange(proxy.port, request_bytes("POST", "/up/v1", b"{}"))
    head, _, body = upstream.requests[0].partition(b"\r\n\r\n")
    assert (b"content-length: 15" in head, body) == (True, longer)
    (call,) = seen.calls
    assert (call.request_body, call.sent_body) == (b"{}", longer)


def test_body_is_sent_as_it_is_where_placing_fails(
    upstream: SocketUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    def place(request: object) -> bytes | None:
        raise ValueError(KEY)

    upstream.requests.clear()
    with running([upstream.route()], place=place) as proxy:
        assert exchange(proxy.port, request_bytes("POST", "/up/v1", b"{}")).status == 200
    assert upstream.requests[0].endswith(b"\r\n\r\n{}")
    assert "placing markers failed: ValueError" in caplog.text
    assert KEY not in caplog.text
