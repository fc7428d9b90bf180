"""One refresh of a cached prefix: the last request of a conversation again, as the smallest call,
made and settled as a call of its app.

An answer is asked for only where the provider has no other call, and then the shortest.
"""

from __future__ import annotations

import secrets

import msgspec
from msgspec.structs import replace

from anaphora.cache.verdict import Verdict
from anaphora.catalog import Price
from anaphora.client.config import RetryConfig
from anaphora.client.in_flight import InFlight, PreparedRequest, service_tier
from anaphora.client.observe import EndedCall
from anaphora.client.response import Record
from anaphora.client.session.cached_prefix import CachedPrefix, refreshed
from anaphora.client.session.provider_state import ProviderState
from anaphora.client.target import Target
from anaphora.daemon.access.isolation import OwnReads, own_usage
from anaphora.daemon.faces import face_of
from anaphora.daemon.facts.reading import RequestFacts, read_facts
from anaphora.daemon.money.settling import AttemptCost
from anaphora.daemon.values import App, AppCall
from anaphora.tokens import Counts
from anaphora.traffic.matching import RememberedCall
from anaphora.values import Reply
from anaphora.wire.reading import decode_members

from .bill import CallBill
from .caller import CallTools, DelegatedCall
from .requests import RequestBuilder

METHOD = "keep_warm"
"""Of refreshes, in the audit log; and their label in the ledger."""


class SmallestRequest(msgspec.Struct, frozen=True, eq=False):
    """The last request again, as the smallest call."""

    prepared: PreparedRequest
    facts: RequestFacts


class _RefreshBill(CallBill):
    """The bill of a refresh."""

    def __init__(
        self, tools: CallTools, call: AppCall, builder: RequestBuilder, state: ProviderState
    ) -> None:
        super().__init__(tools, call, builder)
        self._state = state

    def _labels(
        self,
        prepared: PreparedRequest,  # noqa: ARG002
        cost: AttemptCost,
        price: Price | None,  # noqa: ARG002
    ) -> dict[str, int]:
        """Refreshes have a label of their own, by which all nodes find what a day's have cost."""
        return {METHOD: cost.nano_usd} if cost.nano_usd else {}

    def _note(self, flight: InFlight, reply: Reply) -> None:
        self.usage = reply.usage
        if self._builder.masked:
            prepared = flight.prepared[flight.index]
            expected = self._state.predict(prepared)
            own = OwnReads.of(expected)
            self.usage, self.hidden = own_usage(reply.usage, own, prepared.plan)


class DelegatedRefresh(DelegatedCall):
    """One refresh: a call of the app that it did not make itself."""

    def __init__(
        self,
        tools: CallTools,
        app: App,
        state: ProviderState,
        refresh: SmallestRequest,
        last: RememberedCall | None,
        *,
        timeout: float,
    ) -> None:
        """`last` is the call that is sent again."""
        target = state.target
        call = AppCall(
            app=app,
            request_id=f"req_{secrets.token_hex(12)}",
            method=METHOD,
            provider=target.endpoint.id,
            model=target.model,
            timeout=timeout,
        )
        super().__init__(tools, call, (target,), refresh.facts)
        self._place = ("", 0) if last is None else (last.conversation, last.turn)
        self._state = state
        self._prepared = refresh.prepared
        self._builder.masked = tools.shared.isolates(app.grant, target.endpoint.id)
        self._bill = _RefreshBill(tools, call, self._builder, state)

    @property
    def bill(self) -> CallBill:
        return self._bill

    async def prepare(self, flight: InFlight, index: int, again: bool) -> PreparedRequest:  # noqa: ARG002
        prepared, grant = self._prepared, self._call.app.grant.llm
        bound = self._bill.bound = self._builder.bound(prepared, self._targets[index])
        if grant.requests_per_minute or grant.tokens_per_minute:
            tokens = Counts(prepared.rendered).total + bound.output_tokens
            self._rated = await self._tools.rates.admit(self._call.app, tokens)
        return prepared

    def retry_of(self, target: Target) -> RetryConfig:
        """Never again: that the provider fails is for the next call to find out."""
        return replace(super().retry_of(target), max_attempts=1)

    def _verdict(self, flight: InFlight, reply: Reply | None) -> Verdict | None:
        if reply is None:
            return None
        verdict, _ = refreshed(
            self._state,
            self._prepared,
            replace(reply, usage=self._bill.usage),
            at=flight.sent_at,
            first=flight.first_at,
            price=flight.target.price(flight.sent_at, service_tier(self._prepared)),
        )
        return verdict

    def _ended(self, flight: InFlight, record: Record) -> EndedCall:
        conversation, turn = self._place
        return replace(super()._ended(flight, record), conversation=conversation, turn=turn)


# ── The smallest call ────────────────────────────────────────────────────────────────────────────


def smallest_request(
    state: ProviderState, last: PreparedRequest, prefix: CachedPrefix, now: float
) -> SmallestRequest | None:
    """The last request without an answer, or with the shortest where the provider has no such call;
    None where it would not be accepted, or would not read the prefix."""
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
