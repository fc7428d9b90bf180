"""Canonical schemas are independent of the order of keywords."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.errors import InvalidJson, InvalidRequest, InvalidTool
from anaphora.tools import canonical_schema, tool_schema

CANONICAL = [
    pytest.param({"type": "string", "minLength": 1}, '{"minLength":1,"type":"string"}', id="flat"),
    pytest.param(
        {"type": "object", "properties": {"z": {"type": "string"}, "a": {}}},
        '{"properties":{"z":{"type":"string"},"a":{}},"type":"object"}',
        id="properties keep their order",
    ),
    pytest.param(
        {"required": ["x", "a", "z", "b"], "properties": {"z": {}, "a": {}}},
        '{"properties":{"z":{},"a":{}},"required":["z","a","b","x"]}',
        id="required follows the properties, then the alphabet",
    ),
    pytest.param(
        {"required": ["a", "a"], "properties": {"a": {}}},
        '{"properties":{"a":{}},"required":["a"]}',
        id="required is a set",
    ),
    pytest.param(
        {"properties": {"a": {"type": "string", "required": True}}},
        '{"properties":{"a":{"required":true,"type":"string"}}}',
        id="draft 3 required",
    ),
    pytest.param(
        {"enum": [{"z": 1, "a": 2}, "b", "a"], "default": {"z": {"y": 1, "b": 2}}},
        '{"default":{"z":{"y":1,"b":2}},"enum":[{"z":1,"a":2},"b","a"]}',
        id="values are data",
    ),
    pytest.param(
        {"const": {"type": 1, "enum": 2}, "examples": [{"type": 1, "enum": 2}]},
        '{"const":{"type":1,"enum":2},"examples":[{"type":1,"enum":2}]}',
        id="data that looks like a schema",
    ),
    pytest.param(
        {"x-vendor": {"z": 1, "a": 2}}, '{"x-vendor":{"z":1,"a":2}}', id="unknown keywords are data"
    ),
    pytest.param(
        {"properties": {"properties": {"type": "object", "properties": {}}, "enum": {}}},
        '{"properties":{"properties":{"properties":{},"type":"object"},"enum":{}}}',
        id="properties named like keywords",
    ),
    pytest.param(
        {"items": [{"type": "string", "maxLength": 1}, True], "additionalItems": False},
        '{"additionalItems":false,"items":[{"maxLength":1,"type":"string"},true]}',
        id="items as a list, boolean schemas",
    ),
    pytest.param(
        {"dependencies": {"b": ["c", "a"], "a": {"type": "object", "not": {}}}},
        '{"dependencies":{"b":["c","a"],"a":{"not":{},"type":"object"}}}',
        id="dependencies hold names or schemas",
    ),
    pytest.param(
        {"type": "number", "minimum": 1.0, "description": "größer ✓"},
        '{"description":"größer ✓","minimum":1.0,"type":"number"}',
        id="numbers and text as given",
    ),
]

SUBSCHEMA = {"type": "string", "maxLength": 3}
SETTLED = '{"maxLength":3,"type":"string"}'
PLACES = [
    *(
        (keyword, SUBSCHEMA, SETTLED)
        for keyword in (
            *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if"),
            *("items", "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
        )
    ),
    *(
        (keyword, [SUBSCHEMA], f"[{SETTLED}]")
        for keyword in ("allOf", "anyOf", "items", "oneOf", "prefixItems")
    ),
    *(
        (keyword, {"z": SUBSCHEMA, "a": True}, f'{{"z":{SETTLED},"a":true}}')
        for keyword in (
            *("$defs", "definitions", "dependencies", "dependentSchemas"),
            *("patternProperties", "properties"),
        )
    ),
]


@each_row("given_schema, text", CANONICAL)
def test_canonical_text(given_schema: dict[str, Any], text: str) -> None:
    assert canonical_schema(given_schema) == text
    assert canonical_schema(json.dumps(given_schema)) == text
    assert canonical_schema(text) == text


@each_row("keyword, value, text", PLACES)
def test_every_place_where_schemas_live(keyword: str, value: Any, text: str) -> None:
    assert canonical_schema({keyword: value}) == f'{{"{keyword}":{text}}}'


def test_sorted_properties_on_request() -> None:
    schema = {
        "properties": {"z": {"properties": {"y": {}, "b": {}}}, "a": {}},
        "required": ["z", "a"],
    }
    assert canonical_schema(schema, sort_properties=True) == (
        '{"properties":{"a":{},"z":{"properties":{"b":{},"y":{}}}},"required":["a","z"]}'
    )


@each_row(
    "value, path",
    [
        (float("nan"), "schema.properties.q.default"),
        (float("-inf"), "schema.properties.q.default"),
        ("\ud800", "schema.properties.q.default"),
        (["ok", {"deep": "\udfff"}], "schema.properties.q.default[1].deep"),
        ({1: 2}, "schema.properties.q.default"),
        ({1, 2}, "schema.properties.q.default"),
    ],
)
def test_invalid_values_are_rejected_with_their_path(value: Any, path: str) -> None:
    with pytest.raises(InvalidJson) as caught:
        canonical_schema({"properties": {"q": {"default": value}}})
    assert caught.value.path == path


def test_schema_that_contains_itself() -> None:
    schema: dict[str, Any] = {}
    schema["not"] = schema
    with pytest.raises(InvalidJson, match="contains itself"):
        canonical_schema(schema)


@pytest.mark.parametrize("text", ["[]", "true", "null", '"x"'])
def test_schema_must_be_an_object(text: str) -> None:
    with pytest.raises(InvalidRequest, match="JSON object"):
        canonical_schema(text)
    with pytest.raises(InvalidTool, match="JSON object"):
        tool_schema(text)


def test_text_that_is_not_json() -> None:
    with pytest.raises(InvalidJson, match="not JSON"):
        canonical_schema('{"default": NaN}')


NODE = '"properties":{"next":{"$ref":"#/$defs/Node"}},"type":"object"'
TOOL = [
    pytest.param({}, '{"properties":{},"type":"object"}', id="nothing"),
    pytest.param({"type": "object"}, '{"properties":{},"type":"object"}', id="no properties"),
    pytest.param(
        {"properties": {"q": {}}}, '{"properties":{"q":{}},"type":"object"}', id="no type"
    ),
    pytest.param(
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"q": {}}}}},
        '{"properties":{"q":{}},"type":"object"}',
        id="$ref at the root",
    ),
    pytest.param(
        "{" + f'"$ref":"#/$defs/Node","$defs":{{"Node":{{{NODE}}}}}' + "}",
        "{" + f'"$defs":{{"Node":{{{NODE}}}}},{NODE}' + "}",
        id="$ref at the root, recursive",
    ),
    pytest.param(
        {"$ref": "https://example.com/a.json"},
        '{"$ref":"https://example.com/a.json","properties":{},"type":"object"}',
        id="$ref elsewhere stays",
    ),
    pytest.param(
        {"$ref": "#/$defs/A", "$defs": {"A": {"$defs": {}}}},
        '{"$defs":{"A":{"$defs":{}}},"$ref":"#/$defs/A","properties":{},"type":"object"}',
        id="$ref that cannot be inlined stays",
    ),
]


@each_row("given_schema, text", TOOL)
def test_tool_schema(given_schema: dict[str, Any] | str, text: str) -> None:
    assert tool_schema(given_schema) == text
    assert tool_schema(text) == text


@pytest.mark.parametrize("kind", ["string", "array", ["object", "null"], None])
def test_tool_takes_an_object(kind: Any) -> None:
    with pytest.raises(InvalidTool, match='must be "object"') as caught:
        tool_schema({"type": kind}, path="tools.search.schema")
    assert caught.value.path == "tools.search.schema"


def test_properties_must_map_names() -> None:
    with pytest.raises(InvalidTool, match=r"schema\.properties: must map names"):
        tool_schema({"properties": ["q"]})


def test_sglang_34553_properties_and_required_swapped() -> None:
    first = '{"type":"object","properties":{"q":{},"n":{}},"required":["q","n"]}'
    second = '{"required":["n","q"],"type":"object","properties":{"q":{},"n":{}}}'
    assert tool_schema(first) == tool_schema(second)


json_values: st.SearchStrategy[Any] = (
    st.sampled_from([None, True, 2**70, {"z": 1, "a": {"type": 1, "enum": 2}}, ["b", {"y": 1}]])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
)
names = st.sampled_from(["q", "limit", "type", "properties", "required", "größe", "z", "a"])


def _level(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "string", "array"]),
            "description": st.text(max_size=3),
            "properties": st.dictionaries(names, inner, max_size=4),
            "required": st.lists(names, max_size=4, unique=True),
            "items": inner | st.lists(inner, max_size=2),
            "anyOf": st.lists(inner, max_size=3),
            "additionalProperties": inner | st.booleans(),
            "$defs": st.dictionaries(names, inner, max_size=2),
            "enum": st.lists(json_values, max_size=3),
            "default": json_values,
        },
    )


leaves = st.sampled_from([{}, True, False, {"type": "string", "maxLength": 1}])
schemas = _level(_level(leaves) | leaves)


def shuffled(schema: Any, order: random.Random) -> Any:
    """Keywords and `required` in another order; property names and data as they are."""
    if not isinstance(schema, dict):
        return schema
    keywords = list(schema)
    order.shuffle(keywords)
    result = {}
    for keyword in keywords:
        value = schema[keyword]
        if keyword in ("properties", "$defs"):
            value = {name: shuffled(item, order) for name, item in value.items()}
        elif keyword in ("items", "anyOf", "additionalProperties"):
            if isinstance(value, list):
                value = [shuffled(item, order) for item in value]
            else:
                value = shuffled(value, order)
        elif keyword == "required":
            value = order.sample(value, len(value))
        result[keyword] = value
    return result


@given(schemas, st.booleans())
def test_canonicalisation_is_idempotent(schema: dict[str, Any], sort_properties: bool) -> None:
    once = canonical_schema(schema, sort_properties=sort_properties)
    assert canonical_schema(once, sort_properties=sort_properties) == once


@given(schemas, st.randoms(use_true_random=False))
def test_keyword_order_does_not_matter(schema: dict[str, Any], order: random.Random) -> None:
    assert canonical_schema(shuffled(schema, order)) == canonical_schema(schema)


@given(schemas)
def test_nothing_is_added_or_lost(schema: dict[str, Any]) -> None:
    """Apart from `required`, whose order means nothing, the schema is unchanged."""

    def forget_required(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: sorted(item, key=repr)
                if key == "required" and isinstance(item, list)
                else forget_required(item)
                for key, item in value.items()
            }
        return [forget_required(item) for item in value] if isinstance(value, list) else value

    assert forget_required(json.loads(canonical_schema(schema))) == forget_required(schema)
