"""`/readyz` while a part is gone, and a node that starts without its database."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.cluster import Cluster, Node
from support.daemon import TestedDaemon
from support.nodes import running_nodes
from support.servers import PostgresServer
from support.waiting import PATIENCE, wait_until

from anaphora.emulator.server import Emulator


def ready(node: TestedDaemon) -> tuple[int, dict[str, Any]]:
    assert node.daemon.status_address is not None
    with node.client(None, base_url=node.daemon.status_address.url) as client:
        response = client.get("/readyz")
        return response.status_code, response.json()


@pytest.mark.long
def test_readyz_names_the_parts_that_are_gone(
    emu: Emulator,
    tmp_path: Path,
    database_url: str,
    postgres_server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No call is made: the parts are asked in the background."""
    monkeypatch.setattr("anaphora.daemon.health._EVERY", 0.05)
    with running_nodes(tmp_path, emu, database_url, 1) as [node]:
        assert ready(node)[0] == 200
        postgres_server.stop()
        try:
            status, body = wait_until(lambda: ((it := ready(node))[0] == 503 and it) or None)
            assert status == 503
            assert body["status"] == "store_unavailable"
            assert body["since"] == body["down"]["store"]["since"]
            assert set(body["down"]) == {"store"}
        finally:
            postgres_server.start()
        wait_until(lambda: ready(node)[0] == 200 and "down" not in ready(node)[1])


def command(node: Node, log: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "anaphora", "serve", "--home", str(node.home)]
    with open(log, "wb") as errors:
        return subprocess.Popen(
            [*words, "--port", str(node.port)], stdout=subprocess.DEVNULL, stderr=errors
        )


@pytest.mark.long
def test_nodes_wait_for_their_database(
    emu: Emulator, tmp_path: Path, database_url: str, postgres_server: PostgresServer
) -> None:
    """One is stopped while it waits; the other starts when the database is back."""
    nodes = Cluster(tmp_path, store=database_url, provider=emu.url, nodes=2).nodes
    logs = [tmp_path / f"{node.name}.stderr" for node in nodes]
    postgres_server.stop()
    with command(nodes[0], logs[0]) as stopped, command(nodes[1], logs[1]) as started:
        try:
            for node, log in zip(nodes, logs, strict=True):
                wait_until(lambda log=log: b"waiting for the database" in log.read_bytes())  # type: ignore[misc]
                wait_until(lambda node=node: node.page("/healthz") == (200, {"status": "ok"}))  # type: ignore[misc]
                status, body = node.readiness()
                assert (status, body["status"]) == (503, "store_unavailable")
                with pytest.raises(httpx.ConnectError):  # balancers use another node
                    httpx.get(f"{node.url}/healthz", timeout=PATIENCE)
            stopped.send_signal(signal.SIGTERM)
            assert stopped.wait(PATIENCE) == 0
            postgres_server.start()
            wait_until(lambda: nodes[1].readiness()[0] == 200)
            assert b"the database answers after" in logs[1].read_bytes()
            started.send_signal(signal.SIGTERM)
            assert started.wait(PATIENCE) == 0
        finally:
            for process in (stopped, started):
                process.kill()  # unless it has ended
            if not postgres_server.running:
                postgres_server.start()


def test_database_that_refuses_the_node_ends_it_with_7(
    emu: Emulator, tmp_path: Path, database_url: str
) -> None:
    missing = database_url.replace("/db_", "/missing_")
    assert missing != database_url
    (node,) = Cluster(tmp_path, store=missing, provider=emu.url, nodes=1).nodes
    log = tmp_path / "stderr"
    with command(node, log) as process:
        assert process.wait(PATIENCE) == 7
    assert b"does not exist" in log.read_bytes()
