"""Adds the markers of a plan to a request that another program wrote (`wire.splice`).

    spliced = splice(codec, rendered, plan)
    spliced.request, spliced.plan

`rendered` is the request as it was read (`wire.cutting`). Its own markers stay, with their TTL and
unknown members; those of the plan are added while there are slots. With `replace`, the request ends
up with the plan's markers only. A cache key, cache options and the host of a router are added if
the request has none. The merged plan and the prompt are then assembled like any other call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from anaphora.errors import InvalidRequest, RequestRejected
from anaphora.rendered import Mark, Plan, Rendered, Request
from anaphora.values import TTL_SECONDS, Notice, Ttl

from .cutting import check_kept
from .markers import with_members
from .reading import decode_members
from .strict_json import decode_strict

if TYPE_CHECKING:
    from . import Wire

#: A marker: its chunk, and its offset in the chunk if that is not the chunk's own splice.
_Place = tuple[int, int | None]
#: Texts, with the colon after those that are keys, and brackets.
_TOKEN = re.compile(rb'("[^"\\]*(?:\\.[^"\\]*)*")[ \t\n\r]*(:?)|[{}\[\]]', re.DOTALL)


class SplicedRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A request with markers."""

    request: Request
    plan: Plan
    """With all markers that it has now."""
    notices: tuple[Notice, ...] = ()

    @property
    def body(self) -> bytes:
        return self.request.body.join()

    @property
    def marks(self) -> tuple[Mark, ...]:
        return self.plan.marks


def splice(
    codec: Wire,
    rendered: Rendered,
    plan: Plan,
    *,
    replace: bool = False,
    slots: int | None = None,
    longer: Ttl | None = None,
) -> SplicedRequest:
    """`longer` is the TTL of the request's own markers with a shorter one. Raises `InvalidRequest`
    if a part of the request could not be kept, or a mark of the plan has no place."""
    check_kept(rendered)
    merging = _Merging(rendered, replace=replace)
    merged = merging.plan(plan, slots, longer)
    request = codec.assemble(rendered, merged)
    return SplicedRequest(request=request, plan=merged, notices=tuple(merging.notices))


def check_unambiguous(body: bytes) -> None:
    """Raise `InvalidRequest` for JSON that two readers could read differently: a request that is
    rendered again has one of their readings."""
    try:
        decode_strict(body)
    except RequestRejected as problem:
        raise InvalidRequest(str(problem)) from None


class _Merging:
    """Joins the markers of one request with those of a plan."""

    def __init__(self, rendered: Rendered, *, replace: bool) -> None:
        self._rendered = rendered
        self._replace = replace
        self.notices: list[Notice] = []

    def plan(self, plan: Plan, slots: int | None, longer: Ttl | None) -> Plan:
        rendered = self._rendered
        if plan.held is not None or plan.preludes:
            text = "a cache handle cannot be put into a request"
            self.notices.append(Notice("handle_left_out", text))
        own, automatic, wanted = rendered.marks, rendered.automatic, plan.marks
        if longer is not None:
            own = tuple(lengthened(mark, longer, rendered.markers) for mark in own)
            if automatic is not None and TTL_SECONDS[automatic] < TTL_SECONDS[longer]:
                automatic = longer
        if self._replace or automatic is None:
            automatic = plan.automatic
        if automatic not in rendered.request_markers:
            automatic = None
        if not rendered.markers and (wanted or (plan.automatic is not None and automatic is None)):
            self.notices.append(Notice("markers_left_out", "this provider takes no markers"))
            wanted = () if self._replace else own
        return msgspec.structs.replace(
            plan,
            marks=self._marks({(m.chunk, m.splice): m for m in own}, wanted, slots),
            automatic=automatic,
            key=None if rendered.key_place is None else plan.key,
            only_marks=plan.only_marks and rendered.only_marks is not None,
            held=None,
            preludes=(),
        )

    def _marks(
        self, own: dict[_Place, Mark], wanted: tuple[Mark, ...], slots: int | None
    ) -> tuple[Mark, ...]:
        if self._replace:
            kept = []
            for mark in wanted:
                old = own.get((mark.chunk, mark.splice))
                kept.append(old if old is not None and old.ttl == mark.ttl else mark)
            return tuple(mark for mark in kept if self._fits(mark, own))
        kept = list(own.values())
        new = [mark for mark in wanted if (mark.chunk, mark.splice) not in own]
        new = self._within(new, None if slots is None else max(0, slots - len(kept)))
        kept += [self._in_order(mark, kept) for mark in new if self._fits(mark, own)]
        return tuple(sorted(kept, key=_hash_order))

    def _within(self, new: list[Mark], room: int | None) -> list[Mark]:
        """As many marks as there are slots: the last ones, which cover the most."""
        if room is None or len(new) <= room:
            return new
        for mark in new[: len(new) - room]:
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
        self.notices.append(Notice("ttl_changed", reason, self._path(mark)))
        return Mark(mark.chunk, ttl, mark.splice)

    def _fits(self, mark: Mark, own: dict[_Place, Mark]) -> bool:
        """Whether the block has no marker that could not be read."""
        marker = self._rendered.markers.get(mark.ttl)
        if (mark.chunk, mark.splice) in own or marker is None:
            return True  # `assemble` names the TTLs
        chunk = self._rendered.chunk(mark.chunk)
        at = chunk.splice if mark.splice is None else mark.splice
        if at is None:
            raise InvalidRequest(f"{chunk.path} takes no marker", path="plan.marks")
        if marker.startswith(b",{"):
            name = next(iter(decode_members(marker[1:])))
            rest = chunk.data[at:]
            if not rest and mark.chunk + 1 < len(self._rendered):
                rest = self._rendered.chunk_data(mark.chunk + 1)
            if rest.startswith(b',{"%b":' % name.encode()):
                return self._leave_out(mark, f"a {name} of another form follows the block")
            return True
        if chunk.data[at : at + 1] != b"}":
            raise InvalidRequest(f"{chunk.path} has no block inside at {at}", path="plan.marks")
        for name in decode_members(b"{" + marker[1:] + b"}"):
            if b'"%b"' % name.encode() in chunk.data and name in _keys(chunk.data[:at]):
                return self._leave_out(mark, f"the block has a {name} of another form")
        return True

    def _leave_out(self, mark: Mark, reason: str) -> bool:
        self.notices.append(Notice("marker_left_out", reason, self._path(mark)))
        return False

    def _path(self, mark: Mark) -> str:
        return self._rendered.chunk(mark.chunk).path


def lengthened(mark: Mark, ttl: Ttl, markers: Mapping[Ttl, bytes]) -> Mark:
    """A marker of the request with this TTL, if its own is shorter, and its unknown members."""
    if TTL_SECONDS[mark.ttl] >= TTL_SECONDS[ttl] or ttl not in markers:
        return mark
    marker = None
    if mark.marker is not None:
        plain = markers.get(mark.ttl, b"")
        known = plain.rstrip(b"}") + b","
        if not plain or not mark.marker.startswith(known):
            return mark
        closing = len(plain) - len(known) + 1
        marker = with_members(markers[ttl], mark.marker[len(known) : -closing])
    return Mark(mark.chunk, ttl, mark.splice, marker)


def _hash_order(mark: Mark) -> tuple[int, float]:
    return mark.chunk, float("inf") if mark.splice is None else mark.splice


def _keys(begun: bytes) -> list[str]:
    """The keys of the innermost object that is open at the end of these bytes."""
    levels: list[list[str]] = [[]]
    for token in _TOKEN.finditer(begun):
        text, colon = token.groups()
        if colon:
            levels[-1].append(msgspec.json.decode(text))
        elif text is None and token[0] in b"{[":
            levels.append([])
        elif text is None and len(levels) > 1:
            levels.pop()
    return levels[-1]
