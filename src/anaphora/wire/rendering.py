"""Code that the `render` of every wire shares: sections, message runs, marks, the whole prompt.

Rendering continues the last turn's logs, so that a turn costs what it adds. `assemble` joins the
rendered prompt and its plan into a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from operator import attrgetter
from typing import Any, TypeVar

from anaphora.canonical import string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call
from anaphora.rendered import (
    Body,
    ChunkLog,
    ChunkRun,
    Envelope,
    Mark,
    Plan,
    Rendered,
    Request,
)
from anaphora.rendered.log import Piece
from anaphora.values import (
    AnyTool,
    Notice,
    ProviderTool,
    Section,
    SegmentRole,
    Tool,
    Ttl,
)

from .marks import Marking, resolve_marks, supported_ttl
from .memo import Memo
from .parts import foreign_sections, with_deferred

T = TypeVar("T")

# Looked up once: access to an enum member is slow, and every turn needs it.
_TAIL = SegmentRole.VOLATILE_TAIL
_DYNAMIC = SegmentRole.DYNAMIC_CONTEXT
_HISTORY = SegmentRole.CONVERSATION

_FUNCTIONS = frozenset({Tool})
_extras_of = attrgetter("extras")


# ── Tools and system blocks ──────────────────────────────────────────────────────────────────────


def without_foreign_tools(
    tools: tuple[AnyTool, ...], providers: tuple[str, ...]
) -> tuple[tuple[AnyTool, ...], list[Notice]]:
    """The tools without those of other providers, and a notice for each of these. The same tuple if
    there are none: its log is found by identity."""
    if _FUNCTIONS.issuperset(map(type, tools)):
        return tools, []
    notices = [
        Notice("foreign_tool", f"{tool.name} is {tool.provider}'s own; left out", f"tools[{index}]")
        for index, tool in enumerate(tools)
        if isinstance(tool, ProviderTool) and tool.provider not in providers
    ]
    if not notices:
        return tools, notices
    own = [t for t in tools if not isinstance(t, ProviderTool) or t.provider in providers]
    return tuple(own), notices


def section_run(
    section: Section,
    source: T,
    render: Callable[[T], ChunkLog],
    previous: Rendered | None,
    memo: Memo,
    *,
    lead: bytes,
    close: bytes,
    place: str = "",
    variant: object = None,
) -> ChunkRun:
    """The run of the tools or of the system blocks; that of the last turn or of another call if it
    is the same."""
    last = previous_run(previous, section)
    log = memo.section_log(source, last, render, variant)
    if last is None:
        last = log.run
    if last is not None and last.log is log and (last.lead, last.close) == (lead, close):
        return last
    run = ChunkRun(section, log, len(log), lead=lead, close=close, source=source, place=place)
    log.run = run
    return run


# ── Messages ─────────────────────────────────────────────────────────────────────────────────────


def usable_previous(previous: Rendered | None, wire: str, model: str) -> Rendered | None:
    """The turn before, if this wire rendered it for this model, and did not cut it from bytes."""
    if previous is None or previous.envelope.source is None:
        return None
    return previous if (previous.wire, previous.model) == (wire, model) else None


def previous_run(
    previous: Rendered | None, section: Section, role: SegmentRole | None = None
) -> ChunkRun | None:
    """The run at the same position last turn."""
    if previous is not None:
        for run in previous.runs:
            if run.section == section and run.role is role:
                return run
    return None


# ── The rendered prompt ──────────────────────────────────────────────────────────────────────────


def finish_rendering(
    call: Call,
    profile: Profile,
    envelope: Envelope,
    runs: list[ChunkRun],
    marking: Marking,
    *,
    wire: str,
    notices: Iterable[Notice],
    **fields: Any,
) -> Rendered:
    """The prompt with the caller's marks in place; `fields` are the other fields of `Rendered`.
    Extras of other wires on tools and system blocks give notices."""
    plan = call.ir.cache
    marks: tuple[Mark, ...] = ()
    frozen: int | None = None
    unmarked: list[Notice] = []
    if plan.marks or plan.frozen_through is not None:
        marks, frozen, unmarked = resolve_marks(plan, runs, marking, wire, profile.as_sent)
    ttl = None
    if marking.markers and plan.message_ttl is not None:
        nearest = marking.nearest
        ttl = supported_ttl(plan.message_ttl, nearest, "cache.message_ttl", unmarked)
    section_notices: list[Notice] = []
    tools, blocks = call.tools, call.ir.system_field_blocks()
    functions = _FUNCTIONS.issuperset(map(type, tools))
    if not functions or any(map(_extras_of, tools)) or any(map(_extras_of, blocks)):
        section_notices = foreign_sections(call, wire)
    return Rendered(
        wire=wire,
        model=call.model,
        runs=tuple(runs),
        envelope=envelope,
        markers=marking.markers,
        marks=marks,
        frozen=frozen,
        messages_cacheable=plan.messages,
        message_ttl=ttl,
        bytes_per_token=profile.bytes_per_token.value,
        notices=(*envelope.notices, *section_notices, *notices, *unmarked),
        **fields,
    )


def cacheable_count(
    runs: list[ChunkRun], previous: Rendered | None, messages: bool, until: ChunkRun | None = None
) -> int:
    """How many leading chunks the next turn may reuse: up to the first volatile one, the first
    dynamic one that differs from the turn before, or the run `until`; none of the messages if
    `messages` is false."""
    chunks = 0
    history = False
    for run in runs:
        role = run.role
        if role is _TAIL or run is until or (not messages and run.section == "messages"):
            break
        if history and role is _DYNAMIC:
            break  # after the conversation it moves with every turn
        history = history or role is _HISTORY
        if role is _DYNAMIC and previous is not None:
            last = previous_run(previous, "messages", role)
            same = run.source.common_prefix(last.source) if last is not None else 0
            if same < len(run.source):
                return chunks + (run.log.message_ends[same - 1] if same else 0)
        chunks += run.count
    return chunks


# ── The request ──────────────────────────────────────────────────────────────────────────────────


def assemble(rendered: Rendered, plan: Plan) -> Request:
    """The request with the plan's markers in place: a dozen slices, however long the prompt."""
    if plan.held is not None:
        raise InvalidRequest(f"{rendered.wire} has no cache handles", path="plan.held")
    for one, two in pairwise(plan.marks):
        if one.chunk < two.chunk:
            continue
        inside = one.splice is not None and (two.splice is None or one.splice < two.splice)
        if one.chunk > two.chunk or not inside:
            raise InvalidRequest("marks must be in hash order, one per block", path="plan.marks")
    envelope = rendered.envelope
    pieces: list[Piece] = [envelope.head]
    sliced = _sliced_runs(rendered, plan.marks)
    if rendered.body_order is not None:
        sliced = [sliced[index] for index in rendered.body_order]
    for slices in sliced:
        pieces += slices
    if plan.automatic is not None:
        if plan.automatic not in rendered.request_markers:
            raise _unknown_ttl(rendered.request_markers, plan.automatic)
        pieces.append(rendered.request_markers[plan.automatic])
    if plan.only_marks:
        if rendered.only_marks is None:
            raise InvalidRequest("this wire has no such option", path="plan.only_marks")
        pieces.append(rendered.only_marks)
    headers = envelope.headers
    if plan.key is not None:
        if rendered.key_place is None:
            raise InvalidRequest("this request takes no cache key of the planner", path="plan.key")
        if isinstance(rendered.key_place, str):
            headers = (*headers, (rendered.key_place, plan.key))
        else:
            pieces.append(rendered.key_place + string(plan.key))
    pieces.append(envelope.tail)
    return Request(envelope.method, envelope.path, headers, Body(pieces))


def _sliced_runs(rendered: Rendered, marks: tuple[Mark, ...]) -> list[list[Piece]]:
    """Each run cut at its marks, with the markers in between and the deferred tools."""
    first, upcoming, markers = 0, iter(marks), rendered.markers
    mark = next(upcoming, None)
    sliced: list[list[Piece]] = []
    for run in rendered.runs:
        log, end, written = run.log, first + run.count, 0
        pieces: list[Piece] = [run.lead]
        while mark is not None and first <= mark.chunk < end:
            index = mark.chunk - first
            splice = log.splices[index]
            if mark.splice is not None:
                splice = log.start(index) + mark.splice - (0 if index else len(run.lead))
            elif splice < 0:
                raise InvalidRequest(f"{run.path(index)} takes no marker", path="plan.marks")
            marker = mark.marker or markers.get(mark.ttl)
            if marker is None:
                raise _unknown_ttl(markers, mark.ttl)
            if log.slice(splice - 1, splice) == b"{":
                marker = marker[1:]  # an object without other members
            pieces += (log, written, splice), marker
            written = splice
            mark = next(upcoming, None)
        pieces += (log, written, log.ends[run.count - 1]), run.close
        sliced.append(with_deferred(run, pieces) if run.deferred else pieces)
        first = end
    if mark is not None:
        raise InvalidRequest(f"no chunk {mark.chunk} to mark", path="plan.marks")
    return sliced


def _unknown_ttl(markers: Mapping[Ttl, bytes], ttl: Ttl) -> InvalidRequest:
    known = " or ".join(markers) or "none"
    return InvalidRequest(f"this provider has no TTL of {ttl}; use {known}", path="plan.marks")
