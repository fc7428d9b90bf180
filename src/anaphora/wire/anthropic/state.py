"""Where the volatile tail goes when it follows a tool result.

Some models drop all earlier thinking as soon as a plain user block appears, which voids every
cached message. Inside a tool loop the state then rides in the last tool result, or comes as a
system message where the model takes one there.
"""

from __future__ import annotations

import msgspec

from anaphora.catalog import Profile
from anaphora.prompt import Params, Segment
from anaphora.rendered import ChunkRun, Kind
from anaphora.values import (
    Conversation,
    Document,
    Image,
    Message,
    Notice,
    ResultPart,
    SegmentRole,
    Text,
    ToolResult,
)

#: Looked up once: a member of an enum is found slowly, and every turn asks.
_HISTORY = SegmentRole.CONVERSATION


def place_tail(
    tail: Segment, runs: list[ChunkRun], params: Params, profile: Profile
) -> tuple[Segment, list[ChunkRun], Notice | None]:
    """The tail as it is to be rendered behind these runs, and the runs that stay before it."""
    if not runs or runs[-1].role is not _HISTORY:
        return tail, runs, None
    if runs[-1].last_role == "system":
        # A user message may not follow a system message inside the history.
        return _as_system(tail), runs, None
    if not _would_strip_thinking(runs[-1], params, profile):
        return tail, runs, None
    if profile.mid_conversation_system.value:
        return _as_system(tail), runs, None
    return _ride(tail, runs)


def _would_strip_thinking(last: ChunkRun, params: Params, profile: Profile) -> bool:
    reasoning = params.reasoning
    if reasoning is None or reasoning.mode in (None, "disabled"):
        return False
    in_loop = last.log.kinds[last.count - 1] is Kind.TOOL_RESULT
    return in_loop and profile.strips_thinking.value


def _as_system(tail: Segment) -> Segment:
    messages = (Message(id=m.id, role="system", parts=m.parts) for m in tail.messages)
    return Segment(tail.role, Conversation(messages))


def _ride(tail: Segment, runs: list[ChunkRun]) -> tuple[Segment, list[ChunkRun], Notice | None]:
    """The last tool result leaves the conversation's run, takes the state in, and is volatile for
    this one turn; next turn it is there again as the tool gave it."""
    last = runs[-1]
    carrier = last.source[last.log.message_of(last.count - 1)]
    result = next(part for part in reversed(carrier.parts) if isinstance(part, ToolResult))
    riding: list[ResultPart] = []
    for message in tail.messages:
        for part in message.parts:
            if not isinstance(part, Text | Image | Document):
                return tail, runs, _STRIPS
            riding.append(part)
    own = result.content
    if isinstance(own, str):
        own = (Text(own),) if own else ()
    carried = msgspec.structs.replace(result, content=(*own, *riding))
    message = Message(id=tail.messages[0].id, role="tool", parts=(carried,))
    before = [msgspec.structs.replace(last, count=last.count - 1)] if last.count > 1 else []
    return Segment(tail.role, Conversation([message])), [*runs[:-1], *before], None


_STRIPS = Notice(
    "state_strips_thinking",
    "the state cannot ride in a tool result, and as a user block it makes this model drop its"
    " earlier thinking, which voids the cached messages",
)
