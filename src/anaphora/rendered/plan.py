"""A plan: where the markers go, and what else the request says for the cache's sake."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from anaphora.values import Notice, Ttl


class Mark(msgspec.Struct, frozen=True):
    """A marker on a chunk. `splice` is the offset in the chunk's data where it goes, when that is
    not the chunk's own (a block nested in a tool result)."""

    chunk: int
    ttl: Ttl
    splice: int | None = None


class CacheHandle(msgspec.Struct, frozen=True):
    """The first `chunks` chunks, and whatever else the handle froze, live at the provider under
    this name and are not sent. `digest` says what they were."""

    handle: str
    chunks: int
    digest: str


class CreateHandle(msgspec.Struct, frozen=True, tag="create"):
    """Let the provider hold the first `chunks` chunks for so long."""

    chunks: int
    seconds: int


class ExtendHandle(msgspec.Struct, frozen=True, tag="extend"):
    """Let it hold them for so long from now."""

    handle: str
    seconds: int


class DeleteHandle(msgspec.Struct, frozen=True, tag="delete"):
    """Let go of them: holding costs by the hour."""

    handle: str


#: What the client does before the request goes out.
Prelude: TypeAlias = CreateHandle | ExtendHandle | DeleteHandle


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Marks in hash order, and notices for what was asked but left out."""

    marks: tuple[Mark, ...] = ()
    automatic: Ttl | None = None
    """Let the provider place one more by itself."""
    only_marks: bool = False
    """Let it place none by itself: what nobody marked is not written."""
    key: str | None = None
    """Requests with the same key are led to where their beginning is likely cached."""
    held: CacheHandle | None = None
    """What is not sent, because the provider holds it already."""
    preludes: tuple[Prelude, ...] = ()
    notices: tuple[Notice, ...] = ()
