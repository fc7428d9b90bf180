"""One text for one JSON schema, settled when a tool or an output schema is made.

Keywords are sorted at every level. Property names keep the order they were declared in, because
models answer in that order. `required` is a set and follows the properties. Values that happen to
sit in a schema (`enum`, `const`, `default`, `examples`, anything unknown) are data: untouched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anaphora import canonical
from anaphora.errors import InvalidJson, InvalidRequest, InvalidTool

_HOLD_A_SCHEMA = {
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
}
_HOLD_A_LIST = {"allOf", "anyOf", "items", "oneOf", "prefixItems"}
_HOLD_NAMES = {
    "$defs",
    "definitions",
    "dependencies",
    "dependentSchemas",
    "patternProperties",
    "properties",
}


def canonical_schema(
    schema: dict[str, Any] | str | bytes, *, sort_properties: bool = False, path: str = "schema"
) -> str:
    """The schema as canonical JSON text.

    `sort_properties` sorts the names too: for sources whose order is not stable (a Go map, jsonb).
    """
    return _write(_read(schema, path, InvalidRequest), sort_properties, path)


def tool_schema(
    schema: dict[str, Any] | str | bytes, *, sort_properties: bool = False, path: str = "schema"
) -> str:
    """The schema of a tool's arguments as canonical JSON text.

    Arguments are an object on every wire: a missing `type` becomes `object`, missing `properties`
    become none (so `{}` is a tool without arguments), and a `$ref` at the root, which providers
    refuse, is replaced by what it refers to. Any other type raises `InvalidTool`.
    """
    root = inline_root(_read(schema, path, InvalidTool))
    kind = root.setdefault("type", "object")
    if kind != "object":
        raise InvalidTool(
            f'a tool takes an object: `type` must be "object", not {kind!r}; '
            "make the value one of its properties",
            path=path,
        )
    if not isinstance(root.setdefault("properties", {}), dict):
        raise InvalidTool("must map names to schemas", path=f"{path}.properties")
    return _write(root, sort_properties, path)


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema that is an object, the outer ones first; values that are data are left alone.

    What is changed in one of them before the next is asked for is seen.
    """
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword, value in schema.items():
        if keyword in _HOLD_NAMES and isinstance(value, dict):
            inner = list(value.values())
        elif keyword in _HOLD_A_LIST and isinstance(value, list):
            inner = value
        elif keyword in _HOLD_A_SCHEMA:
            inner = [value]
        else:
            continue
        for each in inner:
            yield from subschemas(each)


def _read(schema: object, path: str, problem: type[InvalidRequest]) -> dict[str, Any]:
    """Plain data of our own, whether text or Python values came in."""
    try:
        if not isinstance(schema, str | bytes):
            # Writing first refuses what JSON cannot hold, with the path to it.
            schema = canonical.dumps(schema, path=path)
        plain = canonical.loads(schema, path=path)
    except RecursionError:
        raise InvalidJson("nested too deeply, or contains itself; use $ref", path=path) from None
    if not isinstance(plain, dict):
        raise problem(f"a schema is a JSON object, not {type(plain).__name__}", path=path)
    return plain


def _write(schema: dict[str, Any], sort_properties: bool, path: str) -> str:
    return canonical.dumps(_settle(schema, sort_properties), path=path).decode()


def _settle(schema: Any, sort_properties: bool) -> Any:
    if not isinstance(schema, dict):
        return schema  # `true` and `false` are schemas, and a list of names may stand for one
    settled: dict[str, Any] = {}
    for keyword in sorted(schema):
        value = schema[keyword]
        if keyword in _HOLD_NAMES and isinstance(value, dict):
            names = sorted(value) if sort_properties else value
            value = {name: _settle(value[name], sort_properties) for name in names}
        elif keyword in _HOLD_A_LIST and isinstance(value, list):
            value = [_settle(item, sort_properties) for item in value]
        elif keyword in _HOLD_A_SCHEMA:
            value = _settle(value, sort_properties)
        elif keyword == "required":
            # "properties" sorts before "required", so it is settled by now.
            value = _in_property_order(value, settled.get("properties"))
        settled[keyword] = value
    return settled


def _in_property_order(required: Any, properties: Any) -> Any:
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return required  # draft 3 had a boolean here
    names = set(required)
    known = [name for name in properties if name in names] if isinstance(properties, dict) else []
    return known + sorted(names.difference(known))


def inline_root(schema: dict[str, Any]) -> dict[str, Any]:
    """A recursive model's schema is `{"$ref": "#/$defs/Node", "$defs": …}`: puts Node itself there.

    The definition stays for as long as something else refers to it.
    """
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return schema
    _, _, keyword_and_name = reference.partition("#/")
    keyword, _, name = keyword_and_name.partition("/")
    definitions = schema.get(keyword)
    if keyword not in ("$defs", "definitions") or not isinstance(definitions, dict):
        return schema
    target = definitions.get(name)
    rest = {key: value for key, value in schema.items() if key not in ("$ref", keyword)}
    if not isinstance(target, dict) or target.keys() & (rest.keys() | {keyword}):
        return schema
    others = {key: value for key, value in definitions.items() if key != name}
    if canonical.string(reference) in canonical.dumps([target, others, rest]):
        others = definitions
    return {**rest, **({keyword: others} if others else {}), **target}
