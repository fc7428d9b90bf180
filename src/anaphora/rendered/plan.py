"""A plan: where the markers go, and what else the request says for the cache's sake."""

from __future__ import annotations

import msgspec

from anaphora.values import Notice, Ttl


class Mark(msgspec.Struct, frozen=True):
    """A marker on a chunk. `splice` is the offset in the chunk's data where it goes, when that is
    not the chunk's own (a block nested in a tool result)."""

    chunk: int
    ttl: Ttl
    splice: int | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Marks in hash order, and notices for what was asked but left out."""

    marks: tuple[Mark, ...] = ()
    automatic: Ttl | None = None
    """Let the provider place one more by itself."""
    notices: tuple[Notice, ...] = ()
