"""Verifies a log in PostgreSQL: all chains, in one snapshot, against the anchors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import msgspec

from anaphora.errors import AnchorMismatch, ChainBroken, MacMismatch
from anaphora.postgres.lane import PostgresLink

from .chain import ChainChecker, ChainHead, RowKey
from .envelope import AnchorRow, Boundary, PrunedChainsRow, RecoveryRow, SignedRow, decode
from .log_postgres import ANCHORS, PAGE, PostgresLog, signed
from .side_files import Anchor, key_id

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection

#: Rows copied by one statement.
_COPIED = 2_000
_DAY = 86_400.0


class ChainState(msgspec.Struct, frozen=True, kw_only=True):
    """A chain as stored in its table."""

    id: int
    name: str
    node: int | None = None
    key_id: str = ""
    """Empty for a log that was moved."""
    started: float = 0.0
    closed: float | None = None
    start: ChainHead
    last: ChainHead
    anchored: int = 0


_CHAINS = """
SELECT id, name, node, key_id, extract(epoch FROM started)::float8,
    extract(epoch FROM closed)::float8, start_seq, start_hash, last_seq, last_hash, anchored
FROM audit_chains ORDER BY id
"""


async def read_chains(connection: Connection) -> list[ChainState]:
    """All chains; the chain of the anchors is the first."""
    found = []
    for row in await connection.fetch(_CHAINS):
        id, name, node, key, started, closed, start, start_hash, last, last_hash, anchored = row
        found.append(
            ChainState(
                id=id,
                name=name,
                node=node,
                key_id=key,
                started=started,
                closed=closed,
                start=ChainHead(start, start_hash),
                last=ChainHead(last, last_hash),
                anchored=anchored,
            )
        )
    return found


class VerifiedChain(msgspec.Struct, frozen=True, kw_only=True):
    """A chain that was verified."""

    chain: int
    name: str
    """Of its node, or of the log that was moved."""
    state: Literal["open", "stopped", "dead", "moved"]
    """`dead`: another node closed it; `open`: its node writes it, or has not been missed yet."""
    rows: int
    first: int
    last: int
    hash: str
    anchored: int
    """The last row named by an anchor."""
    signed_since: int | None = None
    """The first row whose MAC was checked; None: only hashes were checked."""


class _Snapshot:
    """One snapshot of all chains."""

    def __init__(self, link: PostgresLink) -> None:
        self._link = link

    def chains(self) -> list[ChainState]:
        return self._link.run(read_chains)

    def lines(self, chain: ChainState) -> Iterator[bytes]:
        """A missing row yields no line, so the next one fails the check."""
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
        # It holds no locks, and may wait for a terminal.
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
        """The last row named of each chain, and the number of the anchor."""
        self.first: dict[int, int] = {}
        """The row of each chain that the first anchor names."""
        self.pruned: dict[int, list[Boundary]] = {}
        self.signed = 0
        self.unsigned = 0
        """Anchors signed with an earlier key, or unsigned."""

    def checked(self, lines: Iterator[bytes], before: ChainHead) -> Iterator[bytes]:
        for line in lines:
            try:
                row = decode(line)
            except ChainBroken:  # its hash is wrong as well
                yield line
                continue
            yield line  # the checker has checked its hash when it takes the next one
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
                " rewritten, or tokens.key was replaced (then pass --key-since with the first"
                " anchor of the new key)",
                row=number,
            )
        if signed(row, before, self._key).mac != row.mac:
            raise AnchorMismatch(
                f"anchor {number:,}: its signature is not that of this log's key: the anchors"
                " were rewritten",
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
    stored elsewhere, `key_since` the first anchor signed with the log's key."""
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
            # A moved log's own pruned rows were written before it was first anchored.
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
