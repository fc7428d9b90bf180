"""300 daemons' ledgers, killed under load, lose no settled cent and exceed no limit."""

from __future__ import annotations

import time
from pathlib import Path

from support.ledgers import kill_ledgers


def test_three_hundred_kills_of_a_ledger_under_load(tmp_path: Path) -> None:
    seed = time.time_ns()
    settled = sum(
        kill_ledgers(tmp_path / f"{part}.sqlite", 60, seed=seed + part) for part in range(5)
    )
    print(f"300 kills, {settled:,} acknowledged settlements, none lost; seed {seed}")
