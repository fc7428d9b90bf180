"""Values that satisfy a schema: each is valid, or an error is raised."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    "no two alike": {
        "type": "array",
        "items": {"enum": [1, 2, 3]},
        "minItems": 3,
        "uniqueItems": True,
    },
    "a pair": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "items": False,
    },
    "some keys": {"type": "object", "minProperties": 3},
    "perhaps": {"type": ["string", "null"]},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_generated_value_is_valid(name: str) -> None:
    schema = SCHEMAS[name]
    for seed in range(20):
        made = json.loads(SchemaGenerator().generate(json.dumps(schema), b"%d" % seed))
        assert jsonschema_rs.is_valid(schema, made)


@pytest.mark.parametrize(
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
    ],
)
def test_unsatisfiable_schema_raises(schema: Any) -> None:
    with pytest.raises(UnsatisfiableSchema):
        SchemaGenerator().generate(json.dumps(schema), b"seed")


#: Each of them kept a server busy for minutes, or for good.
HOSTILE: dict[str, Any] = {
    "a pattern that backtracks": {"type": "string", "pattern": "^(a|a)*b$"},
    "a pattern with look-ahead": {"type": "string", "pattern": "^(?=a)(a|a)*(?<!b)c$"},
    "a long text": {"type": "string", "minLength": 10**9},
    "a long list": {"type": "array", "minItems": 10**9},
    "many fields": {"type": "object", "minProperties": 10**9},
    "alternatives without end": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
    "lists of lists": {
        "$defs": {"row": {"type": "array", "minItems": 90, "items": {"type": "integer"}}},
        "type": "array",
        "minItems": 90,
        "items": {"type": "array", "minItems": 90, "items": {"$ref": "#/$defs/row"}},
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schema_is_refused_by_the_server(name: str) -> None:
    form = {"name": "answer", "schema": HOSTILE[name]}
    body = {
        "model": "gpt-4o",
        "messages": [{"role": "user", "content": "Hi."}],
        "response_format": {"type": "json_schema", "json_schema": form},
    }
    with emulator.running() as running, pytest.raises(HTTPError) as raised:
        urlopen(
            Request(
                f"{running.url}/v1/chat/completions",
                json.dumps(body).encode(),
                {"content-type": "application/json", "authorization": "Bearer k"},
            ),
            timeout=60,
        )
    assert raised.value.code == 400
    raised.value.close()


def test_keys_follow_the_order_of_the_schema() -> None:
    names = ["zeta", "alpha", "mid"]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
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
