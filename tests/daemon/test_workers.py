"""`anaphora serve --workers 2`, called with SDKs and commands: what holds for one process holds over
all workers."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import msgspec
import pytest
from support.daemon import GRANT, NO_TLS, create_home, llm_yaml
from support.held_provider import HeldProvider, held_provider
from support.ledgers import rows
from support.served_workers import MESSAGE, WORKERS, Served
from support.ui import Viewer
from support.waiting import PATIENCE, wait_until

from anaphora.audit.reading import calls
from anaphora.client.config.secrets import Secret
from anaphora.daemon.access.identity import ADMIN

#: What an answer of the provider costs, in nano-dollars, and the bound of a call is less than thrice.
BILL = 1000 * 1_000 + 200 * 5_000


def _grant(**fields: Any) -> dict[str, Any]:
    return {**GRANT, "llm": {**GRANT["llm"], **fields}}


GRANTS = {
    "demo": GRANT,
    "limited": _grant(usd_per_day=0.05),
    "rated": _grant(requests_per_minute=5),
    "revoked": GRANT,
    "changed": GRANT,
    "left": GRANT,
}


def _create(folder: Path, provider: HeldProvider) -> tuple[Path, dict[str, Secret]]:
    llm = llm_yaml(provider.url)
    llm["daemon"] |= {
        "log_file": "daemon.log",
        "max_streams_per_app": 3,
        "failed_logins_per_minute": 6,
        "socket": "s",
    }
    return folder, create_home(folder, provider, extensions=GRANTS, llm=llm)


@pytest.fixture(scope="module")
def provider() -> Iterator[HeldProvider]:
    with held_provider() as running:
        yield running


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, provider: HeldProvider) -> Iterator[Served]:
    served = Served(*_create(tmp_path_factory.mktemp("workers") / "home", provider))
    yield served
    assert served.stop() == 0
    assert rows(served.home / "store.sqlite", "SELECT COUNT(*) FROM holds") == [(0,)]


@pytest.fixture
def served(running: Served, provider: HeldProvider) -> Served:
    provider.reset()
    provider.go_on()
    return running


def test_connections_are_spread_over_all_workers(served: Served) -> None:
    def sockets() -> dict[int, int]:
        return {process: _sockets(process) for process in served.workers()}

    before = sockets()
    assert len(before) == WORKERS
    with contextlib.ExitStack() as stack:

        def spread() -> bool:
            stack.enter_context(served.client()).messages.create(**MESSAGE)  # stays connected
            return all(count > before[process] for process, count in sockets().items())

        wait_until(spread, "each worker has one")


def _sockets(process: int) -> int:
    files = Path(f"/proc/{process}/fd").iterdir()
    return sum(os.readlink(file).startswith("socket:") for file in files)


def test_spending_limit_is_exact(served: Served) -> None:
    found: Counter[int] = Counter()
    for _ in range(10):
        found += served.statuses(3, "limited")
    assert set(found) == {200, 402}
    path = served.home / "store.sqlite"
    charged = "SELECT SUM(billed), COUNT(*) FROM entries WHERE app = 'limited' AND kind != 'free'"
    wait_until(lambda: rows(path, "SELECT COUNT(*) FROM holds") == [(0,)], "all are settled")
    ((amount, count),) = rows(path, charged)
    assert amount == found[200] * BILL == count * BILL
    assert amount <= 50_000_000 < amount + 3 * BILL


def test_requests_per_minute_are_exact(served: Served) -> None:
    found = sum((served.statuses(3, "rated") for _ in range(4)), Counter[int]())
    assert found == {200: 5, 429: 7}


def test_running_calls_are_counted_together(served: Served, provider: HeldProvider) -> None:
    provider.hold()
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            client = stack.enter_context(served.client())
            stream = client.messages.create(**MESSAGE, stream=True)
            next(iter(stream))
            stack.callback(stream.close)
        assert [served.status() for _ in range(6)] == [429] * 6
        provider.go_on()
    wait_until(lambda: served.status() == 200, "they have ended")


def test_failed_logins_are_counted_together(served: Served) -> None:
    def log_in(_: object) -> int:
        headers = {"authorization": "Bearer ana_wrong"}
        found = httpx.post(f"{served.url}/rpc", json={}, headers=headers, verify=NO_TLS)
        return found.status_code

    found = Counter(map(log_in, range(12)))
    assert found == {401: 6, 429: 6}


def test_revoked_token_is_refused_at_once_by_all_workers(
    served: Served, provider: HeldProvider
) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(served.client("revoked")) for _ in range(8)]
        for client in clients:
            client.messages.create(**MESSAGE)
        provider.hold()
        stream = clients[0].messages.create(**MESSAGE, stream=True)
        next(iter(stream))
        served.rpc(ADMIN, "admin.apps.revoke", app="revoked")
        for client in clients[1:]:
            with pytest.raises(anthropic.APIStatusError) as refused:
                client.messages.create(**MESSAGE)
            assert refused.value.status_code in (401, 429)  # 429: after too many failed logins
        with pytest.raises((httpx2.TransportError, httpx.TransportError)):
            list(stream)
    provider.go_on()


def test_changed_grants_and_sighup_reach_all_workers(served: Served) -> None:
    assert served.statuses(3, "changed") == {200: 3}
    file = served.home / "extensions.yaml"
    before = file.read_bytes()
    grants = {**GRANTS, "changed": _grant(models=["claude-opus-4-5"])}
    file.write_bytes(msgspec.json.encode(grants))
    assert [served.status("changed") for _ in range(6)] == [403] * 6
    file.write_bytes(before)
    log = served.home / "daemon.log"
    log.rename(served.home / "daemon.log.1")
    served.process.send_signal(signal.SIGHUP)

    def reopened() -> bool:
        served.status()
        lines = log.read_text().splitlines() if log.exists() else []
        found = Counter(msgspec.json.decode(line)["message"] for line in lines)
        return found["reloaded"] > WORKERS and found["request"] > WORKERS

    wait_until(reopened, "all processes write to the new file")


def test_metrics_are_sums(served: Served) -> None:
    def requests() -> float:
        name = 'anaphora_daemon_requests_total{app="demo",route="POST /v1/messages",status="200"} '
        page = served.get("/metrics").text
        assert page.count("# TYPE anaphora_daemon_requests_total") == 1
        return sum(float(line[len(name) :]) for line in page.splitlines() if line.startswith(name))

    before = requests()
    for _ in range(8):
        assert served.status() == 200
    wait_until(lambda: requests() == before + 8, "all calls are counted")
    assert served.get("/readyz").json()["status"] == "ready"


def test_pages_and_explanations_are_of_one_daemon(served: Served) -> None:
    with served.client() as client:
        reply = client.messages.with_raw_response.create(**MESSAGE)
    request_id = reply.headers["anaphora-request-id"]

    def explained() -> Any:
        return served.rpc("demo", "llm.explain", request_id=request_id)

    wait_until(explained, "the call is recorded")
    assert [explained()["request_id"] for _ in range(6)] == [request_id] * 6
    with httpx.Client(base_url=served.url, timeout=PATIENCE, verify=NO_TLS) as http:
        viewer = Viewer(http)
        viewer.log_in(served.token(ADMIN))
        for path in ("/ui", "/ui/apps", "/ui/audit", "/ui/conversations"):
            assert http.get(path).status_code == 200


def test_commands_use_the_socket(served: Served) -> None:
    assert '"demo"' in served.command("apps", "list", "--json")


def test_cancel_reaches_calls_of_all_workers(served: Served, provider: HeldProvider) -> None:
    provider.hold()
    params = {"model": MESSAGE["model"], "messages": MESSAGE["messages"], "max_tokens": 1000}
    with ThreadPoolExecutor(1) as threads:
        for number in range(6):  # over new connections, to any worker
            provider.hold()
            running = threads.submit(served.rpc_answer, "demo", "llm.complete", number, **params)
            provider.wait_asked()
            other = served.rpc("changed", "llm.cancel", id=number)
            assert other == {"cancelled": False}  # of another app
            assert served.rpc("demo", "llm.cancel", id=number) == {"cancelled": True}
            assert running.result(PATIENCE)["error"]["data"]["kind"] == "cancelled"
            provider.go_on()
    assert served.rpc("demo", "llm.cancel", id=0) == {"cancelled": False}


@pytest.mark.long
def test_hold_of_a_caller_that_has_left_is_released(served: Served) -> None:
    """It leaves while the process of the store does not answer."""
    path = served.home / "store.sqlite"
    count = "SELECT COUNT(*) FROM entries WHERE app = 'left' AND kind = 'free'"

    def released() -> bool:
        os.kill(served.process.pid, signal.SIGSTOP)
        try:
            with served.client("left").with_options(timeout=0.5) as client:
                client.messages.create(**MESSAGE)
        except anthropic.APIConnectionError:
            pass
        finally:
            os.kill(served.process.pid, signal.SIGCONT)
        wait_until(lambda: rows(path, "SELECT COUNT(*) FROM holds") == [(0,)], "no hold is left")
        return rows(path, count) != [(0,)]

    wait_until(released, "a hold was taken, and released")
    assert served.status("left") == 200


def test_killed_worker_is_started_again_and_its_calls_are_recovered(
    served: Served, provider: HeldProvider
) -> None:
    provider.hold()
    with ThreadPoolExecutor(2) as threads, served.client() as client:
        call = client.messages.with_raw_response.create
        running = threads.submit(lambda: call(**MESSAGE))
        provider.wait_asked()
        before = served.workers()
        for process in before:
            os.kill(process, signal.SIGKILL)
        assert isinstance(running.exception(PATIENCE), anthropic.APIConnectionError)
    provider.go_on()
    wait_until(lambda: len(set(served.workers()) - set(before)) == WORKERS, "others are started")
    wait_until(lambda: _answers(served), "they answer")
    path = served.home / "store.sqlite"
    bound = "SELECT request_id FROM entries WHERE kind = 'bound'"
    ((request_id,),) = wait_until(lambda: rows(path, bound), "the hold is settled")

    def recovered() -> bool:
        found = [call for _, call in calls(served.home / "audit") if call.call_id == request_id]
        return [call.outcome for call in found] == ["interrupted"]

    wait_until(recovered, "its row is written")


def _answers(served: Served) -> bool:
    try:
        return served.status() == 200
    except anthropic.APIConnectionError:
        return False


@pytest.mark.long
def test_workers_end_with_their_daemon_and_drain_with_it(
    tmp_path: Path, provider: HeldProvider
) -> None:
    provider.reset()
    home, tokens = _create(tmp_path / "home", provider)
    killed = Served(home, tokens)
    workers = killed.workers()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(killed.status)
        provider.wait_asked()
        killed.process.kill()
        killed.process.wait()
        assert isinstance(running.exception(PATIENCE), anthropic.APIConnectionError)
    wait_until(lambda: not any(map(_runs, workers)), "the workers have ended")
    served = Served(home, tokens)
    assert rows(home / "store.sqlite", "SELECT kind FROM entries") == [("bound",)]
    with served.client() as client, client.messages.create(**MESSAGE, stream=True) as stream:
        events = iter(stream)
        next(events)
        served.process.terminate()
        wait_until(_refuses(served), "new connections are refused")
        provider.go_on()
        assert [event.type for event in events][-1] == "message_stop"
    assert served.process.wait(PATIENCE) == 0
    kinds = rows(home / "store.sqlite", "SELECT kind FROM entries ORDER BY settled_at")
    assert kinds == [("bound",), ("billed",)]


@pytest.mark.long
def test_worker_that_does_nothing_is_replaced(tmp_path: Path, provider: HeldProvider) -> None:
    provider.reset()
    provider.go_on()
    served = Served(*_create(tmp_path / "home", provider))
    stopped = served.workers()[0]
    os.kill(stopped, signal.SIGSTOP)
    wait_until(lambda: len(set(served.workers()) - {stopped}) == WORKERS, "another is started")
    assert served.stop() == 0
    assert "has done nothing" in (served.home / "daemon.log").read_text()


@pytest.mark.long
def test_signal_while_it_starts_ends_all_processes(tmp_path: Path, provider: HeldProvider) -> None:
    home, tokens = _create(tmp_path / "home", provider)
    for workers in range(1, WORKERS + 1):  # that are running when the signal arrives
        starting = Served(home, tokens, wait=False)
        found = wait_until(partial(_some_workers, starting, workers), "they are started")
        starting.process.terminate()
        starting.process.communicate(timeout=PATIENCE)
        assert not any(map(_runs, found))
    served = Served(home, tokens)
    second = Served(home, tokens, wait=False)
    _, output = second.process.communicate(timeout=PATIENCE)
    assert b"a daemon is running on" in output
    assert served.status() in (200, 429)
    assert served.stop() == 0


def _some_workers(served: Served, least: int) -> list[int]:
    found = served.workers()
    return found if len(found) >= least else []


def _runs(process: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _refuses(served: Served) -> Callable[[], bool]:
    def refuses() -> bool:
        try:
            httpx.get(f"{served.url}/healthz", timeout=PATIENCE, verify=NO_TLS)
        except httpx.ConnectError:
            return True
        return False

    return refuses
