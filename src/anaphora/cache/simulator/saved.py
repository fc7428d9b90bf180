"""What a simulator knows of one conversation's prompt, so that another process can continue it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from anaphora.values import Ttl

from .slot_predictor import SavedTemplate

#: Entries, times and units that are saved: the latest.
MOST_SAVED = 64

Position = Annotated[int, Meta(ge=0, lt=1 << 40)]
Time = Annotated[float, Meta(ge=-1e12, le=1e12)]
"""Seconds since the epoch; finite."""


class SavedEntry(msgspec.Struct, frozen=True, array_like=True):
    """An entry that was written at a marker, of this prompt or an earlier one."""

    key: bytes
    ttl: Ttl
    expires: Time
    readable: Time


class SavedCache(msgspec.Struct, frozen=True):
    """Positions count blocks of the prompt that it was saved with."""

    entries: tuple[SavedEntry, ...] = ()
    used: Time = 0.0
    times: tuple[tuple[Position, Time], ...] = ()
    """The last position of earlier calls, and from when it can be read."""
    units: tuple[Position, ...] = ()
    reply_cached: bool | None = None
    """Whether the reply to it is cached, too; None: not saved."""
    slots: Annotated[int, Meta(ge=0, le=1024)] = 0
    keeps_evicted: bool = False
    template: SavedTemplate | None = None
