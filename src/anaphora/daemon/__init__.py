"""Delegated completion: the messages that an app and the daemon exchange."""

from __future__ import annotations

from .messages import (
    LLM_COMPLETE_METHOD,
    LlmChatMessage,
    LlmCompleteInput,
    LlmCompleteResponse,
    LlmUsage,
)

__all__ = [
    "LLM_COMPLETE_METHOD",
    "LlmChatMessage",
    "LlmCompleteInput",
    "LlmCompleteResponse",
    "LlmUsage",
]
