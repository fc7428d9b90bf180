"""The files beside a log: its lock, its key, and an anchor.

audit        the log, a folder
audit.lock   held by the one writer
audit.key    the key of the digests, with which guesses of short texts can be tested
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import IO
from weakref import WeakSet

import msgspec
from blake3 import blake3

from anaphora.errors import AnchorMismatch, Io, OtherSchema

from .chain import ChainHead
from .envelope import SCHEMA_VERSION

_KEY_BYTES = 32
#: How often a lock is tried, and the seconds in between.
_TRIES, _PAUSE = 5, 0.01


def beside(log: Path, suffix: str) -> Path:
    """The path beside the log itself, even if it is given as `.` or a link: one log has one
    lock."""
    log = log.resolve()
    return log.with_name(log.name + suffix)


class WriterLock:
    """Held while a log is written: by one writer at a time, of all processes."""

    def __init__(self, log: Path) -> None:
        self._path = beside(log, ".lock")
        self._file: IO[bytes] | None = None

    def acquire(self) -> None:
        """Raises `Io` if another writer holds it."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Io(f"{self._path}: cannot be opened: {error.strerror or error}") from None
        file = os.fdopen(descriptor, "r+b")
        if not _lock_soon(file):
            holder = file.read(32).decode("ascii", "replace").strip()
            file.close()
            writer = f"process {holder}" if holder.isdecimal() else "another process"
            raise Io(
                f"{self._path}: {writer} is writing this log; a log has one writer at a time, so"
                " give each process its own"
            )
        file.seek(0)
        file.truncate()
        file.write(b"%d\n" % os.getpid())
        file.flush()
        self._file = file
        _held.add(self)

    def release(self) -> None:
        """In a forked process, whose lock is the parent's, this only closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


#: Locks that a forked process gives up: it would hold them after the parent has ended.
_held: WeakSet[WriterLock] = WeakSet()


def _forget_locks() -> None:
    for lock in _held:
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


def is_locked(log: Path) -> bool:
    """Whether a process is writing the log now."""
    try:
        with beside(log, ".lock").open("r+b") as file:
            return not _lock(file)
    except OSError:
        return False


def _lock_soon(file: IO[bytes]) -> bool:
    """Tries a few times: `is_locked` in another process holds the lock briefly."""
    for _ in range(_TRIES):
        if _lock(file):
            return True
        time.sleep(_PAUSE)
    return False


def _lock(file: IO[bytes]) -> bool:
    """True if this process got the lock. Closing the file, or the end of the process, releases
    it."""
    try:
        import fcntl
    except ModuleNotFoundError:
        return _lock_on_windows(file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _lock_on_windows(file: IO[bytes]) -> bool:
    import importlib

    msvcrt = importlib.import_module("msvcrt")
    try:
        file.seek(1 << 30)  # a byte that nothing reads
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        file.seek(0)
    except OSError:
        return False
    return True


def read_or_create_key(log: Path) -> bytes:
    """The key of the log's digests, readable only by its owner. For the writer of the log."""
    path = beside(log, ".key")
    if path.exists():
        return _read_key(path)
    key = secrets.token_bytes(_KEY_BYTES)
    try:
        _replace(path, key.hex().encode() + b"\n")
    except OSError as error:
        raise Io(f"{path}: cannot be written: {error.strerror or error}") from None
    return key


def _read_key(path: Path) -> bytes:
    try:
        text = path.read_bytes().strip()
        key = bytes.fromhex(text.decode("ascii", "replace"))
    except OSError as error:
        raise Io(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise Io(f"{path}: not a key of 64 hex digits; move it away, and a new one is made")
    return key


def key_id(key: bytes) -> str:
    return blake3(b"anaphora audit key", key=key).hexdigest(length=8)


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a log, stored out of reach of anyone who can change the log."""

    schema_version: int = SCHEMA_VERSION
    log: str
    seq: int
    hash: str
    at: float

    @property
    def head(self) -> ChainHead:
        return ChainHead(self.seq, self.hash)


def read_anchor(path: Path) -> Anchor:
    try:
        anchor = msgspec.json.decode(path.read_bytes(), type=Anchor)
    except OSError as error:
        raise Io(f"{path}: cannot be read: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise AnchorMismatch(f"{path}: not an anchor: {error}", row=0) from None
    if anchor.schema_version > SCHEMA_VERSION:
        raise OtherSchema(str(path), version=anchor.schema_version, known=SCHEMA_VERSION)
    return anchor


def write_anchor(path: Path, log: str, head: ChainHead, at: float) -> None:
    anchor = Anchor(log=log, seq=head.seq, hash=head.hash, at=at)
    _replace(path, msgspec.json.encode(anchor) + b"\n")


def sync_folder(folder: Path) -> None:
    """Makes the names of new files in a folder durable."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(path: Path, data: bytes) -> None:
    """Replaces a file atomically: after a kill, either the old or the new content is there."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
