"""Puts the tools of a request back into the order of an earlier request, and changes nothing else.

    order = tool_order(earlier)
    tools_in_order(later, order)        None: they are in that order, or are not the same tools

Tools move with the markers on them; white space and commas between tools stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from blake3 import blake3

from .reading import decode_members, encode_members
from .spans import ByteSpan, Edit, document_span, edited, element_spans, is_list, member_spans

ToolOrder: TypeAlias = tuple[tuple[bytes, ...], ...]
"""The digests of a request's tools: of each list that holds some."""

#: Members that mark a block or are a marker of their own, and those that hold a list of tools.
_MARKERS = frozenset(("cache_control", "prompt_cache_breakpoint", "cachePoint"))
_INNER = ("functionDeclarations", "function_declarations")
_OPEN_OBJECT = b"{"


def tool_order(body: bytes) -> ToolOrder:
    return tuple(tuple(_digest(body, tool) for tool in tools) for tools in _lists(body))


def tools_in_order(body: bytes, order: ToolOrder) -> bytes | None:
    lists = list(_lists(body))
    edits: list[Edit] = []
    for tools, wanted in zip(lists, order, strict=False):
        found: dict[bytes, list[ByteSpan]] = {}
        for tool in tools:
            found.setdefault(_digest(body, tool), []).append(tool)
        if sorted(wanted) != sorted(_digest(body, tool) for tool in tools):
            return None
        for place, digest in zip(tools, wanted, strict=True):
            tool = found[digest].pop(0)
            if tool != place:
                edits.append((place.start, place.end, body[tool.start : tool.end]))
    return edited(body, edits) if edits and len(lists) == len(order) else None


def _lists(body: bytes) -> Iterator[list[ByteSpan]]:
    """The lists of tools. None if two tools have markers: their lifetimes must fall."""
    members = member_spans(body, document_span(body), "$")
    held = members.get("tools")
    if held is None and "toolConfig" in members and _opens(body, members["toolConfig"].value):
        held = member_spans(body, members["toolConfig"].value, "$.toolConfig").get("tools")
    if held is None or not is_list(body, held.value):
        return
    tools, marked = list[ByteSpan](), 0
    for element in element_spans(body, held.value, "$.tools"):
        fields = member_spans(body, element, "$.tools[]") if _opens(body, element) else {}
        inner = next((fields[name].value for name in _INNER if name in fields), None)
        marked += not _MARKERS.isdisjoint(fields)
        if inner is not None and is_list(body, inner):
            yield element_spans(body, inner, "$.tools[]")
        elif not (fields.keys() <= _MARKERS and fields):
            tools.append(element)
    if marked < 2:
        yield tools


def _opens(body: bytes, span: ByteSpan) -> bool:
    return body.startswith(_OPEN_OBJECT, span.start)


def _digest(body: bytes, tool: ByteSpan) -> bytes:
    data = body[tool.start : tool.end]
    if _opens(body, tool):
        members = decode_members(data)
        data = encode_members({n: raw for n, raw in members.items() if n not in _MARKERS})
    return blake3(data).digest(16)
