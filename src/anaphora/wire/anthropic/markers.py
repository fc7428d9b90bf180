"""Anthropic's cache markers: their bytes, how they are read, and where a caller's mark lands."""

from __future__ import annotations

from anaphora.catalog import Profile
from anaphora.prompt import BlockMark, Call, MarkRequest, ToolMark
from anaphora.rendered import ChunkRun
from anaphora.values import AnyTool, Extras, ToolResult, Ttl
from anaphora.wire.markers import MarkLocation, find_message
from anaphora.wire.reading import ErrorFactory, LenientDecoder, Members, Unknown

from .parts import loaded_tools, nested_splice, sent_parts
from .types import WIRE, CacheControl, ContentBlock, MessagesRequest, ToolDefinition

MARKERS: dict[Ttl, bytes] = {
    "5m": b',"cache_control":{"type":"ephemeral"}',
    "1h": b',"cache_control":{"type":"ephemeral","ttl":"1h"}',
}

#: The TTL that each one asked for gets: long enough, where there is one.
NEAREST: dict[Ttl, Ttl] = {"5m": "5m", "30m": "1h", "1h": "1h", "12h": "1h", "24h": "1h"}

_CACHE_CONTROL = LenientDecoder[CacheControl | None](CacheControl | None)


def marker_of(
    holder: ContentBlock | ToolDefinition | MessagesRequest,
    unknown: Unknown | None,
    path: str,
    fail: ErrorFactory,
) -> tuple[Ttl, Extras | None] | None:
    """The TTL of an object's marker, and the marker's unknown members."""
    if holder.cache_control is None:
        return None
    inner = unknown.take("cache_control") if unknown is not None else None
    return _read(holder.cache_control, inner, f"{path}.cache_control", fail)


def take_marker(
    members: Members, path: str, fail: ErrorFactory
) -> tuple[Ttl, Extras | None] | None:
    """The same for an object that is not decoded; the marker is removed from its members."""
    raw = members.pop("cache_control", None)
    if raw is None:
        return None
    path = f"{path}.cache_control"
    marker, unknown = _CACHE_CONTROL.decode(raw, path, fail)
    return None if marker is None else _read(marker, unknown, path, fail)


def _read(
    marker: CacheControl, unknown: Unknown | None, path: str, fail: ErrorFactory
) -> tuple[Ttl, Extras | None]:
    extras = unknown.extras(WIRE) if unknown is not None else None
    if marker.type != "ephemeral":
        raise fail(f"{marker.type!r} is not a kind of marker; use ephemeral", f"{path}.type")
    if marker.ttl in (None, "5m"):
        return "5m", extras
    if marker.ttl == "1h":
        return "1h", extras
    raise fail(f"{marker.ttl!r} is not a TTL; use 5m or 1h", f"{path}.ttl")


def locate(
    request: MarkRequest,
    call: Call,
    profile: Profile,
    tools: tuple[AnyTool, ...],
    runs: list[ChunkRun],
) -> MarkLocation:
    """The chunk a mark means, or why there is none."""
    loaded = loaded_tools(tools)
    if isinstance(request, ToolMark):
        for index, tool in enumerate(loaded):
            if tool.name == request.name:
                return index, None
        if any(tool.name == request.name for tool in tools):
            return f"tool {request.name} is deferred, so it cannot be cached"
        return f"no tool {request.name}"
    if isinstance(request, BlockMark):
        position = call.ir.system_field_index(request.index)
        if position is None:
            return f"no system block {request.index}, or a blank one"
        return len(loaded) + position, None
    match = find_message(runs, request.message_id)
    if match is None:
        return f"no message {request.message_id}"
    run, first, chunks = match
    name = f"message {request.message_id}"
    if chunks.stop > run.count:
        return f"{name} carries the state this turn, so it cannot be cached"
    if not request.path:
        last = next((chunk for chunk in reversed(chunks) if run.log.splices[chunk] >= 0), None)
        return f"no part of {name} can carry a marker" if last is None else (first + last, None)
    name = f"part {list(request.path)} of {name}"
    message = run.source[run.log.message_of(chunks.start)] if chunks else None
    if message is None or not 0 <= request.path[0] < len(message.parts):
        return f"no {name}"
    sent, position = sent_parts(message, profile), request.path[0]
    chunk = chunks.start + sum(sent[:position])
    if not sent[position] or chunk >= chunks.stop:  # reasoning at the end may be left out
        return f"{name} is left out of the request"
    if len(request.path) > 1:
        part, inside = message.parts[position], None
        if len(request.path) == 2 and isinstance(part, ToolResult):
            inside = nested_splice(part, request.path[1])
        if inside is None:
            return f"no {name} that can carry a marker"
        return first + chunk, _block_offset(run, chunk) + inside
    if run.log.splices[chunk] < 0:
        return f"{name} takes no marker"
    return first + chunk, None


def _block_offset(run: ChunkRun, chunk: int) -> int:
    """How many bytes of a chunk's data stand before its block."""
    lead = len(run.lead) if chunk == 0 else 0
    data = run.log.slice(run.log.start(chunk), run.log.ends[chunk])
    return lead + data.index(b'{"type":"tool_result"')
