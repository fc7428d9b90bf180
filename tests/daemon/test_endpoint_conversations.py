"""Conversations and containers of OpenAI, which the emulator does not have: a provider as bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.daemon import TestedDaemon, llm_yaml, running_daemon
from support.socket_upstream import SocketUpstream, UpstreamConnection, socket_upstream

GRANT: dict[str, Any] = {
    "capabilities_grant": ["llm_complete", "llm_stream"],
    "llm": {
        "providers": ["openai"],
        "models": ["gpt-5.2"],
        "usd_per_day": "unlimited",
        "place_markers": False,
        "share_cache": True,
        "allow": ["stored_responses", "server_tools"],
    },
}
RESPONSE = {
    "id": "resp_9",
    "object": "response",
    "model": "gpt-5.2",
    "status": "completed",
    "output": [
        {
            "type": "message",
            "id": "msg_9",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Hello", "annotations": []}],
        },
        {
            "type": "code_interpreter_call",
            "id": "ci_9",
            "status": "completed",
            "code": "1 + 1",
            "container_id": "cntr_9",
            "outputs": None,
        },
    ],
    "usage": {"input_tokens": 40, "output_tokens": 2, "total_tokens": 42},
}
ANSWERS: dict[str, Any] = {
    "POST /v1/conversations": {"id": "conv_1", "object": "conversation", "metadata": {}},
    "GET /v1/conversations/conv_1": {"id": "conv_1", "object": "conversation"},
    "POST /v1/conversations/conv_1": {"id": "conv_1", "metadata": {"a": "b"}},
    "DELETE /v1/conversations/conv_1": {"id": "conv_1", "deleted": True},
    "GET /v1/conversations/conv_1/items": {"object": "list", "data": []},
    "POST /v1/conversations/conv_1/items": {"object": "list", "data": [{"id": "msg_1"}]},
    "DELETE /v1/conversations/conv_1/items/msg_1": {"id": "conv_1"},
    "POST /v1/containers": {"id": "cntr_1", "object": "container"},
    "GET /v1/containers/cntr_1": {"id": "cntr_1", "object": "container"},
    "POST /v1/containers/cntr_1/files": {"id": "cfile_1", "object": "container.file"},
    "GET /v1/containers/cntr_1/files/cfile_1/content": b"a,b\n1,2\n",
    "GET /v1/containers/cntr_9": {"id": "cntr_9", "object": "container"},
    "POST /v1/responses": RESPONSE,
}


def answer(connection: UpstreamConnection) -> None:
    while request := connection.read_request():
        method, target, _ = request.split(b" ", 2)
        found = ANSWERS[f"{method.decode()} {target.decode().partition('?')[0]}"]
        body = found if isinstance(found, bytes) else json.dumps(found).encode()
        kind = "text/html" if isinstance(found, bytes) else "application/json"
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
        connection.send(f"{head}openai-organization: org-1\r\n\r\n".encode() + body)


@pytest.fixture(scope="module")
def upstream() -> Iterator[SocketUpstream]:
    with socket_upstream(answer) as running:
        yield running


@pytest.fixture(scope="module")
def daemon(
    upstream: SocketUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestedDaemon]:
    apps = {"one": GRANT, "two": GRANT}
    folder = tmp_path_factory.mktemp("daemon")
    llm = llm_yaml(upstream.url)
    with running_daemon(folder, upstream, extensions=apps, llm=llm) as tested:
        yield tested


@pytest.fixture(scope="module")
def apps(daemon: TestedDaemon) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    with daemon.client("one") as one, daemon.client("two") as two:
        yield one, two


def test_conversations(
    apps: tuple[httpx.Client, httpx.Client], daemon: TestedDaemon, upstream: SocketUpstream
) -> None:
    one, two = apps
    item = b'{ "items" : [{"type":"message","role":"user","content":"Hi"}] }'
    kind = {"content-type": "application/json"}
    assert one.post("/v1/conversations", content=item, headers=kind).json()["id"] == "conv_1"
    assert upstream.requests[-1].endswith(item)
    assert daemon.token("one").encode() not in upstream.requests[-1]
    found = one.get("/v1/conversations/conv_1?include=x&project=leak&limit=2")
    assert found.status_code == 200
    assert "openai-organization" not in found.headers
    assert b"GET /v1/conversations/conv_1?include=x&limit=2 " in upstream.requests[-1]
    items = "/v1/conversations/conv_1/items"
    assert one.post("/v1/conversations/conv_1", json={"metadata": {"a": "b"}}).status_code == 200
    assert one.get(items).json()["data"] == []
    assert one.post(items, content=item, headers=kind).status_code == 200
    assert one.delete(f"{items}/msg_1").status_code == 200
    ask = {"model": "gpt-5.2", "input": "Hi", "store": False}
    for conversation in ("conv_1", {"id": "conv_1"}):
        reply = one.post("/v1/responses", json={**ask, "conversation": conversation})
        assert reply.json()["id"] == "resp_9", reply.text
    before = len(upstream.requests)
    for refused in (
        two.get("/v1/conversations/conv_1"),
        two.post(items, content=item, headers=kind),
        two.delete("/v1/conversations/conv_1"),
        two.post("/v1/responses", json={**ask, "conversation": "conv_1"}),
        one.post("/v1/responses", json={**ask, "conversation": "conv_2"}),
        one.get("/v1/responses/resp_9"),  # was not stored
    ):
        assert refused.status_code == 404
        assert refused.json()["error"]["message"]
    twice = one.post(items, content=b'{"items":[],"items":[]}', headers=kind)
    assert twice.status_code == 400
    assert len(upstream.requests) == before
    assert one.delete("/v1/conversations/conv_1").json()["deleted"] is True
    assert one.get("/v1/conversations/conv_1").status_code == 404


def test_containers(apps: tuple[httpx.Client, httpx.Client], upstream: SocketUpstream) -> None:
    one, two = apps
    assert one.post("/v1/containers", json={"name": "x"}).json()["id"] == "cntr_1"
    listed = one.get("/v1/containers").json()
    assert "cntr_1" in [each["id"] for each in listed["data"]]
    assert two.get("/v1/containers").json()["data"] == []
    path = "/v1/containers/cntr_1/files"
    assert one.post(path, files={"file": ("a.csv", b"1,2")}).status_code == 200
    assert b"multipart/form-data; boundary=" in upstream.requests[-1]
    content = one.get(f"{path}/cfile_1/content")
    assert content.content == b"a,b\n1,2\n"
    assert content.headers["x-content-type-options"] == "nosniff"
    before = len(upstream.requests)
    assert two.post(path, files={"file": ("a.csv", b"1,2")}).status_code == 404
    assert two.get(f"{path}/cfile_1/content").status_code == 404
    tool = {"type": "code_interpreter", "container": "cntr_1"}
    ask = {"model": "gpt-5.2", "input": "Hi", "store": False, "tools": [tool]}
    assert two.post("/v1/responses", json=ask).status_code == 404
    for bad in ("text/plain", "multipart/form-data", "multipart/form-data; boundary=a\tb"):
        refused = one.post(path, content=b"x", headers={"content-type": bad})
        assert refused.status_code == 415
    assert len(upstream.requests) == before


def test_container_that_a_call_made_is_the_apps_own(
    apps: tuple[httpx.Client, httpx.Client],
) -> None:
    one, two = apps
    ask = {"model": "gpt-5.2", "input": "Hi", "store": False}
    assert one.post("/v1/responses", json=ask).status_code == 200
    assert one.get("/v1/containers/cntr_9").json()["id"] == "cntr_9"
    assert two.get("/v1/containers/cntr_9").status_code == 404
