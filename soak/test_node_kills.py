"""Three nodes on one PostgreSQL that are killed and paused under load, while PostgreSQL is lost and
clocks jump: no limit is exceeded, no acknowledged settlement is lost or changed, no hold is
left behind."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

from support.ledgers import memory_folder
from support.node_ledgers import LedgerNodes
from support.servers import PostgresServer


def test_three_hundred_kills_of_nodes_under_load() -> None:
    seed = time.time_ns()
    kills = settled = 0
    with PostgresServer() as postgres:
        for part in range(5):
            url = postgres.create_database()
            with memory_folder() as folder:
                nodes = LedgerNodes(folder, postgres, url, seed=seed + part)
                outcome = asyncio.run(nodes.run(60))
            kills, settled = kills + outcome.kills, settled + outcome.settled
            postgres.drop_database(url)
    assert kills >= 300
    print(f"{kills} kills, {settled:,} acknowledged settlements, none lost; seed {seed}")


def test_benchmark_of_nodes_ends_with_its_figures() -> None:
    words = ["--rounds", "1", "--requests", "200", "--seconds", "0.5"]
    bench = Path(__file__).parent.parent / "bench" / "nodes.py"
    run = subprocess.run([sys.executable, bench, *words], stdout=subprocess.PIPE, check=True)
    found = json.loads(run.stdout.splitlines()[-1])
    assert list(found)[:3] == ["cpu_vs_no_ledger", "three_vs_one", "hold_p99_ms"]
