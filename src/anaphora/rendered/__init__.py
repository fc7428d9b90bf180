"""A prompt on a wire: chunks, marks and requests. What wires make and the cache layer plans."""

from __future__ import annotations

from .addition import Addition
from .chunks import Chunk, Rendered, Run
from .envelope import Envelope
from .hashing import digest
from .kind import Kind
from .log import ChunkLog
from .plan import CreateHeld, DeleteHeld, ExtendHeld, Held, Mark, Plan, Prelude
from .request import Body, Request

__all__ = [
    "Addition",
    "Body",
    "Chunk",
    "ChunkLog",
    "CreateHeld",
    "DeleteHeld",
    "Envelope",
    "ExtendHeld",
    "Held",
    "Kind",
    "Mark",
    "Plan",
    "Prelude",
    "Rendered",
    "Request",
    "Run",
    "digest",
]
