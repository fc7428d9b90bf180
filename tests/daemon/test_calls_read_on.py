"""Calls that end early in other ways than by a closed connection, and the limits of reading on: as
many as 16 of an app, until the daemon has drained, and never past what an app may spend.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.daemon import NO_TLS, TestedDaemon, create_home, running_daemon
from support.ended_calls import (
    BILL,
    HALF,
    MOST_TOKENS,
    call_of,
    complete,
    daemon_with_apps,
    entries,
    grant,
    llm_yaml,
    open_holds,
    open_stream,
    outcomes,
    raw_request,
    read_on,
    wait_read_on,
)
from support.held_provider import HeldProvider, held_provider
from support.ledgers import rows
from support.rpc_calls import RpcClient, request
from support.waiting import PATIENCE, wait_until

from anaphora.daemon.access.identity import ADMIN


@pytest.fixture(scope="module")
def provider() -> Iterator[HeldProvider]:
    with held_provider() as running:
        yield running


@pytest.fixture(autouse=True)
def held(provider: HeldProvider) -> Iterator[None]:
    """Each test begins with a provider that holds its answers back, and leaves no answer open."""
    provider.reset()
    yield
    provider.go_on()
    wait_until(lambda: not provider.open, "an answer is still open")


@pytest.fixture(scope="module")
def daemon(
    provider: HeldProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestedDaemon]:
    with daemon_with_apps(tmp_path_factory.mktemp("ended"), provider) as running:
        yield running


_numbers = itertools.count()


@pytest.fixture
def app() -> str:
    """An app that has made no call."""
    return f"app{next(_numbers)}"


# ── Other ends ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("place", ["tcp", "socket"])
@pytest.mark.parametrize("stream", [True, False])
def test_cancelled_call_is_read_on(
    place: str, stream: bool, daemon: TestedDaemon, provider: HeldProvider, app: str
) -> None:
    """The app has its error while the provider still answers."""

    def cancel() -> None:
        provider.wait_asked()
        with RpcClient(daemon, app, socket=place == "socket") as other:
            assert other.call("llm.cancel", id=1) == {"cancelled": True}

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with RpcClient(daemon, app, socket=place == "socket") as client:
        *_, response = client.lines(complete("openai_chat-read_on", stream=stream))
    canceller.join()
    assert response["error"]["code"] == -32800
    assert read_on(daemon, app) == 1
    provider.go_on()
    assert provider.wait_ended() == "whole"
    assert entries(daemon, app)[0][:2] == ("billed", BILL)
    assert outcomes(daemon, app) == [("CancelledError", BILL)]


def test_call_that_is_cancelled_on_stdio_is_read_on(
    daemon: TestedDaemon, provider: HeldProvider, app: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(daemon.token(app))
    command = [sys.executable, "-m", "anaphora", "rpc", "--stdio", "--home", str(daemon.home)]
    command += ["--app", app, "--token-file", str(token)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as bridge:
        assert bridge.stdin is not None
        assert bridge.stdout is not None

        def send(message: Any) -> Any:
            assert bridge.stdin is not None
            bridge.stdin.write(json.dumps(message).encode() + b"\n")
            bridge.stdin.flush()

        send(complete("openai_chat-read_on", "a", stream=True))
        assert json.loads(bridge.stdout.readline())["method"] == "llm.delta"
        send(request("llm.cancel", "b", id="a"))
        answers = [json.loads(bridge.stdout.readline()) for _ in range(2)]
        assert {each["id"]: each.get("error", {}).get("code") for each in answers} == {
            "a": -32800,
            "b": None,
        }
        assert read_on(daemon, app) == 1
        # The output is closed while another call runs.
        send(complete("openai_chat-read_on", "c", stream=True))
        assert json.loads(bridge.stdout.readline())["method"] == "llm.delta"
        bridge.stdout.close()
        wait_read_on(daemon, app, 2)
        bridge.stdin.close()
    provider.go_on()
    assert [provider.wait_ended(), provider.wait_ended()] == ["whole", "whole"]
    assert [each[:2] for each in entries(daemon, app, 2)] == [("billed", BILL)] * 2


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.long
def test_call_whose_time_is_over_is_read_on(
    stream: bool, daemon: TestedDaemon, provider: HeldProvider, app: str
) -> None:
    with RpcClient(daemon, app) as client:
        *_, response = client.lines(complete("openai_chat-read_on", stream=stream, timeout_ms=1500))
        assert response["error"]["code"] == -32008
        assert response["error"]["data"]["timeout_ms"] == 1500
        assert read_on(daemon, app) == 1
        provider.go_on()
        assert provider.wait_ended() == "whole"
        assert entries(daemon, app)[0][:2] == ("billed", BILL)
        assert outcomes(daemon, app) == [("Timeout", BILL)]


def test_call_whose_time_is_over_is_cut_where_billing_stops(
    daemon: TestedDaemon, provider: HeldProvider, app: str
) -> None:
    with RpcClient(daemon, app) as client:
        *_, response = client.lines(complete("openai_chat-row", stream=True, timeout_ms=1500))
    assert response["error"]["code"] == -32008
    assert provider.wait_ended() == "cut"
    kind, billed, bound, _, _ = entries(daemon, app)[0]
    assert kind == "estimated"
    assert billed < bound
    assert outcomes(daemon, app) == [("Timeout", billed)]


def revoke(daemon: TestedDaemon, app: str) -> None:
    with RpcClient(daemon, ADMIN) as admin:
        admin.call("admin.apps.revoke", app=app)


def test_revoked_token_ends_calls_that_are_read_on(
    daemon: TestedDaemon, provider: HeldProvider, app: str
) -> None:
    path, body = call_of("openai_chat", stream=False)
    with (
        raw_request(daemon, app, path, body, "openai_chat-row") as connection,
        open_stream(daemon, app, "gemini-row", "gemini") as pieces,
    ):
        provider.wait_asked()
        provider.wait_asked()
        revoke(daemon, app)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 401 ")
        with pytest.raises(httpx.RemoteProtocolError):
            list(pieces)
        assert read_on(daemon, app) == 2
    provider.go_on()
    assert [provider.wait_ended(), provider.wait_ended()] == ["whole", "whole"]
    assert [each[:2] for each in entries(daemon, app, 2)] == [("billed", BILL)] * 2


def test_slow_reader_is_disconnected_and_read_on(
    daemon: TestedDaemon, provider: HeldProvider, app: str
) -> None:
    """`write_timeout`: more than the buffers of all sockets hold."""
    provider.half = "harbour " + "漢" * 1_900_000
    provider.go_on()
    path, body = call_of("openai_chat")
    with raw_request(daemon, app, path, body, "openai_chat-read_on") as connection:
        assert connection.recv(10)
        assert provider.wait_ended() == "whole"
        assert entries(daemon, app)[0][:2] == ("billed", BILL)
        assert outcomes(daemon, app) == [("CancelledError", BILL)]


# ── Limits of reading on ─────────────────────────────────────────────────────────────────────────


@pytest.mark.long
def test_seventeenth_call_is_cut_and_charged_whole(
    daemon: TestedDaemon, provider: HeldProvider, app: str
) -> None:
    for number in range(1, 17):
        with open_stream(daemon, app, "gemini-row", "gemini"):
            pass
        wait_read_on(daemon, app, number)
    with open_stream(daemon, app, "gemini-row", "gemini"):
        pass
    assert provider.wait_ended() == "cut"
    kind, billed, bound, _, output = entries(daemon, app)[0]
    assert (kind, billed, output) == ("estimated", bound, MOST_TOKENS)
    with daemon.client(None) as http:
        assert http.get("/readyz").json()["read_on"] == 16
    with daemon.client(ADMIN) as http:
        metrics = http.get("/metrics").text
    assert f'anaphora_daemon_read_on_calls{{app="{app}"}} 16.0' in metrics
    provider.go_on()
    assert {provider.wait_ended() for _ in range(16)} == {"whole"}
    assert sorted(each[0] for each in entries(daemon, app, 17)) == ["billed"] * 16 + ["estimated"]


def test_read_on_calls_count_as_running_ones(
    provider: HeldProvider, tmp_path_factory: pytest.TempPathFactory
) -> None:
    llm = llm_yaml(provider, max_streams_per_app=2)
    folder = tmp_path_factory.mktemp("slots")
    with running_daemon(folder, provider, llm=llm, extensions={"demo": grant(llm)}) as daemon:
        for number in (1, 2):
            with open_stream(daemon, "demo", "gemini-row", "gemini"):
                pass
            wait_read_on(daemon, "demo", number)
        wait_until(lambda: daemon.daemon.services.slots.count == 2, "a slot is not free")
        path, body = call_of("openai_chat", stream=False)
        with daemon.client() as http:
            refused = http.post(path, json=body, headers={"anaphora-provider": "openai_chat-row"})
            assert refused.status_code == 429
            assert "2 calls of this app are running" in refused.text
            provider.go_on()
            wait_until(lambda: daemon.daemon.services.slots.count == 0, "a slot is not free")
            again = http.post(path, json=body, headers={"anaphora-provider": "openai_chat-row"})
            assert again.status_code == 200


@pytest.mark.parametrize("in_time", [True, False])
def test_stopping_daemon_reads_on_until_the_drain_is_over(
    in_time: bool, provider: HeldProvider, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Then what is left is charged at its limit; a call that still runs is not read on."""
    llm = llm_yaml(provider, drain_timeout=20 if in_time else 0.3)
    folder = tmp_path_factory.mktemp("drained")
    with contextlib.ExitStack() as stack:
        with running_daemon(folder, provider, llm=llm, extensions={"demo": grant(llm)}) as daemon:
            with open_stream(daemon, "demo", "gemini-row", "gemini"):
                pass
            wait_read_on(daemon, "demo")
            if in_time:
                timer = threading.Timer(0.3, provider.go_on)
                timer.start()
            else:
                stack.enter_context(open_stream(daemon, "demo", "gemini-row", "gemini"))
        ended = "whole" if in_time else "cut"
        assert provider.wait_ended() == ended
    sql = "SELECT kind, billed, bound FROM entries"
    settled = rows(daemon.home / "store.sqlite", sql)
    if in_time:
        assert [each[:2] for each in settled] == [("billed", BILL)]
    else:
        assert [(kind, billed == bound) for kind, billed, bound in settled] == [
            ("estimated", True)
        ] * 2
    assert rows(daemon.home / "store.sqlite", "SELECT * FROM holds") == []
    messages = [line["message"] for line in daemon.log_lines() if "message" in line]
    assert any("1 of them are read on" in each for each in messages), messages


@pytest.mark.long
def test_sigterm_waits_for_what_is_read_on(provider: HeldProvider, tmp_path: Path) -> None:
    """A process that is told to stop ends when the bill has come."""
    home, llm = tmp_path / "home", llm_yaml(provider)
    token = create_home(home, provider, extensions={"demo": grant(llm)}, llm=llm)["demo"].reveal()
    path, body = call_of("gemini")
    headers = {"authorization": f"Bearer {token}", "anaphora-provider": "gemini-row"}
    transport = httpx.HTTPTransport(uds=str(home / "anaphora.sock"), verify=NO_TLS)
    command = [sys.executable, "-m", "anaphora", "serve", "--home", str(home)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as process,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(process.kill)  # it has ended, unless the test fails
        assert process.stdout is not None
        lines = iter(process.stdout.readline, b"")
        assert any(b"serving at" in line for line in lines)
        with (
            httpx.Client(transport=transport, base_url="http://localhost", headers=headers) as http,
            http.stream("POST", path, json=body, timeout=PATIENCE) as response,
        ):
            assert b"harbour " in next(response.iter_raw())
        assert any(b'"message":"request"' in line for line in lines), "the app was not let go"
        process.send_signal(signal.SIGTERM)
        assert any(b"1 of them are read on" in line for line in lines)
        assert provider.is_answering
        provider.go_on()
        for _ in lines:
            pass
        assert process.wait(PATIENCE) == 0
    settled = rows(home / "store.sqlite", "SELECT kind, billed FROM entries")
    assert settled == [("billed", BILL)]


# ── The attack ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("at", ["gemini-row", "anthropic-row"])
def test_streams_that_are_cut_never_spend_past_the_limit(
    at: str, provider: HeldProvider, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As many as the daemon takes, each closed after its first word. A provider that goes on bills
    the whole answer; one that stops bills what it sent, and a seventh more."""
    llm, dollars = llm_yaml(provider), 0.05
    folder, wire = tmp_path_factory.mktemp("attack"), at.removesuffix("-row")
    apps = {"demo": grant(llm, usd_per_day=dollars)}
    path, body = call_of(wire)
    with running_daemon(folder, provider, llm=llm, extensions=apps) as daemon:
        headers = {**daemon.headers(), "anaphora-provider": at}
        with daemon.client(headers=headers) as http:
            refused = False
            for _ in range(400):
                with http.stream("POST", path, json=body) as response:
                    status = response.status_code
                    if status == 200:
                        next(response.iter_raw())
                if status == 402 and refused:
                    break
                refused = status == 402
                if refused:  # by holds: what is open is settled, and it tries again
                    provider.go_on()
                    wait_until(lambda: not open_holds(daemon, "demo"), "a call is not settled")
                    provider.hold()
            else:
                raise AssertionError("the limit did not hold")
        [[spent]] = rows(daemon.daemon.home.store, "SELECT SUM(billed) FROM entries")
    sent = len(provider.bodies)
    assert sent > 5
    half = math.ceil(1.14 * HALF / 4)
    bill = sent * (BILL if wire == "gemini" else 1000 * 1_000 + half * 10_000)
    assert bill <= spent <= dollars * 10**9
