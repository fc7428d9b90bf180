"""A prompt on a wire: chunks, marks and requests. What wires make and the cache layer plans."""

from __future__ import annotations

from .addition import LogAppend
from .chunks import Chunk, ChunkRun, Rendered
from .envelope import Envelope
from .hashing import digest
from .kind import Kind
from .log import ChunkLog
from .plan import CacheHandle, CreateHandle, DeleteHandle, ExtendHandle, Mark, Plan, Prelude
from .request import Body, Request

__all__ = [
    "Body",
    "CacheHandle",
    "Chunk",
    "ChunkLog",
    "ChunkRun",
    "CreateHandle",
    "DeleteHandle",
    "Envelope",
    "ExtendHandle",
    "Kind",
    "LogAppend",
    "Mark",
    "Plan",
    "Prelude",
    "Rendered",
    "Request",
    "digest",
]
