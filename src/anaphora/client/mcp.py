"""Tools of an MCP server, over a session of the package `mcp` that the app has opened."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from anaphora.errors import InvalidRequest, MissingExtra
from anaphora.tools import ToolRegistry

if TYPE_CHECKING:
    from mcp import ClientSession

#: The most pages of a listing.
_MOST_PAGES = 1000


async def mcp_tools(
    session: ClientSession, *, prefix: str = "", timeout: float | None = None
) -> ToolRegistry:
    """The tools of an open session, which is the app's to close:

        async with stdio_client(server) as streams, ClientSession(*streams) as session:
            await session.initialize()
            chat = client.session("anthropic-default", tools=await mcp_tools(session))

    `prefix` is added to the names, for servers that share a tool's name; `timeout` is that of a
    call, in seconds. The listing is read once: its order and descriptions stay those of the
    conversation.
    """
    try:
        from mcp import ClientSession
        from mcp.types import PaginatedRequestParams
    except ImportError:
        raise MissingExtra(
            "MCP servers need the package mcp: pip install 'anaphora[mcp]'", extra="mcp"
        ) from None
    if not isinstance(session, ClientSession):
        raise InvalidRequest(
            f"must be an open mcp.ClientSession, not {type(session).__name__}", path="session"
        )
    home = asyncio.get_running_loop()

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        asked = session.call_tool(name, arguments)
        if asyncio.get_running_loop() is home:
            return await asked
        # A sync client has an event loop of its own.
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, home))

    listed: list[Any] = []
    params: PaginatedRequestParams | None = None
    seen = set[str]()
    for _ in range(_MOST_PAGES):
        page = await session.list_tools(params=params)
        listed += page.tools
        cursor = page.next_cursor
        if cursor is None or cursor in seen:
            break
        seen.add(cursor)
        params = PaginatedRequestParams(cursor=cursor)
    registry = ToolRegistry()
    registry.add_mcp(listed, call, prefix=prefix, timeout=timeout)
    return registry
