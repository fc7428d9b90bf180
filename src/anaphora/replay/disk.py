"""Atomic writes, safe against kills, crashes and full disks, and the lock of a folder."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from anaphora.errors import Io

from .index import HEADER, INDEX
from .integrity import TEMPORARY

FOLDER_MODE = 0o700
FILE_MODE = 0o600

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
_NEW |= getattr(os, "O_BINARY", 0)
_SHARED = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_EXCLUSIVE = os.O_RDWR | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@contextlib.contextmanager
def io_errors(place: Path | str, what: str = "cannot be written") -> Iterator[None]:
    """`OSError` becomes `Io`."""
    try:
        yield
    except OSError as problem:
        raise Io(f"{place}: {what}: {problem.strerror or problem}") from None


def write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


class FolderWriter:
    """Writes into one folder. `sync` waits until the data is on the disk; without it, a crash of
    the machine may lose the last writes, a crash of the process never does."""

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self._folder = folder
        self._sync = sync

    def place(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def temporary(self, data: bytes) -> str:
        """A new file with this content; its path."""
        path = self.place(f"{TEMPORARY}{secrets.token_hex(8)}")
        file = os.open(path, _NEW, FILE_MODE)
        try:
            write_all(file, data)
            self.sync_file(file)
        except BaseException:
            os.close(file)
            remove(path)
            raise
        os.close(file)
        return path

    def replace(self, name: str, data: bytes) -> None:
        """Replace a file atomically: it has the old content or the new one."""
        path = self.temporary(data)
        try:
            os.replace(path, self.place(name))
        except BaseException:
            remove(path)
            raise
        self.sync_folder()

    @contextlib.contextmanager
    def replace_locked(self, name: str, data: bytes) -> Iterator[int]:
        """Like `replace`; the new file is locked from the beginning. Yields it, open."""
        path = self.temporary(data)
        try:
            file = os.open(path, _SHARED)
        except BaseException:
            remove(path)
            raise
        try:
            _lock(file, exclusive=True)
            os.replace(path, self.place(name))
            self.sync_folder()
            yield file
        finally:
            os.close(file)
            remove(path)

    def create(self, name: str, data: bytes) -> None:
        """Like `replace`, unless the file exists."""
        path = self.temporary(data)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(path, self.place(name))
        except OSError:  # a file system without links
            if not os.path.lexists(self.place(name)):
                os.replace(path, self.place(name))
        finally:
            remove(path)
        self.sync_folder()

    def touch(self, name: str) -> None:
        os.close(os.open(self.place(name), _NEW & ~os.O_EXCL, FILE_MODE))

    def append(self, file: int, data: bytes, size: int) -> None:
        """Append all of the data or nothing; `size` is the size of the file."""
        try:
            write_all(file, data)
            self.sync_file(file)
        except BaseException:
            os.ftruncate(file, size)
            raise

    def sync_file(self, file: int) -> None:
        if self._sync:
            os.fsync(file)

    def sync_folder(self) -> None:
        """Sync the folder's names to the disk. Windows has no such call."""
        if not self._sync or os.name == "nt":
            return
        file = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def create_folder(folder: Path, writer: FolderWriter) -> None:
    """Creates the folder and an empty index, unless they exist."""
    with io_errors(folder, "cannot be created"):
        # `parents=True` would create those with the mode that the umask allows.
        for place in (*reversed(folder.parents), folder):
            if not place.is_dir():
                place.mkdir(mode=FOLDER_MODE, exist_ok=True)
        if not os.path.lexists(folder / INDEX):
            writer.create(INDEX, HEADER)


@contextlib.contextmanager
def locked(folder: Path, *, exclusive: bool) -> Iterator[int | None]:
    """Holds the folder's lock, for many readers or one writer. Yields the locked index; None
    without one."""
    path = folder / INDEX
    while True:
        try:
            file = os.open(path, _EXCLUSIVE if exclusive else _SHARED)
        except FileNotFoundError:
            yield None
            return
        try:
            _lock(file, exclusive=exclusive)
            if _is_current(file, path):
                yield file
                return
        finally:
            os.close(file)


def _lock(file: int, *, exclusive: bool) -> None:
    try:
        import fcntl
    except ImportError:  # on Windows, where two processes must not record into one folder
        return
    fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)


def _is_current(file: int, path: Path) -> bool:
    """False if the index was replaced during the wait."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False
