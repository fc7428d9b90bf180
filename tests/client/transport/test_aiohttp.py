"""The undocumented parts of aiohttp that the transport uses: a release without them fails here."""

from __future__ import annotations

import asyncio
import inspect
from importlib.metadata import version
from typing import Any

import aiohttp
import pytest
from aiohttp import client_proto, connector, http
from aiohttp.client_reqrep import ConnectionKey
from support.tables import each_row
from yarl import URL

from anaphora.client.config.secrets import Secret, SecretHeaders
from anaphora.client.transport.connections import Destination
from anaphora.client.transport.errors import read_proxy

#: Which of its attributes are used in `client/transport`.
LEANT_ON: dict[type, str] = {
    aiohttp.TCPConnector: "connect close",
    connector.Connection: "protocol transport release close",
    client_proto.ResponseHandler: (
        "set_response_params read set_exception closed should_close writing_paused _drain_helper"
    ),
    aiohttp.StreamReader: "is_eof at_eof exception set_exception read_nowait readany",
    aiohttp.ClientRequest: "connection_key",
    http.RawResponseMessage: "code headers",
    aiohttp.SocketTimeoutError: "__init__",
}

#: And how they are called.
CALLED: dict[str, tuple[Any, tuple[object, ...], dict[str, object]]] = {
    "TCPConnector.connect": (aiohttp.TCPConnector.connect, ("self", "req", [], "timeout"), {}),
    "ResponseHandler.set_response_params": (
        client_proto.ResponseHandler.set_response_params,
        ("self",),
        {"skip_payload": False, "read_until_eof": True},
    ),
    "ResponseHandler.set_exception": (
        client_proto.ResponseHandler.set_exception,
        ("self", "exc"),
        {},
    ),
    "StreamReader.set_exception": (aiohttp.StreamReader.set_exception, ("self", "exc", "why"), {}),
    "ClientRequest": (
        aiohttp.ClientRequest.__init__,
        ("self", "GET", "url"),
        {"headers": {}, "proxy": None, "proxy_headers": {}},
    ),
}


@each_row("kind", LEANT_ON, ids=lambda kind: kind.__name__)
def test_used_attributes_exist(kind: type) -> None:
    gone = [name for name in LEANT_ON[kind].split() if not hasattr(kind, name)]
    assert not gone, f"aiohttp {version('aiohttp')}: {kind.__name__} has no {', '.join(gone)}"


@each_row("name", CALLED)
def test_called_functions_accept_the_arguments(name: str) -> None:
    called, plain, named = CALLED[name]
    try:
        inspect.signature(called).bind(*plain, **named)
    except TypeError as problem:
        pytest.fail(f"aiohttp {version('aiohttp')}: {name} is called otherwise: {problem}")


def test_connection_has_a_transport_and_identity_hash() -> None:
    async def main() -> None:
        handler = client_proto.ResponseHandler(asyncio.get_running_loop())
        assert handler.transport is None
        assert not handler.should_close
        assert {handler: 1}[handler] == 1
        assert isinstance(handler.closed, asyncio.Future)

    asyncio.run(main())


def test_connection_keys() -> None:
    """The key tells apart what must not share a connection, and stays what it was when the
    connector adds to the proxy's headers."""

    async def main() -> None:
        proxy = read_proxy(Secret("http://user:word@proxy.example:3128"))
        other = read_proxy(Secret("http://user:other@proxy.example:3128"))
        direct = Destination(URL("https://api.example/v1"), None, SecretHeaders())
        through = Destination(URL("https://api.example/v1"), *proxy)
        elsewhere = Destination(URL("https://api.example/v1"), *other)
        assert elsewhere.connection_key != through.connection_key
        assert "word" not in repr(through.connection_key)
        assert isinstance(direct.connection_key, ConnectionKey)
        assert direct.connection_key[:5] == ("api.example", 443, True, True, None)
        assert through.connection_key != direct.connection_key
        assert Destination(URL("https://api.example/v2"), *proxy).connection_key == (
            through.connection_key
        )
        before = through.connection_key
        assert through.proxy_headers is not None
        through.proxy_headers["Host"] = "api.example"  # type: ignore[index]
        assert through.connection_key == before

    asyncio.run(main())


def test_c_parser_is_used() -> None:
    """All would work with the one in Python, several times slower."""
    from aiohttp import http_parser

    assert http.HttpResponseParser is http_parser.HttpResponseParserC, "aiohttp has no extensions"
