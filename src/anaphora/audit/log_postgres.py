"""A log in PostgreSQL: a hash chain for each epoch of each node, and anchors over all of them.

    log = PostgresLog(address, key=key)
    verify(log)
    with AuditLog(log.of_node(lambda: store.node_id), node="node-a"): …

A chain has the same lines as a folder of segments. Only the node of its epoch appends to it, and
only while it is open: a node that was declared dead begins a new chain. Chain 0 holds the anchors:
its rows name the last rows of the other chains, once a minute and when a node starts or stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self, TypeVar

import msgspec
from blake3 import blake3

from anaphora.errors import AnaphoraError, ChainBroken, Io, StoreUnavailable
from anaphora.postgres.address import PostgresAddress
from anaphora.postgres.connection import transaction
from anaphora.postgres.lane import PostgresLink

from .chain import ChainHead, seal
from .envelope import (
    AnchorRow,
    AuditRow,
    Boundary,
    ChainMark,
    RecoveryRow,
    SignedRow,
    StoredRow,
    decode,
)
from .log_file import Recovered
from .side_files import key_id

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection

T = TypeVar("T")
SignedT = TypeVar("SignedT", bound=SignedRow)

#: The chain of the anchors.
ANCHORS = 0
#: Seconds between two anchors, of all nodes.
ANCHOR_SECONDS = 60.0
#: Rows read at a time.
PAGE = 1_000


class CommitUnknown(Io):
    """It is unknown whether rows were committed. The same rows must be appended again."""


class ChainClosed(Io):
    """Another node has closed the chain, because it declared this node dead."""


class PostgresLog:
    """A log in PostgreSQL, for writers and readers. Threads may share it."""

    def __init__(self, address: PostgresAddress, *, key: bytes = b"", row_key: bytes = b"") -> None:
        """`key` is for the digests and signs the anchors. `row_key` is for the MACs of rows. Both
        are the same on all nodes, and not in the database."""
        self.address = address
        self.key = key
        self.row_key = row_key
        self.node_id: Callable[[], int] | None = None
        self._link = PostgresLink(address, "audit reader")

    def __str__(self) -> str:
        return str(self.address)

    def of_node(self, node_id: Callable[[], int]) -> Self:
        """The log for a node to write: `node_id` returns its epoch; its chain is closed with it.
        Without it the chain belongs to no node, and no node closes it."""
        log = copy.copy(self)
        log.node_id = node_id
        return log

    @property
    def name(self) -> str:
        """A name to display, without the address."""
        return self.address.database

    def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Raises `Io` if PostgreSQL cannot be reached."""
        try:
            return self._link.run(work)
        except StoreUnavailable as problem:
            raise Io(str(problem)) from None

    def close(self) -> None:
        self._link.close()

    def rows(self, since: float = 0.0) -> Iterator[StoredRow]:
        """The rows of all chains except the anchors, in commit order, starting at a time of
        PostgreSQL's clock."""
        # Rows added meanwhile are not read; rows from a clock that was ahead are.
        last = "SELECT greatest(now(), max(at)) FROM audit_rows"
        now = self.run(lambda connection: connection.fetchval(last))
        query = (
            "SELECT at, chain, seq, line FROM audit_rows WHERE (at, chain, seq) > ($1, $2, $3)"
            " AND at <= $4 AND chain > 0"
            " AND seq > (SELECT start_seq FROM audit_chains WHERE id = chain)"
            f" ORDER BY at, chain, seq LIMIT {PAGE}"
        )
        at, chain, seq = datetime.fromtimestamp(since, UTC), 0, 0
        while True:
            place = at, chain, seq
            page = self.run(lambda connection: connection.fetch(query, *place, now))  # noqa: B023
            for _, chain, seq, line in page:
                yield _decoded(line, chain, seq)
            if len(page) < PAGE:
                return
            at = page[-1][0]

    def row(self, chain: int, seq: int) -> StoredRow | None:
        query = "SELECT line FROM audit_rows WHERE chain = $1 AND seq = $2"
        line = self.run(lambda connection: connection.fetchval(query, chain, seq))
        return None if line is None else _decoded(line, chain, seq)


def _decoded(line: bytes, chain: int, seq: int) -> StoredRow:
    place = f"chain {chain}"
    try:
        return decode(line, place, chain)
    except ChainBroken as problem:
        raise ChainBroken(problem.reason, row=seq, place=place) from None


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────

_APPEND = """
WITH moved AS (
    UPDATE audit_chains SET last_seq = $2 + cardinality($5::bytea[]), last_hash = $4,
        closed = CASE WHEN $6 THEN now() END
    WHERE id = $1 AND last_seq = $2 AND last_hash = $3 AND closed IS NULL RETURNING id
)
INSERT INTO audit_rows (chain, seq, line)
SELECT $1, $2 + number, line
FROM moved, unnest($5::bytea[]) WITH ORDINALITY AS lines (line, number)
"""


async def append_lines(
    connection: Connection,
    chain: int,
    before: ChainHead,
    lines: Sequence[bytes],
    *,
    close: bool = False,
) -> ChainHead:
    """Appends sealed rows that follow `before`. Rows already there are not appended again. Raises
    `ChainClosed`."""
    after = ChainHead(before.seq + len(lines), lines[-1][-66:-2].decode())
    values = chain, before.seq, before.hash, after.hash, lines, close
    if await connection.execute(_APPEND, *values) != "INSERT 0 0":
        return after
    query = "SELECT last_seq, last_hash, closed FROM audit_chains WHERE id = $1"
    found = await connection.fetchrow(query, chain)
    if found is None:
        raise Io(f"chain {chain} of the audit log was deleted")
    query = "SELECT line FROM audit_rows WHERE chain = $1 AND seq = $2"
    if await connection.fetchval(query, chain, after.seq) == lines[-1]:
        return after
    if found[2] is not None:
        raise ChainClosed(
            f"chain {chain} of the audit log was closed: this node was taken for dead"
        )
    raise Io(
        f"chain {chain} of the audit log was changed by another process: it ends with row"
        f" {found[0]:,}, and row {before.seq:,} was expected"
    )


async def append_rows(
    connection: Connection,
    chain: int,
    rows: Sequence[AuditRow],
    *,
    close: bool = False,
    row_key: bytes = b"",
) -> ChainHead:
    """Appends rows to the end of a chain, for any writer. Runs within a transaction."""
    query = "SELECT last_seq, last_hash FROM audit_chains WHERE id = $1 FOR UPDATE"
    before = head = ChainHead(*await connection.fetchrow(query, chain))
    lines = []
    for row in rows:
        line, head = seal(head, row, row_key)
        lines.append(line)
    return await append_lines(connection, chain, before, lines, close=close)


_LOCK_ANCHORS = "SELECT 1 FROM audit_chains WHERE id = 0 FOR UPDATE"
_LAST_ANCHOR = """
SELECT extract(epoch FROM clock_timestamp() - at) FROM audit_rows WHERE chain = 0
ORDER BY seq DESC LIMIT 1
"""
_ANCHOR = """
WITH grown AS (
    SELECT id FROM audit_chains WHERE id > 0 AND (last_seq > anchored OR $1) ORDER BY id FOR UPDATE
)
UPDATE audit_chains SET anchored = last_seq FROM grown WHERE audit_chains.id = grown.id
RETURNING audit_chains.id, last_seq, last_hash
"""


async def write_anchor(
    connection: Connection,
    *,
    node: str,
    key: bytes = b"",
    seconds: float = 0.0,
    all_chains: bool = False,
) -> bool:
    """Appends an anchor with the last rows of the chains that have grown, unless the last one is
    younger than `seconds`; True if it was written."""
    async with transaction(connection):
        query = "SELECT last_seq, last_hash FROM audit_chains WHERE id = $1 FOR UPDATE"
        head = ChainHead(*await connection.fetchrow(query, ANCHORS))
        if seconds:
            age = await connection.fetchval(_LAST_ANCHOR)
            if age is not None and 0 <= age < seconds:
                return False
        grown = await connection.fetch(_ANCHOR, all_chains)
        if not grown:
            return False
        heads = [ChainMark(*row) for row in sorted(grown)]
        row = AnchorRow(at=time.time(), node=node, heads=tuple(heads))
        await append_signed(connection, row, head, key)
        return True


async def append_signed(
    connection: Connection, row: SignedRow, before: ChainHead, key: bytes
) -> None:
    """Appends a row to the chain of anchors; without a signature if there is no key."""
    line, _ = seal(before, signed(row, before, key) if key else row)
    await append_lines(connection, ANCHORS, before, [line])


def signed(row: SignedT, before: ChainHead, key: bytes) -> SignedT:
    """A row with the signature of this key."""
    plain = msgspec.structs.replace(row, key_id=key_id(key), mac="")
    line, _ = seal(before, plain)
    own = blake3(b"anaphora audit anchors", key=key).digest()
    return msgspec.structs.replace(plain, mac=blake3(line, key=own).hexdigest())


async def close_chain(
    connection: Connection, node_id: int, *, by: str, row_key: bytes = b""
) -> None:
    """Closes the chain of a dead node, in the transaction that marks it dead."""
    query = "SELECT id FROM audit_chains WHERE node = $1 AND closed IS NULL FOR UPDATE"
    chain = await connection.fetchval(query, node_id)
    if chain is not None:
        row = RecoveryRow(at=time.time(), epoch=chain, reason="node_dead", by=by)
        await append_rows(connection, chain, [row], close=True, row_key=row_key)


async def close_orphaned_chains(connection: Connection, *, by: str, row_key: bytes = b"") -> None:
    """Closes open chains of nodes that are not alive: the node ended while PostgreSQL was
    unreachable."""
    query = (
        "SELECT node FROM audit_chains JOIN nodes ON nodes.id = node"
        " WHERE closed IS NULL AND state <> 'alive'"
    )
    for (node,) in await connection.fetch(query):
        async with transaction(connection):
            await close_chain(connection, node, by=by, row_key=row_key)


class PostgresLogStore:
    """Writes the chain of one node. Used by one thread."""

    def __init__(self, log: PostgresLog, *, node: str) -> None:
        self.path = log
        self.chain = 0
        self._node = node
        self._link = PostgresLink(log.address, "audit")
        self._head = ChainHead()
        self._end_anchors: Callable[[], None] | None = None

    def open(self) -> Recovered:
        """Begins a chain, without rows."""
        self._link.run(self._close_orphaned_chains)
        self.chain = self._link.run(self._begin)
        self._head = ChainHead()
        if self._end_anchors is None:
            self._end_anchors = self._link.background(self._write_anchors())
        return Recovered(epoch=self.chain - 1)

    async def _close_orphaned_chains(self, connection: Connection) -> None:
        await close_orphaned_chains(connection, by=self._node, row_key=self.path.row_key)

    async def _begin(self, connection: Connection) -> int:
        key = key_id(self.path.key) if self.path.key else ""
        async with transaction(connection):
            node = None if self.path.node_id is None else self.path.node_id()
            if node is not None:
                query = "SELECT 1 FROM nodes WHERE id = $1 AND state = 'alive' FOR SHARE"
                if await connection.fetchval(query, node) is None:
                    raise StoreUnavailable(f"node {node} was taken for dead")
            other = await connection.fetchval(
                "SELECT name FROM audit_chains WHERE closed IS NULL AND id > 0 AND key_id <> $1"
                " LIMIT 1",
                key,
            )
            if other is not None:
                raise Io(
                    f"node {other} writes the audit log with another key: its digests could not be"
                    " compared with those of this node; use the same tokens.key on all nodes"
                )
            chain: int = await connection.fetchval(
                "INSERT INTO audit_chains (node, name, key_id) VALUES ($1, $2, $3) RETURNING id",
                node,
                self._node,
                key,
            )
            return chain

    def segment_due(self, now: float) -> int:  # noqa: ARG002
        return 0

    def append(self, lines: Sequence[bytes], segment: int = 0) -> None:  # noqa: ARG002
        """Commits rows. Raises `CommitUnknown` if the connection was lost meanwhile."""
        first = not self._head.seq
        stop = b'"row":"stop"' in lines[-1][:80]
        sent = False

        async def work(connection: Connection) -> ChainHead:
            nonlocal sent
            sent = True
            async with transaction(connection):
                if first or stop:  # before the lock of a chain, as those that write anchors do
                    await connection.execute(_LOCK_ANCHORS)
                head = await append_lines(connection, self.chain, self._head, lines, close=stop)
                if first or stop:  # no chain with rows is without an anchor
                    await self._anchor(connection)
            return head

        try:
            self._head = self._link.run(work)
        except StoreUnavailable as problem:
            if sent:
                raise CommitUnknown(str(problem)) from None
            raise

    async def _anchor(self, connection: Connection, seconds: float = 0.0) -> None:
        await write_anchor(connection, node=self._node, key=self.path.key, seconds=seconds)

    async def _write_anchors(self) -> None:
        while True:
            await asyncio.sleep(ANCHOR_SECONDS)
            with contextlib.suppress(AnaphoraError):  # the next append reports it
                await self._link.run_in_loop(self._write_due_anchor)

    async def _write_due_anchor(self, connection: Connection) -> None:
        await self._close_orphaned_chains(connection)
        await self._anchor(connection, ANCHOR_SECONDS)

    def boundaries(self, before: float) -> tuple[Boundary, ...]:  # noqa: ARG002
        """None: `prune` deletes rows of all chains."""
        return ()

    def remove(self, boundaries: Sequence[Boundary]) -> None:
        """Never called, as there are no boundaries."""

    def close(self) -> None:
        self._link.close()
