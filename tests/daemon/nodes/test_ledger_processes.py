"""The ledger of three nodes on one PostgreSQL, whatever happens to them: no limit is exceeded, no
acknowledged settlement is lost or changed, no hold is left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.ledgers import an_app, memory_folder
from support.node_ledgers import LedgerNodes
from support.servers import PostgresServer
from support.waiting import until

from anaphora.daemon.money.ledger import Ledger
from anaphora.daemon.store import Spent
from anaphora.daemon.store.postgres import PostgresStore
from anaphora.postgres.address import PostgresAddress


def test_twelve_kills_of_nodes_under_load(
    postgres_server: PostgresServer, database_url: str
) -> None:
    """Kills, pauses, restarts of PostgreSQL, skewed clocks, midnights and ends of
    months, in an order that is drawn."""
    with memory_folder() as folder:
        nodes = LedgerNodes(folder, postgres_server, database_url, seed=21)
        outcome = asyncio.run(nodes.run(12))
    assert outcome.kills >= 12
    assert outcome.woken == 2
    assert outcome.pauses == outcome.postgres_losses == 3
    assert outcome.days > 3
    # Limits were reached, PostgreSQL was missed, nodes were swept, and much was settled.
    assert min(outcome.refused, outcome.unavailable, outcome.at_bound) > 0
    assert outcome.settled > 150


def test_large_batches_cost_in_proportion_to_their_size(database_url: str, tmp_path: Path) -> None:
    """All calls that were under way while PostgreSQL was gone settle together, when it is back."""
    calls = 4000

    async def run() -> Spent:
        address = PostgresAddress.parse(database_url)
        store = await PostgresStore.open(address, node="a", journal=tmp_path / "journal")
        ledger = Ledger(store)
        await ledger.recover()
        facts = {"provider": "p", "model": "m", "request_id": "r"}
        app, holds = an_app("shop", 10**9), []
        for _ in range(20):
            some = (ledger.hold(app, bound=1000, **facts) for _ in range(calls // 20))
            holds += await asyncio.gather(*some)
        for hold in holds:
            hold.settle_later(7, "billed", labels={"rules": 3})

        # On a busy machine a write may take longer than the store waits for it: it is written again.
        async def settled() -> bool:
            return not (await ledger.spent("shop")).held

        await until(settled, "nothing is held")
        spent = await ledger.spent("shop")
        await store.close()
        return spent

    found = asyncio.run(run())
    assert (found.today, found.held) == (7 * calls, 0)
