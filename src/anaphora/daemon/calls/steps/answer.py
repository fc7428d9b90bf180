"""The answer to a call: what the app may see of it, and the verdict on its cache."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from msgspec.structs import replace

from anaphora.cache.verdict import Verdict, diagnosis_of, saved_usd
from anaphora.client.failures import STEPS
from anaphora.client.in_flight import InFlight, service_tier
from anaphora.client.response import Record
from anaphora.daemon.access.isolation import own_extras, own_reply, own_usage
from anaphora.daemon.calls.call import (
    AppCall,
    AppReply,
    CallOutcome,
    StreamHead,
    StreamPiece,
)
from anaphora.daemon.calls.pipeline import CallStep, CallTools
from anaphora.errors import Timeout
from anaphora.values import Event, Notice, Reply, ReplyEnd, ReplyStart, Usage, UsageUpdate
from anaphora.wire.response_headers import REQUEST_IDS
from anaphora.wire.strict_json import LARGE

from .settle import own_reads


class RelayAnswer(CallStep):
    """Turns a provider's answer into what the app may see."""

    name = "relay"

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
        # The blocks of the prompt are added behind the answer.
        record = flight.build_record(
            prepared,
            (*notices, *reply.notices),
            observed=False,
        )
        if call.left is not None:
            record = flight.record = replace(record, error=call.left.__name__)
        call.record, call.reply = record, _app_reply(call, flight, reply, record)


def stream_head(call: AppCall, flight: InFlight, events: tuple[Event, ...]) -> StreamHead:
    """Sets the call's head when the first events of a stream have arrived."""
    target, prepared = flight.target, flight.prepared[flight.index]
    if call.judge_early is not None:
        call.judge_early()
    if call.masked:
        call.own = own_reads(call, target.rules)
    start: ReplyStart | None = None
    for event in events:
        if isinstance(event, ReplyStart):
            start = event
            break
    return StreamHead(
        request_id=call.request_id,
        provider=target.endpoint.id,
        wire=target.endpoint.base_wire,
        model=(start.model if start is not None else "") or target.model,
        # Usage comes later: whether it must be masked is not known yet.
        passes_bytes=call.passes_bytes and not call.masked,
        reply_id="" if start is None else start.id,
        headers=_passed(flight),
        verdict=call.early,
        notices=(
            *prepared.rendered.notices,
            *prepared.plan.notices,
            *prepared.notices,
        ),
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
        # Passing bytes through only if nothing is hidden would reveal whether something is.
        body=flight.body if call.passes_bytes and not call.masked else None,
        headers=_passed(flight),
        usage=call.usage,
        most_usage=most,
        cost_usd=call.shown_usd if call.hidden else flight.cost_usd,
        verdict=flight.verdict,
        notices=public_notices(record.notices),
        attempts=record.attempts,
    )


def _masked(call: AppCall, event: Event) -> Event:
    """An event whose usage excludes what other apps wrote."""
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
    names = list(filter(headers.__contains__, REQUEST_IDS))
    if len(names) == 1 and flight.request_id is not None:
        return ((names[0], flight.request_id),)
    return tuple((name, redactor(headers[name])) for name in names)


def public_notices(notices: tuple[Notice, ...]) -> tuple[Notice, ...]:
    """The notices for other programs, without internal details of a failure."""
    if not notices or not any(notice.code in STEPS for notice in notices):
        return notices
    return tuple(
        Notice(notice.code, f"{STEPS[notice.code]} failed after the answer arrived")
        if notice.code in STEPS
        else notice
        for notice in notices
    )


class JudgeCache(CallStep):
    """Judges a stream early, while waiting for the provider, and each call by its bill."""

    name = "judge"

    def __init__(self, tools: CallTools) -> None:
        self._memory = tools.memory
        self._off_loop = tools.off_loop

    async def before(self, call: AppCall) -> None:
        assert call.flight is not None
        if call.flight.stream:
            call.judge_early = partial(self._judge_early, call)
            if _takes_long(call):
                await self._off_loop.run(call.app.id, call.judge_early)
            else:
                # Done while waiting for the provider, so that it does not delay the first byte.
                asyncio.get_running_loop().call_soon(call.judge_early)

    async def judge_ahead(self, call: AppCall) -> None:
        """Makes the verdict on an answered call in a thread if that takes long. A call that is
        cancelled meanwhile has none."""
        if not call.judged and _takes_long(call):
            call.judged = True
            await self._off_loop.run(call.app.id, partial(self._judge, call))

    def _judge_early(self, call: AppCall) -> None:
        """The verdict by the cache rules alone, once for each attempt."""
        if call.judge_early is not None:
            call.judge_early, flight = None, call.flight
            assert flight is not None
            call.early = flight.guarded("verdict_failed", None, self._verdict, call, flight, None)

    def after(self, call: AppCall, outcome: CallOutcome) -> None:
        flight = call.flight
        if outcome.error is not None or flight is None or flight.reply is None:
            return
        charge(call, flight, flight.reply)
        if not call.judged:
            self._judge(call)
        remembered = call.remembered
        if remembered is not None:
            flight.guarded("verdict_failed", None, self._memory.answered, remembered)

    def _judge(self, call: AppCall) -> None:
        """The verdict by the bill."""
        flight = call.flight
        assert flight is not None
        verdict = flight.guarded("verdict_failed", None, self._verdict, call, flight, flight.reply)
        flight.verdict = verdict
        flight.predicted = None if verdict is None else verdict.predicted

    def _verdict(self, call: AppCall, flight: InFlight, reply: Reply | None) -> Verdict | None:
        """Without `reply`, the verdict before the bill."""
        remembered, target = call.remembered, flight.target
        if remembered is None:
            return None
        # How much of a read is the app's own is computed by the catalog's rules.
        learned = None if call.masked else remembered.rules
        tier = service_tier(flight.prepared[flight.index])
        diagnosis = None
        if reply is not None and reply.extras and not call.masked:
            diagnosis = diagnosis_of(reply)
        return remembered.judge(
            target.rules if learned is None else learned,
            price=target.price(flight.sent_at or time.time(), tier),
            profile=target.profile,
            diagnosis=diagnosis,
        )


def _takes_long(call: AppCall) -> bool:
    """Whether a large part of a prompt is compared."""
    remembered = call.remembered
    if remembered is None:
        return False
    earlier, last = remembered.earlier, remembered.last
    if call.is_large:
        return earlier is not None or last is not None
    if earlier is None:
        return last is not None and last.sent.rendered.size > LARGE
    before = earlier.call.sent.rendered
    return before.size - before.offset(min(earlier.chunks, len(before))) > LARGE


def charge(call: AppCall, flight: InFlight, reply: Reply) -> None:
    """Computes the cost of a call that was not settled by its bill. If the usage is impossible, the
    bound is charged."""
    if flight.cost_usd is None and not call.disputed:
        price = flight.charge(flight.prepared[flight.index], reply.usage)
        flight.saved = flight.guarded("price_failed", None, saved_usd, reply.usage, price)
