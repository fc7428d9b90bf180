"""Builds the record of a call."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from anaphora.prompt import Call
from anaphora.rendered import Rendered
from anaphora.tokens import Counts
from anaphora.values import Notice

from .delivered import Delivered
from .record import BlockShare, Record
from .writing import Account, Written

if TYPE_CHECKING:
    from .calling import Underway


def record_of(
    underway: Underway,
    delivered: Delivered,
    written: Written,
    account: Account,
    *,
    notices: tuple[Notice, ...],
    watched: bool,
) -> Record:
    """The record of a call that was answered, with what was reported until now. Never fails."""
    after = underway.after
    blocks = after.run("record_failed", (), shares, written.rendered) if watched else ()
    notices += after.take()
    try:
        record = answered_record(
            underway, delivered, written.call, account, notices=notices, blocks=blocks
        )
    except Exception as problem:
        after.failed("record_failed", problem)
        record = _essentials(underway, delivered, account, notices + after.take())
    underway.record = record
    return record


def answered_record(
    underway: Underway,
    delivered: Delivered,
    call: Call,
    account: Account,
    *,
    notices: tuple[Notice, ...],
    blocks: tuple[BlockShare, ...],
) -> Record:
    stop, reply, began = underway.stops[delivered.stop], delivered.reply, underway.began
    return Record(
        operation=underway.operation,
        provider=stop.endpoint.id,
        system=stop.endpoint.system,
        wire=stop.endpoint.wire_name,
        host=stop.endpoint.host,
        model=stop.model.name,
        answered_by=reply.model,
        response_id=reply.id,
        request_id=delivered.request_id,
        streamed=call.params.stream,
        at=began,
        first=delivered.first - began,
        seconds=time.time() - began,
        attempts=tuple(underway.delivery.tries),
        max_tokens=call.params.max_tokens,
        temperature=call.params.temperature,
        stop=reply.stop,
        usage=reply.usage,
        predicted=account.predicted,
        verdict=account.verdict,
        cost_usd=account.cost_usd,
        saved=account.saved,
        blocks=blocks,
        notices=notices,
    )


def _essentials(
    underway: Underway, delivered: Delivered, account: Account, notices: tuple[Notice, ...]
) -> Record:
    """The essentials: who answered, what it used and what it cost."""
    stop, reply = underway.stops[delivered.stop], delivered.reply
    return Record(
        operation=underway.operation,
        provider=stop.endpoint.id,
        system=stop.endpoint.system,
        wire=stop.endpoint.wire_name,
        host=stop.endpoint.host,
        model=stop.model.name,
        streamed=underway.stream,
        at=underway.began,
        seconds=time.time() - underway.began,
        usage=reply.usage,
        cost_usd=account.cost_usd,
        notices=notices,
    )


def failed_record(underway: Underway, error: BaseException) -> Record:
    """Of a call without an answer; or with one, which was of no use."""
    if underway.record is not None:
        return msgspec.structs.replace(underway.record, error=type(error).__name__)
    delivery, began = underway.delivery, underway.began
    stop = underway.stops[delivery.at]
    return Record(
        operation=underway.operation,
        provider=stop.endpoint.id,
        system=stop.endpoint.system,
        wire=stop.endpoint.wire_name,
        host=stop.endpoint.host,
        model=stop.model.name,
        streamed=underway.stream,
        at=began,
        seconds=time.time() - began,
        attempts=tuple(delivery.tries),
        error=type(error).__name__,
    )


def shares(rendered: Rendered) -> tuple[BlockShare, ...]:
    """How the prompt's tokens are spread: every tool and system block by its label, the messages
    by their segment."""
    return tuple(_shares(rendered))


def _shares(rendered: Rendered) -> Iterable[BlockShare]:
    counts = Counts(rendered)
    last = done = 0
    for run in rendered.runs:
        messages = run.section == "messages"
        for chunk in (run.count - 1,) if messages else range(run.count):
            before, done = done, counts.tokens(last + chunk + 1)
            if messages:
                label = run.role.value if run.role is not None else "messages"
            else:
                label = run.label(chunk)
            yield BlockShare(label=label, section=run.section, tokens=done - before)
        last += run.count
