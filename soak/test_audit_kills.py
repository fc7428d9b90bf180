"""300 writers of an audit log, killed at random moments, lose nothing that was committed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.audit_logs import BACKENDS, kill_writers
from support.postgres_logs import kill_chain_writers, postgres_log
from support.servers import PostgresServer

KILLED_NODES = 60


@pytest.mark.parametrize("name", BACKENDS)
def test_three_hundred_kills_lose_no_committed_row(name: str, tmp_path: Path) -> None:
    seed = time.time_ns()
    torn = sum(kill_writers(tmp_path / str(part) / name, 50, seed=seed + part) for part in range(6))
    print(f"{name}: 300 kills, {torn} of them inside a row; seed {seed}")


def test_killed_nodes_lose_no_committed_row_in_postgresql() -> None:
    with PostgresServer() as server, postgres_log(server) as (log, url):
        kill_chain_writers(log, url, KILLED_NODES)
