"""Sums of a store's entries, for `anaphora spend` and the dashboard.

Days and months are UTC, so that a change to summer time moves no limit.
"""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from anaphora.errors import InvalidRequest

from . import SettledFigures, SpendRow, Spent, UnauditedEntry

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


def month_after(day: str) -> str:
    """The first day of the next month."""
    return day_of(end_of_month(day))


def pruning_day(keep_days: float, now: float) -> str:
    """The first day whose entries stay if those of so many days are kept: the first of a month,
    since limits are by month, and never later than the first of this one."""
    return day_of(now - keep_days * _SECONDS)[:8] + "01"


def _begin(date: datetime.date) -> float:
    return float((date - datetime.date(1970, 1, 1)).days * _SECONDS)


FIELDS = ("app", "provider", "model", "label", "day")
#: The last day that a store can have.
LAST_DAY = "9999-12-31"
SUMS = (
    "calls", "billed", "estimated", "saved", "input", "read", "written", "output", "corrected",
)  # fmt: skip


def held(database: sqlite3.Connection, app: str | None = None) -> int:
    """Nano-dollars of open holds."""
    sum_of = "SELECT COALESCE(SUM(bound), 0) FROM holds WHERE :app IS NULL OR app = :app"
    amount: int = database.execute(sum_of, {"app": app}).fetchone()[0]
    return amount


def spent_rows(database: sqlite3.Connection, day: str) -> dict[str, Spent]:
    """What each app has spent on a day and in its month, and what is held."""
    month = month_of(day)
    found: dict[str, Spent] = {}
    settled = "SELECT app, period, spent FROM balances WHERE period IN (?, ?)"
    for app, period, amount in database.execute(settled, (day, month)):
        before = found.get(app) or Spent(day=day)
        change = {"today": amount} if period == day else {"month": amount}
        found[app] = msgspec.structs.replace(before, **change)
    for app, amount in database.execute("SELECT app, SUM(bound) FROM holds GROUP BY app"):
        found[app] = msgspec.structs.replace(found.get(app) or Spent(day=day), held=amount)
    return found


#: Fields of an entry that an audit row is made of.
AUDITED_FIELDS = ("app", "provider", "model", "at", *SettledFigures.__struct_fields__)


def unaudited_entries(database: sqlite3.Connection) -> list[UnauditedEntry]:
    """Entries whose call may have no audit row."""
    fields = ", ".join(f"entries.{name}" for name in AUDITED_FIELDS)
    rows = database.execute(
        f"SELECT mark.request_id, mark.interrupted, mark.epoch, {fields}"
        " FROM unaudited AS mark CROSS JOIN entries ON entries.id = mark.hold ORDER BY mark.hold"
    )
    return [
        UnauditedEntry(
            request_id=id,
            interrupted=bool(interrupted),
            node="",
            epoch=epoch,
            **dict(zip(AUDITED_FIELDS, entry, strict=True)),
        )
        for id, interrupted, epoch, *entry in rows
    ]


def checked_fields(by: Sequence[str]) -> list[str]:
    """Without duplicates. Raises `InvalidRequest` for a field that is none of `FIELDS`."""
    for name in by:
        if name not in FIELDS:
            raise InvalidRequest(f"{name!r} is none of {', '.join(FIELDS)}", path="by")
    return list(dict.fromkeys(by))


def spend_rows(
    database: sqlite3.Connection,
    by: Sequence[str],
    *,
    since: str = "",
    until: str = "",
    app: str | None = None,
) -> list[SpendRow]:
    """Sums, grouped by any of `FIELDS`; the days `since` and `until` are included."""
    sql = spend_query(by).replace("$", "?")
    return spend_rows_of(by, database.execute(sql, (since, until or LAST_DAY, app)))


def spend_query(by: Sequence[str]) -> str:
    """In the SQL of both stores. `$1` and `$2` are the days, `$3` the app or NULL. Raises
    `InvalidRequest` for a field that is none of `FIELDS`."""
    fields = checked_fields(by)
    columns = [*fields, *(f"CAST(SUM({name}) AS bigint)" for name in SUMS)]
    group = f"GROUP BY {', '.join(fields)} ORDER BY {', '.join(fields)}" if fields else ""
    return (
        f"SELECT {', '.join(columns)} FROM ({LABELLED if 'label' in fields else WHOLE}) AS part"
        " WHERE day BETWEEN $1 AND $2 AND (CAST($3 AS text) IS NULL OR app = CAST($3 AS text))"
        f" {group}"
    )


def spend_rows_of(by: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[SpendRow]:
    """Of the rows of `spend_query`."""
    names = (*checked_fields(by), *SUMS)
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return [SpendRow(**row) for row in found if row["calls"] or row["billed"] or row["corrected"]]


#: The sums, in the SQL of both stores.
WHOLE = "SELECT * FROM sums"
#: The labels' part of each sum, and the rest of it.
LABELLED = """
SELECT day, app, provider, model, label, calls, billed, 0 AS estimated, 0 AS saved, 0 AS input,
    0 AS read, 0 AS written, 0 AS output, 0 AS corrected
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
