"""Joining a rendered call and its plan into a request. The same for every wire."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.rendered import Body, Mark, Plan, Rendered, Request
from anaphora.rendered.request import Piece
from anaphora.values import Ttl


def assemble(rendered: Rendered, plan: Plan) -> Request:
    """The request with the plan's markers in place: a dozen slices, however long the prompt."""
    if plan.held is not None:
        raise InvalidRequest(f"{rendered.wire} holds nothing under a handle", path="plan.held")
    _check_order(plan.marks)
    envelope = rendered.envelope
    pieces: list[Piece] = [envelope.head]
    sliced = _sliced_runs(rendered, plan.marks)
    if rendered.body_order is not None:
        sliced = [sliced[at] for at in rendered.body_order]
    for slices in sliced:
        pieces += slices
    if plan.automatic is not None:
        pieces.append(_marker(rendered.request_markers, plan.automatic))
    if plan.only_marks:
        if rendered.only_marks is None:
            raise InvalidRequest("this cannot be asked for here", path="plan.only_marks")
        pieces.append(rendered.only_marks)
    headers = envelope.headers
    if plan.key is not None:
        if rendered.key_place is None:
            raise InvalidRequest("no key of the planner's may be sent here", path="plan.key")
        if isinstance(rendered.key_place, str):
            headers = (*headers, (rendered.key_place, plan.key))
        else:
            pieces.append(rendered.key_place + string(plan.key))
    pieces.append(envelope.tail)
    return Request(envelope.method, envelope.path, headers, Body(pieces))


def _sliced_runs(rendered: Rendered, marks: tuple[Mark, ...]) -> list[list[Piece]]:
    """Each run cut at its marks, with the markers in between."""
    first, upcoming = 0, list(reversed(marks))
    sliced: list[list[Piece]] = []
    for run in rendered.runs:
        log, written = run.log, 0
        pieces: list[Piece] = [run.lead]
        while upcoming and upcoming[-1].chunk < first + run.count:
            mark = upcoming.pop()
            at = mark.chunk - first
            splice = log.splices[at]
            if mark.splice is not None:
                splice = log.start(at) + mark.splice - (0 if at else len(run.lead))
            elif splice < 0:
                raise InvalidRequest(f"{run.path(at)} may not carry a marker", path="plan.marks")
            pieces.append((log, written, splice))
            pieces.append(_marker(rendered.markers, mark.ttl))
            written = splice
        pieces.append((log, written, log.start(run.count)))
        pieces.append(run.close)
        sliced.append(pieces)
        first += run.count
    if upcoming:
        raise _no_chunk(upcoming[-1])
    return sliced


def _marker(markers: Mapping[Ttl, bytes], ttl: Ttl) -> bytes:
    try:
        return markers[ttl]
    except KeyError:
        known = " or ".join(markers) or "none"
        raise InvalidRequest(
            f"a TTL of {ttl} does not exist here; use {known}", path="plan.marks"
        ) from None


def _no_chunk(mark: Mark) -> InvalidRequest:
    return InvalidRequest(f"no chunk {mark.chunk} to mark", path="plan.marks")


def _check_order(marks: tuple[Mark, ...]) -> None:
    if marks and marks[0].chunk < 0:
        raise _no_chunk(marks[0])
    for one, two in pairwise(marks):
        inside = one.splice is not None and (two.splice is None or one.splice < two.splice)
        if one.chunk > two.chunk or (one.chunk == two.chunk and not inside):
            raise InvalidRequest("marks stand in hash order, one a block", path="plan.marks")
