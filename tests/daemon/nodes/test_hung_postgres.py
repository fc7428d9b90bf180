"""A node whose PostgreSQL hangs: what reads the store is refused soon, in the format of its caller."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.daemon import GRANT, TestedDaemon
from support.nodes import running_nodes
from support.servers import PostgresServer
from support.waiting import wait_until

from anaphora.daemon.access.identity import ADMIN
from anaphora.emulator.server import Emulator

#: Seconds until a client gives up: several times what a read of the store may take, and less than
#: a report may.
CLIENT_SECONDS = 20.0
STORED = {**GRANT, "llm": {**GRANT["llm"], "allow": ["stored_responses"]}}


@pytest.fixture
def node(
    emu: Emulator, tmp_path: Path, database_url: str, postgres_server: PostgresServer
) -> Iterator[TestedDaemon]:
    with running_nodes(tmp_path, emu, database_url, count=1, extensions={"demo": STORED}) as [node]:
        try:
            yield node
        finally:
            postgres_server.resume()


def request(node: TestedDaemon, method: str, path: str, **options: Any) -> httpx.Response:
    headers = options.pop("headers", node.headers())
    with httpx.Client(base_url=node.url, headers=headers, timeout=CLIENT_SECONDS) as client:
        return client.request(method, path, **options)


@pytest.mark.long
def test_first_reads_of_handles_are_503_in_the_format_of_the_caller(
    node: TestedDaemon, postgres_server: PostgresServer
) -> None:
    ask = {"model": "gpt-5.2", "input": "Hello?", "store": True}
    made = request(node, "POST", "/v1/responses", json=ask).json()
    assert request(node, "GET", f"/v1/responses/{made['id']}").status_code == 200
    postgres_server.pause()
    reads: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", f"/v1/responses/{made['id']}", {}),
        ("POST", "/v1/responses", {"json": {**ask, "previous_response_id": made["id"]}}),
        ("GET", "/v1/files", {"headers": {**node.headers(), "anthropic-version": "2023-06-01"}}),
    ]
    with ThreadPoolExecutor(9) as threads:
        futures = [threads.submit(request, node, *one[:2], **one[2]) for one in reads * 3]
    answers = [future.result() for future in futures]
    assert [one.status_code for one in answers] == [503] * 9
    for answer in answers:
        error = answer.json()["error"]
        assert error["message"].startswith("the store of the daemon cannot be reached")
        is_anthropic = "anthropic-version" in answer.request.headers
        assert answer.json().get("type") == ("error" if is_anthropic else None)
    postgres_server.resume()
    wait_until(
        lambda: request(node, "GET", f"/v1/responses/{made['id']}").status_code == 200,
        "it answers again",
    )


@pytest.mark.long
def test_first_reads_of_spend_are_refused(
    node: TestedDaemon, postgres_server: PostgresServer
) -> None:
    params = {"app": "demo"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "admin.grants.check", "params": params}
    with node.socket_client() as owner:
        owner.timeout = httpx.Timeout(CLIENT_SECONDS)
        assert "result" in owner.post("/rpc", json=message).json()
        postgres_server.pause()
        error = owner.post("/rpc", json=message).json()["error"]
    assert error["data"]["kind"] == "unavailable"


def test_metrics_are_served_without_the_spend(
    node: TestedDaemon, postgres_server: PostgresServer
) -> None:
    postgres_server.pause()
    page = request(node, "GET", "/metrics", headers=node.headers(ADMIN))
    assert page.status_code == 200
    assert "anaphora_daemon_requests_total" in page.text
