"""Prompts: blocks, the IR and its views, contexts, compaction, calls."""

from __future__ import annotations

from .blocks import (
    BlockMark,
    Earlier,
    MarkRequest,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    ToolMark,
    flatten_blocks,
)
from .call import Call, OutputSchema, Params, Reasoning, ToolChoice
from .context import (
    Compaction,
    ContextFingerprint,
    PrefixFingerprint,
    RenderedContext,
    atomic_units,
    compact,
)
from .ir import Continuation, PromptIR, ResponsesRequestOptions, Segment

__all__ = [
    "BlockMark",
    "Call",
    "Compaction",
    "ContextFingerprint",
    "Continuation",
    "Earlier",
    "MarkRequest",
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
