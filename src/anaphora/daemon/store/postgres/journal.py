"""Settlements that could not be written to PostgreSQL, in a file of the node until they can."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from anaphora.daemon.store import Settlement
from anaphora.wording import counted

_log = logging.getLogger("anaphora.daemon")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Settlement).decode


class SettlementJournal:
    """One line per settlement. Duplicates are harmless, since settlements are idempotent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def append(self, settlements: Sequence[Settlement]) -> None:
        """On disk when it returns. Raises `OSError`."""
        if self._file is None:
            self._file = self._open()
        data = b"".join(_encode(one) + b"\n" for one in settlements)
        size = os.fstat(self._file).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
            os.fsync(self._file)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, size)  # a partial line would corrupt the next one
            raise

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self.path, flags, 0o600)
        try:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                os.write(file, b"\n")  # the process was killed while writing a line
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except BaseException:
            os.close(file)
            raise
        return file

    def read(self) -> list[Settlement]:
        """The settlements of an earlier process. An unreadable line is logged and the file copied;
        its hold stays charged at the bound."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        found, damaged = [], 0
        for line in lines:
            if line:
                try:
                    found.append(_decode(line))
                except msgspec.MsgspecError:
                    damaged += 1
        if damaged:
            copy = self.path.with_name(f"{self.path.name}.damaged")
            with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as to:
                to.write(b"\n".join(lines))
            _log.error(
                "%s: %s cannot be read, and its hold stays charged at the bound; see %s",
                self.path, counted(damaged, "line"), copy,
            )  # fmt: skip
        return found

    def clear(self) -> None:
        """Empties the journal when all of it is in PostgreSQL."""
        with suppress(FileNotFoundError):
            os.truncate(self.path, 0)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
