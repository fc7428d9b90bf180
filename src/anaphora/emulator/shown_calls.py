"""The journal's calls as pages show them."""

from __future__ import annotations

import secrets

from anaphora.audit.call_rows import BlockDigests, blocks_of, usage_row, verdict_fields
from anaphora.audit.envelope import AuditEnvelope, AuditUsage
from anaphora.bounded import BoundedMap
from anaphora.cache.verdict import Verdict
from anaphora.catalog.prices import nano_usd
from anaphora.dashboard.values import ShownCall

from .journal import CallRecord, JournalEntry

#: Calls whose conversation is remembered.
_MOST_CALLS = 10_000
_FIRST_ERROR = 400


class ShownCalls:
    """Converts journal entries, in order, and remembers their conversations."""

    def __init__(self) -> None:
        self._digests = BlockDigests(secrets.token_bytes(32))
        self._turns = BoundedMap[int, tuple[str, int]](_MOST_CALLS)
        """The conversation and the turn of each call, by its number."""

    def make(self, entry: JournalEntry) -> ShownCall | None:
        """The row of a page; None for a request without a model call: a list of models, a stored
        file."""
        if entry.billed is None and not entry.error and not entry.fault:
            return None
        verdict = entry.judged
        change = None if verdict is None else verdict.change
        return ShownCall(
            id=str(entry.number),
            call=self._row(entry, entry.billed, verdict),
            sentence=_sentence(entry),
            excerpts=None if change is None else change.excerpts,
            field="" if change is None else change.path,
            position=None if change is None else change.character,
        )

    def _row(
        self, entry: JournalEntry, billed: CallRecord | None, verdict: Verdict | None
    ) -> AuditEnvelope:
        failed = entry.error or entry.status >= _FIRST_ERROR or billed is None
        usage = None if billed is None else billed.outcome.usage(entry.output)
        details = entry.details or {}
        cost_usd = None
        if usage is not None and billed is not None and entry.price is not None:
            cost_usd = entry.price.of(usage, marked=bool(billed.sent.marks.marks))
        conversation, turn = ("", 0) if billed is None else self._turn(entry, details)
        return AuditEnvelope(
            at=entry.at,
            adapter="emulator",
            provider=entry.provider,
            system=entry.provider,
            wire=entry.wire,
            model=entry.model or f"{entry.method} {entry.path}",
            request_id=entry.request_id or None,
            response_id=entry.reply_id or None,
            method=entry.path,
            operation=entry.operation or "chat",
            outcome="Upstream" if failed else "ok",
            status=entry.status or None,
            streamed=entry.stream,
            usage=AuditUsage() if usage is None else usage_row(usage),
            predicted=None if verdict is None else verdict.predicted,
            cost_nano_usd=nano_usd(cost_usd),
            output_nano_usd=None
            if entry.price is None or usage is None
            else nano_usd(entry.price.of_output(usage)),
            saved_nano_usd=None if verdict is None else nano_usd(verdict.saved),
            **({} if verdict is None else verdict_fields(verdict)),
            automatic=None if billed is None else billed.sent.marks.automatic,
            conversation=conversation,
            turn=turn,
            blocks=()
            if billed is None
            else blocks_of(billed.sent.rendered, billed.sent.marks, self._digests),
        )

    def _turn(self, entry: JournalEntry, details: dict[str, object]) -> tuple[str, int]:
        """A call is the next turn of the one that it continues, or the first of a conversation."""
        before, turn = details.get("compared_with"), (str(entry.number), 1)
        if details.get("same_conversation") and isinstance(before, int) and before in self._turns:
            conversation, number = self._turns[before]
            turn = conversation, number + 1
        self._turns[entry.number] = turn
        return turn


def _sentence(entry: JournalEntry) -> str:
    """The error or the verdict, the injected fault, and the stored prompt that was read."""
    details = entry.details or {}
    verdict = "" if entry.judged is None else entry.judged.describe(excerpts=False)
    verdict = verdict or details.get("verdict", {}).get("sentence", "")
    parts = [f"Fault: {entry.fault}." if entry.fault else "", entry.error or verdict]
    if held := details.get("held"):
        parts.append(f"Read from {held}.")
    return " ".join(filter(None, parts))
