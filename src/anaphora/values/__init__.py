"""Messages, replies, usage, stream events: the values that all other packages use."""

from __future__ import annotations

from .attachments import Audio, Bytes, FileId, Source, Url
from .attachments import Document as Document
from .attachments import Image as Image
from .codec import from_json as from_json
from .codec import to_json as to_json
from .conversation import Conversation as Conversation
from .conversation import Message as Message
from .conversation import MessageLike as MessageLike
from .conversation import Role as Role
from .events import (
    Delta,
    Event,
    OpaqueDelta,
    PartDelta,
    PartEnd,
    PartStart,
    RefusalDelta,
    ReplyEnd,
    ReplyFail,
    ReplyStart,
    TextDelta,
    ThinkingDelta,
    ToolArgumentsDelta,
    UsageUpdate,
)
from .events import TextPieces as TextPieces
from .fields import Extras as Extras
from .parts import AnyTool as AnyTool
from .parts import Notice, Opaque, Part, ProviderTool, Refusal, Thinking
from .parts import ResultPart as ResultPart
from .parts import Text as Text
from .parts import Tool as Tool
from .parts import ToolCall as ToolCall
from .parts import ToolResult as ToolResult
from .reply import Reply, StopReason
from .reply import Usage as Usage
from .reply import WriteTtl as WriteTtl
from .stability import TTL_SECONDS as TTL_SECONDS
from .stability import CachePolicy as CachePolicy
from .stability import Section as Section
from .stability import SegmentRole as SegmentRole
from .stability import Ttl as Ttl

__all__ = [
    "Audio",
    "Bytes",
    "Delta",
    "Event",
    "FileId",
    "Notice",
    "Opaque",
    "OpaqueDelta",
    "Part",
    "PartDelta",
    "PartEnd",
    "PartStart",
    "ProviderTool",
    "Refusal",
    "RefusalDelta",
    "Reply",
    "ReplyEnd",
    "ReplyFail",
    "ReplyStart",
    "Source",
    "StopReason",
    "TextDelta",
    "Thinking",
    "ThinkingDelta",
    "ToolArgumentsDelta",
    "Url",
    "UsageUpdate",
]
