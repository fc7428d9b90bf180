"""Files that only the daemon's user may read: keys of providers, and the key of token hashes.

A file is opened once, without following symlinks, and checked by its descriptor, so that it cannot
be replaced between check and read.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias

from anaphora.client.config.secrets import Secret
from anaphora.errors import Io

Signature: TypeAlias = tuple[int, ...] | None
"""Changes with a file's content, owner or mode; None if there is no such file."""

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)


class UnsafeFile(Exception):
    """Why a file is not used. `{}` in the message is replaced by its name."""


signature = attrgetter("st_ino", "st_size", "st_mtime_ns", "st_ctime_ns", "st_mode", "st_uid")


SeenFiles: TypeAlias = dict[str, Signature]
"""Signatures of files at the time they were read, by path."""


def signature_of(path: Path | str) -> Signature:
    with contextlib.suppress(OSError):
        return signature(os.stat(path, follow_symlinks=False))
    return None


def read_private(path: Path, most: int) -> tuple[Secret, Signature]:
    """The ASCII content of a file of at most `most` bytes. Raises `UnsafeFile`."""
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
    """Raises `UnsafeFile` if another user could replace the files in a folder."""
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
    """Makes a rename in the folder durable."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
