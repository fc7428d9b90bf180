"""Groups and budgets in SQLite: read and changed in the transaction of a batch."""

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
    Further,
    SpendLevel,
    accounts_of,
    budget_refusal,
    refusal,
)
from .reading import month_of
from .schema import HoldRow

_LISTED = "IN (SELECT value FROM json_each({}))"
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


def charge(database: sqlite3.Connection, further: Further) -> None:
    if further:
        database.executemany(_CHARGE, [(*key, *amounts) for key, amounts in further.items()])


def set_accounts(database: sqlite3.Connection, table: str, row: HoldRow) -> None:
    """Sets the further accounts of a new hold or entry."""
    database.execute(f"UPDATE {table} SET accounts = ? WHERE id = ?", (row.accounts, row.id))


def read_accounts(
    database: sqlite3.Connection, holds: Sequence[Hold], days: Sequence[str]
) -> AccountBalances:
    """The accounts of some holds, each of a day."""
    names = {name for hold in holds for name in accounts_of(hold.group, hold.budgets)}
    names.update(hold.app for hold in holds)
    periods = {*days, *map(month_of, days)}
    budgets = {name for name in names if name.startswith(BUDGET)}
    balances: Balances = {}
    values = numbered(_json(names - budgets), _json(periods), _json(budgets))
    for account, period, spent, held in database.execute(_BALANCES, values):
        balances.setdefault(account, {})[period] = [spent, held]
    return AccountBalances(balances)


def refused_hold(database: sqlite3.Connection, level: SpendLevel, bound: int) -> GrantExceeded:
    if level.period:
        return refusal(level.name, level.limit, bound, level.ends)
    id = level.account.removeprefix(BUDGET)
    row = database.execute("SELECT expires FROM budgets WHERE id = ?", (id,)).fetchone()
    return budget_refusal(level, bound, row[0] if row else None)


def _json(values: Iterable[str]) -> str:
    return msgspec.json.encode(list(values)).decode()
