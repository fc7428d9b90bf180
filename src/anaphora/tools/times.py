"""Formats of times in the JSON schemas of types.

msgspec adds no format for a time with an optional time zone, and without a format a model may write
any text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import inspect

_Fields = inspect.StructType | inspect.DataclassType | inspect.TypedDictType
_Items = inspect.ListType | inspect.SetType | inspect.FrozenSetType | inspect.VarTupleType


def add_time_formats(kind: Any, schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Add the formats to the schema that msgspec made of a type, and to its definitions."""
    _add(inspect.type_info(kind), schema, definitions, set())


def _add(
    info: inspect.Type, schema: dict[str, Any], definitions: dict[str, Any], seen: set[str]
) -> None:
    info = _bare(info)
    if name := schema.get("$ref", "").removeprefix("#/$defs/"):
        if name in seen or name not in definitions:  # that of a pydantic model has its own
            return
        seen.add(name)
        schema = definitions[name]
    for inner, field in _inner(info, schema):
        _add(inner, field, definitions, seen)
    if isinstance(info, inspect.DateTimeType) and info.tz is None:
        schema.setdefault("format", "date-time")
    elif isinstance(info, inspect.TimeType) and info.tz is None:
        schema.setdefault("format", "time")


def _bare(info: inspect.Type) -> inspect.Type:
    return _bare(info.type) if isinstance(info, inspect.Metadata) else info


def _inner(
    info: inspect.Type, schema: dict[str, Any]
) -> Iterable[tuple[inspect.Type, dict[str, Any]]]:
    """The types inside of a type, each with its schema."""
    if isinstance(info, _Fields | inspect.NamedTupleType):
        if "prefixItems" in schema:  # without the tag, which may be the first
            items = schema["prefixItems"]
            items = items[len(items) - len(info.fields) :]
            return zip((field.type for field in info.fields), items, strict=True)
        return [(field.type, schema["properties"][field.encode_name]) for field in info.fields]
    if isinstance(info, _Items) and "items" in schema:
        return [(info.item_type, schema["items"])]
    if isinstance(info, inspect.TupleType):
        return zip(info.item_types, schema.get("prefixItems", ()), strict=False)
    if isinstance(info, inspect.DictType) and "additionalProperties" in schema:
        return [(info.value_type, schema["additionalProperties"])]
    return _branches(info, schema) if isinstance(info, inspect.UnionType) else ()


def _branches(
    info: inspect.UnionType, schema: dict[str, Any]
) -> Iterable[tuple[inspect.Type, dict[str, Any]]]:
    """The types of a union. msgspec writes structs after others, several as a nested union, and
    null last."""
    types = [_bare(one) for one in info.types if not isinstance(one, inspect.NoneType)]
    types.sort(key=_is_object)
    branches = [branch for branch in schema["anyOf"] if branch != {"type": "null"}]
    if len(branches) < len(types):
        branches += branches.pop()["anyOf"]
    return zip(types, branches, strict=False)


def _is_object(info: inspect.Type) -> bool:
    return isinstance(info, inspect.StructType) and not info.array_like
