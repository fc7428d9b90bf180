"""The categories that caches distinguish: lifetimes, sections, kinds of chunks, policies, roles of
segments."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Literal

#: How long a provider keeps a cache entry after its last use. The cache rules list those that a
#: provider has.
Ttl = Literal["5m", "30m", "1h", "12h", "24h"]

TTL_SECONDS: dict[Ttl, int] = {"5m": 300, "30m": 1800, "1h": 3600, "12h": 43200, "24h": 86400}


def nearest_ttl(wanted: Ttl, available: Iterable[Ttl]) -> Ttl | None:
    """The shortest available TTL that is long enough, else the longest; None if there is none."""
    lasting = sorted(available, key=TTL_SECONDS.__getitem__)
    enough = (ttl for ttl in lasting if TTL_SECONDS[ttl] >= TTL_SECONDS[wanted])
    return next(enough, lasting[-1] if lasting else None)


#: The sections of a prompt; the order in which they are hashed depends on the provider.
Section = Literal["tools", "system", "messages"]


class Kind(enum.Enum):
    """The kinds of chunks that cache rules distinguish."""

    # The hash of an enum is written in Python, and every chunk's kind is looked up.
    __hash__ = object.__hash__

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


class CachePolicy(enum.Enum):
    """How a prompt block should be cached."""

    NONE = "none"
    EPHEMERAL_5M = "5m"
    EPHEMERAL_1H = "1h"

    @property
    def is_cached(self) -> bool:
        return self is not CachePolicy.NONE

    @property
    def ttl(self) -> Ttl | None:
        if self is CachePolicy.NONE:
            return None
        return "1h" if self is CachePolicy.EPHEMERAL_1H else "5m"


class SegmentRole(enum.Enum):
    """The structural role of a run of messages, in the order of a chat."""

    STABLE_PREFIX = "stable_prefix"
    """Guides, workspace, environment, skills: the same for the whole session."""
    DYNAMIC_CONTEXT = "dynamic_context"
    """A summary or per-round context, before the history. May change between rounds."""
    SYSTEM_REMAINDER = "system_remainder"
    """System messages of the history that are not part of the system field."""
    CONVERSATION = "conversation"
    """The messages of user, assistant and tools."""
    VOLATILE_TAIL = "volatile_tail"
    """Rebuilt every round, never cached, always last."""
