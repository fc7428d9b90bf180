"""One small shape for every backend: a request that can be hashed, an answer that can be audited.

    adapter = ClientAdapter(client, "anthropic-default", "claude")
    response = await adapter.complete(LlmRequest(model="…", messages=(LlmMessage("user", "Hi"),)))

Anything with `adapter_id` and `complete` is an `LlmAdapter`: replay is one, too.
"""

from __future__ import annotations

from anaphora.errors import AnaphoraError as LlmError

from .over_client import ClientAdapter
from .protocol import LlmAdapter
from .saying import call_of
from .values import (
    LlmMessage,
    LlmRequest,
    LlmResponse,
    LlmRole,
    StreamChunk,
    TokenUsage,
    blake3_hex,
)

__all__ = [
    "ClientAdapter",
    "LlmAdapter",
    "LlmError",
    "LlmMessage",
    "LlmRequest",
    "LlmResponse",
    "LlmRole",
    "StreamChunk",
    "TokenUsage",
    "blake3_hex",
    "call_of",
]
