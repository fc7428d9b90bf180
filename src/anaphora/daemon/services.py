"""The parts of a daemon that answer calls, opened in order: store, tokens, audit log, calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from anaphora.audit.log import AuditLog
from anaphora.client.observe import Watcher

from .admin import Admin
from .checking import price_table_days
from .grants import NANO
from .handler import EndpointHandler, RpcHandler
from .home import Home
from .identity import Directory
from .ledger import Ledger
from .metrics import Gauge, Values
from .settings import SettingsFiles
from .slots import CallSlots

if TYPE_CHECKING:
    from .delegation import CallService
    from .store.sqlite import SqliteStore

#: Seconds that audit rows wait for others: one commit for many calls.
_COLLECT = 0.05

#: Fields of `store.Spent`, as periods of a metric.
_SPENT = ("today", "month", "held")


class Services(msgspec.Struct, frozen=True, kw_only=True):
    store: SqliteStore
    ledger: Ledger
    directory: Directory
    admin: Admin
    audit: AuditLog | None
    calls: CallService
    slots: CallSlots
    rpc: RpcHandler
    endpoints: EndpointHandler


async def open_services(
    stack: contextlib.AsyncExitStack,
    home: Home,
    files: SettingsFiles,
    *,
    clock: Callable[[], float],
    watchers: Iterable[Watcher] = (),
) -> Services:
    """Closed with `stack`, in reverse order: calls settle while the store is open."""
    from .delegation import CallService
    from .endpoints.forwarding import Forwarder
    from .endpoints.service import Endpoints
    from .endpoints.stored import StoredObjects
    from .rpc.service import RpcService
    from .store.sqlite import SqliteStore

    settings = files.current
    store = SqliteStore.open(home.store, clock=clock)
    stack.push_async_callback(store.close)
    ledger = Ledger(store, clock)
    await ledger.recover()
    directory = await Directory.open(
        home,
        store,
        settings.grants,
        failed_logins_per_minute=settings.daemon.failed_logins_per_minute,
        clock=clock,
    )
    admin = Admin(
        directory,
        store,
        config=lambda: files.current.config,
        problems=lambda: files.problems,
        clock=clock,
    )
    audit = None
    if settings.daemon.audit:
        audit = stack.enter_context(AuditLog(home.audit, collect=_COLLECT))
    calls = CallService(
        settings.config,
        settings.providers,
        ledger,
        store,
        audit,
        clock=clock,
        watchers=watchers,
    )
    calls.use_grants(settings.grants.apps.values())
    stack.push_async_callback(calls.close)
    forwarder = Forwarder(lambda: files.current.providers)
    stored = StoredObjects(store, forwarder, ledger, clock=clock)
    stack.push_async_callback(stored.close)
    slots = CallSlots(settings.daemon.max_streams_per_app)
    return Services(
        store=store,
        ledger=ledger,
        directory=directory,
        admin=admin,
        audit=audit,
        calls=calls,
        slots=slots,
        rpc=RpcService(calls, admin.methods(), slots),
        endpoints=Endpoints(calls, store, stored, clock=clock),
    )


def service_gauges(services: Services, clock: Callable[[], float]) -> Iterator[Gauge]:
    """The spend of each app today, and whether everything could be written."""

    async def spent() -> Values:
        apps = services.directory.grants.apps
        found = [(app, await services.store.spent(app, clock())) for app in apps]
        return {(app, kind): getattr(one, kind) / NANO for app, one in found for kind in _SPENT}

    async def waiting() -> Values:
        return {(): float(services.store.waiting)}

    async def failing() -> Values:
        return {(): float(services.audit is not None and services.audit.failing)}

    async def price_age() -> Values:
        return {(): float(price_table_days(clock()))}

    prefix = "anaphora_daemon"
    yield Gauge(f"{prefix}_spent_usd", "Spend by app", spent, ("app", "period"))
    yield Gauge(f"{prefix}_waiting_settlements", "Settlements that are not written yet", waiting)
    yield Gauge(f"{prefix}_audit_failing", "Whether audit rows cannot be written", failing)
    yield Gauge(f"{prefix}_price_table_days", "Age of the price table", price_age)
