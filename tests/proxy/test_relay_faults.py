"""Every fault of the emulator looks through the proxy as it looks without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.waiting import PATIENCE

from anaphora.emulator.fault_effects import KINDS
from anaphora.emulator.faults import HEADER
from anaphora.emulator.server import Emulator
from anaphora.proxy.routes import default_routes
from anaphora.proxy.server import Proxy, running

#: Those that last.
_LONG = {"timeout", "slow-first-byte"}
FAULTS = sorted(name for name in KINDS if name not in _LONG)
BODY = {
    "model": "claude-opus-5-5",
    "max_tokens": 40,
    "messages": [{"role": "user", "content": "Hello"}],
}
#: Of the answering server, not of the answer. Those that end in `-reset` are times.
SERVERS = ("date", "server", "connection", "transfer-encoding")


@pytest.fixture(scope="module")
def proxy(running_emulator: Emulator) -> Iterator[Proxy]:
    with running(default_routes({"anthropic": running_emulator.url})) as running_proxy:
        yield running_proxy


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=PATIENCE, trust_env=False) as opened:
        yield opened


def outcome(emu: Emulator, client: httpx.Client, url: str, fault: str, stream: bool) -> Any:
    """Status, headers and body, or how the connection ended and what had come by then."""
    emu.reset()  # the same ids each time
    received = b""
    try:
        with client.stream(
            "POST",
            f"{url}/v1/messages",
            json={**BODY, "stream": stream},
            headers={HEADER: fault, "x-api-key": "k", "anthropic-version": "2023-06-01"},
        ) as answer:
            headers = {
                name: value
                for name, value in answer.headers.items()
                if name not in SERVERS and not name.endswith("-reset")
            }
            for data in answer.iter_raw():
                received += data
    except httpx.TransportError:
        return "the connection ended", received
    return answer.status_code, headers, received


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_passes_as_it_is(
    emu: Emulator, proxy: Proxy, client: httpx.Client, fault: str, stream: bool
) -> None:
    direct = outcome(emu, client, emu.url, fault, stream)
    relayed = outcome(emu, client, proxy.url_of("anthropic"), fault, stream)
    assert relayed == direct
