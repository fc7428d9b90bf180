"""Where tests write: in memory, where the system has room there. Stores sync each commit, and a disk
takes milliseconds for that; what a killed process wrote is kept all the same."""

from __future__ import annotations

import os

_MEMORY = "/dev/shm"
#: Bytes that must be free: databases, their logs, and the folders of all tests.
_ROOM = 3 << 30


def memory_place() -> str | None:
    """A folder in memory; None where there is none, or it is small, or programs cannot run there."""
    if not os.access(_MEMORY, os.W_OK):
        return None
    found = os.statvfs(_MEMORY)
    is_large = found.f_bavail * found.f_frsize >= _ROOM
    return _MEMORY if is_large and not found.f_flag & os.ST_NOEXEC else None
