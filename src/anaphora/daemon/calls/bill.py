"""What one call of an app costs: held before each attempt, settled after it."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING

from msgspec.structs import replace

from anaphora.cache.verdict import saved_usd
from anaphora.catalog import Price
from anaphora.client.in_flight import InFlight, PreparedRequest
from anaphora.client.target import Target
from anaphora.daemon.access.isolation import own_usage
from anaphora.daemon.money.billed_prices import booked_model
from anaphora.daemon.money.bounds import CostBound
from anaphora.daemon.money.late_bills import LateBill
from anaphora.daemon.money.ledger import OpenHold
from anaphora.daemon.money.reported_usage import checked_cost
from anaphora.daemon.money.settling import (
    AttemptCost,
    cost_of_failure,
    cost_of_reply,
    label_costs,
    nano_usd_up,
    thinks_unseen,
)
from anaphora.daemon.money.surcharges import billed_rates
from anaphora.daemon.values import AppCall
from anaphora.errors import Upstream
from anaphora.values import Reply, Usage

from .requests import RequestBuilder

if TYPE_CHECKING:
    from .caller import CallTools


class CallBill:
    """The bill of a call, as far as the app itself caused it."""

    def __init__(self, tools: CallTools, call: AppCall, builder: RequestBuilder) -> None:
        self._tools = tools
        self._call = call
        self._builder = builder
        self._hold: OpenHold | None = None
        self._cost: AttemptCost | None = None
        self.bound = CostBound(0, 0, 0)
        """Of the attempt at hand."""
        self.usage = Usage()
        """As the app sees it."""
        self.hidden = 0
        """Tokens that it read and that other apps wrote."""
        self.saved: Decimal | None = None
        """What the cache saved, as the app sees it."""
        self.unbilled = 0
        """Nano-dollars that were charged for attempts without a bill."""

    @property
    def cost_usd(self) -> Decimal | None:
        return None if self._cost is None else self._cost.usd

    @property
    def disputed(self) -> bool:
        """The reported usage cannot be true."""
        return self._cost is not None and self._cost.kind == "disputed"

    @property
    def most_usage(self) -> Usage | None:
        """What the attempt can have used at most, where the reported usage cannot be true."""
        if not self.disputed:
            return None
        return Usage(uncached=self.bound.input_tokens, output=self.bound.output_tokens)

    async def hold(self, target: Target) -> None:
        """Holds the bound of an attempt, or raises `Denied`."""
        self._hold = await self._tools.ledger.hold(
            self._call.app,
            provider=target.endpoint.id,
            model=target.model,
            request_id=self._call.request_id,
            bound=self.bound.nano_usd or 0,
        )

    def end(
        self, flight: InFlight, error: BaseException | None, *, sent: bool, partial: Reply | None
    ) -> None:
        """Settles an attempt. Whatever fails, its hold does not stay open."""
        hold, self._hold = self._hold, None
        try:
            if flight.reply is not None:
                self._note(flight, flight.reply)
            if hold is None:
                return
            if not sent:
                hold.release()
            elif flight.reply is not None:
                self._settle(hold, flight)
            else:
                self._settle_failure(hold, flight, error, partial)
        except Exception as problem:
            flight.failed("settle_failed", problem)
            if hold is not None:
                self.unbilled += hold.hold.bound
                hold.settle_at_bound()

    def _note(self, flight: InFlight, reply: Reply) -> None:
        """Notes the bill, as far as the app itself caused it."""
        remembered, prepared = self._builder.remembered, flight.prepared[flight.index]
        self.usage = reply.usage
        if remembered is None:
            return
        if self._builder.masked:
            expected = self._tools.memory.expect(remembered, flight.target.rules)
            self.usage, self.hidden = own_usage(reply.usage, expected, prepared.plan)
        # A verdict needs to know whether reads are reported at all.
        billed = self.usage if reply.usage.read is not None else reply.usage
        remembered.sent = replace(
            remembered.sent, at=flight.sent_at, began=flight.first_at, usage=billed
        )

    def _settle(self, hold: OpenHold, flight: InFlight) -> None:
        prepared = flight.prepared[flight.index]
        usage, plan = self.usage, prepared.plan
        price, surcharge = billed_rates(self._builder.facts, flight, flight.reply)
        cost = cost_of_reply(usage, price, plan, hold.hold.bound, surcharge)
        profile = flight.target.profile
        cost = self._cost = checked_cost(cost, hold.hold.bound, self.bound, profile)
        if cost.usd is None:
            self.unbilled += cost.nano_usd
        saved = self.saved = saved_usd(usage, price)
        hold.settle_later(
            cost.nano_usd,
            cost.kind,
            usage=usage,
            read_by_others=self.hidden,
            labels=self._labels(prepared, cost, price),
            saved=0 if saved is None else nano_usd_up(saved),
            model=booked_model(self._builder.facts, flight.target, flight.reply),
        )
        if not self.hidden:
            flight.cost_usd, flight.saved = cost.usd, saved
        if cost.kind == "bound":
            self._bill_later(hold, flight, flight.reply)

    def _bill_later(self, hold: OpenHold, flight: InFlight, reply: Reply | None) -> bool:
        """Whether the bill comes when the app fetches the response: the provider makes it in the
        background."""
        builder = self._builder
        facts = builder.facts
        if facts is None or not facts.background or reply is None or not reply.id:
            return False
        expected = None
        if builder.masked and builder.remembered is not None:
            expected = self._tools.memory.expect(builder.remembered, flight.target.rules)
        bill = LateBill.of(
            reply.id,
            hold,
            facts,
            flight,
            most=self.bound,
            masked=builder.masked,
            expected=expected,
        )
        self._tools.late_bills.add(self._call.app.id, bill)
        return True

    def _settle_failure(
        self, hold: OpenHold, flight: InFlight, error: BaseException | None, partial: Reply | None
    ) -> None:
        prepared, target = flight.prepared[flight.index], flight.target
        if not isinstance(error, Upstream) and self._bill_later(hold, flight, partial):
            self.unbilled += hold.hold.bound
            hold.settle_at_bound()
            return
        price, surcharge = billed_rates(self._builder.facts, flight, partial)
        partial, hidden = self._own_part(flight, partial)
        unseen = thinks_unseen(target.endpoint.base_wire, target.profile, partial)
        cost = cost_of_failure(
            error,
            partial,
            price=price,
            plan=prepared.plan,
            bound=hold.hold.bound,
            input_tokens=self.bound.input_tokens,
            unseen_tokens=self.bound.output_tokens if unseen else 0,
            answers=1 if self._builder.facts is None else self._builder.facts.n,
            bytes_per_token=target.profile.bytes_per_token.value,
            surcharge=surcharge,
        )
        self.unbilled += cost.nano_usd
        hold.settle_later(
            cost.nano_usd,
            cost.kind,
            usage=cost.usage,
            read_by_others=hidden,
            labels=self._labels(prepared, cost, None),
            model=booked_model(self._builder.facts, target, partial),
        )

    def _own_part(self, flight: InFlight, partial: Reply | None) -> tuple[Reply | None, int]:
        """A reply that broke off, as far as the app itself caused its usage, and how many tokens it
        read that other apps wrote."""
        remembered = self._builder.remembered
        if partial is None or partial.usage.input is None:
            return partial, 0
        if remembered is None or not self._builder.masked:
            return partial, 0
        expected = self._tools.memory.expect(remembered, flight.target.rules)
        plan = flight.prepared[flight.index].plan
        usage, hidden = own_usage(partial.usage, expected, plan)
        return replace(partial, usage=usage), hidden

    def _labels(
        self, prepared: PreparedRequest, cost: AttemptCost, price: Price | None
    ) -> Mapping[str, int]:
        """Nano-dollars by label. An attempt that failed is given no price."""
        return label_costs(() if price is None else prepared.block_shares(), cost, price)
