"""The calls of all apps of a daemon: `CallService` checks, makes, settles and judges them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
)
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from anaphora.audit.log import AuditLog
from anaphora.client.choice import name_at
from anaphora.client.config import ClientConfig
from anaphora.client.config.resolve import ResolvedProvider
from anaphora.client.observe import Watcher, Watchers
from anaphora.client.pool import ChosenTargets, ProviderPool, TargetChooser
from anaphora.client.routing import SessionRoute, conversation_key
from anaphora.client.target import Target
from anaphora.client.transport import HttpTransport
from anaphora.daemon.access.checks import check_capabilities, check_grant, check_prompt, is_granted
from anaphora.daemon.access.denials import DenialLog
from anaphora.daemon.access.granted_models import (
    asked_for,
    granted_models,
    name_nearest,
    name_of_keeper,
    refusal,
    refused_model,
    routes_over,
)
from anaphora.daemon.access.grants import AppGrant, LlmGrant
from anaphora.daemon.access.isolation import SharedProviders
from anaphora.daemon.access.rates import GrantRates
from anaphora.daemon.access.stored_prompts import names_stored_prompt, prompt_targets
from anaphora.daemon.facts.reading import RequestFacts, read_facts
from anaphora.daemon.money.late_bills import LateBills
from anaphora.daemon.money.ledger import Ledger
from anaphora.daemon.money.stored_history import StoredHistory
from anaphora.daemon.off_loop import OffLoop
from anaphora.daemon.shared_state import LocalState, SharedState
from anaphora.daemon.store import Store
from anaphora.daemon.values import App, AppCall, AppReply, GrantedModel, StreamHead, StreamPiece
from anaphora.errors import (
    Denied,
    InvalidRequest,
    NotGranted,
    StoreUnavailable,
)
from anaphora.redaction import quoted
from anaphora.tokens import Counts

from .caller import CallTools, DelegatedCall
from .conversations import CallMemory
from .counting import provider_count
from .explanations import BreakTexts, Explanations
from .own_prefixes import OwnPrefixes
from .provider_news import ProviderNews
from .reading_on import ReadOnCalls, WaitedCall
from .requests import RequestBuilder, parse_request

if TYPE_CHECKING:
    from .keep_warm import PrefixRefresher

T = TypeVar("T")

#: Sets of granted providers for which a chooser is kept.
_MOST_CHOOSERS = 256
_FOR_CALLS, _FOR_STREAMS = ("llm_complete",), ("llm_complete", "llm_stream")


class CallService:
    """Makes the calls of apps: implements `values.Delegation`."""

    def __init__(
        self,
        config: ClientConfig,
        providers: Mapping[str, ResolvedProvider],
        ledger: Ledger,
        store: Store,
        audit: AuditLog | None = None,
        *,
        clock: Callable[[], float] = time.time,
        watchers: Iterable[Watcher] = (),
        transport: HttpTransport | None = None,
        shared_state: SharedState | None = None,
        prefix_key: bytes = b"",
        off_loop: OffLoop | None = None,
    ) -> None:
        """`shared_state` is what the daemon's nodes share; memory by default. `prefix_key` is the
        key of digests of prompts in the store, the same on all nodes; random by default. `off_loop`
        is where large requests are read."""
        self._off_loop = off_loop or OffLoop()
        self.shared_state = shared_state or LocalState()
        self._pool = ProviderPool(dict(providers), dict(config.routes), transport=transport)
        self._history = StoredHistory(store)
        self.prefixes = OwnPrefixes(store, prefix_key or secrets.token_bytes(32))
        self.late_bills = LateBills()
        self._clock = clock
        self._choosers: dict[tuple[str | None, tuple[str, ...]], TargetChooser] = {}
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self.read_on = ReadOnCalls()
        self._draining = False
        self._denials = DenialLog(audit, clock)
        self._explanations = Explanations(self.shared_state)
        self.texts = BreakTexts()
        """Of breaks, for the dashboard; off unless the operator switched it on."""
        self._shared = SharedProviders()
        self._grants: tuple[AppGrant, ...] | None = None
        self._refresher: PrefixRefresher | None = None
        """Where a grant has `keep_warm`."""
        self._tools = CallTools(
            ledger=ledger,
            rates=GrantRates(self.shared_state),
            memory=CallMemory(self.shared_state, self.prefixes),
            shared=self._shared,
            shared_state=self.shared_state,
            news=ProviderNews(self._pool, self.shared_state),
            watchers=Watchers(watchers, audit),
            lock=self._lock,
            explain=self._answered,
            deny=self._denied,
            history=self._history,
            late_bills=self.late_bills,
            off_loop=self._off_loop,
            nearest=self._nearest,
        )

    # ── Life ─────────────────────────────────────────────────────────────────────────────────────

    def reload(self, config: ClientConfig, providers: Mapping[str, ResolvedProvider]) -> None:
        """Uses another configuration from the next call on. Limits, breakers and memory last where
        nothing but a key has changed."""
        self._pool.reload(dict(providers), dict(config.routes))
        self._choosers.clear()
        if self._grants is not None:
            self._shared.use(self._grants, self._pool.routes, self._pool.providers)

    def use_grants(self, grants: Iterable[AppGrant]) -> None:
        """The grants of all apps: an app that shares no provider with another is not masked."""
        self._grants = tuple(grants)
        self._shared.use(self._grants, self._pool.routes, self._pool.providers)
        if self._refresher is None and any(grant.llm.keep_warm for grant in self._grants):
            from .keep_warm import PrefixRefresher

            self._refresher = PrefixRefresher(self._tools, self._pool)
        if self._refresher is not None:
            self._refresher.use_grants(self._grants)

    def refresh_prefixes(self, is_valid: Callable[[str], bool]) -> None:
        """Begins what `keep_warm` has to send now. `is_valid` tells whether a token may be used."""
        if self._refresher is not None and not self._draining:
            self._refresher.refresh_due(is_valid)

    @property
    def refreshing(self) -> int:
        """Refreshes under way."""
        return 0 if self._refresher is None else self._refresher.running

    @property
    def pool(self) -> ProviderPool:
        return self._pool

    def forget(self, token_id: str) -> None:
        """Refreshes nothing more that was called with a token."""
        if self._refresher is not None:
            self._refresher.revoke(token_id)

    def drain(self) -> None:
        """Refuses new calls; those under way go on."""
        self._draining = True

    async def close(self) -> None:
        self._draining = True
        self._denials.close()
        if self._refresher is not None:
            await self._refresher.close()
        await self.read_on.close()
        await self._pool.close()
        await self.prefixes.close()

    # ── Calls ────────────────────────────────────────────────────────────────────────────────────

    async def complete(self, call: AppCall) -> AppReply:
        delegated = await self._delegated(call)
        waited = WaitedCall(self.read_on, call.app.id, delegated)
        return await waited.run(delegated.run())

    def stream(self, call: AppCall) -> DelegatedStream:
        return DelegatedStream(self, call)

    async def _delegated(self, call: AppCall) -> DelegatedCall:
        try:
            targets, facts = await self._checked_targets(call)
            stored = None
            if facts is not None and facts.handles:
                stored = await self._history.tokens(call.app.id, facts)
        except Denied as error:
            self._denied(call, error)
            raise
        refresher = self._refresher if call.app.grant.llm.keep_warm is not None else None
        return DelegatedCall(self._tools, call, targets, facts, stored, refresher=refresher)

    async def _checked_targets(
        self, call: AppCall
    ) -> tuple[tuple[Target, ...], RequestFacts | None]:
        """Where a call may go, the best first, and what it asks for."""
        targets, hops = self._targets(call)
        run, app = self._off_loop.run, call.app.id
        if len(targets) > 1:
            if call.is_large:
                key = await run(app, lambda: self._route_key(call))
            else:
                key = self._route_key(call)
            targets = SessionRoute(targets, hops).order(lambda: key, time.monotonic())
        if call.is_large:
            return targets, await run(app, lambda: self._checked(call, targets))
        return targets, self._checked(call, targets)

    def _checked(self, call: AppCall, targets: tuple[Target, ...]) -> RequestFacts | None:
        """What a request of a wire asks for, which the grant allows; a call of JSON-RPC is checked
        when it is rendered."""
        request, grant = call.request, call.app.grant.llm
        if request is None:
            return None
        ends = [target.endpoint for target in targets if target.endpoint.base_wire == request.wire]
        name = ends[0].wire_name if ends else request.wire
        facts = read_facts(name, request.members, request.path, request.headers, request.elements)
        check_grant(facts, grant, models=[target.model for target in targets])
        check_prompt(facts, grant, request.members, request.elements)
        return facts

    async def count_tokens(self, call: AppCall) -> tuple[int, bool]:
        try:
            targets, facts = await self._checked_targets(call)
            if facts is not None and facts.handles:
                await self._history.tokens(call.app.id, facts)
            await self._tools.rates.admit(call.app, 0)
            builder = RequestBuilder(
                CallMemory(), self._shared, call, facts, places_markers=False,
                off_loop=self._off_loop,
            )  # fmt: skip
            prepared = await builder.build(target := targets[0], stream=False)
        except Denied as error:
            self._denied(call, error)
            raise
        counted = await provider_count(target, prepared)
        if counted is not None:
            return counted, True
        return Counts(prepared.rendered).total, False

    def models(self, app: App) -> tuple[GrantedModel, ...]:
        if "llm_complete" not in app.grant.capabilities or app.grant.missing:
            return ()
        names = app.grant.llm.providers
        return granted_models(app, self._pool, self._chooser(names, None))

    def _answered(self, call: AppCall, reply: AppReply) -> None:
        """Keeps what is known of a call that was answered."""
        self._explanations.add(call, reply)
        self.texts.add(call, reply)

    def isolates(self, app: AppGrant, provider: str) -> bool:
        """Whether an app must not see others in the cache of a provider."""
        return self._shared.isolates(app, provider)

    async def explain(self, app: App, request_id: str) -> dict[str, Any] | None:
        return await self._explanations.find(app.id, request_id)

    def deny(self, app: App, method: str, error: Denied, *, request_id: str = "") -> None:
        """Notes a refusal of another part of the daemon in the audit log. Never fails."""
        self._denials.add(app.id, method, error, request_id=request_id)

    @property
    def denials(self) -> Mapping[tuple[str, str], int]:
        """How many calls were refused since the start, by app and kind."""
        return self._denials.counts

    def write_refusals(self) -> None:
        """Writes how often refusals of the last minute were repeated, once it is over."""
        self._denials.write_minute()

    def deny_slot(self, app: str, error: Denied) -> None:
        """Notes that an app has too many running calls."""
        self._denials.add(app, "", error)

    def check_before_body(
        self, app: App, method: str, *, stream: bool, request_id: str = ""
    ) -> None:
        if self._draining:
            raise StoreUnavailable("the daemon is stopping")
        try:
            check_capabilities(app.grant, _FOR_STREAMS if stream else _FOR_CALLS, method)
            self._tools.rates.check(app)
        except Denied as error:
            self._denials.add(app.id, method, error, request_id=request_id)
            raise

    # ── Checks ───────────────────────────────────────────────────────────────────────────────────

    def _targets(self, call: AppCall) -> ChosenTargets:
        """The targets of a call. Raises `Denied` where the grant allows no call."""
        if self._draining:
            raise StoreUnavailable("the daemon is stopping")
        app = call.app
        needed = _FOR_STREAMS if call.stream else _FOR_CALLS
        check_capabilities(app.grant, needed, call.method)
        if names_stored_prompt(call.request):
            chooser = self._chooser(app.grant.llm.providers, None)
            return prompt_targets(call, self._pool, chooser, self.models(app)), ()
        names, named, model = app.grant.llm.providers, call.provider, call.model
        if named is None and model in names and model in self._pool.routes:
            named, model = model, None  # the name of a route stands for its models
        if call.stored_at is not None:
            named = name_of_keeper(app.grant.llm, self._pool.routes, named, call.stored_at)
        resolved = None if named is None else self._pool.providers.get(named)
        if (
            resolved is not None
            and model
            and (named not in names or resolved.provider.known_models)
        ):
            why = refusal(resolved, name_at(resolved, model), app.grant.llm)
            if why:
                near = "" if why.endswith("?") else self._nearest(app, model)
                raise InvalidRequest(why + near, path="model")
        if named is not None and named not in names:
            if resolved is not None or named in self._pool.routes:
                reason = f"the provider {quoted(named)} is not granted to {app.id}"
                raise NotGranted(reason, param="provider")
        elif not names:
            raise NotGranted(f"no provider is granted to {app.id}", param="provider")
        own_wire = None if call.request is None else call.request.wire
        try:
            targets, hops = self._chooser(names, own_wire).targets(named, model)
        except InvalidRequest as problem:
            if model is None or (named is not None and problem.path != "model"):
                raise
            raise InvalidRequest(problem.reason + self._nearest(app, model), path="model") from None
        if named is None and model is not None and hops:
            targets, hops = asked_for(model, targets, hops)
        models = [target.model for target in targets]
        if model is not None and not any(
            target.model == name_at(target.endpoint.resolved, model) for target in targets
        ):
            models.append(model)  # a route answers with others; an alias is one of them
        for each in models:
            if not is_granted(each, app.grant.llm.models):
                raise refused_model(app, each, self._pool, self.models(app))
        if call.stored_at is not None:
            targets = tuple(each for each in targets if each.endpoint.id == call.stored_at)
            if not targets:
                reason = f"the route has no model at {quoted(call.stored_at)}"
                raise InvalidRequest(reason, path="model")
        return targets, hops

    def _nearest(self, app: App, model: str) -> str:
        return name_nearest(model, self.models(app))

    def reaches(self, grant: LlmGrant, provider: str) -> bool:
        """Whether a grant names a provider, or a route over it."""
        return provider in grant.providers or bool(routes_over(grant, self._pool.routes, provider))

    def _route_key(self, call: AppCall) -> bytes:
        if call.call is not None:
            return conversation_key(call.call)
        request = call.request
        assert request is not None
        return conversation_key(parse_request(request, call.app.grant.llm))

    def _chooser(self, names: tuple[str, ...], own_wire: str | None) -> TargetChooser:
        """Chooses among granted providers; those first that speak the wire of the request."""
        chooser = self._choosers.get((own_wire, names))
        if chooser is None:
            if len(self._choosers) >= _MOST_CHOOSERS:
                self._choosers.clear()
            ordered = sorted(names, key=lambda name: self._wire_of(name) != own_wire)
            chooser = self._choosers[own_wire, names] = TargetChooser(self._pool, ordered)
        return chooser

    def _wire_of(self, name: str) -> str | None:
        resolved = self._pool.providers.get(name)
        if resolved is None:
            return None
        return resolved.wire if resolved.dialect is None else resolved.dialect.wire

    def _denied(self, call: AppCall, error: Denied) -> None:
        self._denials.add(
            call.app.id,
            call.method,
            error,
            request_id=call.request_id,
            provider=call.provider or "",
            model=call.model or "",
            ignored=call.ignored,
        )

    def _lock(self, app: str, provider: str) -> asyncio.Lock:
        lock = self._locks.get((app, provider))
        if lock is None:
            lock = self._locks[app, provider] = asyncio.Lock()
        return lock


class DelegatedStream:
    """The stream of one call: implements `values.AppStream`."""

    def __init__(self, service: CallService, call: AppCall) -> None:
        self._service = service
        self._call = call
        self._delegated: DelegatedCall | None = None
        self._pieces: AsyncGenerator[StreamPiece, None] | None = None
        self._first: StreamPiece | None = None
        self._waited: WaitedCall | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        waited = self._waited = WaitedCall(self._service.read_on, self._call.app.id)
        return await waited.run(self._consumed(work, waited))

    async def _consumed(self, work: Coroutine[Any, Any, T], waited: WaitedCall) -> T | None:
        """What `work` makes of the stream. Where it ends before that because the app has gone, the
        rest may have to be read nevertheless."""
        try:
            return await work
        except BaseException as problem:
            if not waited.leave(problem):
                raise
        finally:
            if not waited.reads_on:
                await self.aclose()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            task.uncancel()
        if self._pieces is not None:
            async for _ in self._pieces:
                pass
        return None

    async def head(self) -> StreamHead:
        if self._delegated is None:
            await self._start()
        assert self._delegated is not None
        head = self._delegated.head
        assert head is not None
        return head

    async def _start(self) -> None:
        delegated = self._delegated = await self._service._delegated(self._call)
        if self._waited is not None:
            self._waited.takes(delegated)
        self._pieces = delegated.pieces()
        self._first = await self._next()

    def __aiter__(self) -> AsyncIterator[StreamPiece]:
        return self._iterate()

    async def _iterate(self) -> AsyncGenerator[StreamPiece, None]:
        await self.head()
        piece, self._first = self._first, None
        if piece is None:
            piece = await self._next()
        while piece is not None:
            yield piece
            piece = await self._next()

    async def _next(self) -> StreamPiece | None:
        """None at the end."""
        assert self._pieces is not None
        waited = self._waited
        if waited is None:
            return await anext(self._pieces, None)
        waited.reading = True
        try:
            piece = await anext(self._pieces, None)
        except Exception as problem:
            if not waited.is_left:
                raise
            waited.note(problem)
        finally:
            waited.reading = False
        if waited.is_left:  # nothing more may be written for the app
            raise asyncio.CancelledError
        return piece

    @property
    def reply(self) -> AppReply | None:
        return None if self._delegated is None else self._delegated.reply

    async def aclose(self) -> None:
        if self._pieces is not None:
            await self._pieces.aclose()
