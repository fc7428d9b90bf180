"""Tools of MCP servers in a session: servers of the official package, over both transports. Tests of
the process have a server that starts at once."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.emulated_client import KEY, LONG, Connected, connected, settings
from support.tables import each_row
from support.waiting import PATIENCE, until, wait_until

from anaphora import AsyncClient, Client, McpServer, ToolRegistry, errors
from anaphora.client.dispatch import dispatch
from anaphora.client.session import Session
from anaphora.emulator.server import Emulator
from anaphora.values import Image, ProviderTool, Text, ToolCall, ToolResult

SUPPORT = Path(__file__).parents[1] / "support"
SCRIPT, PLAIN = str(SUPPORT / "mcp_server.py"), str(SUPPORT / "plain_mcp_server.py")
TOOLS = ["add", "end", "fail", "forget", "learn", "picture", "slow", "variable"]
CANARY = "canary-8f2b1c"
BROKEN = "import os, sys; sys.exit(f'cannot start with {os.environ.get(\"TOKEN\")}')"


def over_http(url: str, name: str = "tests", **options: Any) -> McpServer:
    """Of the one server that runs already: for tests in which the process is not the point."""
    return McpServer(name=name, url=url, start_timeout=PATIENCE, **options)


def stdio(*args: str, script: str = SCRIPT, **options: Any) -> McpServer:
    command = (sys.executable, script, *args)
    return McpServer(**{"name": "tests", "command": command, "start_timeout": PATIENCE, **options})


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


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest) -> McpServer:
    if request.param == "stdio":
        return stdio()
    return over_http(request.getfixturevalue("http_url"))


#: A process takes a second to start: `test_tools_are_listed_sent_and_called` starts one.
by_http = pytest.mark.parametrize(
    "server", [pytest.param("stdio", marks=pytest.mark.soak), "http"], indirect=True
)


def run(emu: Emulator, main: Callable[[Connected], Any], *names: str) -> None:
    async def connect() -> None:
        async with connected(emu, names or ["anthropic"]) as emulated:
            await main(emulated)

    asyncio.run(connect())


async def call(chat: Session, tool: str, /, **arguments: Any) -> ToolResult:
    assert chat.tools is not None
    return await dispatch(chat.tools, ToolCall("c", tool, json.dumps(arguments)))


def text_of(result: ToolResult) -> str:
    content = result.content
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if isinstance(part, Text))


def names(chat: Session) -> list[str]:
    return [tool.name for tool in chat.sent_tools]


def test_tools_are_listed_sent_and_called(emu: Emulator, server: McpServer) -> None:
    async def main(emulated: Connected) -> None:
        async with emulated.client.session("anthropic", system=LONG, mcp=[server]) as chat:
            await chat.send("Hello", tool_choice="none")
            assert names(chat) == TOOLS
            sent = json.loads(emulated.transport.bodies[-1])["tools"]
            assert [tool["name"] for tool in sent] == TOOLS
            assert sent[0]["input_schema"]["required"] == ["a", "b"]
            assert text_of(await call(chat, "add", a=1, b=2)) == "3"
            content = (await call(chat, "picture")).content
            assert not isinstance(content, str)
            text, image, note = content
            assert isinstance(text, Text)
            assert isinstance(image, Image)
            assert isinstance(note, Text)
            assert "a dot" in note.text
            failed = await call(chat, "fail")
            assert failed.error
            wrong = await call(chat, "add", a="x", b=2)
            assert wrong.error

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
        chat = emulated.client.session(
            "anthropic",
            tools=[lookup, search],
            mcp=[over_http(http_url, tools=["add", "variable"], prefix="mcp_")],
        )
        await chat.run("Hello", max_turns=4)
        assert names(chat) == [
            "lookup", "mcp_add", "mcp_variable", "web_search",
        ]  # fmt: skip
        parts = [part for message in chat.messages for part in message.parts]
        assert any(isinstance(part, ToolResult) for part in parts)
        assert chat.sent_tools is chat.sent_tools
        await chat.close()

    run(emu, main)


@by_http
@pytest.mark.breaks_prefix(reason="what is behind the tools moves when one is added")
def test_changed_listing_keeps_what_was_sent_until_the_next_compaction(
    emu: Emulator, server: McpServer
) -> None:
    async def main(emulated: Connected) -> None:
        client = emulated.client
        async with client.session("anthropic", system=LONG, mcp=[server]) as chat:
            await chat.send("One", tool_choice="none")
            before = names(chat)
            await call(chat, "learn", name="aardvark")
            await until(lambda: "aardvark" in names(chat))
            assert names(chat) == [*before, "aardvark"]
            second = await chat.send("Two", tool_choice="none")
            assert [each.code for each in second.notices if each.path == "mcp"] == [
                "mcp_tools_added"
            ]
            assert text_of(await call(chat, "aardvark")) == "aardvark ran"

            tools = chat.sent_tools
            await call(chat, "forget", name="aardvark")
            third = await chat.send("Three", tool_choice="none")
            while "mcp_tools_vanished" not in {each.code for each in third.notices}:
                third = await chat.send("More", tool_choice="none")
            assert chat.sent_tools is tools
            assert third.verdict is not None
            assert third.verdict.result == "hit"
            gone = await call(chat, "aardvark")
            assert (gone.error, text_of(gone)) == (True, "tests no longer offers the tool aardvark")
            chat.compact(1)
            assert names(chat) == before

    run(emu, main)


def test_server_that_ended_is_started_by_the_next_call(emu: Emulator) -> None:
    async def main(emulated: Connected) -> None:
        async with emulated.client.session("anthropic", mcp=[stdio(script=PLAIN)]) as chat:
            await chat.load()
            ended = await call(chat, "end")
            assert ended.error
            assert "the tool may have run" in text_of(ended)
            assert text_of(await call(chat, "add", a=1, b=2)) == "3"

    run(emu, main)


def test_call_that_takes_too_long_is_a_failed_result(emu: Emulator, http_url: str) -> None:
    async def main(emulated: Connected) -> None:
        server = over_http(http_url, timeout=3.0)
        async with emulated.client.session("anthropic", mcp=[server]) as chat:
            await chat.load()
            late = await call(chat, "slow", seconds=60)
            assert late.error
            assert text_of(await call(chat, "add", a=1, b=2)) == "3"

    run(emu, main)


def test_all_pages_of_a_listing_are_read(emu: Emulator) -> None:
    async def main(emulated: Connected) -> None:
        async with emulated.client.session("anthropic", mcp=[stdio("pages")]) as chat:
            await chat.load()
            assert names(chat) == [f"tool_{number}" for number in range(5)]

    run(emu, main)


def test_server_that_does_not_start_is_ended_at_once(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is waited for that a server does only when it has started."""
    monkeypatch.setattr("anaphora.client.mcp.connection._CLOSE_SECONDS", 2 * PATIENCE)
    silent = McpServer(
        command=(sys.executable, "-c", f"import time; time.sleep({4 * PATIENCE})"),
        start_timeout=0.1,
    )

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            chat = emulated.client.session("anthropic", mcp=[silent])
            async with asyncio.timeout(PATIENCE):
                with pytest.raises(errors.Transport, match="did not list its tools within"):
                    await chat.send("Hello")

    asyncio.run(main())


def test_command_that_does_not_exist_is_named(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            absent = McpServer(name="files", command=("no-such-command", "-y"))
            with pytest.raises(errors.Transport) as caught:
                await emulated.client.session("anthropic", mcp=[absent]).send("Hello")
            assert str(caught.value).endswith(
                "the MCP server files (no-such-command) cannot be used: no command no-such-command"
            )

    asyncio.run(main())


def test_keys_reach_the_server_and_nothing_else(
    emu: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOT_FOR_SERVERS", CANARY)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "TOKEN.txt").write_text(CANARY)
    page = {"providers": settings(emu.url, ["anthropic"])}
    page["mcp"] = {
        "tests": {
            "command": [sys.executable, PLAIN], "env": {"TOKEN": {"secret": "TOKEN"}},
            "start_timeout": PATIENCE,
        },
        "broken": {
            "command": [sys.executable, "-c", BROKEN], "env": {"TOKEN": {"secret": "TOKEN"}},
        },
        "absent": {"url": "https://mcp.invalid/mcp", "headers": {"x-key": {"env": "ABSENT"}}},
    }  # fmt: skip
    (tmp_path / "llm.yaml").write_text(json.dumps(page))

    async def main() -> None:
        async with AsyncClient.from_config(tmp_path / "llm.yaml", environ={"KEY": KEY}) as client:
            async with client.session("anthropic", mcp=["tests"]) as chat:
                await chat.load()
                assert text_of(await call(chat, "variable", name="TOKEN")) == CANARY
                assert text_of(await call(chat, "variable", name="NOT_FOR_SERVERS")) == ""
            with pytest.raises(errors.Transport) as caught:
                await client.session("anthropic", mcp=["broken"]).send("Hello")
            assert CANARY not in str(caught.value)
            assert "the MCP server broken" in str(caught.value)
            assert "it wrote: cannot start with" in str(caught.value)
            with pytest.raises(errors.MissingSecret, match="ABSENT is not set"):
                client.session("anthropic", mcp=["absent"])

    asyncio.run(main())


def test_sync_client(emu: Emulator, http_url: str) -> None:
    config = {"providers": settings(emu.url, ["anthropic"])}
    with (
        Client.from_config(config, environ={"KEY": KEY}) as client,
        client.session("anthropic", mcp=[over_http(http_url)]) as chat,
    ):
        assert chat.send("Hello", tool_choice="none").result().text
        assert chat.run("Hello", max_turns=2).result().responses


def test_no_process_is_left(emu: Emulator) -> None:
    """After the session, after a client that closes its sessions, after a start that failed."""
    marker = f"--{os.getpid()}"

    def running() -> int:
        found = 0
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                found += marker.encode() in file.read_bytes()
            except OSError:
                continue
        return found

    async def main(emulated: Connected) -> None:
        client = emulated.client
        one = client.session("anthropic", mcp=[stdio(marker, script=PLAIN)])
        await one.load()
        branch = one.fork()
        await branch.close()
        assert running() == 1
        await one.close()
        assert running() == 0
        two = client.session("anthropic", mcp=[stdio(marker, script=PLAIN)])
        await two.load()
        bad = [stdio(marker, script=PLAIN), McpServer(name="bad", command=("/nonexistent",))]
        with pytest.raises(errors.Transport, match="bad"):
            await client.session("anthropic", mcp=bad).load()
        assert running() == 1

    run(emu, main)
    assert running() == 0


def test_same_name_twice_needs_a_prefix(emu: Emulator, http_url: str) -> None:
    async def main(emulated: Connected) -> None:
        servers = [over_http(http_url, "one"), over_http(http_url, "two")]
        with pytest.raises(errors.InvalidTool, match="prefix"):
            await emulated.client.session("anthropic", mcp=servers).load()
        servers = [over_http(http_url, "one"), over_http(http_url, "two", prefix="two_")]
        async with emulated.client.session("anthropic", mcp=servers) as chat:
            await chat.load()
            assert names(chat) == sorted([*TOOLS, *(f"two_{name}" for name in TOOLS)])

    run(emu, main)


@pytest.mark.parametrize(
    "given, problem",
    [
        ("files", "must be a list of names and McpServers, not str"),
        (["files"], r"mcp\[0\]: the configuration has no MCP server files; it has none"),
        ([ToolRegistry()], r"mcp\[0\]: must be a name or an McpServer, not ToolRegistry"),
        ([stdio(), stdio()], "there are two servers tests"),
    ],
)
def test_wrong_servers_are_named(emu: Emulator, given: Any, problem: str) -> None:
    async def main(emulated: Connected) -> None:
        with pytest.raises(errors.InvalidRequest, match=problem):
            emulated.client.session("anthropic", mcp=given)

    run(emu, main)


@each_row(
    "table, problem",
    [
        ({}, "either `command` or `url`"),
        ({"command": ["x"], "url": "https://x"}, "either `command` or `url`"),
        ({"url": "ftp://x"}, "must begin with https://"),
        ({"url": "https://user:word@x"}, "put the password into `headers`"),
        ({"url": "https://x", "env": {"A": "b"}}, "env and cwd are for"),
        ({"command": ["x"], "headers": {"A": "b"}}, "headers are for"),
        ({"command": ["x"], "timeout": 0}, "timeout"),
        ({"comand": ["x"]}, "comand"),
    ],
)
def test_wrong_tables_of_the_configuration_are_named(
    emu: Emulator, table: dict[str, Any], problem: str
) -> None:
    config = {"providers": settings(emu.url, ["anthropic"]), "mcp": {"tests": table}}
    with pytest.raises(errors.InvalidConfig, match=problem):
        AsyncClient.from_config(config, environ={"KEY": KEY})
