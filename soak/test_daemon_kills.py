"""300 daemons, killed under load: the provider's own journal, the ledger and the audit log agree call by
call, with both stores."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.journalled_kills import kill_and_compare
from support.servers import PostgresServer

#: Of each kind of store; fewer for a first look: ANAPHORA_KILLS=30.
KILLS = int(os.environ.get("ANAPHORA_KILLS", "300"))


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_every_call_is_charged_by_what_was_sent_and_has_one_row(store: str, tmp_path: Path) -> None:
    seed = time.time_ns()
    with PostgresServer() if store == "postgres" else nullcontext() as server:
        url = None if server is None else server.create_database()
        found = kill_and_compare(tmp_path, KILLS, seed=seed, store=url)
    print(f"{store}: {KILLS} kills, {found}; seed {seed}")
    assert found.unsent > 0
    assert found.charged_unseen <= 1 + KILLS // 100
