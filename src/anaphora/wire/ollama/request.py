"""A call as a request to Ollama: system, tools and messages, as they are hashed.

In the body the tools stand first, and the system message leads the list of messages. The system
blocks are one text, each of them a chunk of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anaphora.canonical import string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, PromptBlock, PromptIR, Segment
from anaphora.rendered import ChunkLog, ChunkRun, Kind, LogAppend, Rendered
from anaphora.values import (
    AnyTool,
    CachePolicy,
    Message,
    Notice,
    SegmentRole,
    Thinking,
)
from anaphora.wire.foreign import foreign_sections
from anaphora.wire.markers import resolve_marks
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
from .carried import WIRE, extra_members
from .messages import add_messages
from .tools import tool_definition, unsaid

MESSAGES = b'"messages":['
TOOLS = b'"tools":['
SYSTEM = b'{"role":"system","content":"'
#: What ends the system message, and the list.
CLOSE_SYSTEM = b'"}'
CLOSE = b"]"

_NO_MARKS = "Ollama takes no markers; it caches by itself"

_tool_logs = SharedLogs()
_system_logs = SharedLogs()


def render(call: Call, profile: Profile, previous: Rendered | None = None) -> Rendered:
    """The whole prompt as chunks; none of them takes a marker.

    With the rendering of the turn before in `previous`, only what was added is rendered; the
    result is the same either way. `previous` may also be an older turn, another branch, or
    another conversation: what agrees is shared.
    """
    previous = usable_previous(previous, WIRE, call.model)
    tools, foreign = without_foreign_tools(call.tools, (WIRE,))
    blocks = _system_blocks(call.ir)
    messages, notices = _messages(call.ir, previous, after_system=bool(blocks))
    system = _system(blocks, previous, alone=not messages)
    if not system and not messages and call.ir.body_runs():
        raise InvalidRequest("no message says anything; without any, a model is loaded", path="ir")
    envelope = params.envelope(
        call,
        profile,
        previous.envelope if previous is not None else None,
        empty=not system and not messages,
    )
    runs = [*system, *_tools(tools, previous), *messages]
    marks, frozen, unmarked = resolve_marks(call.ir.cache, runs, {}, lambda _: _NO_MARKS)
    return Rendered(
        wire=WIRE,
        model=call.model,
        runs=tuple(runs),
        cacheable=cacheable_count(runs, previous, call.ir.cache.messages),
        envelope=envelope,
        body_order=body_order(runs),
        markers={},
        marks=marks,
        frozen=frozen,
        messages_cacheable=call.ir.cache.messages,
        bytes_per_token=profile.bytes_per_token.value,
        notices=(
            *envelope.notices,
            *foreign,
            *foreign_sections(call, WIRE),
            *unsaid(tools),
            *_fields_of(blocks),
            *notices,
            *_stripped(call.ir, profile),
            *unmarked,
        ),
    )


def body_order(runs: Sequence[ChunkRun]) -> tuple[int, ...] | None:
    """Tools before the system message, which stands in the list of messages."""
    if [run.section for run in runs[:2]] != ["system", "tools"]:
        return None
    return (1, 0, *range(2, len(runs)))


def _system_blocks(ir: PromptIR) -> tuple[PromptBlock, ...]:
    """The blocks of the system text. Where `system_text` says something else than they do, it is
    the one to send: there is one text on the wire."""
    if ir.system_fields_agree():
        return ir.system_field_blocks()
    text = ir.system_field()
    return (PromptBlock("system", text),) if text.strip() else ()


def _system(
    blocks: tuple[PromptBlock, ...], previous: Rendered | None, *, alone: bool
) -> list[ChunkRun]:
    if not blocks:
        return []
    log = _system_logs.get(blocks, previous_run(previous, "system"), _system_log)
    close = CLOSE_SYSTEM + CLOSE if alone else b""
    place = "messages[0].content"
    lead = MESSAGES + SYSTEM
    return [ChunkRun("system", log, len(log), lead=lead, close=close, source=blocks, place=place)]


def _system_log(blocks: tuple[PromptBlock, ...]) -> ChunkLog:
    """The blocks joined by a blank line, as pieces of one JSON string."""
    out = LogAppend()
    for index, block in enumerate(blocks):
        try:
            text = string(block.text)[1:-1]
        except InvalidRequest as problem:
            raise problem.within(f"system[{index}]") from None
        out.chunk(Kind.SYSTEM, b"\\n\\n" + text if index else text, None)
    labels = [block.label for block in blocks]
    return ChunkLog.of(out, labels, [CachePolicy.NONE] * len(labels))


def _fields_of(blocks: tuple[PromptBlock, ...]) -> list[Notice]:
    return [
        Notice("fields_left_out", "a block is only text here", f"system[{index}]")
        for index, block in enumerate(blocks)
        if extra_members(block.extras)
    ]


def _tools(tools: tuple[AnyTool, ...], previous: Rendered | None) -> list[ChunkRun]:
    if not tools:
        return []
    log = _tool_logs.get(tools, previous_run(previous, "tools"), _tool_log)
    return [ChunkRun("tools", log, len(log), lead=TOOLS, close=b"],", source=tools)]


def _tool_log(tools: tuple[AnyTool, ...]) -> ChunkLog:
    said = render_items("tools", tools, tool_definition, None)
    return ChunkLog.of(said, [f"tool {t.name}" for t in tools], [CachePolicy.NONE] * len(tools))


def _messages(
    ir: PromptIR, previous: Rendered | None, *, after_system: bool
) -> tuple[list[ChunkRun], list[Notice]]:
    """One run a segment, behind the one before it; and what could not be said in them."""
    runs: list[ChunkRun] = []
    notices: list[Notice] = []
    for segment in ir.body_runs():
        log, count = _segment_log(segment, previous_run(previous, "messages", segment.role))
        notices += [notice for at, notice in log.notices if at < len(segment.messages)]
        if not count:
            continue
        if runs:
            lead, first = b",", runs[-1].position(runs[-1].count - 1)[0] + 1
        else:
            lead, first = (CLOSE_SYSTEM + b"," if after_system else MESSAGES), int(after_system)
        runs.append(
            ChunkRun(
                "messages",
                log,
                count,
                role=segment.role,
                lead=lead,
                source=segment.messages,
                first_message=first,
            )
        )
    if runs:
        runs[-1] = msgspec.structs.replace(runs[-1], close=CLOSE)
    return runs, notices


def _segment_log(segment: Segment, last: ChunkRun | None) -> tuple[ChunkLog, int]:
    where, messages = segment.role.value, segment.messages

    def add(to: LogAppend, new: Sequence[Message], last_role: str | None) -> None:
        add_messages(to, new, last_role, where, messages)

    shared = messages.common_prefix(last.source, ids=True) if last is not None else 0
    return extend_log(messages, last, shared, add)


def _stripped(ir: PromptIR, profile: Profile) -> list[Notice]:
    """Templates drop thinking that stands before the last user message. Inside a tool loop a
    volatile tail is that message, and what the model thought in the loop is gone."""
    tail = ir.run(SegmentRole.VOLATILE_TAIL)
    if not profile.strips_thinking.value or ir.state_position != "tail":
        return []
    if not any(message.role == "user" for message in tail):
        return []
    talk = ir.run(SegmentRole.CONVERSATION)
    at = len(talk) - 1
    while at >= 0 and talk[at].role == "tool":
        at -= 1
    if at in (-1, len(talk) - 1):
        return []
    if not any(isinstance(part, Thinking) and part.provider == WIRE for part in talk[at].parts):
        return []
    why = "behind a tool result, a user's message makes this model drop its earlier thinking"
    return [Notice("state_strips_thinking", why, SegmentRole.VOLATILE_TAIL.value)]
