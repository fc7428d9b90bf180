"""JSON-RPC with a daemon: `anaphora rpc`, and calls of an administrator, which work on the store if
no daemon runs.

call_admin(home, "admin.apps.add", {"app": "marketing"})
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import itertools
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from anaphora.client.config.secrets import Secret
from anaphora.errors import (
    AnaphoraError,
    InvalidConfig,
    InvalidRequest,
    Io,
    Unauthenticated,
    Upstream,
)
from anaphora.redaction import hides_arguments

from .common import EXISTING_FILE, print_json, report_problems

if TYPE_CHECKING:
    from anaphora.client.config import ClientConfig
    from anaphora.client.config.secrets import ResolvedProvider
    from anaphora.daemon.admin import Admin
    from anaphora.daemon.home import Home
    from anaphora.daemon.home.config import DaemonConfig
    from anaphora.daemon.home.extensions import Grants
    from anaphora.daemon.nodes.generations import GrantGeneration
    from anaphora.daemon.store.interface import Store
    from anaphora.postgres.address import PostgresAddress
    from anaphora.postgres.lane import Lane

T = TypeVar("T", bound=Callable[..., Any])

#: Seconds; a backup of a large store may take long.
_TIMEOUT = 600.0
_INVALID_PARAMS = -32602
#: Bytes of a Unix socket's address, on Linux: at a longer one no daemon can listen.
_LONGEST_ADDRESS = 107
_MOST_BYTES = 256 * 1024 * 1024


def home_option(command: T) -> T:
    return click.option(
        "--home",
        type=click.Path(file_okay=False, path_type=Path),
        default=".",
        envvar="ANAPHORA_HOME",
        show_default="$ANAPHORA_HOME, or the working directory",
        help="The daemon's home folder.",
    )(command)


json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def shown_time(seconds: float) -> str:
    """`2026-11-16 10:42 UTC`"""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


class NoDaemon(Exception):
    """Nothing listens at the socket."""


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class DaemonConnection:
    """JSON-RPC over the Unix socket of a daemon. Without a token, the daemon checks the user of
    this process: the owner of the home is an administrator."""

    def __init__(self, path: Path, token: Secret | None = None) -> None:
        self._path = path
        self._token = token
        self._ids = itertools.count(1)

    @hides_arguments
    def call(self, method: str, params: Mapping[str, Any]) -> Any:
        """The result. Raises `NoDaemon`, `InvalidRequest` for params, `Upstream` for other errors
        of the daemon, and `Io` if the connection breaks."""
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        return _result(*self._post(msgspec.json.encode(message)))

    def _post(self, body: bytes) -> tuple[int, bytes]:
        connection = _SocketConnection(self._path)
        try:
            self._connect(connection)
            connection.request("POST", "/rpc", body, self._headers())
            response = connection.getresponse()
            return response.status, response.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or error or type(error).__name__
            raise Io(f"{self._path}: the daemon does not answer: {reason}") from None
        finally:
            connection.close()

    def _connect(self, connection: _SocketConnection) -> None:
        if len(os.fsencode(self._path)) > _LONGEST_ADDRESS:
            raise NoDaemon
        try:
            connection.connect()
        except (FileNotFoundError, ConnectionRefusedError):
            raise NoDaemon from None

    def _headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token.reveal()}"
        return headers


def _result(status: int, body: bytes) -> Any:
    if status in (401, 403):
        raise Unauthenticated("the daemon does not accept this user or token", status=status)
    try:
        answer = msgspec.json.decode(body)
        error = answer.get("error")
    except (msgspec.DecodeError, AttributeError):
        raise Upstream(f"the daemon answered with status {status}", status=status) from None
    if error is None:
        return answer.get("result")
    message, code = str(error.get("message")), error.get("code")
    if code == _INVALID_PARAMS:
        raise InvalidRequest(message)
    kind = (error.get("data") or {}).get("kind")
    raise Upstream(message, status=status, code=kind or str(code))


def open_home(path: Path) -> Home:
    from anaphora.daemon.home import Home

    return Home.open(path)


def open_shared_home(path: Path) -> Home:
    """A home whose store is in PostgreSQL. Raises `InvalidConfig` for others."""
    from anaphora.daemon.home.config import daemon_config

    home = open_home(path)
    if daemon_config(home.config()).store is None:
        raise InvalidConfig(
            "has no `store: postgresql://…` in its daemon section: this daemon is the only node,"
            " and its grants are in extensions.yaml",
            file=str(home.llm_yaml),
        )
    return home


def _may_be_postgres(home: Home) -> bool:
    """Whether the store may be in PostgreSQL, if llm.yaml is invalid."""
    return b"postgres" in home.llm_yaml.read_bytes()


def store_address_of(home: Home) -> PostgresAddress | None:
    """Address of the store of a home; None for its file, or if llm.yaml is broken."""
    from anaphora.daemon.home.config import daemon_config
    from anaphora.daemon.store.opening import store_address

    try:
        return store_address(home, daemon_config(home.config()))
    except AnaphoraError:
        if _may_be_postgres(home):
            raise
        return None


def groups_of(home: Home) -> dict[str, str]:
    """The groups of apps, by the grants in force."""
    from anaphora.daemon.home.extensions import Grants

    address = store_address_of(home)
    if address is None:
        grants = Grants.read(home.extensions_yaml) if home.extensions_yaml.exists() else Grants()
    else:
        grants = asyncio.run(_stored_grants(address))
    return {app: grant.group for app, grant in grants.apps.items()}


async def _stored_grants(address: PostgresAddress) -> Grants:
    from anaphora.daemon.home.extensions import Grants
    from anaphora.daemon.nodes import generations

    found: GrantGeneration | None = await _in_lane(address, generations.latest)
    return Grants() if found is None else Grants.from_text(found.text, found.name)


async def _in_lane(address: PostgresAddress, read: Callable[[Lane], Awaitable[Any]]) -> Any:
    from anaphora.postgres.lane import Lane

    lane = Lane(address, "command")
    try:
        return await read(lane)
    finally:
        await lane.close()


def has_other_nodes(home: Home) -> bool:
    """Whether daemons of other homes have run on its store."""
    from anaphora.daemon.home.config import daemon_config
    from anaphora.daemon.nodes import directory

    address = store_address_of(home)
    if address is None:
        return False
    names: set[str] = asyncio.run(_in_lane(address, directory.all_names))
    return bool(names - {daemon_config(home.config()).node_name})


def daemon_socket(home: Home) -> Path:
    """Socket of the daemon of a home, even if llm.yaml is broken."""
    from anaphora.daemon.home.config import DaemonConfig, daemon_config

    try:
        name = daemon_config(home.config()).socket
    except (InvalidConfig, Io):
        name = DaemonConfig().socket
    return home.path / name


def call_admin(home: Home, method: str, params: Mapping[str, Any]) -> Any:
    """The result of a method of `anaphora.daemon.admin.Admin`."""
    try:
        return DaemonConnection(daemon_socket(home)).call(method, params)
    except NoDaemon:
        return asyncio.run(_call_directly(home, method, params))


async def _call_directly(home: Home, method: str, params: Mapping[str, Any]) -> Any:
    """Calls the method on the store of a home. A file is locked, so that no daemon starts with old
    data. In PostgreSQL, other nodes may run and see the changes."""
    from anaphora.daemon.access.identity import Directory
    from anaphora.daemon.admin import Admin
    from anaphora.daemon.home import HomeLock
    from anaphora.daemon.store.opening import store_address, store_for_command

    config, daemon, grants = _read_files(home, method)
    async with contextlib.AsyncExitStack() as stack:
        address = store_address(home, daemon)
        if address is None:
            lock = HomeLock.acquire(home.lock)
            stack.callback(lock.release)
        store = await stack.enter_async_context(store_for_command(home, daemon))
        nodes = None
        if address is not None:
            from anaphora.daemon.nodes.administration import NodeAdmin

            nodes = NodeAdmin(address, config=lambda: config)
            stack.push_async_callback(nodes.close)
            grants = await nodes.prepare(home, grants)
        directory = await Directory.open(home, store, grants)
        providers = functools.partial(_known_providers, home, config)
        admin = Admin(directory, store, config=lambda: config, providers=providers)
        if method.startswith("admin.spend."):
            await _register_spend(stack, admin, home, daemon, store)
        if nodes is not None:
            nodes.register(admin, directory)
        return await admin.methods()[method](params)


async def _register_spend(
    stack: contextlib.AsyncExitStack, admin: Admin, home: Home, daemon: DaemonConfig, store: Store
) -> None:
    """Adds the methods for spend. They write to the audit log of the home."""
    from anaphora.daemon.audit import open_audit
    from anaphora.daemon.money.administration import SpendAdmin

    audit = None
    if daemon.audit:
        audit = await open_audit(stack, home, store, daemon)
    SpendAdmin(store, audit).register(admin)


def _known_providers(home: Home, config: ClientConfig) -> dict[str, ResolvedProvider]:
    """The providers of llm.yaml; empty if a key is missing, which `serve --check` names."""
    from anaphora.daemon.home.secrets import resolve_providers

    try:
        return resolve_providers(home, config)
    except AnaphoraError:
        return {}


def _read_files(home: Home, method: str) -> tuple[ClientConfig, DaemonConfig, Grants]:
    """The contents of the home's files. Problems are only reported, so that a token can be revoked
    while a file is invalid."""
    from anaphora.client.config import ClientConfig
    from anaphora.daemon.home.config import DaemonConfig, daemon_config
    from anaphora.daemon.home.extensions import Grants

    config, daemon, grants = ClientConfig(), DaemonConfig(), Grants()
    try:
        config = home.config()
        daemon = daemon_config(config)
    except AnaphoraError as problem:
        if method == "admin.grants.check" or _may_be_postgres(home):
            raise
        report_problems([problem])
    try:
        if daemon.store is None or home.extensions_yaml.exists():
            grants = Grants.read(home.extensions_yaml, config)
    except AnaphoraError as problem:
        if method == "admin.grants.check" and daemon.store is None:
            raise
        report_problems([problem])
    return config, daemon, grants


# ── `anaphora rpc` ────────────────────────────────────────────────────────────────────────────────


STDIN, STDOUT = 0, 1
#: A longer file is not a token.
_LONGEST_TOKEN = 4096


@click.command()
@click.option("--stdio", is_flag=True, help="Connect standard input and output to a daemon.")
@click.option("--schema", is_flag=True, help="Print the JSON Schemas of all methods.")
@home_option
@click.option("--app", metavar="ID", help="App that makes the calls.")
@click.option("--token-file", type=EXISTING_FILE, help="File with the app's token.")
def rpc(
    stdio: bool,
    schema: bool,
    home: Path,
    app: str | None,
    token_file: Path | None,
) -> None:
    """Send JSON-RPC messages to a running daemon.

    With --stdio, every line of standard input is a request or a batch, and every line of standard
    output is a response or an `llm.delta` of a streamed one. Requests run concurrently, and
    responses are printed as they complete.

    An app names itself and its token: --app ID --token-file FILE. Without a token, the owner of the
    home folder is an administrator.

    \b
      echo '{"jsonrpc":"2.0","id":1,"method":"llm.models"}' |
        anaphora rpc --stdio --home DIR --app marketing --token-file marketing.token

    Exit code 2 when no daemon runs in the home folder or the token is another app's, 7 when it is
    rejected.
    """
    if stdio == schema:
        raise click.UsageError("Give either --stdio or --schema.")
    if schema:
        from anaphora.daemon.rpc.methods import schemas

        print_json(schemas())
        return
    if (app is None) != (token_file is None):
        raise click.UsageError("--app and --token-file need each other.")
    _run(home, app, None if token_file is None else _read_token(token_file))


def _run(home: Path, app: str | None, token: Secret | None) -> None:
    from anaphora.daemon.rpc.stdio import bridge

    asyncio.run(
        bridge(daemon_socket(open_home(home)), app=app, token=token, source=STDIN, sink=STDOUT)
    )


@hides_arguments
def _read_token(file: Path) -> Secret:
    try:
        with file.open("rb") as opened:
            data = opened.read(_LONGEST_TOKEN + 1)
    except OSError as problem:
        raise Io(f"--token-file: cannot be read: {os.strerror(problem.errno or 0)}") from None
    text = data.strip()
    if not text.isascii() or len(text.split()) != 1 or len(data) > _LONGEST_TOKEN:
        raise InvalidRequest("holds no token: it must be one word (ana_…)", path="--token-file")
    return Secret(text.decode())
