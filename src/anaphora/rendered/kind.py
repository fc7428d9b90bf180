"""What a chunk is, as far as cache rules care."""

from __future__ import annotations

import enum


class Kind(enum.Enum):
    """What a chunk is, as far as cache rules care."""

    TOOL = "tool"
    SYSTEM = "system"
    TEXT = "text"
    IMAGE = "image"
    DOCUMENT = "document"
    AUDIO = "audio"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    THINKING = "thinking"
    OTHER = "other"
