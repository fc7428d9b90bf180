"""MCP listings and results, without any MCP package."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from support.tables import each_row

from anaphora.errors import InvalidRequest, InvalidTool
from anaphora.tools import ToolRegistry, mcp_result, mcp_tools
from anaphora.values import (
    Audio,
    Bytes,
    Document,
    Image,
    Opaque,
    ResultPart,
    Text,
    ToolCall,
    ToolResult,
)

LISTING: dict[str, Any] = {
    "tools": [
        {
            "name": "search",
            "title": "Search",
            "description": "Searches issues.",
            "inputSchema": {
                "type": "object",
                "properties": {"q": {"type": "string"}, "n": {"type": "integer"}},
                "required": ["q"],
            },
            "annotations": {"readOnlyHint": True},
            "_meta": {"listed-at": "today"},
        },
        {"name": "whoami", "title": "Who am I", "inputSchema": {}},
    ],
    "nextCursor": None,
}
DATA = base64.b64encode(b"\x00\x01").decode()


def test_listing() -> None:
    search, whoami = mcp_tools(LISTING, prefix="github_")
    assert (search.listed, search.name, search.tool.name) == ("search", *["github_search"] * 2)
    assert search.tool.description == "Searches issues."
    assert search.tool.schema == (
        '{"properties":{"q":{"type":"string"},"n":{"type":"integer"}},'
        '"required":["q"],"type":"object"}'
    )
    assert search.tool.extras == {"mcp": '{"title":"Search","annotations":{"readOnlyHint":true}}'}
    assert whoami.tool.description == "Who am I"
    assert whoami.tool.schema == '{"properties":{},"type":"object"}'
    assert mcp_tools(LISTING["tools"], prefix="github_") == (search, whoami)


@each_row(
    "listing, path",
    [
        ({}, "tools"),
        ("tools", "tools"),
        ([{"name": "a", "inputSchema": {}}, {"inputSchema": {}}], "tools[1]"),
        ([{"name": ""}], "tools[0]"),
        (["search"], "tools[0]"),
        ([{"name": "a", "inputSchema": {"type": "array"}}], "tools.a.schema"),
        ([{"name": "a", "inputSchema": {"properties": 1}}], "tools.a.schema.properties"),
    ],
)
def test_invalid_listings_are_rejected(listing: object, path: str) -> None:
    with pytest.raises(InvalidTool) as caught:
        mcp_tools(listing)
    assert caught.value.path == path


LINK = {"type": "resource_link", "uri": "file:///a", "name": "a"}
TEXT_RESOURCE = {"type": "resource", "resource": {"uri": "file:///a", "text": "hello"}}


def blob(media_type: str, **more: Any) -> dict[str, Any]:
    resource = {"uri": "file:///a", "mimeType": media_type, "blob": DATA}
    return {"type": "resource", "resource": resource, **more}


RESOURCE_EXTRAS = {"mcp": '{"resource":{"uri":"file:///a"}}'}
PARTS: list[tuple[dict[str, Any], ResultPart]] = [
    ({"type": "text", "text": "hi"}, Text("hi")),
    (
        {"type": "text", "text": "hi", "annotations": {"priority": 1}},
        Text("hi", extras={"mcp": '{"annotations":{"priority":1}}'}),
    ),
    (
        {"type": "image", "data": DATA, "mimeType": "image/png"},
        Image(Bytes(b"\x00\x01", "image/png")),
    ),
    (
        {"type": "audio", "data": DATA, "mimeType": "audio/wav", "_meta": {"a": 1}},
        Audio(Bytes(b"\x00\x01", "audio/wav"), extras={"mcp": '{"_meta":{"a":1}}'}),
    ),
    (LINK, Text('{"type":"resource_link","uri":"file:///a","name":"a"}')),
    (TEXT_RESOURCE, Text('{"type":"resource","resource":{"uri":"file:///a","text":"hello"}}')),
    (blob("image/png"), Image(Bytes(b"\x00\x01", "image/png"), extras=RESOURCE_EXTRAS)),
    (blob("audio/wav"), Audio(Bytes(b"\x00\x01", "audio/wav"), extras=RESOURCE_EXTRAS)),
    (
        blob("application/pdf"),
        Document(Bytes(b"\x00\x01", "application/pdf"), title="file:///a", extras=RESOURCE_EXTRAS),
    ),
]


@each_row("block, part", PARTS)
def test_blocks(block: dict[str, Any], part: ResultPart) -> None:
    assert mcp_result({"content": [block]}).content == (part,)


@each_row(
    "block",
    [
        blob("application/zip"),
        {"type": "image", "data": "not base64!", "mimeType": "image/png"},
        {"type": "image", "data": DATA},
        {"type": "text"},
        {"type": "hologram", "depth": 3},
    ],
)
def test_unknown_blocks_are_kept(block: dict[str, Any]) -> None:
    part = mcp_result({"content": [block]}).content[0]
    assert isinstance(part, Opaque)
    assert (part.provider, part.kind) == ("mcp", block["type"])
    assert json.loads(part.json) == block


def test_error_flag_and_extras_of_a_result() -> None:
    result = mcp_result(
        {"content": [{"type": "text", "text": "no"}], "isError": True, "_meta": {"a": 1}}
    )
    assert result.error
    assert result.extras == {"mcp": '{"_meta":{"a":1}}'}


@pytest.mark.parametrize(
    "text, texts",
    [
        (None, ['{"n":1,"a":2}']),
        ("summary", ["summary", '{"n":1,"a":2}']),
        ('{"a": 2, "n": 1}', ['{"a": 2, "n": 1}']),
    ],
)
def test_structured_content_is_included_once(text: str | None, texts: list[str]) -> None:
    content = [] if text is None else [{"type": "text", "text": text}]
    result = mcp_result({"content": content, "structuredContent": {"n": 1, "a": 2}})
    assert result.content == tuple(Text(item) for item in texts)


def test_empty_result() -> None:
    assert mcp_result({"content": []}).content == ""


@each_row("answer", ["text", None, {}, {"content": "text"}, {"content": ["text"]}])
def test_invalid_results_are_rejected(answer: object) -> None:
    with pytest.raises(InvalidRequest, match="result"):
        mcp_result(answer)


class Model:
    """Stands for a model of the official package."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def model_dump(self, *, mode: str, by_alias: bool, exclude_none: bool) -> dict[str, Any]:
        assert (mode, by_alias, exclude_none) == ("json", True, True)
        return self.data


def test_models_of_the_official_package() -> None:
    assert mcp_tools(Model(LISTING)) == mcp_tools(LISTING)
    result = Model({"content": [{"type": "text", "text": "hi"}]})
    assert mcp_result(result).content == (Text("hi"),)


def test_server_is_called_by_its_own_tool_name() -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def answer(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        calls.append((name, arguments))
        return {"content": [{"type": "text", "text": "found"}]}

    async def answer_later(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return answer(name, arguments)

    def hand_back(name: str, arguments: dict[str, Any]) -> object:
        return answer_later(name, arguments)

    registry = ToolRegistry()
    registry.add_mcp(LISTING, answer, prefix="a_")
    registry.add_mcp(LISTING, answer_later, prefix="b_")
    registry.add_mcp(LISTING, hand_back, prefix="c_")
    bound = [registry.bind(ToolCall("1", f"{prefix}_search", '{"q":"x"}')) for prefix in "abc"]
    assert [item.is_async for item in bound] == [False, True, False]
    found = ToolResult("", (Text("found"),))
    assert bound[0]() == asyncio.run(bound[1]()) == asyncio.run(bound[2]()) == found
    assert calls == [("search", {"q": "x"})] * 3
