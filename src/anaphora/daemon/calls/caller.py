"""One call of an app: prepared for each target that it tries, held before it is sent, settled and
judged afterwards.

Where a target speaks the wire of the app's request, the body goes through as it came, but for a few
fields and markers. Otherwise the request is parsed and rendered for the target.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from anaphora.cache.verdict import Verdict, diagnosis_of, saved_usd
from anaphora.client.attempts import Attempts
from anaphora.client.failures import without_details
from anaphora.client.in_flight import InFlight, PreparedRequest, service_tier
from anaphora.client.limits import Admission
from anaphora.client.observe import CallAudit, EndedCall, OwnBill, Watchers
from anaphora.client.response import Record, Response
from anaphora.client.target import Target
from anaphora.client.turn import Caller, TurnRequest
from anaphora.daemon.access.granted_models import without_bound
from anaphora.daemon.access.isolation import (
    OwnReads,
    SharedProviders,
    own_extras,
    own_reply,
    own_usage,
)
from anaphora.daemon.access.rates import GrantRates
from anaphora.daemon.faces import face_of
from anaphora.daemon.faces.framing import UsageFilter, WholeEvents
from anaphora.daemon.faces.openai import continued_tokens
from anaphora.daemon.facts.reading import RequestFacts
from anaphora.daemon.money.cut_calls import reads_on
from anaphora.daemon.money.late_bills import LateBills
from anaphora.daemon.money.ledger import Ledger
from anaphora.daemon.money.stored_history import (
    GrowingConversation,
    StoredHistory,
)
from anaphora.daemon.off_loop import OffLoop
from anaphora.daemon.shared_state import SharedState, Taken
from anaphora.daemon.values import App, AppCall, AppReply, StreamHead, StreamPiece
from anaphora.errors import Denied, NotGranted, Timeout
from anaphora.tokens import Counts
from anaphora.traffic.matching import RememberedCall
from anaphora.values import Event, Notice, Reply, ReplyEnd, ReplyStart, UsageUpdate
from anaphora.wire.response_headers import REQUEST_IDS

from .bill import CallBill
from .conversations import CallMemory
from .fair_admission import FairAdmission, SharedLimits
from .provider_news import ProviderNews
from .requests import RequestBuilder

if TYPE_CHECKING:
    from .keep_warm import PrefixRefresher
    from .reading_on import WaitedCall

ADAPTER = "daemon"


class CallTools(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What all calls of a daemon share."""

    ledger: Ledger
    rates: GrantRates
    memory: CallMemory
    shared: SharedProviders
    shared_state: SharedState
    news: ProviderNews
    watchers: Watchers
    lock: Callable[[str, str], asyncio.Lock]
    """Of an app at a provider."""
    explain: Callable[[AppCall, AppReply], None]
    """Keeps what is known of a call that was answered."""
    deny: Callable[[AppCall, Denied], None]
    """Notes a call that was refused before anything was sent."""
    history: StoredHistory
    late_bills: LateBills
    off_loop: OffLoop
    nearest: Callable[[App, str], str]
    """Names the granted model that is most similar to one, at the end of a message."""


class DelegatedCall(Caller):
    """Makes one call of an app. `targets` are those that its grant allows."""

    def __init__(
        self,
        tools: CallTools,
        call: AppCall,
        targets: Sequence[Target],
        facts: RequestFacts | None = None,
        stored_tokens: int | None = None,
        *,
        refresher: PrefixRefresher | None = None,
    ) -> None:
        """`refresher` keeps the prefix alive afterwards, where the grant allows that."""
        super().__init__(timeout=call.timeout, on_wait=None, watchers=tools.watchers)
        self._tools = tools
        self._call = call
        self._targets = targets
        self._refresher = refresher
        self._builder = RequestBuilder(
            tools.memory, tools.shared, call, facts, stored_tokens, off_loop=tools.off_loop
        )
        self._rated: Taken | None = None
        self._bill = CallBill(tools, call, self._builder)
        self._grown: list[GrowingConversation] = []
        self._sent = False
        """An attempt may have reached a provider."""
        self._own: OwnReads | None = None
        """What a stream may read of the app's own earlier calls."""
        self._refused = False
        """The daemon refused the call before anything was sent."""
        self._early: Verdict | None = None
        """Of a stream, before the bill."""
        self._is_judged = False
        self._head: StreamHead | None = None
        self._began = time.monotonic()
        self._flight: InFlight | None = None
        """Of the attempt under way."""
        self._left: type[BaseException] | None = None
        """Why the app does not wait any more."""
        self.waited: WaitedCall | None = None
        """The app that waits; None: there is none."""
        self.reply: AppReply | None = None

    # ── Calls ────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> AppReply:
        try:
            await self.complete(TurnRequest(timeout=self._call.timeout, adapter=ADAPTER))
        finally:
            if self._refresher is not None:
                self._refresher.ended(self._call.request_id)
            if self._grown:
                await self._end_conversations()
        assert self.reply is not None
        return self.reply

    async def pieces(self) -> AsyncGenerator[StreamPiece, None]:
        """The response by pieces; `head` is known with the first one, `reply` with the last."""
        if self._watchers.audit is not None:
            self._watchers.audit.check()
        request = TurnRequest(timeout=self._call.timeout, adapter=ADAPTER)
        flight = InFlight(request, self._targets, True)
        try:
            attempts = self._attempts(flight)
            async with aclosing(attempts.stream()) as pieces:
                whole: WholeEvents | UsageFilter = WholeEvents()
                async for found in pieces:
                    events, data = tuple(found), attempts.data
                    if events and isinstance(events[-1], ReplyEnd):
                        attempts.answered(events[-1].reply)
                    if self._head is None:
                        self._head = self._stream_head(flight, events)
                        hides = self._builder.hides_usage
                        ends = face_of(self._head.wire).event_ends
                        whole = UsageFilter() if hides else WholeEvents(ends)
                    if flight.reply is not None and self.reply is None:
                        self._respond(flight)
                    if self._left is None:
                        yield self._app_piece(events, whole.feed(data))
                if self._left is None and (rest := whole.close()):
                    yield self._app_piece((), rest)
        except BaseException as problem:
            self._failed(flight, problem)
            raise
        finally:
            if self._refresher is not None:
                self._refresher.ended(self._call.request_id)
            if self._grown:
                await self._end_conversations()

    # ── An app that has gone ─────────────────────────────────────────────────────────────────────

    @property
    def is_left(self) -> bool:
        return self._left is not None

    def left(self, problem: BaseException) -> None:
        """The app does not wait any more, and the answer is read on."""
        self._left = Timeout if isinstance(problem, Timeout) else asyncio.CancelledError

    def seconds_to_read_on(self) -> float:
        """How long the answer of the attempt under way is read when the app has gone; 0: the
        connection is closed, as where nothing was sent yet. A response in the background is billed
        when it is fetched."""
        flight, facts = self._flight, self._builder.facts
        if flight is None or flight.reply is not None or not self._bill.may_cost:
            return 0.0
        if facts is not None and facts.background:
            return 0.0
        if not reads_on(flight.target, stream=flight.stream):
            return 0.0
        total = flight.target.endpoint.config.timeouts.total
        return max(0.0, self._began + total - time.monotonic())

    def time_over(self) -> float:
        if self.waited is None or self._timeout is None:
            return 0.0
        if not self.waited.leave(Timeout(round(self._timeout * 1000))):
            return 0.0
        return self.seconds_to_read_on()

    async def _end_conversations(self) -> None:
        reply = None if self.reply is None or self._bill.disputed else self.reply.reply
        size = None if reply is None else continued_tokens(reply, reply.usage.total)
        grown, self._grown = self._grown, []
        await self._tools.history.end(grown, sent=self._sent, size=size)

    @property
    def head(self) -> StreamHead | None:
        return self._head

    # ── What `Caller` asks for ───────────────────────────────────────────────────────────────────

    def _targets_for(self, request: TurnRequest) -> Sequence[Target]:  # noqa: ARG002
        return self._targets

    async def prepare(self, flight: InFlight, index: int, again: bool) -> PreparedRequest:  # noqa: ARG002
        target = self._targets[index]
        prepared = await self._builder.build(target, stream=flight.stream)
        builder, app = self._builder, self._call.app.id
        if self._refresher is not None and builder.remembered is not None:
            self._refresher.began(builder.remembered.conversation, self._call.request_id)
        facts = builder.facts
        if facts is not None and facts.handles:
            history = self._tools.history
            builder.stored_tokens = await history.tokens(app, facts, target.endpoint.id)
        try:
            if self._call.is_large:
                await builder.work(prepared.block_shares)  # for its bill, and kept until then
            bound = self._bill.bound = await builder.work(lambda: builder.bound(prepared, target))
        except NotGranted as error:
            near = self._tools.nearest(self._call.app, target.model)
            raise without_bound(error, target, near) from None
        if facts is not None and facts.handles and not self._grown:
            self._grown = await history.begin(app, facts, bound.output_tokens)
        grant = self._call.app.grant.llm
        if self._rated is None and (grant.requests_per_minute or grant.tokens_per_minute):
            counted = await builder.work(lambda: Counts(prepared.rendered).total)
            tokens = counted + bound.output_tokens
            self._rated = await self._tools.rates.admit(self._call.app, tokens)
        return prepared

    def admission(
        self,
        target: Target,
        tokens: int,
        deadline: float,
        on_wait: Callable[[float], None] | None,
    ) -> Admission:
        admission = FairAdmission(target.gate, tokens, deadline, on_wait)
        if target.gate.counts_tokens:
            admission.lock = self._tools.lock(self._call.app.id, target.endpoint.id)
        if not self._tools.shared_state.alone:
            state, news = self._tools.shared_state, self._tools.news
            admission.shared = SharedLimits.of(state, news, target)
        return admission

    def _attempts(self, flight: InFlight) -> Attempts:
        timeout = self._timeout
        if timeout is None:
            timeout = flight.targets[0].endpoint.config.timeouts.total
        return Attempts(flight, self, timeout=timeout, guard=self)

    def _finish(self, flight: InFlight) -> Response:
        reply, prepared = flight.reply, flight.prepared[flight.index]
        assert reply is not None
        # Not by usage that cannot be true: the bound is charged.
        if flight.cost_usd is None and not self._bill.disputed:
            price = flight.charge(prepared, reply.usage)
            flight.saved = flight.guarded("price_failed", None, saved_usd, reply.usage, price)
        flight.verdict = flight.guarded("verdict_failed", None, self._verdict, flight, reply)
        flight.predicted = None if flight.verdict is None else flight.verdict.predicted
        remembered = self._builder.remembered
        notices = (*prepared.rendered.notices, *prepared.plan.notices, *prepared.notices)
        if remembered is not None:
            flight.guarded("verdict_failed", None, self._tools.memory.answered, remembered)
            if self._refresher is not None:
                notices += flight.guarded(
                    "keep_warm_failed", (), self._paused, flight, self._refresher, remembered
                )
        record = flight.build_record(
            prepared, (*notices, *reply.notices), observed=bool(self._watchers)
        )
        if self._left is not None:
            record = flight.record = replace(record, error=self._left.__name__)
        self.reply = self._app_reply(flight, reply, record)
        flight.guarded("record_failed", None, self._tools.explain, self._call, self.reply)
        return Response(reply=reply, record=record, raw_hash=flight.raw_hash)

    def _paused(
        self, flight: InFlight, refresher: PrefixRefresher, remembered: RememberedCall
    ) -> tuple[Notice, ...]:
        """A pause of the conversation ends, and another one begins."""
        usd, notices = refresher.take_cost(remembered.conversation)
        if usd is not None and flight.verdict is not None:
            flight.verdict = replace(flight.verdict, kept_warm_usd=usd)
        assert flight.reply is not None
        refresher.answered(
            self._call.app,
            flight.target,
            remembered,
            self._builder.facts,
            flight.prepared[flight.index],
            replace(flight.reply, usage=self._bill.usage),
            (flight.sent_at, flight.first_at),
        )
        return notices

    def _noted(self, response: Response, notices: tuple[Notice, ...]) -> Response:
        if notices and self.reply is not None:
            self.reply.notices += without_details(notices)
        return super()._noted(response, notices)

    def _failed(self, flight: InFlight, problem: BaseException) -> None:
        if self._builder.remembered is not None and flight.reply is None:
            self._builder.remembered.fail()
        if isinstance(problem, Denied) and not self._sent and not flight.observed:
            self._refused = True
            self._tools.deny(self._call, problem)
        if self._left is not None or isinstance(problem, GeneratorExit):
            problem = Timeout(0) if self._left is Timeout else asyncio.CancelledError()
        super()._failed(flight, problem)

    def _audit(self, audit: CallAudit, flight: InFlight, record: Record) -> tuple[Notice, ...]:
        if self._refused:  # it has a row among the refusals
            return ()
        ended = self._ended(flight, record)
        later = getattr(audit, "call_ended_later", audit.call_ended)
        notices: tuple[Notice, ...] = later(ended)
        return notices

    def _ended(self, flight: InFlight, record: Record) -> EndedCall:
        call, remembered = self._call, self._builder.remembered
        own, bill = None, self._bill
        if bill.hides:
            own = OwnBill(
                usage=bill.usage,
                cost_usd=bill.shown_usd,
                saved=bill.saved,
                unbilled_nano_usd=bill.shown_unbilled,
            )
        return replace(
            super()._ended(flight, record),
            own=own,
            unbilled_nano_usd=bill.unbilled,
            conversation="" if remembered is None else remembered.conversation,
            turn=0 if remembered is None else remembered.turn,
            app=call.app.id,
            call_id=call.request_id,
            method=call.method,
            ignored=call.ignored,
        )

    # ── The guard of attempts ────────────────────────────────────────────────────────────────────

    async def begin(self, flight: InFlight) -> None:
        await self._bill.hold(flight.target)
        self._sent, self._flight = True, flight
        if flight.stream:
            self._is_judged = False
            # While the provider is waited for: its first byte goes on without that.
            asyncio.get_running_loop().call_soon(self._judge_early, flight)

    def sending(self) -> None:
        self._bill.sending()

    def _judge_early(self, flight: InFlight) -> None:
        if not self._is_judged:
            self._is_judged = True
            self._early = flight.guarded("verdict_failed", None, self._verdict, flight, None)

    def end(
        self, flight: InFlight, error: BaseException | None, *, sent: bool, partial: Reply | None
    ) -> None:
        self._bill.end(flight, error, sent=sent, partial=partial)
        if self._rated is not None and flight.reply is not None:
            total = flight.reply.usage.total
            if total is not None and not self._bill.disputed:
                correct = self._tools.rates.correct
                flight.guarded("limits_failed", None, correct, self._rated, total)

    # ── What the app gets ────────────────────────────────────────────────────────────────────────

    def _verdict(self, flight: InFlight, reply: Reply | None) -> Verdict | None:
        """On the cache, as the app may know it; without a reply, before the bill."""
        remembered, prepared = self._builder.remembered, flight.prepared[flight.index]
        if remembered is None:
            return None
        target = flight.target
        # What a call may read of its app's own is counted by the catalog's rules.
        learned = None if self._builder.masked else remembered.rules
        return remembered.judge(
            target.rules if learned is None else learned,
            price=target.price(flight.sent_at or time.time(), service_tier(prepared)),
            profile=target.profile,
            diagnosis=None if reply is None or self._builder.masked else diagnosis_of(reply),
        )

    def _app_reply(self, flight: InFlight, reply: Reply, record: Record) -> AppReply:
        target, builder = flight.target, self._builder
        if builder.masked:
            reply = own_reply(reply, self._bill.usage)
        cost = self._bill.shown_usd if self._bill.hidden else flight.cost_usd
        # Bytes that pass only where nothing is hidden would tell that.
        passes = builder.passes_bytes and not builder.masked
        return AppReply(
            request_id=self._call.request_id,
            provider=target.endpoint.id,
            wire=target.endpoint.base_wire,
            model=reply.model or target.model,
            reply=reply,
            body=flight.body if passes else None,
            headers=_passed(flight),
            usage=self._bill.usage,
            most_usage=self._bill.most_usage,
            cost_usd=cost,
            verdict=flight.verdict,
            notices=without_details(record.notices),
            attempts=record.attempts,
        )

    def _stream_head(self, flight: InFlight, events: tuple[Event, ...]) -> StreamHead:
        target, prepared = flight.target, flight.prepared[flight.index]
        self._judge_early(flight)
        if self._builder.masked:
            self._own = self._builder.own_reads(target.rules)
        start = next((event for event in events if isinstance(event, ReplyStart)), None)
        # Usage comes later: whether it has to be changed is not known yet.
        passes = self._builder.passes_bytes and not self._builder.masked
        return StreamHead(
            request_id=self._call.request_id,
            provider=target.endpoint.id,
            wire=target.endpoint.base_wire,
            model=(start.model if start is not None else "") or target.model,
            passes_bytes=passes,
            reply_id="" if start is None else start.id,
            headers=_passed(flight),
            verdict=self._early,
            notices=(*prepared.rendered.notices, *prepared.plan.notices, *prepared.notices),
        )

    def _app_piece(self, events: tuple[Event, ...], data: bytes) -> StreamPiece:
        assert self._head is not None
        if self._head.passes_bytes:
            return StreamPiece(events, data)
        if self._builder.masked:
            events = tuple(self._masked(event) for event in events)
        return StreamPiece(events)

    def _masked(self, event: Event) -> Event:
        """An event without what other apps wrote."""
        if isinstance(event, ReplyEnd):
            return ReplyEnd(own_reply(event.reply, self._bill.usage))
        if isinstance(event, ReplyStart):
            return replace(event, extras=own_extras(event.extras))
        if isinstance(event, UsageUpdate):
            return UsageUpdate(own_usage(event.usage, self._own, self._builder.plan)[0])
        return event


def _passed(flight: InFlight) -> tuple[tuple[str, str], ...]:
    """Headers of the provider's response that apps may see."""
    headers, redactor = flight.headers, flight.target.endpoint.redactor
    names = [name for name in REQUEST_IDS if name in headers]
    if len(names) == 1 and flight.request_id is not None:
        return ((names[0], flight.request_id),)
    return tuple((name, redactor(headers[name])) for name in names)
