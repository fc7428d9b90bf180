"""A Chat Completions request cut into chunks from its own bytes.

Nothing is healed on the way: the order of keys, the spelling of numbers and strings stay what they
were, so that a cache is billed, and a miss explained, by what was really sent. Only breakpoints are
taken out (they become marks), and white space between the outermost fields of a part or message.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.rendered import ChunkLog, ChunkRun, Envelope, Kind, LogAppend, Mark, Rendered
from anaphora.values import CachePolicy, SegmentRole, Ttl
from anaphora.wire.fields import Fields
from anaphora.wire.openai_cache import take_breakpoint
from anaphora.wire.reading import DECODE_ERRORS, Members, converts_errors, request_error
from anaphora.wire.seen import PARAMS, Cut, SeenSections, elements_of
from anaphora.wire.talks import SeenTalks, placeholder_messages

from .facts import MARKERS
from .messages import BEFORE_BRACE, close, glue
from .params import PATH
from .parts import MARKABLE_OPAQUE, WIRE

_KINDS = {
    "text": Kind.TEXT,
    "image_url": Kind.IMAGE,
    "file": Kind.DOCUMENT,
    "input_audio": Kind.AUDIO,
}
_MARKABLE = {"text", *MARKABLE_OPAQUE}
_CACHE_PARAMS = {
    "tool_choice": "tool_choice",
    "parallel_tool_calls": "parallel_tools",
    "reasoning_effort": "effort",
    "verbosity": "verbosity",
    "response_format": "output_format",
    "service_tier": "service_tier",
    "prompt_cache_key": "cache_key",
}

_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


#: A dialect's markers, read.
_Markers = dict[Ttl, dict[str, Any]]


class _Cut(msgspec.Struct):
    """One part, without its breakpoint."""

    data: bytes
    kind: Kind
    markable: bool
    ttl: Ttl | None


@converts_errors(request_error)
def split(
    body: bytes | Members,
    headers: tuple[tuple[str, str], ...] = (),
    path: str = "",  # noqa: ARG001
    markers: Mapping[Ttl, bytes] | None = None,
) -> Rendered:
    """The request as chunks, with the breakpoints it carries as the caller's marks. `markers` are
    those of a dialect."""
    fields = Fields(body, "$", request_error)
    model = fields.take("model", str)
    marks: list[Mark] = []
    messages: list[msgspec.Raw] = fields.maybe("messages", list[msgspec.Raw]) or []
    runs: list[ChunkRun] = []
    system = _system(messages[0], marks, markers) if messages else None
    if system is not None:
        runs.append(system)
    tools = _seen.get("tools", fields.raw("tools") or b"null", _tools)
    if tools is not None:
        runs.append(tools[0])
    begun = sum(run.count for run in runs)
    rest_of = messages[1:] if system is not None else messages
    conversation = _messages(rest_of, system, begun, marks, markers)
    if conversation is not None:
        runs.append(conversation)
    elif system is not None:
        runs[0] = msgspec.structs.replace(system, close=close("system"))
    else:
        raise InvalidRequest("at least one message that says something", path="$.messages")
    rest = fields.rest()
    return Rendered(
        wire=WIRE,
        model=model,
        runs=tuple(runs),
        cacheable=sum(run.count for run in runs),
        envelope=Envelope(
            source=None,
            path=PATH,
            headers=headers,
            head=b'{"model":' + string(model) + b",",
            tail=(b"," + rest if rest else b"") + b"}",
            cache_params=_cache_params(model, rest),
        ),
        body_order=(1, 0, *range(2, len(runs))) if system is not None and tools else None,
        markers=MARKERS if markers is None else markers,
        marks=tuple(marks),
    )


_seen = SeenSections()
_talks = SeenTalks()


def _system(
    raw: msgspec.Raw, marks: list[Mark], markers: Mapping[Ttl, bytes] | None
) -> ChunkRun | None:
    """The first message, when it is a system message that says something."""
    # Read in another dialect, the same message may be another one.
    own = "" if markers is None else repr(markers)
    cut = _seen.get(f"system{own}", bytes(raw), lambda raw: _cut_system(raw, markers))
    if cut is None:
        return None
    marks += cut[1]
    return cut[0]


def _cut_system(raw: bytes, markers: Mapping[Ttl, bytes] | None) -> Cut | None:
    own = None if markers is None else _read_markers(markers)
    marks: list[Mark] = []
    fields = Fields(raw, "$.messages[0]", request_error)
    role = fields.maybe("role", str)
    if role not in ("system", "developer"):
        return None
    cuts = _content(fields, own)
    if not cuts:
        return None
    out = LogAppend()
    for index, cut in enumerate(cuts):
        if cut.ttl is not None:
            marks.append(Mark(index, cut.ttl))
        data = b"," + cut.data if index else cut.data
        out.chunk(Kind.SYSTEM, data, BEFORE_BRACE if cut.markable else None)
    labels = [f"system{index}" for index in range(len(cuts))]
    log = ChunkLog.of(out, labels, [CachePolicy.NONE] * len(labels))
    lead = b'"messages":[' + _opening(role, fields)
    place = "messages[0].content"
    run = ChunkRun("system", log, len(log), lead=lead, source=tuple(labels), place=place)
    return run, tuple(marks)


def _tools(listed: bytes) -> Cut | None:
    tools = elements_of("tools", listed)
    if not tools:
        return None
    out = LogAppend()
    labels = []
    for index, raw in enumerate(tools):
        path = f"$.tools[{index}]"
        fields = Fields(raw, path, request_error)
        function = fields.nested("function")
        name = function.maybe("name", str) if function is not None else None
        labels.append(f"tool {name}" if name else f"tools{index}")
        out.chunk(Kind.TOOL, b"," + bytes(raw) if index else bytes(raw), None)
    log = ChunkLog.of(out, labels, [CachePolicy.NONE] * len(labels))
    return ChunkRun(
        "tools", log, len(log), lead=b'"tools":[', close=b"],", source=tuple(labels)
    ), ()


def _messages(
    messages: list[msgspec.Raw],
    system: ChunkRun | None,
    begun: int,
    marks: list[Mark],
    markers: Mapping[Ttl, bytes] | None,
) -> ChunkRun | None:
    own = None if markers is None else _read_markers(markers)
    # Read in another dialect, the same message may be another one.
    talk = _talks.begin(messages, None if markers is None else repr(markers))
    out, last_role = talk.out, talk.last_role
    first = int(system is not None)
    for index in range(talk.known, len(messages)):
        raw = messages[index]
        usual = _usual_text(raw)
        if usual is not None:
            role, data, markable = usual
            out.open(role)
            kind = Kind.TOOL_RESULT if role == "tool" else Kind.TEXT
            out.chunk(kind, glue(last_role) + data, BEFORE_BRACE if markable else None)
            talk.end_message()
            last_role = role
            continue
        fields = Fields(raw, f"$.messages[{index + first}]", request_error)
        role = fields.take("role", str)
        placed: list[Mark] = []
        if role == "assistant":
            kind = Kind.TOOL_CALL if "tool_calls" in fields else Kind.TEXT
            out.open(role)
            out.chunk(kind, glue(last_role) + bytes(raw), None)
            last_role = role
        else:
            for at, cut in enumerate(cuts := _content(fields, own)):
                if at == 0:
                    out.open(role)
                    data = glue(last_role) + _opening(role, fields) + cut.data
                else:
                    data = b"," + cut.data
                if cut.ttl is not None:
                    placed.append(Mark(talk.count, cut.ttl))
                kind = Kind.TOOL_RESULT if role == "tool" else cut.kind
                out.chunk(kind, data, BEFORE_BRACE if cut.markable else None)
            last_role = role if cuts else last_role
        talk.end_message(placed)
    if not talk.count or last_role is None:
        return None
    log = talk.end()
    marks += talk.marks(begun)
    return ChunkRun(
        "messages",
        log,
        talk.count,
        role=SegmentRole.CONVERSATION,
        lead=b'"messages":[' if system is None else glue("system"),
        close=close(last_role),
        source=placeholder_messages(len(messages)),
        first_message=first,
    )


class _Usual(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message with nothing else in it, which most are."""

    role: str
    content: msgspec.Raw


_usual = msgspec.json.Decoder(_Usual).decode


def _usual_text(raw: msgspec.Raw) -> tuple[str, bytes, bool] | None:
    """Role, bytes, and whether a breakpoint may stand there, of a message that is nothing but a
    text; None for any other."""
    try:
        usual = _usual(raw)
    except DECODE_ERRORS:
        return None
    role, content = usual.role, bytes(usual.content)
    if content[:1] != b'"':
        return None
    if role == "assistant":
        return role, bytes(raw), False
    opening = b'{"role":%b,"content":[{"type":"text","text":%b}' % (string(role), content)
    return role, opening, content != b'""'


def _opening(role: str, fields: Fields) -> bytes:
    rest = fields.rest()
    return b'{"role":' + string(role) + (b"," + rest if rest else b"") + b',"content":['


def _content(fields: Fields, own: _Markers | None) -> list[_Cut]:
    """The parts of a message's content, which is crossed off."""
    raw = fields.raw("content")
    path = f"{fields.path}.content"
    if raw is None or raw == b"null":
        return []
    if raw[:1] == b'"':
        return [_Cut(b'{"type":"text","text":' + raw + b"}", Kind.TEXT, raw != b'""', None)]
    try:
        parts = _list(raw)
    except DECODE_ERRORS as problem:
        raise request_error(f"expected text or a list of parts: {problem}", path) from None
    return [_cut(part, f"{path}[{index}]", own) for index, part in enumerate(parts)]


def _cut(part: msgspec.Raw, path: str, own: _Markers | None) -> _Cut:
    """A part without its breakpoint, byte for byte otherwise."""
    fields = Fields(part, path, request_error)
    ttl = None
    if own is not None:
        ttl = _own_marker(fields, own)
    elif "prompt_cache_breakpoint" in fields:
        marker = take_breakpoint(fields, WIRE)
        if marker is not None:
            ttl = marker[0] or "30m"
    # Written anew whether or not a marker was taken out: a part is the same with and without one.
    data = b"{" + fields.rest() + b"}"
    kind = fields.take("type", str)
    empty = kind == "text" and fields.maybe("text", str) == ""
    markable = ttl is not None or (kind in _MARKABLE and not empty)
    return _Cut(data, _KINDS.get(kind, Kind.OTHER), markable, ttl)


def _read_markers(markers: Mapping[Ttl, bytes]) -> _Markers:
    return {ttl: msgspec.json.decode(b"{" + said[1:] + b"}") for ttl, said in markers.items()}


def _own_marker(fields: Fields, own: _Markers) -> Ttl | None:
    """The lifetime of a dialect's marker, which is taken out of the part."""
    for ttl, marker in own.items():
        if all(fields.peek(name) == said for name, said in marker.items()):
            for name in marker:
                fields.raw(name)
            return ttl
    return None


@functools.lru_cache(maxsize=PARAMS)
def _cache_params(model: str, rest: bytes) -> tuple[tuple[str, bytes], ...]:
    fields = Fields(b"{" + rest + b"}", "$", request_error)
    found = [(param, fields.raw(name)) for name, param in _CACHE_PARAMS.items()]
    told = [(param, raw) for param, raw in found if raw is not None and raw != b"null"]
    return (("model", string(model)), *told)
