"""Renders a call as a Chat Completions request: system, tools and messages, in hash order.

In the body the tools come first, and the system message leads the list of messages.

Every source message begins a new message. One whose content is a list stays open after its last
part; the assistant's is a single chunk and closed, like one whose content is a string (its role is
a `RoleOf`). So the glue before a chunk depends only on the role before it, which makes
appending cheap and exact.

If a model takes marks, content that they may reach is a list at every turn. Elsewhere a lone text
is a string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from anaphora.canonical import dumps, string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, PromptBlock
from anaphora.rendered import ChunkRun, Kind, LogAppend, Rendered
from anaphora.values import (
    Message,
    Notice,
    Part,
    Tool,
    ToolCall,
    ToolResult,
    Ttl,
)
from anaphora.wire.markers import BEFORE_BRACE, ONLY_MARKS
from anaphora.wire.marks import (
    Marking,
    MarkPlace,
    MarkPlaces,
    key_slot,
    locate,
    no_breakpoints,
    options_free,
    policy_notices,
)
from anaphora.wire.openai import (
    block_log,
    body_order,
    joined_log,
    message_members,
    place_of,
    tool_log,
)
from anaphora.wire.parts import (
    encode_at,
    following,
    leading_results,
    merged,
    note_foreign_fields,
    own_members,
    system_blocks_of,
    unknown_role,
)
from anaphora.wire.reading import encode_members
from anaphora.wire.rendering import (
    cacheable_count,
    finish_rendering,
    section_run,
    usable_previous,
    without_foreign_tools,
)
from anaphora.wire.runs import RoleOf, message_runs

from .messages import (
    Notices,
    assistant_message,
    content_of,
    encode_part,
    is_fields,
    message_fields,
    text_part,
)
from .params import Traits, envelope, traits_of
from .types import (
    AUTOMATIC,
    LEGACY,
    LISTED,
    MARKERS,
    MEMO,
    WIRE,
    has_form,
)

# Looked up once: access to an enum member is slow.
_TEXT, _CALL, _RESULT = Kind.TEXT, Kind.TOOL_CALL, Kind.TOOL_RESULT


def render(
    call: Call,
    profile: Profile,
    previous: Rendered | None = None,
    markers: Mapping[Ttl, bytes] | None = None,
) -> Rendered:
    """The whole prompt as chunks, unmarked.

    With the rendering of an earlier turn in `previous`, only the difference is rendered; the result
    is the same either way. `markers` are those of a dialect.
    """
    traits = traits_of(profile, markers)
    previous = _of_same_traits(usable_previous(previous, WIRE, call.model), traits)
    request = envelope(call, profile, traits, previous.envelope if previous is not None else None)
    tools, foreign = without_foreign_tools(call.tools, (WIRE,))
    blocks = system_blocks_of(call, profile)
    before = _role_of_system(blocks, traits)
    messages, notices = message_runs(
        call.ir.body_runs(),
        previous,
        lambda segment: partial(add_messages, where=segment.role.value, traits=traits),
        opening=glue(before) if blocks else b'"messages":[',
        glue=glue,
        close=close,
        first_message=1 if blocks else 0,
    )
    runs: list[ChunkRun] = []
    if blocks:
        end = b"" if messages else close(before)
        runs.append(_system_run(blocks, traits, previous, before, end))
    if tools:
        log, lead = partial(tool_log, encode=_tool_definition), b'"tools":['
        runs.append(section_run("tools", tools, log, previous, MEMO, lead=lead, close=b"],"))
    if not blocks and not messages:
        raise InvalidRequest("OpenAI needs at least one message with content", path="ir")
    runs += messages
    automatic = traits.options or (traits.as_sent and markers is None)
    refusal = "" if traits.breakpoints else no_breakpoints(call)
    places = MarkPlaces(partial(mark_places, traits=traits), refusal=refusal)
    locate_mark = partial(locate, call=call, profile=profile, runs=runs, places=places)
    of_wire = MARKERS if markers is None else markers
    return finish_rendering(
        call,
        profile,
        request,
        runs,
        Marking(traits.markers, traits.nearest, locate_mark, of_wire),
        wire=WIRE,
        cacheable=cacheable_count(runs, previous, call.ir.cache.messages),
        notices=(*foreign, *_section_notices(call, blocks, traits), *notices),
        body_order=body_order(runs),
        request_markers=AUTOMATIC if automatic else {},
        key_place=key_slot(call),
        only_marks=ONLY_MARKS if traits.options and options_free(call) else None,
        automatic="30m" if automatic and call.ir.cache.mode != "explicit" else None,
    )


def _of_same_traits(previous: Rendered | None, traits: Traits) -> Rendered | None:
    return None if previous is None or previous.envelope.source[0] != traits else previous


def _role_of_system(blocks: tuple[PromptBlock, ...], traits: Traits) -> str:
    """The role of the system message, with its end if its content is a string."""
    role = traits.system_roles.default
    is_text = traits.only_strings or (len(blocks) == 1 and not traits.breakpoints)
    listed = traits.as_sent and any(has_form(block.extras, LISTED) for block in blocks)
    if is_text and not listed and not any(own_members(block.extras, WIRE) for block in blocks):
        return RoleOf(role, end=b'"}')
    return role


def _system_run(
    blocks: tuple[PromptBlock, ...],
    traits: Traits,
    previous: Rendered | None,
    before: str,
    end: bytes,
) -> ChunkRun:
    nearest = traits.nearest if traits.breakpoints else None
    joined = isinstance(before, RoleOf)
    role = traits.system_roles.write(place_of(blocks)).encode()
    members = message_members(blocks)
    fields = encode_members(members)[1:-1] + b"," if members else b""
    return section_run(
        "system",
        blocks,
        joined_log if joined else lambda blocks: block_log(blocks, text_part, nearest),
        previous,
        MEMO,
        lead=b'"messages":[{"role":"%b",%b"content":%b' % (role, fields, b'"' if joined else b"["),
        close=end,
        place="messages[0].content",
        variant=(joined, *traits.markers),
    )


def _tool_definition(tool: Tool, members: bytes) -> bytes:
    strict = b"" if tool.strict is None else b',"strict":' + dumps(tool.strict)
    definition = b'{"type":"function","function":{%b%b}}' % (members, strict)
    return merged(definition, tool.extras, WIRE)


def _section_notices(call: Call, blocks: Sequence[PromptBlock], traits: Traits) -> Notices:
    notices = traits.system_roles.notices(place_of(blocks), "system")
    if not traits.breakpoints:
        return notices  # these models cache by themselves: no policy is lost
    return notices + policy_notices(call.tools, blocks, traits.nearest)


# ── Messages ─────────────────────────────────────────────────────────────────────────────────────


class Piece(NamedTuple):
    """A chunk of a message, and the path of its part."""

    path: tuple[int, ...]
    kind: Kind
    data: bytes
    markable: bool
    role: str
    opening: bytes | None
    """The beginning of its message on the wire; None inside one that has begun."""


#: One object for each: logs of prompts hold the role of every message.
_ENDED = {one: RoleOf(one) for one in ("user", "assistant", "system", "developer", "tool")}


def ended(role: str) -> RoleOf:
    """The role of a message whose content is a string, all of which is written."""
    return _ENDED.get(role) or RoleOf(role)


def _end(role: str) -> bytes:
    if isinstance(role, RoleOf):
        return role.end
    return b"" if role == "assistant" else b"]}"


def glue(role: str | None) -> bytes:
    """The bytes between a message of that role and the next."""
    return b"" if role is None else _end(role) + b","


def close(role: str) -> bytes:
    """The end of the list of messages after one of that role."""
    return _end(role) + b"]"


def add_messages(
    append: LogAppend, messages: Sequence[Message], role: str | None, where: str, traits: Traits
) -> None:
    """Appends the chunks of these messages. `role` is the wire role before them; None at the
    beginning of a log, whose first chunk has no glue."""
    splice = BEFORE_BRACE if traits.breakpoints else None
    for message in messages:
        notices: Notices = []
        place = f"{where}[{append.message}]"
        for piece in encode_at(place, lay_out, message, notices, traits):
            data, opens = b"," + piece.data, None
            if piece.opening is not None:
                data = glue(role) + piece.opening + piece.data
                role = opens = piece.role
            append.chunk(piece.kind, data, splice if piece.markable else None, opens)
        for notice in notices:
            append.notice(notice)
        note_foreign_fields(append, message, WIRE, place)
        append.end_message(message.id)


def lay_out(message: Message, notices: Notices, traits: Traits) -> list[Piece]:
    """The chunks of a message in wire order."""
    if message.role == "assistant":
        data = assistant_message(message, traits, notices)
        kind = _CALL if ToolCall in map(type, message.parts) else _TEXT
        pieces = [] if data is None else [Piece((), kind, data, False, "assistant", b"")]
    elif message.role == "system":
        place = place_of(message.parts)
        notices += traits.system_roles.notices(place, "role")
        pieces = _content_pieces(message, traits.system_roles.write(place), notices, traits)
    elif message.role in ("user", "tool"):
        has_results = ToolResult in map(type, message.parts)
        pieces = _result_pieces(message, notices, traits) if has_results else []
        pieces += _content_pieces(message, "user", notices, traits)
    else:
        raise unknown_role(message.role)
    if not pieces and not notices:
        notices.append(Notice("empty_message", "a message without content is left out"))
    return pieces


def mark_places(message: Message, traits: Traits) -> list[MarkPlace]:
    return [MarkPlace(piece.path, at) for at, piece in enumerate(lay_out(message, [], traits))]


def _result_pieces(message: Message, notices: Notices, traits: Traits) -> list[Piece]:
    """The tool results, each a message of its own, before the other parts."""
    pieces: list[Piece] = []
    for index, part in leading_results(message.parts, is_fields, notices):
        result = encode_at(f"parts[{index}]", _result, part, notices, traits.as_sent)
        result = [piece._replace(path=(index, *piece.path)) for piece in result]
        listed = traits.breakpoints or (traits.as_sent and not isinstance(part.content, str))
        pieces += result if listed else _with_string(result, traits)
    return pieces


def _result(part: ToolResult, notices: Notices, as_sent: bool) -> list[Piece]:
    if part.error:
        why = "Chat has no flag for a failed tool; only its text is sent"
        notices.append(Notice("error_flag_left_out", why, "error"))
    fields = following(own_members(part.extras, WIRE))
    opening: bytes | None
    if as_sent and has_form(part.extras, LEGACY):
        name = string(part.name or "") + fields
        opening = b'{"role":"function","name":%b,"content":[' % name
    else:
        call_id = string(part.call_id) + fields
        opening = b'{"role":"tool","tool_call_id":%b,"content":[' % call_id
    content = part.content
    if isinstance(content, str):
        return [Piece((0,), _RESULT, text_part(content), bool(content), "tool", opening)]
    pieces: list[Piece] = []
    for index, inner in enumerate(content):
        path = f"content[{index}]"
        _, markable, data = encode_at(path, encode_part, inner, notices, "tool")
        if data is not None:
            pieces.append(Piece((index,), _RESULT, data, markable, "tool", opening))
            opening = None
    # The call must be answered, even if no part of the result can be sent.
    return pieces or [Piece((0,), _RESULT, text_part(""), False, "tool", opening)]


def _with_string(pieces: list[Piece], traits: Traits, parts: Sequence[Part] = ()) -> list[Piece]:
    """The message with a string as its content, if it may have one."""
    content = content_of([piece.data for piece in pieces], traits, parts)
    if not pieces or content.startswith(b"["):
        return pieces
    piece, opening = pieces[0], pieces[0].opening or b""
    data, role = content + b"}", ended(piece.role)
    return [piece._replace(data=data, role=role, opening=opening.removesuffix(b"["))]


def _content_pieces(message: Message, role: str, notices: Notices, traits: Traits) -> list[Piece]:
    """A message with content, one chunk per part."""
    fields = message_fields(message.parts)
    more = b"," + fields if fields else b""
    opening: bytes | None = b'{"role":"%b"%b,"content":[' % (role.encode(), more)
    pieces: list[Piece] = []
    for index, part in enumerate(message.parts):
        if is_fields(part) or (isinstance(part, ToolResult) and role == "user"):
            continue
        path = f"parts[{index}]"
        kind, markable, data = encode_at(path, encode_part, part, notices, role)
        if data is not None:
            pieces.append(Piece((index,), kind, data, markable, role, opening))
            opening = None
    if fields and not pieces:
        notices.append(Notice("fields_left_out", "fields of a message without content"))
    return pieces if traits.breakpoints else _with_string(pieces, traits, message.parts)
