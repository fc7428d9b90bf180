"""InvokeModel with bodies of other models than Claude: passed on unread, billed by the answer's counts."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from support.bedrock_server import frame
from support.byte_server import byte_server
from support.daemon import TestedDaemon, running_daemon
from support.ledgers import rows
from support.signing import is_refused, keys_of, send, signed_request
from support.socket_upstream import answering, socket_upstream
from support.tables import each_row

from anaphora.emulator.server import Emulator

MODEL = "us.amazon.nova-lite-v1:0"
BODY = b'{"schemaVersion" : "messages-v1","messages":[{"role":"user","content":[{"text":"Hi"}]}]}'
ANSWER = b'{"output":{"message":{"content":[{"text":"Hello"}]}},"stopReason":"end_turn"}'
COUNTS = {"x-amzn-bedrock-input-token-count": "1000", "x-amzn-bedrock-output-token-count": "500"}
METRICS = {"amazon-bedrock-invocationMetrics": {"inputTokenCount": 1000, "outputTokenCount": 500}}
OPEN: dict[str, Any] = {
    "providers": ["aws"],
    "models": ["*"],
    "usd_per_day": "unlimited",
    "tools": ["*"],
    "allow": [{"fields": ["*"]}],
}


def chunk(value: Any) -> bytes:
    data = base64.b64encode(json.dumps(value).encode()).decode()
    return frame(json.dumps({"bytes": data}).encode())


STREAM = chunk({"contentBlockDelta": {"delta": {"text": "Hello"}}}) + chunk(METRICS)
CACHED = {
    **COUNTS,
    "x-amzn-bedrock-cache-read-input-token-count": "4000",
    "x-amzn-bedrock-cache-write-input-token-count": "2000",
}
CACHED_METRICS = {
    "amazon-bedrock-invocationMetrics": {
        **METRICS["amazon-bedrock-invocationMetrics"],
        "cacheReadInputTokenCount": 4000,
        "cacheWriteInputTokenCount": 2000,
    }
}
CACHED_STREAM = chunk(CACHED_METRICS) + frame(b'{"bytes":"not base64"}') + frame(b'{"bytes":"YQ"}')
EMBEDDED = {"x-amzn-bedrock-input-token-count": "1000"}
INVOKE, STREAMED = "invoke", "invoke-with-response-stream"


def files(url: str, **llm: Any) -> dict[str, Any]:
    provider = {
        "dialect": "bedrock",
        "base_url": url,
        "region": "us-east-1",
        "key": {"secret": "PROVIDER_KEY"},
        "prices": {"*": {"input": 1, "output": 2}},
    }
    grant = {"capabilities_grant": ["llm_complete", "llm_stream"], "llm": {**OPEN, **llm}}
    return {
        "llm": {"providers": {"aws": provider}, "daemon": {"port": 0, "drain_delay": 0}},
        "extensions": {"demo": grant},
    }


def post(daemon: TestedDaemon, operation: str, model: str = MODEL) -> Any:
    with daemon.client() as client:
        headers = {"content-type": "application/json"}
        return client.post(f"/model/{model}/{operation}", content=BODY, headers=headers)


@pytest.mark.parametrize(
    ("operation", "answer", "headers", "billed"),
    [
        (INVOKE, ANSWER, COUNTS, 2_000_000),
        (STREAMED, STREAM, {}, 2_000_000),
        (INVOKE, ANSWER, CACHED, 5_000_000),
        (STREAMED, CACHED_STREAM, {}, 5_000_000),
        (INVOKE, b'{"embedding":[0.5]}', EMBEDDED, 1_000_000),
    ],
)
def test_bodies_are_passed_on_unread(
    operation: str,
    answer: bytes,
    headers: dict[str, str],
    billed: int,
    tmp_path: Path,
    emu: Emulator,
) -> None:
    seen: list[tuple[str, str, bytes]] = []
    kind = "application/json" if headers else "application/vnd.amazon.eventstream"
    with (
        byte_server(answer, kind, headers=headers, seen=seen) as url,
        running_daemon(tmp_path, emu, **files(url)) as daemon,
    ):
        response = post(daemon, operation)
        assert response.status_code == 200, response.text
    assert response.content == answer
    assert response.headers["content-type"] == kind
    assert {name: response.headers.get(name) for name in headers} == headers
    assert seen == [("POST", f"/model/{MODEL.replace(':', '%3A')}/{operation}", BODY)]
    assert rows(daemon.home / "store.sqlite", "SELECT billed, kind FROM entries") == [
        (billed, "billed")
    ]


@each_row(
    "llm",
    [
        {"usd_per_day": 5},
        {"usd_per_month": 5},
        {"max_tokens": 100},
        {"tools": ["find"]},
        {"allow": []},
        {"models": ["anthropic.*"]},
    ],
)
def test_unread_bodies_need_an_open_grant(llm: dict[str, Any], tmp_path: Path) -> None:
    seen: list[tuple[str, str, bytes]] = []
    with byte_server(ANSWER, "application/json", seen=seen) as url:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()

        class Nowhere:
            url = "http://127.0.0.1:9"

        with running_daemon(folder, Nowhere(), **files(url, **llm)) as daemon:
            response = post(daemon, "invoke")
    assert response.status_code == 403, response.text
    assert response.headers["x-amzn-errortype"].startswith("AccessDeniedException:")
    assert seen == []


def test_errors_keep_bedrocks_form(tmp_path: Path, emu: Emulator) -> None:
    kind = {"x-amzn-errortype": "ValidationException:http://internal.amazon.com/coral/"}
    body = b'{"message":"Malformed input request"}'
    with (
        byte_server(body, "application/json", 400, headers=kind) as url,
        running_daemon(tmp_path, emu, **files(url)) as daemon,
    ):
        response = post(daemon, "invoke")
    assert response.status_code == 400
    assert response.headers["x-amzn-errortype"].startswith("ValidationException:")
    assert "Malformed input request" in response.json()["message"]


def test_streams_need_their_capability(tmp_path: Path, emu: Emulator) -> None:
    seen: list[tuple[str, str, bytes]] = []
    with byte_server(STREAM, "application/vnd.amazon.eventstream", seen=seen) as url:
        given = files(url)
        given["extensions"]["demo"]["capabilities_grant"] = ["llm_complete"]
        with running_daemon(tmp_path, emu, **given) as daemon:
            response = post(daemon, STREAMED)
    assert response.status_code == 403, response.text
    assert seen == []


def test_output_counts_for_the_rate(tmp_path: Path, emu: Emulator) -> None:
    headers = {**COUNTS, "x-amzn-bedrock-output-token-count": "50000"}
    with (
        byte_server(ANSWER, "application/json", headers=headers) as url,
        running_daemon(tmp_path, emu, **files(url, tokens_per_minute=5000)) as daemon,
    ):
        assert [post(daemon, INVOKE).status_code for _ in range(2)] == [200, 429]


def test_signature_of_a_charged_failure_is_not_used_again(tmp_path: Path, emu: Emulator) -> None:
    """The provider may have done the work, so each repetition would cost."""
    cut = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
    with (
        socket_upstream(answering(cut)) as upstream,
        running_daemon(tmp_path, emu, **files(upstream.url)) as daemon,
    ):
        path = f"/model/{MODEL.replace(':', '%3A')}/{INVOKE}"
        request = signed_request(daemon.url, keys_of(daemon), BODY, path=path)
        assert send(request).status_code == 502
        assert is_refused(send(request), "used before")
    charged = rows(daemon.home / "store.sqlite", "SELECT kind FROM entries")
    assert charged == [("bound",)]


def test_signature_of_a_request_that_was_not_sent_is_used_again(
    tmp_path: Path, emu: Emulator
) -> None:
    with running_daemon(tmp_path, emu, **files("http://127.0.0.1:9")) as daemon:
        path = f"/model/{MODEL.replace(':', '%3A')}/{INVOKE}"
        request = signed_request(daemon.url, keys_of(daemon), BODY, path=path)
        assert [send(request).status_code for _ in range(2)] == [502, 502]
