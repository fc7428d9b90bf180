"""A forward proxy: tunnels to providers are opened, all others pass unread."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme
from cryptography import x509
from support.forward_proxy import forward_proxy
from support.raw_server import answering, raw_server, reply
from support.waiting import PATIENCE, wait_until

from anaphora import emulator
from anaphora.cli.main import main
from anaphora.emulator import Emulator
from anaphora.errors import InvalidRequest
from anaphora.proxy.certificates import Authority, temporary_authority
from anaphora.proxy.forward import Forwarding
from anaphora.proxy.programs import forward_environment, forward_notices
from anaphora.proxy.routes import default_routes
from anaphora.proxy.server import Proxy, running
from anaphora.traffic.calls import RelayedCall

KEY = "sk-ant-canary-7Qx2"
MESSAGE = {
    "model": "claude-opus-5-5",
    "max_tokens": 20,
    "messages": [{"role": "user", "content": "Hello"}],
}


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_file"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def provider() -> Iterator[Emulator]:
    with emulator.running() as emu:
        yield emu


class Seen:
    """Everything that the proxy tells."""

    def __init__(self) -> None:
        self.calls: list[RelayedCall] = []
        self.reports: list[str] = []

    def call_ended(self, call: RelayedCall) -> None:
        self.calls.append(call)


@contextlib.contextmanager
def forwarding_proxy(
    provider: Emulator, seen: Seen, base_urls: dict[str, str] | None = None
) -> Iterator[tuple[Proxy, Authority]]:
    routes = default_routes({"anthropic": provider.url, "openai": provider.url})
    with temporary_authority(os.environ) as authority:
        forwarding = Forwarding(authority, base_urls or {}, seen.reports.append)
        with running(routes, observers=[seen], forwarding=forwarding) as proxy:
            yield proxy, authority


def client_of(proxy: Proxy, trusted: str) -> httpx.Client:
    context = ssl.create_default_context(cafile=trusted)
    return httpx.Client(proxy=proxy.forward_url, verify=context, timeout=PATIENCE)


def connect(proxy: Proxy, head: str) -> str:
    """What the proxy answers to the head of a request."""
    with socket.create_connection(("127.0.0.1", httpx.URL(proxy.forward_url).port or 0)) as one:
        one.settimeout(PATIENCE)
        one.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        answer = b""
        while piece := one.recv(65536):
            answer += piece
    return answer.decode()


# ── Providers ────────────────────────────────────────────────────────────────────────────────────


def test_a_call_to_a_provider_is_relayed_and_seen(provider: Emulator) -> None:
    seen = Seen()
    with forwarding_proxy(provider, seen) as (proxy, authority):
        with client_of(proxy, authority.environment["SSL_CERT_FILE"]) as client:
            for path, wanted in (
                ("/v1/messages?beta=true", {"model", "messages", "max_tokens"}),
                ("/v1/messages/count_tokens", {"model", "messages"}),
            ):
                done = client.post(
                    f"https://api.anthropic.com{path}",
                    json={name: value for name, value in MESSAGE.items() if name in wanted},
                    headers={"x-api-key": KEY, "anthropic-version": "2023-06-01"},
                )
                assert done.status_code == 200, done.text
            missing = client.get(
                "https://api.openai.com/nowhere", headers={"authorization": f"Bearer {KEY}"}
            )
            assert missing.status_code == 404
        assert proxy.settle(PATIENCE)
    assert [(call.route.provider, call.path, call.query) for call in seen.calls] == [
        ("anthropic", "/v1/messages", "beta=true"),
        ("anthropic", "/v1/messages/count_tokens", ""),
        ("openai", "/nowhere", ""),
    ]
    assert [call.number for call in seen.calls] == [1, 2, 3]
    assert seen.reports == []


def test_many_tunnels_at_once(provider: Emulator) -> None:
    """A program may make more calls at once than a server takes from a stranger."""
    seen, count = Seen(), 48

    async def ask(url: str, trusted: str) -> list[int]:
        context = ssl.create_default_context(cafile=trusted)
        limits = httpx.Limits(max_connections=count)
        async with httpx.AsyncClient(
            proxy=url, verify=context, timeout=PATIENCE, limits=limits
        ) as client:
            headers = {"authorization": f"Bearer {KEY}"}
            calls = (
                client.get("https://api.openai.com/v1/models", headers=headers)
                for _ in range(count)
            )
            return [one.status_code for one in await asyncio.gather(*calls)]

    with forwarding_proxy(provider, seen) as (proxy, authority):
        trusted = authority.environment["SSL_CERT_FILE"]
        assert asyncio.run(ask(proxy.forward_url, trusted)) == [200] * count
        assert proxy.settle(PATIENCE)
    assert len(seen.calls) == count


def test_the_host_of_a_base_url_is_opened_and_called_itself(provider: Emulator) -> None:
    seen = Seen()
    gateway = {"anthropic": "https://gateway.invalid/anthropic"}
    with forwarding_proxy(provider, seen, gateway) as (proxy, authority):
        with client_of(proxy, authority.environment["SSL_CERT_FILE"]) as client:
            done = client.post(
                "https://gateway.invalid/anthropic/v1/messages",
                json=MESSAGE,
                # Programs with pages of their own send one; the password has been given.
                headers={"origin": "https://app.example"},
            )
        assert done.status_code == 502  # its name does not resolve
        assert proxy.settle(PATIENCE)
    assert [(call.route.upstream, call.path) for call in seen.calls] == [
        ("https://gateway.invalid", "/anthropic/v1/messages")
    ]


def test_a_program_with_certificates_of_its_own_is_reported_once(provider: Emulator) -> None:
    seen, pinned = Seen(), trustme.CA()
    with forwarding_proxy(provider, seen) as (proxy, authority):
        pinned.cert_pem.write_to_path(str(authority.folder / "pinned.pem"))
        with client_of(proxy, str(authority.folder / "pinned.pem")) as client:
            for _ in range(2):
                with pytest.raises(httpx.ConnectError):
                    client.post("https://api.anthropic.com/v1/messages", json=MESSAGE)
        wait_until(lambda: seen.reports, "the failure is reported")
    [report] = seen.reports
    assert "certificate for api.anthropic.com" in report
    assert "NODE_EXTRA_CA_CERTS" in report
    assert seen.calls == []


# ── Other hosts ──────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def other_host(password: str | None = None) -> Iterator[tuple[str, str, list[str]]]:
    """A TLS server with a certificate of its own, that certificate's file, and the requests of a
    proxy that the user might have set."""
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(tls)
    loop, started, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    found: list[tuple[str, str, list[str]]] = []

    async def serve() -> None:
        async with (
            raw_server(answering(reply(b"unread")), tls=tls) as server,
            forward_proxy(password=password) as users,
        ):
            found.append((server.url, users.url, users.requests))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert started.wait(PATIENCE)
        with authority.cert_pem.tempfile() as trusted:
            url, users_url, requests = found[0]
            os.environ["TRUSTED_BY_TEST"] = trusted
            yield url, users_url, requests
    finally:
        os.environ.pop("TRUSTED_BY_TEST", None)
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE)
        loop.close()


def test_other_hosts_pass_unread(provider: Emulator) -> None:
    seen = Seen()
    with other_host() as (url, _, _), forwarding_proxy(provider, seen) as (proxy, _):
        # Only the host's own certificate is trusted: nobody has opened the tunnel.
        with client_of(proxy, os.environ["TRUSTED_BY_TEST"]) as client:
            assert client.get(url).text == "unread"
        assert proxy.settle(PATIENCE)
    assert (seen.calls, seen.reports) == ([], [])


def test_a_proxy_of_the_user_is_used_upstream(
    provider: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, password = Seen(), "user:canary-word"
    with (
        other_host(password) as (url, users_url, requests),
        forwarding_proxy(provider, seen) as (proxy, _),
    ):
        monkeypatch.setenv("https_proxy", users_url)
        with client_of(proxy, os.environ["TRUSTED_BY_TEST"]) as client:
            assert client.get(url).text == "unread"
            monkeypatch.setenv("https_proxy", users_url.replace("canary", "wrong"))
            with pytest.raises(httpx.ProxyError, match="502"):
                client.get(url.replace("localhost", "127.0.0.1"))
    port = url.rpartition(":")[2]
    assert requests[0] == f"CONNECT localhost:{port} HTTP/1.1"
    assert "canary" not in str(seen.reports)


def test_a_host_that_cannot_be_reached(provider: Emulator) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with forwarding_proxy(provider, Seen()) as (proxy, authority):
        trusted = authority.environment["SSL_CERT_FILE"]
        with client_of(proxy, trusted) as client, pytest.raises(httpx.ProxyError, match="502"):
            client.get(f"https://127.0.0.1:{port}")


# ── Refusals ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("CONNECT api.anthropic.com:443 HTTP/1.1\nHost: api.anthropic.com:443", "407"),
        ("CONNECT a:443 HTTP/1.1\nProxy-Authorization: Basic YW5hcGhvcmE6d3Jvbmc=", "407"),
        ("CONNECT a:443 HTTP/1.1\nProxy-Authorization: Bearer x", "407"),
        ("GET http://example.invalid/ HTTP/1.1\nPASSWORD", "405"),
        ("CONNECT example.invalid HTTP/1.1\nPASSWORD", "405"),
        ("CONNECT example.invalid:99999 HTTP/1.1\nPASSWORD", "405"),
        (f"CONNECT a:443 HTTP/1.1\nX: {'x' * 20_000}", "431"),
    ],
)
def test_refused_tunnels(provider: Emulator, head: str, status: str) -> None:
    with forwarding_proxy(provider, Seen()) as (proxy, _):
        url = httpx.URL(proxy.forward_url)
        token = httpx.BasicAuth(url.username, url.password)._auth_header
        answer = connect(proxy, head.replace("PASSWORD", f"Proxy-Authorization: {token}"))
        assert answer.startswith(f"HTTP/1.1 {status} ")
        assert url.password not in answer


# ── Certificates ─────────────────────────────────────────────────────────────────────────────────


def test_certificates_last_a_day_and_keys_are_in_no_file() -> None:
    with temporary_authority({}) as authority:
        authority.context("api.anthropic.com")
        folder, files = authority.folder, list(authority.folder.iterdir())
        assert folder.stat().st_mode & 0o077 == 0
        assert files
        assert not [file for file in files if b"PRIVATE" in file.read_bytes()]
        made = x509.load_pem_x509_certificate(authority.certificate)
        now = datetime.datetime.now(datetime.UTC)
        assert made.not_valid_after_utc - now <= datetime.timedelta(days=1)
    assert not folder.exists()


def test_files_that_the_user_trusts_are_kept(tmp_path: Path) -> None:
    own = trustme.CA().cert_pem.bytes()
    file = tmp_path / "own.pem"
    file.write_bytes(own)
    with temporary_authority(
        {"SSL_CERT_FILE": str(file), "CURL_CA_BUNDLE": str(file)}
    ) as authority:
        for name in ("SSL_CERT_FILE", "CURL_CA_BUNDLE"):
            text = Path(authority.environment[name]).read_bytes()
            assert own.strip() in text
            assert authority.certificate in text
        roots = Path(authority.environment["REQUESTS_CA_BUNDLE"]).read_bytes()
        assert roots.count(b"BEGIN CERTIFICATE") > 10
        assert "AWS_CA_BUNDLE" not in authority.environment
    with pytest.raises(InvalidRequest, match=r"SSL_CERT_FILE: cannot read .*nothing\.pem"):
        temporary_authority({"SSL_CERT_FILE": str(tmp_path / "nothing.pem")}).__enter__()


# ── Programs ─────────────────────────────────────────────────────────────────────────────────────


def test_hosts_that_no_proxy_excludes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert forward_notices() == []
    monkeypatch.setenv("no_proxy", "localhost,.anthropic.com")
    assert forward_notices() == ["NO_PROXY excludes api.anthropic.com: calls there are not seen"]


def test_the_environment_of_a_program(provider: Emulator) -> None:
    with forwarding_proxy(provider, Seen()) as (proxy, authority):
        made = forward_environment(proxy, authority, {"HOME": "/home/me", "HTTPS_PROXY": "other"})
        assert made["HTTPS_PROXY"] == made["https_proxy"] == proxy.forward_url
        assert made["HOME"] == "/home/me"
        assert made["SSL_CERT_FILE"].startswith(str(authority.folder))
        assert not [name for name in made if name.endswith("_BASE_URL")]


SDK = """
import anthropic
client = anthropic.Anthropic()
system = [{"type": "text", "text": "It stays the same. " * 1500,
           "cache_control": {"type": "ephemeral"}}]
for question in ("One?", "Two?"):
    done = client.messages.create(model="claude-opus-5-5", max_tokens=20, system=system,
                                  messages=[{"role": "user", "content": question}])
print(done.usage.cache_read_input_tokens > 1000)
"""


#: The same without an SDK, which takes longer to import than everything else here.
PLAIN = """
import httpx, os
headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "anthropic-version": "2023-06-01"}
system = [{"type": "text", "text": "It stays the same. " * 1500,
           "cache_control": {"type": "ephemeral"}}]
for question in ("One?", "Two?"):
    body = {"model": "claude-opus-5-5", "max_tokens": 20, "system": system,
            "messages": [{"role": "user", "content": question}]}
    done = httpx.post("https://api.anthropic.com/v1/messages", json=body, headers=headers, timeout=60)
print(done.json()["usage"]["cache_read_input_tokens"] > 1000)
"""


@pytest.mark.parametrize(
    "later", [pytest.param(PLAIN, id="plain"), pytest.param(SDK, id="sdk", marks=pytest.mark.soak)]
)
def test_watch_record_and_replay_reach_programs_without_a_base_url(
    provider: Emulator, tmp_path: Path, later: str
) -> None:
    """`watch` an SDK, the others `later`."""
    environ = {
        **{name: value for name, value in os.environ.items() if "BASE_URL" not in name},
        "ANTHROPIC_API_KEY": KEY,
        "TMPDIR": str(tmp_path),
    }
    upstream = ["--proxy", "--upstream", f"anthropic={provider.url}"]

    def run(*words: str, program: str = later) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "anaphora", *words, "--", sys.executable, "-c", program],
            env=environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
        assert KEY not in done.stderr
        return done.stderr

    assert "2 calls: 2 in " in run("watch", *upstream, program=SDK)
    folder = str(tmp_path / "recordings")
    assert "2 exchanges recorded" in run("record", "--dir", folder, *upstream)
    assert "2 exchanges replayed" in run("replay", "--dir", folder, "--proxy")
    # Nothing is left of the certificates.
    assert [file.name for file in tmp_path.iterdir()] == ["recordings"]


@pytest.mark.long
def test_program_that_takes_no_base_url_is_reached_without_the_option(
    provider: Emulator, tmp_path: Path
) -> None:
    program = tmp_path / "pi"
    program.write_text(f"#!{sys.executable}\n{PLAIN}")
    program.chmod(0o755)
    command = [sys.executable, "-m", "anaphora", "watch", "--upstream", f"anthropic={provider.url}"]
    done = subprocess.run(
        [*command, "--", str(program), "-p"],
        env={**os.environ, "ANTHROPIC_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert "pi takes no base URL, so HTTPS_PROXY is set" in done.stderr
    assert "2 calls: 2 in " in done.stderr


def test_proxy_needs_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--proxy"]) == 2
    assert "--proxy needs a command" in capsys.readouterr().err
