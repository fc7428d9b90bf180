"""Address of a PostgreSQL database, and how a connection to it is protected."""

from __future__ import annotations

import getpass
import ipaddress
import ssl
from pathlib import Path
from typing import Literal, TypeAlias, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from anaphora.client.config.secrets import Secret
from anaphora.errors import InvalidConfig
from anaphora.redaction import hides_arguments, shown_name

SslMode: TypeAlias = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]

_MODES: tuple[SslMode, ...] = get_args(SslMode)
_FILES = ("sslrootcert", "sslcert", "sslkey")
_PARAMETERS = ("host", "port", "sslmode", *_FILES)
_PORT = 5432
_FORM = "postgresql://USER@HOST:PORT/DATABASE, or postgresql:///DATABASE?host=/FOLDER/OF/SOCKET"


class PostgresAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a database. The password is in no repr and no URL."""

    host: str
    """A host name, an IP address, or the folder of a Unix socket."""
    port: int = _PORT
    user: str
    database: str
    password: Secret | None = None
    sslmode: SslMode = "verify-full"
    sslrootcert: str | None = None
    """File of certificate authorities; None: those of the system."""
    sslcert: str | None = None
    sslkey: str | None = None

    @classmethod
    @hides_arguments
    def parse(cls, url: str, password: Secret | None = None) -> PostgresAddress:
        """Raises `InvalidConfig`, without the password. Certificates are verified unless the URL
        says otherwise, or PostgreSQL is on this machine."""
        try:
            parts = urlsplit(url)
            query = _query(parts.query)
            port = int(query["port"]) if "port" in query else parts.port
        except ValueError:
            raise _invalid(f"is not a URL: write {_FORM}") from None
        if parts.scheme not in ("postgresql", "postgres"):
            raise _invalid(f"must begin with postgresql://: write {_FORM}")
        if parts.password is not None:
            raise _invalid(
                "contains a password; remove it from the URL and store it with `anaphora secrets"
                " set NAME`, and write `store_password: {secret: NAME}`"
            )
        if parts.fragment:
            raise _invalid(f"contains a #: write {_FORM}")
        if "host" in query and parts.hostname:
            raise _invalid("names a host twice: before the path, and as ?host=")
        host = query.get("host") or unquote(parts.hostname or "") or "localhost"
        if "," in host:
            raise _invalid("names several hosts; name one, which leads to the primary")
        database = unquote(parts.path.removeprefix("/"))
        user = unquote(parts.username or "") or getpass.getuser()
        return cls(
            host=host,
            port=port or _PORT,
            user=user,
            database=database or user,
            password=password,
            sslmode=_mode(query, host),
            **{name: query[name] for name in _FILES if name in query},
        )

    @property
    def is_socket(self) -> bool:
        return self.host.startswith(("/", "@"))

    def __str__(self) -> str:
        """For messages, without the password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.is_socket:
            return f"postgresql:///{self.database}?host={self.host}"
        port = "" if self.port == _PORT else f":{self.port}"
        return f"postgresql://{host}{port}/{self.database}"

    def ssl_options(self) -> ssl.SSLContext | str | bool:
        """The `ssl` argument of asyncpg. Raises `InvalidConfig` if a file cannot be used."""
        if self.is_socket or self.sslmode == "disable":
            return False
        if self.sslmode in ("allow", "prefer") and not (self.sslrootcert or self.sslcert):
            return self.sslmode
        try:
            context = ssl.create_default_context(cafile=self.sslrootcert)
            context.check_hostname = self.sslmode == "verify-full"
            if not self.sslmode.startswith("verify-") and self.sslrootcert is None:
                context.verify_mode = ssl.CERT_NONE  # with authorities it is checked, as by libpq
            if self.sslcert is not None:
                context.load_cert_chain(self.sslcert, self.sslkey, password=_no_passphrase)
        except (OSError, ssl.SSLError) as error:
            files = [one for one in (self.sslrootcert, self.sslcert, self.sslkey) if one]
            missing = [one for one in files if not Path(one).is_file()]
            reason = f"no such file: {missing[0]}" if missing else error.strerror or str(error)
            raise InvalidConfig(f"{self}: TLS cannot be used: {reason}") from None
        return context


def _no_passphrase() -> str:
    """Raises instead of asking for a passphrase in the terminal."""
    raise ssl.SSLError("the private key has a passphrase; store it without one")


def _invalid(reason: str) -> InvalidConfig:
    return InvalidConfig(f"the address of PostgreSQL {reason}")


def _query(text: str) -> dict[str, str]:
    found = dict(parse_qsl(text, keep_blank_values=True))
    for name in found:
        if name == "password":
            raise _invalid(
                "contains a password; store it with `anaphora secrets set NAME`, and write"
                " `store_password: {secret: NAME}`"
            )
        if name not in _PARAMETERS:
            raise _invalid(
                f"has the unknown parameter {shown_name(name)!r};"
                f" known are {', '.join(_PARAMETERS)}"
            )
    return found


def _mode(query: dict[str, str], host: str) -> SslMode:
    mode = query.get("sslmode")
    if mode is None:
        return "prefer" if _is_this_machine(host) else "verify-full"
    if mode not in _MODES:
        raise _invalid(f"has sslmode={shown_name(mode)}; known are {', '.join(_MODES)}")
    return mode


def _is_this_machine(host: str) -> bool:
    if host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
