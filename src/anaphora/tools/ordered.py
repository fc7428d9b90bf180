"""Tools whose order follows the conversation: what a model was given stays where it is until the
history is compacted, since any change before the end would break the cached prefix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from anaphora.errors import InvalidTool
from anaphora.values import ToolResult

from .mcp import McpCall, McpTool, mcp_handler
from .registry import ToolEntry, ToolRegistry, schema_entry


class ListingChange(msgspec.Struct, frozen=True):
    """What another listing of a server changes, by the names of tools."""

    added: tuple[str, ...] = ()
    vanished: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.vanished or self.changed)


class OrderedRegistry(ToolRegistry):
    """A registry of functions and of listings that may change. New tools come last. A tool that is
    no longer listed, or is described differently, stays as it was until `settle`."""

    def __init__(self) -> None:
        super().__init__()
        self._order: tuple[str, ...] = ()
        self._listed: dict[str, set[str]] = {}
        """The tools of each server, those that vanished included."""
        self._later: dict[str, ToolEntry | None] = {}
        """How a tool is described from the next compaction on; None: it is gone."""

    def put_listing(
        self,
        server: str,
        listing: Iterable[McpTool],
        call: McpCall,
        *,
        timeout: float | None = None,
    ) -> ListingChange:
        """Takes the tools that a server lists now, or none where a name is taken."""
        known = self._listed.get(server, set())
        new: list[ToolEntry] = []
        later: dict[str, ToolEntry | None] = {}
        listed: set[str] = set()
        for item in listing:
            key = item.tool.name
            if key in listed:
                reason = f"{server} lists `{item.name}` twice"
                raise InvalidTool(reason, path=f"tools.{item.name}")
            listed.add(key)
            entry = schema_entry(item.name, item.tool, mcp_handler(call, item.listed), timeout)
            if key not in known:
                new.append(entry)
            elif self._entries[key].tool != entry.tool:
                later[key] = entry
            elif self._later.get(key, entry) is None:
                self._put([entry], True)  # it is back, as it was
        vanished = sorted(known - listed)
        later.update(dict.fromkeys(vanished))
        before, after = self._later, {k: v for k, v in self._later.items() if k not in known}
        self._put(sorted(new, key=lambda entry: entry.tool.name), False)
        self._later = after | later
        self._listed[server] = known | listed
        self._stand_in(server, [key for key in vanished if before.get(key, False) is not None])
        return ListingChange(
            added=tuple(entry.tool.name for entry in new) if known else (),
            vanished=tuple(key for key in vanished if before.get(key, False) is not None),
            changed=tuple(key for key, entry in later.items() if entry and key not in before),
        )

    def _stand_in(self, server: str, names: Sequence[str]) -> None:
        """The model may still call a tool that is gone: it is told so."""
        for name in names:
            gone = ToolResult("", f"{server} no longer offers the tool {name}", error=True)

            async def handler(_arguments: dict[str, Any], gone: ToolResult = gone) -> ToolResult:
                return gone

            entry = self._entries[name]
            self._put([schema_entry(entry.name, entry.tool, handler, entry.timeout)], True)

    def settle(self) -> None:
        """Takes over what changed, with all tools in the order of their names: for the moment at
        which the prefix is written again anyway."""
        if not self._later and self._order == tuple(sorted(self._order)):
            return
        entries = dict(self._entries)
        for name, entry in self._later.items():
            if entry is None:
                entries.pop(name, None)
                for names in self._listed.values():
                    names.discard(name)
            else:
                entries[name] = entry
        self._later, self._order = {}, ()
        self._update(entries)

    def _update(self, entries: dict[str, ToolEntry]) -> None:
        kept = tuple(name for name in self._order if name in entries)
        self._order = kept + tuple(sorted(entries.keys() - set(kept)))
        tools = tuple(entries[name].tool for name in self._order)
        self._entries = entries
        if tools != self.current:
            self.current = tools
