"""Looks for alerts and sends each to each target once, over restarts and nodes.

The state is in the store, in rows of the kind `alert`: one while an alert waits, one for each
attempt, and one when it was sent. An attempt has its time after the alert began: only the node that
inserts its row makes it, and any node makes the next one. So a target that fails, or a node that is
killed, delays an alert. A node that is killed after the target got it and before its row is written
leaves an alert that is sent again: better twice than never.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from secrets import token_hex
from typing import Any

import msgspec

from anaphora.bounded import BoundedMap
from anaphora.client.failures import log
from anaphora.client.pool import ProviderPool
from anaphora.daemon.access.grants import GroupLimits
from anaphora.daemon.health import utc
from anaphora.daemon.home import Home
from anaphora.daemon.home.alerts import AlertRules, AlertTarget
from anaphora.daemon.home.extensions import Grants
from anaphora.daemon.home.settings import SettingsFiles
from anaphora.daemon.monitoring import DaemonMetrics, Gauge, Values
from anaphora.daemon.services import Services
from anaphora.daemon.store import HandleKind, HandleRow, Spent
from anaphora.daemon.store.interface import Store
from anaphora.daemon.store.reading import day_of
from anaphora.errors import GrantExceeded, StoreUnavailable

from .conditions import Alert, Conditions, limits_in, limits_of
from .targets import AlertSender, NotSent

_log = logging.getLogger("anaphora.daemon")

_KIND: HandleKind = "alert"
#: Owners of rows, and the beginnings of their ids. A row of an attempt belongs to its process.
_STATE, _SENT = "alerts", "alerts sent"
_WAITS, _REFUSED, _IS_SENT = "waits ", "refused ", "sent "
#: Between the key of an alert and its target.
_TO = " > "
_LOOK_SECONDS = 2.0
#: Seconds between attempts; after the last one and the same time again, an alert is given up.
_GAPS = (5, 10, 45, 180, 600, 1800)
#: Seconds by which an attempt ends before the next one may begin.
_MARGIN = 4.0
#: Seconds after which an alert is given up if no daemon ran meanwhile.
_LATEST = 86_400.0
_MOST_RUNNING, _MOST_WAITING, _MOST_KNOWN = 16, 1_000, 10_000
#: Rows are kept for longer than a month, since limits are by month.
_KEEP, _CLEAN_SECONDS = 40 * 86_400.0, 3600.0


class Alerts:
    """Used from one event loop. `look` is called every second and never waits."""

    def __init__(
        self,
        home: Home,
        store: Store,
        pool: ProviderPool,
        grants: Callable[[], Grants],
        *,
        node: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`node` is in the facts of its alerts."""
        self._store = store
        self._grants = grants
        self._clock = clock
        self._node = node
        self._conditions = Conditions(store, pool)
        self._sender = AlertSender(home)
        self._process = token_hex(8)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._look: asyncio.Task[None] | None = None
        self._next_look = self._next_clean = 0.0
        self._known = BoundedMap[str, float](_MOST_KNOWN)
        """Alerts with a row, attempts that some process has made, and since when they are known."""
        self.counts: Counter[tuple[str, str]] = Counter()
        """By target and result: `sent`, `failed` (an attempt) and `dropped` (given up)."""

    def gauge(self) -> Gauge:
        async def values() -> Values:
            return {key: float(count) for key, count in self.counts.items()}

        name, text = "anaphora_daemon_alerts", "Alerts by target and result"
        return Gauge(name, text, values, ("target", "result"), True)

    def look(self) -> None:
        """Begins a look if the last one is over."""
        now, rules = time.monotonic(), self._grants().alerts
        if rules is None or now < self._next_look or (self._look and not self._look.done()):
            return
        self._next_look = now + _LOOK_SECONDS
        self._look = asyncio.create_task(self._guarded(rules))

    def note_refusal(self, app: str, error: GrantExceeded) -> None:
        """Notes the limit that refused a call: it counts as used up. A call that can cost more
        than the whole limit says nothing about it."""
        grants = self._grants()
        grant = grants.apps.get(app)
        if grants.alerts is None or grant is None or error.resets_at is None:
            return
        now, field = self._clock(), error.limit.removeprefix("group_")
        if field == error.limit:
            found = limits_in("app", app, grant.llm, Spent(day=""), day_of(now))
        else:
            limits = grant.group_limits or GroupLimits()
            found = limits_in("group", grant.group, limits, Spent(day=""), day_of(now))
        for id in (_REFUSED + limit.id for limit in found if limit.field == field):
            if id not in self._known:
                self._known[id] = now
                row = HandleRow(kind=_KIND, id=id, app=_STATE, provider="", created=now)
                self._store.add_handles_later([row])

    def log_problems(self) -> None:
        """Logs targets that cannot be used."""
        grants = self._grants()
        if grants.alerts is not None:
            for problem in self._sender.problems(grants.alerts, grants.origin):
                _log.error("%s", problem)

    async def close(self) -> None:
        tasks = [*self._running.values(), *([self._look] if self._look else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ── A look ───────────────────────────────────────────────────────────────────────────────────

    async def _guarded(self, rules: AlertRules) -> None:
        try:
            await self._look_once(rules)
        except StoreUnavailable:
            pass  # `/readyz` says so; the conditions are still met at the next look
        except Exception as problem:
            log(logging.ERROR, f"alerts were not looked for: {type(problem).__name__}", problem)

    async def _look_once(self, rules: AlertRules) -> None:
        now, grants, store = self._clock(), self._grants(), self._store
        rows = await store.handles(_KIND, _STATE)
        waiting = {row.id: row for row in rows if row.id.startswith(_WAITS)}
        refused = {row.id.removeprefix(_REFUSED) for row in rows if row.id.startswith(_REFUSED)}
        for alert in await self._conditions.check(grants, rules, refused, now):
            for name in rules.to:
                id = f"{_WAITS}{alert.key}{_TO}{name}"
                if id in self._known:
                    continue
                if id not in waiting and not await self._is_sent(id):
                    if len(waiting) < _MOST_WAITING:
                        waiting[id] = self._row(id, alert, now)
                        await store.add_handle(waiting[id])
                    else:
                        self._drop(name, alert.key, f"{_MOST_WAITING:,} others wait")
                self._known[id] = now
        for row in waiting.values():
            await self._attempt(row, rules, now)
        if now >= self._next_clean:
            self._next_clean = now + _CLEAN_SECONDS
            await self._clean(refused, grants, now)

    async def _clean(self, refused: set[str], grants: Grants, now: float) -> None:
        """Removes rows of earlier days and months."""
        in_force = {limit.id for limit in limits_of(grants, {}, {}, day_of(now))}
        for id in refused - in_force:
            await self._store.remove_handle(_KIND, _REFUSED + id, _STATE)
        await self._store.remove_old_handles(_KIND, now - _KEEP)

    def _row(self, id: str, alert: Alert, now: float) -> HandleRow:
        facts = {"id": alert.key, "at": utc(now), "node": self._node, **alert.facts}
        return HandleRow(
            kind=_KIND,
            id=id,
            app=_STATE,
            provider="",
            created=now,
            bill=msgspec.json.encode(facts).decode(),
        )

    async def _is_sent(self, id: str) -> bool:
        """`id` is that of the waiting row."""
        sent = _IS_SENT + id.removeprefix(_WAITS)
        return await self._store.handle(_KIND, sent, _SENT) is not None

    async def _attempt(self, row: HandleRow, rules: AlertRules, now: float) -> None:
        """Begins the attempt whose time it is, if no other process does."""
        key, _, name = row.id.removeprefix(_WAITS).rpartition(_TO)
        target, age = rules.to.get(name), now - row.created
        if target is None and age < _LATEST:
            return  # another node may have this target
        seconds = 0.0 if target is None else target.seconds
        number = _attempt_at(age, seconds)
        if number > len(_GAPS) and age < _LATEST:  # no daemon may have run at the last attempt
            made = self._known.get(_claim(len(_GAPS), row))
            if made is None:
                number = len(_GAPS)
            elif now < made + seconds + _MARGIN:
                return  # perhaps by another process
        claim = _claim(number, row)
        if row.id in self._running or claim in self._known or len(self._running) >= _MOST_RUNNING:
            return
        if await self._is_sent(row.id):  # another node wrote the row again meanwhile
            await self._store.remove_handle(_KIND, row.id, _STATE)
            return
        own = HandleRow(kind=_KIND, id=claim, app=self._process, provider="", created=now)
        await self._store.add_handle(own)
        self._known[claim] = now
        if await self._store.handle(_KIND, claim, self._process) is None:
            return
        if number > len(_GAPS):
            self._drop(name, key, "no attempt has succeeded")
            await self._end(row)
        elif target is not None:
            task = asyncio.create_task(self._send(row, key, name, target))
            self._running[row.id] = task
            task.add_done_callback(lambda _: self._running.pop(row.id, None))

    async def _send(self, row: HandleRow, key: str, name: str, target: AlertTarget) -> None:
        facts: dict[str, Any] = msgspec.json.decode(row.bill)
        try:
            await self._sender.send(target, facts)
            self.counts[name, "sent"] += 1
            await self._end(row)
        except NotSent as problem:
            self.counts[name, "failed"] += 1
            _log.warning("an alert was not sent to %s: %s (%s)", name, problem, key)
        except StoreUnavailable:
            pass  # it may be sent again
        except Exception as problem:
            self.counts[name, "failed"] += 1
            log(logging.ERROR, f"an alert was not sent to {name}", problem)

    async def _end(self, row: HandleRow) -> None:
        """Not sent again."""
        now, id = self._clock(), _IS_SENT + row.id.removeprefix(_WAITS)
        await self._store.add_handle(msgspec.structs.replace(row, id=id, app=_SENT, created=now))
        await self._store.remove_handle(_KIND, row.id, _STATE)

    def _drop(self, name: str, key: str, reason: str) -> None:
        self.counts[name, "dropped"] += 1
        _log.error("an alert is not sent to %s: %s (%s)", name, reason, key)


def _claim(number: int, row: HandleRow) -> str:
    """The id of the row of an attempt."""
    return f"try {number} {row.id.removeprefix(_WAITS)}"


def _attempt_at(age: float, timeout: float) -> int:
    """The number of the attempt at an age of an alert; attempts do not overlap."""
    gaps = (max(gap, timeout + _MARGIN) for gap in (*_GAPS, _GAPS[-1]))
    return bisect_right(list(itertools.accumulate(gaps)), age)


def open_alerts(
    home: Home, files: SettingsFiles, services: Services, metrics: DaemonMetrics
) -> Alerts:
    """The alerts of a daemon, whose refused calls are noted from now on."""
    tools, config = services.calls.tools, files.current.daemon
    alerts = Alerts(
        home,
        services.store,
        tools.pool,
        lambda: files.current.grants,
        node=config.node_name,
        clock=services.ledger.clock,
    )
    tools.denials.on_exceeded = alerts.note_refusal
    metrics.gauges(alerts.gauge())
    return alerts
