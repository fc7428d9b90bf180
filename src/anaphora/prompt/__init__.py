"""The prompt, said once: blocks, the IR and its views, contexts, compaction, tools, calls."""

from __future__ import annotations

from .blocks import PromptBlock, flatten_blocks
from .cache_plan import BlockMark, Earlier, PartMark, PromptCachePlan, ToolMark
from .call import Call, OutputSchema, Params, Reasoning, ToolChoice
from .compaction import Compaction, atomic_units, compact
from .context import RenderedContext
from .context_fingerprint import ContextFingerprint, PrefixFingerprint
from .ir import Continuation, PromptIR, ResponsesRequestOptions, Segment

__all__ = [
    "BlockMark",
    "Call",
    "Compaction",
    "ContextFingerprint",
    "Continuation",
    "Earlier",
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
