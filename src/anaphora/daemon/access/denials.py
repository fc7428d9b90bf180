"""Audit rows of refused calls: the first refusal at once, repeats summed up in one row per
minute."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from msgspec.structs import replace

from anaphora.audit.envelope import AuditEnvelope
from anaphora.audit.log import AuditLog
from anaphora.client.failures import log
from anaphora.client.observe.export import label, outcome, word
from anaphora.daemon.values import App, kind_of
from anaphora.errors import AnaphoraError, GrantExceeded

_MINUTE = 60.0
#: Maximum number of different refusals counted at the same time.
_MOST_KINDS = 1000


class DenialLog:
    """Counts refusals. Never raises: the app gets its refusal even if the row cannot be written."""

    def __init__(
        self,
        audit: AuditLog | None,
        clock: Callable[[], float],
        note: Callable[[str, AnaphoraError], None],
    ) -> None:
        """`note` gets the request id and the error of each refusal."""
        self._audit = audit
        self._note = note
        self._clock = clock
        self._repeats: dict[tuple[str, ...], AuditEnvelope] = {}
        """The repeats of the current minute, by their common fields."""
        self._minute = 0.0
        self.counts: Counter[tuple[str, str]] = Counter()
        """Refusals since the start, by app and kind."""
        self.on_exceeded: Callable[[str, GrantExceeded], None] | None = None
        """Called with each app that has used up a limit in dollars."""

    def add(
        self,
        app: App,
        method: str,
        error: AnaphoraError,
        *,
        request_id: str = "",
        provider: str = "",
        model: str = "",
        ignored: tuple[str, ...] = (),
    ) -> None:
        self.counts[app.id, kind_of(error)] += 1
        self._note(request_id, error)
        if self.on_exceeded is not None and isinstance(error, GrantExceeded):
            self.on_exceeded(app.id, error)
        if self._audit is None:
            return
        now = self._clock()
        if not self._is_current(now) or len(self._repeats) >= _MOST_KINDS:
            self.close()
            self._minute = now
        kind, status = type(error).__name__, getattr(error, "status", None)
        key = app.owner, method, kind, provider, model, getattr(error, "param", None) or ""
        before = self._repeats.get(key)
        if before is not None:
            self._repeats[key] = replace(before, repeats=before.repeats + 1)
            return
        row = AuditEnvelope(
            at=round(now, 6),
            app=label(app.id),
            group=label(app.grant.group) if app.grant.group else "",
            budget=app.budget,
            budget_label=label(app.label) if app.label else "",
            adapter="daemon",
            method=label(method),
            provider=label(provider),
            model=word(model) if model else "",
            call_id=word(request_id) if request_id else "",
            outcome=outcome(kind),
            status=status,
            attempts=0,
            ignored=tuple(label(name) for name in ignored),
        )
        self._write(row)
        self._repeats[key] = replace(row, repeats=0)

    def _is_current(self, now: float) -> bool:
        return 0 <= now - self._minute < _MINUTE

    def write_minute(self) -> None:
        """Writes the repeats of the last minute once it is over. Called periodically."""
        if self._repeats and not self._is_current(self._clock()):
            self.close()

    def close(self) -> None:
        """Writes the repeats so far."""
        rows, self._repeats = self._repeats, {}
        for row in rows.values():
            if row.repeats:
                self._write(row)

    def _write(self, row: AuditEnvelope) -> None:
        assert self._audit is not None
        try:
            self._audit.append(row)
        except Exception as problem:
            log(logging.ERROR, f"a refusal was not audited: {type(problem).__name__}", problem)
