"""Changes to the bytes of a request: fields of its top level, and nothing else but turns of Gemini
that hold nothing."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from anaphora.canonical import string
from anaphora.wire.reading import DECODE_ERRORS, Members
from anaphora.wire.spans import document_span, member_spans


def with_members(body: bytes, members: Members, changes: Mapping[str, bytes]) -> bytes:
    """The body with these fields replaced where it has them, and added at its end where it has
    not. `members` are those that it has; values are JSON."""
    if not changes:
        return body
    span = document_span(body)
    edits: list[tuple[int, int, bytes]] = []
    if any(name in members for name in changes):
        spans = member_spans(body, span, "$")
        edits = [
            (spans[name].start, spans[name].end, value)
            for name, value in changes.items()
            if name in spans
        ]
    added = b"".join(
        b"," + string(name) + b":" + value for name, value in changes.items() if name not in members
    )
    if added:
        end = span.end - 1
        edits.append((end, end, added if members else added[1:]))
    pieces: list[bytes | memoryview] = []
    view, done = memoryview(body), 0
    for start, stop, inserted in sorted(edits):
        pieces += [view[done:start], inserted]
        done = stop
    pieces.append(view[done:])
    return b"".join(pieces)


class _TextOnly(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class _TextTurn(msgspec.Struct):
    role: str | None = None
    parts: list[_TextOnly] | None = None


_decode_turns = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_turn = msgspec.json.Decoder(_TextTurn).decode


def without_empty_turns(body: bytes, members: Members) -> bytes:
    """A request of Gemini without turns of the model that hold only empty texts: the SDK keeps the
    last piece of a stream as one, and on other wires it would separate calls from their results."""
    try:
        turns = _decode_turns(members.get("contents", b"[]"))
    except DECODE_ERRORS:
        return body
    kept = [turn for turn in turns if not _is_empty(turn)]
    if not kept or len(kept) == len(turns):
        return body
    return with_members(body, members, {"contents": b"[" + b",".join(map(bytes, kept)) + b"]"})


def _is_empty(turn: msgspec.Raw) -> bool:
    try:
        found = _decode_turn(turn)
    except DECODE_ERRORS:
        return False
    return found.role == "model" and not any(part.text for part in found.parts or ())
