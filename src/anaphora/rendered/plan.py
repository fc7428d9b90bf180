"""Cache plans: the positions of markers, and prefixes stored at the provider under a handle; and
the requests assembled from them."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from anaphora.values import Notice, Ttl

from .log import Body


class Mark(msgspec.Struct, frozen=True):
    """A marker on a chunk. `splice` is its offset in the chunk's data, if not the chunk's own (a
    block nested in a tool result)."""

    chunk: int
    ttl: Ttl
    splice: int | None = None
    marker: bytes | None = None
    """Its bytes, if they are not those of its TTL: a marker may have unknown members."""


class CacheHandle(msgspec.Struct, frozen=True):
    """The first `chunks` chunks and the settings frozen with them, stored at the provider under
    this name and not sent. `digest` identifies them."""

    handle: str
    chunks: int
    digest: str


class CreateHandle(msgspec.Struct, frozen=True, tag="create"):
    """Store the first `chunks` chunks at the provider for `seconds`."""

    chunks: int
    seconds: int


class ExtendHandle(msgspec.Struct, frozen=True, tag="extend"):
    """Keep a handle for `seconds` from now."""

    handle: str
    seconds: int


class DeleteHandle(msgspec.Struct, frozen=True, tag="delete"):
    """Delete a handle: storage is billed by the hour."""

    handle: str


#: Requests that the client makes before the call.
Prelude: TypeAlias = CreateHandle | ExtendHandle | DeleteHandle


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Marks in hash order, and notices for requested marks that were left out."""

    marks: tuple[Mark, ...] = ()
    automatic: Ttl | None = None
    """Request an automatic breakpoint."""
    only_marks: bool = False
    """Request no automatic breakpoint: only marked prefixes are written."""
    key: str | None = None
    """The routing key: requests with the same key go where their prefix is likely cached."""
    host: str = ""
    """The host behind a router that has the prefix cached, and is asked for."""
    held: CacheHandle | None = None
    """The stored prefix that is not sent."""
    changing: bool = False
    """There is no marker since the prompt changes from call to call."""
    preludes: tuple[Prelude, ...] = ()
    notices: tuple[Notice, ...] = ()


class Envelope(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The body around the chunks, the headers, and the parameters the cache depends on."""

    source: Any
    """The parameters it was made from: equal ones have the same envelope."""
    method: str = "POST"
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    head: bytes
    """The body before the first run."""
    tail: bytes
    """The body after the last run."""
    cache_params: tuple[tuple[str, bytes], ...] = ()
    """Every parameter that affects the cache without being a chunk, as sent."""
    notices: tuple[Notice, ...] = ()
    binds_thinking: bool = False
    """Whether signed thinking is only valid after the prompt that it was written for."""
    plain: Envelope | None = None
    """The wire's own envelope, if a dialect changed it."""
    speaker: Any = None
    """The dialect codec that changed it."""


class Request(msgspec.Struct, frozen=True, eq=False):
    """Method, path, headers and body. The client adds the host and credentials."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: Body
