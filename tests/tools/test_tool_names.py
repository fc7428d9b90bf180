"""Tool names that every provider accepts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.errors import InvalidTool
from anaphora.tools import ToolRegistry, wire_name
from anaphora.values import ToolCall

LEGAL = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")

NAMES = [
    ("search", "search"),
    ("get-weather_2", "get-weather_2"),
    ("x" * 64, "x" * 64),
    ("github.search", "github_search_d517bbad"),
    ("github/search", "github_search_59039f97"),
    ("größe", "gr__e_18ee8410"),
    (" ", "__00263ca9"),
    ("x" * 65, "x" * 55 + "_a32b4a70"),
]


@each_row("name, expected", NAMES)
def test_wire_name(name: str, expected: str) -> None:
    assert wire_name(name) == expected


def test_tool_name_is_required() -> None:
    with pytest.raises(InvalidTool, match="needs a name"):
        wire_name("")


anything = st.text(st.characters(), min_size=1, max_size=100)


@given(anything)
def test_wire_name_is_valid_and_idempotent(name: str) -> None:
    wired = wire_name(name)
    assert LEGAL.fullmatch(wired)
    assert wire_name(wired) == wired
    assert (wired == name) == bool(LEGAL.fullmatch(name))


@given(st.lists(anything, unique=True, max_size=8))
def test_different_names_stay_different(names: list[str]) -> None:
    assert len({wire_name(name) for name in names}) == len(names)


def test_call_by_wire_name_reaches_the_handler() -> None:
    registry = ToolRegistry()
    tool = registry.add_schema("files/read", "", {}, lambda _: "read")
    registry.add_schema("files.read", "", {}, lambda _: "other")
    assert registry.bind(ToolCall("1", tool.name)).run() == "read"
    assert registry.bind(ToolCall("1", "files/read")).run() == "read"
    assert registry.get("files/read") is registry.get(tool.name) is tool


@pytest.mark.parametrize("replace", [False, True])
def test_colliding_names_error_names_both(replace: bool) -> None:
    registry = ToolRegistry()
    taken = wire_name("files/read")
    registry.add_schema(taken, "", {}, lambda _: None)
    with pytest.raises(InvalidTool, match=f"`files/read` and `{taken}` would both be called"):
        registry.add_schema("files/read", "", {}, lambda _: None, replace=replace)
