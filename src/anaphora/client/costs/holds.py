"""Holds the maximum cost of each attempt of a call in the budgets around it, and settles it.

An attempt that was answered costs its bill. One that ended early is judged by the daemon's rules:
nothing if the provider refused it, what arrived if the provider stops billing a cut stream, and
the held amount if everything may be billed.
"""

from __future__ import annotations

import time
from decimal import Decimal
from typing import TYPE_CHECKING

from anaphora.client.budget import Budget, hold_in
from anaphora.client.in_flight import AttemptCaller, AttemptGuard, InFlight, PreparedRequest
from anaphora.errors import BudgetExceeded
from anaphora.rendered import CreateHandle, DeleteHandle
from anaphora.tokens import Counts
from anaphora.values import Reply

from . import NANO
from .billed_prices import billed_rates
from .bounds import CostBound, cost_bound, request_facts, storage_bound, written_ttls
from .settling import AttemptCost, checked_cost, cost_of_failure, cost_of_reply, failed_output

if TYPE_CHECKING:
    from anaphora.client.target import Target
    from anaphora.rendered import Rendered
    from anaphora.wire.permissions.facts import CallFacts

_ADVICE = "; a smaller max_tokens than {0:,} lowers its maximum cost"
_NO_LIMIT = "; without max_tokens, the longest output of {1} counts, {0:,} tokens: set max_tokens"
_NO_PRICE = (
    "no price is known for {} at {}; set one under `prices` of the provider in llm.yaml, or use"
    " allow_unpriced=True"
)


class BudgetGuard(AttemptGuard):
    """The holds of one call, an attempt at a time."""

    _facts: CallFacts
    _bound: CostBound
    _held: Decimal | None = None
    """What is held for the current attempt."""
    _held_at = 0.0
    _written = False

    def __init__(self, budgets: tuple[Budget, ...], caller: AttemptCaller) -> None:
        self._budgets = budgets
        self._caller = caller

    async def begin(self, flight: InFlight) -> None:
        """Raises `BudgetExceeded` if the maximum cost does not fit into one of the budgets."""
        target, prepared = flight.target, flight.prepared[flight.index]
        amount = self._amount(target, prepared)
        hold_in(self._budgets, amount, self._advice(target))
        self._held, self._held_at, self._written = amount, time.monotonic(), False

    def sending(self) -> None:
        self._written = True

    def end(
        self, flight: InFlight, error: BaseException | None, *, sent: bool, partial: Reply | None
    ) -> None:
        held, self._held = self._held, None
        if held is None:
            return
        cost: Decimal | None = None
        if sent and self._written:
            try:
                cost = usd_of(self._cost(flight, error, partial, held).nano_usd)
            except Exception as problem:
                flight.failed("settle_failed", problem)
                cost = held
        for budget in self._budgets:
            flight.guarded("settle_failed", None, budget.settle, held, cost)

    def pays_handles(self, target: Target, prepared: PreparedRequest) -> bool:
        """Counts what the plan stores at the provider before the call: the tokens, and the hours
        that they are kept. Its bill never comes, so the upper end is charged. False if that does
        not fit: then nothing is stored."""
        price, amount = target.price(prepared.at), Decimal(0)
        tokens = Counts(prepared.rendered).bounds(target.profile.token_error.value)[1]
        for prelude in prepared.plan.preludes:
            if isinstance(prelude, DeleteHandle):
                continue
            stored = None if price is None else storage_bound(price, tokens, prelude.seconds)
            written = None if price is None else price.input
            if stored is None or written is None:
                return all(budget.allow_unpriced for budget in self._budgets)
            amount += usd_of(stored)
            if isinstance(prelude, CreateHandle):
                amount += (written * tokens).scaleb(-6)
        if not amount:
            return True
        if any(budget.left_usd < 2 * amount for budget in self._budgets):
            return False  # the call itself has to fit as well
        try:
            hold_in(self._budgets, amount)
        except BudgetExceeded:
            return False
        for budget in self._budgets:
            budget.settle(amount, amount)
        return True

    def _amount(self, target: Target, prepared: PreparedRequest) -> Decimal:
        """The maximum cost of the next attempt."""
        outgoing, plan = prepared.outgoing, prepared.plan
        assert outgoing is not None
        facts = self._facts = request_facts(target, outgoing.path, outgoing.body)
        # What a handle holds is part of the rendered prompt.
        stored = self._caller.stored_tokens(target, prepared) if plan.held is None else 0
        bound = self._bound = cost_bound(
            facts,
            prepared.rendered,
            target,
            at=prepared.at,
            stored_tokens=stored,
            ttls=written_ttls(facts, plan, target),
        )
        return _held_for(self._budgets, facts, bound, target, prepared.at)

    def _advice(self, target: Target) -> str:
        facts = self._facts
        if facts.max_tokens is None:
            return _NO_LIMIT.format(self._bound.output_tokens, target.model)
        return _ADVICE.format(facts.max_tokens)

    def _cost(
        self, flight: InFlight, error: BaseException | None, partial: Reply | None, held: Decimal
    ) -> AttemptCost:
        target, plan, facts = flight.target, flight.prepared[flight.index].plan, self._facts
        bound, reply = int(held * NANO), flight.reply
        price, surcharge = billed_rates(facts, flight, partial if reply is None else reply)
        if reply is not None:
            cost = cost_of_reply(reply.usage, price, plan, bound, surcharge)
            return checked_cost(cost, bound, self._bound, target.profile)
        return cost_of_failure(
            error,
            partial,
            price=price,
            plan=plan,
            bound=bound,
            input_tokens=self._bound.input_tokens,
            output=failed_output(
                target,
                facts,
                error,
                partial,
                most=self._bound.output_tokens,
                seconds=time.monotonic() - self._held_at,
                stream=flight.stream,
            ),
            answers=facts.n,
            bytes_per_token=target.profile.bytes_per_token.value,
            surcharge=surcharge,
        )


def maximum_usd(
    budgets: tuple[Budget, ...],
    target: Target,
    path: str,
    body: bytes,
    rendered: Rendered,
    at: float,
) -> Decimal:
    """The maximum cost of a request in a batch. Raises `BudgetExceeded` if it has none."""
    facts = request_facts(target, path, body)
    return _held_for(budgets, facts, cost_bound(facts, rendered, target, at=at), target, at)


def _held_for(
    budgets: tuple[Budget, ...], facts: CallFacts, bound: CostBound, target: Target, at: float
) -> Decimal:
    """The amount of a bound, and 0 without a price if all budgets allow that."""
    if bound.nano_usd is not None:
        return usd_of(bound.nano_usd)
    priced = target.price(at, facts.service_tier) is not None
    strict = [each for each in budgets if priced or not each.allow_unpriced]
    if not strict:
        return Decimal(0)
    known = bound.reason.replace(facts.max_tokens_field, "max_tokens")  # as the app writes it
    reason = known if priced else _NO_PRICE.format(target.model, target.endpoint.id)
    raise strict[0].refusal(f"a budget needs the maximum cost of each call, and {reason}", None)


def usd_of(nano_usd: int) -> Decimal:
    return Decimal(nano_usd) / NANO
