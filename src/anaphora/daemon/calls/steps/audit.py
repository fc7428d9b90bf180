"""Records a call: its audit row, its data for `llm.explain`, its figures for metrics, and
refusals."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from anaphora.audit.log import AuditLog
from anaphora.bounded import BoundedMap
from anaphora.client.failures import log, reported
from anaphora.client.in_flight import InFlight
from anaphora.client.observe import EndedCall, OwnBill
from anaphora.client.response import Record
from anaphora.daemon.calls.behind import AnsweredCall, AnsweredCalls
from anaphora.daemon.calls.call import AppCall, AppReply, CallOutcome, CallTools
from anaphora.daemon.calls.pipeline import CallStep
from anaphora.daemon.values import app_of
from anaphora.errors import AnaphoraError, Denied, StoreUnavailable
from anaphora.values import Notice

from .answer import public_notices

#: Maximum number of kept calls: per app, and in total.
_MOST_OF_APP, _MOST_APPS = 256, 64
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


# ── Calls that can be explained ───────────────────────────────────────────────────────────────────


class Explanations:
    """The last calls of each app that this node made, for `llm.explain`."""

    def __init__(self) -> None:
        self._apps = BoundedMap[str, BoundedMap[tuple[str, str], AppReply]](_MOST_APPS)
        """By app; the calls by owner and request id."""
        self.before_find: Callable[[], None] = lambda: None
        """Adds the calls that are still to be added."""

    def add(self, call: AppCall, reply: AppReply) -> None:
        app, owner = call.app.id, call.app.owner
        calls = self._apps.use(app)
        if calls is None:
            calls = self._apps[app] = BoundedMap(_MOST_OF_APP)
        # Without the reply: only figures are kept.
        kept = replace(reply, body=None, reply=None)
        calls[owner, call.request_id] = kept

    def find(self, owner: str, request_id: str) -> dict[str, Any] | None:
        self.before_find()
        calls = self._apps.get(app_of(owner))
        reply = None if calls is None else calls.get((owner, request_id))
        return None if reply is None else _explained(request_id, reply)


def _explained(request_id: str, reply: AppReply) -> dict[str, Any]:
    usage = reply.usage
    return {
        "request_id": request_id,
        "provider": reply.provider,
        "model": reply.model,
        "usage": {
            "uncached": usage.uncached,
            "read": usage.read,
            "written": dict(usage.written) if usage.written is not None else None,
            "output": usage.output,
        },
        "cost_usd": None if reply.cost_usd is None else str(reply.cost_usd),
        "verdict": None if reply.verdict is None else _verdict(reply),
        "notices": [
            {"code": notice.code, "message": notice.message, "path": notice.path}
            for notice in reply.notices
        ],
    }


def _verdict(reply: AppReply) -> dict[str, Any]:
    verdict = reply.verdict
    assert verdict is not None
    change = verdict.change
    return {
        "result": verdict.result,
        "sentence": str(verdict),
        "causes": [cause.kind for cause in verdict.causes],
        "change": None
        if change is None
        else {"kind": change.kind, "label": change.label, "section": change.section},
        "cached_before": verdict.left,
        "predicted": verdict.predicted,
        "read": verdict.billed,
        "lost": verdict.lost,
        "remedy": None if verdict.remedy is None else verdict.remedy.fields(),
        "lost_usd": None if verdict.cost_usd is None else str(verdict.cost_usd),
        "saved_usd": None if verdict.saved is None else str(verdict.saved),
    }


#: Maximum number of kept breaks; the oldest are dropped.
MOST_TEXTS = 2_000


class BreakText(msgspec.Struct, frozen=True):
    """The place and text of a change of a prompt."""

    field: str
    position: int | None
    excerpts: tuple[str, str]


class CallTexts:
    """Texts for the dashboard, by request id: the messages of errors, and the text around changes
    that broke the cache. That text and the messages of providers, which may quote a prompt, are
    kept only if the operator has set `ui: {show_text: true}`. Thread-safe."""

    def __init__(self, message: Callable[[AnaphoraError, bool], str]) -> None:
        """`message` gets an error, and whether the text of a provider may be kept."""
        self._message = message
        self._texts = BoundedMap[str, BreakText](MOST_TEXTS)
        self._errors = BoundedMap[str, str](MOST_TEXTS)
        self._lock = threading.Lock()
        self._allowed = False

    @property
    def allowed(self) -> bool:
        return self._allowed

    def allow(self, allowed: bool) -> None:
        with self._lock:
            if not allowed and self._allowed:
                self._texts.clear()
                self._errors.clear()
            self._allowed = allowed

    def add(self, call: AppCall, reply: AppReply) -> None:
        verdict = reply.verdict
        if not self._allowed or verdict is None or not verdict.broke:
            return
        change = verdict.change
        if change is None:
            return
        text = BreakText(change.path, change.character, change.excerpts)
        with self._lock:
            if self._allowed:
                self._texts[call.request_id] = text

    def find(self, request_id: str) -> BreakText | None:
        with self._lock:
            return self._texts.get(request_id)

    def add_error(self, request_id: str, error: AnaphoraError) -> None:
        """The message that the app gets."""
        text = self._message(error, self._allowed)
        if text and request_id:
            with self._lock:
                self._errors[request_id] = text

    def error(self, request_id: str) -> str:
        with self._lock:
            return self._errors.get(request_id, "")
