"""An MCP server of the official package, for tests: `python mcp_server.py [stdio|http PORT]`."""

from __future__ import annotations

import asyncio
import base64
import sys
from typing import Any

from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server
from mcp.types import (
    EmbeddedResource,
    ImageContent,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    TextResourceContents,
    Tool,
)

server = MCPServer("tests")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def picture() -> list[Any]:
    """A picture, and a note about it."""
    assert base64.b64decode(PIXEL)
    resource = TextResourceContents(uri="note://1", text="a dot", mime_type="text/plain")
    return [
        TextContent(type="text", text="Here it is."),
        ImageContent(type="image", data=PIXEL, mime_type="image/png"),
        EmbeddedResource(type="resource", resource=resource),
    ]


@server.tool()
async def slow(seconds: float) -> str:
    """Waits."""
    await asyncio.sleep(seconds)
    return "done"


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("this tool always fails")


async def page(_ctx: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
    """Two tools at a time."""
    start = int((params.cursor if params is not None else None) or 0)
    tools = [Tool(name=f"tool_{n}", input_schema={"type": "object"}) for n in range(5)]
    more = str(start + 2) if start + 2 < len(tools) else None
    return ListToolsResult(tools=tools[start : start + 2], next_cursor=more)


async def serve_pages() -> None:
    pages = Server("pages", on_list_tools=page)
    async with stdio_server() as (read, write):
        await pages.run(read, write, pages.create_initialization_options())


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        server.run("streamable-http", port=int(sys.argv[2]))
    elif sys.argv[1:2] == ["pages"]:
        asyncio.run(serve_pages())
    else:
        server.run()
