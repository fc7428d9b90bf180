"""The head of a request: exactly the given bytes, or an error."""

from __future__ import annotations

import asyncio
import string
from collections.abc import Callable
from typing import TypeVar

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.raw_server import answering, raw_server, reply
from support.tables import each_row
from yarl import URL

import anaphora
from anaphora import errors
from anaphora.client.config.secrets import Secret, SecretHeaders
from anaphora.client.transport.errors import read_proxy, read_url
from anaphora.client.transport.over_aiohttp import UrlRoute

T = TypeVar("T")

AGENT = f"anaphora/{anaphora.__version__}"
TOKEN = string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~"


def in_loop(make: Callable[[], T]) -> T:
    async def main() -> T:
        return make()

    return asyncio.run(main())


def route(url: str, proxy: str | None = None) -> UrlRoute:
    way = (None, SecretHeaders()) if proxy is None else read_proxy(Secret(proxy))
    return in_loop(lambda: UrlRoute(read_url(url), *way))


def head(route: UrlRoute, method: str, headers: dict[str, str], size: int) -> bytes:
    return b"".join(route.head(method, SecretHeaders(headers), size))


ROUTE = route("http://api.example:8080/v1/a%3Ab?key=a%20b#part")


def lines(head: bytes) -> list[str]:
    text = head.decode()
    assert text.endswith("\r\n\r\n")
    return text[:-4].split("\r\n")


# ── The first line, and whom it is for ───────────────────────────────────────────────────────────


@each_row(
    "url, proxy, target, host",
    [
        ("http://h.example", None, "/", "h.example"),
        ("http://h.example:80/", None, "/", "h.example"),
        ("http://h.example?a=b", None, "/?a=b", "h.example"),
        ("http://h.example:81/a//b/../c%2fd", None, "/a//b/../c%2fd", "h.example:81"),
        ("https://h.example:443/v1#part", None, "/v1", "h.example"),
        ("https://h.example:80/v1", None, "/v1", "h.example:80"),
        ("http://[::1]:81/v1", None, "/v1", "[::1]:81"),
        ("http://us:wo@h.example/v1", None, "/v1", "h.example"),
        ("http://h.example/v1", "http://p:1", "http://h.example/v1", "h.example"),
        ("http://h.example/v1?a=%3A#part", "http://p:1", "http://h.example/v1?a=%3A", "h.example"),
        ("http://us:wo@h.example/v1", "http://p:1", "http://h.example/v1", "h.example"),
        ("https://h.example/v1", "http://p:1", "/v1", "h.example"),
    ],
)
def test_target_and_host(url: str, proxy: str | None, target: str, host: str) -> None:
    first, second, *_ = lines(head(route(url, proxy), "POST", {}, 0))
    assert (first, second) == (f"POST {target} HTTP/1.1", f"Host: {host}")


@pytest.mark.parametrize("method, sent", [("POST", "POST"), ("get", "GET"), ("X-Y", "X-Y")])
def test_method_is_sent_in_upper_case(method: str, sent: str) -> None:
    assert head(ROUTE, method, {}, 0).startswith(f"{sent} ".encode())


@each_row("method", ["", "GET /", "PO\r\nST", "GET\n", "GÉT", "ß"])
def test_invalid_method_is_rejected(method: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="method: not an HTTP method"):
        head(ROUTE, method, {}, 0)


# ── Headers ──────────────────────────────────────────────────────────────────────────────────────


@each_row(
    "method, size, expected",
    [
        ("POST", 7, ["Content-Type: application/octet-stream", "Content-Length: 7"]),
        ("POST", 0, ["Content-Length: 0"]),
        ("DELETE", 0, ["Content-Length: 0"]),
        ("GET", 0, []),
        ("HEAD", 0, []),
        ("GET", 7, ["Content-Type: application/octet-stream", "Content-Length: 7"]),
    ],
)
def test_body_headers(method: str, size: int, expected: list[str]) -> None:
    assert lines(head(ROUTE, method, {}, size))[5:] == expected


@each_row("name", ["Host", "host", "ACCEPT", "accept-encoding", "User-Agent"])
def test_given_headers_replace_the_defaults(name: str) -> None:
    sent = lines(head(ROUTE, "GET", {name: "mine"}, 0))[1:]
    assert f"{name}: mine" in sent
    assert len(sent) == 4
    assert len({line.split(":")[0].lower() for line in sent}) == 4


@each_row(
    "name, value",
    [
        ("a", "b\r\nc: d"),
        ("a", "b\nc"),
        ("a", "b\rc"),
        ("a", "b\0"),
        ("a", "b\x7f"),
        ("a", "\ud800"),
        ("a\r\nb", "c"),
        ("a\n", "c"),
        ("a: b", "c"),
        ("a b", "c"),
        ("", "c"),
        ("ä", "c"),
        ("Content-Length", "7"),
        ("content-length", "7"),
        ("Transfer-Encoding", "chunked"),
    ],
)
def test_ambiguous_headers_are_rejected(name: str, value: str) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        head(ROUTE, "POST", {name: value}, 7)
    assert str(caught.value) == "headers: invalid HTTP header"


VALUES = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.just("\t"))
NAMES = st.text(TOKEN, min_size=1, max_size=12).filter(
    lambda name: name.lower() not in {"content-length", "transfer-encoding"}
)


@given(st.dictionaries(NAMES, VALUES), st.integers(0, 9))
def test_every_header_is_one_line_as_given(headers: dict[str, str], size: int) -> None:
    _, *sent = lines(head(ROUTE, "POST", headers, size))
    given_lines = [f"{name}: {value}" for name, value in headers.items()]
    at = sent.index(given_lines[0]) if given_lines else 0
    assert sent[at : at + len(given_lines)] == given_lines
    names = {line.split(":", 1)[0].lower() for line in sent}
    others = {"host", "accept", "accept-encoding", "user-agent", "content-length"}
    assert names == others | {name.lower() for name in headers} | (
        {"content-type"} if size else set()
    )


@given(st.text(min_size=1), st.text())
def test_no_header_adds_a_second_line(name: str, value: str) -> None:
    plain = len(lines(head(ROUTE, "GET", {}, 0)))
    try:
        sent = head(ROUTE, "GET", {name: value}, 0)
    except errors.InvalidRequest:
        return
    assert len(lines(sent)) <= plain + 1
    assert sent.count(b"\n") == sent.count(b"\r") == len(lines(sent)) + 1


# ── Credentials ──────────────────────────────────────────────────────────────────────────────────


def test_url_credentials_become_a_header() -> None:
    kept = route("http://us:wo@h.example/v1")
    assert "Authorization: Basic dXM6d28=" in lines(head(kept, "GET", {}, 0))
    with pytest.raises(errors.InvalidRequest, match="the URL also has credentials"):
        head(kept, "GET", {"authorization": "Bearer canary"}, 0)


@pytest.mark.parametrize("scheme, expected", [("http", True), ("https", False)])
def test_proxy_password_is_sent_to_the_proxy_only(scheme: str, expected: bool) -> None:
    """Within a tunnel it would go to the provider."""
    sent = head(route(f"{scheme}://h.example/v1", "http://us:wo@p:1"), "GET", {}, 0)
    assert ("Proxy-Authorization: Basic dXM6d28=" in lines(sent)) is expected
    assert (b"dXM6d28=" in sent) is expected


# ── Beside aiohttp's own ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method, body", [("POST", b"{}"), ("GET", b""), ("DELETE", b"")])
def test_head_equals_aiohttps(method: str, body: bytes) -> None:
    headers = {"x-api-key": "k", "content-type": "application/json", "x-said": "ü\tv"}

    async def main() -> tuple[set[bytes], set[bytes]]:
        async with raw_server(answering(reply())) as server:
            url = f"{server.url}/v1/a%3Ab?key=a"
            async with aiohttp.ClientSession(headers={"User-Agent": AGENT}) as session:
                to = URL(url, encoded=True)
                async with session.request(method, to, data=body or None, headers=headers) as got:
                    await got.read()
            theirs = server.requests[0].removesuffix(body)
            direct = UrlRoute(read_url(url), None, SecretHeaders())
            ours = head(direct, method, headers, len(body))
            return split(theirs), split(ours)

    theirs, ours = asyncio.run(main())
    assert ours == theirs


def split(head: bytes) -> set[bytes]:
    return set(head.split(b"\r\n"))
