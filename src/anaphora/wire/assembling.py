"""Joining a rendered call and its plan into a request. The same for every wire."""

from __future__ import annotations

from itertools import pairwise

from anaphora.errors import InvalidRequest
from anaphora.rendered import Body, Mark, Plan, Rendered, Request
from anaphora.rendered.request import Piece


def assemble(rendered: Rendered, plan: Plan) -> Request:
    """The request with the plan's markers in place: a dozen slices, however long the prompt."""
    _check_order(plan.marks)
    pieces: list[Piece] = [rendered.envelope.head]
    first, upcoming = 0, list(reversed(plan.marks))
    for run in rendered.runs:
        log, written = run.log, 0
        pieces.append(run.lead)
        while upcoming and upcoming[-1].chunk < first + run.count:
            mark = upcoming.pop()
            splice = _splice(rendered, mark, log.splices[mark.chunk - first])
            if mark.splice is not None:
                lead = len(run.lead) if mark.chunk == first else 0
                splice = log.start(mark.chunk - first) + mark.splice - lead
            pieces.append((log, written, splice))
            pieces.append(rendered.markers[mark.ttl])
            written = splice
        pieces.append((log, written, log.start(run.count)))
        pieces.append(run.close)
        first += run.count
    if upcoming:
        raise _no_chunk(upcoming[-1])
    envelope = rendered.envelope
    pieces.append(envelope.tail)
    return Request(envelope.method, envelope.path, envelope.headers, Body(pieces))


def _splice(rendered: Rendered, mark: Mark, splice: int) -> int:
    if splice < 0 and mark.splice is None:
        raise InvalidRequest(
            f"{rendered.chunk(mark.chunk).path} may not carry a marker", path="plan.marks"
        )
    if mark.ttl not in rendered.markers:
        raise InvalidRequest(
            f"a TTL of {mark.ttl} does not exist here; use {' or '.join(rendered.markers)}",
            path="plan.marks",
        )
    return splice


def _no_chunk(mark: Mark) -> InvalidRequest:
    return InvalidRequest(f"no chunk {mark.chunk} to mark", path="plan.marks")


def _check_order(marks: tuple[Mark, ...]) -> None:
    if marks and marks[0].chunk < 0:
        raise _no_chunk(marks[0])
    for one, two in pairwise(marks):
        inside = one.splice is not None and (two.splice is None or one.splice < two.splice)
        if one.chunk > two.chunk or (one.chunk == two.chunk and not inside):
            raise InvalidRequest("marks stand in hash order, one a block", path="plan.marks")
