"""Prompts: blocks, the IR and its views, contexts, compaction, calls."""

from __future__ import annotations

from anaphora.values.conversation import Segment

from .blocks import (
    BlockMark,
    Continuation,
    OutputFormat,
    OutputSchema,
    PartMark,
    PromptCachePlan,
    Reasoning,
    ResponsesRequestOptions,
    ToolChoice,
    ToolMark,
    flatten_blocks,
)
from .blocks import Earlier as Earlier
from .blocks import MarkRequest as MarkRequest
from .blocks import Params as Params
from .blocks import PromptBlock as PromptBlock
from .context import Compaction, compact
from .context import PrefixFingerprint as PrefixFingerprint
from .context import RenderedContext as RenderedContext
from .ir import Call as Call
from .ir import PromptIR as PromptIR

__all__ = [
    "BlockMark",
    "Compaction",
    "Continuation",
    "OutputFormat",
    "OutputSchema",
    "PartMark",
    "PromptCachePlan",
    "Reasoning",
    "ResponsesRequestOptions",
    "Segment",
    "ToolChoice",
    "ToolMark",
    "compact",
    "flatten_blocks",
]
