"""OpenAI's breakpoints and cache options, on both of its wires."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from anaphora.catalog import Profile
from anaphora.prompt import (
    BlockMark,
    Call,
    MarkRequest,
    ToolMark,
)
from anaphora.rendered import ChunkRun
from anaphora.values import (
    Extras,
    Message,
    Notice,
    Ttl,
)

from .lenient import LenientDecoder, Unknown
from .markers import (
    CACHE_KEY,
    MarkLocation,
    find_message,
    supported_ttl,
)
from .openai import OPENAI
from .parts import system_block_index
from .reading import ErrorFactory, Members, object_members, request_error

#: The TTL that is used for each that a caller may request.
NEAREST: dict[Ttl, Ttl] = {"5m": "30m", "30m": "30m", "1h": "30m", "12h": "12h", "24h": "12h"}


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


class MarkPlace(NamedTuple):
    """A part of a message that was sent."""

    path: tuple[int, ...]
    chunk: int
    """Its chunk among those of the message."""
    markable: bool
    from_end: int | None = None
    """The offset of its breakpoint, counted back from the chunk's end; None: at the chunk's own
    splice."""


#: The places in a message by the beginnings of their paths; by the message's chunks.
KnownPlaces: TypeAlias = dict[tuple[int, int], dict[tuple[int, ...], list[MarkPlace]]]


def locate(
    mark: MarkRequest,
    call: Call,
    profile: Profile,
    runs: list[ChunkRun],
    places: Callable[[Message], Iterable[MarkPlace]],
    *,
    explicit: bool,
    known: KnownPlaces,
    held: Sequence[ChunkRun] = (),
) -> MarkLocation:
    """The chunk of a mark request, or the reason why there is none. `explicit`: the model takes
    breakpoints; `known` keeps what was found for other marks of the same call: a message may have
    thousands; `held` are the runs that a stored response holds."""
    if not explicit and not profile.as_sent:
        return f"{call.model} takes no breakpoints: it caches by itself"
    if isinstance(mark, ToolMark):
        return "a tool cannot carry a breakpoint here"
    if isinstance(mark, BlockMark):
        if any(run.section == "system" for run in held):
            return "a stored response holds it, so it is not sent"
        position = system_block_index(call, mark.index, profile)
        if position is None:
            return f"no system block {mark.index}, or a blank one"
        splice = None if explicit else _before_brace(runs[0], position)
        return position, splice  # system blocks are hashed first
    match = find_message(runs, mark.message_id)
    if match is None:
        return f"no message {mark.message_id}"
    run, first, chunks = match
    if any(run is other for other in held):
        return "a stored response holds it, so it is not sent"
    name, path = f"message {mark.message_id}", mark.path
    message = run.source[run.log.message_of(chunks.start)] if chunks else None
    by_path = known.get((first, chunks.start))
    if by_path is None:
        by_path = known[first, chunks.start] = {}
        for place in () if message is None else places(message):
            if place.chunk < len(chunks):
                for end in range(len(place.path) + 1):
                    by_path.setdefault(place.path[:end], []).append(place)
    below = by_path.get(path, [])
    # The last one: a tool result may be several chunks.
    for place in reversed(below):
        if place.markable or profile.as_sent:
            chunk = chunks[place.chunk]
            if place.from_end is None and run.log.splices[chunk] < 0:
                return first + chunk, _before_brace(run, chunk)
            if place.from_end is None:
                return first + chunk, None
            lead = 0 if chunk else len(run.lead)
            size = run.log.ends[chunk] - run.log.start(chunk)
            return first + chunk, lead + size - place.from_end
    if not path:
        return f"no part of {name} can carry a breakpoint"
    name = f"part {list(path)} of {name}"
    if below:
        return f"{name} may not carry a breakpoint"
    exists = message is not None and len(path) == 1 and 0 <= path[0] < len(message.parts)
    return f"{name} is left out of the request" if exists else f"no {name}"


def _before_brace(run: ChunkRun, chunk: int) -> int:
    """The offset of a marker in a chunk that takes none from the planner."""
    return (0 if chunk else len(run.lead)) + run.log.ends[chunk] - run.log.start(chunk) - 1


def key_slot(call: Call) -> bytes | None:
    """The field for the planner's cache key; None if the caller set one."""
    if call.ir.cache.key is not None or _in_extras(call, "prompt_cache_key"):
        return None
    return CACHE_KEY


def options_free(call: Call) -> bool:
    """Whether the caller left the cache options to the planner."""
    cache = call.ir.cache
    options = (cache.mode, cache.automatic, cache.compare_with)
    if cache.prewarm or any(option is not None for option in options):
        return False
    return not _in_extras(call, "prompt_cache_options")


def option_notices(
    call: Call, names: Iterable[str], nearest: Mapping[Ttl, Ttl], *, explicit: bool
) -> list[Notice]:
    """Notices for cache options, which a model without breakpoints does not have."""
    cache = call.ir.cache
    notices: list[Notice] = []
    if explicit and cache.automatic is not None:
        supported_ttl(cache.automatic, nearest, "cache.automatic", notices)
    left_out = [] if explicit else [name for name in names if getattr(cache, name)]
    why = f"{call.model} has no such option; left out"
    return notices + [Notice("cache_option_left_out", why, f"cache.{name}") for name in left_out]


def _in_extras(call: Call, field: str) -> bool:
    return call.extras is not None and any(
        field in object_members(text.encode(), "extras", request_error)
        for wire, text in call.extras.items()
        if wire in OPENAI
    )
