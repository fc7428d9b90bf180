"""The audit log of a daemon, in its home, and recovery of the rows that it had not yet written when
it was killed.

The ledger marks each settlement until the row of its call is durable. When the daemon starts again,
settlements that are still marked get a row, unless the log has one: a process can be killed after a
row is committed and before its mark is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from anaphora.audit.chain import RowKey
from anaphora.audit.envelope import AuditEnvelope, AuditUsage, KilledNode, OwnFigures
from anaphora.audit.log import AuditLog
from anaphora.audit.reading import calls
from anaphora.audit.side_files import key_id
from anaphora.client.observe.export import label, word
from anaphora.postgres.lane import Lane
from anaphora.sqlite_files import connect_read_only, numbered
from anaphora.wording import counted

from .home import Home, derived_key
from .home.config import DaemonConfig, daemon_config
from .store import UnauditedEntry
from .store.opening import store_address
from .store.schema import readable, version_of
from .store.tables import SIGNED_SINCE

if TYPE_CHECKING:
    from anaphora.postgres.address import PostgresAddress

    from .money.ledger import Ledger
    from .store.interface import Store

_log = logging.getLogger("anaphora.daemon")

#: Seconds to wait for more rows, so that one commit writes many.
_COLLECT = 0.05
#: Generous bound of the difference between the clocks of a node and of the log, in seconds.
_SKEW = 120.0
#: Maximum number of rows per commit.
_AT_ONCE = 1_000


def row_key(home: Home) -> bytes:
    """The key of the MACs of audit rows. Distinct from the digest key, which is stored beside the
    log."""
    return derived_key(home, "audit rows")


def checked_rows(home: Home) -> RowKey | None:
    """The key and first row for checking the MACs of a home's log; None if its store knows no row
    with a MAC."""
    config = daemon_config(home.config())
    address, key = store_address(home, config), row_key(home)
    if address is None:
        since = _signed_since(home.store, home.audit.name, key_id(key))
    else:
        since = asyncio.run(_signed_on_node(address, config.node_name, key_id(key)))
    return None if since is None else RowKey(key=key, since=since)


def _signed_since(store: Path, log: str, key: str) -> int | None:
    if not store.is_file():
        return None
    with readable(store), closing(connect_read_only(store)) as database:
        if not version_of(database, store):
            return None  # no daemon has written the log
        found = database.execute(SIGNED_SINCE, numbered(log, key)).fetchone()
        return None if found is None else found[0]


async def _signed_on_node(address: PostgresAddress, node: str, key: str) -> int | None:
    lane = Lane(address, "audit")
    try:
        found: int | None = await lane.fetchval(SIGNED_SINCE, node, key)
        return found
    finally:
        await lane.close()


async def open_audit(
    stack: contextlib.AsyncExitStack, home: Home, store: Store, config: DaemonConfig
) -> AuditLog:
    """Opens the log of a home until `stack` closes. In a store of several nodes, it is known by the
    name of the node."""
    key, name = row_key(home), home.audit.name if config.store is None else config.node_name
    opened = AuditLog(home.audit, node=config.node_name, collect=_COLLECT, row_key=key)
    await store.record_signed_rows(name, opened.first_row, key_id(key))
    stack.push_async_callback(asyncio.to_thread, opened.close)
    return opened


# ── Missing rows ─────────────────────────────────────────────────────────────────────────────────


class AuditRecovery:
    """Writes missing audit rows."""

    def __init__(self, ledger: Ledger, audit: AuditLog, group_of: Callable[[str], str]) -> None:
        """`group_of` returns the group of an app."""
        self._group_of = group_of
        self._ledger = ledger
        self._store = ledger.store
        self._audit = audit

    async def begin(self) -> None:
        """Lets the store mark settlements for this log. Called before the first hold."""
        self._audit.follow_calls(self._ledger.audited)
        entries = await self._store.unaudited()
        await self._store.begin_audit(self._audit.epoch)
        if entries:
            await self._add(entries)

    async def _add(self, entries: Sequence[UnauditedEntry]) -> None:
        """Writes the rows that are missing; their marks are removed when they are durable. Raises
        `Io` if they cannot be written."""
        found: dict[str, list[UnauditedEntry]] = {}
        for one in entries:
            found.setdefault(one.request_id, []).append(one)
        since = min(one.at for one in entries) - _SKEW
        written = await asyncio.to_thread(self._written, found.keys(), since)
        if written:
            self._store.audited(sorted(written))
        rows = [
            missing_row(id, attempts, self._audit.node, self._group_of(attempts[0].app))
            for id, attempts in found.items()
            if id not in written
        ]
        if rows:
            _log.warning(
                "%s had no audit row when their daemon was killed; written from the ledger",
                counted(len(rows), "call"),
            )
        for first in range(0, len(rows), _AT_ONCE):
            for row in rows[first : first + _AT_ONCE]:
                self._audit.append(row)
            await self._audit.aflush()

    def _written(self, ids: Iterable[str], since: float) -> set[str]:
        """The calls that already have a row in the log."""
        wanted = set(ids)
        return {
            call.call_id
            for _, call in calls(self._audit.path, committed_since=since)
            if call.call_id in wanted and call.attempts
        }


def missing_row(
    id: str, attempts: Sequence[UnauditedEntry], node: str, group: str
) -> AuditEnvelope:
    """The row of a call, made from the entries of its attempts."""
    first, last = attempts[0], attempts[-1]
    billed = [one for one in attempts if one.kind == "billed"]
    known = billed[-1] if billed else last
    is_free = all(one.kind == "free" for one in attempts)
    interrupted = any(one.interrupted for one in attempts)
    ended = "ok" if last.kind == "billed" else "unknown"
    return AuditEnvelope(
        at=round(first.at, 6),
        app=label(first.app),
        group=label(group) if group else "",
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
        recovered=KilledNode(node=label(node), epoch=first.epoch),
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
