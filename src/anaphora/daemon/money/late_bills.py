"""Bills that come after the answer: a background response is settled at its bound, and to the bill
once its app fetches or cancels it.

Also the size of the history behind stored objects, billed to requests that refer to it. A stored
response does not change. A conversation grows with each call, at most by the call's request and
output. A call's bill gives the whole size only if nothing else was added meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from anaphora import wire
from anaphora.bounded import BoundedMap
from anaphora.cache.verdict import saved_usd
from anaphora.catalog import Price
from anaphora.client.costs.billed_prices import Surcharge, booked_model, rates_of
from anaphora.client.costs.bounds import HISTORY_KINDS, CostBound
from anaphora.client.costs.settling import (
    AttemptCost,
    FailedOutput,
    checked_cost,
    cost_of_failure,
    cost_of_reply,
    label_costs,
    nano_usd_up,
    thinks_unseen,
)
from anaphora.client.in_flight import InFlight, service_tier
from anaphora.client.response import BlockShare, largest_shares
from anaphora.client.target import Target
from anaphora.daemon.access.isolation import OwnReads, own_usage
from anaphora.daemon.facts.handles import not_found, own_rows
from anaphora.daemon.store import HandleRow, Hold
from anaphora.daemon.store.interface import Store
from anaphora.errors import AnaphoraError, Upstream
from anaphora.rendered import Mark, Plan
from anaphora.values import Reply, ReplyEnd, Ttl
from anaphora.wire.facts.request import RequestFacts
from anaphora.wire.facts.stored import stored_id
from anaphora.wire.reading import DECODE_ERRORS, decode_members, encode_members

from .ledger import Ledger, OpenHold

_log = logging.getLogger("anaphora.daemon")

#: Maximum number of expected responses; the oldest are dropped.
_MOST = 4096


class FetchedResponse(msgspec.Struct, frozen=True, eq=False):
    """A background response and its progress."""

    reply: Reply
    failed: bool = False
    canceled: bool = False
    began: bool | None = None
    """Whether it had begun when it was canceled; None: unknown."""


class BillTerms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data from which a response's bill is computed, without its prompt. Kept in the store."""

    hold: Hold
    facts: RequestFacts
    marks: tuple[Mark, ...] = ()
    automatic: Ttl | None = None
    at: float
    tier: str = ""
    shares: tuple[BlockShare, ...] = ()
    most: CostBound
    masked: bool = False
    """Other apps also use the cache."""
    expected: OwnReads | None = None


_decode_terms = msgspec.json.Decoder(BillTerms).decode


class LateBill(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The outstanding bill of a response."""

    response_id: str
    hold: OpenHold
    target: Target
    terms: BillTerms

    @classmethod
    def of(
        cls,
        response_id: str,
        hold: OpenHold,
        facts: RequestFacts,
        flight: InFlight,
        *,
        most: CostBound,
        masked: bool,
        expected: OwnReads | None,
    ) -> LateBill:
        """The outstanding bill of a call that was answered without one."""
        prepared = flight.prepared[flight.index]
        terms = BillTerms(
            hold=hold.hold,
            facts=facts,
            marks=prepared.plan.marks,
            automatic=prepared.plan.automatic,
            at=flight.sent_at,
            tier=service_tier(prepared),
            shares=prepared.block_shares(),
            most=most,
            masked=masked,
            expected=expected,
        )
        return cls(response_id=response_id, hold=hold, target=flight.target, terms=terms)

    @property
    def record(self) -> str:
        """The stored form, for other nodes and after a restart, without names of tools and
        objects."""
        facts = replace(self.terms.facts, tools=(), handles=(), unknown=(), unbounded=(), betas=())
        kept = replace(self.terms, facts=facts, shares=largest_shares(self.terms.shares))
        return msgspec.json.encode(kept).decode()

    @classmethod
    def read(
        cls, response_id: str, text: str, ledger: Ledger, target: Callable[[str, str], Target]
    ) -> LateBill:
        """The bill of a record; `target` finds a model at a provider."""
        terms = _decode_terms(text)
        return cls(
            response_id=response_id,
            hold=ledger.settled_hold(terms.hold),
            target=target(terms.hold.provider, terms.hold.model),
            terms=terms,
        )

    @property
    def plan(self) -> Plan:
        return Plan(marks=self.terms.marks, automatic=self.terms.automatic)

    def settle(self, fetched: FetchedResponse) -> bool:
        """Settles the bill. Returns whether the cost is known now."""
        reply, hidden = fetched.reply, 0
        price, surcharge = rates_of(
            self.terms.facts, self.target, self.plan, reply, at=self.terms.at, tier=self.terms.tier
        )
        usage, labels, saved = reply.usage, dict[str, int](), None
        if usage.input is not None:
            if self.terms.masked:
                _, hidden = own_usage(usage, self.terms.expected, self.plan)
            bound = self.hold.hold.bound
            cost = cost_of_reply(usage, price, self.plan, bound, surcharge)
            cost = checked_cost(cost, bound, self.terms.most, self.target.profile)
            labels |= label_costs(self.terms.shares, cost, price)
            saved = saved_usd(usage, price)
        elif fetched.failed or fetched.canceled:
            cost = self._without_bill(fetched, price, surcharge)
        else:
            return False
        if cost.kind == "bound":
            return False
        self.hold.settle_later(
            cost.nano_usd,
            cost.kind,
            usage=cost.usage,
            read_by_others=hidden,
            labels=labels,
            saved=0 if saved is None else nano_usd_up(saved),
            model=booked_model(self.terms.facts, self.target, reply),
        )
        return True

    def _without_bill(
        self, fetched: FetchedResponse, price: Price | None, surcharge: Surcharge | None
    ) -> AttemptCost:
        """The cost of a response that ended early without usage: nothing if it failed before any
        output or never began; else that of an incomplete stream."""
        target, most = self.target, self.terms.most
        if fetched.canceled and fetched.began is False and not fetched.reply.message.parts:
            return AttemptCost(nano_usd=0, kind="free")
        if not fetched.failed and not fetched.reply.message.parts:
            return AttemptCost(nano_usd=self.hold.hold.bound, kind="bound")
        unseen = thinks_unseen(target.endpoint.base_wire, target.profile, fetched.reply)
        return cost_of_failure(
            Upstream("the response failed", status=500) if fetched.failed else None,
            fetched.reply,
            price=price,
            plan=self.plan,
            bound=self.hold.hold.bound,
            input_tokens=most.input_tokens,
            output=FailedOutput(
                most=most.output_tokens,
                stops=True,
                unseen=most.output_tokens if unseen else 0,
            ),
            bytes_per_token=target.profile.bytes_per_token.value,
            surcharge=surcharge,
        )


class LateBills:
    """The background responses of all apps, by app and id. Bounded."""

    def __init__(self) -> None:
        self._waiting = BoundedMap[tuple[str, str], LateBill](_MOST)

    def add(self, app: str, bill: LateBill) -> None:
        self._waiting[app, bill.response_id] = bill

    def record(self, app: str, response_id: str) -> str:
        """The stored form of a bill; empty if none is expected."""
        bill = self._waiting.get((app, response_id))
        try:
            return "" if bill is None else bill.record
        except Exception:
            _log.exception("the bill of a background response is known to this node only")
            return ""

    def fetched(
        self, app: str, fetched: FetchedResponse, read: Callable[[], LateBill | None]
    ) -> None:
        """Settles a response that its app has fetched. `read` returns the bill recorded by another
        node. Never raises: the response goes to the app."""
        try:
            bill = self._waiting.get((app, fetched.reply.id)) or read()
            if bill is not None and bill.settle(fetched):
                self._waiting.pop((app, fetched.reply.id), None)
        except Exception:
            _log.exception("the bill of a background response was not settled")


class _Status(msgspec.Struct):
    status: str | None = None


class _StatusEvent(msgspec.Struct):
    response: msgspec.Raw


_decode_status = msgspec.json.Decoder(_Status).decode
_decode_event = msgspec.json.Decoder(_StatusEvent).decode


def read_response(body: bytes) -> FetchedResponse | None:
    """Reads a fetched response: JSON or a stream of events. None if it is incomplete."""
    responses = wire.get("openai_responses")
    try:
        data = body if body.lstrip()[:1] == b"{" else _last_response(body)
        status = None if data is None else _decode_status(data).status
        if data is not None and status == "failed":
            # Its error would be raised.
            members = {**decode_members(data), "status": msgspec.Raw(b'"incomplete"')}
            return FetchedResponse(responses.read_reply(encode_members(members)), failed=True)
        if data is not None and (data is body or status == "cancelled"):
            return FetchedResponse(responses.read_reply(data), canceled=status == "cancelled")
        reader = responses.reader()
        events = [*reader.feed(body), *reader.close()]
    except (AnaphoraError, *DECODE_ERRORS):
        return None
    ends = (event.reply for event in events if isinstance(event, ReplyEnd))
    return next(map(FetchedResponse, ends), None)


def _last_response(body: bytes) -> bytes | None:
    """The response in the last event that has one."""
    for line in reversed(body.splitlines()):
        if line.startswith(b"data:") and b'"response"' in line:
            return bytes(_decode_event(line[5:]).response)
    return None


def is_queued(body: bytes) -> bool:
    """Whether a fetched response has not begun."""
    try:
        return _decode_status(body).status == "queued"
    except DECODE_ERRORS:
        return False


class GrowingConversation(msgspec.Struct, eq=False):
    """A conversation while a call runs in it."""

    row: HandleRow
    """As it was before."""
    growth: int
    """The maximum number of tokens that the call adds."""
    alone: bool = True
    """No other call runs in it."""


class StoredHistory:
    """The sizes of apps' stored objects, for all calls of a daemon."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._growing: dict[tuple[str, str], list[GrowingConversation]] = {}

    async def tokens(
        self, app: str, facts: RequestFacts, provider: str | None = None
    ) -> int | None:
        """The maximum tokens of the history behind a request's handles; None if the size of one is
        unknown. Raises `NotFound` for a handle that is not the app's own, or is at another
        provider."""
        named = [(kind, stored_id(kind, text) or "") for _, kind, text in facts.handles]
        rows = await own_rows(self._store, app, named)
        total: int | None = 0
        for (param, kind, text), key in zip(facts.handles, named, strict=True):
            row = rows.get(key)
            if row is None or provider not in (None, row.provider):
                raise not_found(kind, text, param)
            if kind not in HISTORY_KINDS:
                continue
            total = None if total is None or row.tokens is None else total + row.tokens
            for one in self._growing.get((app, row.id), ()):
                total = None if total is None else total + one.growth
        return total

    async def begin(self, app: str, facts: RequestFacts, output: int) -> list[GrowingConversation]:
        """The conversations of a call that is about to run. `output` is its maximum output in
        tokens."""
        grown = []
        for handle in facts.handles:
            if handle.kind != "conversation":
                continue
            row = await self._store.handle("conversation", handle.id, app)
            if row is not None:
                grown.append(GrowingConversation(row, facts.size + output))
        for one in grown:
            running = self._growing.setdefault((app, one.row.id), [])
            running.append(one)
            if len(running) > 1:
                for each in running:
                    each.alone = False
        return grown

    async def end(
        self, grown: list[GrowingConversation], *, sent: bool, size: int | None = None
    ) -> None:
        """Records the end of the call. `sent`: it may have reached the provider. `size` is the
        history of the next call, by the bill."""
        for one in grown:
            row = one.row
            try:
                if sent:
                    await self._store.grow_handle(row, one.growth, size if one.alone else None)
            finally:
                running = self._growing[row.app, row.id]
                running.remove(one)
                if not running:
                    del self._growing[row.app, row.id]
