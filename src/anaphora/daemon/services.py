"""The parts of a daemon that answer calls, opened in order: store, tokens, audit log, calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from anaphora.audit.log import AuditLog
from anaphora.client.observe import Watcher
from anaphora.errors import InvalidRequest

from .admin import Admin, AdminMethod
from .handler import EndpointHandler, RpcHandler
from .home import Home
from .identity import Directory
from .ledger import Ledger
from .rpc.methods import MethodContext, RpcMethod
from .settings import SettingsFiles

if TYPE_CHECKING:
    from .delegation import CallService
    from .store.sqlite import SqliteStore


class Services(msgspec.Struct, frozen=True, kw_only=True):
    store: SqliteStore
    ledger: Ledger
    directory: Directory
    admin: Admin
    audit: AuditLog | None
    calls: CallService
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
    admin = Admin(directory, store, config=lambda: files.current.config, clock=clock)
    audit = None
    if settings.daemon.audit:
        audit = stack.enter_context(AuditLog(home.audit))
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
    stored = StoredObjects(store, Forwarder(lambda: files.current.providers), clock=clock)
    stack.push_async_callback(stored.close)
    return Services(
        store=store,
        ledger=ledger,
        directory=directory,
        admin=admin,
        audit=audit,
        calls=calls,
        rpc=RpcService(calls, rpc_methods(admin.methods())),
        endpoints=Endpoints(calls, store, stored, clock=clock),
    )


# ── Methods of administrators ────────────────────────────────────────────────────────────────────


class AdminRpcMethod(RpcMethod, frozen=True, kw_only=True):
    """A method of `Admin`, which reads its params itself."""

    def read_params(self, data: bytes) -> Any:
        params = msgspec.json.decode(data)
        if not isinstance(params, dict):
            raise InvalidRequest("params must be an object")
        return params

    def ignored_params(self, data: bytes) -> tuple[str, ...]:  # noqa: ARG002
        return ()


def rpc_methods(methods: Mapping[str, AdminMethod]) -> dict[str, RpcMethod]:
    """The methods of an administrator as JSON-RPC methods."""
    return {name: _rpc_method(name, method) for name, method in methods.items()}


def _rpc_method(name: str, method: AdminMethod) -> AdminRpcMethod:
    async def run(_: MethodContext, params: Any) -> object:
        return await method(params)

    return AdminRpcMethod(name=name, params=msgspec.Struct, result=dict[str, Any], run=run)
