"""Tools and system blocks: what every wire does the same way with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind, LogAppend
from anaphora.values import AnyTool, Notice, ProviderTool, Section, Tool

T = TypeVar("T")

#: Tools that belong to no provider.
_NOBODYS = frozenset({Tool})


def own_tools(
    tools: tuple[AnyTool, ...], providers: tuple[str, ...]
) -> tuple[tuple[AnyTool, ...], list[Notice]]:
    """The tools without those that another provider brings along, and a notice for each of these.
    The same tuple where there are none: its bytes are found by identity."""
    if _NOBODYS.issuperset(map(type, tools)):
        return tools, []  # asked at every turn, and nearly always so
    notices = [
        Notice("foreign_tool", f"{tool.name} is {tool.provider}'s own; left out", f"tools[{index}]")
        for index, tool in enumerate(tools)
        if isinstance(tool, ProviderTool) and tool.provider not in providers
    ]
    if not notices:
        return tools, []
    own = [t for t in tools if not isinstance(t, ProviderTool) or t.provider in providers]
    return tuple(own), notices


def each(
    section: Section, items: tuple[T, ...], say: Callable[[T], bytes], splice: int | None
) -> LogAppend:
    """The items of a section, each a chunk; an error names the one it is about."""
    out = LogAppend()
    kind = Kind.TOOL if section == "tools" else Kind.SYSTEM
    for index, item in enumerate(items):
        try:
            data = say(item)
        except InvalidRequest as problem:
            raise problem.within(f"{section}[{index}]") from None
        out.chunk(kind, b"," + data if index else data, splice)
    return out
