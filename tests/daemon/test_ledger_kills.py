"""Daemons that are killed under load lose no settled cent, and exceed no limit."""

from __future__ import annotations

from support.journalled_kills import kill_and_compare
from support.killed_daemons import kill_daemons
from support.ledgers import kill_ledgers, memory_folder


def test_twelve_kills_of_a_daemon_under_load_lose_nothing_and_exceed_no_limit() -> None:
    """The whole daemon on one home: calls, aborted streams, faults of the provider, restarts."""
    with memory_folder() as folder:
        assert kill_daemons(folder, 12, seed=19) > 12


def test_after_eight_kills_the_provider_the_ledger_and_the_audit_log_agree_call_by_call() -> None:
    """A request that the provider got has its entry, and a call that took a hold has one row."""
    with memory_folder() as folder:
        found = kill_and_compare(folder, 8, seed=19)
    assert found.calls >= found.answers > 0
    assert found.rows_from_ledger > 0


def test_ten_kills_of_a_ledger_under_load_lose_nothing_and_exceed_no_limit() -> None:
    """Many more holds and settlements at each kill than a daemon has."""
    with memory_folder() as folder:
        assert kill_ledgers(folder / "store.sqlite", 10, seed=19) > 100
