"""The conditions of alerts, read from the store and the circuit breakers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from anaphora.bounded import BoundedMap
from anaphora.client.pool import ProviderPool
from anaphora.daemon.access.grants import GroupLimits, LlmGrant, dollars
from anaphora.daemon.health import utc
from anaphora.daemon.home.alerts import AlertRules, CacheReadRule
from anaphora.daemon.home.extensions import Grants
from anaphora.daemon.store import EntryQuery, Spent, TokenBudget
from anaphora.daemon.store.interface import Store
from anaphora.daemon.store.reading import day_of, end_of_day, end_of_month, month_of
from anaphora.redaction import quoted
from anaphora.wording import counted, format_share

#: Seconds between looks at the calls of an app, and the oldest calls that count.
_CACHE_SECONDS, _OLDEST = 10.0, 86_400.0
_MOST_APPS = 10_000
#: Seconds between looks at the budgets of an app that has spent nothing since; those that have
#: expired within them count.
_BUDGET_SECONDS = 60.0
#: So many times the calls of a rule are read: those that failed have no input, and do not count.
_MOST_FAILED = 4


class Alert(msgspec.Struct, frozen=True):
    """One crossing of a condition. It is sent once to each target."""

    key: str
    """The same on all nodes: the condition, whom it concerns, and the day or month."""
    facts: dict[str, Any]


class DollarLimit(NamedTuple):
    """A limit in dollars, and what is used of it."""

    kind: str
    """`app` or `group`."""
    name: str
    field: str
    nano: int
    spent: int
    period: str
    """A day, or a month."""
    ends: float

    @property
    def id(self) -> str:
        """Also changes with the amount: a raised limit is crossed again."""
        return f"{self.field} {self.nano} of {self.kind} {self.name} in {self.period}"


def limits_of(
    grants: Grants, apps: Mapping[str, Spent], groups: Mapping[str, Spent], day: str
) -> Iterator[DollarLimit]:
    """All limits of apps and groups, except those of 0 dollars."""
    none = Spent(day=day)
    for app, grant in grants.apps.items():
        yield from limits_in("app", app, grant.llm, apps.get(app, none), day)
    for name, limits in grants.groups.items():
        yield from limits_in("group", name, limits, groups.get(name, none), day)


def limits_in(
    kind: str, name: str, limits: LlmGrant | GroupLimits, used: Spent, day: str
) -> Iterator[DollarLimit]:
    """Those of one app or group."""
    if nano := limits.nano_usd_per_day:
        yield DollarLimit(kind, name, "usd_per_day", nano, used.today, day, end_of_day(day))
    if nano := limits.nano_usd_per_month:
        month, ends = month_of(day), end_of_month(day)
        yield DollarLimit(kind, name, "usd_per_month", nano, used.month, month, ends)


class Conditions:
    def __init__(self, store: Store, pool: ProviderPool) -> None:
        self._store = store
        self._pool = pool
        self._looked = BoundedMap[str, tuple[float, int]](_MOST_APPS)
        """When the calls of an app were read, and what it had spent then."""
        self._budgets_looked = BoundedMap[str, tuple[float, int]](_MOST_APPS)
        """The same of its budgets."""

    async def check(
        self, grants: Grants, rules: AlertRules, refused: Collection[str], now: float
    ) -> list[Alert]:
        """All conditions that are met. `refused` are the ids of limits that calls were refused
        by: they count as used up, whatever is left."""
        found: list[Alert] = []
        if rules.limits or rules.budgets or rules.cache_read is not None:
            spent = await self._store.spent_by_app(now)
            day = next((one.day for one in spent.values()), day_of(now))
            of_groups = await self._store.spent_by_group(now) if grants.groups else {}
            for limit in limits_of(grants, spent, of_groups, day):
                found += _crossed(limit, rules, limit.id in refused)
            if rules.cache_read is not None:
                found += await self._cache_reads(grants, rules.cache_read, spent, day, now)
            if rules.budgets:
                found += await self._budgets(rules.budgets, spent, now)
        if rules.provider_down:
            found += self._providers_down(day_of(now))
        return found

    async def _cache_reads(
        self, grants: Grants, rule: CacheReadRule, spent: Mapping[str, Spent], day: str, now: float
    ) -> list[Alert]:
        found = []
        for app in rule.apps or grants.apps:
            today = spent[app].today if app in spent else 0
            at, before = self._looked.get(app) or (0.0, 0)
            if today == before or 0 <= now - at < _CACHE_SECONDS:
                continue  # no new calls
            self._looked[app] = now, today
            most = _MOST_FAILED * rule.calls
            query = EntryQuery(app=app, since=now - _OLDEST, limit=most)
            rows = [row for row in await self._store.entries(query) if row.input][: rule.calls]
            if len(rows) < rule.calls:
                continue
            share = sum(row.read for row in rows) / sum(row.input for row in rows)
            if share < rule.below:
                text = (
                    f"{app} read {format_share(share)} of its input from the cache in its last"
                    f" {counted(rule.calls, 'call')}, less than {format_share(rule.below)}"
                )
                facts = {
                    "kind": "cache_read", "app": app, "read_share": round(share, 4),
                    "below": rule.below, "calls": rule.calls, "text": text,
                }  # fmt: skip
                found.append(Alert(f"cache_read of app {app} in {day}", facts))
        return found

    async def _budgets(
        self, percents: Collection[int], spent: Mapping[str, Spent], now: float
    ) -> list[Alert]:
        found = list[Alert]()
        for app, used in spent.items():
            at, before = self._budgets_looked.get(app) or (0.0, 0)
            least = _CACHE_SECONDS if used.today != before else _BUDGET_SECONDS
            if 0 <= now - at < least:
                continue
            for budget in await self._store.budgets(app, since=now - _BUDGET_SECONDS):
                if budget.token.revoked is None:
                    found += _used(budget, percents)
            self._budgets_looked[app] = now, used.today
        return found

    def _providers_down(self, day: str) -> Iterator[Alert]:
        for id in self._pool.providers:
            endpoint = self._pool.called(id)
            if endpoint is not None and endpoint.breaker.state(monotonic()) == "open":
                text = f"the provider {id} failed repeatedly: calls are not sent to it for now"
                facts = {"kind": "provider_down", "provider": id, "text": text}
                yield Alert(f"provider_down of {id} in {day}", facts)


def _crossed(limit: DollarLimit, rules: AlertRules, refused: bool) -> Iterator[Alert]:
    for percent in rules.limits:
        is_used_up = percent == 100 and refused
        if limit.spent * 100 < limit.nano * percent and not is_used_up:
            continue
        spent = f"${dollars(limit.spent)} of ${dollars(limit.nano)}"
        state = "calls are refused" if is_used_up else f"{percent} % is used"
        facts = {
            "kind": "limit", limit.kind: limit.name, "limit": limit.field, "percent": percent,
            "limit_usd": dollars(limit.nano), "spent_usd": dollars(limit.spent),
            "refused": is_used_up, "resets_at": utc(limit.ends),
            "text": f"{limit.field} of the {limit.kind} {limit.name}: {state} ({spent})",
        }  # fmt: skip
        yield Alert(f"{percent} % of {limit.id}", facts)


def _used(budget: TokenBudget, percents: Collection[int]) -> Iterator[Alert]:
    token, nano = budget.token, budget.token.nano_usd or 0
    for percent in percents:
        if not nano or budget.spent * 100 < nano * percent:
            continue
        text = (
            f"the budget {quoted(token.label or token.id)} of the app {token.app}: {percent} % is"
            f" used (${dollars(budget.spent)} of ${dollars(nano)})"
        )
        facts = {
            "kind": "budget", "app": token.app, "token_id": token.id, "label": token.label,
            "percent": percent, "limit_usd": dollars(nano), "spent_usd": dollars(budget.spent),
            "expires_at": None if token.expires is None else utc(token.expires), "text": text,
        }  # fmt: skip
        yield Alert(f"{percent} % of budget {token.id}", facts)
