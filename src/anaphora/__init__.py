"""Anaphora: define a prompt once, keep its beginning byte-stable, and know what it costs.

    Call ──render──▶ Rendered ──plan──▶ Plan ──assemble──▶ Request ──send──▶ Reply

The names used most are here; everything else is imported from its package:

    anaphora.client     sessions, retries, limits, routing, structured output, observers
    anaphora.values     messages and their parts, usage, replies, stream events
    anaphora.prompt     blocks, the prompt IR, parameters, compaction
    anaphora.tools      tool registry, JSON Schema from functions, MCP listings
    anaphora.wire       render, parse, assemble and read for each provider protocol
    anaphora.cache      fingerprint, planner, simulator, verdict
    anaphora.catalog    model profiles, cache rules, prices
    anaphora.replay     recordings, and transports that make and serve them
    anaphora.emulator   a local server that behaves like the providers
    anaphora.integrations.sdk   hooks for the official SDKs
    anaphora.errors     every exception, in one tree
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import errors
from .prompt import Call, Params, PromptBlock, PromptIR, RenderedContext
from .values import (
    CachePolicy,
    Conversation,
    Document,
    Image,
    Message,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
)
from .values import attachments as _attachments
from .values import conversation as _conversation
from .version import __version__ as __version__

if TYPE_CHECKING:
    from pathlib import Path

    from .client.client import AsyncClient
    from .client.mcp import mcp_tools
    from .client.response import Response
    from .client.session import Session
    from .client.session.run import RunResult
    from .client.shared import acomplete, complete
    from .client.sync import Client, SyncSession
    from .integrations.sdk import observe, observing
    from .tools import ToolRegistry

__all__ = [
    "AsyncClient",
    "CachePolicy",
    "Call",
    "Client",
    "Conversation",
    "Document",
    "Image",
    "Message",
    "Params",
    "PromptBlock",
    "PromptIR",
    "RenderedContext",
    "Response",
    "RunResult",
    "Session",
    "SyncSession",
    "Text",
    "Tool",
    "ToolCall",
    "ToolRegistry",
    "ToolResult",
    "Usage",
    "acomplete",
    "complete",
    "errors",
    "mcp_tools",
    "observe",
    "observing",
]

#: Loaded on first access, to keep `import anaphora` light.
_LAZY = {
    "AsyncClient": "anaphora.client.client",
    "Client": "anaphora.client.sync",
    "Response": "anaphora.client.response",
    "RunResult": "anaphora.client.session.run",
    "Session": "anaphora.client.session",
    "SyncSession": "anaphora.client.sync",
    "ToolRegistry": "anaphora.tools",
    "acomplete": "anaphora.client.shared",
    "complete": "anaphora.client.shared",
    "mcp_tools": "anaphora.client.mcp",
    "observe": "anaphora.integrations.sdk",
    "observing": "anaphora.integrations.sdk",
}


#: Packages that are available as `anaphora.NAME` without a separate import.
_PACKAGES = {"integrations", "replay"}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"anaphora.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'anaphora' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_PACKAGES})


def _message(value: object, path: str) -> Message:
    """Load the reader of messages when a dictionary is given for one."""
    message: Message = import_module("anaphora.wire.message_dicts").read_message(value, path)
    return message


_conversation.reader = _message


def _file(path: str | Path) -> bytes:
    data: bytes = import_module("anaphora.client.arguments").read_file(path)
    return data


_attachments.read_file = _file
