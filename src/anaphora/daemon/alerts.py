"""Alerts for operators: one signed webhook, as the section `alerts` of extensions.yaml asks for.

A crossed limit or budget is sent by the process that has charged the app, once, in up to three
attempts. What is known is in memory: at its start a process only notes what is crossed already. Of
everything else the metrics tell, with the rules in deploy/prometheus.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from anaphora.bounded import BoundedMap
from anaphora.client.config import Key, Timeouts
from anaphora.client.config.secrets import Secret, SecretHeaders
from anaphora.client.failures import log
from anaphora.client.transport import HttpRequest
from anaphora.errors import AnaphoraError, GrantExceeded, StoreUnavailable, Transport
from anaphora.redaction import quoted

from .access.denials import DenialLog
from .access.grants import GroupLimits, LlmGrant, dollars
from .health import utc
from .home import Home
from .home.extensions import Grants
from .home.groups import Webhook, is_url
from .home.secrets import SecretsFolder
from .money.ledger import Ledger
from .monitoring import Gauge, Values
from .store import Spent, TokenBudget
from .store.interface import Store
from .store.reading import day_of, end_of_day, end_of_month, month_of

_log = logging.getLogger("anaphora.daemon")

SIGNATURE = "anaphora-signature"
"""`t=SECONDS,v1=HEX`: HMAC-SHA256 of `SECONDS.BODY`."""

_LOOK_SECONDS = 2.0
#: An app that was charged by this process so many seconds before its last look is its own.
_OWN_SECONDS = 60.0
#: Seconds before each attempt, and for one.
_BEFORE, _ATTEMPT_SECONDS = (0.0, 5.0, 60.0), 10.0
_MOST_RUNNING, _MOST_KNOWN = 100, 100_000
_MOST_BYTES = 64 * 1024


class Alert(msgspec.Struct, frozen=True):
    """One crossing."""

    id: str
    """The same on all nodes: the level, whose limit, its amount, and the day or month."""
    apps: Collection[str]
    """Whose calls count in it."""
    refused: bool
    facts: dict[str, Any]


class DollarLimit(NamedTuple):
    """A limit in dollars, and what is used of it."""

    kind: str
    """`app` or `group`."""
    name: str
    apps: Collection[str]
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


class Alerts:
    """Used from one event loop. `look` is called every second and never waits."""

    def __init__(
        self,
        home: Home,
        store: Store,
        ledger: Ledger,
        denials: DenialLog,
        grants: Callable[[], Grants],
        *,
        node: str,
    ) -> None:
        """`node` is in the facts of its alerts."""
        self._home = home
        self._store, self._ledger = store, ledger
        self._grants = grants
        self._node = node
        self._sending = set[asyncio.Task[None]]()
        self._look: asyncio.Task[None] | None = None
        self._next_look = self._looked = 0.0
        """When the next look may begin, and when the last one that succeeded began."""
        self._begun = False
        self._known = BoundedMap[str, None](_MOST_KNOWN)
        self._refused = BoundedMap[str, None](_MOST_KNOWN)
        """Ids of limits that have refused a call here: they count as used up, whatever is left."""
        self.counts: Counter[tuple[str, ...]] = Counter()
        """By result: `sent`, `failed` (an attempt) and `dropped` (given up)."""
        denials.on_exceeded = self.note_refusal

    def gauge(self) -> Gauge:
        async def values() -> Values:
            return {key: float(count) for key, count in self.counts.items()}

        return Gauge("anaphora_daemon_alerts", "Alerts by result", values, ("result",), True)

    def look(self) -> None:
        """Begins a look if the last one is over."""
        now = time.monotonic()
        if now >= self._next_look and (self._look is None or self._look.done()):
            self._next_look = now + _LOOK_SECONDS
            self._look = asyncio.create_task(self.look_once())

    def note_refusal(self, app: str, error: GrantExceeded) -> None:
        """Notes the limit that refused a call. A call that can cost more than the whole limit says
        nothing about it."""
        grants, field = self._grants(), error.limit.removeprefix("group_")
        if app not in grants.apps or error.resets_at is None:
            return
        kind, day = "app" if field == error.limit else "group", day_of(self._ledger.clock())
        for limit in limits_of(grants, {}, {}, day):
            if app in limit.apps and (kind, field) == (limit.kind, limit.field):
                self._refused[limit.id] = None

    async def close(self) -> None:
        tasks = [*self._sending, *([self._look] if self._look else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def look_once(self) -> None:
        """Sends what was crossed since the last look; the first one notes what is crossed."""
        began = time.monotonic()
        try:
            crossed = await self._crossed(self._own())
            own = self._own()  # also what was charged while the store was read
            for alert in crossed:
                is_new = alert.id not in self._known
                self._known[alert.id] = None
                if is_new and self._begun and (alert.refused or not own.isdisjoint(alert.apps)):
                    self._send(alert)
            self._begun, self._looked = self._grants().alerts is not None, began
        except StoreUnavailable:
            pass  # `/readyz` says so; what is crossed is so at the next look
        except Exception as problem:
            log(logging.ERROR, f"alerts were not looked for: {type(problem).__name__}", problem)

    def _own(self) -> set[str]:
        """Apps that this process has charged a moment before the last look, or since then."""
        since = self._looked - _OWN_SECONDS
        return {app for app, at in self._ledger.charged.items() if at > since}

    async def _crossed(self, own: Collection[str]) -> list[Alert]:
        grants, now, store = self._grants(), self._ledger.clock(), self._store
        if (rules := grants.alerts) is None:
            return []
        spent = await store.spent_by_app(now)
        day = next((one.day for one in spent.values()), day_of(now))
        groups = await store.spent_by_group(now) if grants.groups else {}
        found = [
            alert
            for limit in limits_of(grants, spent, groups, day)
            for alert in _crossings(limit, rules.limits, limit.id in self._refused)
        ]
        if rules.budgets:
            for app in own if self._begun else [None]:
                for budget in await store.budgets(app, since=now - _OWN_SECONDS):
                    if budget.token.revoked is None:
                        found += _used(budget, rules.budgets)
        return found

    def _send(self, alert: Alert) -> None:
        if len(self._sending) >= _MOST_RUNNING:
            self._drop(alert, f"{_MOST_RUNNING} others are being sent")
            return
        sending = asyncio.create_task(self._attempts(alert))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    async def _attempts(self, alert: Alert) -> None:
        facts = {"id": alert.id, "at": utc(self._ledger.clock()), "node": self._node, **alert.facts}
        for seconds in _BEFORE:
            await asyncio.sleep(seconds)
            if (rules := self._grants().alerts) is None:
                return
            try:
                await send(self._home, rules.webhook, facts)
            except NotSent as problem:
                self.counts["failed",] += 1
                _log.warning("an alert was not sent: %s (%s)", problem, alert.id)
            else:
                self.counts["sent",] += 1
                return
        self._drop(alert, "no attempt has succeeded")

    def _drop(self, alert: Alert, reason: str) -> None:
        self.counts["dropped",] += 1
        _log.error("an alert is given up: %s (%s)", reason, alert.id)


# ── Crossings ─────────────────────────────────────────────────────────────────────────────────────


def limits_of(
    grants: Grants, apps: Mapping[str, Spent], groups: Mapping[str, Spent], day: str
) -> Iterator[DollarLimit]:
    """All limits of apps and groups, except those of 0 dollars."""
    none = Spent(day=day)
    for app, grant in grants.apps.items():
        yield from _limits("app", app, (app,), grant.llm, apps.get(app, none), day)
    for name, limits in grants.groups.items():
        members = [app for app, grant in grants.apps.items() if grant.group == name]
        yield from _limits("group", name, members, limits, groups.get(name, none), day)


def _limits(
    kind: str,
    name: str,
    apps: Collection[str],
    limits: LlmGrant | GroupLimits,
    used: Spent,
    day: str,
) -> Iterator[DollarLimit]:
    if nano := limits.nano_usd_per_day:
        ends = end_of_day(day)
        yield DollarLimit(kind, name, apps, "usd_per_day", nano, used.today, day, ends)
    if nano := limits.nano_usd_per_month:
        month, ends = month_of(day), end_of_month(day)
        yield DollarLimit(kind, name, apps, "usd_per_month", nano, used.month, month, ends)


def _crossings(limit: DollarLimit, percents: Collection[int], refused: bool) -> Iterator[Alert]:
    for percent in percents:
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
        yield Alert(f"{percent} % of {limit.id}", limit.apps, is_used_up, facts)


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
        yield Alert(f"{percent} % of budget {token.id}", (token.app,), False, facts)


# ── The webhook ───────────────────────────────────────────────────────────────────────────────────


class NotSent(Exception):
    """Why the receiver did not get an alert: never with its address or key."""


async def send(home: Home, webhook: Webhook, facts: Mapping[str, Any]) -> None:
    """One attempt. Raises `NotSent`."""
    from anaphora.client.transport.over_aiohttp import AiohttpTransport

    url, key = secrets_of(home, webhook)
    body, seconds = msgspec.json.encode(facts), _ATTEMPT_SECONDS
    headers = {"content-type": "application/json", "user-agent": "anaphora"}
    headers[SIGNATURE] = signature(key, body, int(time.time()))
    request = HttpRequest(
        method="POST",
        url=url.reveal(),
        headers=SecretHeaders(headers),
        body=body,
        timeouts=Timeouts(connect=seconds, first_byte=seconds, idle=seconds, total=seconds),
        max_response_bytes=_MOST_BYTES,
    )
    transport = AiohttpTransport()
    try:
        async with asyncio.timeout(seconds):
            answer = await transport.send(request)
            await answer.close()
    except TimeoutError:
        raise NotSent(f"no answer within {seconds:g} s") from None
    except Transport as problem:  # its text may name the host
        raise NotSent(f"the connection failed ({problem.phase})") from None
    except AnaphoraError as problem:
        raise NotSent(type(problem).__name__) from None
    finally:
        await transport.close()
    if not 200 <= answer.status < 300:
        raise NotSent(f"status {answer.status}")


def secrets_of(home: Home, webhook: Webhook) -> tuple[Secret, Secret]:
    """The URL and the key, read for each attempt: a replaced file counts at once."""

    def read(key: Key) -> Secret:
        try:
            return SecretsFolder(home.secrets).read(key.secret or "")
        except AnaphoraError as problem:
            raise NotSent(str(problem)) from None

    url = Secret(webhook.url) if isinstance(webhook.url, str) else read(webhook.url)
    if not is_url(url.reveal()):
        raise NotSent(f"{webhook.url} is not a URL: it needs http:// or https://, and a host")
    return url, read(webhook.key)


def signature(key: Secret, body: bytes, at: int) -> str:
    """The value of the header `anaphora-signature`."""
    digest = hmac.digest(key.reveal().encode(), b"%d." % at + body, "sha256").hex()
    return f"t={at},v1={digest}"


async def send_test(home: Home, webhook: Webhook, node: str) -> None:
    """For `serve --check`. Raises `NotSent`."""
    at, text = utc(time.time()), "a test of the alerts of Anaphora"
    await send(
        home, webhook, {"id": f"test at {at}", "at": at, "node": node, "kind": "test", "text": text}
    )
