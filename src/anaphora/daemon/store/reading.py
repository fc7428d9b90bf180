"""Sums of a store's entries, for `anaphora spend`."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from anaphora.errors import InvalidRequest

from . import SpendRow

FIELDS = ("app", "provider", "model", "label", "day")
_SUMS = ("calls", "billed", "estimated", "saved", "input", "read", "written", "output")


def held(database: sqlite3.Connection, app: str | None = None) -> int:
    """Nano-dollars of open holds."""
    sum_of = "SELECT COALESCE(SUM(bound), 0) FROM holds WHERE :app IS NULL OR app = :app"
    amount: int = database.execute(sum_of, {"app": app}).fetchone()[0]
    return amount


def spend_rows(
    database: sqlite3.Connection,
    by: Sequence[str],
    *,
    since: str = "",
    until: str = "",
    app: str | None = None,
) -> list[SpendRow]:
    """Sums, grouped by any of `FIELDS`; the days `since` and `until` are included."""
    for name in by:
        if name not in FIELDS:
            raise InvalidRequest(f"{name!r} is none of {', '.join(FIELDS)}", path="by")
    fields = list(dict.fromkeys(by))
    values = {"since": since, "until": until or "9999-12-31", "app": app}
    columns = [*fields, *(f"SUM({name})" for name in _SUMS)]
    group = f"GROUP BY {', '.join(fields)} ORDER BY {', '.join(fields)}" if fields else ""
    rows = database.execute(
        f"SELECT {', '.join(columns)} FROM ({_LABELLED if 'label' in fields else _WHOLE})"
        f" WHERE day BETWEEN :since AND :until AND (:app IS NULL OR app = :app) {group}",
        values,
    )
    names = (*fields, *_SUMS)
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return [SpendRow(**row) for row in found if row["calls"] or row["billed"]]


_WHOLE = "SELECT * FROM sums"
#: The labels' part of each sum, and the rest of it.
_LABELLED = """
SELECT day, app, provider, model, label, calls, billed, 0 AS estimated, 0 AS saved, 0 AS input,
    0 AS read, 0 AS written, 0 AS output
FROM label_sums
UNION ALL
SELECT day, app, provider, model, '', calls,
    billed - COALESCE((
        SELECT SUM(billed) FROM label_sums AS part
        WHERE part.day = sums.day AND part.app = sums.app AND part.provider = sums.provider
            AND part.model = sums.model
    ), 0),
    estimated, saved, 0, 0, 0, 0
FROM sums
"""
