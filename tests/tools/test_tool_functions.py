"""Tools from Python functions: what the model sees."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import gc
import json
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from msgspec import Meta
from support.tables import each_row

import anaphora
from anaphora.errors import InvalidRequest, InvalidTool
from anaphora.tools.functions import function_tool, is_async, plain

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForCheckers


class Color(enum.Enum):
    """Paint."""

    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    """A place.

    With two numbers.
    """

    x: int
    y: int = 0


@dataclasses.dataclass
class Box:
    corner: Point
    tags: frozenset[str] = frozenset({"b", "a", "c"})
    more: frozenset[str] | None = frozenset({"e", "d"})


class Options(TypedDict):
    deep: bool


class Pair(NamedTuple):
    left: int
    right: str


class Node(msgspec.Struct):
    value: int
    next: Node | None = None


def schema(function: Callable[..., Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(function_tool(function).schema)
    return loaded


def properties(function: Callable[..., Any]) -> Any:
    return schema(function)["properties"]


def test_complete_tool() -> None:
    def search(query: str, limit: int = 10, *, exact: bool = False) -> list[str]:
        """Searches the notes.

        Newest first.

        Args:
            query: what to look for
            limit: at most this many

        Returns:
            titles
        """
        return []

    tool = function_tool(search)
    assert tool.name == "search"
    assert tool.description == "Searches the notes.\n\nNewest first."
    assert tool.schema == (
        '{"additionalProperties":false,"properties":{'
        '"query":{"description":"what to look for","type":"string"},'
        '"limit":{"default":10,"description":"at most this many","type":"integer"},'
        '"exact":{"default":false,"type":"boolean"}},'
        '"required":["query"],"type":"object"}'
    )


def a_str(p: str) -> None: ...
def a_float(p: float) -> None: ...
def a_list(p: list[int]) -> None: ...
def a_set(p: set[str]) -> None: ...
def a_dict(p: dict[str, float]) -> None: ...
def a_pair(p: tuple[int, str]) -> None: ...
def anything(p: Any) -> None: ...
def a_date(p: datetime.date) -> None: ...
def a_time(p: datetime.datetime | None) -> None: ...


def annotated_union(
    p: int | Annotated[datetime.datetime | bool | None, Meta(description="when")],
) -> None: ...
def an_optional(p: int | None) -> None: ...
def a_union(p: int | str) -> None: ...
def a_literal(p: Literal["b", "a"]) -> None: ...
def a_mixed_literal(p: Literal["b", 1, None]) -> None: ...
def bounded(p: Annotated[int, Meta(ge=1, le=9, description="one digit")]) -> None: ...
def annotated_text(p: Annotated[str, "in words"]) -> None: ...


A_TIME = {"type": "string", "format": "date-time"}
HINTS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (a_str, {"type": "string"}),
    (a_float, {"type": "number"}),
    (a_list, {"type": "array", "items": {"type": "integer"}}),
    (a_set, {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
    (a_dict, {"type": "object", "additionalProperties": {"type": "number"}}),
    (
        a_pair,
        {
            "type": "array",
            "prefixItems": [{"type": "integer"}, {"type": "string"}],
            "items": False,
            "minItems": 2,
            "maxItems": 2,
        },
    ),
    (anything, {}),
    (a_date, {"type": "string", "format": "date"}),
    (a_time, {"anyOf": [A_TIME, {"type": "null"}]}),
    (
        annotated_union,
        {
            "anyOf": [
                {"type": "integer"},
                {"description": "when", "anyOf": [A_TIME, {"type": "boolean"}, {"type": "null"}]},
            ]
        },
    ),
    (an_optional, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    (a_union, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
    (a_literal, {"enum": ["a", "b"]}),
    (a_mixed_literal, {"enum": [None, 1, "b"]}),
    (bounded, {"type": "integer", "minimum": 1, "maximum": 9, "description": "one digit"}),
    (annotated_text, {"type": "string", "description": "in words"}),
]


@each_row("function, expected", HINTS, ids=lambda item: getattr(item, "__name__", ""))
def test_hints(function: Callable[..., Any], expected: dict[str, Any]) -> None:
    assert properties(function) == {"p": expected}
    assert schema(function)["required"] == ["p"]


def test_nested_types_are_shared_definitions_without_titles() -> None:
    def draw(box: Box, color: Color, options: Options, pair: Pair, node: Node) -> None: ...

    made = schema(draw)
    assert made["properties"] == {
        name: {"$ref": f"#/$defs/{kind}"}
        for name, kind in [
            *(("box", "Box"), ("color", "Color"), ("options", "Options")),
            *(("pair", "Pair"), ("node", "Node")),
        ]
    }
    assert made["$defs"]["Color"] == {"description": "Paint.", "enum": ["blue", "red"]}
    assert made["$defs"]["Point"]["description"] == "A place.\n\nWith two numbers."
    assert made["$defs"]["Box"]["properties"]["tags"]["default"] == ["a", "b", "c"]
    assert made["$defs"]["Box"]["properties"]["more"]["default"] == ["d", "e"]
    assert '"title"' not in function_tool(draw).schema


def test_parameter_named_title_is_kept() -> None:
    def rename(title: str, type: str) -> None: ...

    assert list(properties(rename)) == ["title", "type"]


DOCSTRINGS = [
    pytest.param(
        """Says it.

        Args:
            p (str): the words,
                all of them

        Raises:
            ValueError: never
        """,
        "the words,\nall of them",
        id="google",
    ),
    pytest.param(
        """Says it.

        Parameters
        ----------
        p : str
            the words

        Returns
        -------
        None
        """,
        "the words",
        id="numpy",
    ),
    pytest.param("Says it.\n\n:param p: the words\n:returns: nothing", "the words", id="sphinx"),
    pytest.param("Says it.", None, id="nothing about it"),
]


@pytest.mark.parametrize("docstring, about", DOCSTRINGS)
def test_docstrings(docstring: str, about: str | None) -> None:
    def say(p: str) -> None: ...

    say.__doc__ = docstring
    tool = function_tool(say)
    assert tool.description == "Says it."
    assert json.loads(tool.schema)["properties"]["p"].get("description") == about


def test_most_specific_description_wins() -> None:
    def say(
        a: Annotated[str, "text", Meta(description="meta")], b: Annotated[str, "text"], c: str
    ) -> None:
        """Says.

        Args:
            a: docstring
            b: docstring
            c: docstring
        """

    described = {name: item["description"] for name, item in properties(say).items()}
    assert described == {"a": "meta", "b": "text", "c": "docstring"}


def test_defaults() -> None:
    sentinel: Any = object()

    def configure(
        a: Color = Color.BLUE,
        b: frozenset[str] = frozenset({"z", "y", "x"}),
        c: Point = Point(1, 2),  # noqa: B008
        d: float = float("inf"),
        e: int = sentinel,
        f: str = None,  # type: ignore[assignment]  # noqa: RUF013
        g: list[int] = [3],  # noqa: B006
    ) -> None: ...

    made = properties(configure)
    stated = {name: item["default"] for name, item in made.items() if "default" in item}
    assert stated == {"a": "blue", "b": ["x", "y", "z"], "c": {"x": 1, "y": 2}, "f": None, "g": [3]}
    assert made["f"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert schema(configure)["required"] == []


def test_omitted_arguments_use_the_functions_defaults() -> None:
    shared = [1]

    def collect(item: int, into: list[int] = shared) -> list[int]:
        return into

    assert function_tool(collect).arguments.read('{"item":1}') == {"item": 1}


def test_arguments_are_converted() -> None:
    def draw(box: Box, color: Color, when: datetime.date, sizes: set[int]) -> None: ...

    text = '{"box":{"corner":{"x":1}},"color":"red","when":"2026-01-02","sizes":[1,1]}'
    assert function_tool(draw).arguments.read(text) == {
        "box": Box(Point(1)),
        "color": Color.RED,
        "when": datetime.date(2026, 1, 2),
        "sizes": {1},
    }


def find(
    query: str,
    limit: Annotated[int, Meta(ge=1)] = 1,
    mode: Literal["fast", "slow"] | None = None,
    points: list[Point] | None = None,
    scores: dict[int, int] | None = None,
) -> None: ...


PROBLEMS = [
    ('{"query":1}', "arguments.query", "Expected `str`, got `int`"),
    ("{}", "arguments.query", "missing required"),
    ('{"query":"x","limit":"SECRET"}', "arguments.limit", "Expected `int`, got `str`"),
    ('{"query":"x","limit":0}', "arguments.limit", "Expected `int` >= 1"),
    ('{"query":"x","mode":"SECRET"}', "arguments.mode", 'expected one of "fast","slow"'),
    ('{"query":"x","mode":"SECRET - at `$.y`"}', "arguments.mode", 'expected one of "fast"'),
    ('{"query":"x","lim":1}', "arguments.lim", "unknown field; known: query, limit, mode"),
    ('{"query":"x","points":[{"x":1},{}]}', "arguments.points[1].x", "missing required"),
    ('{"query":"x","scores":{"SECRET":1}}', "arguments.scores", "in a key"),
    ("[]", "arguments", "Expected `object`, got `array`"),
    ('{"query":', "arguments", "not JSON"),
    ('{"query":"x","limit":NaN}', "arguments", "not JSON"),
    ("\ud800", "arguments", "not JSON"),
]


@each_row("text, path, reason", PROBLEMS)
def test_mismatching_arguments_are_rejected(text: str, path: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        function_tool(find).arguments.read(text)
    assert caught.value.path == path
    assert reason in str(caught.value)
    assert "SECRET" not in str(caught.value)


def no_hint(query) -> None: ...  # type: ignore[no-untyped-def]
def starred(*queries: str) -> None: ...
def double_starred(**queries: str) -> None: ...
def positional(query: str, /) -> None: ...
def foreign(query: str, handle: Path) -> None: ...
def two_lists(query: list[int] | set[int]) -> None: ...
def misspelt(day: datetime.dat) -> None: ...  # type: ignore[name-defined]
def only_for_checkers(amount: OnlyForCheckers) -> None: ...


REFUSED: list[tuple[Callable[..., Any], str, str]] = [
    (no_hint, "no_hint.query", "has no type hint; add one, e.g. `query: str`"),
    (starred, "starred.queries", "take a list instead"),
    (double_starred, "double_starred.queries", "take a dict instead"),
    (positional, "positional.query", "drop `/`"),
    (foreign, "foreign.handle", "without a JSON form"),
    (two_lists, "two_lists.query", "more than one array-like"),
    (misspelt, "misspelt", "cannot be resolved: module 'datetime' has no attribute 'dat'"),
    (only_for_checkers, "only_for_checkers", "not under TYPE_CHECKING"),
]


@each_row("function, path, advice", REFUSED)
def test_unsupported_functions_are_rejected(
    function: Callable[..., Any], path: str, advice: str
) -> None:
    with pytest.raises(InvalidTool) as caught:
        function_tool(function)
    assert caught.value.path == path
    assert advice in str(caught.value)


def test_two_types_of_one_name() -> None:
    def local() -> type:
        class Local(msgspec.Struct):
            x: int

        return Local

    def both(a: int, b: int) -> None: ...

    both.__annotations__ = {"a": local(), "b": local()}
    with pytest.raises(InvalidTool, match="two types are both called"):
        function_tool(both)


class Street(pydantic.BaseModel):
    """A street
    of a city."""

    model_config = pydantic.ConfigDict(strict=True)
    name: str = pydantic.Field(description="Without the number.", alias="streetName")
    number: int = pydantic.Field(ge=1)
    since: datetime.date | None = None

    @pydantic.field_validator("number")
    @classmethod
    def known(cls, number: int) -> int:
        if number == 13:
            raise ValueError("there is no 13")
        if number == 14:
            raise RuntimeError("SECRET")
        return number


class Place(pydantic.BaseModel):
    title: str
    color: Color = Color.RED
    places: list[Place] = []
    street: Street | None = None


@dataclasses.dataclass
class Trip:
    start: Place


def travel(street: Street, trip: Trip, stops: list[Place], last: Place | None = None) -> None:
    """Travels.

    Args:
        street: Where to live.
    """


def test_pydantic_models_are_definitions() -> None:
    made = schema(travel)
    assert made["properties"] == {
        "street": {"$ref": "#/$defs/Street", "description": "Where to live."},
        "trip": {"$ref": "#/$defs/Trip"},
        "stops": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
        "last": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}], "default": None},
    }
    assert made["$defs"].keys() == {"Street", "Trip", "Place", "Color"}
    assert made["$defs"]["Street"]["description"] == "A street\nof a city."
    assert list(made["$defs"]["Place"]["properties"]) == ["title", "color", "places", "street"]
    assert '"title":"' not in function_tool(travel).schema


STREET = {"streetName": "Via Appia", "number": 5, "since": "2026-01-02"}
PLACE = {"title": "Rome", "color": "red", "places": [{"title": "Colosseum"}]}


def test_pydantic_models_are_validated() -> None:
    given = {"street": STREET, "trip": {"start": PLACE}, "stops": [PLACE]}
    place = Place.model_validate(PLACE)
    assert function_tool(travel).arguments.read(json.dumps(given)) == {
        "street": Street(streetName="Via Appia", number=5, since=datetime.date(2026, 1, 2)),
        "trip": Trip(place),
        "stops": [place],
    }


@pytest.mark.parametrize(
    "number, reason",
    [
        ("SECRET", "number: Input should be a valid integer"),
        (0, "number: Input should be greater than or equal to 1"),
        (13, "number: Value error, there is no 13"),
        (14, "validation raised RuntimeError"),
    ],
)
def test_mismatching_pydantic_models_are_rejected(number: Any, reason: str) -> None:
    given = {"street": STREET | {"number": number}, "trip": {"start": PLACE}, "stops": []}
    with pytest.raises(InvalidRequest) as caught:
        function_tool(travel).arguments.read(json.dumps(given))
    assert str(caught.value) == f"arguments.street: {reason}"
    assert "SECRET" not in str(caught.value)


def test_two_pydantic_models_of_one_name() -> None:
    other = pydantic.create_model("Street", city=(str, ...))

    def both(a: int, b: int) -> None: ...

    both.__annotations__ = {"a": Street, "b": other}
    with pytest.raises(InvalidTool, match="two types are both called 'Street'"):
        function_tool(both)


def test_pydantic_results_are_plain() -> None:
    street = Street(streetName="Via Appia", number=5)
    written = {"streetName": "Via Appia", "number": 5, "since": None}
    assert plain(street) == written
    assert plain({"found": [street]}) == {"found": [written]}
    assert plain(Trip(Place(title="Rome", street=street)))["start"]["street"] == written


def test_return_hint_is_optional() -> None:
    def price(amount: int) -> OnlyForCheckers: ...  # type: ignore[empty-body]

    assert list(properties(price)) == ["amount"]


class Greeter:
    def greet(self, name: str) -> str:
        """Greets."""
        return f"hello {name}"

    async def __call__(self, name: str) -> str:
        """Greets later."""
        return f"hello {name}"


def test_methods_partials_callables_and_wrappers() -> None:
    method = function_tool(Greeter().greet)
    assert (method.name, method.description) == ("greet", "Greets.")
    assert list(json.loads(method.schema)["properties"]) == ["name"]

    partial = function_tool(functools.partial(find, "x"), name="find_x")
    assert "query" not in json.loads(partial.schema)["properties"]

    def book(city: str, db: object, *, nights: int = 1) -> None:
        """Books."""

    bound = function_tool(functools.partial(book, db=object()))
    assert (bound.name, bound.description) == ("book", "Books.")
    assert list(json.loads(bound.schema)["properties"]) == ["city", "nights"]

    assert function_tool(Greeter(), name="greeter").description == "Greets later."
    assert is_async(Greeter())
    assert not is_async(Greeter().greet)

    @functools.wraps(find)
    def wrapper(*args: Any, **kwargs: Any) -> None: ...

    assert function_tool(wrapper).schema == function_tool(find).schema


@pytest.mark.parametrize(
    "nameless", [lambda: 1, functools.partial(lambda: 1), Greeter(), functools.partial(Greeter())]
)
def test_name_is_required(nameless: Callable[..., Any]) -> None:
    with pytest.raises(InvalidTool, match=r"has no name for the model; .* name="):
        function_tool(nameless)
    assert function_tool(nameless, name="given").name == "given"


@pytest.mark.long
def test_function_is_read_once_and_not_kept_alive() -> None:
    def book(city: str) -> None: ...

    assert function_tool(book) is function_tool(book)
    assert function_tool(book, name="other").name == "other"
    weak = weakref.ref(book)
    del book
    gc.collect()
    assert weak() is None


def test_class_is_rejected() -> None:
    with pytest.raises(InvalidTool, match="is a class"):
        function_tool(Greeter, name="greeter")


HASH_SEED_PROGRAM = """
import dataclasses, enum, msgspec
from typing import Literal
from anaphora.tools import ToolRegistry

class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"

class A(msgspec.Struct, tag=True, frozen=True):
    names: frozenset[str] = frozenset({"p", "q", "r", "s"})

class B(msgspec.Struct, tag=True, frozen=True):
    names: frozenset[str] | None = frozenset({"t", "u", "v", "w"})

@dataclasses.dataclass(frozen=True)
class C:
    names: frozenset[str] = frozenset({"x", "y", "z"})

class Holder(msgspec.Struct, frozen=True):
    c: C = C()
    either: A | B | None = A()
    listed: tuple[frozenset[str], ...] = (frozenset({"m", "n", "o"}),)
    named: dict[str, frozenset[str]] = msgspec.field(default_factory=dict)
    pair: tuple[frozenset[str], int] = (frozenset({"g", "h", "f"}), 1)

registry = ToolRegistry()
for name in {"one", "two", "three", "four"}:
    @registry.tool(name=name)
    def function(
        mode: Literal["c", "a", "b", 1, None],
        either: A | B | None,
        color: Color | bool | None = Color.RED,
        names: frozenset[str] = frozenset({"i", "j", "k", "l"}),
        c: C = C(),
        holder: Holder = Holder(),
    ) -> None:
        '''Does it.'''
for tool in registry.tools():
    print(tool.name, tool.description, tool.schema)
"""


def test_hash_seeds_change_no_byte() -> None:
    source = str(Path(anaphora.__file__).parents[1])
    outputs = {
        subprocess.run(
            [sys.executable, "-c", HASH_SEED_PROGRAM],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": source},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2", "3", "4")
    }
    assert len(outputs) == 1
    assert outputs != {b""}
