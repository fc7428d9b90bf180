"""Gemini's own schema form, read as JSON Schema.

`parameters` and `responseSchema` take a subset of OpenAPI: types in capitals, `nullable`, counts as
texts. What comes in it goes back in it; other wires get the JSON Schema that says the same.
"""

from __future__ import annotations

from typing import Any

from anaphora.canonical import dumps, loads

from .naming import camel

_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength")
_LISTS = ("anyOf", "prefixItems")
_ONE = ("items", "additionalProperties")
_TABLES = ("properties", "defs")


def json_schema(raw: bytes, path: str) -> str:
    """The schema in JSON Schema's words, keys in the order they came."""
    return dumps(_read(loads(raw, path=path)), path=path).decode()


def _read(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    read: dict[str, Any] = {}
    for said, value in schema.items():
        name = said if said.startswith("$") else camel(said)
        if name in ("nullable", "propertyOrdering"):
            continue  # the first is told with the type, the second is the order of properties
        read[name] = _keyword(name, value)
    kind = read.get("type")
    if schema.get("nullable") is True and isinstance(kind, str):
        read["type"] = [kind, "null"]
    return read


def _keyword(name: str, value: Any) -> Any:
    if name == "type" and isinstance(value, str):
        return value.lower()
    if name in _COUNTS and isinstance(value, str) and value.isdecimal():
        return int(value)
    if name in _LISTS and isinstance(value, list):
        return [_read(item) for item in value]
    if name in _ONE:
        return _read(value)
    if name in _TABLES and isinstance(value, dict):
        return {key: _read(item) for key, item in value.items()}
    return value
