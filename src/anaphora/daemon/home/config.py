"""The `daemon` section of `llm.yaml`: addresses and limits. Times are in seconds.

daemon:
  port: 7707
  tls: {cert: server.pem, key: server.key}
  store: postgresql://anaphora@db.internal/anaphora       for several nodes
  store_password: {secret: POSTGRES_PASSWORD}
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Annotated, Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec import Meta

from anaphora.client.config import ClientConfig, Count, Name, Positive
from anaphora.client.config import schema as client_schema
from anaphora.redaction import hides_arguments, quoted
from anaphora.yaml_values import from_python

Port = Annotated[int, Meta(ge=0, le=65_535)]
Seconds = Annotated[float, Meta(ge=0, le=86_400)]

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
"""Names of nodes: as host names and Kubernetes allow."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_STORES = ("postgresql://", "postgres://")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all tables."""


class TlsConfig(_Table, frozen=True):
    """PEM files, relative to the home folder, read again when they change."""

    example: ClassVar[str] = "write `tls: {cert: FILE, key: FILE}`"

    cert: Name
    key: Name


class PasswordConfig(_Table, frozen=True):
    """The password of a database, in a file `secrets/<NAME>.txt` of the home folder."""

    example: ClassVar[str] = "write `{secret: NAME}` for the file secrets/NAME.txt"

    secret: Name


class UiConfig(_Table, frozen=True):
    """The dashboard at `/ui`."""

    example: ClassVar[str] = "write `ui: {enabled: true}`"

    enabled: bool = True
    show_text: bool = False
    """Whether administrators see the text around a change that broke the cache. It is kept in
    memory only."""
    session_hours: Annotated[float, Meta(gt=0, le=24 * 30)] = 12.0
    """Maximum duration of a login."""
    idle_minutes: Annotated[float, Meta(gt=0, le=24 * 60 * 30)] = 60.0
    """A login also ends after this time without a request."""

    @property
    def shows_text(self) -> bool:
        return self.enabled and self.show_text


class DaemonConfig(_Table, frozen=True):
    """The `daemon` section. An address other than loopback needs TLS, a reverse proxy, or
    `allow_http`."""

    example: ClassVar[str] = "write `daemon: {port: 7707}`"

    host: Name = "127.0.0.1"
    port: Port = 7707
    """0: any free port."""
    socket: Name = "anaphora.sock"
    """The Unix socket, relative to the home folder."""
    tls: TlsConfig | None = None
    allow_http: bool = False
    """Whether an address other than loopback needs no TLS: for a container whose port is published
    on a loopback address only. Tokens can be read on the way."""
    behind_proxy: bool = False
    """Whether a reverse proxy with TLS is in front; needs `trusted_proxies` and `allowed_hosts`."""
    trusted_proxies: tuple[Name, ...] = ()
    """Addresses or networks whose `x-forwarded-for` is trusted."""
    allowed_hosts: tuple[Name, ...] = ()
    """Accepted values of the Host header, besides the loopback names."""
    log_file: Name | None = None
    """The log file, relative to the home folder; by default standard output."""
    audit: bool = True
    max_body_bytes: Count = 32 * 1024 * 1024
    max_unread_bytes: Count = 128 * 1024 * 1024
    """Maximum bytes of unread request bodies, half of it for one app; beyond it 503."""
    max_header_bytes: Count = 64 * 1024
    max_connections: Count = 1024
    """Half of it for `trusted_proxies`. Connections without a token: 256, and 32 per peer; the
    oldest idle one is closed for a new one. An app has up to 256."""
    max_streams_per_app: Count = 64
    """Concurrent calls of one app."""
    body_timeout: Positive = 30.0
    """Time for a request body to arrive, plus a second for every 64 KB."""
    write_timeout: Positive = 60.0
    """Time for a client to accept the next piece of a response."""
    drain_delay: Seconds = 5.0
    """Time from SIGTERM or `anaphora nodes drain` until the port for apps refuses new
    connections."""
    drain_timeout: Positive = 30.0
    """Time for running calls to end after that."""
    status_port: Port | None = None
    """A port only for `/healthz`, `/readyz` and `/metrics`, which stays open while the node is
    drained."""
    failed_logins_per_minute: Count = 20
    """Failed logins of one peer per minute; more get 429. A valid token is always accepted."""
    ui: UiConfig = UiConfig()
    store: Name | None = None
    """`postgresql://USER@HOST/DATABASE` for several nodes; by default SQLite in the home folder."""
    store_password: PasswordConfig | None = None
    node: Name | None = None
    """The name of this node in the store; by default the host name."""

    @property
    def node_name(self) -> str:
        return self.node or _NOT_IN_NAMES.sub("-", socket.gethostname()).strip("-._")[:63] or "node"

    @property
    def is_exposed(self) -> bool:
        """Whether other machines can connect."""
        return not _is_loopback(self.host)

    def __post_init__(self) -> None:
        for network in self.trusted_proxies:
            try:
                ipaddress.ip_network(network, strict=False)
            except ValueError:
                shown = quoted(network)
                raise ValueError(
                    f"trusted_proxies: {shown} is not an address or a network, such as 10.0.0.0/8"
                ) from None
        if self.behind_proxy and not (self.trusted_proxies and self.allowed_hosts):
            raise ValueError("behind_proxy: needs `trusted_proxies` and `allowed_hosts` as well")
        if self.is_exposed and not (self.tls or self.behind_proxy or self.allow_http):
            raise ValueError(
                f"host: {self.host} is not a loopback address: other machines could read tokens on"
                " the way. Set `tls: {cert, key}`, or `behind_proxy: true` with"
                " `trusted_proxies` and `allowed_hosts`; or `allow_http: true` in a container whose"
                " port is published on a loopback address only"
            )
        if self.status_port and self.status_port == self.port:
            raise ValueError(f"status_port: {self.port} is `port` already; name another one")
        self._check_store()

    def _check_store(self) -> None:
        if self.store is not None:
            _check_url(self.store)
        elif self.store_password is not None:
            raise ValueError("store_password: needs `store` as well")
        if self.node is not None and not NODE_NAME.match(self.node):
            raise ValueError(
                f"node: {quoted(self.node)}: a node's name has 1 to 63 letters, digits, dots,"
                " dashes and underscores, and begins with a letter or a digit"
            )


def _check_url(url: str) -> None:
    """Errors do not show the URL, which may hold a password."""
    if not url.startswith(_STORES):
        raise ValueError(
            f"store: must be a URL {' or '.join(f'{start}…' for start in _STORES)}; without it:"
            " SQLite in the home folder"
        )
    try:
        parts = urlsplit(url)
        named = {name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
        has_password = parts.password is not None or "password" in named
    except ValueError:
        raise ValueError("store: is not a valid URL") from None
    if has_password:
        raise ValueError(
            "store: holds a password, which others could read; store it with: anaphora secrets"
            " set NAME, and write `store_password: {secret: NAME}`"
        )


class _Section(msgspec.Struct, frozen=True):
    daemon: DaemonConfig = DaemonConfig()


@hides_arguments
def daemon_config(config: ClientConfig) -> DaemonConfig:
    """The section of a configuration. Raises `InvalidConfig` with file and line."""
    return from_python({"daemon": config.daemon}, _Section, config.origin).daemon


def schema() -> dict[str, Any]:
    """JSON Schema of `llm.yaml` with the daemon's section."""
    whole = client_schema()
    section = msgspec.json.schema(_Section)["$defs"]
    whole["$defs"]["ClientConfig"]["properties"]["daemon"] = section["_Section"]["properties"][
        "daemon"
    ]
    whole["$defs"] |= {name: table for name, table in section.items() if name != "_Section"}
    return whole
