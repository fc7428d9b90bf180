"""What is kept of a call: its record for the audit log and for `llm.explain`, its figures for
metrics, and the refusals."""

from __future__ import annotations

from msgspec.structs import replace

from anaphora.client.failures import without_details
from anaphora.client.in_flight import InFlight
from anaphora.client.observe import EndedCall, OwnBill
from anaphora.client.response import Record
from anaphora.daemon.calls.call import AppCall, CallOutcome, CallTools
from anaphora.errors import Denied
from anaphora.values import Notice

from . import CallStep


class AuditCall(CallStep):
    """Puts the row of each call into the queue of the audit log, which makes and writes it in a
    thread of its own."""

    name = "audit"

    def __init__(self, tools: CallTools) -> None:
        self._tools = tools
        self._watchers = tools.watchers
        self._audit = tools.watchers.audit

    async def before(self, call: AppCall) -> None:  # noqa: ARG002
        """Raises where rows are required and cannot be written."""
        if self._audit is not None:
            self._audit.check()

    def after(self, call: AppCall, outcome: CallOutcome) -> None:
        flight, record, error = call.flight, call.record, outcome.error
        assert flight is not None
        if isinstance(error, Denied) and not call.sent:  # it gets a row among the refusals
            self._tools.denials.refuse(call, error)
        elif self._audit is not None and record is not None:
            notices = flight.guarded("audit_failed", (), self._add_row, call, flight, record)
            notices += flight.take_notices()
            if notices and call.reply is not None:
                call.reply.notices += without_details(notices)

    def _add_row(self, call: AppCall, flight: InFlight, record: Record) -> tuple[Notice, ...]:
        assert self._audit is not None
        later = getattr(self._audit, "call_ended_later", self._audit.call_ended)
        notices: tuple[Notice, ...] = later(ended_call(call, flight, record))
        return notices

    def behind(self, call: AppCall) -> None:
        record, reply = call.record, call.reply
        if record is not None:
            call.record = None
            self._watchers(record)
            if reply is not None:
                self._tools.explanations.add(call, reply)
                self._tools.texts.add(call, reply)


def ended_call(call: AppCall, flight: InFlight, record: Record) -> EndedCall:
    """What the audit log gets."""
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
        EndedCall.of(flight, record),
        own=own,
        unbilled_nano_usd=call.unbilled,
        conversation=conversation,
        turn=turn,
        app=call.app.id,
        call_id=call.request_id,
        method=call.method,
        ignored=call.ignored,
    )
