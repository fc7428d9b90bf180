"""The nouns everything else is written in. Nothing here imports anything above it."""

from __future__ import annotations

from .codec import from_json, to_json
from .conversation import Conversation
from .events import (
    Event,
    PartDelta,
    PartEnd,
    PartStart,
    ReplyEnd,
    ReplyFail,
    ReplyStart,
    UsageUpdate,
)
from .message import Message, Role
from .notice import Notice
from .parts import (
    Audio,
    Bytes,
    Document,
    Extras,
    FileId,
    Image,
    Opaque,
    Part,
    Refusal,
    ResultPart,
    Source,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Url,
)
from .reply import Reply, StopReason
from .stability import TTL_SECONDS, CachePolicy, Section, SegmentRole, Ttl, nearest_ttl
from .tool import AnyTool, ProviderTool, Tool
from .usage import Usage, WriteTtl

__all__ = [
    "TTL_SECONDS",
    "AnyTool",
    "Audio",
    "Bytes",
    "CachePolicy",
    "Conversation",
    "Document",
    "Event",
    "Extras",
    "FileId",
    "Image",
    "Message",
    "Notice",
    "Opaque",
    "Part",
    "PartDelta",
    "PartEnd",
    "PartStart",
    "ProviderTool",
    "Refusal",
    "Reply",
    "ReplyEnd",
    "ReplyFail",
    "ReplyStart",
    "ResultPart",
    "Role",
    "Section",
    "SegmentRole",
    "Source",
    "StopReason",
    "Text",
    "Thinking",
    "Tool",
    "ToolCall",
    "ToolResult",
    "Ttl",
    "Url",
    "Usage",
    "UsageUpdate",
    "WriteTtl",
    "from_json",
    "nearest_ttl",
    "to_json",
]
