"""Sums of a store's entries, for `anaphora spend` and the dashboard.

Days and months are UTC, so that daylight saving time does not move limits.
"""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.sqlite_files import numbered

from . import EVERYTHING, SettledFigures, SpendQuery, SpendRow, Spent, UnauditedEntry
from .schema import ENTRY_SUMS, sums_of

_SECONDS = 86_400
#: The number of 1970-01-01 in `datetime.date`.
_FIRST_DAY = 719_163


def day_of(at: float) -> str:
    """The UTC date of a time, as `YYYY-MM-DD`."""
    return datetime.date.fromordinal(_FIRST_DAY + int(at // _SECONDS)).isoformat()


def month_of(day: str) -> str:
    """`YYYY-MM`"""
    return day[:7]


def start_of_day(day: str) -> float:
    return _begin(datetime.date.fromisoformat(day))


def end_of_day(day: str) -> float:
    """When the next day begins, in seconds since 1970."""
    return _begin(datetime.date.fromisoformat(day) + datetime.timedelta(1))


def end_of_month(day: str) -> float:
    """When the next month begins."""
    first = datetime.date.fromisoformat(day).replace(day=1)
    return _begin((first + datetime.timedelta(32)).replace(day=1))


def pruning_day(keep_days: float, now: float) -> str:
    """The first day whose entries are kept if those of `keep_days` are: the first of a month, since
    limits are by month, and never later than the first of this one."""
    return day_of(now - keep_days * _SECONDS)[:8] + "01"


def _begin(date: datetime.date) -> float:
    return float((date - datetime.date(1970, 1, 1)).days * _SECONDS)


#: Whether a row of `balances` is an app's: others have a prefix (`budgets`).
IS_APP = "app NOT LIKE '%:%'"
FIELDS = ("group", "app", "provider", "model", "label", "budget", "day")
#: The last possible day in a store.
LAST_DAY = "9999-12-31"
SUMS = (
    "calls", "billed", "estimated", "saved", "input", "read", "written", "output", "corrected",
)  # fmt: skip


def held(database: sqlite3.Connection, of: SpendQuery = EVERYTHING) -> int:
    """Nano-dollars of open holds."""
    amount: int = database.execute(HELD, numbered(of.app)).fetchone()[0]
    return amount


def spent_rows(database: sqlite3.Connection, day: str) -> dict[str, Spent]:
    """The spend of each app on a day and in its month, and its holds."""
    month = month_of(day)
    found: dict[str, Spent] = {}
    settled = f"SELECT app, period, spent FROM balances WHERE period IN (?, ?) AND {IS_APP}"
    for app, period, amount in database.execute(settled, (day, month)):
        before = found.get(app) or Spent(day=day)
        change = {"today": amount} if period == day else {"month": amount}
        found[app] = msgspec.structs.replace(before, **change)
    for app, amount in database.execute("SELECT app, SUM(bound) FROM holds GROUP BY app"):
        found[app] = msgspec.structs.replace(found.get(app) or Spent(day=day), held=amount)
    return found


def group_rows(database: sqlite3.Connection, day: str) -> dict[str, Spent]:
    """The same of each group with limits; its holds are those of the day."""
    return group_rows_of(day, database.execute(GROUPS, numbered(day, month_of(day))))


def group_rows_of(day: str, rows: Iterable[Sequence[Any]]) -> dict[str, Spent]:
    """Converts the rows of `GROUPS`."""
    found: dict[str, Spent] = {}
    for account, period, spent, held in rows:
        group = account.partition(":")[2]
        change = {"today": spent, "held": held} if period == day else {"month": spent}
        found[group] = msgspec.structs.replace(found.get(group) or Spent(day=day), **change)
    return found


#: Balances of groups. Names of apps have no colon, which `;` follows.
GROUPS = (
    "SELECT app, period, spent, held FROM balances"
    " WHERE app >= 'group:' AND app < 'group;' AND period IN ($1, $2)"
)


#: The narrowed token that made the call of an entry: the last of its accounts, which are like
#: `["group:one","budget:tok_0123456789ab"]`. Ids of tokens have 16 characters.
_BUDGET = (
    "CASE WHEN entries.accounts LIKE '%\"budget:%'"
    " THEN substr(entries.accounts, length(entries.accounts) - 17, 16) ELSE '' END"
)
COMPUTED = {
    "budget": _BUDGET,
    "budget_label": f"COALESCE((SELECT label FROM budgets WHERE budgets.id = {_BUDGET}), '')",
}
"""What follows from an entry and other tables, by the name of the field."""

#: Fields of an entry from which an audit row is made, and their columns.
AUDITED_FIELDS = ("app", "provider", "model", "at", *SettledFigures.__struct_fields__, *COMPUTED)
AUDITED_COLUMNS = ", ".join(COMPUTED.get(name, f"entries.{name}") for name in AUDITED_FIELDS)


def unaudited_entries(database: sqlite3.Connection) -> list[UnauditedEntry]:
    """Entries whose call may have no audit row."""
    rows = database.execute(
        f"SELECT mark.request_id, mark.interrupted, mark.epoch, {AUDITED_COLUMNS}"
        " FROM unaudited AS mark CROSS JOIN entries ON entries.id = mark.hold ORDER BY mark.hold"
    )
    return [
        UnauditedEntry(
            request_id=id,
            interrupted=bool(interrupted),
            epoch=epoch,
            **dict(zip(AUDITED_FIELDS, entry, strict=True)),
        )
        for id, interrupted, epoch, *entry in rows
    ]


def checked_fields(by: Sequence[str]) -> list[str]:
    """The fields without duplicates. Raises `InvalidRequest` for a field not in `FIELDS`."""
    for name in by:
        if name not in FIELDS:
            raise InvalidRequest(f"{name!r} is none of {', '.join(FIELDS)}", path="by")
    if {"label", "budget"} <= set(by):
        raise InvalidRequest("label and budget cannot be combined", path="by")
    return list(dict.fromkeys(by))


def spend_rows(
    database: sqlite3.Connection, by: Sequence[str], of: SpendQuery = EVERYTHING
) -> list[SpendRow]:
    """Sums grouped by any of `FIELDS`."""
    sql = spend_query(by)
    return spend_rows_of(by, of, database.execute(sql, numbered(*spend_values(of))))


def spend_query(by: Sequence[str]) -> str:
    """A query for both stores, with values of `spend_values`. Raises `InvalidRequest` for a field
    not in `FIELDS`."""
    names = _columns(by)
    part = _BY_BUDGET if "budget" in names else _LABELLED if "label" in names else _WHOLE
    columns = [*names, *(f"CAST(SUM({name}) AS bigint)" for name in SUMS)]
    group = f"GROUP BY {', '.join(names)} ORDER BY {', '.join(names)}" if names else ""
    return (
        f"SELECT {', '.join(columns)} FROM ({part}) AS part"
        " WHERE day BETWEEN $1 AND $2 AND (CAST($3 AS text) IS NULL OR app = CAST($3 AS text))"
        f" {group}"
    )


def _columns(by: Sequence[str]) -> list[str]:
    """The columns to group by. The group of an app is not in the store: it follows from the app."""
    fields = _with_label(checked_fields(by))
    return list(dict.fromkeys("app" if name == "group" else name for name in fields))


def _with_label(fields: Sequence[str]) -> list[str]:
    return [*fields, *(["budget_label"] if "budget" in fields else [])]


def spend_values(of: SpendQuery) -> tuple[str | None, ...]:
    return of.since, of.until or LAST_DAY, of.app


def spend_rows_of(
    by: Sequence[str], of: SpendQuery, rows: Iterable[Sequence[Any]]
) -> list[SpendRow]:
    """Converts the rows of `spend_query`."""
    columns, fields = _columns(by), _with_label(checked_fields(by))
    found: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        values = dict(zip(columns, row[: len(columns)], strict=True))
        values["group"] = of.groups.get(values.get("app", ""), "")
        sums = found.setdefault(tuple(values[name] for name in fields), [0] * len(SUMS))
        for at, figure in enumerate(row[len(columns) :]):
            sums[at] += int(figure or 0)
    made = [_spend_row((*fields, *SUMS), (*key, *found[key])) for key in sorted(found)]
    return [row for row in made if row.calls or row.billed or row.corrected]


def hour_rows(
    database: sqlite3.Connection, day: str, of: SpendQuery = EVERYTHING
) -> dict[float, SpendRow]:
    """The sums of a day by the beginning of each hour, from its entries."""
    return hour_rows_of(database.execute(HOURS, numbered(day, of.app)))


def hour_rows_of(rows: Iterable[Sequence[Any]]) -> dict[float, SpendRow]:
    """Converts the rows of `HOURS`."""
    return {hour * 3_600.0: _spend_row(SUMS, [*map(int, sums)]) for hour, *sums in rows}


def _spend_row(names: Sequence[str], values: Sequence[Any]) -> SpendRow:
    return SpendRow(**dict(zip(names, values, strict=True)))


# ── SQL of both stores ────────────────────────────────────────────────────────────────────────────

_WHOLE = "SELECT * FROM sums"
#: The labels' part of each sum, and the rest.
_LABELLED = """
SELECT day, app, provider, model, label, calls, billed, 0 AS estimated, 0 AS saved,
    0 AS input, 0 AS read, 0 AS written, 0 AS output, 0 AS corrected
FROM label_sums
UNION ALL
SELECT day, app, provider, model, '', calls,
    billed - COALESCE((
        SELECT SUM(billed) FROM label_sums AS part
        WHERE part.day = sums.day AND part.app = sums.app AND part.provider = sums.provider
            AND part.model = sums.model
    ), 0),
    estimated, saved, 0, 0, 0, 0, corrected
FROM sums
"""

_BY_BUDGET = sums_of(
    f"(SELECT entries.*, {COMPUTED['budget']} AS budget,"
    f" {COMPUTED['budget_label']} AS budget_label FROM entries) AS entries",
    "budget", "budget_label",
)  # fmt: skip

HELD = (
    "SELECT CAST(COALESCE(SUM(bound), 0) AS bigint) FROM holds"
    " WHERE CAST($1 AS text) IS NULL OR app = CAST($1 AS text)"
)


#: PostgreSQL rounds to whole numbers, SQLite truncates.
HOURS = (
    "SELECT (CAST(at AS bigint) - CASE WHEN CAST(at AS bigint) > at THEN 1 ELSE 0 END) / 3600 AS"
    f" hour, {ENTRY_SUMS} FROM entries"
    " WHERE day = $1 AND (CAST($2 AS text) IS NULL OR app = CAST($2 AS text))"
    " GROUP BY 1 ORDER BY 1"
)
