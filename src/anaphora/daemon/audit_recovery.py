"""Audit rows of calls whose daemon was killed before it had written them.

The ledger marks each settlement until the row of its call is durable. What is marked when a daemon
has ended gets a row here, in this node's chain, unless the log has one: the mark is removed some
time after the row was committed, and the process may be killed in between, this one included.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from anaphora.audit.envelope import AuditEnvelope, AuditUsage, KilledNode, OwnFigures
from anaphora.audit.reading import calls
from anaphora.client.failures import log
from anaphora.client.observe.export import label, word
from anaphora.errors import AnaphoraError, StoreUnavailable
from anaphora.wording import counted

from .store import UnauditedEntry

if TYPE_CHECKING:
    from anaphora.audit.log import AuditLog
    from anaphora.audit.log_postgres import PostgresLog

    from .money.ledger import Ledger
    from .store.postgres.epoch import OnFenced

_log = logging.getLogger("anaphora.daemon")

#: Seconds that the clocks of a node and of the log may differ, generously.
_SKEW = 120.0
#: Rows that are committed together.
_AT_ONCE = 1_000
#: Seconds between two looks at what other nodes have left.
_LOOK_SECONDS = 2.0


class AuditRecovery:
    """Writes the rows that are missing."""

    def __init__(self, ledger: Ledger, audit: AuditLog, place: Path | PostgresLog) -> None:
        self._ledger = ledger
        self._store = ledger.store
        self._audit = audit
        self._place = place
        self._taken: list[UnauditedEntry] = []
        """Entries that the log has still to be searched for: the store gives them once."""
        self._left: list[AuditEnvelope] = []
        """Rows that are still to be written."""

    async def begin(self) -> None:
        """Before the first hold: from now on the store marks settlements for this log."""
        self._audit.follow_calls(self._ledger.audited)
        self._taken += await self._store.unaudited()
        await self._store.begin_audit(self._audit.epoch)
        await self._add()
        await self._write()

    def follow_fences(self, on_fenced: list[OnFenced]) -> None:
        """With several nodes: `on_fenced` is what the store calls. Before the first hold."""
        self._ledger.notes_calls = True
        on_fenced.append(self._fenced)

    def _fenced(self) -> None:
        """Other nodes have taken this one for dead: they write the rows of its calls under way, and
        of those that have ended just now. Later rows of the same calls would be second ones."""
        self._audit.leave_out(self._ledger.unaudited_calls())

    async def run(self) -> None:
        """With several nodes: what those that died have left, until it is cancelled."""
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
        """Those of the calls that the log has a row of."""
        wanted = set(ids)
        return {
            call.call_id
            for _, call in calls(self._place, committed_since=since)
            if call.call_id in wanted and call.attempts
        }

    async def _write(self) -> None:
        """The marks are removed when the rows are durable. Raises `Io` where they are not; what is
        left is for the next time."""
        while self._left:
            rows, self._left = self._left[:_AT_ONCE], self._left[_AT_ONCE:]
            for row in rows:
                self._audit.append(row)
            await self._audit.aflush()


def missing_row(id: str, attempts: Sequence[UnauditedEntry], node: str) -> AuditEnvelope:
    """The row of a call, from the entries of its attempts; `node` is that of a store with one."""
    first, last = attempts[0], attempts[-1]
    billed = [one for one in attempts if one.kind == "billed"]
    known = billed[-1] if billed else last
    is_free = all(one.kind == "free" for one in attempts)
    interrupted = any(one.interrupted for one in attempts)
    ended = "ok" if last.kind == "billed" else "unknown"
    return AuditEnvelope(
        at=round(first.at, 6),
        app=label(first.app),
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
    """As the app may see it, where it read what other apps wrote. What that would have cost it
    alone is not in the ledger."""
    hidden = [one for one in attempts if one.read_by_others]
    if not hidden:
        return None
    open_to_it = [one.billed for one in attempts if one.kind != "billed" and one not in hidden]
    return OwnFigures(
        usage=_usage(replace(known, read=max(0, known.read - known.read_by_others))),
        unbilled_nano_usd=sum(open_to_it),
    )


def _usage(entry: UnauditedEntry) -> AuditUsage:
    """The ledger does not tell a count of 0 from one that was not reported."""
    if not entry.input and not entry.output:
        return AuditUsage()
    return AuditUsage(
        uncached=max(0, entry.input - entry.read - entry.written),
        read=entry.read or None,
        written={"unsplit": entry.written} if entry.written else None,
        output=entry.output,
    )
