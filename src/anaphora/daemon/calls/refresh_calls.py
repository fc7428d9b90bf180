"""One refresh of a cached prefix: sends the last request of a conversation again as the smallest
possible call, settled as a call of its app.

It requests an answer, the shortest, only if the provider has no call without one.
"""

from __future__ import annotations

import secrets

import msgspec
from msgspec.structs import replace

from anaphora.cache.verdict import Verdict
from anaphora.client.in_flight import InFlight, PreparedRequest, service_tier
from anaphora.client.session.cached_prefix import CachedPrefix, judge_refresh
from anaphora.client.session.provider_state import ProviderState
from anaphora.daemon.access.isolation import OwnReads
from anaphora.daemon.faces import face_of
from anaphora.daemon.values import App
from anaphora.tokens import Counts
from anaphora.traffic.matching import RememberedCall
from anaphora.wire.facts.reading import RequestFacts, read_facts
from anaphora.wire.reading import decode_members

from .call import AppCall, CallOutcome, CallTools
from .own_prefixes import FoundPrefix
from .pipeline import CallPipeline, CallStep
from .steps.answer import charge
from .steps.plan import bound_of
from .steps.send import ClientCall

METHOD = "keep_warm"
"""The method of refreshes in the audit log, and their label in the ledger."""


class SmallestRequest(msgspec.Struct, frozen=True, eq=False):
    """The last request, reduced to the smallest call."""

    prepared: PreparedRequest
    facts: RequestFacts


class PlanRefresh(CallStep):
    """Sends a request again, as the smallest call."""

    name = "plan"

    def __init__(self, tools: CallTools, state: ProviderState, prepared: PreparedRequest) -> None:
        self._tools = tools
        self._state = state
        self._prepared = prepared

    async def before(self, call: AppCall) -> None:
        prepared, target, app = self._prepared, call.targets[0], call.app
        call.prepared = prepared
        call.masked = self._tools.shared.isolates(app.grant, target.endpoint.id)
        if call.masked:
            call.found = FoundPrefix(OwnReads.of(self._state.predict(prepared)))
        call.bound = bound_of(call, prepared, target)
        if app.grant.llm.requests_per_minute or app.grant.llm.tokens_per_minute:
            tokens = Counts(prepared.rendered).total + call.bound.output_tokens
            call.rated = self._tools.rates.admit(app, tokens)


class JudgeRefresh(CallStep):
    """Judges a refresh by the known state of the cached prefix."""

    name = "judge"

    def __init__(self, state: ProviderState, prepared: PreparedRequest) -> None:
        self._state = state
        self._prepared = prepared

    def after(self, call: AppCall, outcome: CallOutcome) -> None:
        flight = call.flight
        if outcome.error is not None or flight is None or flight.reply is None:
            return
        charge(call, flight, flight.reply)
        flight.verdict = flight.guarded("verdict_failed", None, self._verdict, call, flight)
        flight.predicted = None if flight.verdict is None else flight.verdict.predicted

    def _verdict(self, call: AppCall, flight: InFlight) -> Verdict | None:
        assert flight.reply is not None
        verdict, _ = judge_refresh(
            self._state,
            self._prepared,
            replace(flight.reply, usage=call.usage),
            at=flight.sent_at,
            first=flight.first_at,
            price=flight.target.price(flight.sent_at, service_tier(self._prepared)),
        )
        return verdict


async def send_refresh(
    pipeline: CallPipeline,
    tools: CallTools,
    app: App,
    state: ProviderState,
    refresh: SmallestRequest,
    last: RememberedCall | None,
    *,
    timeout: float,
) -> AppCall:
    """Makes one refresh by the steps of a call, on behalf of the app. `last` is the request to send
    again."""
    target = state.target
    call = AppCall(
        app=app,
        request_id=f"req_{secrets.token_hex(12)}",
        method=METHOD,
        provider=target.endpoint.id,
        model=target.model,
        timeout=timeout,
        targets=(target,),
        given=refresh.facts,
        facts=refresh.facts,
        conversation=None if last is None else (last.conversation, last.turn),
        label=METHOD,
        # A failing provider is left to the next call to detect.
        once=True,
    )
    steps = pipeline.without("permit")
    steps.use(PlanRefresh(tools, state, refresh.prepared), JudgeRefresh(state, refresh.prepared))
    await steps.before["enter"](call)
    try:
        await ClientCall(steps, tools, call).complete(prewarm=True)
    finally:
        steps.behind(call)
    return call


# ── The smallest call ────────────────────────────────────────────────────────────────────────────


def smallest_request(
    state: ProviderState, last: PreparedRequest, prefix: CachedPrefix, now: float
) -> SmallestRequest | None:
    """The last request without an answer, or with the shortest if the provider has no such call.
    None if it would be rejected or would not read the prefix."""
    target, outgoing = state.target, last.outgoing
    assert outgoing is not None
    endpoint = target.endpoint
    members = decode_members(outgoing.body)
    facts = read_facts(endpoint.wire_name, members, outgoing.path, ())
    runs_tools = bool(facts.server_tools or facts.remote_mcp)
    forms = face_of(endpoint.base_wire).smallest_requests(target, members, runs_tools=runs_tools)
    for changed in forms:
        body = msgspec.json.encode(changed)
        params = replace(last.call.params, stream=False)
        prepared = PreparedRequest(
            call=replace(last.call, params=params),
            rendered=last.rendered,
            plan=last.plan,
            at=now,
            outgoing=endpoint.repeated(outgoing, body),
        )
        if prefix.is_read(state.predict(prepared).read):
            return SmallestRequest(
                prepared, read_facts(endpoint.wire_name, changed, outgoing.path, ())
            )
    return None
