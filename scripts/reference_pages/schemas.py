"""JSON Schemas of msgspec structs as tables, with the docstrings of their fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from . import source
from .markdown import cell, code, table

#: Bounds in a schema, and how a table shows them.
_BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
}


def field_docs(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The docstrings of a struct's fields, by name in the file."""
    found = source.find(kind.__module__, kind.__name__)
    docs = {member.name: member.doc for member in source.members(found)}
    return {field.encode_name: docs.get(field.name, "") for field in msgspec.structs.fields(kind)}


def fields_table(
    kind: type[msgspec.Struct],
    schema: Mapping[str, Any],
    links: Mapping[str, str],
    told: Mapping[str, str] | None = None,
) -> list[str]:
    """The fields of a struct: type, default, meaning. `links`: anchors of other structs; `told`:
    Markdown for fields, by default their docstrings."""
    told = {name: cell(doc) for name, doc in field_docs(kind).items()} | {**(told or {})}
    required = schema.get("required", ())
    rows = [
        (
            code(name),
            type_text(value, links),
            "required" if name in required else code(default_text(value)),
            told.get(name, ""),
        )
        for name, value in schema.get("properties", {}).items()
    ]
    return table(("field", "type", "default", ""), rows)


def default_text(schema: Mapping[str, Any]) -> str:
    if "default" not in schema:
        return ""
    text = json.dumps(schema["default"], ensure_ascii=False)
    return text if len(text) <= 40 else "…"


def type_text(schema: Mapping[str, Any], links: Mapping[str, str]) -> str:
    return " or ".join(dict.fromkeys(_types(schema, links)))


def _types(schema: Mapping[str, Any], links: Mapping[str, str]) -> Iterator[str]:
    if "anyOf" in schema:
        for each in schema["anyOf"]:
            yield from _types(each, links)
    elif "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        yield f"[{name}](#{links[name]})" if name in links else name
    elif "enum" in schema:
        yield from (code(json.dumps(each)) for each in schema["enum"])
    elif "const" in schema:
        yield code(json.dumps(schema["const"]))
    elif schema.get("type") == "array":
        items = schema.get("items") or schema.get("prefixItems", [{}])[0] or {}
        yield f"list of {type_text(items, links) or 'anything'}"
    elif schema.get("type") == "object":
        inner = schema.get("additionalProperties")
        inside = type_text(inner, links) if isinstance(inner, Mapping) else ""
        yield f"mapping to {inside}" if inside else "object"
    elif "type" in schema:
        bounds = [text.format(f"{schema[key]:,}") for key, text in _BOUNDS.items() if key in schema]
        yield " ".join([schema["type"], ", ".join(bounds)]).strip()
    else:
        yield "any value"
