"""Renders a call as a Responses request: system text, tools and input, in hash order.

A message's content stays open: the chunks of its parts follow each other, and the next item closes
it. The same holds for the output of a tool. Calls, reasoning and opaque items are closed, one chunk
each. So the glue before a chunk depends only on the state before it, and messages are never merged,
which makes appending cheap and exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from anaphora.canonical import dumps, string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import BlockMark, Call, MarkRequest, PromptBlock, PromptIR, Segment
from anaphora.rendered import ChunkLog, ChunkRun, Kind, LogAppend, Rendered
from anaphora.values import (
    CachePolicy,
    Conversation,
    Message,
    Notice,
    Opaque,
    Part,
    Role,
    SegmentRole,
    Text,
    Tool,
    ToolCall,
    ToolResult,
)
from anaphora.wire.markers import BEFORE_BRACE, ONLY_MARKS
from anaphora.wire.marks import (
    NEAREST,
    Marking,
    MarkLocation,
    MarkPlace,
    MarkPlaces,
    key_slot,
    locate,
    no_breakpoints,
    options_free,
    policy_notices,
)
from anaphora.wire.openai import SystemPlace, block_log, place_of, tool_log
from anaphora.wire.parts import (
    encode_at,
    following,
    merged,
    note_foreign_fields,
    notices_below,
    own_members,
    system_blocks_of,
    unknown_role,
)
from anaphora.wire.rendering import (
    cacheable_count,
    finish_rendering,
    section_run,
    usable_previous,
    without_foreign_tools,
)
from anaphora.wire.runs import UNFINISHED_REASONING, ReasoningFollowed, message_runs

from .fields import APP_ITEMS
from .items import (
    CLOSED,
    Notices,
    Piece,
    begins_item,
    encode_part,
    is_content,
    is_easy,
    message_opening,
    output_parts,
    text_part,
)
from .params import Traits, automatic_ttl, continues, envelope, traits_of
from .types import AUTOMATIC, ITEM, MARKERS, MEMO, STRICT_KEY, WIRE

TOOLS = b',"tools":['
INPUT = b',"input":['
INSTRUCTIONS = b',"instructions":'

_ROLES: dict[str, Role] = {
    "user": "user",
    "tool": "user",
    "assistant": "assistant",
    "system": "system",
}


def render(call: Call, profile: Profile, previous: Rendered | None = None) -> Rendered:
    """The whole prompt as chunks, unmarked. The chunks that a stored response holds are among them,
    and are left out of the body.

    With the rendering of an earlier turn in `previous`, only the difference is rendered; the result
    is the same either way.
    """
    blocks = system_blocks_of(call, profile)
    place = place_of(blocks)
    # JSON mode requires that a message mentions JSON.
    in_message = "message" if call.params.output == "json" else None
    traits = traits_of(profile, place.slot or in_message)
    previous = usable_previous(previous, WIRE, call.model)
    if previous is not None and previous.envelope.source[0] != traits:
        previous = None
    last = previous.envelope if previous is not None else None
    request = envelope(call, profile, traits, place, last)
    tools, foreign = without_foreign_tools(call.tools, ("openai", WIRE))
    system = _system_run(call.ir, blocks, place, traits, previous)
    listed = []
    if tools:
        log = partial(tool_log, encode=_tool_definition)
        listed.append(section_run("tools", tools, log, previous, MEMO, lead=TOOLS, close=b"]"))
    held, sent, notices = _messages(call, traits, previous, bool(system))
    leads = traits.system_slot == "message"
    if leads and system and not held and not sent:
        system = [msgspec.structs.replace(system[0], close=close("system"))]
    # A system message is hashed before the tools, sent after them, and may be held already.
    before = [*listed, *([] if held else system)] if leads else [*system, *listed]
    others = traits.as_sent or (call.extras is not None and WIRE in call.extras)
    if not sent and not (leads and system) and not others:
        # A stored prompt or conversation, which is in the extras, may be all there is.
        raise InvalidRequest("OpenAI needs at least one message with content", path="ir")
    runs = [*system, *listed, *held, *sent]
    unsent = [*(system if leads else []), *held] if held else []
    # Messages sent after a stored response are part of it next turn, joined differently.
    fresh = sent[0] if sent and continues(call) and not profile.as_sent else None
    body = [*before, *sent]
    if traits.explicit:
        notices += policy_notices(call.tools, blocks, NEAREST)
    refusal = "" if traits.explicit else no_breakpoints(call)
    places = MarkPlaces(partial(_mark_places, traits=traits), refusal=refusal, held=unsent)
    slot = traits.system_slot
    locate_mark = partial(_locate, call=call, profile=profile, runs=runs, places=places, slot=slot)
    return finish_rendering(
        call,
        profile,
        request,
        runs,
        Marking(MARKERS if traits.explicit else {}, NEAREST, locate_mark, MARKERS),
        wire=WIRE,
        cacheable=cacheable_count(runs, previous, call.ir.cache.messages, fresh),
        notices=(*foreign, *notices),
        body_order=None if body == runs else tuple(map(runs.index, body)),
        request_markers=AUTOMATIC if traits.explicit or traits.as_sent else {},
        key_place=key_slot(call),
        only_marks=ONLY_MARKS if traits.explicit and options_free(call) else None,
        automatic=automatic_ttl(call, traits),
    )


def _locate(
    mark: MarkRequest,
    call: Call,
    profile: Profile,
    runs: list[ChunkRun],
    places: MarkPlaces,
    slot: str,
) -> MarkLocation:
    explicit = not places.refusal or profile.as_sent
    if isinstance(mark, BlockMark) and explicit and slot != "message":
        return "instructions cannot carry a breakpoint"
    return locate(mark, call, profile, runs, places)


def _system_run(
    ir: PromptIR,
    blocks: tuple[PromptBlock, ...],
    came_from: SystemPlace,
    traits: Traits,
    previous: Rendered | None,
) -> list[ChunkRun]:
    source: Any = blocks
    if traits.system_slot == "message":
        nearest = NEAREST if traits.explicit else None
        render: Callable[[Any], ChunkLog] = partial(block_log, encode=text_part, nearest=nearest)
        # The fields of the message itself, if it was read from a request.
        role = traits.system_roles.write(came_from)
        fields = following(own_members(blocks[0].extras, ITEM)) if blocks else b""
        lead, place = INPUT + message_opening(role, fields), "input[0].content"
    else:
        source, render = ir.system_field(), _instruction_log
        if traits.as_sent:
            source = blocks[0].text if blocks else ""
        elif came_from.slot is None or not source.strip():
            source = source.strip()
        lead, place = INSTRUCTIONS, "instructions"
    if not source:
        return []
    run = section_run(
        "system",
        source,
        render,
        previous,
        MEMO,
        lead=lead,
        close=b"",
        place=place,
        variant=traits.explicit,
    )
    return [run]


def _instruction_log(text: str) -> ChunkLog:
    append = LogAppend()
    append.chunk(Kind.SYSTEM, string(text), None)
    return ChunkLog.of(append, ["instructions"], [CachePolicy.NONE])


def _tool_definition(tool: Tool, members: bytes) -> bytes:
    left_out = tool.strict is None and STRICT_KEY in (tool.extras or {})
    strict = b"" if left_out else b',"strict":' + dumps(tool.strict)
    definition = b'{"type":"function",%b%b}' % (members, strict)
    return merged(definition, tool.extras, WIRE)


# ── Messages ──────────────────────────────────────────────────────────────────────────────────────


def glue(state: str | None) -> bytes:
    """The bytes between the end of a log in that state and the next item."""
    if state is None:
        return b""
    return b"," if state == CLOSED else b"]},"


def close(state: str) -> bytes:
    """The end of the input after a log in that state."""
    return b"]" if state == CLOSED else b"]}]"


def _messages(
    call: Call, traits: Traits, previous: Rendered | None, system: bool
) -> tuple[list[ChunkRun], list[ChunkRun], Notices]:
    """One run per segment: those that a stored response holds, and those that are sent."""
    after_system = system and traits.system_slot == "message"

    def joined(
        segments: Sequence[Segment], previous: Rendered | None, after_system: bool
    ) -> tuple[list[ChunkRun], Notices]:
        return message_runs(
            segments,
            previous,
            lambda segment: partial(add_messages, where=segment.role.value, traits=traits),
            opening=glue("system") if after_system else INPUT,
            glue=glue,
            close=close,
            first_message=1 if after_system else 0,
            place="input",
        )

    if traits.as_sent or not continues(call):
        return [], *joined(call.ir.body_runs(), previous, after_system)
    known, new = _continued(call.ir)
    held, notices = joined(known, previous, after_system)
    # The bytes that are sent begin an input of their own, so they share nothing with the held ones.
    sent, more = joined(new, None, after_system and not held)
    return held, sent, notices + more


def _continued(ir: PromptIR) -> tuple[list[Segment], list[Segment]]:
    """The segments that the stored response holds, and those it has not seen. If the message it
    ended with is unknown, it is taken to hold nothing."""
    delta, conversation = ir.continuation_delta(), ir.run(SegmentRole.CONVERSATION)
    remainder = len(ir.run(SegmentRole.SYSTEM_REMAINDER))
    dynamic = remainder + len(ir.run(SegmentRole.DYNAMIC_CONTEXT))
    tail = len(delta) - len(ir.run(SegmentRole.VOLATILE_TAIL))
    ranges = (
        (SegmentRole.SYSTEM_REMAINDER, 0, remainder),
        (SegmentRole.DYNAMIC_CONTEXT, remainder, dynamic),
        (SegmentRole.CONVERSATION, dynamic, tail),
        (SegmentRole.VOLATILE_TAIL, tail, len(delta)),
    )
    new = [Segment(role, Conversation(delta[a:b])) for role, a, b in ranges if a < b]
    known = len(conversation) - (tail - dynamic)
    if not known:
        return [], new
    stable = Segment(SegmentRole.STABLE_PREFIX, ir.run(SegmentRole.STABLE_PREFIX))
    return [stable, Segment(SegmentRole.CONVERSATION, conversation.prefix(known))], new


def add_messages(
    append: LogAppend, messages: Sequence[Message], state: str | None, where: str, traits: Traits
) -> None:
    """Appends the chunks of these messages. `state` is the role of the open item before them,
    `CLOSED`, or None at the beginning of a log."""
    splice = BEFORE_BRACE if traits.explicit else None
    followed = ReasoningFollowed(messages, _follows)
    for index, message in enumerate(messages):
        place = f"{where}[{append.message}]"
        notices: Notices = []
        pieces = encode_at(place, lay_out, message, notices, traits, partial(followed, index))
        for piece in pieces:
            data = b"," + piece.data
            if piece.state is not None:
                data = glue(state) + piece.data
                state = piece.state
            append.chunk(piece.kind, data, splice if piece.markable else None, piece.state)
        for notice in notices:
            append.notice(notice)
        note_foreign_fields(append, message, WIRE, place)
        append.end_message(message.id)


def lay_out(
    message: Message, notices: Notices, traits: Traits, followed: Callable[[int], bool]
) -> list[Piece]:
    """The chunks of a message. `followed` tells whether the reasoning at a position is followed by
    an item of the model."""
    role = _ROLES.get(message.role)
    if role is None:
        raise unknown_role(message.role)
    name: str = role
    if role == "system":
        place = place_of(message.parts)
        name = traits.system_roles.write(place)
        notices += traits.system_roles.notices(place, "role")
    pieces: list[Piece] = []
    inside = False
    for position, part in enumerate(message.parts):
        path = f"parts[{position}]"
        easy = is_easy(message, position, inside)
        piece = encode_at(path, encode_part, part, notices, role, easy)
        if piece is None:
            continue
        if piece.kind is Kind.THINKING and not traits.as_sent and not followed(position):
            notices += notices_below((UNFINISHED_REASONING,), path)
            continue
        if not piece.in_message:
            inside = False
        elif inside and not begins_item(part):
            piece = piece._replace(state=None)
        else:
            fields = b""
            if begins_item(part) and not isinstance(part, Opaque):
                fields = encode_at(path, _item_fields, part, notices)
            piece = piece._replace(data=message_opening(name, fields) + piece.data)
            inside = True
        pieces.append(piece)
    if not message.parts:
        notices.append(Notice("empty_message", "a message without parts is left out"))
    return pieces


def _item_fields(part: Text, _: Notices) -> bytes:
    return following(own_members(part.extras, ITEM))


def _follows(part: Part, role: Role) -> bool | None:
    """Whether a part is an item of the model, in a message of any role; None if it is not sent."""
    always_sent = isinstance(part, Text | ToolCall | ToolResult)
    try:
        if not always_sent and not _is_sent(part, _ROLES.get(role, "user")):
            return None
    except InvalidRequest:
        pass  # raised again when it is rendered, with its path
    if isinstance(part, Opaque) and not is_content(part.kind):
        return part.kind not in APP_ITEMS or part.kind == "item_reference"
    return isinstance(part, ToolCall) or (role == "assistant" and not isinstance(part, ToolResult))


def _is_sent(part: Part, role: Role) -> bool:
    return encode_part(part, [], role, False) is not None


def _mark_places(message: Message, traits: Traits) -> Iterator[MarkPlace]:
    pieces = lay_out(message, [], traits, lambda _: True)
    sent = [i for i, part in enumerate(message.parts) if _is_sent(part, message.role)]
    for chunk, (piece, position) in enumerate(zip(pieces, sent, strict=True)):
        part, after = message.parts[position], 0
        for index, data, markable in reversed(output_parts(part, [])):
            if not markable and not traits.as_sent:
                pass
            elif after or not piece.markable:
                yield MarkPlace((position, index), chunk, after + 1)
            else:
                yield MarkPlace((position, index), chunk)
            after += len(data) + len(b",")
        yield MarkPlace((position,), chunk)
