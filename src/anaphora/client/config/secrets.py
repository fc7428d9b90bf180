"""Finding API keys, and holders that do not show them: a secret, headers, a provider with its key.

Keys are in an environment variable or in a file `secrets/<NAME>.txt` next to the configuration,
never in the configuration itself.

Collectors of tracebacks (Sentry, rich, pytest) save the local variables of every frame: they call
`repr`, and walk through mappings, sequences, dataclasses and everything with `__rich_repr__`. A
holder is none of these, and a plain secret is the value of an expression, never a variable in a
frame that may raise.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from anaphora import wire
from anaphora.catalog import Dialect, dialects
from anaphora.catalog.dialect_rows import CloudAuth
from anaphora.errors import MissingSecret
from anaphora.redaction import (
    MASK,
    Redactor,
    could_be_secret,
    hides_arguments,
    shown_name,
    shown_url,
)
from anaphora.values import Notice
from anaphora.yaml_values import Origin

from . import Key, ProviderConfig

#: A longer file is not a key.
_MAX_BYTES = 16 * 1024

#: A key is sent in a header: printable ASCII without spaces.
KEY_TEXT = re.compile(r"[!-~]+\Z")

#: Headers whose values are always secrets, and those whose values never are.
_SECRET_HEADER = re.compile(r"auth|token|key|secret|pass|cookie|credential|signature", re.I)
_PLAIN_HEADER = re.compile(
    r"organization|project|beta|version|referer|title|agent|accept|type", re.I
)


class _Holder:
    """A value that no repr, format, copy or pickle shows."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a secret cannot be pickled")

    def __copy__(self) -> _Holder:
        return self

    def __deepcopy__(self, memo: Any) -> _Holder:
        return self


class Secret(_Holder):
    """A text that is only shown by `reveal()`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)


class SecretHeaders(_Holder):
    """HTTP headers whose values no repr shows. Read-only; `dict(headers)` and `{**headers}` work,
    but it is no `Mapping`, since collectors walk through those."""

    __slots__ = ("_headers",)

    def __init__(self, headers: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        self._headers = dict(headers)

    def __repr__(self) -> str:
        return f"<headers {', '.join(self._headers)}>"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SecretHeaders):
            return self._headers == other._headers
        return self._headers == other

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._headers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._headers)

    def __getitem__(self, name: str) -> str:
        return self._headers[name]

    def get(self, name: str) -> str | None:
        return self._headers.get(name)

    def keys(self) -> Iterable[str]:
        return self._headers.keys()

    def items(self) -> Iterable[tuple[str, str]]:
        return self._headers.items()


class SecretVariables(_Holder):
    """Environment variables: those given, or the process's own."""

    __slots__ = ("_variables",)

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = variables

    def __repr__(self) -> str:
        return "<environment variables>"

    @property
    def is_process(self) -> bool:
        """Whether they are the process's own, which SDKs read."""
        return self._variables is None or self._variables is os.environ

    def get(self, name: str) -> Secret | None:
        value = (os.environ if self._variables is None else self._variables).get(name)
        return None if value is None else Secret(value)


@hides_arguments
def find_key(
    key: Key,
    folder: Path,
    environ: SecretVariables,
    *,
    origin: Origin | None = None,
    path: tuple[str, ...] = (),
) -> Secret:
    """The key; `origin` and `path` are the place in the configuration, for errors."""

    def missing(reason: str) -> NoReturn:
        raise (origin or Origin()).error(reason, *path, kind=MissingSecret) from None

    where = _where(key, folder)
    if key.env is not None:
        found = environ.get(key.env)
        if found is None:
            missing(f"{where} is not set")
    else:
        found, problem = _read(_file(key, folder))
        if found is None:
            missing(problem.format(where))
    found = Secret(found.reveal().rstrip("\r\n"))
    if not found.reveal().strip():
        missing(f"{where} is empty")
    if not KEY_TEXT.match(found.reveal()):
        missing(f"{where} is not a key: it contains spaces, line breaks or non-ASCII")
    return found


def permission_warning(key: Key, folder: Path) -> str | None:
    """A warning if other users of the machine may read the key's file."""
    if key.secret is None or os.name != "posix":
        return None
    mode = stat.S_IMODE(_file(key, folder).stat().st_mode)
    if not mode & (stat.S_IRGRP | stat.S_IROTH):
        return None
    return f"{_where(key, folder)} is readable by other users (mode {mode:03o}); run chmod 600"


def _file(key: Key, folder: Path) -> Path:
    return folder / "secrets" / f"{key.secret}.txt"


def _where(key: Key, folder: Path) -> str:
    return f"the environment variable {key}" if key.env is not None else str(folder / str(key))


def _read(file: Path) -> tuple[Secret | None, str]:
    """The content of a file, or an error, in which `{}` stands for the file's name."""
    try:
        if not file.is_file():
            return None, "there is no file {}"
        with file.open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            return None, "{} is too long for a key"
        return Secret(data.decode("utf-8-sig")), ""
    except OSError as error:
        return None, f"{{}} cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        return None, "{} is not UTF-8"


class Credentials(Protocol):
    """The credentials of one provider, shared by all its requests."""

    async def headers(
        self, method: str, url: str, headers: SecretHeaders, body: bytes
    ) -> SecretHeaders:
        """The headers to add to a request. Raises `MissingSecret` or `MissingExtra` if there are
        no credentials, `Unauthenticated` if they are refused, `Transport` if nothing answers."""
        ...

    def renews(self, status: int, headers: Mapping[str, str]) -> bool:
        """Whether a refused request may pass with new headers: the clock was wrong, or a token was
        revoked. Called once for each request."""
        ...

    def secrets(self) -> Iterable[str]:
        """The secrets in use, to remove them from a provider's texts."""
        ...


class ResolvedProvider(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    id: str
    wire: str
    dialect: Dialect | None
    base_url: str
    """Without a trailing slash; the path of a request follows."""
    auth_header: str
    """In lower case; empty if the provider takes no key."""
    auth_prefix: str
    secret: Secret | None
    credentials: Credentials | None = None
    """Credentials of a cloud, if there is no key."""
    provider: ProviderConfig
    """The configuration; `ca` is relative to the working directory."""
    own_models_only: bool = False
    """Whether it is the address of a maker that serves only its own models."""
    path_start: str = ""
    """The start of request paths that `base_url` replaces, as the base URL of some SDKs does."""
    path_values: dict[str, str] = {}
    """Values of the account that request paths contain, by the placeholder's name."""
    notices: tuple[Notice, ...] = ()

    @property
    def system(self) -> str:
        """The provider's name in the catalog."""
        return wire.provider_of(self.wire)

    @property
    def cloud(self) -> CloudAuth | None:
        """The credentials that the provider takes instead of a key. A wire's own provider, which is
        no dialect, may be a cloud."""
        row = self.dialect
        return (dialects().find(self.system, self.wire) if row is None else row).cloud

    @property
    def shown_url(self) -> str:
        """The base URL for messages: its path may contain a token."""
        return shown_url(self.base_url)

    @property
    def proxy(self) -> Secret | None:
        """The proxy's URL, which may contain a password."""
        return None if self.provider.proxy is None else Secret(self.provider.proxy)

    def headers(self) -> SecretHeaders:
        """The headers of every request, the key included; names in lower case."""
        headers = [(name.lower(), value) for name, value in self.provider.headers.items()]
        if self.secret is not None and self.auth_header:
            headers.append((self.auth_header, self.auth_prefix + self.secret.reveal()))
        return SecretHeaders(headers)

    def redactor(self) -> Redactor:
        """Removes this provider's secrets from texts."""
        current = None if self.credentials is None else self.credentials.secrets
        return Redactor(self._secrets(), current)

    def _secrets(self) -> Iterator[str]:
        if self.secret is not None:
            yield self.secret.reveal()
        for name, value in self.provider.headers.items():
            plain = _PLAIN_HEADER.search(name) or not could_be_secret(value)
            if _SECRET_HEADER.search(name) or not plain:
                yield value
                yield value.rpartition(" ")[2]  # without `Bearer`
        if self.provider.proxy is not None:
            parts = urlsplit(self.provider.proxy)
            yield parts.password or ""
            yield unquote(parts.password or "")
            yield f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        yield from filter(could_be_secret, urlsplit(self.base_url).path.split("/"))

    def __repr__(self) -> str:
        return f"<ResolvedProvider {shown_name(self.id)}: {self.wire} at {self.shown_url}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("id", self.id), ("wire", self.wire), ("base_url", self.shown_url)]
