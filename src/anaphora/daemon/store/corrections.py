"""Lists single entries of the ledger and corrects their amounts.

A correction is a separate entry: it adds the difference to the call's actual cost, on the day of
the corrected entry. A later one replaces it by adding the difference between the two. Nothing is
edited. A corrected entry accepts no late bill.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.sqlite_files import numbered

from . import ESTIMATED_KINDS, LARGEST_AMOUNT, CorrectedEntry, Entry, EntryQuery
from .budgets import decoded_accounts, further_periods
from .reading import COMPUTED, month_of

#: The columns of an entry, in the order of `Entry`.
ENTRY_FIELDS = [COMPUTED.get(name, name) for name in Entry.__struct_fields__]
#: The columns that a correction writes, in this order.
INSERTED = (
    "id", "app", "provider", "model", "request_id", "day", "at", "bound", "settled_at", "billed",
    "kind", "input", "read", "written", "output", "saved", "read_by_others", "labels", "corrects",
    "confirmed", "reason", "accounts",
)  # fmt: skip
#: The corrections of an entry: their ids are its id, a dot and a number.
_EARLIER = "id > $1 || '.' AND id < $1 || '/' ORDER BY id"
_MOST = 9_999


class Correction(msgspec.Struct, kw_only=True, eq=False):
    """A requested correction."""

    entry: str
    amount: int
    """The actual cost of the call in nano-dollars."""
    reason: str
    at: float
    done: CorrectedEntry | None = None
    """Set by the store."""


class NewCorrection(msgspec.Struct, frozen=True, kw_only=True):
    """A correction as a row."""

    id: str
    entry: Entry
    at: float
    added: int
    """Nano-dollars; negative if the call cost less."""
    confirmed: int
    labels: Mapping[str, int]
    reason: str

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of `INSERTED`."""
        entry = self.entry
        return (
            self.id, entry.app, entry.provider, entry.model, entry.request_id, entry.day, entry.at,
            0, self.at, self.added, "correction", 0, 0, 0, 0, 0, 0,
            msgspec.json.encode(self.labels).decode(), entry.id, self.confirmed, self.reason,
            entry.accounts,
        )  # fmt: skip

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The key in the tables of sums."""
        return self.entry.day, self.entry.app, self.entry.provider, self.entry.model

    @property
    def balances(self) -> tuple[tuple[str, str], ...]:
        """The accounts and periods in which it counts."""
        app, day = self.entry.app, self.entry.day
        further = further_periods(decoded_accounts(self.entry.accounts), day)
        return ((app, day), (app, month_of(day)), *further)


def decided(
    wanted: Correction, entry: Entry, earlier: Sequence[Entry]
) -> tuple[CorrectedEntry, NewCorrection | None]:
    """The correction to write; None if the latest one already has this amount. Called within a
    transaction, so that the tables do not change meanwhile."""
    if not 0 <= wanted.amount <= LARGEST_AMOUNT:
        reason = f"must be 0 to {LARGEST_AMOUNT:,} nano-dollars, got {wanted.amount:,}"
        raise InvalidRequest(reason, path="usd")
    if entry.kind == "correction":
        raise InvalidRequest(
            f"{entry.id} is a correction itself; correct the entry {entry.corrects}", path="entry"
        )
    before = entry.billed + sum(one.billed for one in earlier)
    done = CorrectedEntry(
        id="" if not earlier else earlier[-1].id,
        entry=entry.id,
        app=entry.app,
        request_id=entry.request_id,
        day=entry.day,
        before=before,
        after=wanted.amount,
        booked=False,
    )
    if earlier and before == wanted.amount and earlier[-1].reason == wanted.reason:
        return done, None
    if len(earlier) >= _MOST:
        raise InvalidRequest(f"{entry.id} was corrected {_MOST:,} times already", path="entry")
    is_first_of_estimate = entry.kind in ESTIMATED_KINDS and not earlier
    new = NewCorrection(
        id=f"{entry.id}.{len(earlier) + 1:04d}",
        entry=entry,
        at=wanted.at,
        added=wanted.amount - before,
        confirmed=entry.billed if is_first_of_estimate else 0,
        labels=_labels(wanted.amount, entry, earlier),
        reason=wanted.reason,
    )
    return msgspec.structs.replace(done, id=new.id, booked=True), new


def _labels(amount: int, entry: Entry, earlier: Sequence[Entry]) -> dict[str, int]:
    """The difference by block label, in proportion to the labels' costs."""
    if not entry.billed:
        return {}
    found: dict[str, int] = {}
    for label, first in entry.label_costs.items():
        before = first + sum(one.label_costs.get(label, 0) for one in earlier)
        if change := first * amount // entry.billed - before:
            found[label] = change
    return found


def not_found(id: str, *, held: bool) -> InvalidRequest:
    if held:
        reason = f"{id} is still open: its call runs, or its settlement is not written yet"
    else:
        reason = (
            f"there is no entry {id}: `anaphora spend entries` lists them; entries that were pruned"
            " cannot be corrected"
        )
    return InvalidRequest(reason, path="entry")


# ── SQL ───────────────────────────────────────────────────────────────────────────────────────────


def find_entry(fields: str) -> str:
    return f"SELECT {fields} FROM entries WHERE id = $1"


def find_earlier(fields: str) -> str:
    return f"SELECT {fields} FROM entries WHERE {_EARLIER}"


def list_entries(query: EntryQuery, fields: str) -> tuple[str, list[Any]]:
    """SQL for the newest entries, and one more than wanted, to know whether there are more."""
    conditions, values = ["id > $1"], [query.first_id]
    if query.before:
        values.append(query.before)
        conditions.append(f"id < ${len(values)}")
    if query.app is not None:
        values.append(query.app)
        conditions.append(f"app = ${len(values)}")
    if query.corrections:
        conditions.append("corrects <> ''")  # as the index says
    sql = (
        f"SELECT {fields} FROM entries WHERE {' AND '.join(conditions)} ORDER BY id DESC"
        f" LIMIT {query.limit + 1}"
    )
    return sql, values


# ── SQLite ────────────────────────────────────────────────────────────────────────────────────────

_FIELDS = ", ".join(ENTRY_FIELDS)
_PARAMETERS = ", ".join("?" * len(INSERTED))
_INSERT = f"INSERT INTO entries ({', '.join(INSERTED)}) VALUES ({_PARAMETERS})"
_CHARGE = "UPDATE balances SET spent = spent + ? WHERE app = ? AND period = ?"
_SUM = (
    "UPDATE sums SET billed = billed + ?, estimated = estimated - ?, corrected = corrected + ?"
    " WHERE day = ? AND app = ? AND provider = ? AND model = ?"
)
_SUM_LABEL = (
    "UPDATE label_sums SET billed = billed + ?"
    " WHERE day = ? AND app = ? AND provider = ? AND model = ? AND label = ?"
)


def entry_rows(database: sqlite3.Connection, query: EntryQuery) -> list[Entry]:
    sql, values = list_entries(query, _FIELDS)
    return [Entry(*row) for row in database.execute(sql, numbered(*values))]


def is_corrected(database: sqlite3.Connection, id: str) -> bool:
    sql = "SELECT EXISTS (SELECT 1 FROM entries WHERE id = ? || '.0001')"
    return bool(database.execute(sql, (id,)).fetchone()[0])


def book(database: sqlite3.Connection, wanted: Correction) -> InvalidRequest | None:
    """Writes a correction within the transaction of a batch. Returns why it was refused."""
    row = database.execute(find_entry(_FIELDS), numbered(wanted.entry)).fetchone()
    if row is None:
        held = database.execute("SELECT 1 FROM holds WHERE id = ?", (wanted.entry,)).fetchone()
        return not_found(wanted.entry, held=held is not None)
    earlier = database.execute(find_earlier(_FIELDS), numbered(wanted.entry)).fetchall()
    try:
        wanted.done, new = decided(wanted, Entry(*row), [Entry(*each) for each in earlier])
    except InvalidRequest as problem:
        return problem
    if new is not None:
        database.execute(_INSERT, new.values)
        for balance in new.balances:
            database.execute(_CHARGE, (new.added, *balance))
        database.execute(_SUM, (new.added, new.confirmed, new.added, *new.key))
        for label, change in new.labels.items():
            database.execute(_SUM_LABEL, (change, *new.key, label))
    return None
