"""Following all chains of an audit log in PostgreSQL.

The rows of all nodes are numbered in the order in which this process reads them. The place of a
call is its chain and its row in that, which every node has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from anaphora.audit.envelope import AuditEnvelope
from anaphora.audit.log_postgres import PostgresLog

from .log_tail import PlacedRow, Position, ReadRows, add_line, call_of, hash_of

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection

#: Chains that are read at a time, and calls that are looked up.
_MOST_CHAINS, _MOST_CALLS = 64, 500

_SIGNATURE = """
SELECT count(*), coalesce(sum(last_seq), 0)::bigint, coalesce(sum(start_seq), 0)::bigint
FROM audit_chains WHERE id > 0
"""
_IS_AT = """
SELECT (SELECT sum(start_seq)::bigint FROM audit_chains WHERE id > 0),
    (SELECT line FROM audit_rows WHERE chain = $1 AND seq = $2)
"""
#: A chain can become visible after one with a later number: it is done when it is old as well.
_CHAINS = """
SELECT id, start_seq, last_seq, closed IS NOT NULL AND started < now() - interval '1 hour',
    (SELECT sum(start_seq)::bigint FROM audit_chains WHERE id > 0)
FROM audit_chains WHERE id > $1 ORDER BY id
"""
_ROWS = """
SELECT chain, seq, line FROM unnest($1::bigint[], $2::bigint[]) AS wanted (id, read)
CROSS JOIN LATERAL (
    SELECT at, chain, seq, line FROM audit_rows WHERE chain = id AND seq > read
    ORDER BY seq LIMIT $3
) AS found
ORDER BY at, chain, seq
"""
_CALLS = """
SELECT line FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS wanted (id, number, place)
LEFT JOIN audit_rows ON chain = id AND seq = number ORDER BY place
"""


class ChainsTail:
    """Of a log in PostgreSQL. `Position.first` counts pruned rows, from 1 on; `segment` is the
    chain of the last row that was read."""

    def __init__(self, log: PostgresLog) -> None:
        self._log = log

    def signature(self) -> object:
        found = self._log.run(lambda connection: connection.fetchrow(_SIGNATURE))
        return None if found is None or not found[0] else tuple(found)

    def is_at(self, position: Position) -> bool:
        if not position.hash:
            return position.first == 0
        place = position.segment, position.last
        found = self._log.run(lambda connection: connection.fetchrow(_IS_AT, *place))
        if found is None or found[1] is None or (found[0] or 0) + 1 != position.first:
            return False
        return hash_of(found[1]) == position.hash

    def after(self, position: Position, most: int) -> ReadRows:
        chains, rows = self._log.run(lambda connection: _read(connection, position, most))
        read = ReadRows(calls=[], position=position)
        known, unreadable = dict(position.chains), set[int]()
        last: Any = None
        for chain, seq, line in rows:
            if chain in unreadable:
                continue
            if not add_line(read, line, (chain, seq), position.read + read.lines + 1):
                unreadable.add(chain)  # those of other chains may be read
                continue
            known[chain] = seq
            last = chain, seq, line
        if last is None:
            return read
        done = position.done
        for id, start, end, is_old, _ in chains:
            if not is_old or max(start, known.get(id, 0)) < end:
                break
            done = id
        read.position = Position(
            first=chains[0][4] + 1,
            segment=last[0],
            last=last[1],
            hash=hash_of(last[2]),
            chains={id: seq for id, seq in known.items() if id > done},
            done=done,
            read=position.read + read.lines,
        )
        return read

    def calls(self, rows: Iterable[PlacedRow]) -> Iterator[AuditEnvelope | None]:
        waiting = iter(rows)
        while some := [*islice(waiting, _MOST_CALLS)]:
            chains, numbers = [row[1] for row in some], [row[2] for row in some]
            found = self._log.run(lambda one: one.fetch(_CALLS, chains, numbers))  # noqa: B023
            for number, (line,) in zip(numbers, found, strict=True):
                yield None if line is None else call_of(line, number)


async def _read(
    connection: Connection, position: Position, most: int
) -> tuple[list[Any], list[Any]]:
    """The chains that are not done, and rows of those that have new ones."""
    chains = await connection.fetch(_CHAINS, position.done)
    places = [
        (id, max(start, position.chains.get(id, 0)))
        for id, start, last, _, _ in chains
        if last > max(start, position.chains.get(id, 0))
    ][:_MOST_CHAINS]
    if not places:
        return chains, []
    ids, read = map(list, zip(*places, strict=True))
    each = -(-most // len(places))
    return chains, await connection.fetch(_ROWS, ids, read, each)
