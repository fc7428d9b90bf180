"""Keeps the cached prefixes of apps alive during pauses, for grants with `keep_warm`.

After each call of such an app the request is kept in memory. Shortly before its cached prefix
expires, the request is sent again without asking for an answer, if the conversation's pauses so far
indicate that this saves money: by the rules of a client session. A refresh is a call of the app:
held, settled, audited, and bounded by the grant.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable
from decimal import Decimal
from time import monotonic

from msgspec.structs import replace

from anaphora.bounded import BoundedMap
from anaphora.cache.plan import AppMemory
from anaphora.cache.plan.memory import ConversationState
from anaphora.client.costs.settling import nano_usd_up
from anaphora.client.failures import log
from anaphora.client.in_flight import PreparedRequest, service_tier
from anaphora.client.session.cached_prefix import (
    CachedPrefix,
    PauseRefreshes,
    refresh_at,
    refresh_usd,
)
from anaphora.client.session.provider_state import ProviderState
from anaphora.client.target import Target
from anaphora.daemon.access.grants import AppGrant, narrowed_grant
from anaphora.daemon.store import SpendQuery
from anaphora.daemon.values import App
from anaphora.errors import AnaphoraError, RequestRejected
from anaphora.traffic.matching import RememberedCall
from anaphora.values import Notice, Reply
from anaphora.wire.facts.reading import RequestFacts
from anaphora.wording import format_usd

from .call import CallTools
from .own_prefixes import PrefixScope
from .pipeline import CallPipeline
from .refresh_calls import METHOD, SmallestRequest, send_refresh, smallest_request

#: Limits: remembered conversations, and bytes of their last requests.
_MOST_CONVERSATIONS, _MOST_BYTES = 4096, 64 * 1024 * 1024
#: Maximum number of pairs of app and model whose pauses are remembered.
_MOST_MEMORIES = 64
#: Maximum number of concurrent refreshes.
_MOST_RUNNING = 16


class PausedConversation:
    """A conversation of an app, with its last request while that may be sent again."""

    def __init__(self, app: App, target: Target, remembered: RememberedCall) -> None:
        self.app = app
        self.target = target
        self.remembered: RememberedCall | None = remembered
        """The last call, while it may be sent again."""
        self.planned: ConversationState | None = None
        """Its pauses so far."""
        self.state: ProviderState | None = None
        self.last: PreparedRequest | None = None
        """The last request; None if it is not to be sent again."""
        self.size = 0
        self.due: float | None = None
        """When the prefix is to be refreshed."""
        self.running: set[str] = set()
        """Running calls of the conversation."""
        self.task: asyncio.Task[None] | None = None
        self.pause = PauseRefreshes()
        self.began = 0.0
        """When the last call was sent, monotonic."""

    @property
    def scope(self) -> Hashable:
        return self.app.id, self.target.endpoint.id, self.target.model

    def release(self) -> None:
        """Drops the prompt and keeps the pauses."""
        self.state, self.last, self.remembered = None, None, None
        self.due, self.size = None, 0

    def stop(self) -> None:
        self.release()
        if self.task is not None:
            self.task.cancel()


class PrefixRefresher:
    """The refreshes of all apps. Bounded. Used from one event loop."""

    def __init__(self, tools: CallTools, pipeline: CallPipeline) -> None:
        self._tools = tools
        self._pipeline = pipeline
        self._grants: dict[str, AppGrant] = {}
        self._conversations: OrderedDict[str, PausedConversation] = OrderedDict()
        self._calls: dict[str, PausedConversation] = {}
        """The conversations of running calls."""
        self._bytes = 0
        self._memories = BoundedMap[Hashable, AppMemory](_MOST_MEMORIES)
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_MOST_RUNNING)
        self._refused: set[Hashable] = set()
        """Scopes in which a provider refused a refresh: it would refuse the next one."""
        self._expected: Counter[str] = Counter()
        """Expected cost of running refreshes by app, in nano-dollars."""

    # ── Calls of the app ─────────────────────────────────────────────────────────────────────────

    def began(self, conversation: str, request_id: str) -> None:
        """Called before a call is sent: nothing is refreshed until it has ended."""
        known = self._conversations.get(conversation)
        if known is not None:
            known.running.add(request_id)
            self._calls[request_id] = known

    def ended(self, request_id: str) -> None:
        known = self._calls.pop(request_id, None)
        if known is not None:
            known.running.discard(request_id)

    def take_cost(self, conversation: str) -> tuple[Decimal | None, tuple[Notice, ...]]:
        """The cost of the refreshes in the pause that ends, if there were any, and notices."""
        known = self._conversations.get(conversation)
        if known is None:
            return None, ()
        ended, known.pause = known.pause, PauseRefreshes()
        return ended.cost()

    def answered(
        self,
        app: App,
        target: Target,
        remembered: RememberedCall,
        facts: RequestFacts | None,
        prepared: PreparedRequest,
        reply: Reply,
        times: tuple[float, float],
    ) -> None:
        """Begins a pause. `times` are when the call was sent and when its response began. The work
        is done after the answer has been sent."""

        def learn() -> None:
            try:
                kept = self._paused(app, target, remembered)
                kept.began = began
                refers = facts is None or bool(facts.handles)
                self._learn(kept, prepared, reply, times, sends_again=not refers)
            except Exception as problem:  # the app has its answer
                log(logging.ERROR, "keep_warm failed", problem)

        began = monotonic() - max(0.0, time.time() - times[0])
        asyncio.get_running_loop().call_soon(learn)

    def _paused(self, app: App, target: Target, remembered: RememberedCall) -> PausedConversation:
        id = remembered.conversation
        known = self._conversations.get(id)
        if (
            known is None
            or known.target.endpoint is not target.endpoint
            or (known.target.model != target.model)
        ):
            if known is not None:  # another provider answered: it has another cache
                self._forget(id)
            known = self._conversations[id] = PausedConversation(app, target, remembered)
        self._conversations.move_to_end(id)
        known.app, known.remembered = app, remembered
        return known

    def _learn(
        self,
        kept: PausedConversation,
        prepared: PreparedRequest,
        reply: Reply,
        times: tuple[float, float],
        *,
        sends_again: bool,
    ) -> None:
        at, first = times
        target, state = kept.target, kept.state
        if state is None:
            memory = self._memory(kept.scope, target)
            state = kept.state = ProviderState(replace(target, memory=memory))
            if kept.planned is not None:
                state.planner(at).state = kept.planned
        price = target.price(at, service_tier(prepared))
        state.account(prepared, reply, at=at, first=first, price=price)
        kept.planned, kept.last, kept.due = state.planner(at).state, None, None
        due, outgoing = refresh_at(state, at), prepared.outgoing
        if not sends_again or due is None or outgoing is None or kept.scope in self._refused:
            self._release(kept)
            return
        kept.last, kept.due = prepared, due
        self._bytes -= kept.size
        kept.size = prepared.rendered.size + len(outgoing.body)
        self._bytes += kept.size
        while len(self._conversations) > _MOST_CONVERSATIONS or self._bytes > _MOST_BYTES:
            self._forget(next(iter(self._conversations)))

    def _memory(self, scope: Hashable, target: Target) -> AppMemory:
        memory = self._memories.use(scope)
        if memory is None:
            memory = self._memories[scope] = AppMemory(target.rules)
        return memory

    # ── Ends ─────────────────────────────────────────────────────────────────────────────────────

    def use_grants(self, grants: Iterable[AppGrant]) -> None:
        """Sets the grants of all apps. Conversations of apps with a changed grant are no longer
        refreshed."""
        self._grants = {grant.app: grant for grant in grants}
        self._refused.clear()
        for id, kept in list(self._conversations.items()):
            grant, given = self._grants.get(kept.app.id), kept.app.grant
            if grant is None or narrowed_grant(grant, given.llm.narrowed) != given:
                self._forget(id)

    def revoke(self, token_id: str) -> None:
        """Forgets the calls made with a token and cancels their running refreshes."""
        for id, kept in list(self._conversations.items()):
            if kept.app.token_id == token_id:
                self._forget(id)

    async def close(self) -> None:
        tasks = tuple(self._tasks)
        for id in tuple(self._conversations):
            self._forget(id)
        if tasks:
            await asyncio.wait(tasks)

    def _release(self, kept: PausedConversation) -> None:
        self._bytes -= kept.size
        kept.release()

    def _forget(self, id: str) -> None:
        kept = self._conversations.pop(id)
        self._bytes -= kept.size
        kept.stop()

    # ── Refreshes ────────────────────────────────────────────────────────────────────────────────

    @property
    def running(self) -> int:
        return len(self._tasks)

    def refresh_due(self, is_valid: Callable[[str], bool]) -> None:
        """Starts the refreshes that are due. Called every second. `is_valid` tells whether a token
        may still be used."""
        now = time.time()
        due = [
            (id, kept)
            for id, kept in self._conversations.items()
            if kept.due is not None and kept.due <= now and not kept.running
        ]
        for id, kept in due:
            if not is_valid(kept.app.token_id):
                self._forget(id)
                continue
            kept.due = None
            task = kept.task = asyncio.get_running_loop().create_task(self._refresh(kept))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _refresh(self, kept: PausedConversation) -> None:
        last, again = kept.last, False
        try:
            async with self._slots:
                again = await self._refresh_once(kept)
        except AnaphoraError as problem:
            kept.pause.failed(problem)
            if isinstance(problem, RequestRejected):
                self._refused.add(kept.scope)
        except Exception as problem:
            log(logging.ERROR, "keep_warm failed", problem)
            kept.pause.failed(problem)
        if kept.last is not last or last is None:
            return  # a call was answered meanwhile
        kept.due = refresh_at(kept.state, time.time()) if again and kept.state else None
        if kept.due is None:
            self._release(kept)

    async def _refresh_once(self, kept: PausedConversation) -> bool:
        """Whether a refresh was sent, and another may follow."""
        state, last, now = kept.state, kept.last, time.time()
        bounds = kept.app.grant.llm.keep_warm
        if state is None or last is None or bounds is None or kept.running:
            return False
        if self._tools.pool.called(state.endpoint.id) is not state.endpoint:
            return False  # llm.yaml has changed
        prefix = kept.pause.due(state, now, most=bounds.refreshes)
        if prefix is None or kept.scope in self._refused:
            return False
        refresh = smallest_request(state, last, prefix, now)
        if refresh is None:
            kept.pause.cannot()
            return False
        usd, app = refresh_usd(state, prefix, now), kept.app.id
        expected = 0 if usd is None else nano_usd_up(usd)
        self._expected[app] += expected
        try:
            why = await self._refusal(app, bounds.nano_usd_per_day, usd)
            if why is not None:
                kept.pause.let_go(why)
                return False
            if kept.running or kept.last is not last:
                return False  # the app has called meanwhile
            return await self._send(kept, state, prefix, refresh)
        finally:
            self._expected[app] -= expected

    async def _refusal(self, app: str, limit: int | None, usd: Decimal | None) -> str | None:
        """Why a refresh, already counted as running, may not be sent. The cost of the day's
        refreshes is in the ledger, which all nodes share; refreshes running on other nodes are not
        included."""
        if limit is None:
            return None
        if usd is None:
            return "no price is known"
        ledger = self._tools.ledger
        day = (await ledger.spent(app)).day
        rows = await ledger.store.spend(("label",), SpendQuery(since=day, until=day, app=app))
        spent = sum(row.billed for row in rows if row.label == METHOD)
        if spent + self._expected[app] <= limit:
            return None
        return f"{format_usd(Decimal(limit) / 10**9)} a day would be exceeded"

    async def _send(
        self,
        kept: PausedConversation,
        state: ProviderState,
        prefix: CachedPrefix,
        refresh: SmallestRequest,
    ) -> bool:
        remembered, now = kept.remembered, time.time()
        seconds = max(1.0, prefix.expires - now)
        call = await send_refresh(
            self._pipeline, self._tools, kept.app, state, refresh, remembered, timeout=seconds
        )
        if not kept.pause.sent(prefix, call.usage, call.shown_usd):
            return False
        if remembered is not None and state.sent is not None:
            self._tools.memory.refreshed(remembered, state.sent)
            self._keep_own(kept, remembered)
        return True

    def _keep_own(self, kept: PausedConversation, remembered: RememberedCall) -> None:
        """Later reads of the prefix still count as the app's own."""
        shared, prefixes = self._tools.shared, self._tools.memory.prefixes
        provider, target = kept.target.endpoint.id, kept.target
        if shared.isolates(kept.app.grant, provider):
            place = PrefixScope(kept.app.id, shared.account(provider), target.model)
            prefixes.add(place, remembered.sent, target.rules)
