"""A key reaches the server, and no error, log, metric or record, however a call fails.

One canary, a table of failures, and every collector of `support.collectors`. Providers that quote
the key in their errors are part of the table: the call's own secrets are removed from what they
write. Answers are not changed.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import pickle
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec
import pytest
import trustme
from support.collectors import chain, collected, logged, pickled
from support.forward_proxy import forward_proxy
from support.raw_server import Handler, RawServer, raw_server, reply, reset
from support.waiting import until

from anaphora import AsyncClient, Client, ToolRegistry, errors
from anaphora.client.config import ClientConfig
from anaphora.client.response import Record

#: A part of each secret is enough: some are shown cut off.
KEY_PART, TOKEN_PART, PASSWORD_PART, PATH_PART = "7Hq2Zt9v", "3Mx8Rb5k", "5Kd8Qs3n", "9Wv4Jc6y"
KEY = f"sk-canary-{KEY_PART}Xw4LmPr8"
TOKEN = f"token-{TOKEN_PART}"
PASSWORD = f"word-{PASSWORD_PART}"
PATH = f"gw{PATH_PART}"
BASIC = base64.b64encode(f"user:{PASSWORD}".encode()).decode()
PARTS = (KEY_PART, TOKEN_PART, PASSWORD_PART, PATH_PART, BASIC.rstrip("="))

MODELS = {"anthropic": "claude-sonnet-4-5", "openai_chat": "gpt-5.2", "gemini": "gemini-2.5-flash"}

BRISK = {"first_byte": 0.2, "idle": 0.2, "connect": 2.0}
#: For servers that never answer.
HASTY = {"first_byte": 0.05, "idle": 0.05, "connect": 2.0}


def settings(url: str, wire: str = "anthropic", **more: Any) -> ClientConfig:
    provider = {
        "wire": wire,
        "base_url": f"{url}/{PATH}",
        "key": {"env": "CANARY_KEY"},
        "headers": {"X-Gateway-Token": TOKEN},
        "model": MODELS[wire],
        "retry": {"max_attempts": 2, "first_wait": 0.001},
        "timeouts": BRISK,
        **more,
    }
    return ClientConfig.from_mapping({"providers": {"main": provider}})


# ── Ways to call ─────────────────────────────────────────────────────────────────────────────────

Way: TypeAlias = Callable[[ClientConfig, list[Record], dict[str, Any]], Awaitable[None]]


@asynccontextmanager
async def opened(config: ClientConfig, records: list[Record]) -> AsyncIterator[AsyncClient]:
    async with AsyncClient.from_config(config, watchers=[records.append]) as client:
        yield client


async def awaited(config: ClientConfig, records: list[Record], options: dict[str, Any]) -> None:
    async with opened(config, records) as client:
        await client.complete("Hello", "main", **options)


async def streamed(config: ClientConfig, records: list[Record], options: dict[str, Any]) -> None:
    async with opened(config, records) as client:
        async for _ in client.session("main").send("Hello", **options):
            pass


async def synchronous(config: ClientConfig, records: list[Record], options: dict[str, Any]) -> None:
    def call() -> None:
        with Client.from_config(config, watchers=[records.append]) as client:
            client.session("main").send("Hello", **options).result()

    await asyncio.to_thread(call)


async def synchronous_stream(
    config: ClientConfig, records: list[Record], options: dict[str, Any]
) -> None:
    def call() -> None:
        with Client.from_config(config, watchers=[records.append]) as client:
            for _ in client.stream("Hello", "main", **options):
                pass

    await asyncio.to_thread(call)


WAYS: list[Way] = [awaited, streamed, synchronous, synchronous_stream]


def assert_hidden(error: BaseException | None, records: list[Record], log: list[str]) -> None:
    for collector, text in collected(error, records, log):
        for part in PARTS:
            place = text.find(part)
            assert place < 0, f"{collector}: …{text[max(0, place - 300) : place + 60]}"


def failing(
    way: Way,
    config: ClientConfig,
    server: RawServer | None = None,
    *,
    slow: float = 0.0,
    **options: Any,
) -> Callable[[], Awaitable[BaseException]]:
    """Makes a call that fails, and checks what was seen of it. Callbacks that take longer than
    `slow` are logged by asyncio."""

    async def call() -> BaseException:
        records: list[Record] = []
        loop = asyncio.get_running_loop()
        loop.slow_callback_duration = slow
        with logged() as log:
            try:
                await way(config, records, options)
            except BaseException as caught:
                error = caught
            else:
                raise AssertionError("the call did not fail")
            assert_hidden(error, records, log)
        assert len(records) == 1
        if server is not None:
            received = b"".join(server.requests)
            assert KEY.encode() in received, "the canary was not sent"
            assert TOKEN.encode() in received
            assert PATH.encode() in received
        return error

    return call


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    async def awaiting() -> Any:
        return await main()

    return asyncio.run(awaiting(), debug=True)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key; and debug mode for the loops in threads of synchronous clients."""
    monkeypatch.setenv("CANARY_KEY", KEY)
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")


# ── No connection ────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def refused() -> AsyncIterator[ClientConfig]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield settings(f"http://127.0.0.1:{taken.getsockname()[1]}")


@asynccontextmanager
async def unresolved() -> AsyncIterator[ClientConfig]:
    yield settings("http://nowhere.invalid")


@asynccontextmanager
async def untrusted() -> AsyncIterator[ClientConfig]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    async with raw_server(silent, tls=context) as server:
        yield settings(server.url)


@asynccontextmanager
async def unreachable_proxy() -> AsyncIterator[ClientConfig]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        proxy = f"http://user:{PASSWORD}@127.0.0.1:{taken.getsockname()[1]}"
        yield settings("http://api.example", proxy=proxy)


@asynccontextmanager
async def refusing_tunnel() -> AsyncIterator[ClientConfig]:
    async with forward_proxy(status="407 Wrong password") as proxy:
        address = proxy.url.replace("//", f"//user:{PASSWORD}@")
        yield settings("https://api.example", proxy=address)


@asynccontextmanager
async def silent_proxy() -> AsyncIterator[ClientConfig]:
    async with raw_server(silent) as server:
        address = server.url.replace("//", f"//user:{PASSWORD}@")
        yield settings("https://api.example", proxy=address, timeouts={"connect": 0.1})


async def silent(server: RawServer, reader: asyncio.StreamReader, writer: Any) -> None:
    while await server.read(reader):
        pass


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "scene", [refused, unresolved, untrusted, unreachable_proxy, refusing_tunnel, silent_proxy]
)
@pytest.mark.long
def test_no_connection(scene: Any, way: Way) -> None:
    async def main() -> None:
        async with scene() as config:
            error = await failing(way, config)()
            assert isinstance(error, errors.Transport)
            assert error.phase == "connect"

    run(main)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_proxy_gets_its_password(scheme: str) -> None:
    """So that the tests above can fail."""

    async def main() -> None:
        async with raw_server(silent) as server:
            address = server.url.replace("//", f"//user:{PASSWORD}@")
            limits = {"connect": 0.3, "first_byte": 0.1}
            config = settings(f"{scheme}://api.example", proxy=address, timeouts=limits)
            await failing(awaited, config)()
            assert BASIC.encode() in b"".join(server.requests)

    run(main)


# ── No answer ────────────────────────────────────────────────────────────────────────────────────


async def closing(server: RawServer, reader: asyncio.StreamReader, writer: Any) -> None:
    await server.read(reader)
    writer.close()


async def resetting(server: RawServer, reader: asyncio.StreamReader, writer: Any) -> None:
    await server.read(reader)
    writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{"id":')
    await writer.drain()
    reset(writer)


async def stalling(server: RawServer, reader: asyncio.StreamReader, writer: Any) -> None:
    await server.read(reader)
    writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{"id":')
    await silent(server, reader, writer)


async def quoting(server: RawServer, reader: asyncio.StreamReader, writer: Any) -> None:
    """A response that is not HTTP, but the request itself."""
    writer.write(await server.read(reader))
    await writer.drain()
    writer.close()


HANGING: tuple[Handler, ...] = (silent, stalling)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("handler", [silent, closing, resetting, stalling, quoting])
@pytest.mark.long
def test_no_answer(handler: Handler, way: Way) -> None:
    async def main() -> None:
        async with raw_server(handler) as server:
            # asyncio's log of slow callbacks has reprs of aiohttp's exceptions.
            slow = 60.0 if handler is quoting else 0.0
            config = settings(server.url, timeouts=HASTY if handler in HANGING else BRISK)
            error = await failing(way, config, server, slow=slow)()
            assert isinstance(error, errors.Transport)

    run(main)


@pytest.mark.parametrize(
    "handler, way",
    [
        pytest.param(handler, way, marks=[pytest.mark.soak] if (number + at) % 2 else [])
        for number, handler in enumerate(HANGING)
        for at, way in enumerate(WAYS)
    ],
)
def test_timeout(handler: Handler, way: Way) -> None:
    async def main() -> None:
        async with raw_server(handler) as server:
            config = settings(server.url, timeouts={})
            error = await failing(way, config, server, timeout=0.6)()
            assert isinstance(error, errors.Timeout)

    run(main)


@pytest.mark.parametrize("way", [awaited, streamed])
@pytest.mark.parametrize("handler", [silent, stalling])
def test_cancelled_call(handler: Handler, way: Way) -> None:
    async def main() -> None:
        async with raw_server(handler) as server:

            async def cancelling(*arguments: Any) -> None:
                call = asyncio.ensure_future(way(*arguments))
                await until(lambda: server.requests, "the request arrives")
                call.cancel()
                await call

            error = await failing(cancelling, settings(server.url), server)()
            assert isinstance(error, asyncio.CancelledError)

    run(main)


def test_cancelled_while_connecting() -> None:
    async def main() -> None:
        async with raw_server(silent) as server:
            address = server.url.replace("//", f"//user:{PASSWORD}@")

            async def cancelling(*arguments: Any) -> None:
                call = asyncio.ensure_future(awaited(*arguments))
                await until(lambda: server.requests, "the request arrives")
                call.cancel()
                await call

            error = await failing(cancelling, settings("https://api.example", proxy=address))()
            assert isinstance(error, asyncio.CancelledError)

    run(main)


@pytest.mark.parametrize("handler", [silent, stalling])
def test_client_closed_during_a_call(handler: Handler) -> None:
    async def main() -> None:
        async with raw_server(handler) as server:

            async def closed(config: Any, records: Any, options: Any) -> None:
                async with opened(config, records) as client:
                    call = asyncio.ensure_future(client.complete("Hello", "main"))
                    await until(lambda: server.requests, "the request arrives")
                    await client.close()
                    await call

            config = settings(server.url, timeouts={}, retry={"max_attempts": 1})
            error = await failing(closed, config, server)()
            assert isinstance(error, errors.Transport)

    run(main)


# ── Errors that quote the key ────────────────────────────────────────────────────────────────────


def error_body(wire: str, text: str, status: int) -> bytes:
    kinds: dict[str, dict[str, Any]] = {
        "anthropic": {"type": "error", "error": {"type": text, "message": text}},
        "openai_chat": {"error": {"message": text, "type": text, "code": text, "param": text}},
        "gemini": {"error": {"code": status, "message": text, "status": text}},
    }
    return json.dumps(kinds[wire]).encode()


def sent_secrets(request: bytes) -> str:
    """All secrets of a request, as a gateway may quote them."""
    head = request.partition(b"\r\n\r\n")[0].decode()
    line, *headers = head.split("\r\n")
    values = [header.partition(": ")[2] for header in headers]
    return f"{line} {' '.join(values)}"


def quotes(request: bytes) -> str:
    """The key in all forms: whole, in another case, masked, cut off, and in base64."""
    return (
        f"invalid key {KEY!r}; request: {sent_secrets(request)}; INVALID {KEY.upper()}."
        f" Incorrect API key: {KEY[:14]}****{KEY[-6:]}. See {KEY[:18]}... or {KEY[:20]},"
        f" not '{KEY[6:]}', nor {base64.b64encode(KEY.encode()).decode()}"
    )


IN_BASE64 = base64.b64encode(KEY.encode()).decode()[8:24]


def echoing(answer: Callable[[bytes], bytes]) -> Handler:
    async def handler(server: RawServer, reader: asyncio.StreamReader, writer: Any) -> None:
        while request := await server.read(reader):
            writer.write(answer(request))
            await writer.drain()

    return handler


@pytest.mark.parametrize("wire", MODELS)
@pytest.mark.parametrize("status", [200, 302, 400, 401, 403, 404, 429, 500])
@pytest.mark.long
def test_error_that_quotes_the_key(wire: str, status: int) -> None:
    """In every field of the error, and in the header of the request's id."""

    def answer(request: bytes) -> bytes:
        text = quotes(request)
        headers = f"x-request-id: {KEY}", f"Location: http://elsewhere.invalid/{KEY}"
        return reply(error_body(wire, text, status), f"{status} No", *headers)

    async def main() -> None:
        async with raw_server(echoing(answer)) as server:
            way = WAYS[status % len(WAYS)]
            error = await failing(way, settings(server.url, wire), server)()
            assert isinstance(error, errors.Upstream)
            assert error.attempts[0].reason
            assert "<secret>" in str(error)
            for hidden in (IN_BASE64, KEY_PART.upper(), KEY[-6:]):
                assert hidden not in str(error)

    run(main)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("status", [200, 401, 502])
def test_page_that_quotes_the_request(status: int, way: Way) -> None:
    """Neither an error nor a reply: a gateway's page."""

    def answer(request: bytes) -> bytes:
        return reply(b"<html>" + request + b"</html>", f"{status} Page")

    async def main() -> None:
        async with raw_server(echoing(answer)) as server:
            await failing(way, settings(server.url), server)()

    run(main)


def events(*data: dict[str, Any]) -> bytes:
    lines = (f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in data)
    return reply("".join(lines).encode(), "200 OK", "content-type: text/event-stream")


START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("begun", [False, True])
def test_event_that_quotes_the_key(begun: bool, way: Way) -> None:
    text = {"type": "text", "text": ""}
    pieces: list[dict[str, Any]] = [START]
    if begun:
        delta = {"type": "text_delta", "text": "Good"}
        pieces += [
            {"type": "content_block_start", "index": 0, "content_block": text},
            {"type": "content_block_delta", "index": 0, "delta": delta},
        ]

    def answer(request: bytes) -> bytes:
        failure = {"type": "overloaded_error", "message": sent_secrets(request)}
        return events(*pieces, {"type": "error", "error": failure})

    async def main() -> None:
        async with raw_server(echoing(answer)) as server:
            error = await failing(way, settings(server.url), server)()
            assert isinstance(error, errors.AnaphoraError)
            if begun or way in (streamed, synchronous_stream):
                assert "<secret>" in str(error)

    run(main)


# ── Answers ──────────────────────────────────────────────────────────────────────────────────────


def answer_with(content: str | dict[str, Any]) -> bytes:
    block = {"type": "text", "text": content} if isinstance(content, str) else content
    stop = "end_turn" if isinstance(content, str) else "tool_use"
    message = START["message"] | {"content": [block], "stop_reason": stop}  # type: ignore[operator]
    return reply(json.dumps(message).encode(), "200 OK", f"request-id: req-{KEY}")


def test_answer_is_not_changed() -> None:
    """Text of the model is the caller's, whatever it quotes. The record is not."""

    async def main() -> None:
        records: list[Record] = []
        async with (
            raw_server(echoing(lambda _: answer_with(f"It is {KEY}."))) as server,
            opened(settings(server.url), records) as client,
        ):
            response = await client.complete("Hello", "main")
            assert response.text == f"It is {KEY}."
            with logged() as log:
                assert_hidden(None, [*records, response.record], log)
            assert response.record.request_id == "req-<secret>"

    run(main)


def test_failing_watcher() -> None:
    def watcher(record: Record) -> None:
        raise RuntimeError(f"no space left for {record.model}")

    async def main() -> None:
        with logged() as log:
            async with (
                raw_server(echoing(lambda _: answer_with("Good"))) as server,
                AsyncClient.from_config(settings(server.url), watchers=[watcher]) as client,
            ):
                response = await client.session("main").send("Hello")
            assert "observer_failed" in [notice.code for notice in response.notices]
            assert any("watcher" in line for line in log)
            assert_hidden(None, [response.record], log)

    run(main)


def test_failing_tool() -> None:
    """An error of a tool passes through frames of the client to the model."""
    tool_call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    answers = iter((answer_with(tool_call), answer_with("Good")))

    tools = ToolRegistry()

    @tools.tool
    def look() -> str:
        """Looks."""
        raise RuntimeError("nothing to see")

    async def main() -> None:
        with logged() as log:
            records: list[Record] = []
            async with (
                raw_server(echoing(lambda _: next(answers))) as server,
                opened(settings(server.url), records) as client,
            ):
                chat = client.session("main", tools=tools)
                result = await chat.run("Hello")
            assert result.stop_reason == "done"
            assert_hidden(None, records, log)
            assert KEY.encode() not in repr(chat.messages).encode()

    run(main)


# ── Objects ──────────────────────────────────────────────────────────────────────────────────────


def test_no_object_shows_a_secret() -> None:
    """By repr, and by what `rich` and Sentry make of containers with it."""
    from rich.pretty import pretty_repr

    from anaphora.client.config.resolve import resolve
    from anaphora.client.transport.exchange import RequestHead
    from anaphora.client.transport.over_aiohttp import AiohttpTransport
    from anaphora.rendered import Body, Request

    proxy = f"http://user:{PASSWORD}@proxy.example:3128"

    async def main() -> None:
        config = settings("http://api.example", proxy=proxy)
        resolved = resolve(config)
        client = AsyncClient(resolved)
        endpoint = client._pool.endpoint(resolved["main"])
        transport = endpoint.transport
        assert isinstance(transport, AiohttpTransport)
        request = endpoint.outgoing(Request("POST", "/v1/messages", (), Body([b"{}"])))
        route = transport._route(request.url)
        head = RequestHead(*route.head("POST", request.headers, 2))
        shown = [
            config, resolved, client, endpoint, endpoint.target(None), transport,
            transport._connections, route, route.destination, route.destination.connection_key,
            head, head.with_body(), request, request.headers, endpoint.redactor,
        ]  # fmt: skip
        for one in shown:
            for text in (repr(one), str(one), f"{one}", pretty_repr([one]), repr({"one": [one]})):
                for part in PARTS:
                    assert part not in text
        assert KEY.encode() in bytes(head.with_body())
        for one in (request, request.headers, resolved["main"], endpoint.redactor, head):
            for write in (msgspec.json.encode, msgspec.msgpack.encode):
                with pytest.raises(TypeError):
                    write(one)
        await client.close()

    run(main)


# ── Keys in the wrong place ──────────────────────────────────────────────────────────────────────


def unchecked(one: Any) -> Any:
    return one


MISPLACED: dict[str, Callable[[Any], object]] = {
    "Client": lambda _: unchecked(Client)(KEY),
    "AsyncClient": lambda _: unchecked(AsyncClient)(KEY),
    "providers": lambda _: unchecked(AsyncClient)({"anthropic": KEY}),
    "from_config": lambda _: Client.from_config(KEY),
    "model": lambda client: client.complete("Hello", "main", model=KEY),
    "provider": lambda client: client.complete("Hello", KEY),
    "session": lambda client: client.session(KEY),
    "name of a keyword": lambda client: client.complete("Hello", "main", **{KEY: 1}),
    "api_key": lambda client: client.complete("Hello", "main", api_key=KEY),
    "reasoning": lambda client: client.complete("Hello", "main", reasoning=KEY),
    "tool_choice": lambda client: client.complete("Hello", "main", tool_choice=KEY),
    "timeout": lambda client: client.complete("Hello", "main", timeout=KEY),
    "temperature": lambda client: client.complete("Hello", "main", temperature=KEY),
    "role": lambda client: client.complete([{"role": KEY, "content": "Hello"}], "main"),
    "type": lambda client: client.complete(
        [{"role": "user", "content": [{"type": KEY}]}], "main"
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", MISPLACED)
def test_misplaced_key_is_not_repeated(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_KEY", "another")
    with (
        Client.from_config(settings("http://localhost:1")) as client,
        pytest.raises(errors.AnaphoraError) as caught,
    ):
        MISPLACED[place](client)
    for error in chain(caught.value):
        assert KEY_PART not in f"{error} {error!r} {vars(error)} {error.args} {pickled(error)}"


def test_unknown_api_key_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_KEY", "another")
    with (
        Client.from_config(settings("http://localhost:1")) as client,
        pytest.raises(errors.InvalidRequest, match=r"^api_key: .* keys come from the environment"),
    ):
        MISPLACED["api_key"](client)


def test_clients_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_KEY", KEY)
    config = settings("http://localhost:1")
    with Client.from_config(config) as client:
        for one in (client, AsyncClient.from_config(config)):
            for act in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="Client cannot be copied or pickled; make one"):
                    act(one)
