"""`anaphora serve --workers 2` on PostgreSQL and Redis: each worker is a node, and all are one daemon."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from support.daemon import GRANT, NO_TLS, create_home, llm_yaml
from support.held_provider import HeldProvider, held_provider
from support.postgres_logs import execute
from support.served_workers import MESSAGE, WORKERS, Served
from support.servers import PostgresServer, RedisServer
from support.waiting import PATIENCE, wait_until

from anaphora.daemon.access.identity import ADMIN
from anaphora.daemon.store import Settlement
from anaphora.daemon.store.postgres.journal import SettlementJournal

NODE = "eu-1"
#: What an answer of the provider costs, in nano-dollars.
BILL = 1000 * 1_000 + 200 * 5_000


def _grant(**fields: Any) -> dict[str, Any]:
    return {**GRANT, "llm": {**GRANT["llm"], **fields}}


GRANTS = {
    "demo": GRANT,
    "limited": _grant(usd_per_day=0.02),
    "rated": _grant(requests_per_minute=5),
    "revoked": GRANT,
}


class ServedNode(Served):
    """With its database."""

    def __init__(self, home: Path, provider: HeldProvider, database: str, shared: str | None):
        llm = llm_yaml(provider.url)
        llm["daemon"] |= {"store": database, "node": NODE, "socket": "s", "status_port": 0}
        llm["daemon"] |= {"max_streams_per_app": 3, "log_file": "daemon.log"}
        if shared is not None:
            llm["daemon"]["shared"] = shared
        self.database = database
        super().__init__(home, create_home(home, provider, extensions=GRANTS, llm=llm))

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in execute(self.database, sql)]

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Running ones by name, as the socket answers, which is never drained."""
        message = {"jsonrpc": "2.0", "id": 1, "method": "admin.nodes.list", "params": {}}
        transport = httpx.HTTPTransport(uds=str(self.home / "s"))
        with httpx.Client(transport=transport, timeout=PATIENCE) as owner:
            found = owner.post("http://localhost/rpc", json=message).json()["result"]["nodes"]
        return {one["name"]: one for one in found if one["state"] in ("alive", "draining")}


@pytest.fixture(scope="module")
def provider() -> Iterator[HeldProvider]:
    with held_provider() as running:
        yield running


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory,
    provider: HeldProvider,
    postgres_server: PostgresServer,
    redis_server: RedisServer,
) -> Iterator[ServedNode]:
    home, database = tmp_path_factory.mktemp("workers") / "home", postgres_server.create_database()
    redis_server.flush()
    served = ServedNode(home, provider, database, redis_server.url)
    yield served
    assert served.stop() == 0
    assert served.fetch("SELECT count(*) FROM holds") == [(0,)]
    states = served.fetch("SELECT DISTINCT state FROM nodes WHERE ended IS NULL")
    assert states == [], "all have left the store"


@pytest.fixture
def served(running: ServedNode, provider: HeldProvider) -> ServedNode:
    provider.reset()
    provider.go_on()
    return running


def test_each_worker_is_a_node(served: ServedNode) -> None:
    wait_until(lambda: served.status() == 200, "a call is answered")
    assert set(served.nodes()) == {NODE, *(f"{NODE}/{number + 1}" for number in range(WORKERS))}
    page = served.get("/metrics").text
    assert "\nanaphora_daemon_nodes 1.0\n" in page  # one daemon, whose share of limits is all
    assert served.get("/readyz").json()["status"] == "ready"


def test_limits_hold_over_all_workers(served: ServedNode, provider: HeldProvider) -> None:
    found = sum((served.statuses(3, "rated") for _ in range(4)), Counter[int]())
    assert found == {200: 5, 429: 7}
    found = sum((served.statuses(3, "limited") for _ in range(5)), Counter[int]())
    assert set(found) == {200, 402}
    ((charged,),) = wait_until(
        lambda: (
            served.fetch("SELECT sum(billed) FROM entries WHERE app = 'limited'")
            if served.fetch("SELECT count(*) FROM holds") == [(0,)]
            else []
        ),
        "all are settled",
    )
    assert charged == found[200] * BILL <= 20_000_000
    provider.hold()
    with ThreadPoolExecutor(3) as threads:
        running = [threads.submit(served.status) for _ in range(3)]
        wait_until(lambda: provider.open == 3, "three calls run")
        assert [served.status() for _ in range(4)] == [429] * 4
        provider.go_on()
        assert [one.result(PATIENCE) for one in running] == [200] * 3


def test_revoked_token_is_refused_at_once(served: ServedNode) -> None:
    clients = [served.client("revoked") for _ in range(6)]
    for client in clients:
        client.messages.create(**MESSAGE)
    served.rpc(ADMIN, "admin.apps.revoke", app="revoked")
    for client in clients:
        with client, pytest.raises(anthropic.APIStatusError) as refused:
            client.messages.create(**MESSAGE)
        assert refused.value.status_code in (401, 429)


def test_explanations_and_metrics_are_of_one_daemon(served: ServedNode) -> None:
    def requests() -> float:
        name = 'anaphora_daemon_requests_total{app="demo",route="POST /v1/messages",status="200"} '
        page = served.get("/metrics").text
        return sum(float(line[len(name) :]) for line in page.splitlines() if line.startswith(name))

    before = requests()
    with served.client() as client:
        reply = client.messages.with_raw_response.create(**MESSAGE)
    assert [served.status() for _ in range(5)] == [200] * 5
    wait_until(lambda: requests() == before + 6, "all calls are counted")
    request_id = reply.headers["anaphora-request-id"]

    def explained() -> Any:
        return served.rpc("demo", "llm.explain", request_id=request_id)

    wait_until(explained, "the call is recorded")
    assert [explained()["request_id"] for _ in range(6)] == [request_id] * 6


def test_killed_workers_are_started_again_and_recover_by_their_marks(
    served: ServedNode, provider: HeldProvider
) -> None:
    provider.hold()
    before = served.workers()
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(served.status)
        provider.wait_asked()
        for process in before:
            os.kill(process, signal.SIGKILL)
        assert isinstance(running.exception(PATIENCE), anthropic.APIConnectionError)
    provider.go_on()
    wait_until(lambda: len(set(served.workers()) - set(before)) == WORKERS, "others are started")
    wait_until(lambda: served.fetch("SELECT count(*) FROM holds") == [(0,)], "it is settled")
    kinds = served.fetch("SELECT kind FROM entries WHERE kind <> 'billed'")
    assert kinds == [("bound",)]
    wait_until(lambda: served.fetch("SELECT count(*) FROM unaudited") == [(0,)], "it has a row")
    wait_until(lambda: _answers(served), "they answer")
    assert all((served.home / f"sent.marks.{number + 1}").is_file() for number in range(WORKERS))


def _answers(served: ServedNode) -> bool:
    try:
        return served.status() == 200
    except anthropic.APIConnectionError:
        return False


def test_operators_drain_is_that_of_all_workers(served: ServedNode) -> None:
    wait_until(lambda: _answers(served), "they answer")
    served.rpc(ADMIN, "admin.nodes.drain", node=NODE)

    def refuses() -> bool:
        try:
            httpx.get(f"{served.url}/healthz", timeout=PATIENCE, verify=NO_TLS)
        except httpx.ConnectError:
            return True
        return False

    wait_until(refuses, "no worker accepts connections")
    wait_until(
        lambda: all(
            one["state"] == "draining" and one["report"]["refuses_calls"]
            for one in served.nodes().values()
        ),
        "all say so",
    )
    found = served.command("nodes", "drain", NODE, "--wait")
    assert "its calls have ended" in found
    served.command("nodes", "drain", NODE, "--undo")
    wait_until(lambda: _answers(served), "they answer again")
    wait_until(lambda: served.get("/readyz").status_code == 200, "and the daemon is ready")


@pytest.mark.long
def test_limits_without_redis_hold_over_all_workers(
    tmp_path: Path, provider: HeldProvider, database_url: str
) -> None:
    provider.reset()
    provider.go_on()
    served = ServedNode(tmp_path / "home", provider, database_url, None)
    found = sum((served.statuses(3, "rated") for _ in range(4)), Counter[int]())
    assert found == {200: 5, 429: 7}
    assert served.stop() == 0


def test_journals_of_workers_are_written_by_their_daemon(tmp_path: Path) -> None:
    """There may be fewer workers at the next start."""
    path = tmp_path / "settlements.journal"
    left = [Settlement(hold=f"hold {at}", billed=1, kind="billed", at=at) for at in range(3)]
    for number, settlement in enumerate(left):
        journal = SettlementJournal(path if not number else Path(f"{path}.{number}"))
        journal.append([settlement])
        journal.close()
    journal = SettlementJournal(path)
    assert sorted(one.hold for one in journal.read()) == [one.hold for one in left]
    journal.close()
    assert [Path(f"{path}.{number}").read_bytes() for number in (1, 2)] == [b"", b""]
    assert len(SettlementJournal(path).read()) == 3
