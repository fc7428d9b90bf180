"""Ledgers and daemons that are killed under load lose no settled cent, and exceed no limit."""

from __future__ import annotations

import time
from pathlib import Path

from support.killed_daemons import kill_daemons
from support.ledgers import kill_ledgers


def test_three_hundred_kills_of_a_ledger_under_load(tmp_path: Path) -> None:
    seed = time.time_ns()
    settled = sum(
        kill_ledgers(tmp_path / f"{part}.sqlite", 60, seed=seed + part) for part in range(5)
    )
    print(f"300 kills, {settled:,} acknowledged settlements, none lost; seed {seed}")


def test_three_hundred_kills_of_a_daemon_under_load(tmp_path: Path) -> None:
    """The whole daemon: calls, aborted streams and faults of the provider, on one home each."""
    seed = time.time_ns()
    answers = 0
    for part in range(5):
        folder = tmp_path / str(part)
        folder.mkdir()
        answers += kill_daemons(folder, 60, seed=seed + part)
    print(f"300 kills, {answers:,} answers, all charged; seed {seed}")
