"""Reservations in PostgreSQL: a budget that is carved out of the limits of other accounts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anaphora.daemon.store.budgets import (
    BUDGET,
    AccountBalances,
    Balances,
    CarvedBudget,
    ReservationRequest,
)
from anaphora.daemon.store.reading import day_of, month_of
from anaphora.daemon.store.tables import ADD_BUDGET, END_ORPHAN, budget_values

from .statements import lock_balances

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection
    from anaphora.postgres.lane import Lane

_ADD_BALANCES = """
INSERT INTO balances (app, period)
SELECT * FROM unnest($1::text[], $2::text[]) AS wanted (app, period) ORDER BY 1, 2
ON CONFLICT DO NOTHING
"""
_RESERVATIONS = """
SELECT account, expires, budget, nano_usd FROM reservations
WHERE account = ANY ($1) AND expires > $2
"""
#: Of budgets all days.
_BALANCES = f"""
SELECT app, period, spent, held FROM balances
WHERE app = ANY ($1) AND (app LIKE '{BUDGET}%' OR period = ANY ($2))
"""


async def reserve(lane: Lane, wanted: ReservationRequest) -> None:
    """Adds a budget with its reservations, durable when it returns. Raises `GrantExceeded`."""
    async with lane.transaction() as connection:
        latest = await connection.fetchval("SELECT latest_day FROM clock")
        day = max(day_of(wanted.at), latest)
        ids = await connection.fetch(
            "SELECT id FROM budgets WHERE reserved > 0 AND id = ANY ($1)", list(wanted.budgets)
        )
        carved = wanted.carved({id for (id,) in ids})
        # The order of locks is that of `ledger_write_2`: budgets, then balances.
        await connection.execute(
            "SELECT 1 FROM budgets WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE",
            list(wanted.budgets),
        )
        rows = [
            (account, period)
            for account in carved
            for period in (day, *(() if account.startswith(BUDGET) else (month_of(day),)))
        ]
        names, periods = [app for app, _ in rows], [period for _, period in rows]
        await connection.execute(_ADD_BALANCES, names, periods)
        await lock_balances(connection, rows)
        accounts = await _accounts(connection, carved, periods, wanted.at)
        if (problem := wanted.decided(accounts, carved, day)) is not None:
            raise problem
        await connection.execute(ADD_BUDGET, *budget_values(wanted.token))
        await connection.executemany(
            "INSERT INTO reservations (account, expires, budget, nano_usd) VALUES ($1, $2, $3, $4)",
            wanted.rows(carved),
        )
        await connection.execute(END_ORPHAN, wanted.token.id)


async def _accounts(
    connection: Connection, names: Sequence[str], periods: Sequence[str], at: float
) -> AccountBalances:
    """Some accounts, and the budgets that are reserved out of them."""
    found = [CarvedBudget(*row) for row in await connection.fetch(_RESERVATIONS, list(names), at)]
    wanted = [*names, *(BUDGET + one.budget for one in found)]
    balances: Balances = {}
    for account, period, spent, held in await connection.fetch(_BALANCES, wanted, list(periods)):
        balances.setdefault(account, {})[period] = [spent, held]
    return AccountBalances(balances, found)
