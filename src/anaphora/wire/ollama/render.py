"""Renders a call as a request to Ollama: system, tools and messages as chunks.

In the body the tools come first, and the system message leads the list of messages; its blocks are
one text, each a chunk of it. Every other message is one chunk with a comma before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from anaphora.canonical import string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, PromptBlock, PromptIR, Segment
from anaphora.rendered import ChunkLog, ChunkRun, Kind, LogAppend, Rendered
from anaphora.values import AnyTool, CachePolicy, Message, Notice, SegmentRole, Thinking, Tool
from anaphora.wire.message_runs import message_runs
from anaphora.wire.openai import body_order, tool_log
from anaphora.wire.parts import extra_members, inner_and_outer
from anaphora.wire.rendering import (
    AddMessages,
    cacheable_count,
    finish_rendering,
    section_run,
    usable_previous,
    without_foreign_tools,
)

from . import params
from .messages import add_messages
from .types import MEMO, WIRE

MESSAGES = b'"messages":['
TOOLS = b'"tools":['
CLOSE_TOOLS = b"],"
SYSTEM = b'{"role":"system","content":"'
#: The end of the system message, and of the list of messages.
CLOSE_SYSTEM = b'"}'
CLOSE = b"]"


def render(call: Call, profile: Profile, previous: Rendered | None = None) -> Rendered:
    """The whole prompt as chunks; none of them takes a marker.

    With the rendering of the turn before in `previous`, only what was added is rendered; the result
    is the same either way. `previous` may also be an older turn, another branch, or another
    conversation: equal messages are shared.
    """
    previous = usable_previous(previous, WIRE, call.model)
    tools, foreign = without_foreign_tools(call.tools, (WIRE,))
    blocks = _system_blocks(call.ir)
    messages, notices = message_runs(
        call.ir.body_runs(),
        previous,
        _adder,
        opening=CLOSE_SYSTEM + b"," if blocks else MESSAGES,
        glue=lambda _: b",",
        close=lambda _: CLOSE,
        first_message=1 if blocks else 0,
    )
    empty = not blocks and not messages
    if empty and call.ir.body_runs():
        reason = "all messages are empty; without any, the model is only loaded"
        raise InvalidRequest(reason, path="ir")
    last = previous.envelope if previous is not None else None
    envelope = params.envelope(call, profile, last, empty=empty)
    runs: list[ChunkRun] = []
    if blocks:
        run = section_run(
            "system",
            blocks,
            _system_log,
            previous,
            MEMO,
            lead=MESSAGES + SYSTEM,
            close=b"" if messages else CLOSE_SYSTEM + CLOSE,
            place="messages[0].content",
        )
        runs.append(run)
    if tools:
        run = section_run("tools", tools, _tool_log, previous, MEMO, lead=TOOLS, close=CLOSE_TOOLS)
        runs.append(run)
    runs += messages
    return finish_rendering(
        call,
        profile,
        envelope,
        runs,
        wire=WIRE,
        cacheable=cacheable_count(runs, previous, call.ir.cache.messages),
        markers={},
        nearest={},
        locate=lambda _: "Ollama takes no markers; it caches by itself",
        notices=[
            *foreign,
            *_left_out(tools, blocks),
            *notices,
            *_stripped_thinking(call.ir, profile),
        ],
        body_order=body_order(runs),
    )


def _left_out(tools: tuple[AnyTool, ...], blocks: tuple[PromptBlock, ...]) -> Iterator[Notice]:
    for index, tool in enumerate(tools):
        if isinstance(tool, Tool) and tool.strict:
            why = "Ollama has no strict functions"
            yield Notice("strict_left_out", why, f"tools[{index}].strict")
    for index, block in enumerate(blocks):
        if extra_members(block.extras, WIRE):
            yield Notice("fields_left_out", "a block is only text here", f"system[{index}]")


def _adder(segment: Segment) -> AddMessages:
    def add(append: LogAppend, messages: Sequence[Message], last_role: str | None) -> None:
        add_messages(append, messages, last_role, segment.role.value, segment.messages)

    return add


def _stripped_thinking(ir: PromptIR, profile: Profile) -> list[Notice]:
    """A notice if the volatile tail makes the template drop thinking. Templates drop thinking
    before the last user message; inside a tool loop a volatile tail is that message, and the
    thinking of the loop is lost."""
    if not profile.strips_thinking.value or ir.state_position != "tail":
        return []
    tail, conversation = ir.run(SegmentRole.VOLATILE_TAIL), ir.run(SegmentRole.CONVERSATION)
    if not any(message.role == "user" for message in tail):
        return []
    index = len(conversation) - 1
    while index >= 0 and conversation[index].role == "tool":
        index -= 1
    if index in (-1, len(conversation) - 1):
        return []
    parts = conversation[index].parts
    if not any(isinstance(part, Thinking) and part.provider == WIRE for part in parts):
        return []
    why = "after a tool result, a user message makes this model drop its earlier thinking"
    return [Notice("state_strips_thinking", why, SegmentRole.VOLATILE_TAIL.value)]


# ── System ───────────────────────────────────────────────────────────────────────────────────────


def _system_blocks(ir: PromptIR) -> tuple[PromptBlock, ...]:
    """The blocks of the system text. If `system_text` differs from them, it is sent: the wire has
    only one text."""
    if ir.system_fields_agree():
        return ir.system_field_blocks()
    text = ir.system_field()
    return (PromptBlock("system", text),) if text.strip() else ()


def _system_log(blocks: tuple[PromptBlock, ...]) -> ChunkLog:
    """The blocks joined by a blank line, as pieces of one JSON string."""
    append = LogAppend()
    for index, block in enumerate(blocks):
        try:
            text = string(block.text)[1:-1]
        except InvalidRequest as problem:
            raise problem.within(f"system[{index}]") from None
        append.chunk(Kind.SYSTEM, b"\\n\\n" + text if index else text, None)
    labels = [block.label for block in blocks]
    return ChunkLog.of(append, labels, [CachePolicy.NONE] * len(labels))


# ── Tools ────────────────────────────────────────────────────────────────────────────────────────


def _tool_definition(tool: Tool, members: bytes) -> bytes:
    inner, outer = inner_and_outer(tool.extras, WIRE, "function")
    return b'{"type":"function","function":{%b%b}%b}' % (members, inner, outer)


_tool_log = partial(tool_log, encode=_tool_definition)
