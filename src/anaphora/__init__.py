"""Anaphora: say a prompt once, keep its beginning byte-stable, and know what it costs.

    Call ──render──▶ Rendered ──plan──▶ Plan ──assemble──▶ Request

The nouns (messages, prompts, calls) are here, and the client that sends them; the other verbs live
where they belong:

    anaphora.wire.anthropic   render, assemble, read_reply
    anaphora.cache            plan, fingerprint
    anaphora.catalog          what models are and how their caches behave
    anaphora.errors           everything that can be raised, in one tree
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .prompt import (
    BlockMark,
    Call,
    Compaction,
    ContextFingerprint,
    Continuation,
    OutputSchema,
    Params,
    PartMark,
    PrefixFingerprint,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    Reasoning,
    RenderedContext,
    ResponsesRequestOptions,
    Segment,
    ToolChoice,
    ToolMark,
    compact,
    flatten_blocks,
)
from .values import (
    Audio,
    Bytes,
    CachePolicy,
    Conversation,
    Document,
    FileId,
    Image,
    Message,
    Notice,
    Opaque,
    Refusal,
    Reply,
    SegmentRole,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Url,
    Usage,
    from_json,
    to_json,
)
from .values import display as _display

if TYPE_CHECKING:
    from .client.client import AsyncClient
    from .client.dispatch import dispatch, dispatch_all
    from .client.response import Response
    from .client.session import PrefixWarning, Preview, Session
    from .client.sync import Client
    from .tools import ToolRegistry

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Audio",
    "BlockMark",
    "Bytes",
    "CachePolicy",
    "Call",
    "Client",
    "Compaction",
    "ContextFingerprint",
    "Continuation",
    "Conversation",
    "Document",
    "FileId",
    "Image",
    "Message",
    "Notice",
    "Opaque",
    "OutputSchema",
    "Params",
    "PartMark",
    "PrefixFingerprint",
    "PrefixWarning",
    "Preview",
    "PromptBlock",
    "PromptCachePlan",
    "PromptIR",
    "Reasoning",
    "Refusal",
    "RenderedContext",
    "Reply",
    "Response",
    "ResponsesRequestOptions",
    "Segment",
    "SegmentRole",
    "Session",
    "Text",
    "Thinking",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "ToolMark",
    "ToolRegistry",
    "ToolResult",
    "Url",
    "Usage",
    "compact",
    "dispatch",
    "dispatch_all",
    "flatten_blocks",
    "from_json",
    "to_json",
]

#: What is loaded only when it is asked for, to keep `import anaphora` light.
_LATE = {
    "Response": "anaphora.client.response",
    "AsyncClient": "anaphora.client.client",
    "PrefixWarning": "anaphora.client.session",
    "Preview": "anaphora.client.session",
    "Session": "anaphora.client.session",
    "Client": "anaphora.client.sync",
    "ToolRegistry": "anaphora.tools",
    "dispatch": "anaphora.client.dispatch",
    "dispatch_all": "anaphora.client.dispatch",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'anaphora' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})


def _html(value: object) -> str:
    """Load the HTML renderer when a notebook asks for it."""
    html: str = import_module("anaphora.notebook").html_of(value)
    return html


_display.renderer = _html
