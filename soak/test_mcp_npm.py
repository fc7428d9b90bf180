"""A session with an MCP server of npm: the reference server, which has tools of every kind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from strangers.environment import Unavailable
from strangers.environment import programs as programs_of
from support.emulated_client import LONG, connected
from support.missing import skip_without

from anaphora import emulator, mcp_tools
from anaphora.client.dispatch import dispatch
from anaphora.client.session import Session
from anaphora.values import Image, Text, ToolCall, ToolResult


async def call(chat: Session, tool: str, /, **arguments: Any) -> ToolResult:
    assert chat.tools is not None
    result = await dispatch(chat.tools, ToolCall("c", tool, json.dumps(arguments)))
    assert not result.error, result
    return result


def test_reference_server_of_npm() -> None:
    try:
        program = programs_of("npm") / "mcp-server-everything"
    except Unavailable as problem:
        skip_without(problem)

    async def main() -> None:
        with emulator.running() as emu:
            async with connected(emu, ["anthropic"]) as emulated:
                server = StdioServerParameters(command=str(program), args=["stdio"])
                async with stdio_client(server) as streams, ClientSession(*streams) as session:
                    await session.initialize()
                    tools = await mcp_tools(session)
                    chat = emulated.client.session("anthropic", system=LONG, tools=tools)
                    first = await chat.send("Hello", tool_choice="none")
                    assert first.text
                    names = [tool.name for tool in chat.sent_tools]
                    assert names == sorted(names)
                    print(", ".join(names))
                    heard = (await call(chat, "echo", message="heard")).content
                    assert any(isinstance(part, Text) and "heard" in part.text for part in heard)
                    picture = (await call(chat, "get-tiny-image")).content
                    assert any(isinstance(part, Image) for part in picture)
                    second = await chat.send("Again", tool_choice="none")
                    assert second.verdict is not None
                    assert second.verdict.result == "hit"

    asyncio.run(main())
