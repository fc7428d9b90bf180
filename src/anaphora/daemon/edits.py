"""Changes to the bytes of a request: fields of its top level, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

from anaphora.canonical import string
from anaphora.wire.reading import Members
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
