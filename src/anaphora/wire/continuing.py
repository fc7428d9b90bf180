"""Where the last turn's rendering ends and this turn's begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anaphora.rendered import Addition, ChunkLog, Rendered, Run
from anaphora.values import Conversation, Message, Section, SegmentRole

#: Renders messages into an addition, given the wire role that stands before them in the log.
AddMessages = Callable[[Addition, Sequence[Message], str | None], None]


def last_run(
    previous: Rendered | None, section: Section, role: SegmentRole | None = None
) -> Run | None:
    """The run that stood in the same place last turn."""
    if previous is not None:
        for run in previous.runs:
            if run.section == section and run.role is role:
                return run
    return None


def continue_log(
    messages: Conversation, last: Run | None, shared: int, add: AddMessages
) -> tuple[ChunkLog, int]:
    """A log that holds these messages, and how many of its chunks they take.

    The first `shared` messages say what the last turn's said: their chunks are kept as they are,
    and only the rest is rendered.
    """
    log = last.log if last is not None and shared else ChunkLog()
    at = log.message_ends[shared - 1] if shared else 0
    if shared < len(messages):
        role = log.roles[log.wire_message_of(at - 1)] if at else None
        addition = log.continued(at, shared)
        add(addition, messages[shared:], role)
        log = log.append(addition)
        at = log.message_ends[len(messages) - 1]
    return log, at
