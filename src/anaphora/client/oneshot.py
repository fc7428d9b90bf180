"""A call outside any session: rendered, planned, sent and priced. Only its beginning is remembered,
so that a later call with the same beginning can be cached; of a conversation that the app sends
with each call, also the prompt, so that the next call can be judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from anaphora.cache.plan import SingleCallPlanner, is_conversation
from anaphora.cache.sent_call import reply_lines
from anaphora.cache.verdict import SentCall, saved_usd
from anaphora.cache.verdict.judgement import ComparedCall, ComparedCalls
from anaphora.catalog import Price
from anaphora.errors import InvalidRequest, NotFound
from anaphora.prompt import Call
from anaphora.rendered import Plan, Rendered

from .arguments import check_results, extras_of, prompt_from, tools_of, with_leading_system
from .content import Content, messages_of
from .in_flight import InFlight, PreparedRequest, TurnRequest
from .observe import Watchers
from .options import PARAM_KEYWORDS, CallOptions, refuse_both
from .parameters import with_params
from .response import Response
from .structured import Structured
from .target import Target
from .turn import Caller

#: Where a call holds what a keyword of `send` stands for.
_PLACES_IN_CALL = {
    "system": "ir.system_text or ir.system_blocks",
    "tools": "tools",
    "cache": "ir.cache",
    "extras": "extras",
}


class OneShot(Caller):
    """Makes one call that the app has built."""

    def __init__(
        self,
        call: Call,
        targets: Sequence[Target],
        *,
        on_wait: Callable[[float], None] | None,
        watchers: Watchers,
        compared: ComparedCalls | None = None,
    ) -> None:
        """`compared` has the earlier calls of conversations, if this is one of them."""
        super().__init__(timeout=None, on_wait=on_wait, watchers=watchers)
        self._compared = compared
        self._call = call
        self._targets = targets
        self._planners: dict[int, SingleCallPlanner] = {}

    def _targets_for(self, request: TurnRequest) -> Sequence[Target]:  # noqa: ARG002
        return self._targets

    async def prepare(self, flight: InFlight, index: int, again: bool) -> PreparedRequest:
        target = self._targets[index]
        call = self._call_at(target, flight.request.output, stream=flight.stream)
        if again:  # without the stored response, all messages are sent
            ir = msgspec.structs.replace(call.ir, continuation=None)
            call = msgspec.structs.replace(call, ir=ir)
        rendered = target.render(call)
        now = time.time()
        plan = self._plan(index, rendered, now)
        return PreparedRequest(
            call=call,
            rendered=rendered,
            plan=plan,
            at=now,
            outgoing=target.endpoint.outgoing(target.endpoint.wire.assemble(rendered, plan)),
            prepare_again_on=(NotFound,) if call.ir.has_continued() else (),
        )

    def _call_at(self, target: Target, output: Structured[Any] | None, *, stream: bool) -> Call:
        """The call as this target gets it."""
        changes: dict[str, Any] = {}
        if stream:
            changes["stream"] = True
        if output is not None:
            changes["output"] = output.output
        return target.with_defaults(self._call, changes)

    def _plan(self, index: int, rendered: Rendered, at: float) -> Plan:
        planner = SingleCallPlanner(self._targets[index].memory, rendered)
        self._planners[index] = planner
        reuse_expected = planner.reuse_expected
        if self._compared is not None and not reuse_expected:
            reuse_expected = is_conversation(rendered) or _is_mostly_shared(rendered)
        return planner.plan(rendered, at=at, reuse_expected=reuse_expected)

    def _judge(self, flight: InFlight, prepared: PreparedRequest, price: Price | None) -> None:
        """Adds the verdict to a call of a conversation."""
        assert self._compared is not None
        assert flight.reply is not None
        sent = SentCall(
            rendered=prepared.rendered,
            plan=prepared.plan,
            at=flight.sent_at,
            began=flight.first_at,
            usage=flight.reply.usage,
            reply_lines=reply_lines(flight.reply.message),
            complete=not prepared.call.ir.has_continued(),
        )
        target, call = flight.target, ComparedCall(sent=sent)
        flight.verdict = self._compared.judge(
            call,
            flight.reply.id,
            scope=(target.endpoint.id, target.endpoint.wire_name, target.model),
            rules=target.begun().rules,
            price=price,
            profile=target.profile,
        )
        flight.predicted = flight.verdict.predicted
        target.learn(flight.reply.usage.read, conversation=call.conversation)

    def _finish(self, flight: InFlight) -> Response:
        reply, prepared = flight.reply, flight.prepared[flight.index]
        assert reply is not None
        if not flight.batch:  # batches have a cache of their own
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
        if self._compared is not None and not flight.batch:
            flight.guarded("verdict_failed", None, self._judge, flight, prepared, price)
        elif not flight.batch:
            flight.target.learn(reply.usage.read, conversation=object())
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


def _is_mostly_shared(rendered: Rendered) -> bool:
    """Whether tools and system prompt, with which other calls begin, are most of the prompt."""
    sizes = [(run.section != "messages", run.size) for run in rendered.runs]
    return 2 * sum(size for shared, size in sizes if shared) > sum(size for _, size in sizes)


def call_of(content: Call | Content, model: str, options: CallOptions) -> Call:
    """The call that the arguments of `send` stand for."""
    if not isinstance(content, Call):
        if isinstance(content, Iterator):
            content = tuple(content)
        if content is None:
            raise InvalidRequest("is missing; give a text or messages", path="content")
        system, messages = with_leading_system(options.get("system"), content, messages_of(content))
        if not messages:
            raise InvalidRequest("there is no message besides the system prompt", path="content")
        if len(messages) > 1:
            check_results(messages)
        tools = tools_of(options.get("tools")).source.current
        return Call(
            ir=prompt_from(system, options.get("cache"), messages),
            model=model,
            tools=tools,
            params=with_params(options.get("params"), options, tools),
            extras=extras_of(options.get("extras")),
        )
    refuse_both(options, "a Call", _PLACES_IN_CALL)
    params = content.params
    if not PARAM_KEYWORDS.isdisjoint(options) or "params" in options:
        params = with_params(options.get("params", params), options, content.tools)
    elif params.stream:  # awaiting or iterating decides
        params = msgspec.structs.replace(params, stream=False)
    return content if params is content.params else msgspec.structs.replace(content, params=params)
