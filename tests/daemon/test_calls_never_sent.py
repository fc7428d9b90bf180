"""Calls that end before anything was written to the provider cost nothing, however they end: the
connection is still being made."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon import GRANT, TestedDaemon, running_daemon
from support.ended_calls import (
    PRICES,
    call_of,
    complete,
    entries,
    open_holds,
    outcomes,
    raw_request,
    read_on,
)
from support.rpc_calls import RpcClient
from support.waiting import PATIENCE, wait_until

APPS = ("read_on", "cancel", "timed", "gone")
CONTENT = {
    "model": "models/gemini-2.5-flash",
    "contents": [{"role": "user", "parts": [{"text": "Tell me about harbours."}]}],
    "ttl": "60s",
}


class Stalled:
    """Takes connections, and never answers the first message of TLS."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self.url = f"https://127.0.0.1:{listening.getsockname()[1]}"

    def accept(self) -> socket.socket:
        connection, _ = self.listening.accept()
        connection.settimeout(PATIENCE)
        return connection


@pytest.fixture
def server() -> Iterator[Stalled]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE)
        yield Stalled(listening)


@pytest.fixture
def daemon(server: Stalled, tmp_path: Path) -> Iterator[TestedDaemon]:
    key = {"secret": "PROVIDER_KEY"}
    entry: dict[str, Any] = {"base_url": server.url, "key": key, "prices": PRICES}
    providers = {
        how: {**entry, "wire": "openai_chat", "model": "gpt-4.1", "on_abort": how}
        for how in ("read_on", "cancel")
    }
    providers["gemini"] = {**entry, "wire": "gemini", "model": "gemini-2.5-flash"}
    llm = {"providers": providers, "daemon": {"port": 0}}
    fields = {**GRANT["llm"], "providers": list(providers), "models": ["*"]}
    grant = {**GRANT, "llm": {**fields, "allow": ["stored_responses"]}}
    apps = dict.fromkeys(APPS, grant)
    with running_daemon(tmp_path, server, llm=llm, extensions=apps) as running:
        yield running


def is_free(daemon: TestedDaemon, app: str) -> bool:
    [(kind, billed, bound, _, _)] = entries(daemon, app)
    return bool((kind, billed) == ("free", 0) and bound > 0 and not open_holds(daemon, app))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["read_on", "cancel"])
def test_app_that_leaves_while_the_connection_is_made_pays_nothing(
    how: str, stream: bool, daemon: TestedDaemon, server: Stalled
) -> None:
    path, body = call_of("openai_chat", stream=stream)
    with raw_request(daemon, how, path, body, how):
        upstream = server.accept()
        wait_until(lambda: open_holds(daemon, how), "nothing is held")
    with upstream:
        assert is_free(daemon, how)
        assert read_on(daemon, how) == 0
        assert outcomes(daemon, how) == [("CancelledError", 0)]
        while upstream.recv(65_536):
            pass  # it is closed: nothing is sent later


@pytest.mark.parametrize("stream", [True, False])
def test_call_whose_time_is_over_while_the_connection_is_made_costs_nothing(
    stream: bool, daemon: TestedDaemon
) -> None:
    with RpcClient(daemon, "timed") as client:
        *_, response = client.lines(complete("read_on", stream=stream, timeout_ms=500))
    assert response["error"]["code"] == -32008
    assert is_free(daemon, "timed")
    assert outcomes(daemon, "timed") == [("Timeout", 0)]
