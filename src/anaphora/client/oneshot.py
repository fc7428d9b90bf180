"""A call outside any session, alone or in a fan-out: rendered, planned, sent and priced. Only its
beginning is remembered, so that a later call with the same beginning can be cached. If the app
sends a whole conversation with each call, the prompt is remembered as well, to judge the next
call."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Hashable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
from blake3 import blake3

from anaphora.cache.plan import SingleCallPlanner, is_conversation, reuse_requested
from anaphora.cache.plan.groups import PrefixGroup, shared_plan
from anaphora.cache.sent_call import reply_lines
from anaphora.cache.verdict import SentCall, saved_usd
from anaphora.cache.verdict.judgement import ComparedCall, ComparedCalls
from anaphora.catalog import Price
from anaphora.errors import AnaphoraError, NotFound, Throttled, Unavailable
from anaphora.prompt import Call
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import Counts
from anaphora.values import Ttl, Usage, UsageUpdate
from anaphora.wire.dialect.routers import answering_host

from .cold_guard import ColdGuard
from .in_flight import InFlight, PreparedRequest, TurnRequest
from .observe import Watchers
from .response import Response
from .structured import Structured
from .target import Target
from .turn import Caller, Turn

if TYPE_CHECKING:
    from .preview import Preview

#: The longest wait in seconds between two attempts of a call that rate limits hold back.
_MOST_WAIT = 30.0
#: How many times a call waits for an open circuit breaker.
_BREAKER_WAITS = 3
#: Expected output tokens of a call without a limit, before any reply has arrived.
_USUAL_OUTPUT = 1024


class CallWatch:
    """Signals when a response began, and when it has read enough from the cache."""

    def __init__(self, enough: float) -> None:
        self.began = asyncio.Event()
        self.proved = asyncio.Event()
        """Set once it has read at least `enough` tokens."""
        self.news = asyncio.Event()
        """Set then, or when the call has ended."""
        self.prewarm = False
        """Whether it is a pre-warm, which has no reply."""
        self._enough = enough

    def reads(self, usage: Usage) -> None:
        if (usage.read or 0) >= self._enough:
            self.proved.set()
            self.news.set()

    def ended(self) -> None:
        self.began.set()
        self.news.set()


class OneShot(Caller):
    """Makes one call that the app has built. In a fan-out its prompt may share its beginning with
    others."""

    def __init__(
        self,
        call: Call,
        targets: Sequence[Target],
        *,
        on_wait: Callable[[float], None] | None,
        watchers: Watchers,
        compared: ComparedCalls | None = None,
        output: Structured[Any] | None = None,
        timeout: float | None = None,
        prewarm: bool = False,
    ) -> None:
        """`compared` has the earlier calls of conversations, if this is one of them."""
        super().__init__(timeout=None, on_wait=on_wait, watchers=watchers)
        self.request = TurnRequest(output=output, timeout=timeout, prewarm=prewarm)
        self._compared = compared
        self._call = call
        self._targets = targets
        self._planners: dict[int, SingleCallPlanner] = {}
        self._began: Callable[[], None] | None = None
        self.group: PrefixGroup | None = None
        """The group whose beginning it marks; None: it is planned like a single call."""
        self.ttl: Ttl | None = None
        self._known: ComparedCalls | None = None
        self._shared = 0
        self.lost_usd: Decimal | None = None
        """The cost of a reply that could not be used."""

    def _targets_for(self, request: TurnRequest) -> Sequence[Target]:  # noqa: ARG002
        return self._targets

    def guard(self, cold: ColdGuard, known: ComparedCalls) -> None:
        """Checks the call before it is sent. `known` are the calls made with a guard."""
        self.request = msgspec.structs.replace(self.request, cold=cold)
        self._known = known

    async def check_shared(self, cold: ColdGuard, known: ComparedCalls, tokens: int = 0) -> None:
        """Checks the call before it waits for others. The first `tokens` are written by those."""
        self._known, self._shared = known, tokens
        await self.check_cold(InFlight(self.request, self._targets[:1], False), cold)

    async def preview(self, flight: InFlight) -> Preview:
        from .session.preview import preview_single

        prepared = await self.prepare(flight, 0, False)
        known, scope = self._known, _scope_of(self.target)
        earlier = None if known is None else known.index.find(prepared.rendered, scope=scope)
        return preview_single(self.target, prepared, earlier, self._shared)

    async def prepare(self, flight: InFlight, index: int, again: bool) -> PreparedRequest:
        target = self._targets[index]
        call = self._call_at(target, flight.request.output, stream=flight.stream)
        if again:  # without the stored response, all messages are sent
            ir = msgspec.structs.replace(call.ir, continuation=None)
            call = msgspec.structs.replace(call, ir=ir)
        rendered = target.render(call)
        now = time.time()
        self._planner(index, rendered)
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
        """The call for this target."""
        changes: dict[str, Any] = {}
        if stream:
            changes["stream"] = True
        if output is not None:
            changes["output"] = output.output
        return target.with_defaults(self._call, changes)

    def _planner(self, index: int, rendered: Rendered) -> SingleCallPlanner:
        planner = SingleCallPlanner(self._targets[index].memory, rendered)
        self._planners[index] = planner
        return planner

    def _plan(self, index: int, rendered: Rendered, at: float) -> Plan:
        planner = self._planners[index]
        if self.group is not None and not index:
            planned = planner.plan(rendered, at=at, reuse_expected=reuse_requested(rendered))
            return shared_plan(rendered, planned, self.group, self.target.rules, self.ttl)
        reuse_expected = planner.reuse_expected
        if self._compared is not None and not reuse_expected:
            reuse_expected = is_conversation(rendered) or _is_mostly_shared(rendered)
        return planner.plan(rendered, at=at, reuse_expected=reuse_expected)

    def _sent(self, flight: InFlight, prepared: PreparedRequest) -> SentCall:
        """The answered call."""
        assert flight.reply is not None
        return SentCall(
            rendered=prepared.rendered,
            plan=prepared.plan,
            at=flight.sent_at,
            began=flight.first_at,
            usage=flight.reply.usage,
            reply_lines=reply_lines(flight.reply.message),
            complete=not prepared.call.ir.has_continued(),
            host=answering_host(
                flight.reply, flight.headers, flight.target.endpoint.resolved.dialect
            ),
        )

    def _judge(self, flight: InFlight, prepared: PreparedRequest, price: Price | None) -> None:
        """Adds the verdict to a call of a conversation."""
        assert self._compared is not None
        assert flight.reply is not None
        target, call = flight.target, ComparedCall(sent=self._sent(flight, prepared))
        flight.verdict = self._compared.judge(
            call,
            flight.reply.id,
            scope=_scope_of(target),
            rules=target.endpoint.begun(target).rules,
            price=price,
            profile=target.profile,
        )
        flight.predicted = flight.verdict.predicted
        target.learn(flight.reply.usage.read, conversation=call.conversation)

    def _remember(self, known: ComparedCalls, flight: InFlight) -> None:
        """Keeps the call, for the guard of later ones."""
        prepared = flight.prepared[flight.index]
        call = ComparedCall(sent=self._sent(flight, prepared))
        known.index.add(prepared.rendered, call, scope=_scope_of(flight.target))

    def _finish(self, flight: InFlight) -> Response:
        reply, prepared = flight.reply, flight.prepared[flight.index]
        assert reply is not None
        planner, rendered = self._planners[flight.index], prepared.rendered
        if not flight.batch:  # batches have a separate cache
            flight.guarded(
                "planner_failed",
                None,
                planner.sent_single,
                rendered,
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
            if self._known is not None:
                flight.guarded("verdict_failed", None, self._remember, self._known, flight)
        record = flight.build_record(
            prepared,
            (*prepared.rendered.notices, *prepared.plan.notices, *reply.notices),
            observed=bool(self.watchers),
        )
        output = flight.request.output
        return Response(
            reply=reply,
            record=record,
            raw_hash=flight.raw_hash,
            parsed=None if output is None else output.parse_reply(reply),
        )

    # ── In a fan-out ─────────────────────────────────────────────────────────────────────────────

    @property
    def target(self) -> Target:
        return self._targets[0]

    @property
    def output(self) -> Structured[Any] | None:
        return self.request.output

    @property
    def timeout(self) -> float | None:
        """The time limit of the call in seconds."""
        given = self.request.timeout
        return self.target.endpoint.config.timeouts.total if given is None else given

    @property
    def prompt(self) -> Call:
        """The call for its first target."""
        return self._call_at(self.target, self.output, stream=False)

    def render(self) -> Rendered:
        """The call, rendered for its first target."""
        return self.target.render(self.prompt)

    def assembled(self) -> tuple[str, tuple[tuple[str, str], ...], bytes]:
        """Path, headers and body of the request: for a batch."""
        rendered = self.render()
        self._planner(0, rendered)
        plan = self._plan(0, rendered, time.time())
        request = self.target.endpoint.wire.assemble(rendered, plan)
        return request.path, request.headers, request.body.join()

    def read_batched(self, body: bytes, *, at: float) -> Response[Any]:
        """The response of a request that ran in a batch; `at` is when the batch was submitted."""
        flight = InFlight(self.request, self._targets[:1], False)
        flight.batch, flight.began, flight.sent_at, flight.first_at = True, at, at, time.time()
        rendered = self.render()
        self._planner(0, rendered)
        flight.prepared[0] = PreparedRequest(
            call=self.prompt,
            rendered=rendered,
            plan=self._plan(0, rendered, at),
            at=at,
        )
        try:
            flight.reply = self.target.endpoint.wire.read_reply(body)
            flight.body, flight.raw_hash = body, blake3(body).hexdigest()
            return self._respond(flight)
        except AnaphoraError as problem:
            self._failed(flight, problem)
            raise

    def prewarm(self) -> OneShot:
        """A call that only writes the shared beginning. Raises `InvalidRequest` if a parameter does
        not allow that."""
        cache, endpoint = self._call.ir.cache, self.target.endpoint
        explicit = endpoint.features.adds_breakpoints and cache.mode is None
        mode = "explicit" if explicit else cache.mode
        cache = msgspec.structs.replace(cache, prewarm=True, mode=mode)
        ir = msgspec.structs.replace(self._call.ir, cache=cache)
        call = OneShot(
            msgspec.structs.replace(self._call, ir=ir),
            self._targets[:1],
            on_wait=self._on_wait,
            watchers=self.watchers,
            output=self.output,
            timeout=self.request.timeout,
            prewarm=True,
        )
        call.group, call.ttl = self.group, self.ttl
        call.budget = self.budget
        call.render()
        return call

    async def send(self, watch: CallWatch | None = None) -> Response[Any]:
        """The response. Waits for rate limits without a time limit."""
        waits = 0
        while True:
            try:
                return await self._send_once(watch)
            except Throttled as problem:
                if not math.isfinite(problem.wait):  # no minute has room for it
                    raise
                await asyncio.sleep(min(max(problem.wait, 1.0), _MOST_WAIT))
            except Unavailable as problem:
                waits += 1
                if waits > _BREAKER_WAITS:
                    raise
                await asyncio.sleep(problem.wait)

    async def _send_once(self, watch: CallWatch | None) -> Response[Any]:
        turn: Turn[Any] = Turn(self, self.request)
        if watch is None or self.request.prewarm:
            return await turn
        self._began = watch.began.set
        async for event in turn:
            if isinstance(event, UsageUpdate):
                watch.reads(event.usage)
        assert turn.response is not None
        watch.reads(turn.response.usage)
        return turn.response

    def response_began(self) -> None:
        if self._began is not None:
            self._began()

    def _failed(self, flight: InFlight, problem: BaseException) -> None:
        self.lost_usd = flight.cost_usd
        super()._failed(flight, problem)

    def most_tokens(self, rendered: Rendered) -> int:
        """The estimated maximum of billed input tokens."""
        return Counts(rendered).bounds(self.target.profile.token_error.value)[1]

    def bound_usd(self, tokens: int, price: Price, usual_output: int) -> Decimal | None:
        """The estimated maximum cost; None if the price lacks a rate. Without a limit of output
        tokens, the usual number is assumed."""
        limit = self._call_at(self.target, None, stream=False).params.max_tokens
        output = max(usual_output, _USUAL_OUTPUT) if limit is None else limit
        usage = Usage(uncached=tokens, read=0, output=output)
        if self.ttl is not None:
            usage = Usage(uncached=0, read=0, written={self.ttl: tokens}, output=output)
        return price.of(usage, marked=self.ttl is not None)


def _scope_of(target: Target) -> Hashable:
    """The owner of a cache."""
    return target.endpoint.id, target.endpoint.wire_name, target.model


def _is_mostly_shared(rendered: Rendered) -> bool:
    """Whether tools and system prompt, which other calls may share, are most of the prompt."""
    sizes = [(run.section != "messages", run.size) for run in rendered.runs]
    return 2 * sum(size for shared, size in sizes if shared) > sum(size for _, size in sizes)
