"""The logs of a fleet on Ray: the same report as in processes, whatever is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

ray = pytest.importorskip("ray")

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

from fleet import compare, write_fleet  # noqa: E402
from support.waiting import PATIENCE, wait_until  # noqa: E402

from anaphora.errors import Io  # noqa: E402
from anaphora.usage.fleet import sources, usage_of_logs  # noqa: E402
from anaphora.usage.fleet.sums import FleetProgress  # noqa: E402

# Ray leaves sockets and files to its own threads.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Four workers on this machine."""
    source = str(Path(__file__).parents[3] / "src")
    # Ray gives up on a busy machine.
    os.environ |= {
        "RAY_agent_register_timeout_ms": str(int(PATIENCE * 1000)),
        "RAY_raylet_start_wait_time_s": str(int(PATIENCE)),
    }
    for last in (False, False, True):
        try:
            ray.init(
                num_cpus=4,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=200 * 1024 * 1024,
                runtime_env={"env_vars": {"PYTHONPATH": source}},
            )
            break
        except Exception:  # Ray has no class for it: it waits 30 s for a node, however busy
            ray.shutdown()
            if last:
                raise
    yield
    ray.shutdown()


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SLICE_BYTES", 1 << 20)
    monkeypatch.setattr("anaphora.usage.fleet._BUCKET_BYTES", 1 << 19)


def test_ray_finds_what_processes_find(cluster: None, small_slices: None, tmp_path: Path) -> None:
    planted = write_fleet(tmp_path, 600)
    out = tmp_path / "rows.parquet"
    logs = [f"{tmp_path}/*.jsonl"]
    here = usage_of_logs(logs, now=0, processes=1)
    there = usage_of_logs(logs, now=0, on="ray", out=str(out))
    assert msgspec.json.encode(here) == msgspec.json.encode(there)
    assert compare(planted, out) == (1.0, 0)


def test_errors_of_tasks_are_named(cluster: None, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl.gz").write_bytes(b"\x1f\x8bno")
    with pytest.raises(Io, match=r"log\.jsonl\.gz: the file is cut off or damaged"):
        usage_of_logs([str(tmp_path)], on="ray")


@pytest.mark.soak
def test_a_killed_worker_changes_nothing(cluster: None, small_slices: None, tmp_path: Path) -> None:
    """One of four workers is killed while slices are read, another while partitions are judged."""
    planted = write_fleet(tmp_path, 4000)
    out = tmp_path / "rows.parquet"
    logs = [f"{tmp_path}/*.jsonl"]
    here = usage_of_logs(logs, now=0, processes=1)
    killed: list[int] = []

    def kill_one(state: FleetProgress) -> None:
        if (state.read == 3 and not killed) or (state.judged == 2 and len(killed) == 1):
            killed.append(_busy_worker())
            os.kill(killed[-1], signal.SIGKILL)

    there = usage_of_logs(logs, now=0, on="ray", out=str(out), progress=kill_one)
    assert len(set(killed)) == 2
    assert msgspec.json.encode(here) == msgspec.json.encode(there)
    assert compare(planted, out) == (1.0, 0)


def _busy_worker() -> int:
    """A process that runs one of our tasks now."""

    def look() -> Any:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    title = (entry / "cmdline").read_bytes()
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue
                if title.startswith((b"ray::ray_judge", b"ray::ray_runs")) and _is_ours(parent):
                    return int(entry.name)
        return None

    return int(wait_until(look, "a worker is busy"))


def _is_ours(pid: int) -> bool:
    """Whether a process is a raylet that this test started."""
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False
