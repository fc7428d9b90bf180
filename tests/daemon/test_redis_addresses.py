"""Addresses of Redis: their forms and passwords, and TLS, whose certificates are verified."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from support.certificates import write_certificate
from support.servers import RedisServer, ServerFailed, free_port
from support.tables import each_row

from anaphora.client.config.secrets import Secret
from anaphora.daemon.shared_state import MinuteLimit
from anaphora.daemon.shared_state.redis import RedisState
from anaphora.daemon.shared_state.redis_connection import RedisAddress
from anaphora.errors import InvalidConfig


class TlsRedisServer(RedisServer):
    """Has a certificate for 127.0.0.1 and, on another port, no TLS."""

    def __init__(self, certificates: Path) -> None:
        self.tls_port = free_port()
        self._certificate = write_certificate(certificates, "redis")
        super().__init__(port=free_port())

    @property
    def ca(self) -> Path:
        return self._certificate.cert

    def _prepare(self) -> None:
        names = {"tls-cert-file": self._certificate.cert, "tls-key-file": self._certificate.key}
        for name, source in names.items():
            target = self.folder / source.name
            shutil.copy(source, target)
            self._own(target)
            self.settings[name] = str(target)
        self.settings |= {"tls-port": str(self.tls_port), "tls-auth-clients": "no"}
        super()._prepare()


@pytest.fixture(scope="module")
def server(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TlsRedisServer]:
    try:
        started = TlsRedisServer(tmp_path_factory.mktemp("tls"))
    except ServerFailed as problem:
        if "tls" not in str(problem).lower():
            raise
        pytest.skip("this Redis is built without TLS")
    with started:
        yield started


async def problem_of(url: str, timeout: float = 10.0) -> str:
    """Why a node is not connected to this address, and counts for itself; "" where it is."""
    node = RedisState(RedisAddress.parse(url), timeout=timeout)
    await node.start()
    try:
        assert not (await node.take("app", MinuteLimit(requests=1000), 1)).wait
        return node.problem
    finally:
        await node.close()


def test_nodes_share_limits_over_tls(server: TlsRedisServer) -> None:
    async def main() -> None:
        url = f"rediss://127.0.0.1:{server.tls_port}?ca={quote(str(server.ca))}"
        nodes = [RedisState(RedisAddress.parse(url), timeout=10.0) for _ in range(2)]
        try:
            for node in nodes:
                await node.start()
            assert [node.problem for node in nodes] == ["", ""]
            limit = MinuteLimit(requests=1)
            assert not (await nodes[0].take("shared", limit, 1)).wait
            assert (await nodes[1].take("shared", limit, 1)).by == "requests"
        finally:
            for node in nodes:
                await node.close()

    asyncio.run(main())


def test_a_certificate_that_no_known_authority_signed_is_refused(
    server: TlsRedisServer, tmp_path: Path
) -> None:
    """By default the authorities of the system are known; with `?ca=` those of the file alone."""
    url = f"rediss://127.0.0.1:{server.tls_port}"
    other = write_certificate(tmp_path, "other")
    for each in (url, f"{url}?ca={quote(str(other.cert))}"):
        problem = asyncio.run(problem_of(each))
        assert problem.startswith("TLS failed: self-signed certificate")
        assert problem.endswith("the certificate authority can be named with ?ca=FILE")


def test_a_certificate_of_another_host_is_refused(server: TlsRedisServer) -> None:
    url = f"rediss://localhost:{server.tls_port}?ca={quote(str(server.ca))}"
    assert "Hostname mismatch" in asyncio.run(problem_of(url))


def test_a_file_that_is_no_certificate_is_named(server: TlsRedisServer, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    for name in ("missing.pem", "empty.pem"):
        file = tmp_path / name
        problem = asyncio.run(
            problem_of(f"rediss://127.0.0.1:{server.tls_port}?ca={quote(str(file))}")
        )
        assert problem.startswith(f"the file of ?ca=, {file}, cannot be used: ")


def test_a_port_without_tls_is_named(server: TlsRedisServer) -> None:
    problem = asyncio.run(problem_of(f"rediss://127.0.0.1:{server.port}", timeout=1.0))
    assert "rediss:// needs a port that offers TLS" in problem


def test_a_client_without_tls_is_not_served(server: TlsRedisServer) -> None:
    assert asyncio.run(problem_of(f"redis://127.0.0.1:{server.tls_port}"))


class TestAddress:
    @pytest.mark.parametrize(
        ("url", "shown", "database", "tls"),
        [
            ("redis://cache.example", "cache.example:6379", 0, False),
            ("redis://user@cache.example:1234/5", "cache.example:1234", 5, False),
            ("rediss://cache.example/2", "cache.example:6379", 2, True),
            ("unix:///run/redis.sock?db=3", "/run/redis.sock", 3, False),
        ],
    )
    def test_forms(self, url: str, shown: str, database: int, tls: bool) -> None:
        address = RedisAddress.parse(url)
        assert (str(address), address.database, address.tls) == (shown, database, tls)

    @each_row(
        "url",
        [
            "http://cache.example",
            "redis://",
            "unix://",
            "redis://cache.example/x",
            "redis://cache.example:no",
            "redis://cache.example?timeout=3",
            "redis://cache.example?ca=/etc/ca.pem",
        ],
    )
    def test_others_are_refused(self, url: str) -> None:
        with pytest.raises(InvalidConfig, match=r"daemon\.shared: must be redis://"):
            RedisAddress.parse(url)

    def test_password_in_a_url_is_refused_and_not_shown(self) -> None:
        with pytest.raises(InvalidConfig, match="shared_password") as refused:
            RedisAddress.parse("redis://user:canary-5f3a@cache.example")
        assert "canary" not in str(refused.value)

    def test_password_comes_from_a_secret(self) -> None:
        secret = Secret("canary-5f3a")
        with RedisServer(settings={"requirepass": "canary-5f3a"}) as server:

            async def main() -> None:
                right, wrong, none = (
                    RedisState.of(server.url, password)
                    for password in (secret, Secret("canary-wrong"), None)
                )
                for node in (right, wrong, none):
                    await node.start()
                try:
                    assert not right.problem
                    assert "WRONGPASS" in wrong.problem
                    assert "NOAUTH" in none.problem
                    assert "canary" not in f"{wrong.problem} {wrong._address!r}"
                finally:
                    for node in (right, wrong, none):
                        await node.close()

            asyncio.run(main())
