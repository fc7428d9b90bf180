"""Markers: the bytes of a request that mark a block, of every wire, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from anaphora.canonical import dumps
from anaphora.prompt import MarkRequest, PartMark
from anaphora.values import TTL_SECONDS, Extras, Ttl
from anaphora.values.stability import nearest_ttl

from .lenient import LenientDecoder, Unknown
from .reading import ErrorFactory, Members, request_error

T = TypeVar("T", bound="Ttl | None")

#: A marker of a request: its path below the message, its TTL (None: the request's), and the
#: marker's unknown members.
PlacedMark: TypeAlias = tuple[tuple[int, ...], T, Extras | None]

#: The members that mark a block in a dialect, by TTL.
DialectMarkers: TypeAlias = Mapping[Ttl, dict[str, Any]]


#: The offset of a marker counted from the end of a block: before its closing brace.
BEFORE_BRACE = -1
#: The depth of nested blocks that is searched: a document in a tool result is at the third level.
INNER_LEVELS = 16


class MarkerForm(NamedTuple):
    """A marker: an object with this member, and perhaps a `ttl`."""

    member: str
    value: str
    ttl: Ttl
    """The lifetime of a marker without one."""


#: By the member of a block that is the marker.
MARKER_FORMS = {
    "cache_control": MarkerForm("type", "ephemeral", "5m"),
    "prompt_cache_breakpoint": MarkerForm("mode", "explicit", "30m"),
}


#: The bytes before a cache key in OpenAI's bodies, and the field that makes OpenAI cache only
#: marked prefixes.
CACHE_KEY = b',"prompt_cache_key":'
ONLY_MARKS = b',"prompt_cache_options":{"mode":"explicit"}'


def marked_message(mark: MarkRequest) -> int:
    """The number of the message that is marked in a parsed call; -1 for tools and blocks."""
    return int(mark.message_id[1:]) if isinstance(mark, PartMark) else -1


def nearest_ttls(markers: Mapping[Ttl, bytes]) -> dict[Ttl, Ttl]:
    """For each TTL that may be requested, the shortest supported one that is long enough, or the
    longest."""
    supported = tuple(markers)
    nearest = {asked: nearest_ttl(asked, supported) for asked in TTL_SECONDS}
    return {asked: ttl for asked, ttl in nearest.items() if ttl is not None}


def with_members(marker: bytes, members: bytes) -> bytes:
    """A marker with further members in its innermost object."""
    body = marker.rstrip(b"}")
    return body + b"," + members + marker[len(body) :]


def marker_bytes(markers: DialectMarkers) -> dict[Ttl, bytes]:
    """The bytes that mark a block, before its closing brace."""
    return {ttl: b"," + dumps(marker)[1:-1] for ttl, marker in markers.items()}


def take_dialect_marker(members: Members, markers: DialectMarkers) -> Ttl | None:
    """Remove a marker from a block, and return its TTL. One in another form stays."""
    for ttl, marker in markers.items():
        if all(
            name in members and msgspec.json.decode(members[name]) == value
            for name, value in marker.items()
        ):
            for name in marker:
                del members[name]
            return ttl
    return None


# ── OpenAI's breakpoints ──────────────────────────────────────────────────────────────────────────


class Breakpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    mode: str
    ttl: str | None = None


_BREAKPOINT: LenientDecoder[Breakpoint] = LenientDecoder(Breakpoint)


def take_breakpoint(
    members: Members, path: str, wire: str, fail: ErrorFactory = request_error
) -> tuple[bool, Ttl | None, Extras | None]:
    """Remove the breakpoint from a part: whether there was one, its TTL (None: the request's), and
    its unknown fields."""
    raw = members.pop("prompt_cache_breakpoint", None)
    if raw is None or bytes(raw) == b"null":
        return False, None, None
    path = f"{path}.prompt_cache_breakpoint"
    marker, unknown = _BREAKPOINT.decode(raw, path, fail)
    extras = unknown.extras(wire) if unknown is not None else None
    return True, breakpoint_ttl(marker, path, fail), extras


def breakpoint_ttl(marker: Breakpoint, path: str, fail: ErrorFactory) -> Ttl | None:
    if marker.mode != "explicit":
        raise fail(f"{marker.mode!r} is not a mode; use explicit", f"{path}.mode")
    if marker.ttl is None:
        return None
    if marker.ttl == "30m":
        return "30m"
    if marker.ttl == "12h":
        return "12h"
    raise fail(f"{marker.ttl!r} is not a TTL; use 30m or 12h", f"{path}.ttl")


def read_breakpoint(
    part: Any, unknown: Unknown | None, wire: str, path: str, fail: ErrorFactory
) -> tuple[Ttl | None, Extras | None]:
    """The TTL of a part's breakpoint, and its unknown fields, which are removed from `unknown`."""
    field = "prompt_cache_breakpoint"
    ttl = breakpoint_ttl(part.prompt_cache_breakpoint, f"{path}.{field}", fail)
    inner = unknown.take(field) if unknown is not None else None
    return ttl, inner.extras(wire) if inner is not None else None
