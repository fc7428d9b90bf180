"""A call outside any session: rendered, planned, sent and priced. All that is remembered of it is
its beginning, so that a later call which begins alike can be cached."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from anaphora.cache.plan import SingleCallPlanner
from anaphora.cache.verdict import saved_usd
from anaphora.errors import NotFound
from anaphora.prompt import Call
from anaphora.tokens import Counts

from .asking import Asked
from .calling import Calling, Underway
from .composing import fitted
from .delivered import Delivered, Prepared
from .endpoint import Stop
from .observe import Watchers
from .recording import record_of
from .response import Response
from .structured import Structured
from .writing import Account, Written, cost


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
        self._planners: dict[int, SingleCallPlanner] = {}

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
        now = time.time()
        planner = SingleCallPlanner(model.memory, rendered)
        plan = planner.plan(rendered, at=now, reuse_expected=planner.reuse_expected)
        written = Written(call=call, rendered=rendered, plan=plan, at=now)
        underway.written[at] = written, ()
        self._planners[at] = planner
        return Prepared(
            outgoing=endpoint.outgoing(endpoint.wire.assemble(rendered, written.plan)),
            tokens=lambda: Counts(rendered).total,
            # Without the stored response the rest of the conversation is sent, if it is there.
            gone=(NotFound,) if call.ir.has_continued() else (),
        )

    def _finish(self, underway: Underway, delivered: Delivered) -> Response:
        stop, reply = self._stops[delivered.stop], delivered.reply
        written, notices = underway.written[delivered.stop]
        after = underway.after
        planner = self._planners[delivered.stop]
        after.run(
            "planner_failed",
            None,
            planner.sent_single,
            written.rendered,
            written.plan,
            at=delivered.at,
            began=delivered.first,
        )
        price, cost_usd = cost(stop, written, reply.usage, delivered.at, after)
        saved = after.run("price_failed", None, saved_usd, reply.usage, price)
        record = record_of(
            underway,
            delivered,
            written,
            Account(cost_usd=cost_usd, saved=saved),
            notices=(*written.rendered.notices, *written.plan.notices, *notices, *reply.notices),
            watched=bool(self._watchers),
        )
        parsed = None if self._output is None else self._output.parse_reply(reply)
        return Response(reply=reply, record=record, raw_hash=delivered.raw_hash, parsed=parsed)
