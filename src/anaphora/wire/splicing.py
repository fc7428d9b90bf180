"""Puts markers into the bytes of a request, and changes nothing else (`wire.splice`).

White space, key order, numbers, escapes and the forms of content stay. Only a block can carry a
marker: a text that needs one becomes a list of one text block, with the bytes of the text
unchanged. Providers read both forms as the same prompt, so the cached prefix stays the same.

Markers of the request stay, with their TTL; those of the plan are added while there are slots. With
`replace`, the request ends up with the plan's markers only. Fields of the whole request (an
automatic breakpoint, the cache key, the cache options) are only added if the request has none of
that name, and the host of a router only if the request chooses none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from anaphora.canonical import string
from anaphora.catalog import CacheRules, Dialect
from anaphora.errors import InvalidRequest
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.values import TTL_SECONDS, Notice, Ttl

from .dialect.routers import host_edit
from .elements import DecodedBody
from .marker_targets import MarkerLocator
from .markers import MARKER_PLACES, MarkerPlaces
from .reading import DECODE_ERRORS, decode_members
from .spans import (
    ByteSpan,
    Edit,
    MemberSpan,
    document_span,
    edited,
    member_spans,
    removal_span,
)

#: A marker: its chunk, and its offset in the chunk if that is not the chunk's own splice.
_Place = tuple[int, int | None]


class SplicedBody(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A request with markers."""

    body: bytes
    """The given object, if nothing was changed."""
    marks: tuple[Mark, ...]
    """All markers that it has now."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers to send with it: some providers take the cache key in a header."""
    notices: tuple[Notice, ...] = ()


def splice(
    body: bytes,
    plan: Plan,
    rendered: Rendered,
    dialect: Dialect | None = None,
    *,
    replace: bool = False,
    slots: int | None = None,
    decoded: DecodedBody | None = None,
    longer: Ttl | None = None,
) -> SplicedBody:
    """`rendered` is the request, split by the codec of its wire or dialect; `decoded` is the body,
    if it is already decoded. `longer` is the TTL of its own markers with a shorter one."""
    places = MARKER_PLACES.get(rendered.wire)
    notices: list[Notice] = []
    if plan.held is not None or plan.preludes:
        notices.append(Notice("handle_left_out", "a cache handle cannot be put into a request"))
    if places is None or (dialect is not None and dialect.markers == {}):
        if plan.marks or plan.automatic is not None:
            notices.append(Notice("markers_left_out", "this provider takes no markers"))
        edit = _host_edit(body, plan, rendered, dialect)
        body = body if edit is None else edited(body, [edit])
        return SplicedBody(body=body, marks=rendered.marks, notices=tuple(notices))
    work = _Splicing(body, rendered, places, dialect, notices, decoded)
    if longer is not None:
        work.lengthen(longer)
    if plan.marks or rendered.marks:
        work.place(plan, replace=replace, slots=slots)
    headers = work.fields(plan, replace=replace)
    body, marks = edited(body, work.edits), tuple(work.marks)
    return SplicedBody(body=body, marks=marks, headers=headers, notices=tuple(notices))


class _Splicing:
    """One request that is being marked."""

    def __init__(
        self,
        body: bytes,
        rendered: Rendered,
        places: MarkerPlaces,
        dialect: Dialect | None,
        notices: list[Notice],
        decoded: DecodedBody | None,
    ) -> None:
        self._body = body
        self._rendered = rendered
        self._places = places
        self._dialect = dialect
        self._notices = notices
        self._names: tuple[str, ...] = (places.member,)
        """The members of a marker."""
        if dialect is not None and dialect.markers:
            self._names = tuple({name for form in dialect.markers.values() for name in form})
        self._locator = MarkerLocator(body, rendered, places, decoded, self._names)
        self.edits: list[Edit] = []
        self.marks: list[Mark] = list(rendered.marks)

    # ── Markers ──────────────────────────────────────────────────────────────────────────────────

    def place(self, plan: Plan, *, replace: bool, slots: int | None) -> None:
        own: dict[_Place, Mark] = {}
        if self._rendered.marks:
            own = {(mark.chunk, mark.splice): mark for mark in self._rendered.marks}
        wanted = {(mark.chunk, mark.splice): mark for mark in plan.marks}
        if replace:
            for place, mark in own.items():
                if wanted.get(place) != mark:
                    self._remove_marker(place)
            new = [mark for place, mark in wanted.items() if own.get(place) != mark]
            kept = [mark for place, mark in own.items() if wanted.get(place) == mark]
        else:
            new = list(wanted.values())
            if own:
                new = [mark for place, mark in wanted.items() if place not in own]
            kept = list(own.values())
            new = self._within(new, None if slots is None else max(0, slots - len(kept)))
            if kept:
                new = [self._in_order(mark, kept) for mark in new]
        placed = [
            mark for mark in new if self._insert(mark, removed=(mark.chunk, mark.splice) in own)
        ]
        self.marks = [*kept, *placed]
        if kept or plan.marks != tuple(placed):  # plans are in hash order
            self.marks.sort(key=_hash_order)

    def lengthen(self, ttl: Ttl) -> None:
        """Gives the request's own markers that live shorter this TTL, and changes nothing else in
        them."""
        rendered, field = self._rendered, self._places.automatic
        if (own := rendered.automatic) and field and TTL_SECONDS[own] < TTL_SECONDS[ttl]:
            self._lengthen(self._locator.members()[field].value, ttl)
        marks = []
        for mark in rendered.marks:
            if TTL_SECONDS[mark.ttl] < TTL_SECONDS[ttl]:
                target = self._locator.target(mark.chunk, mark.splice)
                members = member_spans(self._body, target.element or target.block, "$")
                for name in members.keys() & self._names:
                    self._lengthen(members[name].value, ttl)
                mark = Mark(mark.chunk, ttl, mark.splice)
            marks.append(mark)
        self._rendered = msgspec.structs.replace(rendered, marks=tuple(marks))
        self.marks = marks

    def _lengthen(self, marker: ByteSpan, ttl: Ttl) -> None:
        members = member_spans(self._body, marker, "$")
        if "ttl" in members:
            self.edits.append((*members["ttl"].value, string(ttl)))
        else:
            text = b',"ttl":' if members else b'"ttl":'
            self.edits.append((marker.end - 1, marker.end - 1, text + string(ttl)))

    def _within(self, new: list[Mark], room: int | None) -> list[Mark]:
        """As many marks as there are slots: the last ones, which cover the most."""
        if room is None or len(new) <= room:
            return new
        dropped = new[: len(new) - room]
        for mark in dropped:
            self._leave_out(mark, "the request's own markers use all slots")
        return new[len(new) - room :]

    def _in_order(self, mark: Mark, kept: list[Mark]) -> Mark:
        """The mark with a TTL that is accepted between the markers that stay: a longer one may not
        follow a shorter one."""
        ttl = mark.ttl
        for other in kept:
            behind = _hash_order(other) > _hash_order(mark)
            longer = TTL_SECONDS[other.ttl] > TTL_SECONDS[ttl]
            if behind == longer and other.ttl != ttl:
                ttl = other.ttl
        if ttl == mark.ttl:
            return mark
        reason = f"this marker gets {ttl}, not {mark.ttl}: longer TTLs must come first"
        path = self._rendered.chunk(mark.chunk).path
        self._notices.append(Notice("ttl_changed", reason, path))
        return Mark(mark.chunk, ttl, mark.splice)

    def _insert(self, mark: Mark, *, removed: bool) -> bool:
        """Insert a marker; False if the block has one that cannot be read."""
        marker = self._rendered.markers.get(mark.ttl)
        if marker is None:
            known = " or ".join(self._rendered.markers) or "none"
            reason = f"this provider has no TTL of {mark.ttl}; use {known}"
            raise InvalidRequest(reason, path="plan.marks")
        run, index = self._rendered.locate(mark.chunk)
        if mark.splice is None and run.log.splices[index] < 0:
            raise InvalidRequest(f"{run.path(index)} takes no marker", path="plan.marks")
        target = self._locator.target(mark.chunk, mark.splice, (run, index))
        start, end = target.block
        if self._places.is_element:
            if target.element is not None and not removed:
                self._leave_out(mark, f"a {self._names[0]} of another form follows the block")
                return False
            self.edits.append((end, end, marker))
            return True
        if target.opening:
            self.edits.append((start, start, target.opening))
            self.edits.append((end, end, marker + b"}" + target.close))
            return True
        members = member_spans(self._body, target.block, "$")
        for name in self._names:
            if name not in members:
                continue
            span = members[name]
            if self._body[span.start : span.end] == b"null":
                self._remove(members, name, target.block)
            elif not removed:
                self._leave_out(mark, f"the block has a {name} of another form")
                return False
        bare = members.keys() <= set(self._names)
        self.edits.append((end - 1, end - 1, marker[1:] if bare else marker))
        return True

    def _remove_marker(self, place: _Place) -> None:
        target = self._locator.target(*place)
        block = target.block
        if target.element is not None:
            self.edits.append((block.end, target.element.end, b""))
            return
        members = member_spans(self._body, block, "$")
        for name in members.keys() & self._names:
            self._remove(members, name, block)

    def _remove(self, members: dict[str, MemberSpan], name: str, block: ByteSpan) -> None:
        self.edits.append((*removal_span(members, name, block), b""))

    def _leave_out(self, mark: Mark, reason: str) -> None:
        path = self._rendered.chunk(mark.chunk).path
        self._notices.append(Notice("marker_left_out", reason, path))

    # ── Fields of the request ────────────────────────────────────────────────────────────────────

    def fields(self, plan: Plan, *, replace: bool) -> tuple[tuple[str, str], ...]:
        """Adds the plan's fields that the request does not have; returns headers."""
        places, rendered = self._places, self._rendered
        added: list[bytes] = []
        headers: tuple[tuple[str, str], ...] = ()
        if places.automatic:
            if replace and rendered.automatic not in (None, plan.automatic):
                span = document_span(self._body)
                members = self._locator.members()
                self._remove(members, places.automatic, span)
                members.pop(places.automatic)
            if plan.automatic is not None and rendered.request_markers:
                added.append(rendered.request_markers[plan.automatic])
        if plan.only_marks and places.only_marks:
            added.append(places.only_marks)
        if plan.key is not None:
            place = _key_place(self._dialect, places)
            if isinstance(place, str):
                headers = ((place, plan.key),)
            elif place is not None:
                added.append(place + string(plan.key))
        edit = _host_edit(self._body, plan, rendered, self._dialect)
        self.edits += () if edit is None else (edit,)
        if not added:
            return headers
        end = self._body.rindex(b"}")
        names = self._locator.names()
        for field in added:
            name = next(iter(decode_members(b"{" + field[1:] + b"}")))
            if name not in names:
                self.edits.append((end, end, field))
        return headers


def _host_edit(body: bytes, plan: Plan, rendered: Rendered, dialect: Dialect | None) -> Edit | None:
    router = None if dialect is None else dialect.router
    if not plan.host or router is None:
        return None
    return host_edit(body, plan.host, rendered.model, router)


def _hash_order(mark: Mark) -> tuple[int, float]:
    return mark.chunk, float("inf") if mark.splice is None else mark.splice


# ── Before planning ──────────────────────────────────────────────────────────────────────────────


def _key_place(dialect: Dialect | None, places: MarkerPlaces) -> bytes | str | None:
    """The place of a cache key in a request: after these bytes of the body, or in that header."""
    if dialect is None or "cache.key" not in dialect.fields:
        return places.key or None
    place = dialect.place("cache.key")
    return None if place is None or not place.header else place.header


def plannable(
    rendered: Rendered, fields: Mapping[str, Any], rules: CacheRules, dialect: Dialect | None = None
) -> Rendered:
    """A split request prepared for the planner: with the fields that may be added to it. `fields`
    are those that it has."""
    places = MARKER_PLACES.get(rendered.wire)
    if places is None:
        return rendered
    own = dialect is None or dialect.markers is None
    key = _key_place(dialect, places)
    if key is not None and "prompt_cache_key" in fields:
        key = None
    changes: dict[str, Any] = {"key_place": key}
    if places.only_marks:
        by_itself = rules.automatic_breakpoint.value == "last_message"
        options = _options(fields.get("prompt_cache_options"))
        ttl: Ttl | None = rendered.automatic
        if ttl is None and rules.default_ttl is not None:
            ttl = rules.default_ttl.value
        explicit = options is not None and options.get("mode") == "explicit"
        changes["automatic"] = ttl if by_itself and not explicit else None
        free = own and by_itself and options is None
        changes["only_marks"] = places.only_marks if free else None
        if own and not by_itself:
            # These markers come with OpenAI's own breakpoint, or not at all.
            changes["markers"] = {}
    return msgspec.structs.replace(rendered, **changes)


def _options(raw: Any) -> dict[str, Any] | None:
    """The cache options of a request; None if it has none."""
    if isinstance(raw, msgspec.Raw):
        try:
            raw = msgspec.json.decode(raw)
        except DECODE_ERRORS:
            return {}
    if raw is None:
        return None
    return raw if isinstance(raw, dict) else {}
