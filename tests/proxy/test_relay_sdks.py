"""The official SDKs through the proxy: the same bytes arrive as without it, and the same objects,
events and errors come back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.sdk import anthropic, gemini, mistral, openai_chat, openai_responses
from support.sdk.case import SdkCase
from support.socket_upstream import CallList, SocketUpstream, UpstreamConnection, socket_upstream

from anaphora.errors import RateLimited
from anaphora.proxy.server import Proxy, running
from anaphora.traffic.calls import ProxyRoute

#: Where aiohttp is installed google-genai uses it, in a way that aiohttp advises against.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")

MODULES: list[Any] = [anthropic, openai_chat, openai_responses, gemini, mistral]
CASES: list[SdkCase] = [module.CASE for module in MODULES]
EVENT = re.compile(rb".*?(?:\r?\n\r?\n|\n(?=\{))|.+", re.DOTALL)
#: Headers of every provider; our server adds them where they are missing.
OWN = "server: up\r\ndate: Mon, 16 Nov 2026 08:00:00 GMT\r\n"
LIMITS = {"x-ratelimit-remaining-requests": "0", "anthropic-ratelimit-tokens-limit": "9"}
#: Between the program and the next hop.
HOPS = ("connection", "host")


class Provider:
    """Gives the answer that a test has set, an event at a time."""

    def __init__(self) -> None:
        self.head, self.pieces = b"", [b""]

    def answer(self, status: int, headers: dict[str, str], pieces: list[bytes]) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        framing = "Transfer-Encoding: chunked\r\n"
        self.pieces = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces] + [b"0\r\n\r\n"]
        if len(pieces) == 1:
            framing, self.pieces = f"Content-Length: {len(pieces[0])}\r\n", pieces
        self.head = f"HTTP/1.1 {status} Status\r\n{OWN}{lines}{framing}\r\n".encode()

    def __call__(self, connection: UpstreamConnection) -> None:
        while connection.read_request():
            connection.send(self.head)
            for piece in self.pieces:
                connection.send(piece)


@pytest.fixture(scope="module")
def provider() -> Provider:
    return Provider()


@pytest.fixture(scope="module")
def upstream(provider: Provider) -> Iterator[SocketUpstream]:
    with socket_upstream(provider) as running_upstream:
        yield running_upstream


@pytest.fixture(scope="module")
def seen() -> CallList:
    return CallList()


@pytest.fixture(scope="module")
def proxy(upstream: SocketUpstream, seen: CallList) -> Iterator[Proxy]:
    providers = {case.provider for case in CASES}
    routes = [
        ProxyRoute(prefix=f"/{name}", provider=name, upstream=upstream.url) for name in providers
    ]
    with running(routes, observers=[seen]) as running_proxy:
        yield running_proxy


def comparable(request: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
    """Request line, headers in their order, and body."""
    head, _, body = request.partition(b"\r\n\r\n")
    line, *lines = head.decode("latin-1").split("\r\n")
    headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
    return line, [pair for pair in headers if pair[0] not in HOPS], body


def both(upstream: SocketUpstream, proxy: Proxy, case: SdkCase, ask: Any) -> tuple[Any, Any]:
    """What an SDK reads without the proxy and with it; the same arrives upstream."""
    upstream.requests.clear()
    direct = ask(upstream.url)
    relayed = ask(proxy.url_of(case.provider))
    first, second = map(comparable, upstream.requests)
    assert first == second
    assert first[2], "the SDK sends a body"
    return direct, relayed


every_sdk = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_sdk
def test_whole_reply(
    case: SdkCase, provider: Provider, upstream: SocketUpstream, proxy: Proxy
) -> None:
    reply = next(iter(case.replies.values()))
    body = case.codec.write_reply(reply)
    provider.answer(200, {"Content-Type": "application/json"}, [body])
    direct, relayed = both(upstream, proxy, case, case.ask)
    case.check_reply(relayed, reply)
    assert repr(direct) == repr(relayed)


@every_sdk
def test_stream_keeps_its_events(
    case: SdkCase, provider: Provider, upstream: SocketUpstream, proxy: Proxy, seen: CallList
) -> None:
    reply = next(iter(case.replies.values()))
    data = case.stream(reply)
    provider.answer(200, {"Content-Type": case.content_type}, EVENT.findall(data))
    count = len(seen.calls)
    _, relayed = both(upstream, proxy, case, case.ask_for_stream)
    case.check_stream(relayed, reply)
    call = seen.wait(count + 1)[-1]
    assert b"".join(piece.data for piece in call.pieces or ()) == data
    assert call.request_body == upstream.requests[0].partition(b"\r\n\r\n")[2]


@every_sdk
def test_error_and_its_headers_pass(case: SdkCase, provider: Provider, proxy: Proxy) -> None:
    error = next((each for each in case.errors if isinstance(each, RateLimited)), case.errors[0])
    status, headers, body = case.codec.write_error(error)
    provider.answer(status, {**headers, **LIMITS}, [body])
    with pytest.raises(Exception) as raised:  # noqa: PT011 - of any SDK
        case.ask(proxy.url_of(case.provider))
    case.check_error(raised.value, error, status)
    answer: Any = getattr(raised.value, "response", None)
    if hasattr(answer, "headers"):
        assert dict(answer.headers).items() >= LIMITS.items()
