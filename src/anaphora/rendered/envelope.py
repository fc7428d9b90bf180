"""Everything of a request that is not prompt."""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.values import Notice


class Envelope(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The body around the chunks, the headers, and the parameters the cache depends on."""

    source: Any
    """What it was made from: while that is the same, so is the envelope."""
    method: str = "POST"
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    head: bytes
    """The body before the first run."""
    tail: bytes
    """The body after the last run."""
    cache_params: tuple[tuple[str, bytes], ...] = ()
    """Every parameter that affects the cache without being a chunk, as it is sent."""
    notices: tuple[Notice, ...] = ()
    plain: Envelope | None = None
    """The wire's own, where a provider says it in other words,"""
    speaker: Any = None
    """and who says it."""
