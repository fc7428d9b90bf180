"""Delegated completion: params and result of the JSON-RPC method `nexo/admin/llm/complete`.

Optional params that are absent are left out of the JSON; a result always has its usage, with 0 for
a count that the provider did not report. Unknown params are ignored.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

__all__ = [
    "LLM_COMPLETE_METHOD",
    "LlmChatMessage",
    "LlmCompleteInput",
    "LlmCompleteResponse",
    "LlmUsage",
]

LLM_COMPLETE_METHOD = "nexo/admin/llm/complete"

#: Limit of a model name's length: names are kept in memory and in the audit log.
LONGEST_NAME = 256
MOST_MESSAGES = 100_000
_Name = Annotated[str, msgspec.Meta(pattern=r"\S", max_length=LONGEST_NAME)]


class LlmChatMessage(msgspec.Struct, frozen=True):
    role: Literal["system", "user", "assistant"]
    content: str


class LlmCompleteInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    provider: _Name
    """A provider's id in `llm.yaml`."""
    model: _Name
    messages: tuple[LlmChatMessage, ...]
    """Oldest first. The daemon never shortens them."""
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    system_prompt: str | None = None


class LlmUsage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int = 0
    """Uncached, read and written together."""
    completion_tokens: int = 0
    total_tokens: int = 0


class LlmCompleteResponse(msgspec.Struct, frozen=True, kw_only=True):
    content: str
    model: str
    """The model that answered."""
    usage: LlmUsage = LlmUsage()
