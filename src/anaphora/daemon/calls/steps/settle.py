"""The cost of a call: held before each attempt, settled after it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace

from anaphora.cache.sent_call import reply_lines
from anaphora.cache.verdict import saved_usd
from anaphora.catalog import CacheRules, Price
from anaphora.client.costs.billed_prices import billed_rates, booked_model
from anaphora.client.costs.settling import (
    AttemptCost,
    FailedOutput,
    checked_cost,
    cost_of_failure,
    cost_of_reply,
    failed_output,
    label_costs,
    nano_usd_up,
)
from anaphora.client.in_flight import InFlight, PreparedRequest
from anaphora.daemon.access.isolation import OwnReads, own_usage
from anaphora.daemon.calls.call import AppCall, CallOutcome
from anaphora.daemon.calls.pipeline import CallStep, CallTools
from anaphora.daemon.money.ledger import OpenHold
from anaphora.values import Reply
from anaphora.wire.dialect.routers import answering_host


class HoldBound(CallStep):
    """Holds the maximum cost of an attempt, or raises `Denied`: nothing is sent without a hold."""

    name = "hold"

    def __init__(self, tools: CallTools) -> None:
        self._ledger = tools.ledger

    async def before(self, call: AppCall) -> None:
        assert call.flight is not None
        target = call.flight.target
        call.hold = await self._ledger.hold(
            call.app,
            provider=target.endpoint.id,
            model=target.model,
            request_id=call.request_id,
            bound=call.bound.nano_usd or 0,
        )
        call.held_at = time.monotonic()


class SettleBill(CallStep):
    """Settles each attempt to the provider's bill, which the app is charged. Also computes usage
    and cost as the app sees them, without other apps' writes to a shared cache."""

    name = "settle"

    def __init__(self, tools: CallTools) -> None:
        self._tools = tools

    def after(self, call: AppCall, outcome: CallOutcome) -> None:
        """Closes the hold even if something fails."""
        flight, hold = call.flight, call.hold
        assert flight is not None
        call.hold = None
        try:
            if flight.reply is not None:
                self._note(call, flight, flight.reply)
            if hold is None:
                pass
            elif not outcome.sent or not call.written:
                hold.release()
            elif flight.reply is not None:
                self._settle(call, hold, flight, flight.reply)
            else:
                self._settle_failure(call, hold, flight, outcome)
        except Exception as problem:
            flight.failed("settle_failed", problem)
            if hold is not None:
                _add_unbilled(call, hold.hold.bound)
                hold.settle_at_bound()
        if call.rated is not None and flight.reply is not None:
            total = flight.reply.usage.total
            if total is not None and not call.disputed:
                correct = self._tools.rates.correct
                flight.guarded("limits_failed", None, correct, call.rated, total)

    def _own_reads(self, call: AppCall) -> OwnReads:
        assert call.flight is not None
        return own_reads(call, call.flight.target.rules)

    def _note(self, call: AppCall, flight: InFlight, reply: Reply) -> None:
        """Notes the usage as the app sees it."""
        call.usage, remembered = reply.usage, call.remembered
        if remembered is not None:
            flight.target.learn(reply.usage.read, conversation=remembered.conversation)
        if call.masked:
            plan = flight.prepared[flight.index].plan
            call.usage, call.hidden = own_usage(reply.usage, self._own_reads(call), plan)
        if remembered is None:
            return
        # A verdict needs to know whether reads are reported at all.
        billed = call.usage if reply.usage.read is not None else reply.usage
        dialect, host = flight.target.endpoint.resolved.dialect, ""
        if dialect is not None and dialect.router is not None:
            host = answering_host(reply, flight.headers, dialect)
        remembered.sent = replace(
            remembered.sent,
            at=flight.sent_at,
            began=flight.first_at,
            usage=billed,
            reply_lines=reply_lines(reply.message),
            host=host,
        )
        if call.masked:
            flight.guarded("verdict_failed", None, self._note_prefixes, call)

    def _note_prefixes(self, call: AppCall) -> None:
        """Records the prefixes that the call cached as the app's own."""
        remembered = call.remembered
        if remembered is not None and call.scope and call.flight:
            rules, prefixes = call.flight.target.rules, self._tools.memory.prefixes
            prefixes.add(call.scope, remembered.sent, rules, call.found.end)

    def _settle(self, call: AppCall, hold: OpenHold, flight: InFlight, reply: Reply) -> None:
        prepared, bound = flight.prepared[flight.index], hold.hold.bound
        usage, plan, profile = reply.usage, prepared.plan, flight.target.profile
        price, surcharge = billed_rates(call.facts, flight, reply)
        cost = cost_of_reply(usage, price, plan, bound, surcharge)
        cost = shown = checked_cost(cost, bound, call.bound, profile)
        disputed = call.disputed = cost.kind == "disputed"
        saved = call.saved = None if disputed else saved_usd(usage, price)
        if call.hidden and not disputed:
            shown = cost_of_reply(call.usage, price, plan, bound, surcharge)
            call.saved = saved_usd(call.usage, price)
        call.shown_usd = shown.usd
        if cost.usd is None:
            _add_unbilled(call, cost.nano_usd)
        hold.settle_behind(
            cost.nano_usd,
            cost.kind,
            partial(_labels, prepared, cost, price),
            usage=usage,
            read_by_others=call.hidden,
            saved=0 if saved is None else nano_usd_up(saved),
            model=booked_model(call.facts, flight.target, reply),
        )
        flight.cost_usd, flight.saved = cost.usd, saved

    def _settle_failure(
        self, call: AppCall, hold: OpenHold, flight: InFlight, outcome: CallOutcome
    ) -> None:
        target, facts, error, partial = flight.target, call.facts, outcome.error, outcome.partial
        price, surcharge = billed_rates(facts, flight, partial)
        output = _failed_output(call, flight, outcome)

        def cost_of(received: Reply | None) -> AttemptCost:
            return cost_of_failure(
                error,
                received,
                price=price,
                plan=flight.prepared[flight.index].plan,
                bound=hold.hold.bound,
                input_tokens=call.bound.input_tokens,
                output=output,
                answers=1 if facts is None else facts.n,
                bytes_per_token=target.profile.bytes_per_token.value,
                surcharge=surcharge,
            )

        cost, (own, hidden) = cost_of(partial), self._own_part(call, flight, partial)
        _add_unbilled(call, cost.nano_usd, cost_of(own).nano_usd if hidden else None)
        hold.settle_later(
            cost.nano_usd,
            cost.kind,
            usage=cost.usage,
            read_by_others=hidden,
            labels=_labels(flight.prepared[flight.index], cost, None),
            model=booked_model(facts, target, partial),
        )

    def _own_part(
        self, call: AppCall, flight: InFlight, partial: Reply | None
    ) -> tuple[Reply | None, int]:
        """An incomplete reply with the usage that its app may see, and the number of tokens read
        that other apps wrote."""
        if partial is None or partial.usage.input is None or not call.masked:
            return partial, 0
        plan = flight.prepared[flight.index].plan
        usage, hidden = own_usage(partial.usage, self._own_reads(call), plan)
        if (remembered := call.remembered) is not None:
            remembered.sent = replace(remembered.sent, at=flight.sent_at, usage=usage)
            flight.guarded("verdict_failed", None, self._note_prefixes, call)
        return replace(partial, usage=usage), hidden


def own_reads(call: AppCall, rules: CacheRules) -> OwnReads:
    """How much of the call's cache read can be the app's own."""
    expected, remembered = None, call.remembered
    # If conversations only share a beginning, a provider that caches units may have kept nothing.
    units = rules.automatic_breakpoint.value == "units"
    if remembered is not None and (remembered.continues or not units):
        expected = remembered.expect(rules)
    return OwnReads.of(expected).joined(call.found.reads)


def _failed_output(call: AppCall, flight: InFlight, outcome: CallOutcome) -> FailedOutput:
    """The known output of an attempt without a complete answer."""
    return failed_output(
        flight.target,
        call.facts,
        outcome.error,
        outcome.partial,
        most=call.bound.output_tokens,
        seconds=time.monotonic() - call.held_at,
        stream=flight.stream,
    )


def _add_unbilled(call: AppCall, charged: int, shown: int | None = None) -> None:
    call.unbilled += charged
    call.shown_unbilled += charged if shown is None else shown


def _labels(prepared: PreparedRequest, cost: AttemptCost, price: Price | None) -> Mapping[str, int]:
    """Nano-dollars by the labels of the prompt's blocks."""
    return {} if price is None else label_costs(prepared.block_shares(), cost, price)
