"""Bills that come after the answer: a response that the provider makes in the background is settled
at its bound, and to the bill once its app fetches it."""

from __future__ import annotations

import logging
from collections import OrderedDict

import msgspec

from anaphora import wire
from anaphora.cache.verdict import Prediction, saved_usd
from anaphora.client.in_flight import InFlight, service_tier
from anaphora.client.response import BlockShare
from anaphora.client.target import Target
from anaphora.daemon.access.isolation import own_usage
from anaphora.daemon.facts.request import RequestFacts
from anaphora.errors import AnaphoraError
from anaphora.rendered import Plan
from anaphora.values import Reply, ReplyEnd

from .billed_prices import billed_model
from .ledger import OpenHold
from .settling import cost_of_reply, label_costs, nano_usd_up
from .surcharges import rates_of

_log = logging.getLogger("anaphora.daemon")

#: Responses that are waited for; the bill of an older one is no longer looked for.
_MOST = 4096


class LateBill(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What the bill of a response is computed from, without its prompt."""

    response_id: str
    hold: OpenHold
    facts: RequestFacts
    target: Target
    plan: Plan
    at: float
    tier: str
    shares: tuple[BlockShare, ...]
    masked: bool
    """Other apps use the cache, too."""
    expected: Prediction | None

    @classmethod
    def of(
        cls,
        response_id: str,
        hold: OpenHold,
        facts: RequestFacts,
        flight: InFlight,
        *,
        masked: bool,
        expected: Prediction | None,
    ) -> LateBill:
        """Of a call that was answered without a bill."""
        prepared = flight.prepared[flight.index]
        return cls(
            response_id=response_id,
            hold=hold,
            facts=facts,
            target=flight.target,
            plan=prepared.plan,
            at=flight.sent_at,
            tier=service_tier(prepared),
            shares=prepared.block_shares(),
            masked=masked,
            expected=expected,
        )

    def settle(self, reply: Reply) -> bool:
        """Whether the reply has its bill."""
        usage, hidden = reply.usage, 0
        if usage.input is None:
            return False
        if self.masked:
            usage, hidden = own_usage(usage, self.expected, self.plan)
        price, surcharge = rates_of(
            self.facts, self.target, self.plan, reply, at=self.at, tier=self.tier
        )
        cost = cost_of_reply(usage, price, self.plan, self.hold.hold.bound, surcharge)
        saved = saved_usd(usage, price)
        self.hold.settle_later(
            cost.nano_usd,
            cost.kind,
            usage=usage,
            read_by_others=hidden,
            labels=label_costs(self.shares, cost, price),
            saved=0 if saved is None else nano_usd_up(saved),
            model=billed_model(self.facts, self.target, reply),
        )
        return True


class LateBills:
    """The background responses of all apps, by app and id. Bounded."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[str, str], LateBill] = OrderedDict()

    def add(self, app: str, bill: LateBill) -> None:
        self._waiting[app, bill.response_id] = bill
        if len(self._waiting) > _MOST:
            self._waiting.popitem(last=False)

    def fetched(self, app: str, reply: Reply) -> None:
        """An app has fetched a response. Never raises: the response goes to the app."""
        bill = self._waiting.get((app, reply.id))
        try:
            if bill is not None and bill.settle(reply):
                del self._waiting[app, reply.id]
        except Exception:
            _log.exception("the bill of a background response was not settled")


def read_response(body: bytes) -> Reply | None:
    """A response that was fetched: JSON, or a stream of events. None where it failed, or is no
    whole response."""
    responses = wire.get("openai_responses")
    try:
        if body.lstrip()[:1] == b"{":
            return responses.read_reply(body)
        reader = responses.reader()
        events = [*reader.feed(body), *reader.close()]
    except AnaphoraError:
        return None
    return next((event.reply for event in events if isinstance(event, ReplyEnd)), None)
