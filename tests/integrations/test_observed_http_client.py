"""Calls on `http.client`: google-auth's transports, requests, urllib3 and urllib, at the emulator."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import google.auth
import google.auth.transport._http_client
import google.auth.transport.requests
import google.auth.transport.urllib3
import httpx2
import pytest
import requests
import urllib3
from google.oauth2.credentials import Credentials
from support.bedrock_server import bedrock_server
from support.framework_pages import fences
from support.observed import GEMINI, GUIDE, KEY, addresses, claude
from support.socket_upstream import UpstreamConnection, answering, socket_upstream

import anaphora
from anaphora.emulator.server import Emulator
from anaphora.integrations import http_client_hooks, observation
from anaphora.integrations.http_client_hooks import Unchunked
from anaphora.integrations.observation import shared
from anaphora.traffic.judging import CallJudge
from anaphora.traffic.sums import JudgedCall

VERTEX = "google/v1beta1/projects/p/locations/global/publishers/google/models"
HEADERS = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "content-type": "application/json"}
BODY = json.dumps(claude()).encode()
PROMPT = json.dumps({"contents": [{"role": "user", "parts": [{"text": GUIDE}]}]}).encode()
JSON = {"content-type": "application/json"}
OTHER_ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    b"x-amzn-bedrock-input-token-count: 12\r\nx-amzn-bedrock-output-token-count: 5\r\n"
    b'content-length: 13\r\n\r\n{"output":{}}'
)


@pytest.fixture(autouse=True)
def own_judge() -> Iterator[None]:
    """Each test begins with nothing seen, and leaves no hook behind."""
    shared.cache_clear()
    names = ("putrequest", "send", "getresponse")
    before = [getattr(http.client.HTTPConnection, name) for name in names]
    yield
    assert [getattr(http.client.HTTPConnection, name) for name in names] == before
    shared.cache_clear()


def credentials() -> Any:
    return Credentials(token=KEY)  # type: ignore[no-untyped-call]


# ── google-auth ──────────────────────────────────────────────────────────────────────────────────


def _authorized_session() -> tuple[Any, Callable[[str, bytes], bytes]]:
    session: Any = google.auth.transport.requests.AuthorizedSession(credentials())  # type: ignore[no-untyped-call]

    def ask(url: str, body: bytes) -> bytes:
        data: bytes = session.post(url, data=body, headers=JSON).content
        return data

    return session, ask


def _authorized_pool() -> tuple[Any, Callable[[str, bytes], bytes]]:
    pool: Any = google.auth.transport.urllib3.AuthorizedHttp(credentials())  # type: ignore[no-untyped-call]

    def ask(url: str, body: bytes) -> bytes:
        data: bytes = pool.request("POST", url, body=body, headers=JSON).data
        return data

    return pool, ask


def _http_client_request() -> tuple[Any, Callable[[str, bytes], bytes]]:
    request: Any = google.auth.transport._http_client.Request()

    def ask(url: str, body: bytes) -> bytes:
        headers = {**JSON, "authorization": f"Bearer {KEY}"}
        data: bytes = request(url, method="POST", body=body, headers=headers).data
        return data

    return request, ask


TRANSPORTS = [_authorized_session, _authorized_pool, _http_client_request]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("operation", ["generateContent", "streamGenerateContent?alt=sse"])
def test_transports_of_google_auth_are_seen(
    emu: Emulator, transport: Callable[[], Any], operation: str
) -> None:
    client, ask = transport()
    url = f"{emu.url}/{VERTEX}/{GEMINI}:{operation}"
    with anaphora.observing(addresses=addresses(emu.url)) as seen:
        for _ in range(2):
            assert b"candidates" in ask(url, PROMPT)
    ask(url, PROMPT)
    assert [(call.kind, call.provider, call.turn) for call in seen.calls] == [
        ("judged", "google", turn) for turn in (1, 2)
    ]
    billed = [each["read"] for each in emu.requests()][:0:-1]
    assert [(call.usage and call.usage.read) or 0 for call in seen.calls] == billed
    del client


@pytest.mark.parametrize("transport", [_authorized_session, _authorized_pool])
def test_client_of_google_auth_is_observed(emu: Emulator, transport: Callable[[], Any]) -> None:
    client, ask = transport()
    first: list[JudgedCall] = []
    last: list[JudgedCall] = []
    anaphora.observe(client, on_verdict=first.append, addresses=addresses(emu.url))
    anaphora.observe(client, on_verdict=last.append, addresses=addresses(emu.url))
    ask(f"{emu.url}/{VERTEX}/{GEMINI}:generateContent", PROMPT)
    assert (len(first), len(last)) == (0, 1)


def test_the_page_runs(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first program needs boto3, and runs in `make integrations`."""
    monkeypatch.setattr(google.auth, "default", lambda: (credentials(), "project"))
    monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", f"{emu.url}/google")
    _, program = fences("clouds.md", "python")
    host = "https://aiplatform.googleapis.com/v1"
    assert host in program
    program = program.replace(host, f"{emu.url}/google/v1beta1")
    page: dict[str, Any] = {}
    exec(compile(program, "clouds.md", "exec"), page)
    page["session"].close()
    assert page["answer"].status_code == 200
    assert "First call" in capsys.readouterr().out


# ── Libraries on http.client ─────────────────────────────────────────────────────────────────────


def _requests(url: str, body: bytes) -> bytes:
    return requests.post(url, data=body, headers=HEADERS, timeout=60).content


def _requests_stream(url: str, body: bytes) -> bytes:
    with requests.post(url, data=body, headers=HEADERS, timeout=60, stream=True) as response:
        return b"".join(response.iter_content(100))


def _requests_lines(url: str, body: bytes) -> bytes:
    with requests.post(url, data=body, headers=HEADERS, timeout=60, stream=True) as response:
        return b"\n".join(response.iter_lines())


def _requests_chunked(url: str, body: bytes) -> bytes:
    pieces = (body[at : at + 1000] for at in range(0, len(body), 1000))
    return requests.post(url, data=pieces, headers=HEADERS, timeout=60).content


def _urllib3(url: str, body: bytes) -> bytes:
    return urllib3.request("POST", url, body=body, headers=HEADERS).data


def _urllib3_read1(url: str, body: bytes) -> bytes:
    response = urllib3.request("POST", url, body=body, headers=HEADERS, preload_content=False)
    found = []
    while data := response.read(100):
        found.append(data)
    response.release_conn()
    return b"".join(found)


def _urllib(url: str, body: bytes) -> bytes:
    request = urllib.request.Request(url, data=body, headers=HEADERS)
    with urllib.request.urlopen(request) as response:
        data: bytes = response.read()
        return data


def _urllib_lines(url: str, body: bytes) -> bytes:
    request = urllib.request.Request(url, data=body, headers=HEADERS)
    with urllib.request.urlopen(request) as response:
        return b"".join(response)


LIBRARIES = [
    _requests,
    _requests_stream,
    _requests_lines,
    _requests_chunked,
    _urllib3,
    _urllib3_read1,
    _urllib,
    _urllib_lines,
]


@pytest.mark.parametrize("ask", LIBRARIES)
@pytest.mark.parametrize("stream", [False, True])
def test_every_library_is_seen_and_answered_as_before(
    emu: Emulator, ask: Callable[[str, bytes], bytes], stream: bool
) -> None:
    url = f"{emu.url}/anthropic/v1/messages"
    body = json.dumps({**claude(), "stream": stream}).encode()
    with anaphora.observing(addresses=addresses(emu.url)) as seen:
        first, second = ask(url, body), ask(url, body)
    assert b"usage" in first
    assert len(ask(url, body)) == pytest.approx(len(second), abs=80)
    assert [(call.kind, call.turn) for call in seen.calls] == [("judged", 1), ("judged", 2)]
    assert [call.usage and call.usage.read for call in seen.calls] == [
        each["read"] for each in emu.requests()
    ][:0:-1]


def test_a_session_is_observed_and_others_are_not(emu: Emulator) -> None:
    url = f"{emu.url}/anthropic/v1/messages"
    calls: list[JudgedCall] = []
    with requests.Session() as session, requests.Session() as other:
        anaphora.observe(session, on_verdict=calls.append, provider="anthropic")
        with anaphora.observing(addresses=addresses(emu.url)) as seen:
            session.post(url, data=BODY, headers=HEADERS)
        session.post(url, data=BODY, headers=HEADERS)
        other.post(url, data=BODY, headers=HEADERS)
    assert [call.turn for call in calls] == [1, 2]
    assert [call.turn for call in seen.calls] == [1], "judged once, told to both"


def test_other_threads_are_not_seen(emu: Emulator) -> None:
    url = f"{emu.url}/anthropic/v1/messages"
    thread = threading.Thread(target=_requests, args=(url, BODY))
    with anaphora.observing(addresses=addresses(emu.url)) as seen:
        thread.start()
        thread.join()
    assert seen.calls == ()


def test_addresses_that_are_not_known_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(observation, "ObservedCall", lambda *given: kept.append(given))
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    with socket_upstream(answering(answer)) as upstream, anaphora.observing() as seen:
        assert _requests(f"{upstream.url}/v1/messages", BODY) == b"{}"
    assert (seen.calls, kept) == ((), [])


def test_requests_of_a_proxy_are_seen_by_their_own_address(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a tunnel, the request names the whole URL."""

    def forward(connection: UpstreamConnection) -> None:
        while request := connection.read_request():
            body = request.partition(b"\r\n\r\n")[2]
            answer = httpx2.post(
                f"{emu.url}/anthropic/v1/messages", content=body, headers=HEADERS, trust_env=False
            )
            size = len(answer.content)
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {size}"
            connection.send(f"{head}\r\n\r\n".encode() + answer.content)

    with socket_upstream(forward) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "")
        where = {"http://provider.invalid/api": "anthropic"}
        with anaphora.observing(addresses=where) as seen:
            _requests("http://provider.invalid/api/v1/messages", BODY)
    assert [call.kind for call in seen.calls] == ["judged"]


# ── Calls that end early ─────────────────────────────────────────────────────────────────────────

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (HEAD + b'Content-Length: 500\r\n\r\n{"a', "failed"),
        (HEAD + b'Transfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n', "failed"),
        (b"", "failed"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "error"),
    ],
)
def test_broken_answers_fail_as_before(answer: bytes, kind: str) -> None:
    def answer_once(connection: UpstreamConnection) -> None:
        if connection.read_request():
            connection.send(answer)

    with socket_upstream(answer_once) as upstream:
        where = {upstream.url: "anthropic"}
        with anaphora.observing(addresses=where) as seen:
            if kind == "error":
                _requests(f"{upstream.url}/v1/messages", BODY)
            else:
                with pytest.raises(requests.RequestException):
                    _requests(f"{upstream.url}/v1/messages", BODY)
    assert [call.kind for call in seen.calls] == [kind]


def test_connection_that_is_refused_is_seen() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with (
            anaphora.observing(addresses={url: "anthropic"}) as seen,
            pytest.raises(requests.ConnectionError),
        ):
            _requests(f"{url}/v1/messages", BODY)
    assert [call.kind for call in seen.calls] == ["failed"]


def test_stream_that_is_left_is_cancelled(emu: Emulator) -> None:
    url = f"{emu.url}/anthropic/v1/messages"
    body = json.dumps({**claude(), "stream": True}).encode()
    with (
        anaphora.observing(addresses=addresses(emu.url)) as seen,
        requests.post(url, data=body, headers=HEADERS, timeout=60, stream=True) as response,
    ):
        assert next(response.iter_content(50))
    assert [call.kind for call in seen.calls] == ["cancelled"]


@pytest.mark.parametrize(
    "broken",
    [
        (CallJudge, "judge"),
        (observation, "RelayedCall"),
        (observation.ObservedCall, "respond"),
        (http_client_hooks, "TeedFile"),
        (Unchunked, "feed"),
    ],
)
def test_observer_that_raises_changes_no_answer(
    emu: Emulator,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broken: tuple[Any, str],
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"an observer with {KEY}")

    monkeypatch.setattr(*broken, fail)
    caplog.set_level(logging.INFO)
    body = json.dumps({**claude(), "stream": True}).encode()
    with anaphora.observing(addresses=addresses(emu.url)):
        assert b"message_stop" in _requests(f"{emu.url}/anthropic/v1/messages", body)
    assert any("failed" in record.getMessage() for record in caplog.records)
    assert KEY not in "".join(
        record.getMessage() for record in caplog.records if record.name.startswith("anaphora")
    )


# ── Bedrock's address ────────────────────────────────────────────────────────────────────────────


def test_converse_is_judged_as_the_prompt_that_it_is(emu: Emulator) -> None:
    """Without boto3: the request by hand. The bill has the emulator's own numbers."""
    body: dict[str, Any] = {
        "system": [{"text": GUIDE}, {"cachePoint": {"type": "default", "ttl": "1h"}}],
        "messages": [{"role": "user", "content": [{"text": "Hello"}]}],
        "inferenceConfig": {"maxTokens": 40, "stopSequences": ["x"]},
        "outputConfig": {"effort": "low"},
    }
    with (
        bedrock_server(emu.url) as bedrock,
        anaphora.observing(addresses={bedrock.url: "bedrock"}) as seen,
    ):
        url = f"{bedrock.url}/model/us.anthropic.claude-opus-5-5-v1%3A0/converse"
        _requests(url, json.dumps(body).encode())
        body["system"] = [{"text": f"Now. {GUIDE}"}, {"cachePoint": {"type": "default"}}]
        _requests(url, json.dumps(body).encode())
    first, second = seen.calls
    named = first.provider, first.wire, first.model
    assert named == ("bedrock", "bedrock", "us.anthropic.claude-opus-5-5-v1:0")
    assert second.change is not None
    assert "system[0].text" in str(second)


def test_other_models_are_counted_with_the_bill_of_the_headers(emu: Emulator) -> None:
    """InvokeModel has the format of the model's maker, which is not read."""
    body = json.dumps({"prompt": "Hi", "max_gen_len": 5}).encode()
    with (
        socket_upstream(answering(OTHER_ANSWER)) as upstream,
        anaphora.observing(addresses={upstream.url: "bedrock"}) as seen,
    ):
        _requests(f"{upstream.url}/model/meta.llama3-70b-instruct-v1%3A0/invoke", body)
    (call,) = seen.calls
    assert (call.kind, call.model) == ("not_judged", "meta.llama3-70b-instruct-v1:0")
    assert call.reason == "InvokeModel bodies of meta.llama3-70b-instruct-v1:0 are not read"
    assert call.usage is not None
    assert (call.usage.uncached, call.usage.output, call.usage.read) == (12, 5, None)
    assert call.cost_usd


def test_nova_at_converse_is_judged(emu: Emulator) -> None:
    body = {"messages": [{"role": "user", "content": [{"text": "Hi"}]}]}
    reply = {
        "output": {"message": {"role": "assistant", "content": [{"text": "Hello"}]}},
        "stopReason": "end_turn",
        "usage": {"inputTokens": 3, "outputTokens": 1, "totalTokens": 4},
    }
    data = json.dumps(reply).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    with (
        socket_upstream(answering(head % len(data) + data)) as upstream,
        anaphora.observing(addresses={upstream.url: "bedrock"}) as seen,
    ):
        url = f"{upstream.url}/model/us.amazon.nova-pro-v1:0/converse"
        _requests(url, json.dumps(body).encode())
    assert [(call.kind, call.model) for call in seen.calls] == [
        ("judged", "us.amazon.nova-pro-v1:0")
    ]


@pytest.mark.parametrize("streams", [False, True])
def test_claude_at_vertex_is_judged(emu: Emulator, streams: bool) -> None:
    """By Anthropic's own SDK, and by `http.client`."""
    with (
        bedrock_server(emu.url) as cloud,
        anaphora.observing(addresses={cloud.url: "google"}) as seen,
    ):
        sdk = anthropic.AnthropicVertex(
            base_url=f"{cloud.url}/v1", region="global", project_id="p", access_token=KEY
        )
        body = {name: value for name, value in claude().items() if name != "stream"}
        answer: Any = sdk.messages.create(**body, stream=streams)
        assert not streams or [*answer]
        path, _, sent = cloud.requests[0]
        assert ":streamRawPredict" in path if streams else ":rawPredict" in path
        headers = {**JSON, "authorization": f"Bearer {KEY}"}
        for each in (path, f"{path.rpartition('/')[0]}/count-tokens:rawPredict"):
            requests.post(f"{cloud.url}{each}", data=sent, headers=headers, timeout=60)
        sdk.close()
    assert [(call.kind, call.provider, call.model, call.turn) for call in seen.calls] == [
        ("judged", "anthropic", body["model"], turn) for turn in (1, 2)
    ]
    billed = [each["read"] for each in emu.requests()[:-3:-1]]
    assert [(call.usage and call.usage.read) or 0 for call in seen.calls] == billed


@pytest.mark.parametrize("pieces", [1, 2, 7, 1000])
def test_chunked_bodies_are_read_however_they_arrive(pieces: int) -> None:
    data = b"5\r\nhello\r\n1;name=value\r\n \r\nA\r\n0123456789\r\n0\r\n\r\n"
    unchunked = Unchunked()
    found = b"".join(unchunked.feed(data[at : at + pieces]) for at in range(0, len(data), pieces))
    assert (found, unchunked.ended) == (b"hello 0123456789", True)
