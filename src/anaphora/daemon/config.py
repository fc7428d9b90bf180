"""The `daemon` section of `llm.yaml`: where the daemon listens, and its limits. Times are in
seconds.

    daemon:
      port: 7707
      tls: {cert: server.pem, key: server.key}
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from anaphora.client.config import ClientConfig, Count, Name, Positive
from anaphora.client.config import schema as client_schema
from anaphora.redaction import quoted
from anaphora.yaml_values import from_python

Port = Annotated[int, Meta(ge=0, le=65_535)]


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of both tables."""


class TlsConfig(_Table, frozen=True):
    """PEM files, relative to the home folder; they are read again when they change."""

    example: ClassVar[str] = "write `tls: {cert: FILE, key: FILE}`"

    cert: Name
    key: Name


class DaemonConfig(_Table, frozen=True):
    """The `daemon` section. An address other than loopback needs TLS, or a reverse proxy."""

    example: ClassVar[str] = "write `daemon: {port: 7707}`"

    host: Name = "127.0.0.1"
    port: Port = 7707
    """0: any free port."""
    socket: Name = "anaphora.sock"
    """The Unix socket, relative to the home folder."""
    tls: TlsConfig | None = None
    behind_proxy: bool = False
    """Whether a reverse proxy with TLS is in front; needs `trusted_proxies` and `allowed_hosts`."""
    trusted_proxies: tuple[Name, ...] = ()
    """Addresses or networks whose `x-forwarded-for` is believed."""
    allowed_hosts: tuple[Name, ...] = ()
    """Values of the Host header that are accepted beside the loopback names."""
    log_file: Name | None = None
    """Relative to the home folder; by default the log goes to standard output."""
    audit: bool = True
    max_body_bytes: Count = 32 * 1024 * 1024
    max_header_bytes: Count = 64 * 1024
    max_connections: Count = 1024
    max_streams_per_app: Count = 64
    """Calls of one app that run at the same time."""
    body_timeout: Positive = 30.0
    """For a request's body to arrive; a second more for every 64 KB."""
    write_timeout: Positive = 60.0
    """For a client to take the next piece of a response."""
    drain_timeout: Positive = 30.0
    """For running calls to end after SIGTERM."""
    failed_logins_per_minute: Count = 20
    """Of one peer; further ones are answered with 429. A valid token is always accepted."""

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
        if self.is_exposed and self.tls is None and not self.behind_proxy:
            raise ValueError(
                f"host: {self.host} is not a loopback address: other machines could read tokens on"
                " the way. Set `tls: {cert, key}`, or `behind_proxy: true` with"
                " `trusted_proxies` and `allowed_hosts`"
            )


class _Section(msgspec.Struct, frozen=True):
    daemon: DaemonConfig = DaemonConfig()


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
