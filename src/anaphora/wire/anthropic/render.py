"""Renders a call as chunks of an Anthropic Messages request: tools, system and messages, in hash
order.

Roles must alternate, so neighbouring messages of one role become one. The glue before a block
depends only on the role before it: that makes appending cheap and exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from anaphora.canonical import encode_text, string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, PromptCachePlan, Segment
from anaphora.rendered import ChunkLog, ChunkRun, Kind, LogAppend, Rendered
from anaphora.rendered.log import NewChunk
from anaphora.values import AnyTool, Message, Notice, SegmentRole, Text, ToolCall, ToolResult, Ttl
from anaphora.values.codec import is_object
from anaphora.wire.markers import nearest_ttls, supported_ttl
from anaphora.wire.rendering import (
    AddMessages,
    cacheable_count,
    continued,
    extend_log,
    finish_rendering,
    previous_run,
    section_run,
    usable_previous,
    without_foreign_tools,
)

from .messages import (
    ROLES,
    MessageEncoder,
    RoleWithFields,
    has_content,
    place_tail,
    unchanged_count,
    undecided_start,
)
from .params import MARKERS, NEAREST, envelope_of, locate
from .parts import (
    BEFORE_BRACE,
    TEXT,
    TOOL_CALL,
    TOOL_RESULT,
    deferred_tools,
    loaded_tools,
    system_log,
    tool_log,
)
from .types import MEMO, WIRE

# Looked up once: access to an enum member is slow, and every turn needs it.
_TAIL = SegmentRole.VOLATILE_TAIL
_DYNAMIC = SegmentRole.DYNAMIC_CONTEXT
_HISTORY = SegmentRole.CONVERSATION
_TEXT_KIND, _CALL_KIND, _RESULT_KIND = Kind.TEXT, Kind.TOOL_CALL, Kind.TOOL_RESULT

OPENINGS = {
    role: b'{"role":"%b","content":[' % role.encode() for role in ("user", "assistant", "system")
}
#: The same, after a message of another role.
_NEXT: dict[str | None, bytes] = {role: b"]}," + opened for role, opened in OPENINGS.items()}
CLOSE = b"]}]"


def render(
    call: Call,
    profile: Profile,
    previous: Rendered | None = None,
    markers: Mapping[Ttl, bytes] | None = None,
) -> Rendered:
    """The whole prompt as chunks, unmarked.

    With the rendering of the turn before in `previous`, only what was added is rendered; the result
    is the same either way. `previous` may also be an older turn, another branch, or another
    conversation: equal messages are shared. `markers` are those of a dialect.
    """
    same = continued(call, profile, previous, WIRE, markers, _adding, _close)
    if same is not None:
        return same
    own, given = markers is None, markers
    markers = MARKERS if markers is None else markers
    nearest = NEAREST if own or not markers else nearest_ttls(markers)
    previous = usable_previous(previous, WIRE, call.model)
    envelope = MEMO.envelope(
        call,
        (call.ir.system_fields_agree(), profile),
        previous.envelope if previous is not None else None,
        lambda source: envelope_of(call, profile, source),
    )
    runs: list[ChunkRun] = []
    tools, notices = without_foreign_tools(call.tools, (WIRE,))
    if tools:
        runs.append(_tools_run(tools, previous))
    if blocks := call.ir.system_field_blocks():
        lead = b'"system":['
        runs.append(
            section_run("system", blocks, system_log, previous, MEMO, lead=lead, close=b"],")
        )
    messages, message_notices = _messages(call, profile, previous)
    runs += messages
    notices = [*notices, *message_notices]
    plan = call.ir.cache
    return finish_rendering(
        call,
        profile,
        envelope,
        runs,
        wire=WIRE,
        given=given,
        cacheable=min(cacheable_count(runs, previous, plan.messages), _settled_chunks(runs)),
        markers=markers,
        nearest=nearest,
        locate=lambda request: (
            locate(request, call, profile, tools, runs)
            if markers
            else "this provider takes no markers"
        ),
        automatic=_automatic(plan, nearest, own, notices),
        notices=notices,
        request_markers=markers if own else {},
    )


def _tools_run(tools: tuple[AnyTool, ...], previous: Rendered | None) -> ChunkRun:
    last = previous_run(previous, "tools")
    if last is not None and last.source is tools:
        return last
    loaded, lead = loaded_tools(tools), b'"tools":['
    run = section_run("tools", loaded, tool_log, previous, MEMO, lead=lead, close=b"],")
    if loaded is tools and not run.deferred:
        return run
    if run.deferred and run.source == tools:
        return run  # the last turn's
    deferred = () if loaded is tools else deferred_tools(tools)
    return msgspec.structs.replace(run, source=tools, deferred=deferred)


def _automatic(
    plan: PromptCachePlan, nearest: Mapping[Ttl, Ttl], own: bool, notices: list[Notice]
) -> Ttl | None:
    """The TTL of the automatic breakpoint, which only Anthropic is known to place. In explicit mode
    there is none: the TTL is that of the caller's own breakpoints."""
    if plan.automatic is None or plan.mode == "explicit":
        return None
    if own:
        return supported_ttl(plan.automatic, nearest, "cache.automatic", notices)
    reason = "this provider places no breakpoint by itself; left out"
    notices.append(Notice("cache_option_left_out", reason, "cache.automatic"))
    return None


# ── Roles and glue ────────────────────────────────────────────────────────────────────────────────


def opening(role: str) -> bytes:
    """A message up to its first block."""
    if type(role) is RoleWithFields:
        return b'{"role":%b,%b,"content":[' % (string(role), role.fields)
    return OPENINGS.get(role) or b'{"role":%b,"content":[' % string(role)


def joins(role: str, last: str | None) -> bool:
    """Whether a message is merged into the one before it."""
    return role == last and type(role) is str and type(last) is str


# ── Message runs ──────────────────────────────────────────────────────────────────────────────────


def _messages(
    call: Call, profile: Profile, previous: Rendered | None
) -> tuple[list[ChunkRun], list[Notice]]:
    """One run per segment, glued to the one before it."""
    segments = call.ir.body_runs()
    runs: list[ChunkRun] = []
    notices: list[Notice] = []
    for index, segment in enumerate(segments):
        if segment.role is _TAIL:
            segment, runs, notice = place_tail(segment, runs, call.params, profile)
            notices += [notice] if notice else []
        before, after = runs[-1].last_role if runs else None, _role_after(segments, index)
        last = previous_run(previous, "messages", segment.role)
        log, count = _segment_log(segment, profile, last, before, after)
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
        raise InvalidRequest("Anthropic needs at least one message with content", path="ir")
    msgspec.structs.force_setattr(runs[-1], "close", CLOSE)  # made above, and seen by no one yet
    return runs, notices


def _joint(last: ChunkRun | None, before: str | None, role: str) -> tuple[bytes, int, int]:
    """The glue between two runs, and where the second begins: message on the wire, block in it."""
    if last is None:
        return b'"messages":[' + opening(role), 0, 0
    message, block = last.position(last.count - 1)
    if joins(role, before):
        return b",", message, block + 1
    return b"]}," + opening(role), message + 1, 0


def _segment_log(
    segment: Segment, profile: Profile, last: ChunkRun | None, before: str | None, after: str | None
) -> tuple[ChunkLog, int]:
    messages = segment.messages
    add = partial(_add_messages, where=segment.role.value, between=(before, after), profile=profile)
    shared = 0
    if last is not None:
        shared = messages.common_prefix(last.source, ids=True)
        if last.log.contextual:
            shared = unchanged_count(messages, shared, last, before, after)
    return extend_log(messages, last, shared, add)


def _adding(_: Rendered, profile: Profile) -> AddMessages:
    """Adds to the history of the turn before."""
    return partial(_add_messages, where="conversation", between=(None, None), profile=profile)


def _close(_: str) -> bytes:
    return CLOSE


def _add_messages(
    append: LogAppend,
    new: Sequence[Message],
    last_role: str | None,
    *,
    where: str,
    between: tuple[str | None, str | None],
    profile: Profile,
) -> None:
    encoder: MessageEncoder | None = None
    chunks, first = append.chunks, append.first_chunk
    add_id, add_end = append.ids.append, append.message_ends.append
    for index, message in enumerate(new):
        role, count = ROLES.get(message.role), len(chunks)
        joined = role == last_role and type(last_role) is str
        lead = b"" if last_role is None else b"," if joined else _NEXT.get(role, b"")
        if role is None or not _add_plain(chunks, message, lead):
            if encoder is None:
                encoder = MessageEncoder(append, new, where, *between, profile)
            role, blocks = encoder.encode(index, last_role)
            joined = joins(role, last_role)
            lead = b"" if last_role is None else b"," if joined else b"]}," + opening(role)
            for kind, splice, block in blocks:
                chunks.append((kind, splice, lead + block))
                lead = b","
        if not joined and count < len(chunks):
            append.opens.append(first + count)
            append.roles.append(role)
            last_role = role
        add_id(message.id)
        add_end(first + len(chunks))


def _add_plain(chunks: list[NewChunk], message: Message, lead: bytes) -> bool:
    """Add a message of texts, calls and text results, as nearly all are, with `lead` before the
    first block. False for any other, and for one that gives notices or is rejected."""
    count = len(chunks)
    try:
        for part in message.parts:
            if type(part) is Text:
                text = part.text
                if part.extras is not None or not text or text.isspace():
                    break
                block = b"".join((lead, TEXT, encode_text(text), b"}"))
                chunks.append((_TEXT_KIND, BEFORE_BRACE, block))
            elif type(part) is ToolCall:
                given = part.arguments
                if part.extras is not None or not is_object(given):
                    break
                names = encode_text(part.id), encode_text(part.name)
                block = b"".join((lead, TOOL_CALL % (*names, given.encode()), b"}"))
                chunks.append((_CALL_KIND, BEFORE_BRACE, block))
            elif type(part) is ToolResult and type(part.content) is str:
                text = part.content
                if part.extras is not None or part.error or not text or text.isspace():
                    break
                begin = TOOL_RESULT % encode_text(part.call_id)
                block = b"".join((lead, begin, TEXT, encode_text(text), b"}]}"))
                chunks.append((_RESULT_KIND, BEFORE_BRACE, block))
            else:
                break
            lead = b","
        else:
            return count < len(chunks)
    except (InvalidRequest, UnicodeEncodeError):
        pass  # raised again, with its path
    del chunks[count:]
    return False


def _settled_chunks(runs: list[ChunkRun]) -> int:
    """The chunks before a system message that ends the conversation: until the assistant answers,
    the next message may still change its role."""
    first = 0
    for run in runs:
        if run.role is _HISTORY and run.log.contextual:
            start = undecided_start(run.source, len(run.source))
            decided = run.log.message_ends[start - 1] if start else 0
            if start < len(run.source) and decided < run.count:
                return first + decided
        first += run.count
    return first


def _role_after(segments: tuple[Segment, ...], index: int) -> str | None:
    """The role of the next message with content after a segment. After the conversation it is that
    of the reply, or of the dynamic context if that was moved there; the volatile tail is placed
    separately."""
    for following in segments[index + 1 :]:
        if segments[index].role is _HISTORY and following.role is not _DYNAMIC:
            break
        for message in following.messages:
            if has_content(message):
                return message.role
    return None
