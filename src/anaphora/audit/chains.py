"""All chains of a log in PostgreSQL: checking them against each other's anchors, deleting old rows,
and adding a log of files as a chain of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from anaphora.errors import AnchorMismatch, ChainBroken, Io, MacMismatch
from anaphora.postgres.connection import transaction

from .chain import ChainChecker, ChainHead, RowKey
from .envelope import (
    AnchorRow,
    Boundary,
    ChainMark,
    PrunedChainsRow,
    RecoveryRow,
    SignedRow,
    decode,
)
from .log_file import FileReader, check_name
from .log_postgres import (
    ANCHORS,
    PAGE,
    ChainState,
    PostgresLink,
    PostgresLog,
    append_signed,
    read_chains,
    signed,
    write_anchor,
)
from .side_files import Anchor, is_locked, key_id

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection

#: Rows of one statement that copies.
_COPIED = 2_000
_DAY = 86_400.0


class VerifiedChain(msgspec.Struct, frozen=True, kw_only=True):
    """A chain that is whole."""

    chain: int
    name: str
    """Of its node, or of the log that was moved."""
    state: Literal["open", "stopped", "dead", "moved"]
    """`dead`: another node closed it; `open`: its node writes it, or was not missed yet."""
    rows: int
    first: int
    last: int
    hash: str
    anchored: int
    """The last row that an anchor names."""
    signed_since: int | None = None
    """The first row whose MAC was checked; None: only hashes were."""


# ── Verifying ────────────────────────────────────────────────────────────────────────────────────


class _Snapshot:
    """One state of all chains."""

    def __init__(self, link: PostgresLink) -> None:
        self._link = link

    def chains(self) -> list[ChainState]:
        return self._link.run(read_chains)

    def lines(self, chain: ChainState) -> Iterator[bytes]:
        """A row that is missing is no line, so that the next one is found not to follow."""
        query = (
            "SELECT seq, line FROM audit_rows WHERE chain = $1 AND seq > $2 ORDER BY seq"
            f" LIMIT {PAGE}"
        )
        seq = expected = chain.start.seq
        while page := self._link.run(lambda one: one.fetch(query, chain.id, seq)):  # noqa: B023
            for seq, line in page:
                expected += 1
                yield line if seq == expected else b"?"


@contextmanager
def _snapshot(log: PostgresLog) -> Iterator[_Snapshot]:
    link = PostgresLink(log.address, "audit verify")
    try:
        # It locks nothing, and may wait for a terminal.
        begin = (
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
            " SET LOCAL idle_in_transaction_session_timeout TO 0"
        )
        link.run(lambda connection: connection.execute(begin))
        yield _Snapshot(link)
    finally:
        link.close()


class _Anchors:
    """What the anchors say about the other chains."""

    def __init__(self, key: bytes, key_since: int) -> None:
        self._key = key
        self._key_since = key_since
        self.heads: dict[int, tuple[ChainHead, int]] = {}
        """The last row of each chain that is named, and the number of the anchor."""
        self.first: dict[int, int] = {}
        """The row of each chain that the first anchor names."""
        self.pruned: dict[int, list[Boundary]] = {}
        self.signed = 0
        self.unsigned = 0
        """Those that were signed with an earlier key, or not."""

    def checked(self, lines: Iterator[bytes], before: ChainHead) -> Iterator[bytes]:
        for line in lines:
            try:
                row = decode(line)
            except ChainBroken:  # its hash is wrong as well
                yield line
                continue
            yield line  # its hash is right when the next one is asked for
            content = row.content
            if isinstance(content, SignedRow):
                self._check_signature(row.seq, content, before)
            if isinstance(content, AnchorRow):
                for one in content.heads:
                    self.heads[one.chain] = ChainHead(one.seq, one.hash), row.seq
                    self.first.setdefault(one.chain, one.seq)
            elif isinstance(content, PrunedChainsRow):
                for one in content.through:
                    self.pruned.setdefault(one.chain, []).append(Boundary(one.seq, one.hash))
            before = ChainHead(row.seq, row.hash)

    def _check_signature(self, number: int, row: SignedRow, before: ChainHead) -> None:
        if not self._key or number < self._key_since:
            self.unsigned += isinstance(row, AnchorRow)
            return
        if row.key_id != key_id(self._key):
            raise AnchorMismatch(
                f"anchor {number:,}: is not signed with the key of this log: the anchors were"
                " written anew, or tokens.key was replaced (then --key-since says since when)",
                row=number,
            )
        if signed(row, before, self._key).mac != row.mac:
            raise AnchorMismatch(
                f"anchor {number:,}: its signature is not that of this log's key: the anchors"
                " were written anew",
                row=number,
            )
        self.signed += isinstance(row, AnchorRow)


class CheckedChains(msgspec.Struct, kw_only=True):
    chains: list[VerifiedChain]
    anchors: ChainHead
    """The last row of the chain of anchors."""
    signed: int
    unsigned: int


def check_chains(
    log: PostgresLog,
    anchor: Anchor | None,
    progress: Callable[[int], None] | None,
    key_since: int = 1,
) -> CheckedChains:
    """Checks every row of every chain. Raises `ChainBroken` or `AnchorMismatch`. `anchor` is one
    that is kept elsewhere, `key_since` the first anchor that is signed with the log's key."""
    done = 0

    def report(rows: int) -> None:
        if progress is not None:
            progress(done + rows)

    outside = {} if anchor is None else anchor.marks
    with _snapshot(log) as snapshot:
        states = {state.id: state for state in snapshot.chains()}
        if ANCHORS not in states:
            raise AnchorMismatch("the chain of the anchors is missing", row=0)
        first = states.pop(ANCHORS)
        anchors = _Anchors(log.key, key_since)
        lines = anchors.checked(snapshot.lines(first), first.start)
        kept = () if anchor is None else (anchor.head,)
        _check(first, ChainChecker(first.start, anchors=kept), lines, report)
        _check_missing(states, anchors, outside)
        found = []
        for state in states.values():
            heads = [anchors.heads[state.id][0]] if state.id in anchors.heads else []
            if state.last.seq and not heads:
                raise AnchorMismatch(
                    f"chain {state.id} ({state.name}) is named by no anchor: it was inserted", row=1
                )
            heads += [outside[state.id]] if state.id in outside else []
            # What a log that was moved says itself was there when it was first anchored.
            checker = ChainChecker(
                state.start,
                anchors=heads,
                pruned=anchors.pruned.get(state.id, ()),
                says_pruned_until=anchors.first.get(state.id, 0),
                row_key=RowKey(key=log.row_key) if log.row_key else None,
            )
            last = _check(state, checker, snapshot.lines(state), report)
            anchored = heads[0].seq if heads else 0
            found.append(_verified(state, last, anchored, checker.signed_since))
            done += found[-1].rows
    return CheckedChains(
        chains=found, anchors=first.last, signed=anchors.signed, unsigned=anchors.unsigned
    )


def _check_missing(
    states: Mapping[int, ChainState], anchors: _Anchors, outside: Mapping[int, ChainHead]
) -> None:
    for chain, (head, number) in anchors.heads.items():
        if chain not in states:
            raise AnchorMismatch(
                f"chain {chain} is missing: anchor {number:,} names its row {head.seq:,}", row=1
            )
    for chain in outside:
        if chain not in states:
            raise AnchorMismatch(f"chain {chain} is missing: the anchor names it", row=1)


def _check(
    state: ChainState,
    checker: ChainChecker,
    lines: Iterator[bytes],
    progress: Callable[[int], None],
) -> bytes:
    """The last line. Errors name the chain."""
    place = "anchors" if state.id == ANCHORS else f"chain {state.id}, {state.name}"
    last = b""

    def kept() -> Iterator[bytes]:
        nonlocal last
        for line in lines:
            last = line
            yield line

    try:
        for index in checker.check(kept(), lambda _: place):
            progress(index)
        checker.finish()
    except (AnchorMismatch, MacMismatch) as problem:
        raise type(problem)(f"{place}: {problem}", row=problem.row) from None
    except ChainBroken as problem:
        raise ChainBroken(problem.reason, row=problem.row, place=place) from None
    if checker.head != state.last:
        raise ChainBroken(
            f"the chain ends with this row, and row {state.last.seq:,} is recorded as its last one:"
            " it was cut off, or rows were added by hand",
            row=checker.head.seq,
            place=place,
        )
    return last


def _verified(
    state: ChainState, last: bytes, anchored: int, signed_since: int | None
) -> VerifiedChain:
    content = decode(last).content if last else None
    kind: Literal["open", "stopped", "dead", "moved"] = "open"
    if state.closed is not None:
        is_dead = isinstance(content, RecoveryRow) and content.reason == "node_dead"
        kind = "moved" if not state.key_id else "dead" if is_dead else "stopped"
    return VerifiedChain(
        chain=state.id,
        name=state.name,
        state=kind,
        rows=state.last.seq - state.start.seq,
        first=state.start.seq + 1,
        last=state.last.seq,
        hash=state.last.hash,
        anchored=anchored,
        signed_since=signed_since,
    )


# ── Pruning ──────────────────────────────────────────────────────────────────────────────────────


def prune_chains(log: PostgresLog, *, keep_days: float, by: str) -> list[ChainMark]:
    """Deletes the rows of earlier days, those of the anchors too. A row of the anchors with the
    last hash of each chain is committed first. Nodes may write meanwhile."""
    before = datetime.fromtimestamp(time.time() - keep_days * _DAY, UTC)

    async def mark(connection: Connection) -> list[ChainMark]:
        async with transaction(connection):
            await connection.execute("SET LOCAL statement_timeout TO 0")
            await connection.execute("SELECT 1 FROM audit_chains ORDER BY id FOR UPDATE")
            found = await connection.fetch(_PRUNABLE, before)
            through = [ChainMark(chain, seq, decode(line).hash) for chain, seq, line in found]
            if not any(one.chain for one in through):
                return []
            row = PrunedChainsRow(
                at=time.time(), keep_days=float(keep_days), through=tuple(through)
            )
            query = "SELECT last_seq, last_hash FROM audit_chains WHERE id = $1"
            head = ChainHead(*await connection.fetchrow(query, ANCHORS))
            await append_signed(connection, row, head, log.key)
            for one in through:
                await connection.execute(_PRUNE, one.chain, one.seq, one.hash)
            # Anchors that are deleted have named rows that stay.
            await write_anchor(connection, node=by, key=log.key, all_chains=True)
            return [one for one in through if one.chain]

    async def delete(connection: Connection) -> bool:
        return str(await connection.execute(_DELETE, PAGE * 10)) != "DELETE 0"

    link = PostgresLink(log.address, "audit prune")
    try:
        through = link.run(mark, seconds=600.0)
        while link.run(delete):  # also what one that was killed has left
            pass
    finally:
        link.close()
    return through


_PRUNABLE = """
SELECT chains.id, rows.seq, rows.line
FROM audit_chains chains CROSS JOIN LATERAL (
    SELECT seq, line FROM audit_rows WHERE chain = chains.id AND seq < coalesce((
        SELECT min(seq) FROM audit_rows WHERE chain = chains.id AND at >= $1), 1::bigint << 62)
    ORDER BY seq DESC LIMIT 1
) rows
ORDER BY chains.id
"""
_PRUNE = "UPDATE audit_chains SET start_seq = $2, start_hash = $3 WHERE id = $1"
_DELETE = """
DELETE FROM audit_rows WHERE ctid = ANY(ARRAY(
    SELECT rows.ctid FROM audit_chains chains
    JOIN audit_rows rows ON chain = chains.id AND seq <= start_seq LIMIT $1))
"""


# ── Moving ───────────────────────────────────────────────────────────────────────────────────────


class CopiedLog(msgspec.Struct, frozen=True, kw_only=True):
    """A log of files that is now a chain in PostgreSQL."""

    chain: int
    rows: int
    head: ChainHead
    """Its last row: the same as that of the log it was copied from."""


async def copy_log(
    connection: Connection,
    source: Path,
    *,
    node: str = "",
    key: bytes = b"",
    progress: Callable[[int], None] | None = None,
) -> CopiedLog:
    """Adds the rows of a folder as a chain of their own, with an anchor; within a transaction of
    the caller, or in one of its own. Each row is checked on the way. Raises
    `ChainBroken` where the log was changed, and `Io` while a process writes it."""
    if is_locked(source):
        raise Io(f"{source}: a process is writing this log; stop it first")
    check_name(source)
    reader = FileReader(source)
    start = reader.start()
    checker, at = ChainChecker(start), 0.0
    async with transaction(connection):
        chain: int = await connection.fetchval(
            "INSERT INTO audit_chains (name, closed, start_seq, start_hash)"
            " VALUES ($1, now(), $2, $3) RETURNING id",
            source.name,
            start.seq,
            start.hash,
        )
        for section in reader.sections:
            lines: list[bytes] = []
            for line in reader.lines(section, unfinished=False):
                lines.append(line)
                if len(lines) == _COPIED:
                    at = await _copy(connection, chain, checker, lines, at)
                    if progress is not None:
                        progress(checker.head.seq - start.seq)
                    lines = []
            at = await _copy(connection, chain, checker, lines, at)
        checker.finish()
        head = checker.head
        update = "UPDATE audit_chains SET last_seq = $2, last_hash = $3 WHERE id = $1"
        await connection.execute(update, chain, head.seq, head.hash)
        await write_anchor(connection, node=node, key=key)
    return CopiedLog(chain=chain, rows=head.seq - start.seq, head=head)


async def _copy(
    connection: Connection, chain: int, checker: ChainChecker, lines: list[bytes], at: float
) -> float:
    """The latest time so far: rows are read in the order of their times."""
    first = checker.head.seq + 1
    for _ in checker.check(lines, lambda index: f"row {first + index:,}"):
        pass
    rows, now = [], time.time()
    for index, line in enumerate(lines):
        # When it was written, so that it can be pruned by its age.
        at = min(max(at, _decode_time(line).at), now)
        rows.append((chain, first + index, datetime.fromtimestamp(at, UTC), line))
    await connection.copy_records_to_table(
        "audit_rows", records=rows, columns=("chain", "seq", "at", "line")
    )
    return at


class _RowTime(msgspec.Struct, frozen=True):
    at: float


_decode_time = msgspec.json.Decoder(_RowTime).decode
