"""Administrator's methods for the ledger: its entries, and corrections of a call's cost. Used by
commands and the running daemon, like those of `anaphora.daemon.admin`."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta

from anaphora.audit.envelope import CorrectionRow
from anaphora.audit.log import AuditLog
from anaphora.daemon.access.grants import APP_ID, exact_usd
from anaphora.daemon.admin import Admin, AdminParams
from anaphora.daemon.home.amounts import nano_usd_of
from anaphora.daemon.store import CorrectedEntry, Entry, EntryQuery
from anaphora.daemon.store.interface import Store
from anaphora.errors import AnaphoraError, InvalidRequest

_log = logging.getLogger("anaphora.daemon")

MOST_ENTRIES = 1_000
_LONGEST_REASON, _LONGEST_NAME = 500, 200
_ID = re.compile(r"[\w.-]{1,80}", re.ASCII)
#: An entry's id, or its beginning: the call's start in milliseconds since 1970.
_PLACE = re.compile(r"[0-9a-f]{12,64}(\.[0-9]{4,8})?", re.ASCII)
#: Seconds that a correction waits for its row in the audit log.
_AUDIT_SECONDS = 10.0


class EntriesParams(AdminParams, frozen=True):
    app: str | None = None
    since: Annotated[float, Meta(ge=0, le=1e11)] | None = None
    """Seconds since 1970."""
    before: str = ""
    """An entry's id: lists only earlier entries."""
    limit: Annotated[int, Meta(ge=1, le=MOST_ENTRIES)] = 100


class CorrectParams(AdminParams, frozen=True):
    entry: str
    usd: str
    """The actual cost of the call, in decimal digits."""
    reason: str
    by: str = "an administrator"


class SpendAdmin:
    def __init__(
        self, store: Store, audit: AuditLog | None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._audit = audit
        self._clock = clock

    def register(self, admin: Admin) -> None:
        admin.register("admin.spend.entries", EntriesParams, self.list_entries)
        admin.register("admin.spend.correct", CorrectParams, self.correct)

    async def list_entries(self, params: EntriesParams) -> dict[str, Any]:
        """The newest first."""
        if params.app is not None and not APP_ID.match(params.app):
            raise InvalidRequest("is not the id of an app", path="app")
        check_before(params.before)
        query = EntryQuery(
            app=params.app, since=params.since, before=params.before, limit=params.limit
        )
        return listed(await self._store.entries(query), params.limit)

    async def correct(self, params: CorrectParams) -> dict[str, Any]:
        """Sets the actual cost of a call. Replaces an earlier correction."""
        amount = nano_usd_of(params.usd)
        reason = _text(params.reason, "reason", _LONGEST_REASON)
        by = _text(params.by, "by", _LONGEST_NAME)
        _check_id(params.entry, "entry")
        done = await self._store.correct(params.entry, amount, reason)
        warnings = []
        if done.booked:
            _log.info(
                "entry %s of %s was corrected from %s to %s by %s",
                done.entry, done.app, exact_usd(done.before), exact_usd(done.after), by,
            )  # fmt: skip
            warnings += await self._audited(done, reason, by)
        return {
            "entry": done.entry,
            "correction": done.id,
            "app": done.app,
            "request_id": done.request_id,
            "day": done.day,
            "before_nano_usd": done.before,
            "after_nano_usd": done.after,
            "booked": done.booked,
            "warnings": warnings,
        }

    async def _audited(self, done: CorrectedEntry, reason: str, by: str) -> list[str]:
        """Writes the audit row. The correction is booked even if that fails."""
        if self._audit is None:
            return ["this daemon writes no audit log (audit: false in llm.yaml)"]
        row = CorrectionRow(
            at=self._clock(),
            app=done.app,
            by=by,
            entry=done.entry,
            correction=done.id,
            call_id=done.request_id,
            before_nano_usd=done.before,
            after_nano_usd=done.after,
            reason=reason,
        )
        self._audit.append_correction(row)
        try:
            await self._audit.aflush(_AUDIT_SECONDS)
        except AnaphoraError as problem:
            return [f"the row of the audit log is not written yet: {problem}"]
        return []


def check_before(id: str) -> None:
    """Raises `InvalidRequest` if a text is not an entry's id: all entries, or none, would be before
    it."""
    if id and not _PLACE.fullmatch(id):
        raise InvalidRequest(
            "is not the id of an entry: `anaphora spend entries` lists them", path="before"
        )


def _check_id(id: str, path: str) -> None:
    if not _ID.fullmatch(id):
        raise InvalidRequest("is not the id of an entry", path=path)


def _text(text: str, path: str, longest: int) -> str:
    text = text.strip()
    if not text:
        raise InvalidRequest("must not be empty", path=path)
    if len(text) > longest:
        raise InvalidRequest(f"has {len(text):,} characters; at most {longest} fit", path=path)
    if not text.isprintable():
        raise InvalidRequest("must be one line, without control characters", path=path)
    return text


def listed(entries: list[Entry], limit: int) -> dict[str, Any]:
    """Entries as JSON values, and the id to continue with if there are more."""
    shown = entries[:limit]
    return {
        "entries": [_entry(one) for one in shown],
        "next": shown[-1].id if len(entries) > limit else None,
    }


def _entry(entry: Entry) -> dict[str, Any]:
    value: dict[str, Any] = {
        "id": entry.id,
        "request_id": entry.request_id,
        "app": entry.app,
        "provider": entry.provider,
        "model": entry.model,
        "day": entry.day,
        "at": entry.at,
        "settled_at": entry.settled_at,
        "kind": entry.kind,
        "billed_nano_usd": entry.billed,
    }
    if entry.budget:
        value |= {"budget": entry.budget, "budget_label": entry.budget_label}
    if entry.kind == "correction":
        return value | {"corrects": entry.corrects, "reason": entry.reason}
    counts = {name: getattr(entry, name) for name in ("input", "read", "written", "output")}
    return value | {"bound_nano_usd": entry.bound, **counts}
