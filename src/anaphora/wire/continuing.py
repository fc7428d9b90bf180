"""Where the last turn's rendering ends and this turn's begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anaphora.rendered import Addition, ChunkLog, Rendered, Run
from anaphora.values import Conversation, Message, Section, SegmentRole

from .foreign import tell_foreign

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


def cacheable(
    runs: list[Run], previous: Rendered | None, messages: bool, until: Run | None = None
) -> int:
    """How many leading chunks the next turn may reuse: up to the first volatile one, the first
    dynamic one that differs from the turn before, or the run `until`. None of the messages' where
    `messages` says so."""
    chunks = 0
    history = False
    for run in runs:
        if run.volatile or run is until or (run.section == "messages" and not messages):
            break
        if history and run.role is SegmentRole.DYNAMIC_CONTEXT:
            break  # behind the conversation it moves with every turn
        history = history or run.role is SegmentRole.CONVERSATION
        if run.role is SegmentRole.DYNAMIC_CONTEXT and previous is not None:
            last = last_run(previous, "messages", run.role)
            same = run.source.common_prefix(last.source) if last is not None else 0
            if same < len(run.source):
                return chunks + (run.log.message_ends[same - 1] if same else 0)
        chunks += run.count
    return chunks


def usable(previous: Rendered | None, wire: str, model: str) -> Rendered | None:
    """The turn before, when this wire rendered it for this model, and did not cut it from bytes."""
    if previous is None or previous.envelope.source is None:
        return None
    return previous if (previous.wire, previous.model) == (wire, model) else None


def continue_log(
    messages: Conversation,
    last: Run | None,
    shared: int,
    add: AddMessages,
    wire: str,
    where: str,
) -> tuple[ChunkLog, int]:
    """A log that holds these messages, and how many of its chunks they take.

    The first `shared` messages say what the last turn's said: their chunks are kept as they are,
    and only the rest is rendered. What another wire than `wire` left in it is told.
    """
    log = last.log if last is not None and shared else ChunkLog()
    at = log.message_ends[shared - 1] if shared else 0
    if shared < len(messages):
        role = log.roles[log.wire_message_of(at - 1)] if at else None
        addition = log.continued(at, shared)
        new = messages[shared:]
        add(addition, new, role)
        tell_foreign(addition, new, wire, where)
        log = log.append(addition)
        at = log.message_ends[len(messages) - 1]
    return log, at
