"""Values that satisfy a schema: each is valid, or an error is raised."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hostile import KEYED
from support.tables import each_row
from support.waiting import PATIENCE

from anaphora import emulator
from anaphora.emulator.replies.schema_value import SchemaGenerator, UnsatisfiableSchema

TREE: Any = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                "all": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["name", "next", "all"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
BEYOND_FLOATS = {"type": "number", "minimum": 1e300, "multipleOf": 1e-300}
SCHEMAS: dict[str, Any] = {
    "anything": {},
    "a tree": TREE,
    "a constant": {"const": {"a": [1, None]}},
    "one of": {"oneOf": [{"type": "integer"}, {"type": "string", "minLength": 3}]},
    "all of": {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["a", "b"]}]},
    "bounds": {"type": "integer", "exclusiveMinimum": 7, "maximum": 9},
    "below zero": {"type": "number", "maximum": -3},
    "steps": {"type": "integer", "minimum": 10, "multipleOf": 7},
    "halves": {"type": "number", "minimum": 1, "maximum": 2, "multipleOf": 0.5},
    "a pattern": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]+$"},
    "a long text": {"type": "string", "minLength": 200, "maxLength": 210},
    "a date": {"type": "string", "format": "date-time"},
    "a pair": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "items": False,
    },
    "some keys": {"type": "object", "minProperties": 3},
    "a number of keys that is a float": {"type": "object", "minProperties": 2.0},
    "perhaps": {"type": ["string", "null"]},
}


@each_row("name", SCHEMAS)
def test_generated_value_is_valid(name: str) -> None:
    schema = SCHEMAS[name]
    for seed in range(20):
        made = json.loads(SchemaGenerator().generate(json.dumps(schema), b"%d" % seed))
        assert jsonschema_rs.is_valid(schema, made)


@each_row(
    "schema",
    [
        False,
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"$ref": "#/$defs/nowhere"},
        {"$ref": "https://elsewhere.example/schema"},
        {"type": "string", "pattern": "^\\d{3}[a-f]{17}!$"},
        {
            "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1}},
            "$ref": "#/$defs/x",
        },
        {"type": "wat"},
        {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "uniqueItems": True},
        BEYOND_FLOATS,
    ],
)
def test_unsatisfiable_schema_raises(schema: Any) -> None:
    with pytest.raises(UnsatisfiableSchema):
        SchemaGenerator().generate(json.dumps(schema), b"seed")


def doubling(keyword: str, steps: int, count: int) -> Any:
    """A schema of `steps` definitions that stands for one of `count ** steps` parts."""
    defs: Any = {
        f"d{step}": {keyword: [{"$ref": f"#/$defs/d{step + 1}"}] * count} for step in range(steps)
    }
    return {"$defs": {**defs, f"d{steps}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def fields(pattern: str, count: int) -> Any:
    """Properties with a pattern each, all different."""
    return {
        "type": "object",
        "properties": {
            f"p{at}": {"type": "string", "pattern": pattern % (90 + at)} for at in range(count)
        },
        "required": [f"p{at}" for at in range(count)],
    }


def rows(**items: Any) -> Any:
    return {"type": "array", "minItems": 4000, "items": items}


WIDE: Any = {"type": "object", "required": [str(at) for at in range(30_000)]}
for _ in range(5):
    WIDE = {"type": "array", "minItems": 1, "items": WIDE}
WIDE["items"]["items"]["items"]["items"]["items"]["properties"] = {
    str(at): {} for at in range(30_000)
}

#: Each of them kept a server busy for minutes, or for good.
HOSTILE: dict[str, Any] = {
    "a pattern that backtracks": {"type": "string", "pattern": "^(a|a)*b$"},
    "a pattern with look-ahead": {"type": "string", "pattern": "^(?=a)(a|a)*(?<!b)c$"},
    "a long text": {"type": "string", "minLength": 10**9},
    "a long list": {"type": "array", "minItems": 10**9},
    "many fields": {"type": "object", "minProperties": 10**9},
    "alternatives without end": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
    "references in a circle": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "allOf": [{"$ref": "#/$defs/a"}],
    },
    "lists of lists": {
        "$defs": {"row": {"type": "array", "minItems": 90, "items": {"type": "integer"}}},
        "type": "array",
        "minItems": 90,
        "items": {"type": "array", "minItems": 90, "items": {"$ref": "#/$defs/row"}},
    },
    "alternatives of alternatives": doubling("oneOf", 18, 4),
    "a negation of alternatives": {
        "type": "string",
        "not": {"$ref": "#/$defs/d0"},
        "$defs": doubling("anyOf", 40, 4)["$defs"],
    },
    "unevaluated alternatives": {**doubling("anyOf", 19, 2), "unevaluatedProperties": False},
    "a reference chain": {
        "type": "string",
        "not": {"$ref": "#/$defs/0"},
        "$defs": {str(at): {"$ref": f"#/$defs/{at + 1}"} for at in range(50_000)} | {"50000": {}},
    },
    "thousands of alternatives": rows(
        anyOf=[{"type": "null", "title": str(at)} for at in range(20_000)]
    ),
    "thousands of values": rows(enum=list(range(20_000))),
    "long texts": rows(type="string", minLength=99_000),
    "different long texts": {**rows(type="string", minLength=90_000), "uniqueItems": True},
    "a constant many times": rows(const="x" * 200_000),
    "large patterns": fields("^.{1,30%d}$", 50),
    "nested repetitions": fields("^((a{1,90}){1,90}){1,%d}$", 50),
    "classes of letters": fields(r"^\p{L}{1,%d}$", 50),
    "patterns of one text": rows(
        allOf=[{"type": "string"}, *({"pattern": f"^(?=.*a)(?!.*b{at}).*$"} for at in range(100))]
    ),
    "required fields": WIDE,
}


def inside(schema: Any) -> Any:
    """A schema of an object, as tools have it."""
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    defs = schema.get("$defs", {})
    return {"type": "object", "properties": {"x": inner}, "required": ["x"], "$defs": defs}


#: The place of a schema in the requests of each wire.
PLACES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "chat": (
        "/v1/chat/completions",
        lambda schema: {
            "model": "gpt-4o",
            "messages": [{"role": "user", "content": "Hi."}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema},
            },
        },
    ),
    "chat, all replies": (
        "/mistral/v1/chat/completions",
        lambda schema: {
            "model": "mistral-large-latest",
            "n": 128,
            "messages": [{"role": "user", "content": "Hi."}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema},
            },
        },
    ),
    "tool": (
        "/v1/chat/completions",
        lambda schema: {
            "model": "gpt-4o",
            "messages": [{"role": "user", "content": "Hi."}],
            "tools": [{"type": "function", "function": {"name": "look", "parameters": schema}}],
            "tool_choice": "required",
        },
    ),
    "responses": (
        "/v1/responses",
        lambda schema: {
            "model": "gpt-5.1",
            "input": "Hi.",
            "text": {"format": {"type": "json_schema", "name": "answer", "schema": schema}},
        },
    ),
    "anthropic": (
        "/v1/messages",
        lambda schema: {
            "model": "claude-sonnet-4-5",
            "max_tokens": 100,
            "messages": [{"role": "user", "content": "Hi."}],
            "tools": [{"name": "look", "input_schema": inside(schema)}],
            "tool_choice": {"type": "any"},
        },
    ),
    "gemini": (
        "/v1beta/models/gemini-2.5-flash:generateContent",
        lambda schema: {
            "contents": [{"parts": [{"text": "Hi."}]}],
            "generationConfig": {
                "responseMimeType": "application/json",
                "responseJsonSchema": schema,
            },
        },
    ),
}


def status_of(url: str, place: str, schema: Any) -> int:
    path, body_of = PLACES[place]
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01", **KEYED}
    request = Request(url + path, json.dumps(body_of(schema)).encode(), headers)
    try:
        with urlopen(request, timeout=PATIENCE) as response:
            return int(response.status)
    except HTTPError as problem:
        with problem:
            return problem.code


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schema_is_refused_by_the_server(emu: emulator.Emulator, name: str) -> None:
    assert status_of(emu.url, "chat", HOSTILE[name]) == 400


def test_pattern_that_backtracks_is_answered_many_times(emu: emulator.Emulator) -> None:
    """Each match has a limit of steps."""
    schema = rows(type="string", pattern="^(?=(a|a)*$)(a|aa|aaa)*$")
    assert status_of(emu.url, "chat", schema) == 200


def test_steps_beyond_floats_are_refused_by_the_server(emu: emulator.Emulator) -> None:
    assert status_of(emu.url, "chat", inside(BEYOND_FLOATS)) == 400


def test_counting_is_work_too() -> None:
    """Conditions are counted at each attempt; that took seconds."""
    conditions = [
        {"if": {"required": [f"a{index}"]}, "then": {"required": [f"a{index + 1}"]}}
        for index in range(3000)
    ]
    schema = {"type": "object", "required": ["a0"], "allOf": conditions}
    with pytest.raises(UnsatisfiableSchema, match="too much work"):
        SchemaGenerator().generate(json.dumps(schema), b"seed")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["alternatives of alternatives", "thousands of alternatives"])
def test_hostile_schema_anywhere_is_refused(emu: emulator.Emulator, place: str, name: str) -> None:
    assert status_of(emu.url, place, HOSTILE[name]) == 400
    assert status_of(emu.url, place, {"type": "object"}) == 200


def test_hidden_keywords_are_found() -> None:
    schema = json.dumps(doubling("oneOf", 18, 4))
    schema = schema.replace("$ref", "\\u0024ref").replace("oneOf", "one\\u004ff")
    with pytest.raises(UnsatisfiableSchema, match="too much work"):
        SchemaGenerator().generate(schema, b"seed")


def test_decoy_of_a_reference_is_refused() -> None:
    """A schema inside with an id of its own would change what its references refer to."""
    inner = {"$id": "https://example.com/inner", **doubling("oneOf", 18, 4)}
    schema = {"$defs": {"inner": inner, "d0": True}, "$ref": "#/$defs/inner"}
    with pytest.raises(UnsatisfiableSchema, match=r"\$id"):
        SchemaGenerator().generate(json.dumps(schema), b"seed")


def test_reference_to_itself_is_refused_where_no_value_ends_it() -> None:
    """Of the same value; a tree refers to itself in its fields, whatever their names."""
    endless = {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}
    schema: Any = {"type": "string", "not": {"$ref": "#/$defs/a"}, "$defs": {"a": endless}}
    with pytest.raises(UnsatisfiableSchema, match="refers to itself"):
        SchemaGenerator().generate(json.dumps(schema), b"seed")
    tree = {"type": "object", "properties": {"not": {"$ref": "#"}, "$id": {"type": "string"}}}
    made = json.loads(SchemaGenerator().generate(json.dumps(tree), b"seed"))
    assert jsonschema_rs.is_valid(tree, made)


def test_work_is_that_of_one_request() -> None:
    schemas, schema = SchemaGenerator(), json.dumps(rows(type="string", minLength=50))
    assert len(schemas.generate(schema, b"1")) > 4000 * 50
    more = (schemas.generate(schema, b"2") for _ in range(100))
    with pytest.raises(UnsatisfiableSchema, match="too much work"):
        list(more)
    schemas.begin_request()
    assert schemas.generate(schema, b"3")


def test_many_tools_named_in_the_prompt(emu: emulator.Emulator) -> None:
    """No more than 32 are called, and their names are looked for at the end of the text."""
    names = [f"tool_{at}" for at in range(2000)]
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    text = "x" * 1_000_000 + " ".join(names)
    body = {"model": "mistral-9", "tools": tools}
    body |= {"messages": [{"role": "user", "content": text}]}
    headers = {"content-type": "application/json", **KEYED}
    path = f"{emu.url}/mistral/v1/chat/completions"
    with urlopen(Request(path, json.dumps(body).encode(), headers), timeout=PATIENCE) as response:
        message = json.load(response)["choices"][0]["message"]
    assert len(message["tool_calls"]) == 32


def test_keys_follow_the_order_of_the_schema() -> None:
    names = ["zeta", "alpha", "mid"]
    fields = {name: {"type": "string"} for name in [*names, "left out"]}
    schema = {"type": "object", "properties": fields, "required": sorted(names)}
    assert list(json.loads(SchemaGenerator().generate(json.dumps(schema), b"seed"))) == names


def schemas() -> st.SearchStrategy[Any]:
    simple = st.one_of(
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "string"}, {}]),
        st.builds(
            lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
            st.integers(-50, 50),
            st.integers(0, 9),
        ),
        st.lists(st.integers() | st.text(max_size=5), min_size=1, max_size=3).map(
            lambda values: {"enum": values}
        ),
    )
    return st.recursive(
        simple,
        lambda inner: st.one_of(
            st.dictionaries(st.text(max_size=4), inner, max_size=3).map(
                lambda fields: {
                    "type": "object",
                    "properties": fields,
                    "required": sorted(fields),
                    "additionalProperties": False,
                }
            ),
            st.builds(
                lambda items, least: {"type": "array", "items": items, "minItems": least},
                inner,
                st.integers(0, 3),
            ),
            st.lists(inner, min_size=1, max_size=3).map(lambda forms: {"anyOf": forms}),
        ),
        max_leaves=8,
    )


@given(schemas(), st.binary(max_size=4))
def test_plain_schemas_can_always_be_satisfied(schema: Any, seed: bytes) -> None:
    text = json.dumps(schema)
    made = SchemaGenerator().generate(text, seed)
    assert jsonschema_rs.is_valid(schema, json.loads(made))
    assert SchemaGenerator().generate(text, seed) == made
