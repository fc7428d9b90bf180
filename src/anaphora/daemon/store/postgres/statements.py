"""The statements of the ledger. A batch of settlements and holds is one call of a function. Also
lists single entries and corrects their amounts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from anaphora.daemon.store import (
    CorrectedEntry,
    Entry,
    EntryQuery,
    IsUnsent,
    RecoveredHolds,
    Settlement,
    UnauditedEntry,
    all_sent,
    interrupted,
    recovered,
)
from anaphora.daemon.store.budgets import (
    BUDGET,
    budget_refusal,
    encoded_accounts,
    further_periods,
    levels,
    refusal,
)
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
from anaphora.daemon.store.operations import HoldRequest
from anaphora.daemon.store.reading import (
    AUDITED_COLUMNS,
    AUDITED_FIELDS,
    day_of,
    month_of,
)
from anaphora.errors import GrantExceeded

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection
    from anaphora.postgres.lane import Lane


#: SQLSTATE of `ledger_write`: the node was declared dead, or has a newer connection.
FENCED = "AN001"

_WRITE = f"SELECT * FROM ledger_write({', '.join(f'${number}' for number in range(1, 26))})"

#: A separate statement: a hold keeps the model that answered even if its settlement is lost.
_ANSWERED = """
UPDATE holds SET model = given.model FROM unnest($1::text[], $2::text[]) AS given (id, model)
WHERE holds.id = given.id
"""

#: The same for entries at their bound, whose sums move with them: they are corrected next. Locks
#: their balances first, as `ledger_write` does: another node may correct the same entry. One that
#: an administrator has corrected stays.
_MOVE = """
WITH given AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[]) AS given (id, model)
), locked AS MATERIALIZED (
    SELECT 1 FROM given JOIN entries ON entries.id = given.id
    JOIN balances AS row
    ON row.app = entries.app AND row.period IN (entries.day, left(entries.day, 7))
    WHERE entries.kind = 'bound' AND entries.model <> given.model
        AND NOT EXISTS (SELECT FROM entries AS later WHERE later.id = entries.id || '.0001')
    ORDER BY row.app, row.period FOR NO KEY UPDATE OF row
), old AS MATERIALIZED (
    SELECT entries.*, given.model AS answered
    FROM given JOIN entries ON entries.id = given.id
    WHERE entries.kind = 'bound' AND entries.model <> given.model
        AND NOT EXISTS (SELECT FROM entries AS later WHERE later.id = entries.id || '.0001')
        AND (SELECT count(*) FROM locked) > 0
    FOR UPDATE OF entries
), moved AS (
    UPDATE entries SET model = old.answered FROM old WHERE entries.id = old.id
), change AS MATERIALIZED (
    SELECT day, app, provider, answered AS model, 1 AS sign, billed, saved, input, read, written,
        output, labels FROM old
    UNION ALL
    SELECT day, app, provider, model, -1, billed, saved, input, read, written, output, labels
    FROM old
), labelled AS (
    INSERT INTO label_sums AS row (day, app, provider, model, label, calls, billed)
    SELECT day, app, provider, model, label.key, sum(sign), sum(sign * label.value::bigint)
    FROM change CROSS JOIN LATERAL jsonb_each_text(change.labels) AS label
    GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT (day, app, provider, model, label) DO UPDATE
    SET calls = row.calls + excluded.calls, billed = row.billed + excluded.billed
)
INSERT INTO sums AS row (
    day, app, provider, model, calls, billed, estimated, saved, input, read, written, output
)
SELECT day, app, provider, model, sum(sign), sum(sign * billed), sum(sign * billed),
    sum(sign * saved), sum(sign * input), sum(sign * read), sum(sign * written),
    sum(sign * output)
FROM change GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
ON CONFLICT (day, app, provider, model) DO UPDATE
SET calls = row.calls + excluded.calls, billed = row.billed + excluded.billed,
    estimated = row.estimated + excluded.estimated, saved = row.saved + excluded.saved,
    input = row.input + excluded.input, read = row.read + excluded.read,
    written = row.written + excluded.written, output = row.output + excluded.output
"""

_encode = msgspec.json.Encoder().encode
_ANY_DAY = "0000-00-00"


async def write(
    connection: Connection,
    node: int | None,
    lane: int,
    settlements: Sequence[Settlement],
    requests: Sequence[HoldRequest] = (),
    *,
    timeout: float | None = None,
) -> dict[str, GrantExceeded]:
    """Writes a batch, durable when it returns. Returns why holds were refused, by id. With `node`
    None nothing can be held, and there is no fencing."""
    if others := [one for one in settlements if one.model]:
        ids, models = [one.hold for one in others], [one.model for one in others]
        await connection.execute(_ANSWERED, ids, models, timeout=timeout)
        # The first bill is final.
        if late := {one.hold: one.model for one in reversed(others) if one.kind != "bound"}:
            await connection.execute(_MOVE, list(late), list(late.values()), timeout=timeout)
    holds = [one.hold for one in requests]
    rows = await connection.fetch(
        _WRITE,
        node,
        lane,
        [one.hold for one in settlements],
        [one.billed for one in settlements],
        [one.kind for one in settlements],
        [one.at for one in settlements],
        [one.input for one in settlements],
        [one.read for one in settlements],
        [one.written for one in settlements],
        [one.output for one in settlements],
        [one.saved for one in settlements],
        [one.read_by_others for one in settlements],
        [_encode(one.labels).decode() if one.labels else "{}" for one in settlements],
        [one.id for one in holds],
        [one.app for one in holds],
        [one.provider for one in holds],
        [one.model for one in holds],
        [one.request_id for one in holds],
        [day_of(one.at) for one in holds],
        [one.at for one in holds],
        [one.bound for one in holds],
        [one.limits.per_day for one in requests],
        [one.limits.per_month for one in requests],
        accounts := [encoded_accounts(one) for one in holds],
        [_levels(one) for one in requests] if any(accounts) else accounts,
        timeout=timeout,
    )
    refused: dict[str, GrantExceeded] = {}
    for place, name, _, day, account in rows:
        request = requests[place - 1]
        refused[request.hold.id] = await _refused(connection, request, name, account, day)
    return refused


def _levels(request: HoldRequest) -> str:
    """All limits of a hold, for `ledger_write`. PostgreSQL decides on the day."""
    hold = request.hold
    found = levels(hold.app, hold.group, hold.budgets, request.limits, _ANY_DAY)
    kinds = {_ANY_DAY: "day", _ANY_DAY[:7]: "month", "": ""}
    rows = [(one.account, one.name, kinds[one.period], one.limit) for one in found]
    return _encode(rows).decode()


async def _refused(
    connection: Connection, request: HoldRequest, name: str, account: str | None, day: str
) -> GrantExceeded:
    hold, limits = request.hold, request.limits
    level = next(
        one
        for one in levels(hold.app, hold.group, hold.budgets, limits, day)
        if one.name == name and account in (None, one.account)
    )
    if level.period:
        return refusal(name, level.limit, hold.bound, level.ends)
    id = level.account.removeprefix(BUDGET)
    expires = await connection.fetchval("SELECT expires FROM budgets WHERE id = $1", id)
    return budget_refusal(level, hold.bound, expires)


async def settle_open_holds(
    connection: Connection, node: int, is_unsent: IsUnsent = all_sent
) -> RecoveredHolds:
    """Settles all open holds of a fenced node, within a transaction: those not sent are free, the
    others are settled at their bound."""
    rows: list[Any] = await connection.fetch(
        "SELECT id, bound, extract(epoch FROM clock_timestamp())::float8 FROM holds"
        " WHERE node = $1 ORDER BY id",
        node,
    )
    if not rows:
        return RecoveredHolds()
    settlements = [interrupted(id, bound, at, is_unsent) for id, bound, at in rows]
    await write(connection, None, 0, settlements)
    await connection.execute(
        "UPDATE unaudited SET interrupted = true WHERE hold = ANY ($1)",
        [one.hold for one in settlements],
    )
    return recovered(settlements)


#: Those of earlier starts of a node: each node writes the rows of its own calls.
_UNAUDITED = f"""
SELECT mark.request_id, mark.interrupted, mark.epoch, {AUDITED_COLUMNS}
FROM unaudited AS mark JOIN entries ON entries.id = mark.hold JOIN nodes ON nodes.id = mark.node
WHERE nodes.name = $1 AND nodes.id <> $2
ORDER BY mark.hold
"""
#: Without its own sync, for which the holds of its batch would wait. If a mark reappears after a
#: crash of PostgreSQL, the next search for missing rows removes it.
AUDITED = """
WITH unsynced AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
DELETE FROM unaudited USING unsynced WHERE request_id = ANY ($1)
"""


async def unaudited_entries(lane: Lane, name: str, id: int) -> list[UnauditedEntry]:
    return [
        UnauditedEntry(
            request_id=request_id,
            interrupted=interrupted,
            epoch=epoch,
            **dict(zip(AUDITED_FIELDS, entry, strict=True)),
        )
        for request_id, interrupted, epoch, *entry in await lane.fetch(_UNAUDITED, name, id)
    ]


_FIELDS = ", ".join("labels::text" if name == "labels" else name for name in ENTRY_FIELDS)

#: Like `ledger_write`, locks balances before what depends on them changes.
_LOCK = """
SELECT 1 FROM unnest($1::text[], $2::text[]) AS wanted (app, period)
JOIN balances AS row ON row.app = wanted.app AND row.period = wanted.period
ORDER BY row.app, row.period FOR NO KEY UPDATE OF row
"""
_INSERT = f"""
INSERT INTO entries ({", ".join(INSERTED)}, node)
SELECT {", ".join(f"${number}" for number in range(1, len(INSERTED) + 1))}, node
FROM entries WHERE id = ${INSERTED.index("corrects") + 1}
"""
_CHARGE = "UPDATE balances SET spent = spent + $1 WHERE app = $2 AND period = $3"
_SUM = """
UPDATE sums SET billed = billed + $1, estimated = estimated - $2, corrected = corrected + $1
WHERE day = $3 AND app = $4 AND provider = $5 AND model = $6
"""
_SUM_LABEL = """
UPDATE label_sums SET billed = billed + $1
WHERE day = $2 AND app = $3 AND provider = $4 AND model = $5 AND label = $6
"""


async def entry_rows(lane: Lane, query: EntryQuery) -> list[Entry]:
    sql, values = list_entries(query, _FIELDS)
    return [Entry(*row) for row in await lane.fetch(sql, *values)]


async def book(lane: Lane, wanted: Correction) -> CorrectedEntry:
    """Writes a correction, durable when it returns. Raises `InvalidRequest`."""
    async with lane.transaction() as connection:
        return await _book(connection, wanted)


async def _book(connection: Connection, wanted: Correction) -> CorrectedEntry:
    place = await connection.fetchrow(
        "SELECT app, day, ledger_names(accounts) FROM entries WHERE id = $1", wanted.entry
    )
    if place is None:
        held = await connection.fetchval("SELECT 1 FROM holds WHERE id = $1", wanted.entry)
        raise not_found(wanted.entry, held=held is not None)
    app, day, names = place
    further = list(further_periods(names, day))
    await lock_balances(connection, [(app, day), (app, month_of(day)), *further])
    row = await connection.fetchrow(find_entry(_FIELDS), wanted.entry)
    if row is None:  # pruned meanwhile
        raise not_found(wanted.entry, held=False)
    earlier = await connection.fetch(find_earlier(_FIELDS), wanted.entry)
    done, new = decided(wanted, Entry(*row), [Entry(*each) for each in earlier])
    if new is not None:
        await _write(connection, new)
    return done


async def _write(connection: Connection, new: NewCorrection) -> None:
    await connection.execute(_INSERT, *new.values)
    for balance in new.balances:
        await connection.execute(_CHARGE, new.added, *balance)
    await connection.execute(_SUM, new.added, new.confirmed, *new.key)
    for label, change in sorted(new.labels.items()):
        await connection.execute(_SUM_LABEL, change, *new.key, label)


async def lock_balances(connection: Connection, rows: Sequence[tuple[str, str]]) -> None:
    await connection.execute(_LOCK, [app for app, _ in rows], [period for _, period in rows])
