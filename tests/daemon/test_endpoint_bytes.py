"""On the same wire, with nothing to change, a provider reads what the app sent."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from support.daemon import TestedDaemon, llm_yaml, running_daemon
from support.meaning import meaning
from support.sdk import anthropic, gemini, openai_chat, openai_responses
from support.sdk.case import SdkCase
from support.socket_upstream import SocketUpstream, UpstreamConnection, socket_upstream
from support.waiting import PATIENCE

from anaphora.daemon.store import HandleKind, HandleRow
from anaphora.wire.gemini.params import path_of

#: By wire: the case of its SDK, the path, and the provider in llm.yaml.
CASES: dict[str, tuple[SdkCase, str, str]] = {
    "anthropic": (anthropic.CASE, "/v1/messages", "anthropic"),
    "openai_chat": (openai_chat.CASE, "/v1/chat/completions", "openai-chat"),
    "openai_responses": (openai_responses.CASE, "/v1/responses", "openai"),
    "gemini": (gemini.CASE, "", "gemini"),
}
#: The stored objects that the requests of the cases name.
OWN: tuple[tuple[HandleKind, str, str], ...] = (
    ("file", "file_1", "anthropic"),
    ("file", "file_2", "anthropic"),
    ("file", "file-2", "openai-chat"),
    ("file", "file-3", "openai"),
    ("response", "resp_1", "openai"),
)
GRANT: dict[str, Any] = {
    "capabilities_grant": ["llm_complete", "llm_stream"],
    "llm": {
        "providers": [provider for _, _, provider in CASES.values()],
        "models": ["*"],
        "tools": ["*"],
        "n": 8,
        "usd_per_day": "unlimited",
        "place_markers": False,
        "share_cache": True,
        "allow": [
            "server_tools", "remote_mcp", "stored_responses", "service_tiers",
            {"fields": ["fileData.fileUri"]},
        ],
    },
}  # fmt: skip


class Provider:
    """Answers every request with the reply that a test sets."""

    def __init__(self) -> None:
        self.reply = b""

    def __call__(self, connection: UpstreamConnection) -> None:
        while connection.read_request():
            head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(self.reply)}\r\n\r\n"
            connection.send(head.encode() + self.reply)


@pytest.fixture(scope="module")
def provider() -> Provider:
    return Provider()


@pytest.fixture(scope="module")
def upstream(provider: Provider) -> Iterator[SocketUpstream]:
    with socket_upstream(provider) as running:
        yield running


@pytest.fixture(scope="module")
def daemon(
    upstream: SocketUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestedDaemon]:
    llm = llm_yaml(upstream.url)
    folder = tmp_path_factory.mktemp("daemon")
    with running_daemon(folder, upstream, extensions={"demo": GRANT}, llm=llm) as tested:
        running = tested.daemon
        own = HandleRow(kind="file", id="", app="demo", provider="", created=time.time(), tokens=9)
        for kind, id, provider in OWN:
            row = replace(own, kind=kind, id=id, provider=provider)
            added = running.services.store.add_handle(row)
            asyncio.run_coroutine_threadsafe(added, running._loop).result(PATIENCE)
        yield tested


@pytest.mark.parametrize("wire", ["anthropic", "gemini", "openai_chat", "openai_responses"])
def test_requests_and_replies_are_passed_through(
    wire: str, daemon: TestedDaemon, upstream: SocketUpstream, provider: Provider
) -> None:
    case, path, id = CASES[wire]
    reply = next(iter(case.replies.values()))
    provider.reply = case.codec.write_reply(reply)
    passed = 0
    with daemon.client() as http:
        for name, call in case.calls.items():
            body = case.body(name)
            if body.get("stream"):
                continue
            # Spaces, and keys in another order than we write them.
            data = json.dumps(dict(reversed(body.items()))).encode()
            before = len(upstream.requests)
            response = http.post(
                path or path_of(call.model, stream=False),
                content=data,
                headers={"content-type": "application/json", "anaphora-provider": id},
            )
            if b'"item_reference"' in data:  # to an item that no app is known to own
                assert response.status_code == 404, response.text
                assert len(upstream.requests) == before
                continue
            if b'"cachedContent"' in data:
                assert response.status_code == 403, response.text
                assert len(upstream.requests) == before
                continue
            assert response.status_code == 200, response.text
            passed += 1
            (sent,) = upstream.requests[before:]
            assert meaning(wire, sent.partition(b"\r\n\r\n")[2]) == meaning(wire, data)
            assert response.content == provider.reply
    assert passed > 8
