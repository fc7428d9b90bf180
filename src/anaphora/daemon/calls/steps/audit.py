"""Records a call: its audit row, its data for `llm.explain`, its figures for metrics, and
refusals."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from msgspec.structs import replace

from anaphora.audit.log import AuditLog
from anaphora.client.failures import log, reported
from anaphora.client.in_flight import InFlight
from anaphora.client.observe import EndedCall, OwnBill
from anaphora.client.response import Record
from anaphora.daemon.calls.behind import AnsweredCall, AnsweredCalls
from anaphora.daemon.calls.call import AppCall, CallOutcome
from anaphora.daemon.calls.pipeline import CallStep, CallTools
from anaphora.errors import AnaphoraError, Denied, StoreUnavailable
from anaphora.values import Notice

from .answer import public_notices

#: Seconds that a call waits for room in the audit log's queue, and between looks at it.
_MOST_SECONDS, _LOOK_SECONDS = 30.0, 0.05


class AuditCall(CallStep):
    """Queues each call behind its answer. From there, its row goes to the audit log, which makes
    and writes it in its own thread, and its figures to the watchers."""

    name = "audit"

    def __init__(self, tools: CallTools) -> None:
        self._tools = tools
        self._watchers = tools.watchers
        audit = tools.watchers.audit
        assert audit is None or isinstance(audit, AuditLog)
        self._audit = audit
        self.answered = AnsweredCalls(self._finish)
        tools.explanations.before_find = self.answered.finish

    async def before(self, call: AppCall) -> None:  # noqa: ARG002
        """Raises if rows are required and cannot be written. Waits if no more rows can wait to be
        written."""
        audit = self._audit
        if audit is None:
            return
        audit.check()
        if audit.is_full:
            deadline = time.monotonic() + _MOST_SECONDS
            while audit.is_full:
                if time.monotonic() > deadline:
                    raise StoreUnavailable("no more rows can wait for the audit log")
                await asyncio.sleep(_LOOK_SECONDS)

    def after(self, call: AppCall, outcome: CallOutcome) -> None:
        flight, error, audit = call.flight, outcome.error, self._audit
        assert flight is not None
        if isinstance(error, Denied) and not call.sent:  # it gets a row among the refusals
            self._tools.refuse(call, error)
            call.audited = True
            return
        if isinstance(error, AnaphoraError):
            self._tools.texts.add_error(call.request_id, error)
        notices: tuple[Notice, ...] = ()
        if audit is not None and audit.failing and call.record is not None:
            notices = self._add_rows([call])  # now, so that the app gets a notice
        notices += flight.take_notices()
        if notices and call.reply is not None:
            call.reply.notices += public_notices(notices)

    def behind(self, call: AppCall) -> None:
        if call.record is not None:
            self.answered.add(call)

    def _finish(self, answered: Sequence[AnsweredCall]) -> None:
        if self._watchers:
            for one in answered:
                _add_blocks(one.call)
        self._add_rows([one.call for one in answered if not one.call.audited])
        explanations, texts = self._tools.explanations, self._tools.texts
        for one in answered:
            call = one.call
            record, reply, call.record = call.record, call.reply, None
            assert record is not None
            one.context.run(self._watchers, record)
            if reply is not None:
                try:
                    explanations.add(call, reply)
                    texts.add(call, reply)
                except Exception as problem:
                    log(logging.ERROR, "a call cannot be explained", problem)

    def _add_rows(self, calls: Sequence[AppCall]) -> tuple[Notice, ...]:
        if self._audit is None:
            return ()
        rows: list[EndedCall] = []
        for call in calls:
            call.audited, flight, record = True, call.flight, call.record
            assert flight is not None
            assert record is not None
            row = flight.guarded("audit_failed", None, ended_call, call, flight, record)
            if row is not None:
                rows.append(row)
        try:
            return self._audit.calls_ended(rows)
        except Exception as problem:
            return (reported("audit_failed", problem),)


def _add_blocks(call: AppCall) -> None:
    """Adds the tokens by block to the record of an answered call."""
    flight, record = call.flight, call.record
    if flight is not None and record is not None and flight.reply is not None:
        # Mostly computed for the settlement.
        prepared = flight.prepared[flight.index]
        blocks = prepared.known_shares
        if blocks is None:
            blocks = flight.guarded("record_failed", (), prepared.block_shares)
        call.record = replace(record, blocks=blocks)


def ended_call(call: AppCall, flight: InFlight, record: Record) -> EndedCall:
    """The call as the audit log gets it."""
    own, remembered = None, call.remembered
    if call.hidden or call.shown_unbilled != call.unbilled:
        own = OwnBill(
            usage=call.usage,
            cost_usd=call.shown_usd,
            saved=call.saved,
            unbilled_nano_usd=call.shown_unbilled,
        )
    conversation, turn = call.conversation or ("", 0)
    if remembered is not None:
        conversation, turn = remembered.conversation, remembered.turn
    return replace(
        flight.ended_call(record),
        own=own,
        unbilled_nano_usd=call.unbilled,
        conversation=conversation,
        turn=turn,
        app=call.app.id,
        group=call.app.grant.group,
        budget=call.app.budget,
        budget_label=call.app.label,
        call_id=call.request_id,
        method=call.method,
        ignored=call.ignored,
    )
