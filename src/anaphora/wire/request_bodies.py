"""Reads request bodies, of which only the new messages are decoded.

bodies = RequestBodies()
codec.split(bodies.read(scope, wire, data), path=path)
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import takewhile

from anaphora.errors import InvalidRequest

from .body_memory import BLANK, GRIDS, MOST_BYTES, BodyMemory, KnownBeginning
from .elements import DecodedBody, ElementNotes, ListElements, digest_of
from .reading import DECODE_ERRORS, Members, decode_elements, object_members, request_error
from .spans import document_span, member_spans
from .tables import request_table


class RequestBodies:
    """Reads bodies for `split`, with the same result as `split` alone."""

    def __init__(self, most_bytes: int = MOST_BYTES, grids: tuple[int, ...] = GRIDS) -> None:
        """`most_bytes` limits the memory that is taken."""
        self._memory: BodyMemory[None] = BodyMemory(most_bytes, grids)

    @property
    def size(self) -> int:
        """The bytes of memory that the kept bodies take, about."""
        return self._memory.size

    def read(self, scope: Hashable, wire: str, data: bytes) -> DecodedBody:
        """The members of a body, and its messages if they can be found without doubt. Raises
        `InvalidRequest`."""
        running = self._memory.digests(scope, wire, data)
        beginning = self._memory.find(running)
        body = None if beginning is None else _read_rest(beginning)
        if body is None:
            beginning, members = None, object_members(data, "$", request_error)
            body = DecodedBody(members, list_of_messages(wire, data, members))
        if body.elements is not None:
            outline = self._memory.outline(running, body.elements, beginning)
            if outline is not None:
                self._memory.keep(outline, beginning, lambda: None)
        return body


def list_of_messages(wire: str, data: bytes, members: Members) -> ListElements | None:
    """The messages of a body; None if they are not in a list, or a member is given twice."""
    name = request_table(wire).messages
    raw = members.get(name)
    if raw is None or bytes(memoryview(raw)[:1]) != b"[":
        return None
    try:
        spans = member_spans(data, document_span(data), "$", members)
        raws = decode_elements(raw)
    except (InvalidRequest, *DECODE_ERRORS):
        return None
    begin = spans[name].start + 1
    while data[begin] in BLANK:
        begin += 1
    first = takewhile(lambda one: one[0] != name, spans.items())
    return ListElements(
        name=name,
        raws=raws,
        notes=ElementNotes(b"".join(map(digest_of, raws))),
        begin=begin,
        before=tuple((each, span.start, span.end) for each, span in first),
    )


def _read_rest(beginning: KnownBeginning[None]) -> DecodedBody | None:
    """The body, of which known messages are not read again; None if the rest cannot be read without
    doubt."""
    members = beginning.members()
    if members is None:
        return None
    try:
        elements = beginning.complete(members)
    except DECODE_ERRORS:
        return None
    return DecodedBody(members, elements)
