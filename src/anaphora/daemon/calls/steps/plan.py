"""Builds the request for a target (`calls.translation`): renders the app's call, as it was sent if
the target speaks its wire; with markers, and the bound of its cost."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from anaphora.cache import hints_of
from anaphora.cache.cold import ALLOWED, COLD_HEADER
from anaphora.catalog import CacheRules
from anaphora.client.costs.bounds import CostBound, cost_bound, written_ttls
from anaphora.client.in_flight import PreparedRequest
from anaphora.client.response import largest_shares
from anaphora.client.target import Target
from anaphora.daemon.access.granted_models import no_bound_error
from anaphora.daemon.access.handles import stored_tokens
from anaphora.daemon.access.isolation import app_key, keys_separate
from anaphora.daemon.calls import translation
from anaphora.daemon.calls.call import AppCall, CallOutcome
from anaphora.daemon.calls.conversations import CallMemory
from anaphora.daemon.calls.own_prefixes import NOT_FOUND, PrefixScope
from anaphora.daemon.calls.pipeline import CallStep, CallTools
from anaphora.daemon.values import WireRequest
from anaphora.errors import NotGranted
from anaphora.prompt import Call, Params, PromptIR
from anaphora.rendered import Plan
from anaphora.rendered.request_log import droppable
from anaphora.tokens import Counts, for_model
from anaphora.traffic.matching import RememberedCall
from anaphora.traffic.planning import ReadRequest, own_plan, read_split
from anaphora.values import Notice
from anaphora.wire.cutting import as_sent
from anaphora.wire.splicing import splice

T = TypeVar("T")

#: Fields that every dialect reads as the wire's own provider does.
_PLAIN = frozenset(
    "model messages system systemInstruction contents input instructions tools temperature top_p"
    " max_tokens max_output_tokens stop stop_sequences stream options think generationConfig"
    " metadata".split()
)
_NO_PROMPT = PromptIR()


class PlanRequest(CallStep):
    """Prepares the request for each target and remembers it for later calls."""

    name = "plan"

    def __init__(
        self, tools: CallTools, *, memory: CallMemory | None = None, places_markers: bool = True
    ) -> None:
        self._tools = tools
        self._memory = tools.memory if memory is None else memory
        self._places_markers = places_markers
        self._fixed_parts = functools.lru_cache(maxsize=256)(_fixed_parts)

    async def before(self, call: AppCall) -> None:
        flight, tools, app = call.flight, self._tools, call.app
        assert flight is not None
        target = flight.target
        prepared = call.prepared = await self.build(call, target, stream=flight.stream)
        if _is_cold_guarded(call) and call.remembered is not None:
            known = call.found.reads.shown
            arrived = time.time() - (time.perf_counter() - call.started)
            tools.cold.check(app, call.remembered, target, prepared, known=known, arrived=arrived)
            call.remembered.failed = False
        facts = call.facts
        if facts is not None and facts.handles:
            store, provider = tools.ledger.store, target.endpoint.id
            call.stored_tokens = await stored_tokens(store, app.owner, facts, provider)
        try:
            call.bound = await self.work(call, lambda: bound_of(call, prepared, target))
        except NotGranted as error:
            raise no_bound_error(error, target, tools.granted.models(app)) from None
        grant = app.grant.llm
        if call.rated is None and (grant.requests_per_minute or grant.tokens_per_minute):
            if call.is_large:
                counted = await self.work(call, lambda: Counts(prepared.rendered).total)
            else:
                counted = Counts(prepared.rendered).total
            call.rated = tools.rates.admit(app, counted + call.bound.output_tokens)

    def after(self, call: AppCall, outcome: CallOutcome) -> None:
        """Marks a call that failed, so that later calls are not compared with it."""
        remembered, flight = call.remembered, call.flight
        assert flight is not None
        if outcome.error is not None and remembered is not None and flight.reply is None:
            remembered.fail()

    async def build(self, call: AppCall, target: Target, *, stream: bool) -> PreparedRequest:
        if call.remembered is not None:
            self._leave_target(call, call.remembered)
        call.hides_usage, call.found, call.scope = False, NOT_FOUND, None
        request = call.request
        grant, shared, name = call.app.grant, self._tools.shared, target.endpoint.id
        call.masked = shared.only_users.get(name) != grant.app and shared.isolates(grant, name)
        call.passes_bytes = request is not None and _speaks(target, request)
        if request is not None and call.passes_bytes:
            prepared = await self._pass_through(call, target, request, stream)
        else:
            prepared = await translation.translate(self, call, target, stream)
        if call.masked:
            self._find_own(call, target.rules)
        return prepared

    def _find_own(self, call: AppCall, rules: CacheRules) -> None:
        if call.remembered is not None and call.scope is not None:
            sent = call.remembered.sent
            call.found = self._memory.prefixes.find(call.scope, sent, rules)

    def _leave_target(self, call: AppCall, before: RememberedCall) -> None:
        """Resets what was planned for a target that failed."""
        before.fail()
        call.conversation = call.conversation or (before.conversation, before.turn)
        call.remembered = None

    async def work(self, call: AppCall, act: Callable[[], T]) -> T:
        """Runs `act`, whose time grows with the size of the request; in a thread if that is
        large."""
        if not call.is_large:
            return act()
        return await self._tools.off_loop.run(call.app.id, act)

    # ── The app's own wire ──────────────────────────────────────────────────────────────────────

    async def _pass_through(
        self, call: AppCall, target: Target, request: WireRequest, stream: bool
    ) -> PreparedRequest:
        endpoint, now = target.endpoint, time.time()
        notices: list[Notice] = []
        read_own = functools.partial(_read_own, call, target, request, stream, notices)
        own, read = await self.work(call, read_own)
        rendered = read.rendered
        plan = self.place_markers(call, target, read, own, now)
        slots = target.rules.slots.value
        if plan.automatic is not None:
            slots -= target.rules.automatic_slots.value
        to_splice = functools.partial(splice, endpoint.wire, rendered, plan, slots=slots)
        spliced = await self.work(call, to_splice)
        if plan is not own:
            notices += spliced.notices
            if spliced.marks != plan.marks:
                plan = replace(plan, marks=spliced.marks)
                if call.remembered is not None:
                    call.remembered.sent = replace(call.remembered.sent, plan=plan)
        body = await self.work(call, spliced.request.body.join)
        asked, headers = self._recorded_call(call, target, request)
        headers += spliced.request.headers[len(rendered.envelope.headers) :]
        return PreparedRequest(
            call=asked,
            rendered=rendered,
            plan=plan,
            at=now,
            outgoing=endpoint.outgoing_body(spliced.request.path, headers, body),
            notices=tuple(notices),
        )

    # ── Markers ──────────────────────────────────────────────────────────────────────────────────

    def _recorded_call(
        self, call: AppCall, target: Target, request: WireRequest
    ) -> tuple[Call, tuple[tuple[str, str], ...]]:
        """The call for the record of a request that is passed through, and its headers."""
        facts, dialect = call.facts, target.endpoint.resolved.dialect
        assert facts is not None
        return self._fixed_parts(
            target.model,
            facts.max_tokens,
            facts.service_tier,
            getattr(target.profile.api_version, "value", ""),
            () if dialect is None else tuple(dialect.headers.items()),
            request.headers,
        )

    def place_markers(
        self, call: AppCall, target: Target, read: ReadRequest, own: Plan, now: float
    ) -> Plan:
        """Remembers the call and returns the plan of the sent request: `own` if the request must
        not change."""
        app, rendered = call.app, read.rendered
        places = self._places_markers and app.grant.llm.place_markers
        if not places or rendered.marks or rendered.automatic is not None:
            read = replace(read, takes_markers=False)  # the app marks by itself
        scope = (app.owner, target.endpoint.id, rendered.wire, target.model)
        remembered = call.remembered = self._memory.begin(
            read, scope=scope, at=now, own=own, guarded=_is_cold_guarded(call)
        )
        if remembered.rules is None:
            remembered.rules = target.endpoint.begun(target).rules
        if call.conversation is not None:
            remembered.conversation, remembered.turn = call.conversation
        name, accounts = target.endpoint.id, self._tools.shared.accounts
        call.scope = PrefixScope(app.id, accounts.get(name, name), target.model)
        plan = remembered.plan or own
        if call.masked and rendered.key_place is not None and keys_separate(target.rules):
            key = app_key(app.id, plan.key or "")
            plan = replace(
                plan, key=key, notices=(*plan.notices, translation.own_key(translation.CACHE_KEY))
            )
            call.masked = False
        if plan is not own:
            remembered.sent = replace(remembered.sent, plan=plan)
        return plan


def _read_own(
    call: AppCall, target: Target, request: WireRequest, stream: bool, notices: list[Notice]
) -> tuple[Plan, ReadRequest]:
    """The app's request for a target that speaks its wire, as chunks, and its own plan."""
    endpoint, rules, members = target.endpoint, target.rules, request.members
    asked = translation.own_call(call, target, request, stream, notices)
    reading, profile = call.reading, as_sent(target.profile)
    rendered = endpoint.wire.render(asked, profile, None if reading is None else reading.previous)
    if reading is not None:
        reading.keep_rendered(rendered)
    rendered = for_model(droppable(rendered), target.profile)
    own, hints = own_plan(rendered, rules, members), hints_of({}, members)
    dialect = endpoint.resolved.dialect
    read = read_split(rendered, members, hints, rules, endpoint.system, dialect)
    if call.is_large:
        translation.hash_blocks(rendered)
    return own, read


def bound_of(call: AppCall, prepared: PreparedRequest, target: Target) -> CostBound:
    """The maximum cost of an attempt. Raises `NotGranted` if it is unknown and the grant limits
    spend. The shares of a large prompt are counted for the bill as well."""
    facts = call.facts
    assert facts is not None
    if call.is_large:
        prepared.known_shares = largest_shares(prepared.block_shares())
    bound = cost_bound(
        facts,
        prepared.rendered,
        target,
        at=prepared.at,
        stored_tokens=call.stored_tokens,
        ttls=written_ttls(facts, prepared.plan, target),
    )
    if bound.nano_usd is None and call.app.grant.llm.has_spend_limit:
        rule = "a call whose cost has no bound is refused under a limit in dollars"
        raise NotGranted(f"{bound.reason} ({rule})")
    return bound


def _is_cold_guarded(call: AppCall) -> bool:
    """Whether it may be refused because its cached beginning is gone. After a failure it continues
    at its next provider."""
    return (
        call.app.grant.llm.cold_above is not None
        and not call.sent
        and not call.allows_cold
        and (call.exchange is None or call.exchange.headers.get(COLD_HEADER) != ALLOWED)
    )


def _speaks(target: Target, request: WireRequest) -> bool:
    """Whether a target reads the request's bytes as the app intends."""
    if target.endpoint.base_wire != request.wire:
        return False
    dialect = target.endpoint.resolved.dialect
    if dialect is None or dialect.envelope:
        return dialect is None
    named = _PLAIN.difference(dialect.fields)
    return all(name in named for name in request.members if name != "stream_options")


def _fixed_parts(
    model: str,
    max_tokens: int | None,
    tier: str,
    version: str,
    dialect: tuple[tuple[str, str], ...],
    given: tuple[tuple[str, str], ...],
) -> tuple[Call, tuple[tuple[str, str], ...]]:
    """The call of a record and the headers, which many requests share."""
    params = Params(max_tokens=max_tokens, service_tier=tier or None)
    headers = {"content-type": "application/json"}
    if version:
        headers["anthropic-version"] = version
    merged = tuple({**headers, **dict(dialect), **dict(given)}.items())
    return Call(ir=_NO_PROMPT, model=model, params=params), merged
