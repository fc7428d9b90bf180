"""The parts of a daemon that answer calls, opened in order: store, tokens, audit log, calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from anaphora.audit.log import AuditLog
from anaphora.client.observe import Watcher
from anaphora.errors import StoreUnavailable

from .access.checks import CallSlots
from .access.grants import NANO
from .access.identity import Directory
from .admin import Admin
from .audit import AuditRecovery, open_audit
from .checking import price_table_days
from .health import Part
from .home import Home
from .home.settings import Settings, SettingsFiles
from .money.administration import SpendAdmin
from .money.ledger import Ledger
from .monitoring import Gauge, Values
from .off_loop import OffLoop
from .store.opening import store_address
from .store.sqlite import SqliteStore

if TYPE_CHECKING:
    from .calls.delegation import CallService
    from .endpoints.service import Endpoints
    from .nodes.membership import NodeMembership
    from .rpc.service import RpcService
    from .store.interface import Store

#: Fields of `store.Spent`, as periods of a metric.
_SPENT = ("today", "month", "held")


class Services(msgspec.Struct, frozen=True, kw_only=True):
    store: Store
    node: NodeMembership | None
    """This node's membership; None if the store is SQLite."""
    ledger: Ledger
    directory: Directory
    admin: Admin
    audit: AuditLog | None
    calls: CallService
    slots: CallSlots
    rpc: RpcService
    endpoints: Endpoints
    off_loop: OffLoop
    """Threads for large requests."""


async def open_services(
    stack: contextlib.AsyncExitStack,
    home: Home,
    files: SettingsFiles,
    *,
    clock: Callable[[], float],
    watchers: Iterable[Watcher] = (),
) -> Services:
    """Opens the services. `stack` closes them: calls settle while the store is open."""
    from .rpc.service import RpcService

    store, node = await _open_store(stack, home, files, clock)
    ledger = Ledger(store, clock)
    await ledger.recover(home.sent_marks)
    settings = files.current
    directory, admin = await _open_directory(home, files, store, clock)
    if node is not None:
        await _follow_changes(stack, node, directory, admin, files)
    audit = await _open_audit(stack, home, settings, ledger)
    SpendAdmin(store, audit, clock=clock).register(admin)
    off_loop = stack.enter_context(contextlib.closing(OffLoop()))
    calls = _open_calls(settings, ledger, audit, clock=clock, watchers=watchers, off_loop=off_loop)
    stack.push_async_callback(calls.close)
    slots = _begin_calls(calls, settings)
    return Services(
        store=store,
        node=node,
        ledger=ledger,
        directory=directory,
        admin=admin,
        audit=audit,
        calls=calls,
        slots=slots,
        rpc=RpcService(calls, admin.methods(), slots, directory, off_loop),
        endpoints=_endpoints(stack, files, store, calls, audit, clock),
        off_loop=off_loop,
    )


def _open_calls(
    settings: Settings,
    ledger: Ledger,
    audit: AuditLog | None,
    *,
    clock: Callable[[], float],
    watchers: Iterable[Watcher],
    off_loop: OffLoop,
) -> CallService:
    from .calls.delegation import CallService

    return CallService(
        settings.config,
        settings.providers,
        ledger,
        audit,
        clock=clock,
        watchers=watchers,
        off_loop=off_loop,
    )


def _begin_calls(calls: CallService, settings: Settings) -> CallSlots:
    calls.use_grants(settings.grants.apps.values())
    most = settings.daemon.max_streams_per_app
    calls.read_on.slots = slots = CallSlots(most, calls.deny_slot)
    return slots


async def _open_directory(
    home: Home, files: SettingsFiles, store: Store, clock: Callable[[], float]
) -> tuple[Directory, Admin]:
    settings = files.current
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
        providers=lambda: files.current.providers,
        problems=lambda: files.problems,
        clock=clock,
    )
    return directory, admin


def _endpoints(
    stack: contextlib.AsyncExitStack,
    files: SettingsFiles,
    store: Store,
    calls: CallService,
    audit: AuditLog | None,
    clock: Callable[[], float],
) -> Endpoints:
    from .endpoints.embeddings import Embeddings
    from .endpoints.forwarding import Forwarder
    from .endpoints.service import Endpoints
    from .endpoints.stored import ObjectRequests

    tools = calls.tools
    forwarder = Forwarder(lambda: files.current.providers)
    stored = ObjectRequests(
        store,
        forwarder,
        isolates=tools.shared.isolates,
        reaches=tools.granted.reaches,
        off_loop=tools.off_loop,
        clock=clock,
    )
    stack.push_async_callback(stored.close)
    embeddings = Embeddings(tools, calls.permit, forwarder, audit=audit, clock=clock)
    stack.push_async_callback(embeddings.close)
    return Endpoints(calls, store, stored, embeddings, clock=clock)


async def _open_audit(
    stack: contextlib.AsyncExitStack,
    home: Home,
    settings: Settings,
    ledger: Ledger,
) -> AuditLog | None:
    """The audit log, if there is to be one. Writes missing rows."""
    if not settings.daemon.audit:
        await ledger.store.begin_audit(0)
        return None
    audit = await open_audit(stack, home, ledger.store, settings.daemon)
    await AuditRecovery(ledger, audit, settings.grants.group_of).begin()
    return audit


async def _open_store(
    stack: contextlib.AsyncExitStack,
    home: Home,
    files: SettingsFiles,
    clock: Callable[[], float],
) -> tuple[Store, NodeMembership | None]:
    """Opens the store. With PostgreSQL, the grants of the store are in force from then on."""
    config = files.current.daemon
    address, name = store_address(home, config), config.node_name
    if address is None:
        file = SqliteStore.open(home.store, clock=clock)
        stack.push_async_callback(file.close)
        return file, None
    from anaphora.version import __version__

    from .nodes.membership import NodeMembership
    from .store.postgres import MOST_SKEW, PostgresStore

    store = await PostgresStore.open(
        address,
        node=name,
        version=__version__,
        journal=home.settlements_journal,
        clock=clock,
        most_skew=MOST_SKEW,
    )
    stack.push_async_callback(store.close)
    node = await NodeMembership.join(address, name, home=home, files=files)
    node.clock = store.clock_check
    store.report = node.report
    return store, node


async def _follow_changes(
    stack: contextlib.AsyncExitStack,
    node: NodeMembership,
    directory: Directory,
    admin: Admin,
    files: SettingsFiles,
) -> None:
    """Follows tokens, grants and drains written by other nodes and commands."""
    from .nodes.administration import NodeAdmin

    commands = NodeAdmin(node.address, config=lambda: files.current.config)
    commands.register(admin, directory)
    stack.push_async_callback(commands.close)
    following = asyncio.create_task(node.feed(directory).run())
    stack.push_async_callback(_cancelled, following)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def parts_of(services: Services) -> dict[str, Part]:
    """The parts that the daemon depends on."""
    store = services.store
    return {"store": Part(store.probe, lambda: store.problem)}


def service_gauges(services: Services, clock: Callable[[], float]) -> Iterator[Gauge]:
    """Gauges of spend by app, refusals and the state of the store."""

    async def spent() -> Values:
        try:
            found = await services.store.spent_by_app(clock())
        except StoreUnavailable:
            return {}  # the other metrics say why
        return {
            (app, kind): getattr(found[app], kind) / NANO if app in found else 0.0
            for app in services.directory.grants.apps
            for kind in _SPENT
        }

    async def denied() -> Values:
        return {key: float(count) for key, count in services.calls.tools.denials.counts.items()}

    async def exceeded() -> Values:
        found = services.ledger.bound_exceeded
        return {key: float(count) for key, count in found.items()}

    async def read_on() -> Values:
        counts = services.calls.read_on.by_app
        return {(app,): float(counts.get(app, 0)) for app in services.directory.grants.apps}

    prefix = "anaphora_daemon"
    yield Gauge(f"{prefix}_spent_usd", "Spend by app", spent, ("app", "period"))
    yield Gauge(
        f"{prefix}_denied", "Calls that a grant did not allow", denied, ("app", "kind"), True
    )
    yield Gauge(
        f"{prefix}_bound_exceeded",
        "Bills above the bound of a call",
        exceeded,
        ("app", "provider"),
        True,
    )
    yield Gauge(
        f"{prefix}_read_on_calls",
        "Calls whose app has left and whose answer is read on to its usage",
        read_on,
        ("app",),
    )
    for name, help_text, read in _plain_gauges(services, clock):
        yield Gauge(f"{prefix}_{name}", help_text, _alone(read))


def _plain_gauges(
    services: Services, clock: Callable[[], float]
) -> tuple[tuple[str, str, Callable[[], float]], ...]:
    """Gauges without labels: name, help, value."""
    store, node, audit = services.store, services.node, services.audit
    return (
        ("waiting_settlements", "Settlements that are not written yet", lambda: store.waiting),
        (
            "store_available",
            "Whether the store can be written",
            lambda: store.problem is None,
        ),
        ("nodes", "Nodes that run on the store", lambda: 1 if node is None else node.count),
        (
            "grants_generation",
            "Generation of the grants in force",
            lambda: 0 if node is None else node.generation,
        ),
        (
            "audit_failing",
            "Whether audit rows cannot be written",
            lambda: audit is not None and audit.failing,
        ),
        ("price_table_days", "Age of the price table", lambda: price_table_days(clock())),
    )


def _alone(read: Callable[[], float]) -> Callable[[], Awaitable[Values]]:
    async def values() -> Values:
        return {(): float(read())}

    return values
