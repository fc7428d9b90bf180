"""Entries one by one, and corrections of their amounts, in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anaphora.daemon.store import CorrectedEntry, Entry, EntryQuery
from anaphora.daemon.store.corrections import (
    ENTRY_FIELDS,
    INSERTED,
    Correction,
    NewCorrection,
    decided,
    find_earlier,
    find_entry,
    list_entries,
    not_found,
)

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection
    from anaphora.postgres.lane import Lane

_FIELDS = ", ".join("labels::text" if name == "labels" else name for name in ENTRY_FIELDS)

#: As `ledger_write` does: whoever changes entries of an app and a day has locked their balances.
_LOCK = """
SELECT 1 FROM balances WHERE app = $1 AND period IN ($2, left($2, 7))
ORDER BY app, period FOR NO KEY UPDATE
"""
_INSERT = f"""
INSERT INTO entries ({", ".join(INSERTED)}, node)
SELECT {", ".join(f"${number}" for number in range(1, len(INSERTED) + 1))}, node
FROM entries WHERE id = ${INSERTED.index("corrects") + 1}
"""
_CHARGE = "UPDATE balances SET spent = spent + $1 WHERE app = $2 AND period = ANY ($3)"
_SUM = """
UPDATE sums SET billed = billed + $1, estimated = estimated - $2, corrected = corrected + $1
WHERE day = $3 AND app = $4 AND provider = $5 AND model = $6
"""
_SUM_LABEL = """
UPDATE label_sums SET billed = billed + $1
WHERE day = $2 AND app = $3 AND provider = $4 AND model = $5 AND label = $6
"""


async def entry_rows(lane: Lane, query: EntryQuery) -> list[Entry]:
    sql, values = list_entries(query, _FIELDS, "$")
    return [Entry(*row) for row in await lane.fetch(sql, *values)]


async def book(lane: Lane, wanted: Correction) -> CorrectedEntry:
    """Durable when it returns. Raises `InvalidRequest`."""
    async with lane.transaction() as connection:
        return await _book(connection, wanted)


async def _book(connection: Connection, wanted: Correction) -> CorrectedEntry:
    place = await connection.fetchrow("SELECT app, day FROM entries WHERE id = $1", wanted.entry)
    if place is None:
        held = await connection.fetchval("SELECT 1 FROM holds WHERE id = $1", wanted.entry)
        raise not_found(wanted.entry, held=held is not None)
    await connection.execute(_LOCK, *place)
    row = await connection.fetchrow(find_entry(_FIELDS, "$1"), wanted.entry)
    if row is None:  # pruned meanwhile
        raise not_found(wanted.entry, held=False)
    earlier = await connection.fetch(find_earlier(_FIELDS, "$1"), wanted.entry)
    done, new = decided(wanted, Entry(*row), [Entry(*each) for each in earlier])
    if new is not None:
        await _write(connection, new)
    return done


async def _write(connection: Connection, new: NewCorrection) -> None:
    await connection.execute(_INSERT, *new.values)
    await connection.execute(_CHARGE, new.added, new.entry.app, list(new.periods))
    await connection.execute(_SUM, new.added, new.confirmed, *new.key)
    for label, change in sorted(new.labels.items()):
        await connection.execute(_SUM_LABEL, change, *new.key, label)
