"""A call on its own: rendered, marked, sent and priced, and nothing remembered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from anaphora.cache import plan
from anaphora.cache.verdict.money import dollars_saved
from anaphora.errors import NotFound
from anaphora.prompt import Call
from anaphora.tokens import Counts

from .answered import Answered
from .asking import Asked
from .calling import Calling, Underway
from .composing import fitted
from .delivered import Delivered, Prepared
from .endpoint import Stop
from .observe.watchers import Watchers
from .recording import answered_record, shares
from .structured import Structured
from .writing import Account, Written, dollars_of


class OneShot(Calling):
    """One call that an app has made itself."""

    def __init__(
        self,
        call: Call,
        stops: Sequence[Stop],
        *,
        output: Structured[Any] | None,
        timeout: float | None,
        on_wait: Callable[[float], None] | None,
        watchers: Watchers,
    ) -> None:
        super().__init__(timeout=timeout, on_wait=on_wait, watchers=watchers)
        self._call = call
        self._stops = stops
        self._output = output

    def _stops_of(self, asked: Asked) -> Sequence[Stop]:  # noqa: ARG002
        return self._stops

    async def _prepare(self, underway: Underway, at: int, whole: bool) -> Prepared:
        stop = self._stops[at]
        endpoint, model = stop.endpoint, stop.model
        changes: dict[str, Any] = {}
        if underway.stream:
            changes["stream"] = True
        if self._output is not None:
            changes["output"] = self._output.output
        call = fitted(self._call, endpoint.config, endpoint.home, model.name, changes)
        if whole:
            ir = msgspec.structs.replace(call.ir, continuation=None)
            call = msgspec.structs.replace(call, ir=ir)
        rendered = endpoint.wire.render(call, model.profile)
        written = Written(
            call=call, rendered=rendered, plan=plan(rendered, model.rules), at=time.time()
        )
        underway.written[at] = written, ()
        return Prepared(
            outgoing=endpoint.outgoing(endpoint.wire.assemble(rendered, written.plan)),
            tokens=lambda: Counts(rendered).total,
            gone=(NotFound,) if call.ir.continuation is not None else (),
        )

    def _finish(self, underway: Underway, delivered: Delivered) -> Answered:
        stop, reply = self._stops[delivered.stop], delivered.reply
        written, notices = underway.written[delivered.stop]
        tier = written.call.params.service_tier or ""
        price = stop.endpoint.price(stop.model.name, delivered.at, tier)
        account = Account(
            dollars=dollars_of(reply.usage, price, written.plan),
            saved=dollars_saved(reply.usage, price),
        )
        record = underway.record = answered_record(
            underway,
            delivered,
            written.call,
            account,
            notices=(*written.rendered.notices, *written.plan.notices, *notices, *reply.notices),
            blocks=shares(written.rendered) if self._watchers else (),
        )
        parsed = None if self._output is None else self._output.of(reply)
        return Answered(reply=reply, record=record, raw_hash=delivered.raw_hash, parsed=parsed)
