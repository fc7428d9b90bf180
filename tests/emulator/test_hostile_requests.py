"""Requests from other sites, under other names, too large, too slow, or wrong in any way: each gets an
error in the format of its wire, and none gets a 500."""

from __future__ import annotations

import json
import random
import socket
from typing import Any

import httpx
import pytest
from support.hostile import BODIES, CHAT, KEYED, mutated
from support.raw_http import RawResponse, exchange, read_response, request_bytes
from support.tables import each_row
from support.waiting import PATIENCE, wait_until

from anaphora import emulator, wire
from anaphora.emulator import Emulator, EmulatorOptions, Latency
from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest
from anaphora.emulator.server import application
from anaphora.errors import Upstream
from anaphora.serving.exchange import BodyLimits
from anaphora.serving.server import running

#: Method and path of each wire, and the wire of its errors.
WIRES = {
    "/v1/messages": "anthropic",
    "/v1/chat/completions": "openai_chat",
    "/v1/responses": "openai_responses",
    "/v1beta/models/gemini-2.5-flash:generateContent": "gemini",
    "/minimax/anthropic/v1/messages": "minimax/anthropic",
    "/no/such/path": "openai_chat",
}
CONTROL = ("/", "/_emulator", "/_emulator/requests", "/_emulator/clock", "/_emulator/reset")
EVIL = "https://evil.example"
CALL = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}).encode()


def error_of(path: str, answer: RawResponse) -> Upstream:
    """The error as a client of the path's wire reads it."""
    codec = wire.get(WIRES[path])
    problem = codec.read_error(answer.status, {}, answer.body)
    assert "without an error object" not in str(problem), answer.body
    return problem


# ── Other sites and other names ──────────────────────────────────────────────────────────────────


@each_row(
    "headers, reason",
    [
        ({"origin": EVIL, "content_type": "text/plain"}, EVIL),
        ({"origin": "null", "content_type": "text/plain"}, "Origin: null"),
        ({"sec_fetch_site": "cross-site"}, "cross-site"),
        ({"host": "rebound.evil.example:8787"}, "'rebound.evil.example' is not allowed"),
    ],
    ids=["origin", "no origin", "fetch site", "dns rebinding"],
)
@each_row("path", [*WIRES, *CONTROL])
@each_row("method", ["GET", "POST"])
def test_page_of_another_site_is_refused(
    running_emulator: Emulator, headers: dict[str, str], reason: str, path: str, method: str
) -> None:
    emu = running_emulator
    emu.reset()
    emu.advance(10)
    answer = exchange(emu.port, request_bytes(method, path, CALL, **{**KEYED, **headers}))
    assert answer.status == 403
    assert "access-control" not in answer.head
    text = str(error_of(path, answer)) if path in WIRES else answer.json["error"]
    assert reason in text
    assert emu.requests() == [], "it is no call"
    assert emu.engine.offset == 10, "and changes nothing"


@pytest.mark.parametrize("path", ["/v1/messages", "/_emulator/clock"])
def test_preflight_gets_no_permission(emu: Emulator, path: str) -> None:
    answer = exchange(
        emu.port, request_bytes("OPTIONS", path, origin=EVIL, access_control_request_method="POST")
    )
    assert answer.status == 403
    assert "access-control" not in answer.head


@pytest.mark.parametrize("path", ["/_emulator/clock", "/v1/chat/completions"])
def test_page_of_the_emulator_itself_is_allowed(emu: Emulator, path: str) -> None:
    headers = {"origin": emu.url, "sec-fetch-site": "same-origin", "authorization": "Bearer k"}
    body = {"advance": 1} if path.startswith("/_") else json.loads(CALL)
    assert httpx.post(emu.url + path, json=body, headers=headers).status_code == 200


def test_page_is_in_no_frame(emu: Emulator) -> None:
    page = httpx.get(f"{emu.url}/_emulator")
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]


def test_service_name_is_allowed_by_option() -> None:
    with emulator.running(host="0.0.0.0", allow_hosts=["emulator"]) as emu:
        answers = {
            host: exchange(emu.port, request_bytes("GET", "/v1/models", b"", host=host, **KEYED))
            for host in ("emulator:8787", "localhost:9000", "10.1.2.3:8787", "other:8787")
        }
    assert [answer.status for answer in answers.values()] == [200, 200, 200, 403]
    assert "--allow-host" in answers["other:8787"].json["error"]["message"]


# ── Limits ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", [*WIRES, "/_emulator/clock"])
@pytest.mark.parametrize("size", [128 * 1024 * 1024 + 1, 2**63])
def test_too_large_a_body_is_refused_unread(emu: Emulator, path: str, size: int) -> None:
    answer = exchange(emu.port, request_bytes("POST", path, content_length=str(size)))
    assert answer.status == 413
    text = str(error_of(path, answer)) if path in WIRES else answer.json["error"]
    assert "larger than 134,217,728 bytes" in text
    assert emu.requests() == []


@pytest.mark.parametrize("path", WIRES)
def test_slow_and_aborted_uploads_are_no_calls(path: str) -> None:
    engine = Engine()
    app = application(engine, limits=BodyLimits(seconds=0.1))
    with running(app, host="127.0.0.1", extra="emulator") as address:
        data = request_bytes("POST", path, b'{"model":', content_length="100", **KEYED)
        answer = exchange(address.port, data)
        assert answer.status == 408
        assert "too long to arrive" in str(error_of(path, answer))
        with socket.create_connection((address.host, address.port), PATIENCE) as connection:
            connection.sendall(data)
        assert httpx.get(f"{address.url}/_emulator/requests").json()["requests"] == []
    assert engine.journal.entries() == []


def test_call_ends_when_the_client_is_gone() -> None:
    engine = Engine(EmulatorOptions(latency=Latency(first=3600)))
    app = application(engine)
    with running(app, host="127.0.0.1", extra="emulator") as address:
        data = request_bytes("POST", "/v1/chat/completions", CALL, **KEYED)
        with socket.create_connection((address.host, address.port), PATIENCE) as connection:
            connection.sendall(data)
            wait_until(lambda: app._open, "the call is open")
        wait_until(lambda: not app._open, "the call ends")
        assert len(engine.journal.entries()) == 1


# ── Never a 500 ──────────────────────────────────────────────────────────────────────────────────

LONG_NUMBER = "9" * 5000
TOO_DEEP = b'{"model":"m","messages":' + b"[" * 100_000


@pytest.mark.parametrize(
    "method, path, body, headers",
    [
        ("GET", "/_emulator/requests?last=%C2%B2", b"", {}),
        ("GET", f"/_emulator/requests?last={LONG_NUMBER}", b"", {}),
        ("GET", "/_emulator/requests?last=-1", b"", {}),
        ("GET", "/_emulator/requests?last=%FF", b"", {}),
        ("GET", "/_emulator/requests?last=", b"", {}),
        ("GET", "/_emulator/%FF", b"", {}),
        ("PUT", "/_emulator/clock", b"", {}),
        ("GET", "/v1beta/cachedContents?pageToken=%D9%A3", b"", {}),
        ("GET", "/v1/%FF%FE/%00", b"", {}),
        ("GET", "/v1/models/%F0%28%8C%28", b"", {}),
        ("POST", "/v1/chat/completions", b"\xff\xfe", {"authorization": "Bearer \xff"}),
        ("POST", "/v1/chat/completions", b"\x1f\x8b\x08\x00", {"content_encoding": "gzip"}),
        ("POST", "/v1/messages", CALL, {"content_encoding": "zstd"}),
        ("POST", "/v1/messages", CALL, {"content_length": "-1"}),
        ("POST", "/v1/messages", CALL, {"content_length": "x"}),
        ("POST", "/v1/messages", CALL, {"content_length": "9" * 30}),
        ("POST", "/v1/messages", TOO_DEEP, {}),
        ("POST", "/v1/messages", CALL, {"x_emulator_fault": "rate-limit; seconds=1e300"}),
        ("POST", "/v1beta/cachedContents", b'{"model":"models/gemini-2.5-flash","ttl":1e400}', {}),
        (
            "POST",
            "/v1beta/cachedContents",
            b'{"model":"models/gemini-2.5-flash","ttl":"9999999999999999s"}',
            {},
        ),
        (
            "POST",
            "/mistral/v1/chat/completions",
            CALL.replace(b"gpt-4o", b'x","n":9223372036854775807,"a":"'),
            {},
        ),
        ("TRACE", "/_emulator", b"", {}),
        ("WAT", "/v1/messages", b"", {}),
    ],
)
def test_wrong_request_is_the_caller_s_error(
    emu: Emulator, method: str, path: str, body: bytes, headers: dict[str, str]
) -> None:
    answer = exchange(emu.port, request_bytes(method, path, body, **{**KEYED, **headers}))
    assert 400 <= answer.status < 500, answer
    assert httpx.get(f"{emu.url}/_emulator/requests").status_code == 200


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_wrong_values_anywhere_are_the_caller_s_error(seed: int, strict: bool) -> None:
    """One to three values of a valid request are replaced, removed or repeated."""
    drawn = random.Random(seed)
    engine = Engine(EmulatorOptions(strict=strict))
    for method, path, body in BODIES * 3:
        data = mutated(drawn, body)
        request = EmulatorRequest(
            method=method, path=path, headers=KEYED, body=data, now=1_800_000_000.0
        )
        assert engine.respond(request).status < 500, data
    assert len(json.dumps(engine.journal.entries())) > 1000


@pytest.mark.parametrize("fault", ["broken-json", "ok-error", "cut; after=9"])
def test_fault_of_any_response(fault: str) -> None:
    """Faults are made for replies; they also meet errors and lists of models."""
    engine = Engine(EmulatorOptions())
    for method, path, body in BODIES:
        request = EmulatorRequest(
            method=method,
            path=path,
            headers={**KEYED, "x-emulator-fault": fault},
            body=json.dumps(body).encode(),
        )
        assert engine.respond(request).status < 500


def test_bug_is_an_error_of_the_wire_and_in_the_journal(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(emu.engine, "_respond_routed", broken)
    answer = exchange(emu.port, request_bytes("POST", "/v1/messages", CALL, **KEYED))
    assert answer.status == 500
    assert "internal error: ZeroDivisionError" in str(error_of("/v1/messages", answer))
    assert emu.requests()[0]["error"] == "internal error: ZeroDivisionError"
    assert "POST /v1/messages: ZeroDivisionError at " in caplog.text


def test_two_responses_on_one_connection(emu: Emulator) -> None:
    """A refused request does not disturb the next one."""
    with socket.create_connection((emu.host, emu.port), PATIENCE) as connection:
        connection.sendall(request_bytes("POST", "/v1/chat/completions", CALL, origin=EVIL))
        assert read_response(connection).status == 403
    assert (
        exchange(
            emu.port,
            request_bytes("POST", "/v1/chat/completions", json.dumps(CHAT).encode(), **KEYED),
        ).status
        == 200
    )
