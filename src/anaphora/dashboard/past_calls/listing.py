"""Lists of calls and conversations, from the tables of the latest calls."""

from __future__ import annotations

import sqlite3

from anaphora.dashboard.values import CallQuery, ConversationRow
from anaphora.errors import InvalidRequest

from .log_tail import PlacedRow
from .queries import Row, Selection, single_columns
from .sums import CallTotals

#: Maximum number of calls shown of one conversation, the latest.
_MOST_OF_CONVERSATION = 500
#: Maximum number of calls found by an id, the latest.
_MOST_BY_ID = 1_000
#: Longer texts cannot be part of an id.
_LONGEST_ID = 1_000

_CONDITIONS = {
    "": "",
    "ok": " AND failed = 0",
    "failed": " AND failed > 0",
    "broke": " AND breaks > 0",
}


def call_rows(of: Selection, query: CallQuery) -> list[PlacedRow]:
    """The latest calls first; one more than the limit if there are more."""
    if of.empty:
        return []
    condition, values = of.of_calls()
    condition += _CONDITIONS[query.outcome]
    found: list[object] = [*values]
    if query.before is not None:
        condition += " AND (at, seq) < (?, ?)"
        found += _place_of(of.database, query.before)
    if query.text:
        condition += f" AND ({_matching(of, query.text)})"
    return of.database.execute(
        f"SELECT seq, segment, place FROM calls WHERE {condition} ORDER BY at DESC, seq DESC"
        " LIMIT ?",
        (*found, query.limit + 1),
    ).fetchall()


def _place_of(database: sqlite3.Connection, id: str) -> tuple[float, int]:
    if not (id.isascii() and id.isdecimal() and len(id) <= 18):
        raise InvalidRequest(f"{id[:60]!r} is not the id of a call", path="before")
    row = database.execute("SELECT at FROM calls WHERE seq = ?", (int(id),)).fetchone()
    if row is None:
        raise InvalidRequest(f"the call {id} is no longer kept", path="before")
    return row[0], int(id)


def _matching(of: Selection, text: str) -> str:
    """Condition for calls that have a name or id containing the text."""
    wanted = text.casefold()
    parts: list[str] = []
    for kind in ("app", "provider", "model", "cause"):
        ids = [id for id, name in of.names((kind,)).items() if wanted in name.casefold()]
        if ids:
            parts.append(f"{kind} IN ({', '.join(map(str, ids))})")
    if wanted.isprintable() and len(wanted) <= _LONGEST_ID:
        found = of.database.execute(
            "SELECT seq FROM call_ids WHERE instr(ids, ?) ORDER BY seq DESC LIMIT ?",
            (wanted.encode(errors="replace").decode(), _MOST_BY_ID),
        ).fetchall()
        parts.append(f"seq IN ({', '.join(str(seq) for (seq,) in found)})")
    return " OR ".join(parts) or "false"


# ── Conversations ────────────────────────────────────────────────────────────────────────────────


def conversation_rows(of: Selection, limit: int) -> list[ConversationRow]:
    """The latest first."""
    if of.empty:
        return []
    text, values = of.filters()
    found: list[object] = [of.since, of.until, *values]
    if (label := of.ids["label"]) is not None:
        text += (
            " AND EXISTS (SELECT 1 FROM calls WHERE conversation = conversations.id AND label_set"
            " IN (SELECT label_set FROM set_labels WHERE label = ?))"
        )
        found.append(label)
    rows = of.database.execute(
        f"SELECT {_columns(of.masked)} FROM conversations WHERE ended >= ? AND began < ?{text}"
        " ORDER BY ended DESC, id DESC LIMIT ?",
        (*found, limit),
    ).fetchall()
    return [_row(row) for row in rows]


def _columns(masked: bool) -> str:
    names = ", ".join(
        f"(SELECT text FROM names WHERE id = {kind})" for kind in ("app", "provider", "model")
    )
    return f"name, {names}, began, ended, {single_columns(masked)}"


def _row(row: Row) -> ConversationRow:
    name, app, provider, model, began, ended, *figures = row
    return ConversationRow(
        id=name,
        app=app,
        provider=provider,
        model=model,
        began=began,
        ended=ended,
        sums=CallTotals(*figures),
    )


def find_conversation(
    database: sqlite3.Connection, id: str, app: str | None, *, masked: bool
) -> ConversationRow | None:
    query = f"SELECT {_columns(masked)} FROM conversations WHERE name = ?"
    row = database.execute(query, (id,)).fetchone()
    found = None if row is None else _row(row)
    return found if found is None or app is None or found.app == app else None


def conversation_calls(database: sqlite3.Connection, id: str) -> tuple[list[PlacedRow], int]:
    """Its latest calls, the oldest first, and the number of those before them."""
    where = "FROM calls WHERE conversation = (SELECT id FROM conversations WHERE name = ?)"
    rows = database.execute(
        f"SELECT seq, segment, place {where} ORDER BY at DESC, seq DESC LIMIT ?",
        (id, _MOST_OF_CONVERSATION),
    ).fetchall()
    calls = "SELECT calls FROM conversations WHERE name = ?"
    count = database.execute(calls, (id,)).fetchone()[0]
    return rows[::-1], max(count - len(rows), 0)
