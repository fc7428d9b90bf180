"""Every failure of a server: its phase, its message, and that no resource leaks."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import traceback
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from support.forward_proxy import forward_proxy
from support.http_requests import CANARY, outgoing
from support.raw_server import RawServer, answering, raw_server, reply, reset

from anaphora import errors
from anaphora.client.transport.over_aiohttp import AiohttpTransport

Step = Callable[[RawServer, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\nX-Secret: canary\r\n"


def sends(*pieces: bytes, then: Callable[[asyncio.StreamWriter], None] | None = None) -> Step:
    """Reads the request, sends these pieces, then closes, or is silent until the peer closes."""

    async def step(
        server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.read(reader)
        for piece in pieces:
            if not piece:
                await asyncio.sleep(0.05)  # so that what came before is read on its own
            writer.write(piece)
            await writer.drain()
        if then is not None:
            then(writer)
        else:
            await reader.read()

    return step


async def resets_unread(
    server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await reader.read(1000)
    reset(writer)


async def stops_reading(
    server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    # Buffered bytes are read after the peer has timed out and retries.
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    while server.connections == 1:  # noqa: ASYNC110 - the peer's doing
        await asyncio.sleep(0.01)
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    while await reader.read(1_000_000):
        pass


async def drips(
    server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await server.read(reader)
    writer.write(HEAD + b"Content-Length: 1000000\r\n\r\n")
    while not reader.at_eof():
        writer.write(b"canary")
        await asyncio.sleep(0.001)


def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()


FAR_TOO_LONG = b"HTTP/1.1 200 OK\r\nX-Canary: " + b"x" * 100_000 + b"\r\n\r\n"
BOMB = gzip.compress(b"\0" * 20_000_000)
CUT = gzip.compress(b"canary " * 100)[:-6]
CUT_DEFLATE = zlib.compress(b"canary " * 100)[:-6]
GZIPPED = HEAD + b"Content-Encoding: gzip\r\nContent-Length: "

#: The server's behaviour, special request fields, the phase, and words of the message.
FAILURES: dict[str, tuple[Step, dict[str, Any], errors.Phase, str]] = {
    "resets before the request is read": (
        resets_unread,
        {"body": b"canary" * 3_000_000},
        "send",
        "lost while sending",
    ),
    "stops reading": (
        stops_reading,
        {"body": b"canary" * 3_000_000, "idle": 0.05},
        "send",
        "the server read nothing more of the request for 0.05 s",
    ),
    "resets before the head": (sends(then=reset), {}, "first_byte", "no response"),
    "hangs up before the head": (sends(then=hang_up), {}, "first_byte", "the server disconnected"),
    "hangs up within the head": (sends(HEAD, then=hang_up), {}, "first_byte", "no response"),
    "never answers": (sends(), {"first_byte": 0.05}, "first_byte", "no response within 0.05 s"),
    "never answers a GET": (
        sends(),
        {"method": "GET", "body": b"", "first_byte": 0.05},
        "first_byte",
        "no response within 0.05 s",
    ),
    "is silent within the head": (
        sends(HEAD),
        {"first_byte": 0.05},
        "first_byte",
        "no response within 0.05 s",
    ),
    "sends headers that are too large": (
        sends(FAR_TOO_LONG),
        {},
        "first_byte",
        "the response headers are too large",
    ),
    "does not speak HTTP": (
        sends(b"220 canary ESMTP\r\n"),
        {},
        "first_byte",
        "the response is not HTTP",
    ),
    "sends a header that is none": (
        sends(b"HTTP/1.1 200 OK\r\ncanary canary\r\n\r\n"),
        {},
        "first_byte",
        "the response is not HTTP",
    ),
    "resets after the head": (
        sends(HEAD + b"Content-Length: 9\r\n\r\n", then=reset),
        {},
        "body",
        "broke off",
    ),
    "hangs up within the body": (
        sends(HEAD + b"Content-Length: 99\r\n\r\ncanary", then=hang_up),
        {},
        "body",
        "broke off",
    ),
    "hangs up within a chunk": (
        sends(HEAD + b"Transfer-Encoding: chunked\r\n\r\n6\r\ncan", then=hang_up),
        {},
        "body",
        "broke off",
    ),
    "hangs up before the last chunk": (
        sends(HEAD + b"Transfer-Encoding: chunked\r\n\r\n6\r\ncanary\r\n", then=hang_up),
        {},
        "body",
        "broke off",
    ),
    "breaks the coding of chunks at once": (
        sends(HEAD + b"Transfer-Encoding: chunked\r\n\r\ncanary\r\n"),
        {},
        "first_byte",  # the parser gives head and body up together
        "the response is not HTTP",
    ),
    "breaks the coding of chunks later": (
        sends(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"", b"canary\r\n"),
        {},
        "body",
        "broke off",
    ),
    "breaks the compression": (sends(GZIPPED + b"6\r\n\r\ncanary"), {}, "body", "broke off"),
    "ends the compressed data early": (
        sends(GZIPPED + b"%d\r\n\r\n" % len(CUT) + CUT),
        {},
        "body",
        "broke off (the compressed data ends early)",
    ),
    "leaves out the end of the compressed data in chunks": (
        sends(
            HEAD + b"Content-Encoding: deflate\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"%x\r\n%b\r\n0\r\n\r\n" % (len(CUT_DEFLATE), CUT_DEFLATE),
        ),
        {},
        "body",
        "broke off (the compressed data ends early)",
    ),
    "hangs up within compressed data without a length": (
        sends(HEAD + b"Content-Encoding: gzip\r\n\r\n" + CUT, then=hang_up),
        {},
        "body",
        "broke off (the compressed data ends early)",
    ),
    "announces more than it sends": (
        sends(HEAD + b"Content-Length: 9\r\n\r\ncanary"),
        {"idle": 0.05},
        "idle",
        "no data of the response for 0.05 s",
    ),
    "is silent after the head": (
        sends(HEAD + b"Transfer-Encoding: chunked\r\n\r\n"),
        {"idle": 0.05},
        "idle",
        "no data of the response for 0.05 s",
    ),
    "is silent in an answer without length": (
        sends(HEAD + b"\r\ncanary"),
        {"idle": 0.05},
        "idle",
        "no data of the response for 0.05 s",
    ),
    "drips without end": (drips, {"largest": 600}, "body", "longer than 600 bytes"),
    "sends more than is taken": (
        sends(reply(b"canary" * 200, "200 OK", "Connection: close")),
        {"largest": 1199},
        "body",
        "longer than 1,199 bytes",
    ),
    "sends a bomb": (
        sends(GZIPPED + b"%d\r\n\r\n" % len(BOMB) + BOMB),
        {},
        "body",
        "longer than 1,000,000 bytes",
    ),
}


def failing_once(step: Step) -> Step:
    """The first connection gets `step`, the others are answered well."""
    well = answering(reply(b"well"))

    async def handler(
        server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await (step if server.connections == 1 else well)(server, reader, writer)

    return handler


@pytest.mark.parametrize("streamed", [False, True], ids=["read", "streamed"])
@pytest.mark.parametrize("name", FAILURES)
def test_server_failure(name: str, streamed: bool) -> None:
    step, special, phase, words = FAILURES[name]

    async def main() -> None:
        # One connection for all: a leaked one would leave the next request without.
        transport = AiohttpTransport(connections=1)
        async with raw_server(failing_once(step)) as server:
            with pytest.raises(errors.Transport) as caught:
                await ask(transport, outgoing(server.url, **special), streamed)
            assert_reported(caught.value, phase, words, f"localhost:{server.port}")
            assert await ask(transport, outgoing(server.url), streamed) == b"well"
            assert server.connections == 2
            await transport.close()
            await server.closed()

    asyncio.run(main())


async def ask(transport: AiohttpTransport, request: Any, streamed: bool = False) -> bytes:
    answer = await transport.send(request)
    try:
        if not streamed:
            return await answer.read()
        return b"".join([data async for data in answer])
    finally:
        await answer.close()


def assert_reported(error: errors.Transport, phase: errors.Phase, *words: str) -> None:
    """Asserts the phase and the words, and that no sent or received text is in the error."""
    message = str(error)
    assert (error.phase, [word for word in words if word not in message]) == (phase, []), message
    logged = "".join(traceback.format_exception(error, limit=0))
    assert CANARY not in logged + repr(error)


def test_only_transient_failures_are_retryable() -> None:
    final = {"drips without end", "sends more than is taken", "sends a bomb"}

    async def retryable(name: str) -> bool:
        step, special, _, _ = FAILURES[name]
        transport = AiohttpTransport()
        async with raw_server(step) as server:
            with pytest.raises(errors.Transport) as caught:
                await ask(transport, outgoing(server.url, **special))
            await transport.close()
        return caught.value.retryable

    assert {name for name in FAILURES if not asyncio.run(retryable(name))} == final


# ── No connection ────────────────────────────────────────────────────────────────────────────────


def test_closed_port_is_a_connect_error() -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # bound, and not listening
            port = taken.getsockname()[1]
            transport = AiohttpTransport()
            with pytest.raises(errors.Transport) as caught:
                await transport.send(outgoing(f"http://127.0.0.1:{port}"))
            assert_reported(caught.value, "connect", f"127.0.0.1:{port}", "refused")
            await transport.close()

    asyncio.run(main())


def test_unresolvable_host_is_a_connect_error() -> None:
    async def main() -> None:
        transport = AiohttpTransport()
        with pytest.raises(errors.Transport) as caught:
            await transport.send(outgoing("http://nowhere.invalid"))
        assert_reported(caught.value, "connect", "nowhere.invalid:80", "does not resolve")
        await transport.close()

    asyncio.run(main())


def test_connect_timeout() -> None:
    """A listener whose queue is full takes no more."""

    async def main() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            address = full.getsockname()
            waiting = [socket.socket() for _ in range(8)]
            for sock in waiting:
                sock.setblocking(False)
                sock.connect_ex(address)
            transport = AiohttpTransport()
            with pytest.raises(errors.Transport) as caught:
                await transport.send(outgoing(f"http://127.0.0.1:{address[1]}", connect=0.05))
            assert_reported(caught.value, "connect", "no connection within 0.05 s")
            await transport.close()
            for sock in waiting:
                sock.close()

    asyncio.run(main())


def test_pool_timeout() -> None:
    async def main() -> None:
        transport = AiohttpTransport(connections=1)
        async with raw_server(sends(HEAD + b"Content-Length: 9\r\n\r\n")) as server:
            first = await transport.send(outgoing(server.url))
            with pytest.raises(errors.Transport) as caught:
                await transport.send(outgoing(server.url, connect=0.05))
            assert_reported(caught.value, "connect", "no connection within 0.05 s")
            await first.close()
            await (await transport.send(outgoing(server.url))).close()
            await transport.close()

    asyncio.run(main())


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────


def tls_for(*names: str) -> tuple[trustme.CA, ssl.SSLContext]:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return authority, context


@pytest.mark.parametrize(
    "names, trusts, words",
    [(("localhost",), False, "not trusted"), (("elsewhere.example",), True, "Hostname mismatch")],
)
def test_untrusted_certificate_is_a_connect_error(
    names: tuple[str, ...], trusts: bool, words: str, tmp_path: Path
) -> None:
    authority, context = tls_for(*names)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    async def main() -> None:
        transport = AiohttpTransport(ca=str(tmp_path / "ca.pem") if trusts else None)
        async with raw_server(answering(reply()), tls=context) as server:
            with pytest.raises(errors.Transport) as caught:
                await transport.send(outgoing(server.url))
            assert_reported(caught.value, "connect", f"localhost:{server.port}", words)
            assert not caught.value.retryable
            assert server.requests == []
            await transport.close()

    asyncio.run(main())


def test_server_without_tls_is_a_connect_error() -> None:
    async def plain(
        server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 canary\r\n\r\n")
        await reader.read()

    async def main() -> None:
        transport = AiohttpTransport()
        async with raw_server(plain) as server:
            server.scheme = "https"
            with pytest.raises(errors.Transport) as caught:
                await transport.send(outgoing(server.url))
            assert_reported(caught.value, "connect", f"localhost:{server.port}", "TLS failed")
            await transport.close()

    asyncio.run(main())


@pytest.mark.parametrize("text", ["", "no certificate"])
def test_file_without_certificates_is_rejected(text: str, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    if text:
        file.write_text(text)
    with pytest.raises(errors.InvalidConfig, match=r"ca: cannot read certificates from .*ca\.pem"):
        AiohttpTransport(ca=str(file))


# ── Proxies ──────────────────────────────────────────────────────────────────────────────────────


def test_unreachable_proxy_is_a_connect_error() -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            transport = AiohttpTransport(proxy=f"http://canary:canary@127.0.0.1:{port}")
            with pytest.raises(errors.Transport) as caught:
                await transport.send(outgoing("http://api.example"))
            assert_reported(
                caught.value, "connect", f"proxy 127.0.0.1:{port} to api.example:80", "refused"
            )
            await transport.close()

    asyncio.run(main())


def test_rejected_tunnel_is_a_connect_error() -> None:
    async def main() -> None:
        async with forward_proxy(status="403 canary") as proxy:
            transport = AiohttpTransport(proxy=proxy.url)
            with pytest.raises(errors.Transport) as caught:
                await transport.send(outgoing("https://api.example"))
            assert_reported(
                caught.value, "connect", "to api.example:443: the proxy refused with status 403"
            )
            await transport.close()

    asyncio.run(main())


def test_proxy_without_a_response() -> None:
    async def main() -> None:
        async with raw_server(sends()) as server:
            transport = AiohttpTransport(proxy=server.url)
            with pytest.raises(errors.Transport) as caught:
                await transport.send(outgoing("https://api.example", connect=0.05))
            assert_reported(caught.value, "connect", "no connection within 0.05 s")
            await transport.close()
            await server.closed()

    asyncio.run(main())


@pytest.mark.parametrize(
    "address", ["localhost:3128", "socks5://canary:canary@h", "http://", "//h"]
)
def test_invalid_proxy_url_is_rejected(address: str) -> None:
    with pytest.raises(errors.InvalidConfig, match="proxy: not a URL") as caught:
        AiohttpTransport(proxy=address)
    assert CANARY not in str(caught.value)
