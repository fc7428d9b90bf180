"""Where the last turn's rendering ends and this turn's begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anaphora.rendered import ChunkLog, ChunkRun, LogAppend, Rendered
from anaphora.values import Conversation, Message, Section, SegmentRole

from .unfinished import settled

# Looked up once: a member of an enum is found slowly, and every turn asks.
_TAIL = SegmentRole.VOLATILE_TAIL
_DYNAMIC = SegmentRole.DYNAMIC_CONTEXT
_HISTORY = SegmentRole.CONVERSATION

#: Renders messages into an addition, given the wire role that stands before them in the log.
AddMessages = Callable[[LogAppend, Sequence[Message], str | None], None]


def last_run(
    previous: Rendered | None, section: Section, role: SegmentRole | None = None
) -> ChunkRun | None:
    """The run that stood in the same place last turn."""
    if previous is not None:
        for run in previous.runs:
            if run.section == section and run.role is role:
                return run
    return None


def cacheable(
    runs: list[ChunkRun], previous: Rendered | None, messages: bool, until: ChunkRun | None = None
) -> int:
    """How many leading chunks the next turn may reuse: up to the first volatile one, the first
    dynamic one that differs from the turn before, or the run `until`. None of the messages' where
    `messages` says so."""
    chunks = 0
    history = False
    for run in runs:
        role = run.role
        if role is _TAIL or run is until or (run.section == "messages" and not messages):
            break
        if history and role is _DYNAMIC:
            break  # behind the conversation it moves with every turn
        history = history or role is _HISTORY
        if role is _DYNAMIC and previous is not None:
            last = last_run(previous, "messages", role)
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
    last: ChunkRun | None,
    shared: int,
    add: AddMessages,
) -> tuple[ChunkLog, int]:
    """A log that holds these messages, and how many of its chunks they take.

    The first `shared` messages say what the last turn's said: their chunks are kept as they are,
    and only the rest is rendered.
    """
    shared = settled(messages, shared)
    if last is None or not shared:
        first = LogAppend()
        add(first, messages[:], None)
        log = ChunkLog(first)
        return log, len(log)
    log = last.log
    at = log.message_ends[shared - 1]
    if shared < len(messages):
        role = log.roles[log.wire_message_of(at - 1)] if at else None
        addition = log.continued(at, shared)
        add(addition, messages[shared:], role)
        log = log.append(addition)
        at = log.message_ends[len(messages) - 1]
    return log, at
