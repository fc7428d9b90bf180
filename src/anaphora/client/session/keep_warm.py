"""Keeps the cached prefix of a conversation alive while the conversation pauses.

    chat = client.session("anthropic-default", keep_warm="auto")

Shortly before the prefix expires, the last call is sent again without requesting a reply, if that
pays by the pauses so far. A refresh is a separate call: a turn may begin meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from anaphora.catalog.api_limits import output_limits
from anaphora.client.config import RetryConfig
from anaphora.client.failures import log
from anaphora.client.in_flight import InFlight, PreparedRequest, TurnRequest
from anaphora.client.observe import EndedCall
from anaphora.client.options import KeepWarm
from anaphora.client.response import Record, Response
from anaphora.client.target import Target
from anaphora.client.turn import Caller
from anaphora.errors import AnaphoraError, InvalidRequest, RequestRejected
from anaphora.wording import format_usd

from .cached_prefix import CachedPrefix, PauseRefreshes, judge_refresh, refresh_at, refresh_usd
from .call_builder import CallBuilder
from .provider_state import ProviderState
from .turn_prompt import TurnPrompt

if TYPE_CHECKING:
    from .turns import SessionTurns


def keep_warm_of(value: Any) -> KeepWarm | None:
    """The checked value of `keep_warm=`."""
    if value is None or value is False:
        return None
    if value == "auto":
        return KeepWarm()
    if not isinstance(value, KeepWarm):
        raise InvalidRequest(
            f'must be "auto", a KeepWarm with bounds, or None, not {value!r}', path="keep_warm"
        )
    try:
        usd = None if value.max_usd is None else Decimal(str(value.max_usd))
    except ArithmeticError:
        raise InvalidRequest(f"is no number: {value.max_usd!r}", path="keep_warm.max_usd") from None
    if usd is not None and not usd >= 0:
        raise InvalidRequest(f"must be ≥ 0, got {usd}", path="keep_warm.max_usd")
    if isinstance(value.max_refreshes, bool) or not isinstance(value.max_refreshes, int):
        raise InvalidRequest(
            f"must be a whole number, got {value.max_refreshes!r}", path="keep_warm.max_refreshes"
        )
    return msgspec.structs.replace(value, max_usd=usd)


class CacheRefresher:
    """The refreshes of one session: a timer, and the call that it starts."""

    def __init__(
        self, session: SessionTurns, settings: KeepWarm, among: weakref.WeakSet[CacheRefresher]
    ) -> None:
        """`among` are the refreshers of all sessions; the client closes them."""
        among.add(self)
        self.among = among
        # A session that the app has dropped is not kept alive.
        self._session = weakref.ref(session)
        self.settings = settings
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._spent: Decimal = Decimal(0)
        self.pause = PauseRefreshes()
        self._closed = False

    def turn_began(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def turn_ended(self) -> None:
        """A pause begins."""
        self.pause = PauseRefreshes()
        self._schedule()

    async def close(self) -> None:
        """Sends no more refreshes; one in flight is cancelled."""
        self.turn_began()
        task, self._task = self._task, None
        self._closed = True
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    # ── The timer ────────────────────────────────────────────────────────────────────────────────

    def _schedule(self) -> None:
        session, now = self._session(), time.time()
        state = None if session is None else session.refreshed_state
        at = None if state is None else refresh_at(state, now)
        if at is None or self._closed:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # a stream that was dropped is closed when its loop has ended
        self._timer = loop.call_later(max(0.0, at - now), self._due)

    def _due(self) -> None:
        self._timer = None
        session = self._session()
        if session is not None:
            self._task = asyncio.get_running_loop().create_task(self._refresh(session))

    async def _refresh(self, session: SessionTurns) -> None:
        try:
            if await self._refresh_once(session) and not session.in_flight:
                self._schedule()
        except AnaphoraError as problem:
            self.pause.failed(problem)
            # The provider will refuse the next ones as well.
            self._closed = isinstance(problem, RequestRejected)
        except Exception as problem:  # a failed refresh must not end the app
            log(logging.ERROR, "keep_warm failed", problem)
            self.pause.failed(problem)

    async def _refresh_once(self, session: SessionTurns) -> bool:
        """Sends a refresh if it pays. Returns whether another may follow."""
        now, state, pause = time.time(), session.refreshed_state, self.pause
        if state is None or session.in_flight:
            return False
        prefix = pause.due(state, now, most=self.settings.max_refreshes)
        if prefix is None:
            return False
        expected, bound = refresh_usd(state, prefix, now), self.settings.max_usd
        if bound is not None and (expected is None or self._spent + expected > bound):
            unknown = "no price is known"
            pause.let_go(unknown if expected is None else f"{format_usd(bound)} would be spent")
            return False
        prepared = session.prepare_refresh(state, prefix)
        if prepared is None:
            pause.cannot()
            return False
        call = RefreshCall(session, state, prepared)
        request = TurnRequest(prewarm=True, timeout=max(1.0, prefix.expires - now))
        response = await call.complete(request)
        cost = response.record.cost_usd or Decimal(0)
        self._spent += cost
        return self.pause.sent(prefix, response.usage, cost)


class RefreshCall(Caller):
    """One refresh of a session's prefix."""

    def __init__(
        self, session: SessionTurns, state: ProviderState, prepared: PreparedRequest
    ) -> None:
        super().__init__(timeout=None, on_wait=None, watchers=session.watchers)
        self.budget = session.budget
        self._session = session
        self._state = state
        self._prepared = prepared

    def _targets_for(self, request: TurnRequest) -> Sequence[Target]:  # noqa: ARG002
        return (self._state.target,)

    async def prepare(self, flight: InFlight, index: int, again: bool) -> PreparedRequest:  # noqa: ARG002
        return self._prepared

    def retry_of(self, target: Target) -> RetryConfig:
        """No retries: the next turn will report a failing provider."""
        return msgspec.structs.replace(super().retry_of(target), max_attempts=1)

    def count_tokens(self, target: Target, prepared: PreparedRequest) -> int:  # noqa: ARG002
        return self._state.tokens(prepared)

    def _ended(self, flight: InFlight, record: Record) -> EndedCall:
        return self._session.ended_call(super()._ended(flight, record))

    def _finish(self, flight: InFlight) -> Response:
        reply, prepared = flight.reply, self._prepared
        assert reply is not None
        price = flight.charge(prepared, reply.usage)
        judged = flight.judge(partial(judge_refresh, self._state), prepared, price)
        if judged is not None:
            flight.verdict, flight.predicted = judged
            flight.saved = flight.verdict.saved
        notices = (*prepared.rendered.notices, *prepared.plan.notices, *reply.notices)
        record = flight.build_record(prepared, notices, observed=bool(self.watchers))
        self._session.add_cost(flight.cost_usd)
        return Response(reply=reply, record=record, raw_hash=flight.raw_hash)


def refresh_request(
    builder: CallBuilder,
    state: ProviderState,
    turn: TurnPrompt,
    request: TurnRequest,
    prefix: CachedPrefix,
) -> PreparedRequest | None:
    """The last call of a conversation without a reply, or with the shortest one if the wire
    requires a reply; None if it would not read the prefix."""
    again = msgspec.structs.replace(request, prewarm=True)
    least = {"max_tokens": output_limits(state.endpoint.base_wire).least_tokens}
    shortest = msgspec.structs.replace(request, params={**request.params, **least})
    prewarms = state.endpoint.features.prewarms and state.target.rules.prewarm is not None
    for each in (again, shortest) if prewarms else (shortest,):
        try:
            prepared = builder.prepare(state, turn, each, whole=True)
        except InvalidRequest:
            continue  # such as a call that thinks, or has an output schema
        reasoning = prepared.call.params.reasoning
        if not each.prewarm and reasoning is not None and reasoning.budget_tokens:
            continue  # the answer has to be longer than that
        if prepared.plan.preludes or prepared.plan.held is not None:
            return None
        if prefix.is_read(state.predict(prepared).read):
            assembled = state.endpoint.wire.assemble(prepared.rendered, prepared.plan)
            prepared.outgoing = state.endpoint.outgoing(assembled)
            return prepared
    return None
