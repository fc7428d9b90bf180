"""Builds the request for a target: the app's own bytes if the target speaks their wire, otherwise
the request rendered again (`calls.translation`); with markers, and the bound of its cost."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from anaphora.cache import hints_of
from anaphora.cache.cold import ALLOWED, COLD_HEADER
from anaphora.canonical import string
from anaphora.catalog import CacheRules
from anaphora.client.costs.bounds import CostBound, cost_bound, written_ttls
from anaphora.client.in_flight import PreparedRequest
from anaphora.client.response import largest_shares
from anaphora.client.target import Target
from anaphora.daemon.access.granted_models import FIELD, hides_model, no_bound_error
from anaphora.daemon.access.handles import stored_tokens
from anaphora.daemon.access.isolation import app_key, keys_separate, salt_field
from anaphora.daemon.calls import translation
from anaphora.daemon.calls.call import AppCall, CallOutcome
from anaphora.daemon.calls.conversations import CallMemory
from anaphora.daemon.calls.own_prefixes import NOT_FOUND, PrefixScope
from anaphora.daemon.calls.pipeline import CallStep, CallTools
from anaphora.daemon.calls.translation import (
    FilledBody,
    fill_max_tokens,
    fill_store,
    max_tokens_to_fill,
    member_object,
    with_members,
)
from anaphora.daemon.faces import face_of
from anaphora.daemon.values import WireRequest
from anaphora.errors import NotGranted
from anaphora.prompt import Call, Params, PromptIR
from anaphora.rendered import Plan
from anaphora.rendered.request_log import droppable
from anaphora.tokens import Counts, for_model
from anaphora.traffic.matching import RememberedCall
from anaphora.traffic.planning import ReadRequest, own_plan, read_split
from anaphora.values import Notice
from anaphora.wire.cutting import cut_reading
from anaphora.wire.dialect.addresses import path_for, sent_body
from anaphora.wire.elements import DecodedBody
from anaphora.wire.known_requests import KnownRequests
from anaphora.wire.reading import Members, known_text
from anaphora.wire.splicing import splice

T = TypeVar("T")

#: Fields that every dialect reads as the wire's own provider does.
_PLAIN = frozenset(
    "model messages system systemInstruction contents input instructions tools temperature top_p"
    " max_tokens max_output_tokens stop stop_sequences stream options think generationConfig"
    " metadata".split()
)
_NO_PROMPT = PromptIR()
_KEY = "prompt_cache_key"


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

    # ── The app's own bytes ──────────────────────────────────────────────────────────────────────

    async def _pass_through(
        self, call: AppCall, target: Target, request: WireRequest, stream: bool
    ) -> PreparedRequest:
        endpoint, dialect, rules = target.endpoint, target.endpoint.resolved.dialect, target.rules
        face, path, now = face_of(endpoint.base_wire), request.path, time.time()
        if face.model_in_path:
            path = face.path_to(target.model, stream=stream)
        notices: list[Notice] = []
        known = self._tools.requests
        if call.is_large:
            act = functools.partial(_split, known, call, target, request, path, stream, notices)
            body, decoded, own, read = await self.work(call, act)
        else:
            body, decoded, own, read = _split(known, call, target, request, path, stream, notices)
        plan = self.place_markers(call, target, read, own, now)
        headers: tuple[tuple[str, str], ...] = ()
        if plan is not own:
            slots = rules.slots.value
            if plan.automatic is not None:
                slots -= rules.automatic_slots.value
            to_splice = body, plan, read.rendered, dialect
            if call.is_large:
                act_splice = functools.partial(splice, *to_splice, slots=slots, decoded=decoded)
                spliced = await self.work(call, act_splice)
            else:
                spliced = splice(*to_splice, slots=slots, decoded=decoded)
            body, headers = spliced.body, spliced.headers
            notices += spliced.notices
            if spliced.marks != plan.marks:
                plan = replace(plan, marks=spliced.marks)
                if call.remembered is not None:
                    call.remembered.sent = replace(call.remembered.sent, plan=plan)
        if dialect is not None and dialect.path:
            path = path_for(dialect, path, target.model, stream=stream)
            to_send = body, dialect
            body = await self.work(call, lambda: sent_body(*to_send))
        elif not face.model_in_path:
            path = read.rendered.envelope.path
        asked, sent_headers = self._recorded_call(call, target, request)
        return PreparedRequest(
            call=asked,
            rendered=read.rendered,
            plan=plan,
            at=now,
            outgoing=endpoint.outgoing_body(path, sent_headers + headers, body),
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
            plan = replace(plan, key=key, notices=(*plan.notices, _own_key(_KEY)))
            call.masked = False
        if plan is not own:
            remembered.sent = replace(remembered.sent, plan=plan)
        return plan


def _split(
    requests: KnownRequests,
    call: AppCall,
    target: Target,
    request: WireRequest,
    path: str,
    stream: bool,
    notices: list[Notice],
) -> tuple[bytes, DecodedBody, Plan, ReadRequest]:
    """The request for a target, before markers are placed: its body, the members of that, its own
    plan, and its chunks."""
    endpoint, dialect, rules = target.endpoint, target.endpoint.resolved.dialect, target.rules
    filled = _fill(call, target, request, notices)
    body, members = filled.body, filled.members
    changes = _changes(call, target, members, stream, notices)
    if changes:
        body = with_members(body, members, changes)
        members = members | {name: msgspec.Raw(value) for name, value in changes.items()}
    decoded = DecodedBody(members)
    scope = f"{call.app.owner} {endpoint.id}"
    reading = requests.read(body, endpoint.wire_name, path, scope, codec=endpoint.wire)
    rendered = for_model(droppable(cut_reading(endpoint.wire, reading)), target.profile)
    own, hints = own_plan(rendered, rules, members), hints_of({}, members)
    read = read_split(rendered, members, hints, rules, endpoint.system, dialect)
    if call.is_large:
        translation.hash_blocks(read.rendered)
    return body, decoded, own, read


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


def _fill(call: AppCall, target: Target, request: WireRequest, notices: list[Notice]) -> FilledBody:
    """The request with the fields that the grant requires."""
    grant, facts = call.app.grant.llm, call.given
    assert facts is not None
    filled = FilledBody(request.body, request.members)
    if facts.max_tokens is None:
        features = target.endpoint.features
        limited = grant.has_spend_limit or grant.max_tokens is not None
        if limited or features.requires_max_tokens:
            tokens = max_tokens_to_fill(grant, target.profile)
            filled = fill_max_tokens(
                request.wire, filled.body, filled.members, tokens, profile=target.profile
            )
            field = facts.max_tokens_field
            text = f"{field} was missing and set to {tokens}, the most that the grant allows"
            notices.append(Notice("max_tokens_set", text, field))
            facts = replace(facts, max_tokens=tokens)
    if target.endpoint.features.stores_responses and "stored_responses" not in grant.permissions:
        filled = fill_store(request.wire, filled.body, filled.members)
    call.facts = facts
    return filled


def _changes(
    call: AppCall, target: Target, members: Members, stream: bool, notices: list[Notice]
) -> dict[str, bytes]:
    """Fields of the body that have to change."""
    changes: dict[str, bytes] = {}
    face = face_of(target.endpoint.base_wire)
    if face.model_in_path:
        named = face.model_field in members
    else:
        named = FIELD not in members or not hides_model(call.request)
    if named and known_text(members, face.model_field) != target.model:
        changes[face.model_field] = string(target.model)
    if stream and face.usage_on_request and not _omits(target, "stream_options"):
        options = member_object(members, "stream_options")
        if bytes(options.get("include_usage", b"")) != b"true":
            options["include_usage"] = msgspec.Raw(b"true")
            changes["stream_options"] = msgspec.json.encode(options)
            call.hides_usage = True
    if call.masked:
        salt = salt_field(target.endpoint.resolved)
        name = salt or _KEY
        given = known_text(members, name)
        if given or salt:
            changes[name] = string(app_key(call.app.id, given))
            notices.append(_own_key(name))
            call.masked = not salt and not keys_separate(target.rules)
    return changes


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


def _omits(target: Target, name: str) -> bool:
    dialect = target.endpoint.resolved.dialect
    return dialect is not None and name in dialect.omitted


def _own_key(name: str) -> Notice:
    text = f"the {name} is this app's own, so that it shares no cache with other apps"
    return Notice("cache_key_per_app", text, name)


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
