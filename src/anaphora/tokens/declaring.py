"""Tools as OpenAI's models read them: declarations of functions, with comments for descriptions.

The form is known from what models repeat of it. Counted so, the tools of a prompt come within a few
tokens of the bill, where their JSON is half as long again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

#: Schemas may refer to themselves; nobody is billed for more levels than this.
_DEEPEST = 12


def declaration(tool: Mapping[str, Any]) -> str:
    """One function tool, from its name, description and parameters."""
    comment = _comment(tool.get("description"))
    fields = _fields(_mapping(tool.get("parameters")), 0)
    arguments = f"_: {{\n{fields}}}" if fields else ""
    return f"{comment}type {tool.get('name', '')} = ({arguments}) => any;\n\n"


def _fields(schema: Mapping[str, Any], depth: int) -> str:
    required = schema.get("required")
    needed = set(map(str, required)) if isinstance(required, list) else set()
    return "".join(
        f"{_comment(_mapping(field).get('description'))}"
        f"{name}{'' if name in needed else '?'}: {_type(_mapping(field), depth + 1)},\n"
        for name, field in _mapping(schema.get("properties")).items()
    )


def _type(schema: Mapping[str, Any], depth: int) -> str:
    if depth > _DEEPEST:
        return "any"
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "const" in schema:
        return _literal(schema["const"])
    if isinstance(schema.get("enum"), list):
        return " | ".join(map(_literal, schema["enum"]))
    for choice in ("anyOf", "oneOf"):
        if isinstance(schema.get(choice), list):
            return " | ".join(_type(_mapping(one), depth + 1) for one in schema[choice])
    return _named(schema.get("type"), schema, depth)


def _named(kind: object, schema: Mapping[str, Any], depth: int) -> str:
    if isinstance(kind, list):
        return " | ".join(_named(one, schema, depth) for one in kind)
    if kind == "array":
        return f"{_type(_mapping(schema.get('items')), depth + 1)}[]"
    if kind == "object" or "properties" in schema:
        fields = _fields(schema, depth)
        return f"{{\n{fields}}}" if fields else "object"
    if kind in ("integer", "number"):
        return "number"
    return kind if isinstance(kind, str) else "any"


def _comment(description: object) -> str:
    return f"// {description}\n" if isinstance(description, str) and description else ""


def _literal(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
