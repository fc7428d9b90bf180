"""What the proxy refuses, in the caller's format, and who decides where a request goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from support.raw_http import exchange, request_bytes
from support.socket_upstream import SocketUpstream, answering, socket_upstream
from support.tables import each_row

from anaphora import wire
from anaphora.errors import InvalidRequest
from anaphora.proxy.routes import RouteTable, default_routes
from anaphora.proxy.server import Proxy, running
from anaphora.traffic.calls import ProxyRoute

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
HOST = "Host: localhost\r\n"


@pytest.fixture(scope="module")
def upstream() -> Iterator[SocketUpstream]:
    with socket_upstream(answering(OK)) as running_upstream:
        yield running_upstream


@pytest.fixture(scope="module")
def running_proxy(upstream: SocketUpstream) -> Iterator[Proxy]:
    url = upstream.url
    own = {"anthropic": url, "openai": url, "google": url, "ollama": url, "deepseek": url}
    with running(default_routes(own)) as proxy:
        yield proxy


@pytest.fixture
def proxy(running_proxy: Proxy, upstream: SocketUpstream) -> Proxy:
    upstream.requests.clear()
    return running_proxy


# ── Requests that are refused ────────────────────────────────────────────────────────────────────

LENGTHS = {
    "two lengths": ("Content-Length: 3\r\nContent-Length: 4\r\n", b"abcd"),
    "a list of lengths": ("Content-Length: 3, 4\r\n", b"abcd"),
    "a signed length": ("Content-Length: +3\r\n", b"abc"),
    "a folded length": ("Content-Length: 3\r\n 4\r\n", b"abcd"),
    "a blank before the colon": ("Content-Length : 3\r\n", b"abc"),
    "no number": ("Content-Length: 0x3\r\n", b"abc"),
    "an unknown coding": ("Transfer-Encoding: gzip\r\n", b"3\r\nabc\r\n0\r\n\r\n"),
    "chunked is not last": ("Transfer-Encoding: chunked, gzip\r\n", b"3\r\nabc\r\n0\r\n\r\n"),
}


@pytest.mark.parametrize("lines, body", LENGTHS.values(), ids=LENGTHS)
def test_conflicting_lengths_are_refused(
    lines: str, body: bytes, proxy: Proxy, upstream: SocketUpstream
) -> None:
    head = f"POST /anthropic/v1/messages HTTP/1.1\r\n{HOST}{lines}\r\n".encode()
    assert exchange(proxy.port, head + body).status == 400
    assert upstream.requests == []


def test_length_beside_chunks_never_goes_upstream(proxy: Proxy, upstream: SocketUpstream) -> None:
    """The server below us drops such a length, as HTTP allows, and closes the connection."""
    lines = "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"
    head = f"POST /anthropic/v1/messages HTTP/1.1\r\n{HOST}{lines}\r\n".encode()
    answer = exchange(proxy.port, head + b"3\r\nabc\r\n0\r\n\r\n")
    assert "connection: close" in answer.head
    (request,) = upstream.requests
    assert b"content-length: 2" not in request
    assert request.count(b"abc") == 1


def test_other_upgrades_are_left_out(proxy: Proxy, upstream: SocketUpstream) -> None:
    request = request_bytes("GET", "/openai/v1/models", connection="Upgrade", upgrade="h2c")
    assert exchange(proxy.port, request).status == 200
    assert b"upgrade" not in upstream.requests[0].lower()


def test_path_of_no_route_names_those_there_are(proxy: Proxy, upstream: SocketUpstream) -> None:
    answer = exchange(proxy.port, request_bytes("GET", "/somewhere/else"))
    assert answer.status == 404
    message = answer.json["error"]["message"]
    assert message.startswith("no route for /somewhere/else; paths begin with one of ")
    assert "/anthropic" in message
    assert upstream.requests == []


@pytest.mark.parametrize("line", ["CONNECT evil.example:443 HTTP/1.1", "OPTIONS * HTTP/1.1"])
def test_requests_for_the_server_itself_go_nowhere(
    line: str, proxy: Proxy, upstream: SocketUpstream
) -> None:
    answer = exchange(proxy.port, f"{line}\r\n{HOST}\r\n".encode())
    assert answer.status == 404
    assert upstream.requests == []


# ── Who decides where a request goes ─────────────────────────────────────────────────────────────


def test_address_in_the_request_line_does_not_choose_the_upstream(
    proxy: Proxy, upstream: SocketUpstream
) -> None:
    line = "GET http://evil.example/anthropic/v1/models HTTP/1.1"
    assert exchange(proxy.port, f"{line}\r\n{HOST}\r\n".encode()).status == 200
    (request,) = upstream.requests
    assert request.startswith(b"GET /v1/models HTTP/1.1\r\n")
    assert b"evil" not in request


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"host": "evil.example"}, 403),
        ({"host": "api.anthropic.com"}, 403),
        ({"host": ""}, 400),
        ({"origin": "https://evil.example"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
    ],
)
def test_other_hosts_and_web_pages_are_refused(
    headers: dict[str, str], status: int, proxy: Proxy, upstream: SocketUpstream
) -> None:
    request = request_bytes("POST", "/anthropic/v1/messages", b"{}", **headers)
    answer = exchange(proxy.port, request)
    assert answer.status == status
    assert answer.json["type"] == "error"
    assert upstream.requests == []


@pytest.mark.parametrize(
    "name", ["x_forwarded_host", "forwarded", "x_original_url", "x_upstream", "x_rewrite_url"]
)
def test_headers_do_not_choose_the_upstream(
    name: str, proxy: Proxy, upstream: SocketUpstream
) -> None:
    request = request_bytes("GET", "/anthropic/v1/models", b"", **{name: "http://evil.example/"})
    assert exchange(proxy.port, request).status == 200
    address = upstream.url.removeprefix("http://").encode()
    assert b"\r\nhost: " + address + b"\r\n" in upstream.requests[0]


#: The path at the proxy, headers, and the provider and path that it stands for.
PATHS: list[tuple[str, dict[str, str], str, str]] = [
    ("/anthropic/v1/messages", {}, "anthropic", "/v1/messages"),
    ("/anthropic/any/thing", {}, "anthropic", "/any/thing"),
    ("/deepseek/anthropic/v1/messages", {}, "deepseek", "/anthropic/v1/messages"),
    ("/groq/openai/v1/chat/completions", {}, "groq", "/openai/v1/chat/completions"),
    ("/v1/messages", {}, "anthropic", "/v1/messages"),
    ("/v1/messages/count_tokens", {}, "anthropic", "/v1/messages/count_tokens"),
    ("/messages", {}, "anthropic", "/v1/messages"),
    ("/anthropic/messages", {}, "anthropic", "/v1/messages"),
    ("/v1/chat/completions", {}, "openai", "/v1/chat/completions"),
    ("/v1/responses", {}, "openai", "/v1/responses"),
    ("/v1/models", {}, "openai", "/v1/models"),
    ("/v1/models", {"anthropic-version": "2023-06-01"}, "anthropic", "/v1/models"),
    ("/v1/files", {"anthropic-version": "2023-06-01"}, "anthropic", "/v1/files"),
    ("/v1beta/models/gemini-2.5-pro:generateContent", {}, "google",
     "/v1beta/models/gemini-2.5-pro:generateContent"),
    ("/upload/v1beta/files", {}, "google", "/upload/v1beta/files"),
    ("/api/chat", {}, "ollama", "/api/chat"),
    ("/ollama/api/tags", {}, "ollama", "/api/tags"),
    ("/ollama/v1/api/chat", {}, "ollama", "/api/chat"),
    ("/ollama/v1/chat/completions", {}, "ollama", "/v1/chat/completions"),
]  # fmt: skip


@each_row("path, headers, provider, expected", PATHS)
def test_path_decides_the_provider(
    path: str, headers: dict[str, str], provider: str, expected: str
) -> None:
    found = RouteTable(default_routes()).find(path, headers)
    assert found is not None
    assert (found[0].provider, found[1]) == (provider, expected)


def test_base_url_with_a_path_comes_before_that_of_the_request(upstream: SocketUpstream) -> None:
    upstream.requests.clear()
    with running(default_routes({"anthropic": f"{upstream.url}/gateway/a%2Fb/"})) as proxy:
        exchange(proxy.port, request_bytes("GET", "/anthropic/v1/models"))
    assert upstream.requests[0].startswith(b"GET /gateway/a%2Fb/v1/models HTTP/1.1\r\n")


def test_only_route_without_a_prefix_takes_every_path(upstream: SocketUpstream) -> None:
    upstream.requests.clear()
    route = ProxyRoute(prefix="", provider="anthropic", upstream=upstream.url)
    with running([route]) as proxy:
        exchange(proxy.port, request_bytes("GET", "/any/thing"))
    assert upstream.requests[0].startswith(b"GET /any/thing HTTP/1.1\r\n")


def test_every_provider_with_a_known_address_has_a_route() -> None:
    routes = {route.prefix: route.upstream for route in default_routes()}
    assert routes["/mistral"] == "https://api.mistral.ai"
    assert "/azure" not in routes
    there = default_routes({"azure": "https://me.openai.azure.com/"})
    assert [route.upstream for route in there if route.prefix == "/azure"] == [
        "https://me.openai.azure.com"
    ]


def test_aliases_of_providers_are_known() -> None:
    routes = default_routes({"gemini": "http://127.0.0.1:1"})
    assert {
        route.upstream for route in routes if route.provider == "google" and not route.name
    } == {"http://127.0.0.1:1"}


@each_row(
    "name, url, reason",
    [
        ("nobody", "https://x.example", "no provider 'nobody'; there are alibaba, anthropic"),
        ("openai", "api.openai.com", "openai: not a base URL like https://api.example.com"),
        ("openai", "ftp://x.example", "not a base URL"),
        ("openai", "https://", "not a base URL"),
        ("openai", "https://x.example:port", "not a base URL"),
        ("openai", "https://x.example/a b", "not a base URL"),
        ("openai", "https://x.example/?key=sk-1", "no user, query or fragment"),
        ("openai", "https://user:sk-canary@x.example", "no user, query or fragment"),
    ],
)
def test_wrong_upstream_is_explained(name: str, url: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as raised:
        default_routes({name: url})
    assert "sk-" not in str(raised.value)


def test_provider_without_a_route_is_named(proxy: Proxy) -> None:
    assert proxy.url_of("deepseek") == f"{proxy.url}/deepseek"
    with pytest.raises(InvalidRequest, match="no route to 'azure'; there are openai, anthropic"):
        proxy.url_of("azure")


# ── Errors in the caller's format ────────────────────────────────────────────────────────────────

GENERATING = {
    "anthropic": "/anthropic/v1/messages",
    "openai_chat": "/openai/v1/chat/completions",
    "openai_responses": "/openai/v1/responses",
    "gemini": "/google/v1beta/models/gemini-2.5-pro:generateContent",
    "bedrock": "/bedrock/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse",
}


@pytest.mark.parametrize("name", wire.WIRES)
def test_upstream_that_cannot_be_reached_is_a_502_of_the_wire(name: str) -> None:
    nowhere = dict.fromkeys(wire.PROVIDERS.values(), "http://127.0.0.1:1")
    with running(default_routes(nowhere)) as proxy:
        answer = exchange(proxy.port, request_bytes("POST", GENERATING[name], b"{}"))
    assert answer.status == 502
    error = wire.get(name).read_error(502, {}, answer.body)
    assert "127.0.0.1:1: cannot connect (connection refused)" in str(error)
    assert error.retryable


@pytest.mark.parametrize(
    "path, provider",
    [
        ("/deepseek/chat/completions", "deepseek"),
        ("/minimax/anthropic/v1/messages", "minimax/anthropic"),
    ],
)
def test_dialects_have_their_own_format(path: str, provider: str) -> None:
    with running(
        default_routes({"deepseek": "http://127.0.0.1:1", "minimax": "http://127.0.0.1:1"})
    ) as proxy:
        answer = exchange(proxy.port, request_bytes("POST", path, b"{}"))
    body: Any = msgspec.json.decode(answer.body)
    assert "error" in body or "base_resp" in body
    assert "cannot connect" in str(wire.get(provider).read_error(502, {}, answer.body))
