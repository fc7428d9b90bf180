"""Groups, budgets and reservations in SQLite: read and changed in the transaction of a batch."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

from anaphora.errors import GrantExceeded
from anaphora.sqlite_files import numbered

from . import Hold
from .budgets import (
    BUDGET,
    AccountBalances,
    Balances,
    CarvedBudget,
    Further,
    ReservationRequest,
    SpendLevel,
    accounts_of,
    budget_refusal,
    refusal,
)
from .reading import day_of, month_of
from .schema import HoldRow
from .tables import ADD_BUDGET, END_ORPHAN, budget_values

_LISTED = "IN (SELECT value FROM json_each({}))"
_RESERVATIONS = (
    "SELECT account, expires, budget, nano_usd FROM reservations"
    f" WHERE account {_LISTED.format('?')} AND expires > ?"
)
#: Of budgets all days.
_BALANCES = (
    f"SELECT app, period, spent, held FROM balances WHERE app {_LISTED.format('$1')}"
    f" AND period {_LISTED.format('$2')} UNION ALL"
    f" SELECT app, period, spent, held FROM balances WHERE app {_LISTED.format('$3')}"
)
_CHARGE = (
    "INSERT INTO balances (app, period, spent, held) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (app, period) DO UPDATE"
    " SET spent = spent + excluded.spent, held = held + excluded.held"
)


def carved_until(database: sqlite3.Connection) -> dict[str, float]:
    """Until when something is reserved out of the limits of each account."""
    sql = "SELECT account, max(expires) FROM reservations GROUP BY account"
    return dict(database.execute(sql))


def charge(database: sqlite3.Connection, further: Further) -> None:
    if further:
        database.executemany(_CHARGE, [(*key, *amounts) for key, amounts in further.items()])


def set_accounts(database: sqlite3.Connection, table: str, row: HoldRow) -> None:
    """Sets the further accounts of a new hold or entry."""
    database.execute(f"UPDATE {table} SET accounts = ? WHERE id = ?", (row.accounts, row.id))


def accounts_at(
    database: sqlite3.Connection, names: Iterable[str], periods: Iterable[str], since: float
) -> AccountBalances:
    """The accounts with these names, and the budgets that are reserved out of them."""
    wanted = set(names)
    rows = database.execute(_RESERVATIONS, (_json(wanted), since))
    reservations = [CarvedBudget(*row) for row in rows]
    wanted.update(BUDGET + one.budget for one in reservations)
    balances: Balances = {}
    budgets = {name for name in wanted if name.startswith(BUDGET)}
    values = numbered(_json(wanted - budgets), _json(set(periods)), _json(budgets))
    for account, period, spent, held in database.execute(_BALANCES, values):
        balances.setdefault(account, {})[period] = [spent, held]
    return AccountBalances(balances, reservations)


def read_accounts(
    database: sqlite3.Connection, holds: Sequence[Hold], days: Sequence[str]
) -> AccountBalances:
    """The accounts of some holds, each of a day."""
    names = {name for hold in holds for name in accounts_of(hold.group, hold.budgets)}
    names.update(hold.app for hold in holds)
    periods = {*days, *map(month_of, days)}
    return accounts_at(database, names, periods, min(hold.at for hold in holds))


def refused_hold(database: sqlite3.Connection, level: SpendLevel, bound: int) -> GrantExceeded:
    if level.period:
        return refusal(level.name, level.limit, bound, level.ends)
    id = level.account.removeprefix(BUDGET)
    row = database.execute("SELECT expires FROM budgets WHERE id = ?", (id,)).fetchone()
    return budget_refusal(level, bound, row[0] if row else None)


def reserve(database: sqlite3.Connection, wanted: ReservationRequest) -> GrantExceeded | None:
    """Adds a budget with its reservations, after all else in its batch. Returns why it does not
    fit."""
    day = max(day_of(wanted.at), database.execute("SELECT latest_day FROM clock").fetchone()[0])
    ids = database.execute(
        f"SELECT id FROM budgets WHERE reserved AND id {_LISTED.format('?')}",
        (_json(wanted.budgets),),
    )
    carved = wanted.carved({id for (id,) in ids})
    accounts = accounts_at(database, carved, (day, month_of(day)), wanted.at)
    problem = wanted.decided(accounts, carved, day)
    if problem is None:
        database.execute(ADD_BUDGET, numbered(*budget_values(wanted.token)))
        database.executemany(
            "INSERT INTO reservations (account, expires, budget, nano_usd) VALUES (?, ?, ?, ?)",
            wanted.rows(carved),
        )
        database.execute(END_ORPHAN, numbered(wanted.token.id))
    return problem


def _json(values: Iterable[str]) -> str:
    return msgspec.json.encode(list(values)).decode()
