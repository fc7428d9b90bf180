"""What one call of an app costs: held before each attempt, settled after it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING

from msgspec.structs import replace

from anaphora.cache.sent_call import reply_lines
from anaphora.cache.verdict import saved_usd
from anaphora.catalog import Price
from anaphora.catalog.api_limits import fastest_tokens
from anaphora.client.in_flight import InFlight, PreparedRequest
from anaphora.client.target import Target
from anaphora.daemon.access.isolation import own_usage
from anaphora.daemon.money.billed_prices import booked_model
from anaphora.daemon.money.bounds import CostBound
from anaphora.daemon.money.cut_calls import stops_billing
from anaphora.daemon.money.late_bills import LateBill
from anaphora.daemon.money.ledger import OpenHold
from anaphora.daemon.money.reported_usage import checked_cost
from anaphora.daemon.money.settling import (
    AttemptCost,
    FailedOutput,
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
    """What the provider bills for a call, which is what its app is charged; and the same as the app
    sees it, without what other apps wrote to a cache that they share."""

    def __init__(self, tools: CallTools, call: AppCall, builder: RequestBuilder) -> None:
        self._tools = tools
        self._call = call
        self._builder = builder
        self._hold: OpenHold | None = None
        self._held_at = 0.0
        """Right before the attempt was sent, on the monotonic clock."""
        self._written = False
        """Its request may have been written to a connection."""
        self._cost: AttemptCost | None = None
        self._shown_usd: Decimal | None = None
        self.bound = CostBound(0, 0, 0)
        """Of the attempt at hand."""
        self.usage = Usage()
        """As the app sees it."""
        self.hidden = 0
        """Tokens that it read and that other apps wrote."""
        self.saved: Decimal | None = None
        """What the cache saved, as the app sees it."""
        self.unbilled = 0
        """Nano-dollars that were charged for attempts without a bill,"""
        self.shown_unbilled = 0
        """and the same as the app sees it."""

    @property
    def shown_usd(self) -> Decimal | None:
        """What the answered attempt cost, as the app sees it."""
        return self._shown_usd

    @property
    def hides(self) -> bool:
        """Whether the app sees other figures than the operator."""
        return bool(self.hidden) or self.shown_unbilled != self.unbilled

    def _add_unbilled(self, charged: int, shown: int | None = None) -> None:
        self.unbilled += charged
        self.shown_unbilled += charged if shown is None else shown

    @property
    def disputed(self) -> bool:
        """The reported usage cannot be true."""
        return self._cost is not None and self._cost.kind == "disputed"

    @property
    def may_cost(self) -> bool:
        """Whether an attempt is held that the provider may bill: it was written to a connection."""
        return self._hold is not None and self._written

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
        self._held_at, self._written = time.monotonic(), False

    def sending(self) -> None:
        """The attempt is written to a connection next."""
        self._written = True
        if self._hold is not None:
            self._hold.sending()

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
            if not sent or not self._written:
                hold.release()
            elif flight.reply is not None:
                self._settle(hold, flight)
            else:
                self._settle_failure(hold, flight, error, partial)
        except Exception as problem:
            flight.failed("settle_failed", problem)
            if hold is not None:
                self._add_unbilled(hold.hold.bound)
                hold.settle_at_bound()

    def _note(self, flight: InFlight, reply: Reply) -> None:
        """Notes the usage, as the app sees it."""
        remembered, prepared = self._builder.remembered, flight.prepared[flight.index]
        self.usage = reply.usage
        if remembered is None:
            return
        flight.target.learn(reply.usage.read, conversation=remembered.conversation)
        if self._builder.masked:
            expected = self._builder.own_reads(flight.target.rules)
            self.usage, self.hidden = own_usage(reply.usage, expected, prepared.plan)
        # A verdict needs to know whether reads are reported at all.
        billed = self.usage if reply.usage.read is not None else reply.usage
        remembered.sent = replace(
            remembered.sent,
            at=flight.sent_at,
            began=flight.first_at,
            usage=billed,
            reply_lines=reply_lines(reply.message),
        )
        self._note_prefixes(flight)

    def _note_prefixes(self, flight: InFlight) -> None:
        """With the settlement, in one transaction: what the call left in the cache is the app's."""
        note = self._builder.note_prefixes
        flight.guarded("verdict_failed", None, note, flight.target.rules)

    def _settle(self, hold: OpenHold, flight: InFlight) -> None:
        prepared, reply, bound = flight.prepared[flight.index], flight.reply, hold.hold.bound
        assert reply is not None
        usage, plan, profile = reply.usage, prepared.plan, flight.target.profile
        price, surcharge = billed_rates(self._builder.facts, flight, reply)
        cost = cost_of_reply(usage, price, plan, bound, surcharge)
        cost = shown = self._cost = checked_cost(cost, bound, self.bound, profile)
        saved = self.saved = None if self.disputed else saved_usd(usage, price)
        if self.hidden and not self.disputed:
            shown = cost_of_reply(self.usage, price, plan, bound, surcharge)
            self.saved = saved_usd(self.usage, price)
        self._shown_usd = shown.usd
        if cost.usd is None:
            self._add_unbilled(cost.nano_usd)
        hold.settle_later(
            cost.nano_usd,
            cost.kind,
            usage=usage,
            read_by_others=self.hidden,
            labels=self._labels(prepared, cost, price),
            saved=0 if saved is None else nano_usd_up(saved),
            model=booked_model(self._builder.facts, flight.target, reply),
        )
        flight.cost_usd, flight.saved = cost.usd, saved
        if cost.kind == "bound":
            self._bill_later(hold, flight, reply)

    def _bill_later(self, hold: OpenHold, flight: InFlight, reply: Reply | None) -> bool:
        """Whether the bill comes when the app fetches the response: the provider makes it in the
        background."""
        builder = self._builder
        facts = builder.facts
        if facts is None or not facts.background or reply is None or not reply.id:
            return False
        expected = builder.own_reads(flight.target.rules) if builder.masked else None
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
            self._add_unbilled(hold.hold.bound)
            hold.settle_at_bound()
            return
        facts = self._builder.facts
        price, surcharge = billed_rates(facts, flight, partial)
        output = self._failed_output(flight, error, partial)

        def cost_of(received: Reply | None) -> AttemptCost:
            return cost_of_failure(
                error,
                received,
                price=price,
                plan=prepared.plan,
                bound=hold.hold.bound,
                input_tokens=self.bound.input_tokens,
                output=output,
                answers=1 if facts is None else facts.n,
                bytes_per_token=target.profile.bytes_per_token.value,
                surcharge=surcharge,
            )

        cost, (own, hidden) = cost_of(partial), self._own_part(flight, partial)
        self._add_unbilled(cost.nano_usd, cost_of(own).nano_usd if hidden else None)
        hold.settle_later(
            cost.nano_usd,
            cost.kind,
            usage=cost.usage,
            read_by_others=hidden,
            labels=self._labels(prepared, cost, None),
            model=booked_model(self._builder.facts, target, partial),
        )

    def _failed_output(
        self, flight: InFlight, error: BaseException | None, partial: Reply | None
    ) -> FailedOutput:
        """What is known of the output of an attempt that was not answered in full."""
        target, facts, most = flight.target, self._builder.facts, self.bound.output_tokens
        unseen = 0
        if thinks_unseen(target.endpoint.base_wire, target.profile, partial):
            seconds = time.monotonic() - self._held_at
            speed = fastest_tokens(target.endpoint.system, target.model)
            unseen = most if isinstance(error, Upstream) else math.ceil(seconds * speed)
        return FailedOutput(
            most=most,
            stops=stops_billing(target, stream=flight.stream),
            unseen=unseen,
            reads_again=facts is not None and bool(facts.server_tools or facts.remote_mcp),
        )

    def _own_part(self, flight: InFlight, partial: Reply | None) -> tuple[Reply | None, int]:
        """A reply that broke off, with the usage that its app may see, and how many tokens it read
        that other apps wrote."""
        if partial is None or partial.usage.input is None or not self._builder.masked:
            return partial, 0
        expected = self._builder.own_reads(flight.target.rules)
        plan = flight.prepared[flight.index].plan
        usage, hidden = own_usage(partial.usage, expected, plan)
        if (remembered := self._builder.remembered) is not None:
            remembered.sent = replace(remembered.sent, at=flight.sent_at, usage=usage)
            self._note_prefixes(flight)
        return replace(partial, usage=usage), hidden

    def _labels(
        self, prepared: PreparedRequest, cost: AttemptCost, price: Price | None
    ) -> Mapping[str, int]:
        """Nano-dollars by label. An attempt that failed is given no price."""
        return label_costs(() if price is None else prepared.block_shares(), cost, price)
