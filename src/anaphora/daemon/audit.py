"""The audit log of a daemon: in its home, or in PostgreSQL with the rest of the store; and recovery
of the rows that a killed daemon had not yet written.

The ledger marks each settlement until the row of its call is durable. Settlements of an ended
daemon that are still marked get a row in this node's chain, unless the log has one: a process can
be killed after a row is committed and before its mark is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from anaphora.audit.chain import RowKey
from anaphora.audit.envelope import AuditEnvelope, AuditUsage, KilledNode, OwnFigures
from anaphora.audit.log import AuditLog
from anaphora.audit.log_postgres import PostgresLog, close_chain
from anaphora.audit.reading import calls
from anaphora.audit.side_files import key_id
from anaphora.client.failures import log
from anaphora.client.observe.export import label, word
from anaphora.errors import AnaphoraError, StoreUnavailable
from anaphora.sqlite_files import connect_read_only
from anaphora.wording import counted

from .home import Home, derived_key
from .home.config import DaemonConfig
from .store import UnauditedEntry
from .store.opening import store_address
from .store.schema import SCHEMA_VERSION, readable, version_of
from .store.sqlite import SqliteStore

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection

    from .money.ledger import Ledger
    from .store.postgres import PostgresStore
    from .store.postgres.epoch import OnFenced

_log = logging.getLogger("anaphora.daemon")

#: Seconds to wait for more rows, so that one commit writes many.
_COLLECT = 0.05
#: Generous bound of the difference between the clocks of a node and of the log, in seconds.
_SKEW = 120.0
#: Maximum number of rows per commit.
_AT_ONCE = 1_000
#: Seconds between checks for rows that dead nodes left unwritten.
_LOOK_SECONDS = 2.0


def audit_place(home: Home, config: DaemonConfig) -> Path | PostgresLog:
    """Raises `InvalidConfig` and `MissingSecret`."""
    address = store_address(home, config)
    if address is None:
        return home.audit
    # A derived key, so that the digest key is neither in the database nor in a file to copy.
    return PostgresLog(address, key=derived_key(home, "audit log"), row_key=row_key(home))


def row_key(home: Home) -> bytes:
    """The key of the MACs of audit rows. Distinct from the digest key, which is stored beside the
    log."""
    return derived_key(home, "audit rows")


def checked_rows(home: Home) -> RowKey | None:
    """The key and first row for checking the MACs of a home's log; None if its store knows no row
    with a MAC."""
    since = _signed_since(home.store, home.audit.name, key_id(row_key(home)))
    return None if since is None else RowKey(key=row_key(home), since=since)


def _signed_since(store: Path, log: str, key: str) -> int | None:
    if not store.is_file():
        return None
    with readable(store), closing(connect_read_only(store)) as database:
        if version_of(database, store) < SCHEMA_VERSION:
            return None  # no daemon of today's version has written the log
        query = "SELECT signed_since FROM audit_logs WHERE name = ? AND key_id = ?"
        found = database.execute(query, (log, key)).fetchone()
        return None if found is None else found[0]


async def open_audit(
    stack: contextlib.AsyncExitStack,
    place: Path | PostgresLog,
    store: object,
    node: str,
    key: bytes,
) -> AuditLog:
    """Opens the log of this node until `stack` closes. `store` is the daemon's; `key` is for the
    MACs of a log in a home."""
    if isinstance(place, PostgresLog):
        from .store.postgres import PostgresStore

        assert isinstance(store, PostgresStore)
        nodes, log = store, place
        if nodes.node_id:  # a command is not a node: its chain ends with it
            log = log.of_node(lambda: nodes.node_id)
        opened = await asyncio.to_thread(AuditLog, log, node=node, collect=_COLLECT)
    else:
        assert isinstance(store, SqliteStore)
        opened = AuditLog(place, collect=_COLLECT, row_key=key)
        await store.record_signed_rows(place.name, opened.first_row, key_id(key))
    stack.push_async_callback(asyncio.to_thread, opened.close)
    return opened


def close_chains_of_dead_nodes(store: PostgresStore, node: str, key: bytes) -> None:
    """Closes the chain of a node in the transaction that marks it dead."""

    async def closed(connection: Connection, dead: int) -> None:
        await close_chain(connection, dead, by=node, row_key=key)

    store.on_swept.append(closed)


# ── Missing rows ─────────────────────────────────────────────────────────────────────────────────


class AuditRecovery:
    """Writes missing audit rows."""

    def __init__(self, ledger: Ledger, audit: AuditLog, place: Path | PostgresLog) -> None:
        self._ledger = ledger
        self._store = ledger.store
        self._audit = audit
        self._place = place
        self._taken: list[UnauditedEntry] = []
        """Entries not yet looked up in the log. The store returns each only once."""
        self._left: list[AuditEnvelope] = []
        """Rows not yet written."""

    async def begin(self) -> None:
        """Lets the store mark settlements for this log. Called before the first hold."""
        self._audit.follow_calls(self._ledger.audited)
        self._taken += await self._store.unaudited()
        await self._store.begin_audit(self._audit.epoch)
        await self._add()
        await self._write()

    def follow_fences(self, on_fenced: list[OnFenced]) -> None:
        """With several nodes: registers for the store's `on_fenced`. Called before the first
        hold."""
        self._ledger.notes_calls = True
        on_fenced.append(self._fenced)

    def _fenced(self) -> None:
        """Other nodes have declared this one dead and write the rows of its running and just ended
        calls. Rows written here would be duplicates."""
        self._audit.leave_out(self._ledger.unaudited_calls())

    async def run(self) -> None:
        """With several nodes: writes the missing rows of nodes that died, until it is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                self._taken += await self._store.unaudited()
                await self._add()
                await self._write()
            except StoreUnavailable:
                pass  # `/readyz` and the log say so
            except AnaphoraError as problem:
                _log.error("audit rows of nodes that died: %s", problem)
            except Exception as problem:
                log(logging.ERROR, "audit rows of nodes that died were not written", problem)

    async def _add(self) -> None:
        entries = self._taken
        if not entries:
            return
        found: dict[str, list[UnauditedEntry]] = {}
        for one in entries:
            found.setdefault(one.request_id, []).append(one)
        since = min(one.at for one in entries) - _SKEW
        written = await asyncio.to_thread(self._written, found.keys(), since)
        if written:
            self._store.audited(sorted(written))
        rows = [
            missing_row(id, attempts, self._audit.node)
            for id, attempts in found.items()
            if id not in written
        ]
        if rows:
            _log.warning(
                "%s had no audit row when their daemon was killed; written from the ledger",
                counted(len(rows), "call"),
            )
        self._left += rows
        self._taken = []

    def _written(self, ids: Iterable[str], since: float) -> set[str]:
        """The calls that already have a row in the log."""
        wanted = set(ids)
        return {
            call.call_id
            for _, call in calls(self._place, committed_since=since)
            if call.call_id in wanted and call.attempts
        }

    async def _write(self) -> None:
        """Writes rows and removes their marks once they are durable. Raises `Io` if they are not;
        the rest is tried again next time."""
        while self._left:
            rows, self._left = self._left[:_AT_ONCE], self._left[_AT_ONCE:]
            for row in rows:
                self._audit.append(row)
            await self._audit.aflush()


def missing_row(id: str, attempts: Sequence[UnauditedEntry], node: str) -> AuditEnvelope:
    """The row of a call, made from the entries of its attempts. `node` is the writer, in a store
    with nodes."""
    first, last = attempts[0], attempts[-1]
    billed = [one for one in attempts if one.kind == "billed"]
    known = billed[-1] if billed else last
    is_free = all(one.kind == "free" for one in attempts)
    interrupted = any(one.interrupted for one in attempts)
    ended = "ok" if last.kind == "billed" else "unknown"
    return AuditEnvelope(
        at=round(first.at, 6),
        app=label(first.app),
        group=label(first.group) if first.group else "",
        budget=first.budget,
        budget_label=label(first.budget_label) if first.budget_label else "",
        adapter="daemon",
        call_id=word(id),
        provider=label(last.provider),
        model=word(last.model),
        outcome="interrupted" if interrupted else ended,
        attempts=len(attempts),
        seconds=0.0 if interrupted else round(max(0.0, last.settled_at - first.at), 6),
        usage=_usage(known),
        cost_nano_usd=sum(one.billed for one in billed) if billed or is_free else None,
        saved_nano_usd=known.saved if billed else None,
        unbilled_nano_usd=sum(one.billed for one in attempts if one.kind != "billed"),
        own=_own(known, attempts),
        recovered=KilledNode(node=label(first.node or node), epoch=first.epoch),
    )


def _own(known: UnauditedEntry, attempts: Sequence[UnauditedEntry]) -> OwnFigures | None:
    """The usage as the app may see it if it read what other apps wrote. The ledger does not have
    what the call would have cost alone."""
    hidden = [one for one in attempts if one.read_by_others]
    if not hidden:
        return None
    open_to_it = [one.billed for one in attempts if one.kind != "billed" and one not in hidden]
    return OwnFigures(
        usage=_usage(replace(known, read=max(0, known.read - known.read_by_others))),
        unbilled_nano_usd=sum(open_to_it),
    )


def _usage(entry: UnauditedEntry) -> AuditUsage:
    """The ledger does not distinguish a count of 0 from an unreported one."""
    if not entry.input and not entry.output:
        return AuditUsage()
    return AuditUsage(
        uncached=max(0, entry.input - entry.read - entry.written),
        read=entry.read or None,
        written={"unsplit": entry.written} if entry.written else None,
        output=entry.output,
    )
