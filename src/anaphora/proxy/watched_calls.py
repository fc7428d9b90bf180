"""The calls of a watched program for the pages of the dashboard, with excerpts of what changed.

They are in memory only; a page or a report shows them.
"""

from __future__ import annotations

import secrets
from collections import deque

import msgspec

from anaphora.audit.call_rows import BlockDigests, blocks_of, usage_row
from anaphora.audit.envelope import AuditEnvelope
from anaphora.dashboard.past_calls.memory import MemoryCalls
from anaphora.dashboard.values import ShownCall
from anaphora.traffic.calls import OUTCOMES, JudgedCall, RelayedCall
from anaphora.traffic.judging import Judge

from .auditing import row_of_call

#: Notices that are kept: the latest.
_MOST_NOTICES = 20


class WatchedCalls:
    """An observer that follows the judge: `observers=[judge, WatchedCalls(judge)]`."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._digests = BlockDigests(secrets.token_bytes(32))
        self.source = MemoryCalls(is_side_call=self._is_side_call)
        self.notices: deque[tuple[int, str]] = deque(maxlen=_MOST_NOTICES)
        """The numbers of calls, and what was noticed in their responses."""

    def call_ended(self, call: RelayedCall) -> None:
        judged = self._judge.last
        if judged is None or judged.number != call.number:
            return
        self.notices.extend((judged.number, notice.message) for notice in judged.notices)
        if judged.kind in OUTCOMES:
            self.source.add(self._shown(call, judged))

    def _is_side_call(self, id: str) -> bool:
        return self._judge.totals.conversations[int(id) - 1].is_side_call

    def _shown(self, call: RelayedCall, judged: JudgedCall) -> ShownCall:
        sent, change = self._judge.last_sent, judged.change
        blocks = () if sent is None else blocks_of(sent.rendered, sent.marks, self._digests)
        conversation = str(judged.conversation) if judged.conversation else ""
        row = msgspec.structs.replace(
            row_of_call(call, judged, blocks, "", conversation),
            # As the program wrote it: rows of a log keep only what looks like a name.
            model=judged.model,
            predicted=_predicted_read(judged),
        )
        return ShownCall(
            id=str(judged.number),
            call=row,
            sentence=_sentence(judged),
            excerpts=None if change is None else change.excerpts,
            field="" if change is None else change.path,
            position=None if change is None else change.character,
            predicted=_predicted(row, judged),
        )


def _predicted_read(judged: JudgedCall) -> int | None:
    if judged.predicted is not None:
        return judged.predicted.read
    return None if judged.verdict is None else judged.verdict.predicted


def _predicted(row: AuditEnvelope, judged: JudgedCall) -> AuditEnvelope | None:
    if judged.predicted is None:
        return None
    return msgspec.structs.replace(row, usage=usage_row(judged.predicted))


def _sentence(judged: JudgedCall) -> str:
    """The verdict, or why there is none; the reason for a missing bill, and notices."""
    parts = [judged.sentence]
    if judged.verdict is not None and judged.reason:
        parts.append(f"No bill: {judged.reason}.")
    return " ".join([*parts, *(notice.message for notice in judged.notices)])
