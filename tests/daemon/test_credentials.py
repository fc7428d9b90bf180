"""Who sent a request: the peer behind proxies, and the token, which goes no further."""

from __future__ import annotations

from typing import Any

import pytest
from support.tables import each_row

from anaphora.daemon.calls.steps.authenticate import Peers, take_token
from anaphora.daemon.values import Peer
from anaphora.errors import Forbidden, RequestRejected
from anaphora.serving.connection_limits import PEER, PeerCredentials
from anaphora.serving.exchange import BodyLimits, HttpExchange

PROXIES = ("10.0.0.0/8", "::1")


def exchange(
    *headers: tuple[str, str],
    client: str = "192.0.2.1",
    query: str = "",
    peer: PeerCredentials | None = None,
) -> HttpExchange:
    pairs = [(name.encode(), value.encode()) for name, value in headers]
    scope: dict[str, Any] = {
        "method": "GET",
        "path": "/",
        "query_string": query.encode(),
        "headers": pairs,
        "client": (client, "1234"),
        PEER: peer,
    }
    return HttpExchange(scope, None, None, BodyLimits(), None)


@each_row(
    "client, forwarded, expected",
    [
        ("10.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["6.6.6.6, 192.0.2.7, 10.9.9.9"], "192.0.2.7"),
        ("10.0.0.1", ["6.6.6.6", "192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["not an address"], "10.0.0.1"),
        ("10.0.0.1", ["192.0.2.7:4711"], "192.0.2.7"),
        ("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("::ffff:10.0.0.1", ["2001:db8::1"], "2001:db8::1"),
        ("::1", ["192.0.2.7"], "192.0.2.7"),
        ("127.0.0.1", ["192.0.2.7"], "127.0.0.1"),
    ],
)
def test_peer_behind_a_proxy_is_the_last_address_that_no_proxy_has(
    client: str, forwarded: list[str], expected: str
) -> None:
    peers = Peers(PROXIES, behind_proxy=True)
    headers = [("x-forwarded-for", value) for value in forwarded]
    assert peers.peer_of(exchange(*headers, client=client)) == Peer(expected)


def test_client_that_goes_around_the_proxy_is_refused() -> None:
    request = exchange(("x-forwarded-for", "127.0.0.1"))
    with pytest.raises(Forbidden):
        Peers(PROXIES, behind_proxy=True).peer_of(request)
    assert Peers(PROXIES, behind_proxy=True, tls=True).peer_of(request) == Peer("192.0.2.1")
    assert Peers().peer_of(request) == Peer("192.0.2.1")


def test_peer_on_the_socket_is_a_user() -> None:
    request = exchange(peer=PeerCredentials(1, 1000, 1000))
    assert Peers(PROXIES, behind_proxy=True).peer_of(request) == Peer("socket", 1000)


@pytest.mark.parametrize("name", ["x-forwarded-for", "forwarded", "x-real-ip", "via"])
def test_user_of_a_proxy_on_the_socket_is_not_that_of_its_clients(name: str) -> None:
    """Else everybody who reaches a proxy of the home's owner were an administrator."""
    request = exchange((name, "1.1.1.1"), peer=PeerCredentials(1, 1000, 1000))
    assert Peers().peer_of(request) == Peer("socket", None)


@pytest.mark.parametrize(
    "headers, query, left",
    [
        ([("authorization", "Bearer ana_x")], "a=1", b"a=1"),
        ([("Authorization", "BEARER ana_x"), ("X-Api-Key", "ana_x")], "", b""),
        ([("x-goog-api-key", " ana_x ")], "key=ana_x&alt=sse", b"alt=sse"),
        ([], "alt=sse&key=ana%5Fx", b"alt=sse"),
    ],
)
def test_token_is_removed_from_the_request(
    headers: list[tuple[str, str]], query: str, left: bytes
) -> None:
    request = exchange(*headers, ("accept", "*/*"), query=query)
    token = take_token(request)
    assert token is not None
    assert token.reveal() == "ana_x"
    assert request.headers == {"accept": "*/*"}
    assert request.header_pairs == [("accept", "*/*")]
    assert request.query_string == left
    assert b"ana_x" not in repr(request.scope).encode()


@pytest.mark.parametrize(
    "headers, query",
    [
        ([("authorization", "Bearer ")], ""),
        ([("authorization", "Basic b3duZXI=")], ""),
        ([("x-api-key", "")], ""),
        ([], "key="),
    ],
)
def test_empty_token_is_not_the_same_as_none(headers: list[tuple[str, str]], query: str) -> None:
    """An app whose token is not set is not the home's owner."""
    token = take_token(exchange(*headers, query=query))
    assert token is not None
    assert token.reveal() == ""


@pytest.mark.parametrize(
    "headers, query",
    [([("x-api-key", "ana_x"), ("x-api-key", "ana_x")], ""), ([], "key=ana_x&key=ana_y")],
)
def test_token_that_is_sent_twice_is_refused(headers: list[tuple[str, str]], query: str) -> None:
    with pytest.raises(RequestRejected) as caught:
        take_token(exchange(*headers, query=query))
    assert "ana_x" not in str(caught.value)
