"""A generateContent request cut into chunks from its own bytes.

Nothing is healed on the way: the order of keys, the spelling of numbers and strings inside a part,
a tool or a declaration stay what they were, so that a cache is billed, and a miss explained, by
what was really sent.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.rendered import ChunkLog, ChunkRun, Envelope, Kind, LogAppend, Rendered
from anaphora.values import CachePolicy, SegmentRole
from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS, Members, converts_errors, request_error
from anaphora.wire.seen import Cut, SeenSections
from anaphora.wire.talks import SeenTalks, placeholder_messages

from .address import model_id, path_of, read_path
from .messages import CLOSE, GLUE
from .naming import WIRE, camel, elements, named
from .params import cache_params, frozen_with
from .request import CONTENTS, SYSTEM, SYSTEM_CLOSE, TOOLS
from .tools import close, glue, paths

_KINDS = {
    "text": Kind.TEXT,
    "functionCall": Kind.TOOL_CALL,
    "functionResponse": Kind.TOOL_RESULT,
}
_MEDIA = {"image/": Kind.IMAGE, "audio/": Kind.AUDIO}


@converts_errors(request_error)
def split(
    body: bytes | Members, headers: tuple[tuple[str, str], ...] = (), path: str = ""
) -> Rendered:
    """The request as chunks. The path names the model."""
    model, stream = read_path(path)
    fields = named(body, "$", request_error)
    model = model or model_id(fields.maybe("model", str) or "")
    fields.raw("model")
    runs = [
        *_section(fields, "systemInstruction", _system),
        *_section(fields, "tools", _tools),
        _contents(elements(fields, "contents")),
    ]
    config = fields.raw("toolConfig")
    members = fields.left()
    if config is not None and config != b"null":
        members = {"toolConfig": config, **members}
    envelope = Envelope(
        source=None,
        path=path_of(model, stream=stream) if model else path,
        headers=headers,
        head=b"{",
        tail=b"".join(b"," + string(name) + b":" + raw for name, raw in members.items()) + b"}",
        cache_params=cache_params(model, members),
    )
    return Rendered(
        wire=WIRE,
        model=model,
        runs=tuple(runs),
        cacheable=sum(run.count for run in runs),
        envelope=envelope,
        markers={},
        frozen_with=frozen_with(envelope),
    )


_seen = SeenSections()
_talks = SeenTalks()


def _section(fields: Fields, name: str, cut: Callable[[bytes], Cut | None]) -> list[ChunkRun]:
    raw = fields.raw(name)
    found = None if raw is None or raw == b"null" else _seen.get(name, raw, cut)
    return [] if found is None else [found[0]]


def _system(raw: bytes) -> Cut | None:
    content = named(raw, "$.systemInstruction", request_error)
    parts = elements(content, "parts")
    if not parts:
        return None
    out = LogAppend()
    for index, part in enumerate(parts):
        out.chunk(Kind.SYSTEM, b"," + bytes(part) if index else bytes(part), None)
    labels = [f"system{index}" for index in range(len(parts))]
    log = ChunkLog.of(out, labels, [CachePolicy.NONE] * len(labels))
    place = "systemInstruction.parts"
    run = ChunkRun(
        "system",
        log,
        len(log),
        lead=SYSTEM,
        close=SYSTEM_CLOSE,
        source=tuple(labels),
        place=place,
    )
    return run, ()


def _tools(listed: bytes) -> Cut | None:
    """A chunk for each declaration where an object holds nothing else, and else for each object."""
    raws = elements(Fields(b'{"tools":' + listed + b"}", "$", request_error), "tools")
    if not raws:
        return None
    out = LogAppend()
    labels: list[str] = []
    kinds: list[bool] = []
    begun: list[int] = []
    before = False
    for index, raw in enumerate(raws):
        fields = named(raw, f"$.tools[{index}]", request_error)
        functions = elements(fields, "functionDeclarations")
        alone = bool(functions) and not fields.rest()
        begun.append(len(kinds))
        for at, said in enumerate(functions if alone else [raw]):
            joined = glue(not labels, before and at > 0, alone)
            if before and at == 0:
                # Functions of a second object stand in an object of their own again.
                joined = b"]}," + glue(True, False, alone)
            out.chunk(Kind.TOOL, joined + bytes(said), None)
            labels.append(_label(said, alone, len(labels)))
            kinds.append(alone)
            before = alone
    log = ChunkLog.of(out, labels, [CachePolicy.NONE] * len(labels))
    run = ChunkRun(
        "tools",
        log,
        len(log),
        lead=TOOLS,
        close=close(before),
        source=tuple(labels),
        paths=paths(kinds, tuple(begun)),
    )
    return run, ()


def _label(raw: msgspec.Raw, function: bool, index: int) -> str:
    fields = Fields(raw, "$.tools", request_error)
    if function:
        return f"tool {fields.known_text('name') or index}"
    names = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    return f"tool {camel(next(iter(names), str(index)))}"


def _contents(raws: list[msgspec.Raw]) -> ChunkRun:
    talk = _talks.begin(raws)
    out = talk.out
    for index in range(talk.known, len(raws)):
        role, opening, parts = _content(raws[index], index)
        for at, part in enumerate(parts):
            data = bytes(part)
            if at == 0:
                data = (GLUE if talk.count else b"") + opening + data
                out.open(role)
            else:
                data = b"," + data
            text = _is_text(part)
            kind = Kind.TEXT if text else _kind(part, f"$.contents[{index}].parts[{at}]")
            out.chunk(kind, data, None)
        talk.end_message()
    if not talk.count:
        raise InvalidRequest("at least one content that says something", path="$.contents")
    return ChunkRun(
        "messages",
        talk.end(),
        talk.count,
        role=SegmentRole.CONVERSATION,
        lead=CONTENTS,
        close=CLOSE,
        source=placeholder_messages(len(raws)),
        place="contents",
        blocks="parts",
    )


class _Usual(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A content with nothing else in it, which nearly all are."""

    role: str
    parts: list[msgspec.Raw]


class _Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: msgspec.Raw


_usual = msgspec.json.Decoder(_Usual).decode
_text = msgspec.json.Decoder(_Text).decode


def _content(raw: msgspec.Raw, index: int) -> tuple[str, bytes, list[msgspec.Raw]]:
    """Who speaks, what stands before the first part, and the parts."""
    try:
        usual = _usual(raw)
    except DECODE_ERRORS:
        fields = named(raw, f"$.contents[{index}]", request_error)
        role, parts = fields.maybe("role", str), elements(fields, "parts")
        return role or "user", _opening(role, fields), parts
    return usual.role or "user", b'{"role":%b,"parts":[' % string(usual.role), usual.parts


def _is_text(part: msgspec.Raw) -> bool:
    try:
        _text(part)
    except DECODE_ERRORS:
        return False
    return True


def _opening(role: str | None, fields: Fields) -> bytes:
    members = [b'"role":' + string(role)] if role is not None else []
    if rest := fields.rest():
        members.append(rest)
    return b"{" + b",".join([*members, b'"parts":['])


def _kind(raw: msgspec.Raw, path: str) -> Kind:
    fields = named(raw, path, request_error)
    if "thought" in fields and fields.maybe("thought", bool):
        return Kind.THINKING
    for name in ("inlineData", "fileData"):
        if name in fields:
            media = (fields.raw(name) or b"").replace(b"mime_type", b"mimeType")
            said = Fields(media, f"{path}.{name}", request_error).known_text("mimeType")
            kinds = (kind for prefix, kind in _MEDIA.items() if said.startswith(prefix))
            return next(kinds, Kind.DOCUMENT)
    return next((kind for name, kind in _KINDS.items() if name in fields), Kind.OTHER)
