"""A prompt on a wire: chunks, marks and requests. What wires make and the cache layer plans."""

from __future__ import annotations

from .chunks import Chunk, Rendered, Run
from .envelope import Envelope
from .hashing import digest
from .log import Addition, ChunkLog, Kind
from .plan import Mark, Plan
from .request import Body, Request

__all__ = [
    "Addition",
    "Body",
    "Chunk",
    "ChunkLog",
    "Envelope",
    "Kind",
    "Mark",
    "Plan",
    "Rendered",
    "Request",
    "Run",
    "digest",
]
