"""A call outside any session: rendered, planned, sent and priced. Only its beginning is remembered,
so that a later call with the same beginning can be cached."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from anaphora.cache.plan import SingleCallPlanner
from anaphora.cache.verdict import saved_usd
from anaphora.errors import NotFound
from anaphora.prompt import Call

from .endpoint import Target
from .in_flight import InFlight, PreparedRequest
from .observe import Watchers
from .response import Response
from .turn import Caller, TurnRequest


class OneShot(Caller):
    """Makes one call that the app has built."""

    def __init__(
        self,
        call: Call,
        targets: Sequence[Target],
        *,
        on_wait: Callable[[float], None] | None,
        watchers: Watchers,
    ) -> None:
        super().__init__(timeout=None, on_wait=on_wait, watchers=watchers)
        self._call = call
        self._targets = targets
        self._planners: dict[int, SingleCallPlanner] = {}

    def _targets_for(self, request: TurnRequest) -> Sequence[Target]:  # noqa: ARG002
        return self._targets

    async def prepare(self, flight: InFlight, index: int, again: bool) -> PreparedRequest:
        target, output = self._targets[index], flight.request.output
        wire = target.endpoint.wire
        changes: dict[str, Any] = {}
        if flight.stream:
            changes["stream"] = True
        if output is not None:
            changes["output"] = output.output
        call = target.with_defaults(self._call, changes)
        if again:  # without the stored response, all messages are sent
            ir = msgspec.structs.replace(call.ir, continuation=None)
            call = msgspec.structs.replace(call, ir=ir)
        rendered = target.render(call)
        now = time.time()
        planner = self._planners[index] = SingleCallPlanner(target.memory, rendered)
        plan = planner.plan(rendered, at=now, reuse_expected=planner.reuse_expected)
        return PreparedRequest(
            call=call,
            rendered=rendered,
            plan=plan,
            at=now,
            outgoing=target.endpoint.outgoing(wire.assemble(rendered, plan)),
            prepare_again_on=(NotFound,) if call.ir.has_continued() else (),
        )

    def _finish(self, flight: InFlight) -> Response:
        reply, prepared = flight.reply, flight.prepared[flight.index]
        assert reply is not None
        flight.guarded(
            "planner_failed",
            None,
            self._planners[flight.index].sent_single,
            prepared.rendered,
            prepared.plan,
            at=flight.sent_at,
            began=flight.first_at,
        )
        price = flight.charge(prepared, reply.usage)
        flight.saved = flight.guarded("price_failed", None, saved_usd, reply.usage, price)
        record = flight.build_record(
            prepared,
            (*prepared.rendered.notices, *prepared.plan.notices, *reply.notices),
            observed=bool(self._watchers),
        )
        output = flight.request.output
        return Response(
            reply=reply,
            record=record,
            raw_hash=flight.raw_hash,
            parsed=None if output is None else output.parse_reply(reply),
        )
