"""Idle connections keep no other out: the oldest is closed for a new one."""

from __future__ import annotations

import contextlib
import functools
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.certificates import write_certificate
from support.daemon import GRANT, TestedDaemon, llm_yaml, running_daemon
from support.raw_http import read_response, request_bytes
from support.waiting import PATIENCE, wait_until

from anaphora.emulator.server import Emulator
from anaphora.serving.connection_limits import ConnectionLimits, ConnectionPlace, ConnectionTable

HEALTH = request_bytes("GET", "/healthz")
#: Places of a peer without a token.
OF_PEER = 32


@pytest.fixture(scope="module")
def daemon(
    running_emulator: Emulator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestedDaemon]:
    apps = {"demo": GRANT, "other": GRANT}
    folder = tmp_path_factory.mktemp("daemon")
    with running_daemon(folder, running_emulator, extensions=apps) as tested:
        yield tested


@pytest.fixture
def opened() -> Iterator[list[socket.socket]]:
    sockets: list[socket.socket] = []
    yield sockets
    for each in sockets:
        each.close()


def connect(daemon: TestedDaemon) -> socket.socket:
    return socket.create_connection(("127.0.0.1", daemon.daemon.address.port), PATIENCE)


def connect_socket(daemon: TestedDaemon) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE)
    connection.connect(str(daemon.socket))
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection that sends nothing."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        connection.settimeout(PATIENCE)


def ask(connection: socket.socket, data: bytes = HEALTH) -> int:
    connection.sendall(data)
    return read_response(connection).status


def models_of(daemon: TestedDaemon, app: str) -> bytes:
    return request_bytes("GET", "/v1/models", authorization=f"Bearer {daemon.token(app)}")


@pytest.mark.parametrize("connect", [connect, connect_socket])
def test_the_oldest_idle_connection_of_a_peer_is_closed_for_a_new_one(
    daemon: TestedDaemon, opened: list[socket.socket], connect: Any
) -> None:
    """On the socket, a peer is a user."""
    opened += [connect(daemon) for _ in range(OF_PEER)]
    assert [ask(each) for each in opened] == [200] * OF_PEER
    assert ask(opened[0]) == 200  # it is the newest now
    opened.append(connect(daemon))
    assert ask(opened[-1]) == 200
    wait_until(lambda: is_closed(opened[1]), "the oldest one is closed")
    others = [opened[0], *opened[2:]]
    assert not any(map(is_closed, others))
    assert [ask(each) for each in others] == [200] * OF_PEER


@pytest.mark.long
def test_many_idle_connections_do_not_keep_a_new_one_out(
    daemon: TestedDaemon, opened: list[socket.socket]
) -> None:
    for _ in range(300):
        opened.append(connect(daemon))
        if len(opened) % 50 == 0:
            with contextlib.closing(connect(daemon)) as new:
                assert ask(new) == 200

    def closes_old_ones() -> bool:
        with contextlib.closing(connect(daemon)) as new:
            assert ask(new) == 200
        return sum(map(is_closed, opened)) >= 300 - OF_PEER

    wait_until(closes_old_ones, "idle ones are closed for new ones")


def test_connections_with_a_token_are_not_closed_for_those_without(
    daemon: TestedDaemon, opened: list[socket.socket]
) -> None:
    for _ in range(40):
        opened.append(connect(daemon))
        assert ask(opened[-1], models_of(daemon, "demo")) == 200
    kept = opened.copy()
    opened += [connect(daemon) for _ in range(2 * OF_PEER)]
    with contextlib.closing(connect(daemon)) as new:
        assert ask(new) == 200
    assert not any(map(is_closed, kept))
    assert ask(kept[0]) == 200


def test_many_requests_that_arrive_together_are_all_answered(
    daemon: TestedDaemon, opened: list[socket.socket]
) -> None:
    """More connections than a peer may have without a token: each sends one at once."""
    data = models_of(daemon, "demo")
    for _ in range(3 * OF_PEER):
        opened.append(connect(daemon))
        opened[-1].sendall(data)
    assert [read_response(each).status for each in opened] == [200] * 3 * OF_PEER


@pytest.mark.parametrize("connect", [connect, connect_socket])
def test_connections_that_are_opened_before_they_are_used_are_all_answered(
    emu: Emulator,
    tmp_path: Path,
    opened: list[socket.socket],
    connect: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pool opens them together, and the way to the daemon takes time."""
    # A busy machine takes longer for all of them than a connection is new.
    patient = functools.partial(ConnectionLimits, new_seconds=PATIENCE)
    monkeypatch.setattr("anaphora.daemon.listeners.ConnectionLimits", patient)
    with running_daemon(tmp_path, emu) as daemon:
        opened += [connect(daemon) for _ in range(100)]
        with contextlib.closing(connect(daemon)) as last:  # all before it are accepted
            assert ask(last) == 200
        data = models_of(daemon, "demo")
        assert [ask(each, data) for each in opened] == [200] * 100


def test_a_slow_request_without_a_token_keeps_no_place(
    daemon: TestedDaemon, opened: list[socket.socket]
) -> None:
    """The head of a request that does not end is as good as nothing."""
    for _ in range(3 * OF_PEER):
        opened.append(connect(daemon))
        opened[-1].sendall(b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\n")
    with contextlib.closing(connect(daemon)) as new:
        assert ask(new) == 200


@pytest.mark.long
def test_a_connection_without_a_tls_handshake_takes_a_place(
    running_emulator: Emulator, tmp_path: Path, opened: list[socket.socket]
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    files = write_certificate(home, "server")
    files.key.chmod(0o600)
    llm = llm_yaml(running_emulator.url)
    llm["daemon"] |= {"tls": {"cert": files.cert.name, "key": files.key.name}}
    with running_daemon(tmp_path, running_emulator, llm=llm) as daemon:
        opened += [connect(daemon) for _ in range(2 * OF_PEER)]
        context = ssl.create_default_context(cafile=files.cert)

        def closes_the_oldest() -> bool:
            with context.wrap_socket(connect(daemon), server_hostname="127.0.0.1") as new:
                assert ask(new) == 200
            return is_closed(opened[0])

        wait_until(closes_the_oldest, "the oldest one is closed for a new one")


# ── Trusted proxies ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def behind_proxy(running_emulator: Emulator, tmp_path: Path) -> Iterator[TestedDaemon]:
    llm = llm_yaml(running_emulator.url)
    llm["daemon"] |= {
        "trusted_proxies": ["127.0.0.1"],
        "behind_proxy": True,
        "allowed_hosts": ["localhost"],
        "max_connections": 100,
        "failed_logins_per_minute": 2,
    }
    with running_daemon(tmp_path, running_emulator, llm=llm) as tested:
        yield tested


def test_connections_of_a_trusted_proxy_are_not_closed(
    behind_proxy: TestedDaemon, opened: list[socket.socket]
) -> None:
    """For being idle; further ones than max_connections are not accepted."""
    opened += [connect(behind_proxy) for _ in range(100)]
    assert [ask(each) for each in opened] == [200] * 100
    with contextlib.closing(connect(behind_proxy)) as further:
        with contextlib.suppress(ConnectionError):
            further.sendall(HEALTH)
        wait_until(lambda: is_closed(further), "it is not accepted")
    assert not any(map(is_closed, opened))
    with behind_proxy.socket_client() as client:  # the socket has others
        assert client.get("/healthz").status_code == 200
    opened.pop().close()

    def is_accepted() -> bool:
        with contextlib.closing(connect(behind_proxy)) as again, contextlib.suppress(OSError):
            return ask(again) == 200
        return False

    wait_until(is_accepted, "a place is free again")


def test_failed_logins_over_a_proxy_are_limited_by_the_client_that_it_names(
    behind_proxy: TestedDaemon,
) -> None:
    def status(client: str, token: str) -> int:
        data = request_bytes(
            "GET", "/v1/models", x_forwarded_for=client, authorization=f"Bearer {token}"
        )
        with contextlib.closing(connect(behind_proxy)) as connection:
            return ask(connection, data)

    assert [status("192.0.2.1", "ana_wrong") for _ in range(3)] == [401, 401, 429]
    assert status("198.51.100.9, 192.0.2.1", "ana_wrong") == 429  # the last is the proxy's word
    assert status("192.0.2.2", "ana_wrong") == 401
    assert status("192.0.2.1", behind_proxy.token()) == 200


# ── The table ────────────────────────────────────────────────────────────────────────────────────


class Peer:
    def __init__(self) -> None:
        self.closed = False

    def has_input(self) -> bool:
        return False

    def close_idle(self) -> None:
        self.closed = True


def enter(table: ConnectionTable, peer: Peer, address: str) -> ConnectionPlace | None:
    return table.enter(address, peer.has_input, peer.close_idle)


def test_peers_of_one_ipv6_network_count_as_one() -> None:
    now = 0.0
    table = ConnectionTable(ConnectionLimits(strangers_of_peer=2), clock=lambda: now)
    peers = [Peer() for _ in range(4)]
    for number, peer in enumerate(peers):
        now = 10.0 * number
        assert enter(table, peer, "192.0.2.1" if number == 2 else f"2001:db8::{number}")
    assert [peer.closed for peer in peers] == [True, False, False, False]


def test_new_connections_are_not_closed_for_those_of_their_peer() -> None:
    now = 0.0
    limits = ConnectionLimits(strangers_of_peer=2, new_seconds=2.0)
    table = ConnectionTable(limits, clock=lambda: now)
    other, *many = [Peer() for _ in range(7)]
    assert enter(table, other, "192.0.2.9")
    places = [enter(table, peer, "192.0.2.1") for peer in many[:4]]
    assert not any(peer.closed for peer in many)
    assert places[0] is not None
    places[0].use("app")  # has shown a token
    now = 1.0
    assert enter(table, many[4], "192.0.2.1")
    assert not any(peer.closed for peer in many)
    now = 2.5
    assert enter(table, many[5], "192.0.2.1")
    assert [peer.closed for peer in many] == [False, True, True, True, False, False]
    assert not other.closed


def test_a_full_table_closes_the_longest_unused_connection() -> None:
    """Idle ones without a token first, then others that are idle, and none of a trusted proxy."""
    table = ConnectionTable(ConnectionLimits(connections=5, trusted=("198.51.100.0/24",)))
    proxy, *peers = [Peer() for _ in range(9)]
    assert enter(table, proxy, "198.51.100.1")
    places = [enter(table, peer, f"192.0.2.{number}") for number, peer in enumerate(peers[:4])]
    kept, used, busy, idle = [place for place in places if place is not None]
    kept.use("app")
    for place in (used, busy):
        place.begin()
    used.end()  # later than `idle`
    order = [idle, used, kept, busy]
    for place, peer in zip(order, peers[4:], strict=True):
        new = enter(table, peer, "192.0.2.200")
        assert new is not None
        assert place not in table.open
        assert len(table.open) == 5
        new.use("app")
        new.begin()
    assert not proxy.closed
    assert enter(table, Peer(), "192.0.2.201") is None


def test_half_requests_of_one_peer_close_no_idle_connection_of_an_app() -> None:
    table = ConnectionTable(ConnectionLimits(connections=8, strangers_of_peer=2))
    apps, many = [Peer() for _ in range(3)], [Peer() for _ in range(20)]
    for peer in apps:
        place = enter(table, peer, "192.0.2.9")
        assert place is not None
        place.use("app")
    for peer in many:
        place = enter(table, peer, "192.0.2.1")
        assert place is not None
        place.begin()
    assert not any(peer.closed for peer in apps)
    assert [peer.closed for peer in many] == [True] * 15 + [False] * 5
