"""The result of an MCP tool reaches the model once.

Servers of the official package answer with text and, for a tool that returns no object, with the
same value again as `structuredContent: {"result": …}` (mcp 2.3.0).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.emulated_client import AT_ONCE, WIRES, connected

from anaphora import emulator
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.replies.script import Script
from anaphora.emulator.server import Emulator
from anaphora.tools import ToolRegistry

SCRIPT = """
replies:
  - match: {result_of: look}
    reply: {text: Seen.}
  - match: {text: begin}
    reply:
      tool_calls: [{name: look, id: call_1, arguments: {}}]
"""


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


#: A tool's result as the package returns it, a word of it, and how often the model reads the word.
RESULTS: list[tuple[dict[str, Any], str, int]] = [
    ({"content": [text("a lynx")], "structuredContent": {"result": "a lynx"}}, "lynx", 1),
    ({"content": [text("4711")], "structuredContent": {"result": 4711}}, "4711", 1),
    ({"content": [text("true")], "structuredContent": {"result": True}}, "true", 1),
    (
        {
            "content": [text("a lynx"), text("an owl")],
            "structuredContent": {"result": ["a lynx", "an owl"]},
        },
        "lynx",
        1,
    ),
    (
        {
            "content": [text('{\n  "name": "lynx"\n}'), text("[\n  1\n]")],
            "structuredContent": {"result": [{"name": "lynx"}, [1]]},
        },
        "lynx",
        1,
    ),
    (
        {
            "content": [text("lynx"), text("1"), text("2")],
            "structuredContent": {"result": ["lynx", [1, 2]]},
        },
        "lynx",
        1,
    ),
    ({"content": [text('{"name": "lynx"}')], "structuredContent": {"name": "lynx"}}, "lynx", 1),
    # Content without a duplicate is kept.
    ({"content": [], "structuredContent": {"result": "a lynx"}}, "lynx", 1),
    ({"content": [text("found")], "structuredContent": {"result": "a lynx"}}, "lynx", 1),
    ({"content": [text("a lynx")], "structuredContent": {"result": "lynx lynx"}}, "lynx", 3),
    ({"content": [text("lynx")], "structuredContent": {"result": "lynx", "more": 1}}, "lynx", 2),
    ({"content": [text("lynx")], "structuredContent": {"result": ["lynx", "lynx"]}}, "lynx", 3),
]


@pytest.fixture(scope="module")
def scripted() -> Iterator[Emulator]:
    options = EmulatorOptions(latency=AT_ONCE, script=Script.decode(SCRIPT, "script.yaml"))
    with emulator.running(options) as running:
        yield running


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("result, word, times", RESULTS)
def test_duplicate_content_of_a_result_is_sent_once(
    scripted: Emulator, wire: str, result: dict[str, Any], word: str, times: int
) -> None:
    registry = ToolRegistry()

    async def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        assert (name, arguments) == ("look", {})
        return result

    registry.add_mcp([{"name": "look", "inputSchema": {"type": "object"}}], call)

    async def main() -> None:
        async with connected(scripted, [wire]) as emulated:
            chat = emulated.client.session(wire, tools=registry)
            await chat.run("begin")
            sent = json.dumps(json.loads(emulated.transport.bodies[-1]))
            assert sent.count(word) == times

    asyncio.run(main())
