"""Prompts: blocks, the IR and its views, contexts, compaction, calls."""

from __future__ import annotations

from .blocks import (
    BlockMark,
    Continuation,
    Earlier,
    MarkRequest,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    ResponsesRequestOptions,
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
from .ir import PromptIR, Segment

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
