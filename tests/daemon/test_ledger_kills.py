"""Daemons that are killed under load lose no settled cent, and exceed no limit."""

from __future__ import annotations

from support.ledgers import kill_ledgers, memory_folder


def test_thirty_kills_under_load_lose_nothing_and_exceed_no_limit() -> None:
    with memory_folder() as folder:
        assert kill_ledgers(folder / "store.sqlite", 30, seed=19) > 300
