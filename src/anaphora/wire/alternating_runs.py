"""Runs of messages of alternating roles, one for each segment, and where a caller's mark lands.

Neighbouring messages of one role become one. The glue before a block depends only on the role
before it: that makes appending cheap and exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from anaphora.canonical import string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import BlockMark, Call, MarkRequest, Segment, ToolMark
from anaphora.rendered import ChunkLog, ChunkRun, LogAppend, Rendered
from anaphora.values import AnyTool, Message, Notice, Part, SegmentRole, ToolResult

from .alternating import (
    MessageEncoder,
    MessageForm,
    RoleWithFields,
    has_content,
    place_tail,
    unchanged_count,
    undecided_start,
)
from .markers import MarkLocation, find_message
from .parts import system_block_index
from .rendering import extend_log, previous_run

# Looked up once: access to an enum member is slow, and every turn needs it.
_TAIL = SegmentRole.VOLATILE_TAIL
_DYNAMIC = SegmentRole.DYNAMIC_CONTEXT
_HISTORY = SegmentRole.CONVERSATION

MESSAGES = b'"messages":['
OPENINGS = {
    role: b'{"role":"%b","content":[' % role.encode() for role in ("user", "assistant", "system")
}
CLOSE = b"]}]"


# ── Roles and glue ────────────────────────────────────────────────────────────────────────────────


def opening(role: str) -> bytes:
    """A message up to its first block."""
    if type(role) is RoleWithFields:
        fields = b"," + role.fields if role.fields else b""
        return b'{"role":%b%b,"content":[' % (string(role), fields)
    return OPENINGS.get(role) or b'{"role":%b,"content":[' % string(role)


def joins(role: str, last: str | None) -> bool:
    """Whether a message is merged into the one before it."""
    return role == last and type(role) is str and type(last) is str


# ── Message runs ──────────────────────────────────────────────────────────────────────────────────


def alternating_runs(
    form: MessageForm, call: Call, profile: Profile, previous: Rendered | None
) -> tuple[list[ChunkRun], list[Notice]]:
    """One run per segment, glued to the one before it."""
    segments = call.ir.body_runs()
    runs: list[ChunkRun] = []
    notices: list[Notice] = []
    for index, segment in enumerate(segments):
        if segment.role is _TAIL:
            segment, runs, notice = place_tail(segment, runs, call.params, profile)
            notices += [notice] if notice else []
        before, after = runs[-1].last_role if runs else None, _role_after(form, segments, index)
        last = previous_run(previous, "messages", segment.role)
        log, count = _segment_log(form, segment, profile, last, before, after)
        if log.notices:
            notices += [notice for at, notice in log.notices if at < len(segment.messages)]
        if count:
            lead, message, block = _joint(runs[-1] if runs else None, before, log.roles[0])
            run = ChunkRun(
                "messages",
                log,
                count,
                role=segment.role,
                lead=lead,
                source=segment.messages,
                first_message=message,
                first_block=block,
                before=before,
                after=after,
            )
            runs.append(run)
    if not runs:
        raise InvalidRequest(f"{form.host} needs at least one message with content", path="ir")
    msgspec.structs.force_setattr(runs[-1], "close", CLOSE)  # made above, and seen by no one yet
    return runs, notices


def _joint(last: ChunkRun | None, before: str | None, role: str) -> tuple[bytes, int, int]:
    """The glue between two runs, and where the second begins: message on the wire, block in it."""
    if last is None:
        return MESSAGES + opening(role), 0, 0
    message, block = last.position(last.count - 1)
    if joins(role, before):
        return b",", message, block + 1
    return b"]}," + opening(role), message + 1, 0


def _segment_log(
    form: MessageForm,
    segment: Segment,
    profile: Profile,
    last: ChunkRun | None,
    before: str | None,
    after: str | None,
) -> tuple[ChunkLog, int]:
    messages, between = segment.messages, (before, after)
    add = partial(
        _add_messages,
        form=form,
        history=messages,
        where=segment.role.value,
        between=between,
        profile=profile,
    )
    shared = 0
    if last is not None:
        shared = messages.common_prefix(last.source, ids=True)
        if last.log.contextual:
            shared = unchanged_count(form, messages, shared, last, before, after)
    return extend_log(messages, last, shared, add)


def _add_messages(
    append: LogAppend,
    new: Sequence[Message],
    last_role: str | None,
    *,
    form: MessageForm,
    history: Sequence[Message],
    where: str,
    between: tuple[str | None, str | None],
    profile: Profile,
) -> None:
    encoder = MessageEncoder(form, append, new, where, *between, profile)
    chunks, first = append.chunks, append.first_chunk
    add_id, add_end = append.ids.append, append.message_ends.append
    beside, watch = False, not form.text_beside_results
    if watch:
        beside = _ends_with_results(history, append.first_message)
    for index, message in enumerate(new):
        count = len(chunks)
        role, blocks = encoder.encode(index, last_role)
        joined = joins(role, last_role)
        lead = b"" if last_role is None else b"," if joined else b"]}," + opening(role)
        for kind, splice, block in blocks:
            chunks.append((kind, splice, lead + block))
            lead = b","
        if watch:
            beside = _has_results(message) or (joined and beside)
            if beside:  # markers are refused there
                chunks[count:] = [(kind, None, data) for kind, _, data in chunks[count:]]
        if not joined and count < len(chunks):
            append.opens.append(first + count)
            append.roles.append(role)
            last_role = role
        add_id(message.id)
        add_end(first + len(chunks))


def _ends_with_results(messages: Sequence[Message], count: int) -> bool:
    """Whether the next message after so many would be sent together with tool results."""
    while count and messages[count - 1].role not in ("assistant", "system"):
        count -= 1
        if _has_results(messages[count]):
            return True
    return False


def _has_results(message: Message) -> bool:
    return any(isinstance(part, ToolResult) for part in message.parts)


def settled_chunks(form: MessageForm, runs: list[ChunkRun]) -> int:
    """The chunks before a system message that ends the conversation: until the assistant answers,
    the next message may still change its role."""
    first = 0
    for run in runs:
        if run.role is _HISTORY and run.log.contextual:
            start = undecided_start(form, run.source, len(run.source))
            decided = run.log.message_ends[start - 1] if start else 0
            if start < len(run.source) and decided < run.count:
                return first + decided
        first += run.count
    return first


def _role_after(form: MessageForm, segments: tuple[Segment, ...], index: int) -> str | None:
    """The role of the next message with content after a segment. After the conversation it is that
    of the reply, or of the dynamic context if that was moved there; the volatile tail is placed
    separately."""
    for following in segments[index + 1 :]:
        if segments[index].role is _HISTORY and following.role is not _DYNAMIC:
            break
        for message in following.messages:
            if has_content(form, message):
                return message.role
    return None


# ── Marks ─────────────────────────────────────────────────────────────────────────────────────────


def locate(
    form: MessageForm,
    request: MarkRequest,
    call: Call,
    profile: Profile,
    tools: tuple[AnyTool, ...],
    runs: list[ChunkRun],
    loaded: Mapping[str, int],
    nested: Callable[[Part, tuple[int, ...]], int | None] | None = None,
) -> MarkLocation:
    """The chunk of a mark request, or the reason why there is none. `loaded` has the chunks of
    tools; `nested` counts the bytes of a part from the marker on a block inside it."""
    if isinstance(request, ToolMark):
        index = loaded.get(request.name)
        if index is not None:
            return _marked_chunk(form, runs[0], index, 0, f"tool {request.name}")
        if any(tool.name == request.name for tool in tools):
            return f"tool {request.name} is deferred, so it cannot be cached"
        return f"no tool {request.name}"
    if isinstance(request, BlockMark):
        position = system_block_index(call, request.index, profile)
        if position is None:
            return f"no system block {request.index}, or a blank one"
        count = runs[0].count if runs[0].section == "tools" else 0
        run = runs[1 if count else 0]
        return _marked_chunk(form, run, position, count, f"system block {request.index}")
    match = find_message(runs, request.message_id)
    if match is None:
        return f"no message {request.message_id}"
    run, first, chunks = match
    name = f"message {request.message_id}"
    if chunks.stop > run.count:
        return f"{name} carries the state this turn, so it cannot be cached"
    if not request.path:
        last = next((chunk for chunk in reversed(chunks) if run.log.splices[chunk] >= 0), None)
        return f"no part of {name} can carry a marker" if last is None else (first + last, None)
    name = f"part {list(request.path)} of {name}"
    message = run.source[run.log.message_of(chunks.start)] if chunks else None
    if message is None or not 0 <= request.path[0] < len(message.parts):
        return f"no {name}"
    position, is_sent = request.path[0], True
    chunk = chunks.start + position
    if not form.as_sent:  # every part is a block there
        sent = form.sent_parts(message, profile)
        chunk, is_sent = chunks.start + sum(sent[:position]), sent[position]
    if not is_sent or chunk >= chunks.stop:  # reasoning at the end may be left out
        return f"{name} is left out of the request"
    if len(request.path) > 1:
        inside = None if nested is None else nested(message.parts[position], request.path[1:])
        if inside is None:
            return f"no {name} that can carry a marker"
        return first + chunk, _chunk_size(run, chunk) - inside
    return _marked_chunk(form, run, chunk, first, name)


def tool_places(tools: Sequence[AnyTool]) -> dict[str, int]:
    """The chunk of each tool by its name; of those with one name that of the first."""
    return {tools[index].name: index for index in reversed(range(len(tools)))}


def _marked_chunk(
    form: MessageForm, run: ChunkRun, chunk: int, first: int, name: str
) -> MarkLocation:
    """A chunk of a run whose first one is `first`."""
    if run.log.splices[chunk] >= 0:
        return first + chunk, None
    if form.as_sent:
        return first + chunk, _chunk_size(run, chunk) + (form.splices[0] or 0)
    return f"{name} takes no marker"


def _chunk_size(run: ChunkRun, chunk: int) -> int:
    lead = len(run.lead) if chunk == 0 else 0
    return lead + run.log.ends[chunk] - run.log.start(chunk)
