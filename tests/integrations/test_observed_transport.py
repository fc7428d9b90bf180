"""What happens on the way: the bytes of both directions, errors, encodings, observers that fail, and
secrets."""

from __future__ import annotations

import asyncio
import base64
import functools
import gzip
import json
import logging
import os
import subprocess
import sys
import threading
import types
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import httpx
import httpx2
import openai
import pytest
from support.bedrock_server import frame
from support.observed import GUIDE, KEY, anthropic_client, claude, gpt, openai_client
from support.socket_upstream import UpstreamConnection, socket_upstream
from support.waiting import PATIENCE

import anaphora
from anaphora.client.response import Record
from anaphora.emulator.server import Emulator
from anaphora.integrations import observation
from anaphora.integrations.addresses import Addresses
from anaphora.integrations.observation import shared
from anaphora.integrations.sdk import transport
from anaphora.traffic.judging import CallJudge
from anaphora.traffic.placing import Placer
from anaphora.traffic.sums import JudgedCall

PACKAGES: list[Any] = [httpx, httpx2]
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-5-5",
    "content": [{"type": "text", "text": "Fine."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 2000, "output_tokens": 3},
}
URL = "https://api.anthropic.com/v1/messages"
BODY = json.dumps(claude()).encode()


@pytest.fixture(autouse=True)
def own_judge() -> Iterator[None]:
    shared.cache_clear()
    yield
    shared.cache_clear()


def answering(package: Any, *pieces: bytes, status: int = 200, **headers: str) -> Any:
    """A transport that answers with these pieces, and keeps the requests."""

    class Pieces(package.SyncByteStream, package.AsyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            yield from pieces

        async def __aiter__(self) -> Any:
            for piece in pieces:
                yield piece

    class Answering(package.BaseTransport, package.AsyncBaseTransport):  # type: ignore[misc]
        def __init__(self) -> None:
            self.requests: list[Any] = []

        def handle_request(self, request: Any) -> Any:
            self.requests.append(request)
            named = {"content-type": "application/json"}
            named |= {name.replace("_", "-"): value for name, value in headers.items()}
            return package.Response(status, headers=named, stream=Pieces())

        async def handle_async_request(self, request: Any) -> Any:
            return self.handle_request(request)

    return Answering()


# ── Bytes ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("package", PACKAGES)
def test_request_and_response_are_passed_as_they_are(package: Any) -> None:
    whole = json.dumps(MESSAGE).encode()
    inner = answering(package, whole[:10], whole[10:])
    calls: list[JudgedCall] = []
    with package.Client(transport=transport(inner, on_verdict=calls.append)) as client:
        request = client.build_request("POST", URL, content=BODY, headers={"x-api-key": KEY})
        with_tee = client.send(request)
    assert inner.requests == [request], "the very request"
    assert with_tee.content == whole
    assert len(calls) == 1
    assert calls[0].usage is not None
    assert calls[0].usage.uncached == 2000


class _Reversing:
    """A stand-in for the modules that read `br` and `zstd`, which may not be installed."""

    eof = True

    def process(self, data: bytes) -> bytes:
        return data[::-1]

    decompress = process

    def is_finished(self) -> bool:
        return True


def _encoders(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[bytes], bytes]]:
    known: dict[str, Callable[[bytes], bytes]] = {
        "gzip": lambda data: gzip.compress(data, mtime=0),
        "deflate": zlib.compress,
    }
    for name, module, made in (
        ("br", "brotli", "Decompressor"),
        ("zstd", "compression.zstd", "ZstdDecompressor"),
    ):
        stand_in = types.ModuleType(module)
        setattr(stand_in, made, _Reversing)
        monkeypatch.setitem(sys.modules, module.partition(".")[0], stand_in)
        monkeypatch.setitem(sys.modules, module, stand_in)
        known[name] = lambda data: data[::-1]
    return known


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "deflate, gzip"])
@pytest.mark.parametrize("package", PACKAGES)
def test_encoded_responses_are_read_and_passed_encoded(
    package: Any, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pieces are short: no decoder gets a whole body at once."""
    encoders = _encoders(monkeypatch)
    data = json.dumps(MESSAGE).encode()
    for name in encoding.split(", "):
        data = encoders[name](data)
    short = len(data) if encoding in ("br", "zstd") else 7
    pieces = [data[at : at + short] for at in range(0, len(data), short)]
    calls: list[JudgedCall] = []
    inner = answering(package, *pieces, content_encoding=encoding)
    own = transport(inner, on_verdict=calls.append)
    with (
        package.Client(transport=own) as client,
        client.stream("POST", URL, content=BODY) as answer,
    ):
        assert list(answer.iter_raw()) == pieces
    assert [call.usage.uncached for call in calls if call.usage] == [2000]


def _stream_events() -> list[bytes]:
    start = {**MESSAGE, "content": [], "stop_reason": None}
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    text = {"type": "text", "text": ""}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": text},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "Fine."},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]
    return [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events]


class Stepping:
    """A provider that sends each event of a stream only when the one before was received."""

    def __init__(self) -> None:
        self.received = threading.Semaphore(1)

    def __call__(self, connection: UpstreamConnection) -> None:
        connection.read_request()
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked"
        connection.send(f"{head}\r\n\r\n".encode())
        for event in _stream_events():
            assert self.received.acquire(timeout=PATIENCE), "an event was held back"
            connection.send(b"%x\r\n%b\r\n" % (len(event), event))
        connection.send(b"0\r\n\r\n")
        connection.wait_closed()


def _step_sync(url: str, stepping: Stepping, calls: list[JudgedCall]) -> None:
    with anthropic.Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        anaphora.observe(client, on_verdict=calls.append, provider="anthropic")
        for _ in client.messages.create(**claude(), stream=True):
            stepping.received.release()


def _step_async(url: str, stepping: Stepping, calls: list[JudgedCall]) -> None:
    async def run() -> None:
        async with anthropic.AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
            anaphora.observe(client, on_verdict=calls.append, provider="anthropic")
            async for _ in await client.messages.create(**claude(), stream=True):
                stepping.received.release()

    asyncio.run(run())


def _step_aiohttp(url: str, stepping: Stepping, calls: list[JudgedCall]) -> None:
    async def run() -> None:
        async with aiohttp.ClientSession() as session:
            anaphora.observe(session, on_verdict=calls.append, provider="anthropic")
            async with session.post(f"{url}/v1/messages", data=BODY) as response:
                async for line in response.content:
                    if line == b"\n":
                        stepping.received.release()

    asyncio.run(run())


@pytest.mark.parametrize("step", [_step_sync, _step_async, _step_aiohttp])
def test_no_byte_is_held_back(step: Any) -> None:
    stepping, calls = Stepping(), list[JudgedCall]()
    with socket_upstream(stepping) as upstream:
        step(upstream.url, stepping, calls)
    assert [call.usage.uncached for call in calls if call.usage] == [2000]


async def _read_whole(response: aiohttp.ClientResponse) -> bytes:
    return await response.read()


async def _read_any(response: aiohttp.ClientResponse) -> bytes:
    return b"".join([data async for data in response.content.iter_any()])


async def _read_sized(response: aiohttp.ClientResponse) -> bytes:
    return b"".join([data async for data in response.content.iter_chunked(9)])


async def _read_chunks(response: aiohttp.ClientResponse) -> bytes:
    return b"".join([data async for data, _ in response.content.iter_chunks()])


async def _read_lines(response: aiohttp.ClientResponse) -> bytes:
    return b"".join([line async for line in response.content])


async def _read_exactly(response: aiohttp.ClientResponse) -> bytes:
    head = await response.content.readexactly(5) + await response.content.readuntil(b",")
    while not response.content.at_eof():
        head += await response.content.read(50)
    return head


@pytest.mark.parametrize(
    "read", [_read_whole, _read_any, _read_sized, _read_chunks, _read_lines, _read_exactly]
)
def test_every_way_to_read_a_response_of_aiohttp_is_observed(emu: Emulator, read: Any) -> None:
    calls: list[JudgedCall] = []

    async def ask() -> Any:
        async with aiohttp.ClientSession(headers={"accept-encoding": "gzip"}) as session:
            anaphora.observe(session, on_verdict=calls.append, provider="anthropic")
            url = f"{emu.url}/anthropic/v1/messages"
            headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
            async with session.post(url, data=BODY, headers=headers) as response:
                assert isinstance(response.content, aiohttp.StreamReader)
                return json.loads(await read(response))

    answer = asyncio.run(ask())
    assert [call.usage.output for call in calls if call.usage] == [answer["usage"]["output_tokens"]]


def _first_event_only(connection: UpstreamConnection) -> None:
    """The rest never comes: the program leaves."""
    connection.read_request()
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked"
    event = _stream_events()[0]
    connection.send(f"{head}\r\n\r\n".encode() + b"%x\r\n%b\r\n" % (len(event), event))
    connection.wait_closed()


def _leave_sdk(url: str) -> None:
    with (
        anthropic.Anthropic(api_key=KEY, base_url=url, max_retries=0) as client,
        client.messages.create(**claude(), stream=True) as stream,
    ):
        next(iter(stream))


def _leave_session(url: str, *, closed: bool) -> None:
    async def run() -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/v1/messages", data=BODY) as response,
        ):
            await response.content.readany()
            if closed:
                response.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "leave",
    [
        _leave_sdk,
        functools.partial(_leave_session, closed=True),
        functools.partial(_leave_session, closed=False),
    ],
)
def test_stream_that_a_program_leaves_is_cancelled_and_not_judged(leave: Any) -> None:
    verdicts: list[JudgedCall] = []
    with socket_upstream(_first_event_only) as upstream:
        where = {upstream.url: "anthropic"}
        with anaphora.observing(on_verdict=verdicts.append, addresses=where) as seen:
            leave(upstream.url)
    assert [call.kind for call in seen.calls] == ["cancelled"]
    assert verdicts == []


def test_connection_that_fails_is_seen_and_the_error_passes() -> None:
    with (
        anaphora.observing(addresses={"http://127.0.0.1:9": "anthropic"}) as seen,
        anthropic.Anthropic(api_key=KEY, base_url="http://127.0.0.1:9", max_retries=1) as client,
        pytest.raises(anthropic.APIConnectionError),
    ):
        client.messages.create(**claude())
    assert [(call.kind, call.reason) for call in seen.calls] == [("failed", "ConnectError")] * 2


# ── Bills ────────────────────────────────────────────────────────────────────────────────────────


def test_retried_529_is_seen_and_not_judged(emu: Emulator) -> None:
    """The SDK retries; the second attempt is answered."""
    verdicts: list[JudgedCall] = []
    faults = iter(["529", ""])

    def first_fails(request: httpx2.Request) -> None:
        if fault := next(faults):
            request.headers["x-emulator-fault"] = fault

    http = anthropic.DefaultHttpxClient(event_hooks={"request": [first_fails]})
    where = {f"{emu.url}/anthropic": "anthropic"}
    with (
        anaphora.observing(on_verdict=verdicts.append, addresses=where) as seen,
        anthropic_client(emu.url, http_client=http, max_retries=1) as client,
    ):
        client.messages.create(**claude())
    assert [(call.kind, call.status) for call in seen.calls] == [("error", 529), ("judged", 200)]
    assert [call.status for call in verdicts] == [200]
    assert seen.sums.calls == 1


def test_stream_without_usage_is_no_bill(emu: Emulator) -> None:
    """`include_usage` is never added: the program would get a chunk that it does not expect."""
    verdicts: list[JudgedCall] = []
    with openai_client(emu.url) as client:
        anaphora.observe(client, on_verdict=verdicts.append, provider="openai", mark=True)
        chunks = list(client.chat.completions.create(**gpt(), stream=True))
    assert all(chunk.usage is None for chunk in chunks)
    (call,) = verdicts
    assert (call.usage, call.cost_usd) == (None, None)
    assert call.predicted is not None
    assert str(call).endswith("No bill.")


# ── Markers ──────────────────────────────────────────────────────────────────────────────────────


def unmarked(count: int) -> dict[str, Any]:
    return {**claude(count=count), "system": GUIDE}


def test_markers_are_off_by_default(emu: Emulator) -> None:
    with anthropic_client(emu.url) as client:
        anaphora.observe(client, provider="anthropic")
        for turn in (1, 2, 3):
            client.messages.create(**unmarked(turn))
    assert [call["read"] for call in emu.requests()] == [0, 0, 0]


def _ask_anthropic(url: str, calls: list[JudgedCall]) -> None:
    with anthropic_client(url) as client:
        anaphora.observe(client, on_verdict=calls.append, provider="anthropic", mark=True)
        for turn in (1, 2, 3):
            client.messages.create(**unmarked(turn))


def _ask_async(url: str, calls: list[JudgedCall]) -> None:
    async def run() -> None:
        base = f"{url}/anthropic"
        async with anthropic.AsyncAnthropic(api_key=KEY, base_url=base) as client:
            anaphora.observe(client, on_verdict=calls.append, provider="anthropic", mark=True)
            for turn in (1, 2, 3):
                await client.messages.create(**unmarked(turn))

    asyncio.run(run())


def _ask_aiohttp(url: str, calls: list[JudgedCall]) -> None:
    async def run() -> None:
        async with aiohttp.ClientSession() as session:
            anaphora.observe(session, on_verdict=calls.append, provider="anthropic", mark=True)
            headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
            for turn in (1, 2, 3):
                sent = session.post(
                    f"{url}/anthropic/v1/messages", json=unmarked(turn), headers=headers
                )
                async with sent as response:
                    assert (await response.json())["content"]

    asyncio.run(run())


@pytest.mark.parametrize("ask", [_ask_anthropic, _ask_async, _ask_aiohttp])
def test_markers_are_placed_where_asked(emu: Emulator, ask: Any) -> None:
    calls: list[JudgedCall] = []
    ask(emu.url, calls)
    third, second, _ = emu.requests()
    assert third["read"] > 1000 or second["read"] > 1000
    assert [call.placed for call in calls][-1]


REJECTED = {
    "type": "error",
    "error": {"type": "invalid_request_error", "message": "system: cache_control is not permitted"},
}


def _rejecting(connection: UpstreamConnection) -> None:
    """A gateway that does not know markers."""
    while request := connection.read_request():
        marked = b"cache_control" in request
        data = json.dumps(REJECTED if marked else MESSAGE).encode()
        head = f"HTTP/1.1 {400 if marked else 200} Status\r\nContent-Type: application/json\r\n"
        connection.send(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)


@pytest.mark.parametrize("ask", [_ask_anthropic, _ask_async, _ask_aiohttp])
def test_rejected_markers_change_no_answer(ask: Any) -> None:
    """The request is sent again as it was, and none are placed there any more."""
    calls: list[JudgedCall] = []
    with socket_upstream(_rejecting) as upstream:
        ask(upstream.url, calls)
    marked = [b"cache_control" in request for request in upstream.requests]
    assert marked.count(True) == 1
    assert marked.count(False) == 3
    assert [call.turn for call in calls][-1] == 3


def test_other_errors_of_marked_requests_pass(emu: Emulator) -> None:
    with anthropic_client(emu.url, max_retries=0) as client:
        anaphora.observe(client, provider="anthropic", mark=True)
        for turn in (1, 2):
            client.messages.create(**unmarked(turn))
        wrong = {**unmarked(3), "extra_body": {"temperature": 17}}
        with pytest.raises(anthropic.BadRequestError) as raised:
            client.messages.create(**wrong)
        assert "temperature" in str(raised.value)
    assert len(emu.requests()) == 3


BEDROCK = "https://bedrock-runtime.us-east-1.amazonaws.com/model"
SIGNED = {
    "authorization": "AWS4-HMAC-SHA256 Credential=AKIA/20261116/us-east-1/bedrock/aws4_request,"
    " SignedHeaders=host;x-amz-date, Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400",
    "x-amz-date": "20261116T080000Z",
}


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("https://bedrock-mantle.us-east-1.api.aws/anthropic/v1/messages", "bedrock"),
        (f"{BEDROCK}/us.anthropic.claude-opus-5-5-v1%3A0/invoke", "bedrock"),
        ("https://api.anthropic.com/v1/messages", "anthropic"),
    ],
)
def test_signed_requests_are_observed_and_never_changed(url: str, provider: str) -> None:
    calls: list[JudgedCall] = []
    inner = answering(httpx2, json.dumps(MESSAGE).encode())
    sent = []
    with httpx2.Client(transport=transport(inner, on_verdict=calls.append, mark=True)) as client:
        for turn in (1, 2, 3):
            fields = unmarked(turn)
            if "/invoke" in url:
                del fields["model"]
            body = json.dumps(fields).encode()
            sent.append(body)
            client.post(url, content=body, headers=SIGNED)
    assert [request.content for request in inner.requests] == sent
    assert [(call.placed, call.provider, call.turn) for call in calls] == [
        (False, provider, turn) for turn in (1, 2, 3)
    ]


@pytest.mark.parametrize("lacks, judged", [(0, True), (1, True), (2, False)])
def test_stream_of_bedrock_is_judged_by_the_events_in_it(lacks: int, judged: bool) -> None:
    """Cut off inside `message_stop`, the reply is complete; inside `message_delta`, it is not."""
    frames = []
    for event in _stream_events():
        encoded = base64.b64encode(event.partition(b"data: ")[2].strip()).decode()
        frames.append(frame(json.dumps({"bytes": encoded, "p": "abc"}).encode()))
    data = b"".join(frames)
    if lacks:
        data = b"".join(frames[:-lacks]) + frames[-lacks][:-30]
    content_type = "application/vnd.amazon.eventstream"
    inner = answering(httpx2, data[:50], data[50:], content_type=content_type)
    calls: list[JudgedCall] = []
    seen: list[Record] = []
    own = transport(inner, on_verdict=calls.append, watchers=[seen.append])
    url = f"{BEDROCK}/anthropic.claude-opus-5-5/invoke-with-response-stream"
    fields = {name: value for name, value in claude().items() if name != "model"}
    with httpx2.Client(transport=own) as client:
        assert client.post(url, json=fields, headers=SIGNED).content == data
    assert len(seen) == 1
    assert [(call.model, call.usage and call.usage.uncached) for call in calls] == (
        [("anthropic.claude-opus-5-5", 2000)] if judged else []
    )


# ── Observers that fail ──────────────────────────────────────────────────────────────────────────


def _raise(*_: Any, **__: Any) -> Any:
    raise RuntimeError(f"an observer with {KEY}")


BROKEN: dict[str, tuple[Any, str]] = {
    "judge": (CallJudge, "judge"),
    "place": (Placer, "__call__"),
    "call": (observation, "RelayedCall"),
    "route": (Addresses, "route"),
    "tee": (observation.ObservedCall, "respond"),
}


@pytest.mark.parametrize("broken", ["on_verdict", "watchers", *BROKEN])
@pytest.mark.parametrize("way", ["sync", "async", "aiohttp"])
def test_observer_that_raises_changes_no_answer(
    emu: Emulator,
    broken: str,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options: dict[str, Any] = {"provider": "anthropic", "mark": True}
    if broken in BROKEN:
        monkeypatch.setattr(*BROKEN[broken], _raise)
    else:
        options[broken] = _raise if broken == "on_verdict" else [_raise]
    caplog.set_level(logging.INFO)
    url = f"{emu.url}/anthropic"
    if way == "sync":
        with anthropic_client(emu.url, max_retries=0) as client:
            anaphora.observe(client, **options)
            assert client.messages.create(**claude()).content
            with client.messages.stream(**claude()) as stream:
                assert stream.get_final_text()
    else:
        asyncio.run(_ask_in_loop(way, url, options))
    failed = [record for record in caplog.records if "failed" in record.getMessage()]
    assert failed, "what fails is logged"
    assert KEY not in caplog.text


async def _ask_in_loop(way: str, url: str, options: dict[str, Any]) -> None:
    if way == "async":
        async with anthropic.AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
            anaphora.observe(client, **options)
            assert (await client.messages.create(**claude())).content
            async with client.messages.stream(**claude()) as stream:
                assert await stream.get_final_text()
        return
    async with aiohttp.ClientSession() as session:
        anaphora.observe(session, **options)
        headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
        async with session.post(f"{url}/v1/messages", data=BODY, headers=headers) as response:
            assert (await response.json())["content"]


def test_observer_may_make_a_call_itself(emu: Emulator) -> None:
    """It is not observed: it would never end."""
    calls: list[JudgedCall] = []
    with anthropic_client(emu.url) as client:

        def ask_again(call: JudgedCall) -> None:
            calls.append(call)
            client.messages.create(**claude())

        anaphora.observe(client, on_verdict=ask_again, provider="anthropic")
        client.messages.create(**claude())
    assert len(calls) == 1
    assert len(emu.requests()) == 2


# ── Secrets ──────────────────────────────────────────────────────────────────────────────────────


def _held(value: Any) -> str:
    fields = getattr(value, "fields", None)
    return f"{value!r} {value} {fields() if fields else ''}"


def test_secrets_never_reach_an_observer(emu: Emulator, caplog: pytest.LogCaptureFixture) -> None:
    """The key is in headers, in the query, in the path, and in the prompt where that changes."""
    caplog.set_level(logging.DEBUG)
    seen: list[JudgedCall | Record] = []
    with anthropic_client(emu.url, max_retries=0) as client:
        anaphora.observe(
            client, on_verdict=seen.append, watchers=[seen.append], provider="anthropic"
        )
        for guide in (f"{GUIDE} {KEY}", f"{GUIDE} other {KEY}", GUIDE):
            client.messages.create(**claude(guide), extra_query={"key": KEY})
        for fault in ("401", "529"):
            with pytest.raises(anthropic.APIStatusError):
                client.messages.create(**claude(), extra_headers={"x-emulator-fault": fault})
    with openai_client(emu.url, max_retries=0) as other:
        anaphora.observe(other, on_verdict=seen.append, watchers=[seen.append])
        with pytest.raises(openai.NotFoundError):
            other.post(f"/{KEY}/chat/completions", body=gpt(), cast_to=object)
    assert len(seen) == 3 * 2 + 2 + 1
    assert any(isinstance(each, JudgedCall) and each.change is not None for each in seen)
    for each in seen:
        assert KEY not in _held(each)
        assert GUIDE not in _held(each), "no prompt is handed on but the excerpts at a change"
    # SDKs log requests themselves where asked to.
    ours = [each.getMessage() for each in caplog.records if each.name.startswith("anaphora")]
    assert KEY not in str(ours)


def test_nothing_is_kept_beyond_the_process(tmp_path: Path) -> None:
    """A process that observes opens no file to write, and leaves none."""
    program = f"""
import json, sys
written = []
def audit(event, args):
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        written.append(args[0])
    elif event in ("sqlite3.connect", "os.mkdir", "os.rename"):
        written.append(args)
import httpx2, anaphora
from anaphora.integrations.sdk import transport
sys.addaudithook(audit)
def answer(request):
    return httpx2.Response(200, json={json.dumps(MESSAGE)!r} and json.loads({json.dumps(json.dumps(MESSAGE))}))
calls = []
with httpx2.Client(transport=transport(httpx2.MockTransport(answer), on_verdict=calls.append)) as client:
    for _ in range(3):
        client.post({URL!r}, content={BODY!r})
print(json.dumps([len(calls), [str(each) for each in written]]))
"""
    environment = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [3, []]
    assert list(tmp_path.iterdir()) == []


# ── The transport that is there ──────────────────────────────────────────────────────────────────


def test_proxies_and_options_of_a_client_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:3128")
    with anthropic.Anthropic(api_key=KEY) as client:
        http = client._client
        before = http._transport, dict(http._mounts)
        anaphora.observe(client)
        assert http._transport.inner is before[0]  # type: ignore[attr-defined]
        inner = {key: getattr(each, "inner", None) for key, each in http._mounts.items()}
        assert inner == before[1]
        assert any(inner.values()), "the proxy is one of them"
        pool = http._transport._pool  # type: ignore[attr-defined]
        assert pool._socket_options, "attributes of the transport are found through the wrapper"


def test_own_transport_has_proxies_of_the_environment_and_keeps_connections_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transport that is given to httpx otherwise replaces both."""

    def forward(connection: UpstreamConnection) -> None:
        while connection.read_request():
            data = json.dumps(MESSAGE).encode()
            head = (
                f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
            )
            connection.send(f"{head}\r\n\r\n".encode() + data)

    with socket_upstream(forward) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "")
        calls: list[JudgedCall] = []
        own = transport(on_verdict=calls.append, provider="anthropic")
        http = anthropic.DefaultHttpxClient(transport=own)
        base = "http://provider.invalid"
        with anthropic.Anthropic(api_key=KEY, base_url=base, http_client=http) as client:
            client.messages.create(**claude())
        pools = [each._pool for each in own.inner._client._mounts.values() if each is not None]
    assert proxy.requests[0].startswith(b"POST http://provider.invalid/v1/messages")
    assert len(calls) == 1
    assert all(pool._socket_options for pool in pools)


def test_an_address_without_a_known_provider_is_reported_once(
    emu: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[object] = []
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as plain:
        client = anaphora.observe(plain, on_verdict=seen.append)
        for text in ("one", "two"):
            client.messages.create(
                model="claude-opus-5-5", max_tokens=10, messages=[{"role": "user", "content": text}]
            )
    (warning,) = [each.getMessage() for each in caplog.records if each.name == "anaphora.observe"]
    assert warning.startswith(f"calls to {emu.url} are not judged")
    assert seen == []
