"""The calls of all apps of a daemon: `CallService` makes them, step by step (`calls.pipeline`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
)
from contextlib import aclosing
from typing import Any, TypeVar

from anaphora.audit.log import AuditLog
from anaphora.client.config import ClientConfig
from anaphora.client.config.secrets import ResolvedProvider
from anaphora.client.counting import provider_count
from anaphora.client.observe import Watcher, Watchers
from anaphora.client.pool import ProviderPool
from anaphora.client.transport import HttpTransport
from anaphora.daemon.access.denials import DenialLog
from anaphora.daemon.access.granted_models import GrantedTargets
from anaphora.daemon.access.grants import AppGrant
from anaphora.daemon.access.isolation import SharedProviders
from anaphora.daemon.access.rates import GrantRates
from anaphora.daemon.endpoints.errors import kept_message
from anaphora.daemon.money.ledger import Ledger
from anaphora.daemon.off_loop import OffLoop
from anaphora.daemon.values import App, GrantedModel
from anaphora.errors import AnaphoraError, Denied
from anaphora.tokens import Counts

from .behind import CallTexts, Explanations
from .call import AppCall, AppReply, StreamHead, StreamPiece
from .conversations import CallMemory, ColdGate
from .pipeline import CallPipeline, CallTools
from .reading_on import ReadOnCalls, WaitedCall
from .steps.answer import JudgeCache, RelayAnswer
from .steps.audit import AuditCall
from .steps.plan import PlanRequest
from .steps.request import PermitCall
from .steps.send import ClientCall, SendAttempt
from .steps.settle import HoldBound, SettleBill

T = TypeVar("T")


class CallService:
    """Makes the calls of apps."""

    def __init__(
        self,
        config: ClientConfig,
        providers: Mapping[str, ResolvedProvider],
        ledger: Ledger,
        audit: AuditLog | None = None,
        *,
        clock: Callable[[], float] = time.time,
        watchers: Iterable[Watcher] = (),
        transport: HttpTransport | None = None,
        off_loop: OffLoop | None = None,
    ) -> None:
        """`off_loop` reads large requests in a thread."""
        pool = ProviderPool(dict(providers), dict(config.routes), transport=transport)
        self.read_on = ReadOnCalls()
        self._grants: tuple[AppGrant, ...] | None = None
        texts = CallTexts(kept_message)
        tools = self.tools = CallTools(
            pool=pool,
            granted=GrantedTargets(pool),
            ledger=ledger,
            rates=GrantRates(),
            memory=CallMemory(),
            shared=SharedProviders(),
            watchers=Watchers(watchers, audit),
            denials=DenialLog(audit, clock, texts.add_error),
            explanations=Explanations(),
            texts=texts,
            off_loop=off_loop or OffLoop(),
            cold=ColdGate(),
        )
        ledger.shows_spend = lambda app: not tools.shared.hides_from(app.grant)
        self.permit = PermitCall(tools)
        self.pipeline = CallPipeline(
            [
                self.permit,
                PlanRequest(tools),
                HoldBound(tools),
                SendAttempt(),
                RelayAnswer(),
                SettleBill(tools),
                JudgeCache(tools),
                audit_call := AuditCall(tools),
            ]
        )
        self.finish_answered = audit_call.answered.finish
        """Does what is left to do for answered calls now: before anyone looks at their figures."""

    # ── Life ─────────────────────────────────────────────────────────────────────────────────────

    def reload(self, config: ClientConfig, providers: Mapping[str, ResolvedProvider]) -> None:
        """Uses another configuration from the next call on. Limits, breakers and memory are kept if
        only a key has changed."""
        pool = self.tools.pool
        pool.reload(dict(providers), dict(config.routes))
        self.tools.granted.reload()
        if self._grants is not None:
            self.tools.shared.use(self._grants, pool.routes, pool.providers)

    def use_grants(self, grants: Iterable[AppGrant]) -> None:
        """Sets the grants of all apps: cache reads are not hidden from an app that shares no
        provider."""
        tools, pool = self.tools, self.tools.pool
        self._grants = tuple(grants)
        tools.shared.use(self._grants, pool.routes, pool.providers)

    def drain(self) -> None:
        """Refuses new calls. Running calls continue."""
        self.tools.draining = True

    async def close(self) -> None:
        self.drain()
        self.tools.denials.close()
        await self.read_on.close()
        await asyncio.sleep(0)  # the tasks of the last answers end
        self.finish_answered()
        await self.tools.pool.close()

    # ── Calls ────────────────────────────────────────────────────────────────────────────────────

    async def complete(self, call: AppCall) -> AppReply:
        """The answer to a call, as its app may see it. Raises the client's errors, and `Denied` if
        the grant does not allow the call."""
        await self.pipeline.before["enter"](call)
        waited = WaitedCall(self.read_on, self.pipeline, call, reading=True)
        return await waited.run(ClientCall(self.pipeline, self.tools, call).complete())

    def stream(self, call: AppCall) -> CallStream:
        return CallStream(self, call)

    async def count_tokens(self, call: AppCall) -> tuple[int, bool]:
        """The tokens of a call's prompt, and whether the provider counted them (else estimated)."""
        tools = self.tools
        await self.permit.before(call)
        try:
            tools.rates.admit(call.app, 0)
            plan = PlanRequest(tools, memory=CallMemory(), places_markers=False)
            prepared = await plan.build(call, target := call.targets[0], stream=False)
        except Denied as error:
            tools.refuse(call, error)
            raise
        assert prepared.outgoing is not None
        try:
            counted = await provider_count(target, prepared.outgoing)
        except AnaphoraError:
            counted = ""
        if isinstance(counted, int):
            return counted, True
        return Counts(prepared.rendered).total, False

    def models(self, app: App) -> tuple[GrantedModel, ...]:
        """The models that the app may call."""
        return self.tools.granted.models(app)

    def explain(self, app: App, request_id: str) -> dict[str, Any] | None:
        """The verdict of one of the app's recent calls, as JSON values."""
        return self.tools.explanations.find(app.owner, request_id)

    def hides_reads(self, app: str) -> bool:
        """Whether cache reads of other apps are hidden from an app at any of its providers."""
        hides = self.tools.shared.hides_from
        return any(hides(grant) for grant in self._grants or () if grant.app == app)

    def deny(self, app: App, method: str, error: Denied, *, request_id: str = "") -> None:
        """Audits a refusal by another part of the daemon. Never raises."""
        self.tools.denials.add(app, method, error, request_id=request_id)

    def deny_slot(self, app: str, error: Denied) -> None:
        """Audits a refusal of an app with too many running calls."""
        self.tools.denials.add(App(id=app, grant=AppGrant(app=app)), "", error)


class CallStream:
    """A response that is arriving. Reading it slowly slows the provider down."""

    def __init__(self, service: CallService, call: AppCall) -> None:
        self._service = service
        self._call = call
        self._pieces: AsyncGenerator[StreamPiece, None] | None = None
        self._first: StreamPiece | None = None
        self._waited: WaitedCall | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work`, which reads the stream and writes it to the app, and then closes the stream.
        If the app disconnects before the end (this is cancelled, or `work` cannot write), this
        returns at once, and the answer is read on if the provider bills all of it."""
        service = self._service
        waited = self._waited = WaitedCall(
            service.read_on, service.pipeline, self._call, reading=False
        )
        return await waited.run(self._consumed(work, waited))

    async def _consumed(self, work: Coroutine[Any, Any, T], waited: WaitedCall) -> T | None:
        """The result of `work`. If the app disconnects, the rest of the stream may still have to be
        read."""
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
        """Waits for the first event. Raises what `complete` would raise."""
        if self._pieces is None:
            service, call = self._service, self._call
            await service.pipeline.before["enter"](call)
            pieces = ClientCall(service.pipeline, service.tools, call).pieces()
            self._pieces = pieces if self._waited is not None else self._without_run(pieces)
            self._first = await self._next()
        assert self._call.head is not None
        return self._call.head

    async def _without_run(
        self, pieces: AsyncGenerator[StreamPiece, None]
    ) -> AsyncGenerator[StreamPiece, None]:
        """The pieces of a stream that is read without `run`: its audit row is made at their end."""
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
        finally:
            self._service.pipeline.behind(self._call)

    def __aiter__(self) -> AsyncIterator[StreamPiece]:
        return self._iterate()

    async def _iterate(self) -> AsyncGenerator[StreamPiece, None]:
        if self._pieces is None:
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
        """Available after the last piece."""
        return self._call.reply

    async def aclose(self) -> None:
        """Cancels the upstream request if the stream has not ended, and settles what was
        received."""
        if self._pieces is not None:
            await self._pieces.aclose()
