"""Tools of an open MCP session: servers of the official package, over both transports."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from support.emulated_client import KEY, LONG, Connected, connected, settings
from support.waiting import wait_until

from anaphora import Client, ToolRegistry, errors, mcp_tools
from anaphora.client.dispatch import dispatch
from anaphora.client.session import Session
from anaphora.emulator.server import Emulator
from anaphora.values import Image, ProviderTool, Text, ToolCall, ToolResult

SCRIPT = str(Path(__file__).parents[1] / "support" / "mcp_server.py")
TOOLS = ["add", "fail", "picture", "slow"]


@pytest.fixture(scope="module")
def http_url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "http", str(port)], stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: _answers(f"http://127.0.0.1:{port}/mcp"), "the server answers")
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        httpx.get(url)
    except httpx.HTTPError:
        return False
    return True


@asynccontextmanager
async def opened(*args: str, url: str = "") -> AsyncIterator[ClientSession]:
    """A session with a process of its own, or with the server at `url`."""
    parameters = StdioServerParameters(command=sys.executable, args=[SCRIPT, *args])
    transport: Any = streamable_http_client(url) if url else stdio_client(parameters)
    async with transport as streams, ClientSession(*streams[:2]) as session:
        await session.initialize()
        yield session


def run(emu: Emulator, main: Callable[[Connected], Any]) -> None:
    async def connect() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            await main(emulated)

    asyncio.run(connect())


async def call(tools: ToolRegistry, tool: str, /, **arguments: Any) -> ToolResult:
    return await dispatch(tools, ToolCall("c", tool, json.dumps(arguments)))


def text_of(result: ToolResult) -> str:
    content = result.content
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if isinstance(part, Text))


def names(chat: Session) -> list[str]:
    return [tool.name for tool in chat.sent_tools]


@pytest.mark.parametrize("transport", [pytest.param("stdio", marks=pytest.mark.long), "http"])
def test_tools_are_listed_sent_and_called(emu: Emulator, http_url: str, transport: str) -> None:
    async def main(emulated: Connected) -> None:
        async with opened(url=http_url if transport == "http" else "") as session:
            tools = await mcp_tools(session)
            chat = emulated.client.session("anthropic", system=LONG, tools=tools)
            await chat.send("Hello", tool_choice="none")
            assert names(chat) == TOOLS
            sent = json.loads(emulated.transport.bodies[-1])["tools"]
            assert [tool["name"] for tool in sent] == TOOLS
            assert sent[0]["input_schema"]["required"] == ["a", "b"]
            assert text_of(await call(tools, "add", a=1, b=2)) == "3"
            content = (await call(tools, "picture")).content
            assert not isinstance(content, str)
            text, image, note = content
            assert isinstance(text, Text)
            assert isinstance(image, Image)
            assert isinstance(note, Text)
            assert "a dot" in note.text
            assert (await call(tools, "fail")).error
            assert (await call(tools, "add", a="x", b=2)).error
        assert (await call(tools, "add", a=1, b=2)).error, "the session has ended"

    run(emu, main)


def test_run_uses_the_tools_beside_functions_and_provider_tools(
    emu: Emulator, http_url: str
) -> None:
    def lookup(word: str) -> str:
        """Looks a word up."""
        return word

    definition = '{"type":"web_search_20250305","name":"web_search"}'
    search = ProviderTool("anthropic", "web_search", definition)

    async def main(emulated: Connected) -> None:
        async with opened(url=http_url) as session:
            found = await mcp_tools(session, prefix="mcp_")
            chat = emulated.client.session("anthropic", tools=[lookup, found, search])
            await chat.run("Hello", max_turns=4)
            assert names(chat) == [
                "lookup", "mcp_add", "mcp_fail", "mcp_picture", "mcp_slow", "web_search",
            ]  # fmt: skip
            parts = [part for message in chat.messages for part in message.parts]
            assert any(isinstance(part, ToolResult) for part in parts)

    run(emu, main)


def test_call_that_takes_too_long_is_a_failed_result(emu: Emulator, http_url: str) -> None:
    async def main(_: Connected) -> None:
        async with opened(url=http_url) as session:
            tools = await mcp_tools(session, timeout=0.5)
            late = await call(tools, "slow", seconds=60)
            assert late.error
            patient = await mcp_tools(session)
            assert text_of(await call(patient, "add", a=1, b=2)) == "3"

    run(emu, main)


@pytest.mark.long
def test_all_pages_of_a_listing_are_read(emu: Emulator) -> None:
    async def main(_: Connected) -> None:
        async with opened("pages") as session:
            tools = await mcp_tools(session)
            assert [tool.name for tool in tools.tools()] == [f"tool_{n}" for n in range(5)]

    run(emu, main)


def test_sync_client_calls_them_in_the_loop_of_their_session(emu: Emulator, http_url: str) -> None:
    config = {"providers": settings(emu.url, ["anthropic"])}

    def ask(tools: ToolRegistry) -> list[Any]:
        with Client.from_config(config, environ={"KEY": KEY}) as client:
            chat = client.session("anthropic", tools=tools)
            assert chat.run("Hello", max_turns=2).result().responses
            return [part for message in chat.messages for part in message.parts]

    async def main() -> None:
        async with opened(url=http_url) as session:
            parts = await asyncio.to_thread(ask, await mcp_tools(session))
        results = [part for part in parts if isinstance(part, ToolResult)]
        assert results
        assert not any("another loop" in text_of(result) for result in results)

    asyncio.run(main())


def test_same_name_twice_needs_a_prefix(emu: Emulator, http_url: str) -> None:
    async def main(emulated: Connected) -> None:
        async with opened(url=http_url) as session:
            tools = await mcp_tools(session)
            with pytest.raises(errors.InvalidTool, match="already a tool `add`"):
                emulated.client.session("anthropic", tools=[tools, await mcp_tools(session)])
            other = await mcp_tools(session, prefix="b_")
            chat = emulated.client.session("anthropic", tools=[tools, other])
            assert names(chat) == [*TOOLS[:1], *(f"b_{name}" for name in TOOLS), *TOOLS[1:]]

    run(emu, main)


@pytest.mark.parametrize("given", [None, "files", ClientSession])
def test_anything_else_is_named(given: Any) -> None:
    async def main() -> None:
        with pytest.raises(
            errors.InvalidRequest, match=r"session: must be an open mcp.ClientSession, not"
        ):
            await mcp_tools(given)

    asyncio.run(main())
