"""What an app sees of an answer: the head and the pieces of a stream, and the reply."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from anaphora.client.failures import STEPS
from anaphora.client.in_flight import InFlight
from anaphora.client.response import Record
from anaphora.daemon.access.isolation import own_extras, own_reply, own_usage
from anaphora.daemon.calls.call import (
    AppCall,
    AppReply,
    CallOutcome,
    CallTools,
    StreamHead,
    StreamPiece,
)
from anaphora.daemon.calls.pipeline import CallStep
from anaphora.errors import Timeout
from anaphora.values import Event, Notice, Reply, ReplyEnd, ReplyStart, Usage, UsageUpdate
from anaphora.wire.response_headers import REQUEST_IDS

from .settle import own_reads


class RelayAnswer(CallStep):
    """Makes of what a provider answers what the app may see."""

    name = "relay"

    def __init__(self, tools: CallTools) -> None:
        self._watched = bool(tools.watchers)

    def after(self, call: AppCall, outcome: CallOutcome) -> None:
        flight, error = call.flight, outcome.error
        assert flight is not None
        if error is not None:
            if call.left is not None or isinstance(error, GeneratorExit):
                error = Timeout(0) if call.left is Timeout else asyncio.CancelledError()
            call.record = flight.failed_record(error)
            return
        reply, prepared = flight.reply, flight.prepared[flight.index]
        assert reply is not None
        notices = (*prepared.rendered.notices, *prepared.plan.notices, *prepared.notices)
        record = flight.build_record(
            prepared, (*notices, *call.refreshed, *reply.notices), observed=self._watched
        )
        if call.left is not None:
            record = flight.record = replace(record, error=call.left.__name__)
        call.record, call.reply = record, _app_reply(call, flight, reply, record)


def stream_head(call: AppCall, flight: InFlight, events: tuple[Event, ...]) -> StreamHead:
    """When the first events of a stream have arrived."""
    target, prepared = flight.target, flight.prepared[flight.index]
    if call.judge_early is not None:
        call.judge_early()
    if call.masked:
        call.own = own_reads(call, target.rules)
    start = next((event for event in events if isinstance(event, ReplyStart)), None)
    return StreamHead(
        request_id=call.request_id,
        provider=target.endpoint.id,
        wire=target.endpoint.base_wire,
        model=(start.model if start is not None else "") or target.model,
        # Usage comes later: whether it has to be changed is not known yet.
        passes_bytes=call.passes_bytes and not call.masked,
        reply_id="" if start is None else start.id,
        headers=_passed(flight),
        verdict=call.early,
        notices=(*prepared.rendered.notices, *prepared.plan.notices, *prepared.notices),
    )


def stream_piece(call: AppCall, events: tuple[Event, ...], data: bytes) -> StreamPiece:
    assert call.head is not None
    if call.head.passes_bytes:
        return StreamPiece(events, data)
    if call.masked:
        events = tuple(_masked(call, event) for event in events)
    return StreamPiece(events)


def _app_reply(call: AppCall, flight: InFlight, reply: Reply, record: Record) -> AppReply:
    target, bound = flight.target, call.bound
    if call.masked:
        reply = own_reply(reply, call.usage)
    most = None
    if call.disputed:
        most = Usage(uncached=bound.input_tokens, output=bound.output_tokens)
    return AppReply(
        request_id=call.request_id,
        provider=target.endpoint.id,
        wire=target.endpoint.base_wire,
        model=reply.model or target.model,
        reply=reply,
        # Bytes that pass only where nothing is hidden would tell that.
        body=flight.body if call.passes_bytes and not call.masked else None,
        headers=_passed(flight),
        usage=call.usage,
        most_usage=most,
        cost_usd=call.shown_usd if call.hidden else flight.cost_usd,
        verdict=flight.verdict,
        notices=without_details(record.notices),
        attempts=record.attempts,
    )


def _masked(call: AppCall, event: Event) -> Event:
    """An event without what other apps wrote."""
    if isinstance(event, ReplyEnd):
        return ReplyEnd(own_reply(event.reply, call.usage))
    if isinstance(event, ReplyStart):
        return replace(event, extras=own_extras(event.extras))
    if isinstance(event, UsageUpdate):
        assert call.prepared is not None
        return UsageUpdate(own_usage(event.usage, call.own, call.prepared.plan)[0])
    return event


def _passed(flight: InFlight) -> tuple[tuple[str, str], ...]:
    """Headers of the provider's response that apps may see."""
    headers, redactor = flight.headers, flight.target.endpoint.redactor
    names = [name for name in REQUEST_IDS if name in headers]
    if len(names) == 1 and flight.request_id is not None:
        return ((names[0], flight.request_id),)
    return tuple((name, redactor(headers[name])) for name in names)


def without_details(notices: tuple[Notice, ...]) -> tuple[Notice, ...]:
    """The notices as other programs may see them: without what a failure says about this one."""
    if not any(notice.code in STEPS for notice in notices):
        return notices
    return tuple(
        Notice(notice.code, f"{STEPS[notice.code]} failed after the answer arrived")
        if notice.code in STEPS
        else notice
        for notice in notices
    )
