"""The MCP servers of one session: started before its first turn, closed with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from anaphora.errors import InvalidTool
from anaphora.tools.mcp import McpTool
from anaphora.tools.registry import ListingChange, ToolRegistry
from anaphora.values import Notice

from . import ADDED, ServerSettings
from .connection import McpConnection


class SessionServers:
    """Shared by the branches of a session; the session that opened them closes them."""

    def __init__(self, servers: Sequence[ServerSettings], registry: ToolRegistry) -> None:
        self._registry = registry
        self._connections = [self._connection(one) for one in servers]
        self._opening = asyncio.Lock()
        self.opened = False
        self._notices: list[Notice] = []

    def _connection(self, settings: ServerSettings) -> McpConnection:
        def listed(tools: Sequence[McpTool]) -> None:
            change = self._registry.put_listing(
                settings.name, tools, connection.call, timeout=settings.server.timeout
            )
            self._notices += _notices(settings.name, change)

        connection = McpConnection(settings, listed)
        return connection

    async def open(self) -> None:
        """Starts all servers that are not running, before the first turn. Where one fails, none is
        left running."""
        if self.opened:
            return
        async with self._opening:
            if self._is_open():
                return
            tasks = [asyncio.create_task(one.open()) for one in self._connections]
            try:
                await asyncio.gather(*tasks)
            except InvalidTool as problem:
                await self.close()
                raise InvalidTool(
                    f"{problem.reason.partition('; pass replace')[0]}; give one of the servers a"
                    " prefix (McpServer(prefix=…))",
                    path=problem.path,
                ) from None
            except BaseException:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                await self.close()
                raise
            # In the order of their names, whichever server was first: nothing was sent yet.
            self._registry.settle()
            self.opened = True

    def _is_open(self) -> bool:
        return self.opened

    def take_notices(self) -> tuple[Notice, ...]:
        """What changed in the listings since the last turn."""
        taken, self._notices = tuple(self._notices), []
        return taken

    async def close(self) -> None:
        self.opened = False
        await asyncio.gather(*(one.close() for one in self._connections))


def _notices(server: str, change: ListingChange) -> list[Notice]:
    texts = (
        (ADDED, change.added, "are new, and come after all others"),
        ("mcp_tools_vanished", change.vanished, "are gone, and stay until the next compaction"),
        (
            "mcp_tools_changed",
            change.changed,
            "are described differently, which takes effect with the next compaction",
        ),
    )
    return [
        Notice(code, f"the MCP server {server}: {', '.join(names)} {text}", "mcp")
        for code, names, text in texts
        if names
    ]
