"""A call as an Anthropic Messages request: tools, system and messages, as they are hashed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from anaphora.canonical import check_object, dumps, string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, PromptBlock, PromptCachePlan, Segment
from anaphora.rendered import ChunkLog, ChunkRun, LogAppend, Rendered
from anaphora.values import (
    AnyTool,
    Conversation,
    Message,
    Notice,
    ProviderTool,
    Section,
    SegmentRole,
    Ttl,
)
from anaphora.wire.foreign import foreign_sections
from anaphora.wire.markers import message_ttl, nearest_ttls, resolve_marks, supported_ttl
from anaphora.wire.rendering import (
    cacheable_count,
    extend_log,
    previous_run,
    render_items,
    usable_previous,
    without_foreign_tools,
)
from anaphora.wire.shared import SharedLogs

from . import params
from .blocks import WIRE, closing, text_block
from .marks import locate
from .messages import CLOSE, Around, add_messages, answered, glue, joins, opening, says
from .state import place_tail

MARKERS: dict[Ttl, bytes] = {
    "5m": b',"cache_control":{"type":"ephemeral"}',
    "1h": b',"cache_control":{"type":"ephemeral","ttl":"1h"}',
}

#: The lifetime each one asked for gets here: long enough, where there is one.
NEAREST: dict[Ttl, Ttl] = {"5m": "5m", "30m": "1h", "1h": "1h", "12h": "1h", "24h": "1h"}

NO_MARKERS = "this provider takes no markers"

# Looked up once: a member of an enum is found slowly, and every turn asks.
_TAIL = SegmentRole.VOLATILE_TAIL
_DYNAMIC = SegmentRole.DYNAMIC_CONTEXT
_HISTORY = SegmentRole.CONVERSATION

_shared = SharedLogs()

T = TypeVar("T")


def render(
    call: Call,
    profile: Profile,
    previous: Rendered | None = None,
    markers: Mapping[Ttl, bytes] | None = None,
) -> Rendered:
    """The whole prompt as chunks, unmarked.

    With the rendering of the turn before in `previous`, only what was added is rendered; the
    result is the same either way. `previous` may also be an older turn, another branch, or
    another conversation: what agrees is shared. `markers` are those of a dialect.
    """
    own = markers is None
    markers = MARKERS if markers is None else markers
    nearest = NEAREST if own or not markers else nearest_ttls(markers)
    previous = usable_previous(previous, WIRE, call.model)
    envelope = params.envelope(call, profile, previous.envelope if previous is not None else None)
    runs: list[ChunkRun] = []
    tools, foreign = without_foreign_tools(call.tools, (WIRE,))
    if tools:
        runs.append(_section("tools", tools, _tools, previous))
    if blocks := call.ir.system_field_blocks():
        runs.append(_section("system", blocks, _system, previous))
    messages, notices = _messages(call, profile, previous)
    runs += messages
    plan = call.ir.cache
    marks, frozen, unmarked = resolve_marks(
        plan,
        runs,
        nearest,
        lambda asked: locate(asked, call.ir, tools, runs, profile) if markers else NO_MARKERS,
    )
    automatic = _automatic(plan, nearest, own, unmarked)
    return Rendered(
        wire=WIRE,
        model=call.model,
        runs=tuple(runs),
        cacheable=min(cacheable_count(runs, previous, plan.messages), _settled(runs)),
        envelope=envelope,
        markers=markers,
        request_markers=markers if own else {},
        marks=marks,
        automatic=automatic,
        frozen=frozen,
        binds_thinking=True,
        messages_cacheable=plan.messages,
        message_ttl=message_ttl(plan, nearest, unmarked) if markers else None,
        bytes_per_token=profile.bytes_per_token.value,
        notices=(
            *envelope.notices,
            *foreign,
            *foreign_sections(call, WIRE),
            *notices,
            *unmarked,
        ),
    )


def _automatic(
    plan: PromptCachePlan, nearest: Mapping[Ttl, Ttl], own: bool, notices: list[Notice]
) -> Ttl | None:
    """The TTL of the breakpoint that Anthropic places by itself; no other provider is known to. In
    explicit mode there is none: the lifetime is that of the caller's own breakpoints."""
    if plan.automatic is None or plan.mode == "explicit":
        return None
    if own:
        return supported_ttl(plan.automatic, nearest, "cache.automatic", notices)
    why = "this provider places no breakpoint by itself; left out"
    notices.append(Notice("cache_option_left_out", why, "cache.automatic"))
    return None


def _section(
    section: Section, source: T, render: Callable[[T], ChunkLog], previous: Rendered | None
) -> ChunkRun:
    last = previous_run(previous, section)
    log = _shared.get(source, last, render)
    if last is not None and last.log is log:
        return last
    lead = b'"%b":[' % section.encode()
    return ChunkRun(section, log, len(log), lead=lead, close=b"],", source=source)


def _tools(tools: tuple[AnyTool, ...]) -> ChunkLog:
    blocks = render_items("tools", tools, _tool, -1)
    return ChunkLog.of(blocks, [f"tool {tool.name}" for tool in tools], [t.cache for t in tools])


def _system(blocks: tuple[PromptBlock, ...]) -> ChunkLog:
    texts = render_items("system", blocks, lambda block: text_block(block.text, block.extras), -1)
    return ChunkLog.of(texts, [block.label for block in blocks], [b.cache for b in blocks])


def _tool(tool: AnyTool) -> bytes:
    if isinstance(tool, ProviderTool):
        return check_object(tool.json, path="json").encode()
    description = b',"description":' + string(tool.description) if tool.description else b""
    schema = check_object(tool.schema, path="schema").encode()
    strict = b"" if tool.strict is None else b',"strict":' + dumps(tool.strict)
    name = b'{"name":' + string(tool.name)
    return name + description + b',"input_schema":' + schema + strict + closing(tool.extras)


def _messages(
    call: Call, profile: Profile, previous: Rendered | None
) -> tuple[list[ChunkRun], list[Notice]]:
    """One run a segment, glued to the one before it."""
    segments = call.ir.body_runs()
    final = len(segments) - 1
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
                close=CLOSE if index == final else b"",
                source=segment.messages,
                first_message=message,
                first_block=block,
                before=before,
                after=after,
            )
            runs.append(run)
    if not runs:
        raise InvalidRequest("Anthropic needs at least one message that says something", path="ir")
    if not runs[-1].close:  # the last segment said nothing
        runs[-1] = msgspec.structs.replace(runs[-1], close=CLOSE)
    return runs, notices


def _joint(last: ChunkRun | None, before: str | None, role: str) -> tuple[bytes, int, int]:
    """The glue between two runs, and where the second begins: message on the wire, block in it."""
    if last is None:
        return b'"messages":[' + opening(role), 0, 0
    message, block = last.position(last.count - 1)
    if joins(role, before):
        return b",", message, block + 1
    return glue(role, before), message + 1, 0


def _segment_log(
    segment: Segment, profile: Profile, last: ChunkRun | None, before: str | None, after: str | None
) -> tuple[ChunkLog, int]:
    messages = segment.messages

    def add(to: LogAppend, new: Sequence[Message], last_role: str | None) -> None:
        around = Around(segment.role.value, before, after, profile)
        add_messages(to, new, last_role, around)

    shared = 0
    if last is not None:
        shared = messages.common_prefix(last.source, ids=True)
        if last.log.contextual:
            shared = _unmoved(messages, shared, last, before, after)
    return extend_log(messages, last, shared, add)


def _settled(runs: list[ChunkRun]) -> int:
    """The chunks before a system message that ends the conversation: until the assistant answers
    it, what follows may still change its role."""
    first = 0
    for run in runs:
        if run.role is _HISTORY and run.log.contextual:
            start = _undecided(run.source, len(run.source))
            decided = run.log.message_ends[start - 1] if start else 0
            if start < len(run.source) and decided < run.count:
                return first + decided
        first += run.count
    return first


def _undecided(messages: Conversation, end: int) -> int:
    """Back over system messages, and those that say nothing, to where their role is decided."""
    while end and (messages[end - 1].role == "system" or not says(messages[end - 1])):
        end -= 1
    return end


def _unmoved(
    messages: Conversation, shared: int, last: ChunkRun, before: str | None, after: str | None
) -> int:
    """How many of the shared messages may keep their bytes: the role of a system message depends
    on what stands around it."""
    if (last.before, last.after) != (before, after):
        return 0
    start = _undecided(messages, shared)
    same = answered(messages, start, after) == answered(last.source, start, after)
    return shared if same else start


def _role_after(segments: tuple[Segment, ...], index: int) -> str | None:
    """Who speaks after a segment. After the conversation it is the answer to come, or the dynamic
    context that was moved behind it; the volatile tail takes care of itself."""
    if index + 1 == len(segments):
        return None
    following = segments[index + 1]
    if segments[index].role is _HISTORY and following.role is not _DYNAMIC:
        return None
    return following.messages[0].role
