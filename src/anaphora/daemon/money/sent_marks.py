"""Marks of the holds that were sent: one byte each, in a memory-mapped file of the node.

The file keeps what a killed process has written, and setting a byte needs no system call. So the
next start can distinguish a hold whose request was never written to a connection from one that the
provider may have charged.

A hold's id ends with the number of its slot. The slot is reused once the settlement is durable;
until then no other hold can change the byte.
"""

from __future__ import annotations

import mmap
import os
import secrets
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from anaphora.daemon.home.private_files import UnsafeFile, read_private
from anaphora.errors import Io

#: Bytes of the file's header.
_HEAD = 512
#: Number of slots. The first is always set; holds use it if no other is free.
SLOTS = 65_536
_UNSENT, _SENT = 0, 1

#: Positions of the ledger's name and the slot in an id: see `Ledger._new_id`.
_NAME, _SLOT, _LENGTH = slice(12, 24), slice(32, 36), 36

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _Head(msgspec.Struct, frozen=True):
    ledger: str
    """The name that the ids of its holds have in common."""
    boot: str
    """The machine's boot: unwritten pages do not survive it."""
    version: int = 1
    kind: str = "anaphora sent marks"


_decode_head = msgspec.json.Decoder(_Head).decode


class EarlierMarks:
    """The marks of the preceding process. Without a file, all holds count as sent."""

    def __init__(self, ledger: str = "", marks: bytes = b"") -> None:
        self._ledger = ledger
        self._marks = marks

    @classmethod
    def read(cls, path: Path) -> Self:
        """Marks of another boot or in a damaged file are ignored."""
        try:
            data = read_private(path, _HEAD + SLOTS)[0].reveal().encode()
            head = _decode_head(data[:_HEAD].rstrip(b"\0"))
        except (UnsafeFile, msgspec.MsgspecError):
            return cls()
        known = head.kind == "anaphora sent marks" and head.version == 1
        if not known or len(data) != _HEAD + SLOTS or not head.boot or head.boot != boot_id():
            return cls()
        return cls(head.ledger, data[_HEAD:])

    def is_unsent(self, hold: str) -> bool:
        """Whether nothing was sent for an open hold: it is of that process, and its byte is not
        set."""
        if not self._marks or hold[_NAME] != self._ledger:
            return False
        return (slot := _slot_of(hold)) > 0 and self._marks[slot] == _UNSENT


class SentMarks:
    """The file of a process that makes calls. `free` may be called from another thread."""

    def __init__(self, memory: mmap.mmap, ledger: str) -> None:
        """Use `create`."""
        self.ledger = ledger
        """The name that the ids of all its holds have in common."""
        self._memory = memory
        self._free = array("H", reversed(range(1, SLOTS)))
        self._slots: dict[str, int] = {}
        """By the ids of holds."""

    @classmethod
    def create(cls, path: Path, ledger: str) -> Self:
        """Replaces the file of the preceding process, whose holds are settled. Raises `Io`."""
        head = msgspec.json.encode(_Head(ledger, boot_id())).ljust(_HEAD, b"\0")
        unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            opened = os.open(unfinished, flags, 0o600)
            try:
                # Allocated completely: a write to a hole on a full disk would kill the process.
                data = memoryview(head + bytes([_SENT]) + bytes(SLOTS - 1))
                while data:
                    data = data[os.write(opened, data) :]
                memory = mmap.mmap(opened, _HEAD + SLOTS)
                os.replace(unfinished, path)
                return cls(memory, ledger)
            finally:
                os.close(opened)
                with suppress(FileNotFoundError):
                    unfinished.unlink()
        except OSError as error:
            raise Io(f"{path}: cannot be written: {error.strerror or error}") from None

    def add(self, start: str) -> str:
        """The id of a new hold: `start` and a slot. Called before the hold is written."""
        try:
            slot = self._free.pop()
        except IndexError:
            return f"{start}0000"
        self._memory[_HEAD + slot] = _UNSENT
        id = f"{start}{slot:04x}"
        self._slots[id] = slot
        return id

    def mark(self, hold: str) -> None:
        """Called before the hold's request is written to a connection."""
        slot = self._slots.get(hold)
        if slot is not None:
            self._memory[_HEAD + slot] = _SENT

    def free(self, hold: str) -> None:
        """Frees the slot: the settlement is durable, or the hold was refused."""
        slot = self._slots.pop(hold, None)
        if slot is not None:
            self._free.append(slot)


def _slot_of(hold: str) -> int:
    """The slot of a hold; 0 if it has none."""
    return int(hold[_SLOT], 16) if len(hold) == _LENGTH else 0


def boot_id() -> str:
    """An id that changes with each boot of the machine; empty if unknown."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except (OSError, UnicodeError):
        return ""
