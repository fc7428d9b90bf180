"""A Responses request cut into chunks from its own bytes.

Nothing is healed on the way: the order of keys, the spelling of numbers and strings stay what they
were, so that a cache is billed, and a miss explained, by what was really sent. Only breakpoints are
taken out (they become marks), and white space between the outermost fields of an item.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec

from anaphora.canonical import string
from anaphora.rendered import ChunkLog, ChunkRun, Envelope, Kind, LogAppend, Mark, Rendered
from anaphora.values import CachePolicy, Role, Section, SegmentRole, Ttl
from anaphora.wire.fields import Fields
from anaphora.wire.openai_cache import take_breakpoint
from anaphora.wire.reading import DECODE_ERRORS, Members, converts_errors, request_error
from anaphora.wire.seen import PARAMS, Cut, SeenSections
from anaphora.wire.talks import SeenTalks, placeholder_messages

from .content import WIRE
from .incoming import ROLES, raw_list
from .items import CLOSE_ITEM, CLOSED, glue, message_opening
from .request import AUTOMATIC, CLOSE_INPUT, INPUT, INSTRUCTIONS, MARKERS, TOOLS

_KINDS = {
    "input_text": Kind.TEXT,
    "output_text": Kind.TEXT,
    "refusal": Kind.TEXT,
    "input_image": Kind.IMAGE,
    "input_file": Kind.DOCUMENT,
    "input_audio": Kind.AUDIO,
    "function_call": Kind.TOOL_CALL,
    "function_call_output": Kind.TOOL_RESULT,
    "reasoning": Kind.THINKING,
}


class _Options(msgspec.Struct, frozen=True):
    mode: str | None = None
    ttl: str | None = None


class _Asked(msgspec.Struct, frozen=True):
    prompt_cache_options: _Options | None = None


class _Head(msgspec.Struct, frozen=True):
    type: str = "message"
    role: str = ""


_asked = msgspec.json.Decoder(_Asked).decode
_head = msgspec.json.Decoder(_Head).decode


class _Piece(msgspec.Struct, frozen=True):
    """A chunk to be: a content part, a tool's output, or a closed item."""

    kind: Kind
    data: bytes
    markable: bool = False
    marks: tuple[tuple[int | None, Ttl], ...] = ()
    """Where in `data` breakpoints stood; None for its very end."""


class _Item(msgspec.Struct, frozen=True):
    state: str
    """What the log ends inside behind it."""
    opening: bytes
    pieces: tuple[_Piece, ...]


@converts_errors(request_error)
def split(
    body: bytes | Members,
    headers: tuple[tuple[str, str], ...] = (),
    path: str = "",  # noqa: ARG001
) -> Rendered:
    """The request as chunks, with the breakpoints it carries as the caller's marks."""
    fields = Fields(body, "$", request_error)
    model = fields.take("model", str)
    options = _options(fields.look("prompt_cache_options"))
    ttl: Ttl = "12h" if options.ttl == "12h" else "30m"
    instructions, tools = fields.raw("instructions"), fields.raw("tools")
    items = _items(fields.raw("input"))
    runs: list[ChunkRun] = []
    marks: list[Mark] = []
    leads = instructions is None or instructions == b"null"
    if not leads:
        assert instructions is not None
        cut = _seen.get("instructions", instructions, _instructions)
        assert cut is not None
        runs.append(cut[0])
    elif len(items) > 1:
        leading = _item(items[0], "$.input[0]", ttl)
        if leading.state == "system" and _all_text(leading):
            runs.append(_system(leading, marks))
            del items[0]
    listed = _seen.get("tools", tools, _tools) if tools is not None else None
    if listed is not None:
        runs.append(listed[0])
    system = leads and bool(runs) and runs[0].section == "system"
    if items:
        first = sum(run.count for run in runs)
        runs.append(_messages(items, "system" if system else None, first, marks, ttl))
    rest = fields.rest()
    return Rendered(
        wire=WIRE,
        model=model,
        runs=tuple(runs),
        cacheable=sum(run.count for run in runs),
        envelope=Envelope(
            source=None,
            path="/v1/responses",
            headers=headers,
            head=b'{"model":' + string(model),
            tail=(b"," + rest if rest else b"") + b"}",
            cache_params=_cache_params(model, rest),
        ),
        body_order=(1, 0, *range(2, len(runs))) if system and listed else None,
        markers=MARKERS,
        request_markers=AUTOMATIC,
        marks=tuple(marks),
        automatic=None if options.mode == "explicit" else ttl,
    )


def _options(raw: bytes | None) -> _Options:
    if raw is None:
        return _Options()
    try:
        return _asked(b'{"prompt_cache_options":%b}' % raw).prompt_cache_options or _Options()
    except DECODE_ERRORS as problem:
        raise request_error(str(problem), "$.prompt_cache_options") from None


def _items(raw: bytes | None) -> list[msgspec.Raw]:
    if raw is None or raw == b"null":
        return []
    if raw[:1] == b'"':
        return [msgspec.Raw(raw)]
    return raw_list(raw, "$.input", request_error)


class _Usual(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message with nothing else in it, which most are."""

    role: msgspec.Raw
    content: msgspec.Raw


_usual = msgspec.json.Decoder(_Usual).decode
#: Roles as nearly everybody spells them.
_ROLES = {string(said): role for said, role in ROLES.items()}


def _usual_item(raw: msgspec.Raw) -> _Item | None:
    """An item that is nothing but somebody's text; None for any other."""
    try:
        usual = _usual(raw)
    except DECODE_ERRORS:
        return None
    said, content = bytes(usual.role), bytes(usual.content)
    role = _ROLES.get(said)
    if role is None or content[:1] != b'"':
        return None
    if role == "assistant":
        return _Item(CLOSED, b"", (_Piece(Kind.OTHER, bytes(raw)),))
    return _Item(role, b'{"role":%b,"content":[' % said, (_text(content),))


def _item(raw: msgspec.Raw, path: str, ttl: Ttl) -> _Item:
    usual = _usual_item(raw)
    if usual is not None:
        return usual
    if bytes(raw)[:1] == b'"':
        return _Item("user", message_opening("user"), (_text(bytes(raw)),))
    try:
        head = _head(raw)
    except DECODE_ERRORS as problem:
        raise request_error(str(problem), path) from None
    whole = _Item(CLOSED, b"", (_Piece(_KINDS.get(head.type, Kind.OTHER), bytes(raw)),))
    fields = Fields(raw, path, request_error)
    if head.type == "message" and head.role in ROLES:
        role, content = ROLES[head.role], fields.raw("content") or b"[]"
        is_text = content[:1] == b'"'
        if is_text and role == "assistant":
            return whole
        opening = b"{" + fields.rest() + b',"content":['
        if is_text:
            return _Item(role, opening, (_text(content),))
        listed = raw_list(content, f"{path}.content", request_error)
        pieces = tuple(
            _piece(part, f"{path}.content[{at}]", ttl, role) for at, part in enumerate(listed)
        )
        return _Item(role, opening, pieces) if pieces else whole
    output = fields.raw("output") if head.type == "function_call_output" else None
    if output is None:
        return whole
    return _Item("user", b"", (_output(fields.rest(), output, f"{path}.output", ttl),))


def _text(raw: bytes) -> _Piece:
    return _Piece(Kind.TEXT, b'{"type":"input_text","text":' + raw + b"}", raw != b'""')


def _piece(raw: msgspec.Raw, path: str, ttl: Ttl, role: Role) -> _Piece:
    """A content part without its breakpoint, byte for byte otherwise."""
    fields = Fields(raw, path, request_error)
    marks: tuple[tuple[int | None, Ttl], ...] = ()
    if "prompt_cache_breakpoint" in fields:
        marker = take_breakpoint(fields, WIRE)
        if marker is not None:
            marks = ((None, marker[0] or ttl),)
    # Written anew whether or not a marker was taken out: a part is the same with and without one.
    data = b"{" + fields.rest() + b"}"
    kind = fields.take("type", str)
    empty = kind == "input_text" and fields.maybe("text", str) == ""
    able = role != "assistant" and kind.startswith("input_") and not empty
    return _Piece(_KINDS.get(kind, Kind.OTHER), data, able, marks)


def _output(rest: bytes, raw: bytes, path: str, ttl: Ttl) -> _Piece:
    """A tool's output up to its closing brackets."""
    opening = b"{" + rest + b',"output":['
    if raw[:1] == b'"':
        text = _text(raw)
        return _Piece(Kind.TOOL_RESULT, opening + text.data, text.markable)
    listed = raw_list(raw, path, request_error)
    pieces = [_piece(part, f"{path}[{at}]", ttl, "tool") for at, part in enumerate(listed)]
    data = opening
    marks: list[tuple[int | None, Ttl]] = []
    for index, piece in enumerate(pieces):
        data += (b"," if index else b"") + piece.data
        last = index + 1 == len(pieces)
        marks += [(None if last else len(data) - 1, ttl) for _, ttl in piece.marks]
    return _Piece(Kind.TOOL_RESULT, data, bool(pieces) and pieces[-1].markable, tuple(marks))


_seen = SeenSections()
_talks = SeenTalks()


def _instructions(raw: bytes) -> Cut:
    run = _labelled("system", INSTRUCTIONS, [raw], ["instructions"], b"")
    return msgspec.structs.replace(run, place="instructions"), ()


def _tools(raw: bytes) -> Cut | None:
    listed = raw_list(raw, "$.tools", request_error) if raw != b"null" else []
    if not listed:
        return None
    names = [f"tool {_name(tool, index)}" for index, tool in enumerate(listed)]
    return _labelled("tools", TOOLS, [bytes(tool) for tool in listed], names, b"]"), ()


def _labelled(
    section: Section, lead: bytes, blocks: Sequence[bytes], labels: list[str], close: bytes
) -> ChunkRun:
    out = LogAppend()
    kind = Kind.TOOL if section == "tools" else Kind.SYSTEM
    for index, block in enumerate(blocks):
        out.chunk(kind, b"," + block if index else block, None)
    log = ChunkLog.of(out, labels, [CachePolicy.NONE] * len(labels))
    return ChunkRun(section, log, len(log), lead=lead, close=close, source=tuple(labels))


def _system(item: _Item, marks: list[Mark]) -> ChunkRun:
    out = LogAppend()
    for index, piece in enumerate(item.pieces):
        marks += [Mark(index, ttl) for _, ttl in piece.marks]
        data = b"," + piece.data if index else piece.data
        out.chunk(Kind.SYSTEM, data, -1 if piece.markable else None)
    labels = [f"system{index}" for index in range(len(item.pieces))]
    log = ChunkLog.of(out, labels, [CachePolicy.NONE] * len(labels))
    lead, place = INPUT + item.opening, "input[0].content"
    return ChunkRun("system", log, len(log), lead=lead, source=tuple(labels), place=place)


def _messages(
    items: Sequence[msgspec.Raw], behind: str | None, first: int, marks: list[Mark], ttl: Ttl
) -> ChunkRun:
    lead = INPUT if behind is None else glue(behind)
    talk = _talks.begin(items, (behind, ttl))
    out, state = talk.out, talk.last_role
    for index in range(talk.known, len(items)):
        item = _item(items[index], f"$.input[{index + (behind is not None)}]", ttl)
        placed: list[Mark] = []
        out.open(item.state)
        for at, piece in enumerate(item.pieces):
            before = b"," if at else glue(state) + item.opening
            chunk = talk.count
            offset = len(before) + (0 if chunk else len(lead))
            placed += [
                Mark(chunk, own, None if place is None else offset + place)
                for place, own in piece.marks
            ]
            out.chunk(piece.kind, before + piece.data, -1 if piece.markable else None)
        state = item.state
        talk.end_message(placed)
    log = talk.end()
    marks += talk.marks(first)
    return ChunkRun(
        "messages",
        log,
        talk.count,
        role=SegmentRole.CONVERSATION,
        lead=lead,
        close=(b"" if state == CLOSED else CLOSE_ITEM) + CLOSE_INPUT,
        source=placeholder_messages(len(items)),
        first_message=0 if behind is None else 1,
        place="input",
    )


def _all_text(item: _Item) -> bool:
    return all(piece.kind is Kind.TEXT for piece in item.pieces)


def _name(tool: msgspec.Raw, index: int) -> str:
    fields = Fields(tool, f"$.tools[{index}]", request_error)
    return fields.known("name", str) or fields.known("type", str) or str(index)


@functools.lru_cache(maxsize=PARAMS)
def _cache_params(model: str, rest: bytes) -> tuple[tuple[str, bytes], ...]:
    fields = Fields(b"{" + rest + b"}", "$", request_error)
    reasoning, text = fields.raw("reasoning"), fields.raw("text")
    found = [
        ("model", string(model)),
        ("tool_choice", fields.raw("tool_choice")),
        ("parallel_tools", fields.raw("parallel_tool_calls")),
        ("effort", _inside(reasoning, "effort")),
        ("verbosity", _inside(text, "verbosity")),
        ("output_format", _inside(text, "format")),
        ("service_tier", fields.raw("service_tier")),
        ("cache_key", fields.raw("prompt_cache_key")),
    ]
    return tuple((name, raw) for name, raw in found if raw is not None and raw != b"null")


def _inside(raw: bytes | None, name: str) -> bytes | None:
    return Fields(raw, "$", request_error).raw(name) if raw and raw[:1] == b"{" else None
