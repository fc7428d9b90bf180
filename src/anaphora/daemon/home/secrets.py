"""The keys of providers, from `secrets/<NAME>.txt` in the home folder, read strictly; and all files
that only the daemon's user may read, such as the key of token hashes.

    providers = resolve_providers(home, config)
    providers["anthropic-default"].secret

Keys stay out of the environment, of argv, logs, errors and core dumps. A client of this package
reads the same files less strictly (`client.config.secrets`): it warns where this refuses. A file is
opened once, without following a symlink, and checked by its descriptor: nothing can be exchanged
between the check and the read.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import sys
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from anaphora.client.config import ClientConfig
from anaphora.client.config.resolve import check
from anaphora.client.config.secrets import (
    KEY_TEXT,
    ResolvedProvider,
    Secret,
    SecretVariables,
    find_key,
)
from anaphora.errors import InvalidConfig, InvalidRequest, Io, MissingSecret
from anaphora.redaction import hides_arguments, shown_name

if TYPE_CHECKING:
    from . import Home

Signature: TypeAlias = tuple[int, ...] | None
"""Changes with a file's content, owner or mode; None if there is no such file."""

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)


class UnsafeFile(Exception):
    """Why a file is not used; `{}` in the message stands for its name."""


signature = attrgetter("st_ino", "st_size", "st_mtime_ns", "st_ctime_ns", "st_mode", "st_uid")


SeenFiles: TypeAlias = dict[str, Signature]
"""Files when they were read, by their paths."""


def signature_of(path: Path | str) -> Signature:
    with contextlib.suppress(OSError):
        return signature(os.stat(path, follow_symlinks=False))
    return None


def read_private(path: Path, most: int) -> tuple[Secret, Signature]:
    """The content of a file of at most `most` bytes, which is ASCII. Raises `UnsafeFile`."""
    try:
        # O_NONBLOCK: a named pipe must not block.
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | _NOFOLLOW)
    except FileNotFoundError:
        raise UnsafeFile("there is no file {}") from None
    except OSError as error:
        if path.is_symlink():
            raise UnsafeFile("{} is a symbolic link, which is not followed") from None
        raise UnsafeFile(f"{{}} cannot be read: {error.strerror}") from None
    try:
        found = os.fstat(opened)
        _check(found)
        content = Secret(_read(opened, most + 1).decode("latin-1"))
    finally:
        os.close(opened)
    if len(content.reveal()) > most:
        raise UnsafeFile(f"{{}} is longer than {most:,} bytes")
    if not content.reveal().isascii():
        raise UnsafeFile("{} contains characters other than ASCII")
    return content, signature(found)


def check_folder(path: Path) -> None:
    """Raises `UnsafeFile` where another user could exchange the files in a folder."""
    try:
        found = path.lstat()
    except OSError:
        return  # no file in it will be found
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeFile("the folder of {} is a symbolic link, which is not followed")
    if found.st_uid != os.geteuid():
        raise UnsafeFile(f"the folder of {{}} belongs to user {found.st_uid}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        raise UnsafeFile(f"the folder of {{}} has mode {mode:04o}; run chmod 700 on it")


def _check(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UnsafeFile("{} is not a regular file")
    if found.st_uid != os.geteuid():
        raise UnsafeFile(
            f"{{}} belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o177:
        raise UnsafeFile(f"{{0}} has mode {mode:04o}, and must have 0600; run chmod 600 {{0}}")


def _read(opened: int, most: int) -> bytes:
    data = b""
    while len(data) < most and (piece := os.read(opened, most - len(data))):
        data += piece
    return data


def write_private(path: Path, content: Secret) -> None:
    """Replaces a file by rename, with mode 0600: a reader sees the old content or the new."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW, 0o600)
        try:
            with open(opened, "wb") as file:
                os.fchmod(opened, 0o600)  # whatever the umask is
                file.write(content.reveal().encode())
                file.flush()
                os.fsync(opened)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise Io(f"{path}: cannot be written: {error.strerror or error}") from None


def sync_folder(folder: Path) -> None:
    """Makes a rename in it durable."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


SECRET_NAME = re.compile(r"[A-Z][A-Z0-9_]{1,63}\Z")
MAX_BYTES = 8192

_FINAL_BREAK = re.compile(r"\r?\n\Z")

_NAMES = "2 to 64 capital letters, digits and underscores, and begins with a letter"


def check_name(name: str) -> str:
    """The name of a secret. Raises `InvalidRequest`."""
    if not SECRET_NAME.match(name):
        # A key given in its place must not be shown.
        raise InvalidRequest(f"{shown_name(name)!r}: the name of a secret has {_NAMES}")
    return name


@hides_arguments
def clean_key(content: Secret) -> Secret:
    """The key in a file's content or an input: without one final line break. Raises `UnsafeFile`;
    `{}` stands for where it is from."""
    key = Secret(_FINAL_BREAK.sub("", content.reveal()))
    size = len(key.reveal().encode(errors="replace"))
    if not size:
        raise UnsafeFile("{} is empty")
    if size > MAX_BYTES:
        raise UnsafeFile(f"{{}} is longer than {MAX_BYTES:,} bytes")
    if not KEY_TEXT.match(key.reveal()):
        raise UnsafeFile("{} is not a key: it contains spaces, line breaks or non-ASCII")
    return key


class SecretsFolder:
    """`secrets/` of a home. Reads a file when it is asked for, and notes how it was."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seen: SeenFiles = {}
        """Those that were read."""

    def path(self, name: str) -> Path:
        return self._folder / f"{check_name(name)}.txt"

    @hides_arguments
    def read(self, name: str) -> Secret:
        """Raises `MissingSecret`, which shows nothing of the content."""
        path = self.path(name)
        self.seen[str(path)] = signature_of(path)
        try:
            check_folder(self._folder)
            content, self.seen[str(path)] = read_private(path, MAX_BYTES + len("\r\n"))
            return clean_key(content)
        except UnsafeFile as problem:
            raise MissingSecret(str(problem).format(path)) from None

    @hides_arguments
    def write(self, name: str, content: Secret) -> Path:
        """Writes a secret by rename, with mode 0600. Raises `InvalidRequest` and `Io`."""
        path = self.path(name)
        try:
            key = clean_key(content)
        except UnsafeFile as problem:
            raise InvalidRequest(str(problem).format("the input")) from None
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_private(path, key)
        return path

    def names(self) -> list[str]:
        """The secrets that there are."""
        if not self._folder.is_dir():
            return []
        found = (path.stem for path in self._folder.glob("*.txt"))
        return sorted(name for name in found if SECRET_NAME.match(name))


@hides_arguments
def resolve_providers(
    home: Home,
    config: ClientConfig,
    *,
    allow_env: bool = False,
    folder: SecretsFolder | None = None,
) -> dict[str, ResolvedProvider]:
    """Every provider with its key. Raises `MissingSecret` for the first key that is missing."""
    folder = folder or SecretsFolder(home.secrets)
    return {
        id: _with_key(one, config, folder, home, allow_env=allow_env)
        for id, one in check(config).items()
    }


def _with_key(
    one: ResolvedProvider,
    config: ClientConfig,
    folder: SecretsFolder,
    home: Home,
    *,
    allow_env: bool,
) -> ResolvedProvider:
    key, path, origin = one.provider.key, ("providers", one.id, "key"), config.origin
    if key is None:
        return one
    if key.env is not None:
        if not allow_env:
            raise origin.invalid(
                f"{key} is in the environment, which every process of the user can read: write"
                " `key: {secret: NAME}` and store it with `anaphora secrets set NAME`, or start"
                " with --allow-env-keys",
                *path,
            )
        found = find_key(key, Path(), SecretVariables(), origin=origin, path=path)
        return msgspec.structs.replace(one, secret=found)
    assert key.secret is not None
    try:
        return msgspec.structs.replace(one, secret=folder.read(key.secret))
    except InvalidRequest as problem:
        raise origin.error(str(problem), *path, "secret", kind=InvalidConfig) from None
    except MissingSecret as problem:
        advice = ""
        if not folder.path(key.secret).exists():
            name = shown_name(key.secret)
            advice = f"; store it with: anaphora secrets set {name} --home {home.path}"
        raise origin.error(f"{problem}{advice}", *path, kind=MissingSecret) from None


@hides_arguments
def read_password(home: Home, name: str, field: str) -> Secret:
    """The password of a database, which the field of the daemon section names. Raises
    `InvalidConfig` and `MissingSecret`."""
    folder = SecretsFolder(home.secrets)
    try:
        return folder.read(name)
    except InvalidRequest as problem:
        raise InvalidConfig(f"daemon.{field}: {problem}", file=str(home.llm_yaml)) from None
    except MissingSecret as problem:
        advice = ""
        if not folder.path(name).exists():
            advice = f"; store it with: anaphora secrets set {name} --home {home.path}"
        reason = f"daemon.{field}: {problem}{advice}"
        raise MissingSecret(reason, file=str(home.llm_yaml)) from None


def disable_core_dumps() -> None:
    """Of this process from now on: its memory holds keys."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        import ctypes

        # A core that is piped to a program ignores the limit.
        pr_set_dumpable = 4
        if ctypes.CDLL(None, use_errno=True).prctl(pr_set_dumpable, 0, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "core dumps cannot be disabled")
