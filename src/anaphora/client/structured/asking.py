"""The schema that a provider is given for a type, and whether a strict mode would take it.

A provider enforces a small part of JSON Schema and refuses a request that asks for more. So a
type's schema is said in that part: objects are closed, fields that could be left out are asked for
where a model has a way to say nothing, and bounds are told in words. The answer is still checked
against all that the type says.
"""

from __future__ import annotations

import inspect
from typing import Any

from anaphora import canonical
from anaphora.tools.schema import inline_root, subschemas

#: What both OpenAI's strict mode and Anthropic enforce. From their SDKs, which make schemas fit:
#: openai/lib/_pydantic.py and anthropic/lib/_parse/_transform.py.
_ENFORCED = {
    "$defs",
    "$ref",
    "additionalProperties",
    "anyOf",
    "const",
    "description",
    "enum",
    "format",
    "items",
    "properties",
    "required",
    "type",
}
_FORMATS = {
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "time",
    "uuid",
}
#: Bounds on a value, which are told in words.
_BOUNDS = (
    "contentEncoding",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "uniqueItems",
)


def asked(schema: dict[str, Any]) -> dict[str, Any]:
    """A type's own schema in the words that providers enforce."""
    ours: dict[str, Any] = inline_root(canonical.loads(canonical.dumps(schema)))
    definitions = ours.get("$defs", {})
    for each in subschemas(ours):
        each.pop("title", None)
        if "description" in each:
            each["description"] = inspect.cleandoc(each["description"])
        if "discriminator" in each:
            # The tag tells the forms apart, so at most one of them fits anyway.
            del each["discriminator"]
            if "oneOf" in each:
                each["anyOf"] = each.pop("oneOf")
        _close(each, definitions)
        _tell_bounds(each)
        _leave_references_alone(each)
    return ours


def takes_strict(schema: dict[str, Any]) -> bool:
    """Whether OpenAI's strict mode takes the schema as it is; it answers 400 otherwise."""
    return schema.get("type") == "object" and all(map(_is_strict, subschemas(schema)))


def _close(schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    """No other fields than the type's, and of those all that can be said to be empty."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return
    schema.setdefault("additionalProperties", False)
    required = set(schema.get("required", ()))
    for name, field in properties.items():
        if "default" in field or _may_be_empty(field, definitions):
            required.add(name)
        field.pop("default", None)
    if required:
        schema["required"] = [name for name in properties if name in required]


def _may_be_empty(schema: dict[str, Any], definitions: dict[str, Any]) -> bool:
    """Whether null fits, or a list without items."""
    if "$ref" in schema:
        schema = definitions.get(schema["$ref"].removeprefix("#/$defs/"), {})
    kind = schema.get("type")
    if kind == "null" or (isinstance(kind, list) and "null" in kind):
        return True
    if kind == "array":
        return not schema.get("minItems")
    return any(branch.get("type") == "null" for branch in schema.get("anyOf", ()))


def _tell_bounds(schema: dict[str, Any]) -> None:
    told = [
        f"{keyword} {canonical.dumps(schema.pop(keyword)).decode()}"
        for keyword in _BOUNDS
        if keyword in schema
    ]
    if schema.get("format", "date") not in _FORMATS:
        told.append(f"format {schema.pop('format')}")
    if told:
        said = [schema["description"]] if "description" in schema else []
        schema["description"] = "\n".join([*said, f"({', '.join(told)})"])


def _leave_references_alone(schema: dict[str, Any]) -> None:
    """A `$ref` has nothing beside it, or strict mode refuses it."""
    if "$ref" in schema and not schema.keys() <= {"$ref", "$defs"}:
        schema["anyOf"] = [{"$ref": schema.pop("$ref")}]


def _is_strict(schema: dict[str, Any]) -> bool:
    if not schema.keys() <= _ENFORCED or schema.get("format", "date") not in _FORMATS:
        return False
    if "$ref" in schema:
        return len(schema) == 1
    properties = schema.get("properties")
    if properties is None:
        # An object whose fields are free has a schema here, and what says nothing says too little.
        return schema.get("type") != "object" and bool(schema.keys() - {"description"})
    return (
        schema.get("additionalProperties") is False
        and isinstance(properties, dict)
        and properties.keys() == set(schema.get("required", ()))
    )
