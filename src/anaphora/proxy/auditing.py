"""Rows of an audit log for relayed calls, written to the log or kept in memory."""

from __future__ import annotations

import secrets

from blake3 import blake3

from anaphora.audit.call_rows import usage_row
from anaphora.audit.envelope import AuditBlock, AuditEnvelope, code
from anaphora.audit.log import AuditLog
from anaphora.catalog.prices import nano_usd
from anaphora.client.observe.export import block_label, label, word
from anaphora.traffic.calls import OUTCOMES, RelayedCall
from anaphora.traffic.judging import Judge
from anaphora.traffic.sums import JudgedCall
from anaphora.values import Usage
from anaphora.wire.response_headers import request_id_in

#: Substrings of the content types of streams.
_STREAMS = ("event-stream", "eventstream", "ndjson")


class ProxyAudit:
    """An observer that keeps a row of each model call. It must come after the judge, whose verdicts
    it keeps: `observers=[judge, ProxyAudit(log, judge)]`."""

    def __init__(self, log: AuditLog, judge: Judge) -> None:
        self._log = log
        self._judge = judge
        self._run = secrets.token_hex(6)
        """Makes the numbers of conversations unique within the log."""

    def call_ended(self, call: RelayedCall) -> None:
        judged = self._judge.last
        if judged is None or judged.number != call.number or judged.kind not in OUTCOMES:
            return
        blocks: tuple[AuditBlock, ...] = ()
        prompt_hash = ""
        sent = self._judge.last_sent
        if sent is not None:
            blocks, prompt_hash = self._log.describe(sent.rendered, sent.marks)
        elif call.request_body is not None:
            prompt_hash = self._log.digest(call.sent_body or call.request_body)
        conversation = f"{self._run}-{judged.conversation}" if judged.conversation else ""
        self._log.append(row_of_call(call, judged, blocks, prompt_hash, conversation))


def row_of_call(
    call: RelayedCall,
    judged: JudgedCall,
    blocks: tuple[AuditBlock, ...],
    prompt_hash: str,
    conversation: str,
) -> AuditEnvelope:
    """The row of a judged call. No text of the call reaches it."""
    verdict, usage = judged.verdict, judged.usage or Usage()
    change = judged.change if judged.broke else None
    request_id = request_id_in(dict(call.response_headers))
    return AuditEnvelope(
        at=round(judged.at, 6),
        adapter="proxy",
        provider=label(judged.provider),
        system=label(judged.provider),
        wire=word(judged.wire),
        model=word(judged.model) if judged.model else "",
        request_id=None if request_id is None else word(request_id),
        prompt_hash=prompt_hash,
        raw_hash=_raw_hash(call),
        outcome=OUTCOMES[judged.kind],
        status=judged.status or None,
        streamed=_streamed(call),
        first=None if call.began is None else round(call.began, 6),
        seconds=round(judged.seconds, 6),
        usage=usage_row(usage),
        predicted=None if judged.predicted is None else judged.predicted.read,
        cost_nano_usd=nano_usd(judged.cost_usd),
        output_nano_usd=nano_usd(judged.output_usd),
        saved_nano_usd=None if verdict is None else nano_usd(verdict.saved),
        verdict=None if verdict is None else verdict.result,
        cause=None if verdict is None else verdict.cause,
        broke=judged.broke,
        change=None if change is None else code(change.kind),
        changed=None if change is None else block_label(change.label, change.section),
        lost=judged.lost,
        lost_nano_usd=nano_usd(judged.lost_usd),
        notices=tuple(code(notice.code) for notice in call.notices),
        conversation=conversation,
        turn=judged.turn,
        blocks=blocks,
    )


def _streamed(call: RelayedCall) -> bool:
    """Gemini streams a JSON array unless the request asks for events."""
    content_type = dict(call.response_headers).get("content-type", "").lower()
    if any(kind in content_type for kind in _STREAMS):
        return True
    return any(piece.data.lstrip()[:1] == b"[" for piece in (call.pieces or ())[:1])


def _raw_hash(call: RelayedCall) -> str:
    """Hash of the response as relayed, still encoded; empty if it was not kept."""
    if not call.pieces:
        return ""
    state = blake3()
    for piece in call.pieces:
        state.update(piece.data)
    return state.hexdigest()
