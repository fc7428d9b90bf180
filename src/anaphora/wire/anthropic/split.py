"""An Anthropic request cut into chunks from its own bytes.

Nothing is healed on the way: the order of keys, the spelling of numbers and strings stay what they
were, so that a cache is billed, and a miss explained, by what was really sent. Only markers are
taken out (they become marks), and white space between the outermost fields of a block.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.rendered import ChunkLog, ChunkRun, Envelope, Kind, LogAppend, Mark, Rendered
from anaphora.values import CachePolicy, Section, SegmentRole, Ttl
from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS, Members, converts_errors, request_error
from anaphora.wire.seen import PARAMS, Cut, SeenSections, elements_of
from anaphora.wire.talks import SeenTalks, placeholder_messages

from .blocks import MARKABLE_OPAQUE, WIRE
from .incoming import some_blocks, take_marker
from .messages import CLOSE, ROLES, OwnRole, glue, joins, opening
from .request import MARKERS

_KINDS = {
    "text": Kind.TEXT,
    "image": Kind.IMAGE,
    "document": Kind.DOCUMENT,
    "tool_use": Kind.TOOL_CALL,
    "tool_result": Kind.TOOL_RESULT,
    "thinking": Kind.THINKING,
    "redacted_thinking": Kind.THINKING,
}
_MARKABLE = {"text", "image", "document", "tool_use", "tool_result", *MARKABLE_OPAQUE}


@converts_errors(request_error)
def split(
    body: bytes | Members,
    headers: tuple[tuple[str, str], ...] = (),
    path: str = "",  # noqa: ARG001
) -> Rendered:
    """The request as chunks, with the markers it carries as the caller's marks."""
    fields = Fields(body, "$", request_error)
    model = fields.take("model", str)
    marks: list[Mark] = []
    runs: list[ChunkRun] = []
    count = 0
    for section, cut in _SECTIONS.items():
        raw = fields.raw(section)
        found = None if raw is None else _seen.get(section, raw, cut)
        if found is not None:
            run, held = found
            runs.append(run)
            marks += [Mark(count + mark.chunk, mark.ttl) for mark in held]
            count += run.count
    runs.append(_messages(fields, count, marks))
    automatic = take_marker(fields)
    rest = fields.rest()
    return Rendered(
        wire=WIRE,
        model=model,
        runs=tuple(runs),
        cacheable=count + runs[-1].count,
        envelope=Envelope(
            source=None,
            path="/v1/messages",
            headers=headers,
            head=b'{"model":' + string(model) + b",",
            tail=(b"," + rest if rest else b"") + b"}",
            cache_params=_cache_params(model, rest),
        ),
        markers=MARKERS,
        request_markers=MARKERS,
        marks=tuple(marks),
        automatic=automatic[0] if automatic is not None else None,
        binds_thinking=True,
    )


def _section(section: Section, raw: bytes) -> Cut | None:
    if raw == b"null":
        return None
    out = LogAppend()
    labels = []
    marks: list[Mark] = []
    kind = Kind.TOOL if section == "tools" else Kind.SYSTEM
    if raw[:1] == b'"' and section == "system":
        out.chunk(kind, b'{"type":"text","text":' + raw + b"}", -1)
        labels.append("system0")
    else:
        for index, block in enumerate(_list(raw, f"$.{section}")):
            data, ttl, fields = _unmarked(block, f"$.{section}[{index}]")
            name = fields.maybe("name", str) if section == "tools" else None
            labels.append(f"tool {name}" if name else f"{section}{index}")
            if ttl is not None:
                marks.append(Mark(index, ttl))
            out.chunk(kind, b"," + data if index else data, -1)
    if not out.pieces:
        return None
    log = ChunkLog.of(out, labels, [CachePolicy.NONE] * len(labels))
    lead = b'"%b":[' % section.encode()
    run = ChunkRun(section, log, len(log), lead=lead, close=b"],", source=tuple(labels))
    return run, tuple(marks)


_seen = SeenSections()
_SECTIONS: dict[Section, Callable[[bytes], Cut | None]] = {
    "tools": functools.partial(_section, "tools"),
    "system": functools.partial(_section, "system"),
}


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: str
    content: msgspec.Raw


_message = msgspec.json.Decoder(_Message).decode
_talks = SeenTalks()


def _messages(fields: Fields, first: int, marks: list[Mark]) -> ChunkRun:
    messages = elements_of("messages", fields.raw("messages") or b"[]")
    talk = _talks.begin(messages)
    out, last_role = talk.out, talk.last_role
    for index in range(talk.known, len(messages)):
        message = _read_message(messages[index], index)
        role = message.role
        lead_in, opens = glue(role, last_role), not joins(role, last_role)
        placed: list[Mark] = []
        for data, kind, splice, ttl, inner in _content(bytes(message.content), index):
            if opens:
                out.open(role)
                last_role, opens = role, False
            if inner:
                chunk = talk.count
                lead = len(lead_in) if chunk else len(b'"messages":[' + opening(role))
                placed += [Mark(chunk, t, lead + at) for at, t in inner]
            if ttl is not None:
                placed.append(Mark(talk.count, ttl))
            out.chunk(kind, lead_in + data, splice)
            lead_in = b","
        talk.end_message(placed)
    if not talk.count:
        raise InvalidRequest("at least one message that says something", path="$.messages")
    log = talk.end()
    marks += talk.marks(first)
    return ChunkRun(
        "messages",
        log,
        talk.count,
        role=SegmentRole.CONVERSATION,
        lead=b'"messages":[' + opening(log.roles[0]),
        close=CLOSE,
        source=placeholder_messages(len(messages)),
    )


def _read_message(raw: msgspec.Raw, index: int) -> _Message:
    try:
        message = _message(raw)
    except msgspec.DecodeError:
        message = _with_fields(Fields(raw, f"$.messages[{index}]", request_error))
    if message.role not in ROLES:
        raise request_error(f"{message.role!r} is not a role here", f"$.messages[{index}].role")
    return message


def _with_fields(fields: Fields) -> _Message:
    """A message that has fields of its own."""
    role, content = fields.take("role", str), fields.raw("content")
    if content is None:
        raise fields.fail("is missing", "content")
    fields.drop_nulls()
    rest = fields.rest()
    return _Message(OwnRole(role, rest) if rest else role, msgspec.Raw(content))


_Cut = tuple[bytes, Kind, int | None, Ttl | None, list[tuple[int, Ttl]]]


def _content(raw: bytes, message: int) -> list[_Cut]:
    """Each block: its bytes, kind, splice, marker, and the markers of blocks inside it."""
    if raw[:1] == b'"':
        return [(b'{"type":"text","text":' + raw + b"}", Kind.TEXT, -1, None, [])]
    path = f"$.messages[{message}].content"
    cut: list[_Cut] = []
    for index, block in enumerate(_list(raw, path)):
        here = f"{path}[{index}]"
        data, ttl, fields = _unmarked(block, here)
        kind = fields.take("type", str)
        inner: list[tuple[int, Ttl]] = []
        if kind == "tool_result":
            data, inner = _result(data, here)
        blank = kind == "text" and not fields.known_text("text").strip()
        splice = -1 if kind in _MARKABLE and not blank else None
        cut.append((data, _KINDS.get(kind, Kind.OTHER), splice, ttl, inner))
    return cut


def _result(data: bytes, path: str) -> tuple[bytes, list[tuple[int, Ttl]]]:
    """A tool result whose inner blocks carry no markers any more, and where those stood."""
    fields = Fields(data, path, request_error)
    content = fields.look("content")
    if content is None or content[:1] != b"[":
        return data, []
    blocks, marks = [], []
    for index, block in enumerate(_list(content, f"{path}.content")):
        bare, ttl, _ = _unmarked(block, f"{path}.content[{index}]")
        blocks.append(bare)
        if ttl is not None:
            marks.append((index, ttl))
    opening = b"{" + fields.before("content") + b"["
    ends = [len(opening + b",".join(blocks[: index + 1])) - 1 for index, _ in marks]
    fields.put("content", b"[" + b",".join(blocks) + b"]")
    whole = b"{" + fields.rest() + b"}"
    return whole, [(end, ttl) for end, (_, ttl) in zip(ends, marks, strict=True)]


def _unmarked(block: msgspec.Raw, path: str) -> tuple[bytes, Ttl | None, Fields]:
    """A block without its marker, byte for byte otherwise; the marker; and the fields."""
    fields = Fields(block, path, request_error)
    if "cache_control" not in fields:
        # Written as with a marker taken out: a block is the same with and without one.
        return b"{" + fields.rest() + b"}", None, fields
    marker = take_marker(fields)
    data = b"{" + fields.rest() + b"}"
    return data, marker[0] if marker is not None else None, fields


def _list(raw: bytes, path: str) -> list[msgspec.Raw]:
    try:
        return some_blocks(raw)
    except DECODE_ERRORS as problem:
        raise request_error(f"expected a list: {problem}", path) from None


@functools.lru_cache(maxsize=PARAMS)
def _cache_params(model: str, rest: bytes) -> tuple[tuple[str, bytes], ...]:
    fields = Fields(b"{" + rest + b"}", "$", request_error)
    output = fields.nested("output_config")
    found = [
        ("model", string(model)),
        *((name, fields.raw(name)) for name in ("tool_choice", "thinking", "speed")),
    ]
    if output is not None:
        found += [("effort", output.raw("effort")), ("output_format", output.raw("format"))]
    return tuple((name, raw) for name, raw in found if raw is not None and raw != b"null")
