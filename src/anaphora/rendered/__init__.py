"""Rendered prompts: chunks, cache plans and requests, shared by wires and the cache layer."""

from __future__ import annotations

from anaphora.values.stability import Kind

from .chunks import Chunk, ChunkRun, DeferredTool, Rendered, digest
from .log import Body, ChunkLog, LogAppend
from .plan import (
    CacheHandle,
    CreateHandle,
    DeleteHandle,
    Envelope,
    ExtendHandle,
    Mark,
    Plan,
    Prelude,
    Request,
)

__all__ = [
    "Body",
    "CacheHandle",
    "Chunk",
    "ChunkLog",
    "ChunkRun",
    "CreateHandle",
    "DeferredTool",
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
