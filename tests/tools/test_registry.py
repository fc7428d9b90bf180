"""The tool registry: a stable set of tools, and calls bound to them."""

from __future__ import annotations

import ast
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

import anaphora.tools
from anaphora.errors import InvalidJson, InvalidRequest, InvalidTool
from anaphora.tools import ToolRegistry
from anaphora.values import CachePolicy, Tool, ToolCall, to_json


def search(query: str, limit: int = 10) -> str:
    """Searches."""
    return f"{query} {limit}"


def answer(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": name}]}


def listed(*names: str, order: Callable[[list[str]], list[str]] = list) -> list[dict[str, Any]]:
    properties = order(["query", "limit", "page", "sort", "state", "labels"])
    return [
        {
            "name": name,
            "description": f"Does {name}.",
            "inputSchema": {
                "type": "object",
                "properties": {item: {"type": "string"} for item in properties},
            },
        }
        for name in names
    ]


def section(registry: ToolRegistry) -> bytes:
    """The bytes a renderer would write for the tools."""
    return to_json(registry.tools())


NAMES = ["search", "fetch", "files/read", "a" * 70, "Zoom", "z-last"]


@given(st.permutations(NAMES), st.randoms(use_true_random=False))
def test_any_registration_order_gives_the_same_bytes(
    names: list[str], order: random.Random
) -> None:
    expected = ToolRegistry()
    for name in NAMES:
        expected.add(search, name=name)
    registry = ToolRegistry()
    for name in names:
        registry.add(search, name=name)
    for name in order.sample(names, 2):
        registry.remove(name)
        registry.add(search, name=name)
    assert section(registry) == section(expected)


def test_bifrost_3362_tools_in_map_order() -> None:
    sections = set()
    for names in itertools.permutations(["list", "get", "create", "close"]):
        registry = ToolRegistry()
        registry.add_mcp(listed(*names), answer)
        sections.add(section(registry))
    assert len(sections) == 1


def test_bifrost_2347_properties_in_map_order() -> None:
    order = random.Random(2347)
    sections = set()
    for _ in range(20):
        registry = ToolRegistry()
        listing = listed("get", "list", order=lambda names: order.sample(names, len(names)))
        registry.add_mcp(listing, answer, sort_properties=True)
        sections.add(section(registry))
    assert len(sections) == 1


def test_oh_my_pi_890_reconnect_reorders_tools() -> None:
    registry = ToolRegistry()
    registry.add(search)
    registry.add_mcp(listed("a", "b", "c"), answer, prefix="github_")
    before, bytes_before = registry.tools(), section(registry)
    registry.add_mcp(listed("c", "a", "b"), answer, prefix="github_", replace=True)
    assert registry.tools() is before
    assert section(registry) == bytes_before


def test_librefang_3765_hot_reload_reorders_tools() -> None:
    registry = ToolRegistry()
    registry.add_mcp(listed("a", "b", "c"), answer)
    before = section(registry)
    for name in ("a", "b", "c"):
        registry.remove(name)
    registry.add_mcp(listed("b", "c", "a"), answer)
    assert section(registry) == before


def test_jsonb_round_trip_of_a_schema() -> None:
    """jsonb loses the order of properties too, so this source needs `sort_properties`."""
    schema = {
        "type": "object",
        "properties": {"query": {"type": "string", "minLength": 1}, "n": {"type": "integer"}},
    }

    def jsonb(value: Any) -> Any:
        """PostgreSQL keeps keys by length, then by bytes."""
        if not isinstance(value, dict):
            return value
        keys = sorted(value, key=lambda key: (len(key), key.encode()))
        return {key: jsonb(value[key]) for key in keys}

    registry, reloaded = ToolRegistry(), ToolRegistry()
    registry.add_schema("search", "Searches.", schema, print, sort_properties=True)
    text = json.dumps(jsonb(schema))
    reloaded.add_schema("search", "Searches.", text, print, sort_properties=True)
    assert section(reloaded) == section(registry)


def test_openclaw_58037_tools_sorted_whatever_the_source() -> None:
    first, second = ToolRegistry(), ToolRegistry()
    first.add_mcp(listed("b", "a"), answer, prefix="x_")
    first.add(search)
    first.add_schema("m", "", {}, print)
    second.add_schema("m", "", {}, print)
    second.add_mcp(listed("a", "b"), answer, prefix="x_")
    second.add(search)
    assert [tool.name for tool in first.tools()] == ["m", "search", "x_a", "x_b"]
    assert section(first) == section(second)


def test_deepagents_2497_listing_order_not_guaranteed() -> None:
    pages = [listed("d", "b"), listed("c", "a")]
    first, second = ToolRegistry(), ToolRegistry()
    for page in pages:
        first.add_mcp(page, answer)
    for page in reversed(pages):
        second.add_mcp(page, answer)
    assert section(first) == section(second)


def test_tuple_is_the_same_object_until_a_change() -> None:
    registry = ToolRegistry()
    registry.add(search)
    before = registry.tools()
    assert registry.tools() is before
    registry.add(search, replace=True)
    assert registry.tools() is before
    registry.add(search, name="other")
    assert registry.tools() is not before
    assert registry.tools()[1] is before[0]
    registry.remove("other")
    assert registry.tools() == before


def test_replacing_an_equal_tool_takes_the_new_handler() -> None:
    registry = ToolRegistry()
    registry.add_schema("now", "", {}, lambda _: "old")
    registry.add_schema("now", "", {}, lambda _: "new", replace=True)
    assert registry.bind(ToolCall("1", "now"))() == "new"


def test_registry_is_a_mapping() -> None:
    registry = ToolRegistry()
    assert (len(registry), registry.tools(), "search" in registry) == (0, (), False)
    tool = registry.add(search)
    assert (len(registry), registry.tools(), "search" in registry) == (1, (tool,), True)
    assert registry.get("search") is tool
    assert registry.get("other") is registry.get("") is None
    assert 1 not in registry
    for name in ("other", ""):
        with pytest.raises(KeyError):
            registry.remove(name)


def test_options_of_a_function() -> None:
    registry = ToolRegistry()
    tool = registry.add(
        search,
        name="find",
        description="Finds.",
        cache=CachePolicy.EPHEMERAL_1H,
        timeout=2,
        strict=True,
    )
    assert (tool.name, tool.description, tool.strict) == ("find", "Finds.", True)
    assert tool.cache is CachePolicy.EPHEMERAL_1H
    assert registry.bind(ToolCall("1", "find", '{"query":"x"}')).timeout == 2


def test_decorators() -> None:
    registry = ToolRegistry()

    @registry.tool
    def plain(q: str) -> str:
        return q

    @registry.tool(name="later", timeout=3)
    async def renamed(q: str) -> str:
        return q

    assert plain("x") == "x"
    assert [tool.name for tool in registry.tools()] == ["later", "plain"]
    assert registry.bind(ToolCall("1", "later", '{"q":"x"}')).is_async


def test_tool_without_a_handler_cannot_be_bound() -> None:
    registry = ToolRegistry()
    given_tool = Tool("ask", "Asks.", '{"type":"object"}', cache=CachePolicy.EPHEMERAL_5M)
    tool = registry.add(given_tool, strict=True)
    assert tool.schema == '{"properties":{},"type":"object"}'
    assert (tool.cache, tool.strict) == (CachePolicy.EPHEMERAL_5M, True)
    with pytest.raises(InvalidRequest, match="no handler"):
        registry.bind(ToolCall("1", "ask"))


def test_duplicates_are_rejected() -> None:
    registry = ToolRegistry()
    registry.add(search)
    with pytest.raises(InvalidTool, match="already a tool `search`; pass replace=True"):
        registry.add(search)
    with pytest.raises(InvalidTool, match="already a tool `b`"):
        registry.add_mcp(listed("a", "b", "b"), answer, replace=True)


def test_listing_is_added_atomically() -> None:
    registry = ToolRegistry()
    registry.add(search)
    with pytest.raises(InvalidTool):
        registry.add_mcp(listed("a", "search"), answer)
    assert len(registry) == 1


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_timeouts_must_be_positive(timeout: float) -> None:
    with pytest.raises(InvalidTool, match=r"tools\.search\.timeout: must be a positive number"):
        ToolRegistry().add(search, timeout=timeout)


def test_invalid_descriptions_are_rejected() -> None:
    with pytest.raises(InvalidJson, match=r"tools\.search\.description: lone surrogate"):
        ToolRegistry().add(search, description="\ud800")
    with pytest.raises(InvalidTool, match=r"tools\.a\.description: must be text"):
        ToolRegistry().add_mcp([{"name": "a", "description": ["x"]}], answer)


def test_binding_a_function() -> None:
    registry = ToolRegistry()
    tool = registry.add(search)
    call = ToolCall("1", "search", '{"query":"x"}')
    bound = registry.bind(call)
    assert (bound.call, bound.tool, bound.is_async, bound.timeout) == (call, tool, False, None)
    assert bound() == "x 10"


@pytest.mark.parametrize("arguments", ["", " ", "{}"])
def test_empty_text_means_no_arguments(arguments: str) -> None:
    registry = ToolRegistry()
    registry.add(lambda: "now", name="now")
    registry.add_schema("here", "", {}, lambda given_arguments: given_arguments)
    assert registry.bind(ToolCall("1", "now", arguments))() == "now"
    assert registry.bind(ToolCall("1", "here", arguments))() == {}


@pytest.mark.parametrize("name", ["serch", ""])
def test_unknown_tools_name_the_known_ones(name: str) -> None:
    registry = ToolRegistry()
    registry.add(search)
    registry.add(search, name="fetch")
    with pytest.raises(InvalidRequest, match=f"no tool `{name}`; known tools: fetch, search"):
        registry.bind(ToolCall("1", name))


SCHEMA = {
    "type": "object",
    "properties": {
        "mode": {"enum": ["fast", "slow"]},
        "filters": {"type": "array", "items": {"type": "object", "required": ["kind"]}},
    },
    "required": ["mode"],
    "additionalProperties": False,
}
PROBLEMS = [
    ('{"mode":"SECRET"}', "arguments.mode", 'expected one of "fast", "slow"'),
    ("{}", "arguments.mode", "is missing"),
    ('{"mode":"fast","filters":"SECRET"}', "arguments.filters", "expected array"),
    ('{"mode":"fast","filters":[{"kind":1},{}]}', "arguments.filters[1].kind", "is missing"),
    ('{"mode":"fast","lim":1}', "arguments", "unknown field: lim"),
    ("[]", "arguments", "expected an object"),
    ("{", "arguments", "not JSON"),
    ("[" * 100_000, "arguments", "nested too deeply"),
]


@each_row("text, path, reason", PROBLEMS, ids=range(len(PROBLEMS)))
def test_arguments_that_do_not_match_a_schema(text: str, path: str, reason: str) -> None:
    registry = ToolRegistry()
    registry.add_schema("find", "", SCHEMA, print)
    with pytest.raises(InvalidRequest) as caught:
        registry.bind(ToolCall("1", "find", text))
    assert caught.value.path == path
    assert reason in str(caught.value)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    "schema, reason",
    [
        ({"properties": {"a": {"type": "strin"}}}, "not a JSON schema"),
        ({"properties": {"a": {"$ref": "file:///etc/hostname"}}}, "is not fetched"),
        ({"properties": {"a": {"$ref": "https://example.com/a.json"}}}, "is not fetched"),
    ],
)
def test_schemas_that_cannot_be_checked(schema: dict[str, Any], reason: str) -> None:
    registry = ToolRegistry()
    registry.add_schema("find", "", schema, print)
    with pytest.raises(InvalidTool, match=reason) as caught:
        registry.bind(ToolCall("1", "find", '{"a":1}'))
    assert caught.value.path == "tools.find.schema"


FORBIDDEN = {"asyncio", "os", "time", "random", "logging", "socket"}
LAZY = {"docstring_parser", "jsonschema_rs"}


@pytest.mark.parametrize(
    "file", sorted(Path(anaphora.tools.__file__).parent.glob("*.py")), ids=lambda f: f.name
)
def test_tools_layer_does_no_io(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        roots = {name.partition(".")[0] for name in names}
        assert not roots & FORBIDDEN
        assert not (roots & LAZY and node in tree.body)
