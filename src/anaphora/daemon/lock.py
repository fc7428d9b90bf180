"""One daemon a home: a lock that the system releases when its process ends."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Self

from anaphora.errors import Io


class HomeLock:
    """The lock of a home, held until `release`. `stale` is the id of a process that ended without
    releasing it."""

    def __init__(self, descriptor: int, stale: int | None) -> None:
        self._descriptor = descriptor
        self.stale = stale

    @classmethod
    def acquire(cls, path: Path) -> Self:
        """Raises `Io` where another process holds it."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Io(f"{path}: the lock cannot be opened: {error.strerror or error}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _process_in(descriptor)
            os.close(descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise Io(f"{path}: cannot be locked: {error.strerror or error}") from None
            named = "" if holder is None else f" (process {holder})"
            raise Io(f"a daemon is running on {path.parent}{named}; stop it first") from None
        stale = _process_in(descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        return cls(descriptor, stale)

    def release(self) -> None:
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = -1


def lock_holder(path: Path) -> int | None:
    """The process that runs on a home; None where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _process_in(descriptor) or 0
    finally:
        os.close(descriptor)
    return None


def _process_in(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else None
