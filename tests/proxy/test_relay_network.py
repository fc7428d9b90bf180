"""The way to the provider: TLS, and the proxies that the environment names."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from support.forward_proxy import forward_proxy
from support.raw_http import RawResponse, exchange, request_bytes
from support.raw_server import RawServer, answering, raw_server, reply

from anaphora.proxy.routes import NetworkUpstream
from anaphora.proxy.server import running
from anaphora.traffic.calls import ProxyRoute

PASSWORD = "user:canary-word"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca(authority: trustme.CA, tmp_path: Path) -> str:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return str(tmp_path / "ca.pem")


@pytest.fixture
def tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


@asynccontextmanager
async def provider(tls: ssl.SSLContext | None = None) -> AsyncIterator[RawServer]:
    async with raw_server(answering(reply(b"well")), tls=tls) as server:
        yield server


async def ask(url: str, ca: str | None = None, body: bytes = b"{}") -> RawResponse:
    """Through a proxy of ours, in another thread: the servers here have this one."""

    def through() -> RawResponse:
        route = ProxyRoute(prefix="/up", provider="anthropic", upstream=url)
        with running([route], upstream=NetworkUpstream(ca)) as proxy:
            return exchange(proxy.port, request_bytes("POST", "/up/v1/messages?key=canary", body))

    return await asyncio.to_thread(through)


def test_tls_to_the_provider(ca: str, tls: ssl.SSLContext) -> None:
    async def main() -> None:
        async with provider(tls) as server:
            assert (await ask(server.url, ca, b"x" * 1_000_000)).body == b"well"
            assert server.requests[0].endswith(b"x" * 1_000_000)

    asyncio.run(main())


def test_certificate_that_the_system_does_not_trust(tls: ssl.SSLContext) -> None:
    async def main() -> None:
        async with provider(tls) as server:
            answer = await ask(server.url)
            assert answer.status == 502
            assert "the certificate is not trusted" in answer.json["error"]["message"]
            assert server.requests == []

    asyncio.run(main())


def test_name_that_does_not_resolve() -> None:
    answer = asyncio.run(ask("http://nowhere.invalid"))
    assert answer.status == 502
    assert "nowhere.invalid:80: the name does not resolve" in answer.json["error"]["message"]


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_proxy_of_the_environment(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with provider() as server, forward_proxy(password=PASSWORD) as between:
            monkeypatch.setenv(variable, between.url)
            assert (await ask(server.url)).body == b"well"
            assert between.requests == [f"POST {server.url}/v1/messages?key=canary HTTP/1.1"]

    if variable == "HTTP_PROXY":
        monkeypatch.delenv("REQUEST_METHOD", raising=False)
    asyncio.run(main())


def test_tunnel_through_the_proxy_of_the_environment(
    ca: str, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with provider(tls) as server, forward_proxy(password=PASSWORD) as between:
            monkeypatch.setenv("HTTPS_PROXY", between.url)
            assert (await ask(server.url, ca)).body == b"well"
            assert between.requests == [f"CONNECT localhost:{server.port} HTTP/1.1"]
            assert b"proxy-authorization" not in server.requests[0].lower()

    asyncio.run(main())


def test_hosts_that_need_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with provider() as server, forward_proxy() as between:
            monkeypatch.setenv("HTTP_PROXY", between.url)
            monkeypatch.setenv("NO_PROXY", "example.com,localhost")
            assert (await ask(server.url)).body == b"well"
            assert between.requests == []

    asyncio.run(main())


def test_refusing_proxy_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with forward_proxy(status="407 Wrong password") as between:
            monkeypatch.setenv("HTTPS_PROXY", between.url.replace("//", f"//{PASSWORD}@"))
            answer = await ask("https://api.example")
            assert answer.status == 502
            message = answer.json["error"]["message"]
            assert "api.example:443: the proxy refused with status 407" in message
            assert "canary" not in message

    asyncio.run(main())


def test_invalid_proxy_of_the_environment_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"socks5://{PASSWORD}@localhost:1")
    answer = asyncio.run(ask("https://api.example"))
    assert answer.status == 502
    message = answer.json["error"]["message"]
    assert "proxy: not a URL like http://proxy.example:3128" in message
    assert "canary" not in message


def test_credentials_of_netrc_are_not_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine localhost login user password canary\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))

    async def main() -> None:
        async with provider() as server:
            assert (await ask(server.url)).body == b"well"
            assert b"authorization" not in server.requests[0].lower()

    asyncio.run(main())
