"""A small interface for every backend: a hashable request, a response with the provider's hash.

    adapter = ClientAdapter(client, "anthropic-default", "claude")
    response = await adapter.complete(LlmRequest(model="…", messages=(LlmMessage("user", "Hi"),)))

Every class with `adapter_id` and `complete` is an `LlmAdapter`.
"""

from __future__ import annotations

from anaphora.errors import AnaphoraError as LlmError

from .client_adapter import ClientAdapter, call_of
from .values import (
    LlmAdapter,
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
