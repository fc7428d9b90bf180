"""Prompts: blocks, the IR and its views, contexts, compaction, calls."""

from __future__ import annotations

from anaphora.values.conversation import Segment

from .blocks import (
    BlockMark,
    Continuation,
    Earlier,
    MarkRequest,
    OutputFormat,
    OutputSchema,
    Params,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    Reasoning,
    ResponsesRequestOptions,
    ToolChoice,
    ToolMark,
    flatten_blocks,
)
from .context import (
    Compaction,
    ContextFingerprint,
    PrefixFingerprint,
    RenderedContext,
    atomic_units,
    compact,
)
from .ir import Call, PromptIR

__all__ = [
    "BlockMark",
    "Call",
    "Compaction",
    "ContextFingerprint",
    "Continuation",
    "Earlier",
    "MarkRequest",
    "OutputFormat",
    "OutputSchema",
    "Params",
    "PartMark",
    "PrefixFingerprint",
    "PromptBlock",
    "PromptCachePlan",
    "PromptIR",
    "Reasoning",
    "RenderedContext",
    "ResponsesRequestOptions",
    "Segment",
    "ToolChoice",
    "ToolMark",
    "atomic_units",
    "compact",
    "flatten_blocks",
]
