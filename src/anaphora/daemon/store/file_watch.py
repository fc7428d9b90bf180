"""Detects that the files of an open store were deleted, replaced, truncated or overwritten. SQLite
does not check this: it would continue in an unlinked file, or copy its log into another one.

The expected contents are in the index of the log (`-shm`), which SQLite shares between all users of
the store; sqlite.org/walformat.html describes the format. The check runs in every transaction
before anything is written. It makes only five system calls, since the writing thread may have to
wait for Python's lock after each.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from .schema import APPLICATION

#: Advice for people.
ADVICE = (
    "nothing is written any more; stop the daemon, put the files of the store back or restore a"
    " backup, and start it again"
)

_SUFFIXES = ("", "-wal", "-shm")
_HEADER, _LOG_HEADER, _FRAME_HEADER = 100, 32, 24
#: The application id in the file's header. A new file has none until the log is copied.
_MARK = APPLICATION.to_bytes(4, "big")
#: The index of the log: its version, whether it is initialized, page size, frames in the log, pages
#: of the store, checksum of the last frame, salts; all of this twice. Then how far the log was
#: copied.
_INDEX = struct.Struct("=I4xI?xHII8s8s8x")
_INDEX_VERSION = 3_007_000
_COPIED, _TRIED, _INDEX_BYTES = 96, 128, 132


class StoreDamaged(OSError):
    """A file of the store was changed. `strerror` says which, and what to do."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(5, f"{name} {what} while the daemon ran: {ADVICE}")


class LogIndex(msgspec.Struct, frozen=True):
    """The contents of the log's index."""

    page: int
    """Bytes."""
    frames: int
    pages: int
    checksum: bytes
    """Checksum of the last frame, as in the log."""
    salts: bytes
    state: tuple[bytes, bytes]
    """Changes when any process has copied the log into the store."""
    is_copied: bool
    """The whole log was copied into the store."""


class WatchedFiles:
    """The files of an open store. Used by the thread that writes."""

    def __init__(self, path: Path) -> None:
        """Created after a connection has read the store, so that log and index exist."""
        self._paths = [path.with_name(path.name + suffix) for suffix in _SUFFIXES]
        self._names = [str(each) for each in self._paths]
        self._files: list[int] = []
        try:
            for each in self._paths:
                self._files.append(os.open(each, os.O_RDONLY | os.O_CLOEXEC))
            # Truncating the index kills the process in any case, because SQLite maps it as well.
            self._shared = mmap.mmap(self._files[2], _INDEX_BYTES, access=mmap.ACCESS_READ)
        except BaseException:
            self.close()
            raise
        found = map(os.fstat, self._files)
        self._identities = [(status.st_dev, status.st_ino) for status in found]
        self._size = os.fstat(self._files[0]).st_size
        self._header = os.pread(self._files[0], _HEADER, 0)
        index = self._index()
        self._state = None if index is None else index.state
        self._checked = self._ours = b""
        """The beginning of the index at the last check, and after the last commit of this
        process."""

    def close(self) -> None:
        """Called after closing the connections: closing a file releases this process's locks on
        it."""
        if hasattr(self, "_shared"):
            self._shared.close()
        files, self._files = self._files, []
        for file in files:
            os.close(file)

    def note(self, *, wrote: bool) -> bool:
        """Called after a commit of this process, which may have copied the log into the store.
        Returns whether no other process has written since the check."""
        index, now = self._index(), self._shared[: _INDEX.size]
        state = None if index is None else index.state
        alone = state is not None and bool(self._checked)
        if alone:
            changes = int.from_bytes(now[8:12], sys.byteorder)
            checked = int.from_bytes(self._checked[8:12], sys.byteorder)
            alone = changes == (checked + wrote) & 0xFFFFFFFF
        self._ours = now if alone else b""
        if state is None or state != self._state:
            self._header = os.pread(self._files[0], _HEADER, 0)
            self._state = state
        return alone

    def check(self) -> bool:
        """Raises `StoreDamaged`: for certain within a transaction, where no other process writes
        meanwhile. Returns whether none has written since the last commit of this one."""
        store, log, _ = self._sizes()
        self._checked = self._shared[: _INDEX.size]
        index = self._index()
        if index is not None:
            self._check_log(index, log)
            least = index.pages * index.page or self._size
            if store < (least if index.is_copied else min(least, self._size)):
                raise StoreDamaged(self._paths[0].name, "was truncated")
        elif store < _HEADER:
            raise StoreDamaged(self._paths[0].name, "was truncated")
        header = os.pread(self._files[0], _HEADER, 0)
        if header != self._header:
            self._check_header(index, header)
        self._size = store
        return index is not None and self._checked == self._ours

    def _sizes(self) -> Sequence[int]:
        """Sizes of the files by name."""
        found = []
        for at, identity in enumerate(self._identities):
            try:
                status = os.stat(self._names[at])
            except FileNotFoundError:
                raise StoreDamaged(self._paths[at].name, "was deleted or moved") from None
            if (status.st_dev, status.st_ino) != identity or not stat.S_ISREG(status.st_mode):
                raise StoreDamaged(self._paths[at].name, "was replaced")
            found.append(status.st_size)
        return found

    def _index(self) -> LogIndex | None:
        """None if its format is different or it is being written."""
        data = self._shared[:]
        if data[: _INDEX.size] != data[_INDEX.size : 2 * _INDEX.size]:
            return None
        version, _, is_set, page, frames, pages, checksum, salts = _INDEX.unpack_from(data)
        if version != _INDEX_VERSION or not is_set:
            return None
        copied = data[_COPIED : _COPIED + 4]
        return LogIndex(
            page=65_536 if page == 1 else page,
            frames=frames,
            pages=pages,
            checksum=struct.pack(">II", *struct.unpack("=II", checksum)),
            salts=salts,
            state=(salts, copied + data[_TRIED : _TRIED + 4]),
            is_copied=int.from_bytes(copied, sys.byteorder) == frames,
        )

    def _check_log(self, index: LogIndex, size: int) -> None:
        if not index.frames:
            return
        name, log = self._paths[1].name, self._files[1]
        frame = _FRAME_HEADER + index.page
        end = _LOG_HEADER + index.frames * frame
        if size < end:
            raise StoreDamaged(name, "was truncated")
        last = os.pread(log, _FRAME_HEADER, end - frame)
        # The checksum of a frame covers all frames before it.
        if last[8:] != index.salts + index.checksum:
            raise StoreDamaged(name, "was overwritten")

    def _check_header(self, index: LogIndex | None, header: bytes) -> None:
        """The header has changed since it was last read."""
        state = None if index is None else index.state
        # Only a copy of the log changes it.
        is_copy = state is None or state != self._state
        is_same = _fixed(header) == _fixed(self._header) and header[68:72] == _MARK
        if not (is_copy and is_same and _changes(header) >= _changes(self._header)):
            raise StoreDamaged(self._paths[0].name, "was overwritten")
        self._header, self._state = header, state


def _fixed(header: bytes) -> tuple[bytes, ...]:
    """The header fields that no transaction changes: format, WAL mode and page size."""
    return header[:16], header[16:18], header[18:20]


def _changes(header: bytes) -> int:
    """The change counter in the first page."""
    return int.from_bytes(header[24:28], "big")
