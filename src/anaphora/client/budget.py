"""Budgets in dollars that calls share.

    with client.budget(usd="0.50") as budget:       # async with, for tasks
        client.complete("…", model="claude-sonnet-5-5")
    budget.spent_usd, budget.held_usd, budget.left_usd, budget.calls

All calls inside count: of sessions, tools and tasks, of any client. Before each attempt its maximum
cost is held in every budget around it, and replaced by the bill afterwards (`costs.holds`), so that
concurrent calls never exceed one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextvars import ContextVar
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple, Self

from anaphora.errors import BudgetExceeded, InvalidRequest
from anaphora.wording import counted, format_usd

_NOTHING = Decimal(0)


class Budget:
    """A limit in dollars. As a context manager it applies to all calls that are made inside, and in
    threads and tasks started there by the client or by asyncio; in a thread of your own, enter it
    again. May be entered several times, also at once."""

    def __init__(
        self,
        limit_usd: Decimal | None,
        *,
        name: str = "",
        allow_unpriced: bool = False,
        within: tuple[Budget, ...] = (),
    ) -> None:
        """`within` are the budgets around it: its calls count in them as well."""
        self.limit_usd = limit_usd
        self.allow_unpriced = allow_unpriced
        self.spent_usd = _NOTHING
        """Bills, and estimates of attempts whose bill never came."""
        self.held_usd = _NOTHING
        """The maximum cost of the attempts in flight."""
        self.calls = 0
        """Attempts that were sent, those in flight and retries included."""
        self.exceeded = False
        """Whether a call was not sent because of it."""
        self.chain = (*within, self)
        """The budgets that a call inside counts in."""
        self._name = name
        self._lock = threading.Lock()

    @property
    def left_usd(self) -> Decimal:
        """What is neither spent nor held."""
        if self.limit_usd is None:
            return Decimal("Infinity")
        return max(self.limit_usd - self.spent_usd - self.held_usd, _NOTHING)

    def admits(self, amount: Decimal) -> bool:
        return self.limit_usd is None or self.spent_usd + self.held_usd + amount <= self.limit_usd

    def hold(self, amount: Decimal, advice: str = "") -> None:
        """Holds the maximum cost of an attempt. Raises `BudgetExceeded` if it does not fit."""
        with self._lock:
            if not self.admits(amount):
                raise self.refused(amount, advice)
            self.held_usd += amount
            self.calls += 1

    def settle(self, amount: Decimal, cost: Decimal | None) -> None:
        """Replaces a hold by the cost of the attempt; None: it was not sent."""
        with self._lock:
            self.held_usd -= amount
            if cost is None:
                self.calls -= 1
            else:
                self.spent_usd += cost

    def refused(self, amount: Decimal, advice: str = "") -> BudgetExceeded:
        assert self.limit_usd is not None
        limit, left = format_usd(self.limit_usd), format_usd(self.left_usd)
        reason = f"it may cost {format_usd(amount)}, and {left} of {limit} are left"
        if not self._name:
            spent, held = format_usd(self.spent_usd), format_usd(self.held_usd)
            reason += f" in the budget ({spent} spent, {held} held for calls in flight)"
        return self.refusal(reason + (f" ({self._name})" if self._name else "") + advice, amount)

    def refusal(self, reason: str, amount: Decimal | None) -> BudgetExceeded:
        """The error of a call that is not sent; `amount` is its maximum cost, None if unknown."""
        self.exceeded = True
        return BudgetExceeded(
            f"not sent: {reason}",
            limit=self.limit_usd or _NOTHING,
            spent=self.spent_usd,
            held=self.held_usd,
            bound=amount,
        )

    def __enter__(self) -> Self:
        _entered.set(_inside(_entered.get(), self))
        return self

    def __exit__(self, *exc_info: object) -> None:
        _entered.set(_without(_entered.get(), self))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *exc_info: object) -> None:
        self.__exit__()

    def __repr__(self) -> str:
        limit = "no limit" if self.limit_usd is None else f"limit {format_usd(self.limit_usd)}"
        calls = counted(self.calls, "call")
        return f"<Budget: {limit}, {format_usd(self.spent_usd)} spent, {calls}>"


class _Entered(NamedTuple):
    """The budgets that apply in a context."""

    budgets: tuple[Budget, ...]
    budget: Budget
    """The one that was entered last."""
    outer: _Entered | None


def _inside(outer: _Entered | None, budget: Budget) -> _Entered:
    around = () if outer is None else outer.budgets
    return _Entered(tuple(dict.fromkeys((*around, *budget.chain))), budget, outer)


def _without(entered: _Entered | None, budget: Budget) -> _Entered | None:
    """Without the last entry of a budget. Others may have been entered since: two generators with
    budgets of their own take turns in one context."""
    if entered is None or entered.budget is budget:
        return entered and entered.outer
    outer = _without(entered.outer, budget)
    return entered if outer is entered.outer else _inside(outer, entered.budget)


_entered: ContextVar[_Entered | None] = ContextVar("anaphora_budgets", default=None)


def applying(own: Budget | None = None) -> tuple[Budget, ...]:
    """The budgets of the current context, and those of `own`."""
    entered = _entered.get()
    if entered is None:
        return () if own is None else own.chain
    if own is None:
        return entered.budgets
    return tuple(dict.fromkeys((*entered.budgets, *own.chain)))


def hold_in(budgets: Sequence[Budget], amount: Decimal, advice: str = "") -> None:
    """Holds an amount in all of these budgets, or in none."""
    held: list[Budget] = []
    try:
        for budget in budgets:
            budget.hold(amount, advice)
            held.append(budget)
    except BudgetExceeded:
        for budget in held:
            budget.settle(amount, None)
        raise


def amount_of(value: Any, path: str) -> Decimal | None:
    """An amount in dollars."""
    if value is None:
        return None
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        amount = Decimal("NaN")
    if amount.is_nan() or amount < 0:
        raise InvalidRequest(f"must be an amount in dollars, 0 or more, not {value!r}", path=path)
    return amount


def new_budget(usd: Any, allow_unpriced: bool) -> Budget:
    """A budget of this amount, within those of the current context."""
    limit = amount_of(usd, "usd")
    if limit is None:
        raise InvalidRequest("is missing; write client.budget(usd=0.50)", path="usd")
    return Budget(limit, allow_unpriced=allow_unpriced, within=applying())


def budget_of(value: Any) -> Budget | None:
    """The checked value of `budget=`."""
    if value is None or isinstance(value, Budget):
        return value
    raise InvalidRequest(f"must be made by client.budget(usd=…), not {value!r}", path="budget")
