"""The limits of groups and narrowed tokens.

A call counts in several accounts: its app, its group, and the budget of each narrowed token above
it. `balances` has a row for each account and period: day and month of apps and groups, days of
budgets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

import msgspec

from anaphora.errors import GrantExceeded

from . import Hold, SpendLimits
from .reading import end_of_day, end_of_month

#: Begin the names of accounts that are not an app: no id of an app has a colon.
GROUP, BUDGET = "group:", "budget:"
#: Names of the limits of budgets in errors: of the call's own token, and of those above it.
OWN, PARENT = "budget_usd", "parent_budget_usd"

Balances: TypeAlias = dict[str, dict[str, list[int]]]
"""Settled and held, by account and period."""
Further: TypeAlias = dict[tuple[str, str], list[int]]
"""Amounts to add to what is settled and held, by account and period."""


class SpendLevel(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that a hold must not exceed."""

    account: str
    period: str
    """A day, a month, or empty: the whole life of a budget."""
    limit: int
    name: str
    """In errors."""

    @property
    def ends(self) -> float:
        """When its period ends."""
        period = self.period
        return end_of_day(period) if len(period) > 7 else end_of_month(f"{period}-01")


def accounts_of(group: str, budgets: Iterable[str]) -> tuple[str, ...]:
    """The accounts of a call besides its app."""
    return (*((GROUP + group,) if group else ()), *(BUDGET + id for id in budgets))


def encoded_accounts(hold: Hold) -> str:
    """As in the tables; empty for a call that only counts in its app."""
    if not hold.group and not hold.budgets:
        return ""
    return msgspec.json.encode(accounts_of(hold.group, hold.budgets)).decode()


def decoded_accounts(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...]) if text else ()


def further_periods(accounts: Iterable[str], day: str) -> Iterator[tuple[str, str]]:
    """The rows of `balances` in which a call of a day counts, besides those of its app."""
    for account in accounts:
        yield account, day
        if not account.startswith(BUDGET):
            yield account, day[:7]


def levels(
    app: str, group: str, budgets: Sequence[str], limits: SpendLimits, day: str
) -> list[SpendLevel]:
    """All limits of a call; first those that reset last."""
    last = len(budgets) - 1
    found = [
        SpendLevel(
            account=BUDGET + id,
            period="",
            limit=limit,
            name=OWN if at == last else PARENT,
        )
        for at, (id, limit) in enumerate(zip(budgets, limits.budgets, strict=True))
    ]
    for account, period, limit, name in (
        (GROUP + group, day[:7], limits.group_per_month, "group_usd_per_month"),
        (app, day[:7], limits.per_month, "usd_per_month"),
        (GROUP + group, day, limits.group_per_day, "group_usd_per_day"),
        (app, day, limits.per_day, "usd_per_day"),
    ):
        if limit is not None:
            found.append(SpendLevel(account=account, period=period, limit=limit, name=name))
    return found


def add_further(to: Further, accounts: Iterable[str], day: str, spent: int, held: int) -> None:
    """Adds amounts of a call to those of its further accounts."""
    for key in further_periods(accounts, day):
        row = to.setdefault(key, [0, 0])
        row[0] += spent
        row[1] += held


# ── Errors ────────────────────────────────────────────────────────────────────────────────────────


def refusal(name: str, limit: int, bound: int, end: float) -> GrantExceeded:
    """`end`: when the limit's period ends. Names no amount: the ledger adds those that the app may
    see."""
    if bound > limit:
        return _too_small(name, name)
    message = f"{name} does not allow this call any more; the limit resets at {_moment(end)}"
    return GrantExceeded(message, limit=name, resets_at=end)


def budget_refusal(level: SpendLevel, bound: int, expires: float | None) -> GrantExceeded:
    """`expires`: when the budget does; it does not reset."""
    whose = "the budget of this token"
    if level.name == PARENT:
        whose = "the budget of a token from which this one was narrowed"
    if bound > level.limit:
        return _too_small(whose, level.name)
    message = f"{whose} does not allow this call any more"
    if expires is not None:
        message += f"; it does not reset, and expires at {_moment(expires)}"
    return GrantExceeded(message, limit=level.name)


def _too_small(what: str, name: str) -> GrantExceeded:
    message = (
        f"{what} is less than this call can cost; a smaller max_tokens or a shorter prompt may fit"
    )
    return GrantExceeded(message, limit=name)


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ── Checks ────────────────────────────────────────────────────────────────────────────────────────


class AccountBalances:
    """Balances, as the checks of a batch find them one after the other."""

    def __init__(self, balances: Balances) -> None:
        self._balances = balances

    def add(self, balances: Mapping[tuple[str, str], int], further: Further) -> None:
        """What a batch has settled. `balances`: of apps, settled and held together."""
        for (account, period), amount in balances.items():
            self.charge(account, period, amount)
        for (account, period), (spent, held) in further.items():
            self.charge(account, period, held)
            self._balances[account][period][0] += spent

    def charge(self, account: str, period: str, held: int) -> None:
        self._balances.setdefault(account, {}).setdefault(period, [0, 0])[1] += held

    def exceeded(self, levels: Iterable[SpendLevel], bound: int) -> SpendLevel | None:
        """The first limit that `bound` would exceed."""
        for level in levels:
            if bound + self._used(level.account, level.period) > level.limit:
                return level
        return None

    def _used(self, account: str, period: str) -> int:
        rows = self._balances.get(account, {})
        return sum(sum(row) for name, row in rows.items() if not period or name == period)
