"""JSON schemas of types: as the type defines them, and in the subset that providers enforce.

Providers enforce a small part of JSON Schema and refuse requests that use more. So a type's schema
is rewritten: objects are closed, optional fields are required if a model can leave them empty,
and bounds become descriptions. The reply is still validated against the whole type.

pydantic is never imported here: an application with a pydantic model has imported it.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import inspect
import itertools
import re
import sys
import types
import typing
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from anaphora import canonical
from anaphora.errors import InvalidRequest, Parse
from anaphora.tools.schema import (
    decode_whole_numbers,
    field_names,
    inline_root,
    json_path,
    schema_validator,
    subschemas,
)
from anaphora.tools.times import add_time_formats
from anaphora.values.codec import loads

Decode = Callable[[str], Any]
_LOCATION = re.compile(r" - at `(?:key` in `)?(\$[^`]*)`$")
_QUOTES_THE_VALUE = re.compile(r"^Invalid (?:enum )?value ", re.DOTALL)

#: Keywords that both OpenAI's strict mode and Anthropic enforce; from their SDKs
#: (openai/lib/_pydantic.py and anthropic/lib/_parse/_transform.py).
_ENFORCED = frozenset(
    "$defs $ref additionalProperties anyOf const description enum format items properties required"
    " type".split()
)
_FORMATS = frozenset("date date-time duration email hostname ipv4 ipv6 time uuid".split())
#: Bounds on a value, written into the description.
_BOUNDS = (
    "contentEncoding exclusiveMaximum exclusiveMinimum maxItems maxLength maxProperties maximum"
    " minItems minLength minProperties minimum multipleOf pattern uniqueItems".split()
)


#: The object around a value that is not an object.
_WRAPPER = "Output"
_FIELD = "value"
#: Types of values that are not objects, and their subclasses.
_VALUES = (
    int,
    float,
    str,
    list,
    tuple,
    dict,
    set,
    frozenset,
    enum.Enum,
    decimal.Decimal,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    uuid.UUID,
)


class SchemaSource(msgspec.Struct, frozen=True):
    schema: Any
    decode: Decode | None = None


def source_of(source: Any) -> SchemaSource:
    """The schema of a type, or the given JSON schema. A type whose values are not objects is
    wrapped: providers require an object."""
    if isinstance(source, dict):
        return SchemaSource(source)
    if _is_pydantic(source):
        return _from_pydantic(source)
    if _is_object(source):
        return _from_msgspec(source)
    if _is_value(source):
        return _from_value(source)
    kind = source if isinstance(source, type) else type(source)
    given = f"the class {kind.__name__}" if kind is source else f"a value of type {kind.__name__}"
    raise InvalidRequest(
        f"cannot derive a schema from {given}; pass a msgspec.Struct, dataclass, TypedDict or"
        " pydantic model (the class, not an instance), a type such as list[Plan], int or a union of"
        " types, or a JSON schema as a dict",
        path="output",
    )


def _is_object(source: Any) -> bool:
    kind = typing.get_origin(source) or source  # Page[int] is made from Page
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return not kind.__struct_config__.array_like
    return typing.is_typeddict(kind) or (isinstance(kind, type) and dataclasses.is_dataclass(kind))


def _is_value(source: Any) -> bool:
    if isinstance(source, type) and typing.get_origin(source) is None:
        return issubclass(source, (*_VALUES, msgspec.Struct))
    return typing.get_origin(source) is not None


# ── Values that are not objects ──────────────────────────────────────────────────────────────────


def _from_value(kind: Any) -> SchemaSource:
    """The schema of an object whose only field is the value."""
    members = typing.get_args(kind) if _is_union(kind) else ()
    if any(map(_is_pydantic, _types_in(kind))):
        return _unwrapping(_from_pydantic(_model_around(kind)))
    if sum(map(_is_untagged, members)) > 1:
        return _from_union(members)
    wrapper = msgspec.defstruct(_WRAPPER, [(_FIELD, kind)])
    return _unwrapping(_from_msgspec(wrapper))


def _unwrapping(source: SchemaSource) -> SchemaSource:
    decode = source.decode
    assert decode is not None
    return SchemaSource(source.schema, lambda text: getattr(decode(text), _FIELD))


def _model_around(kind: Any) -> Any:
    pydantic = sys.modules["pydantic"]
    try:
        return pydantic.create_model(_WRAPPER, **{_FIELD: (kind, ...)})
    except pydantic.errors.PydanticUserError as error:
        reason = error.message.partition(". ")[0]
        raise InvalidRequest(f"has no JSON form: {reason}", path="output") from None


def _from_union(members: tuple[Any, ...]) -> SchemaSource:
    """A union of classes without a tag, which msgspec does not decode: the value is of the first
    class whose fields it has."""
    wrappers = [msgspec.defstruct(_WRAPPER, [(_FIELD, member)]) for member in members]
    sources = [_unwrapping(_from_msgspec(wrapper)) for wrapper in wrappers]
    # As one struct with a field for each: definitions of the same name are told apart.
    fields = [(f"f{index}", member) for index, member in enumerate(members)]
    joint = inline_root(_from_msgspec(msgspec.defstruct(_WRAPPER, fields)).schema)
    branches = list(joint.pop("properties").values())
    schema = {
        **joint,
        "properties": {_FIELD: {"anyOf": branches}},
        "required": [_FIELD],
    }
    closed = [
        schema_validator(
            canonical.dumps(provider_schema(source.schema)).decode(), "output", InvalidRequest
        )
        for source in sources
    ]

    def decode(text: str) -> Any:
        value = loads(text)
        # A class whose fields are all optional would take the fields of any other.
        exact = [each for each, only in zip(sources, closed, strict=True) if only.is_valid(value)]
        problem: Parse | None = None
        for source in [*exact, *sources]:
            assert source.decode is not None
            try:
                return source.decode(text)
            except Parse as error:
                problem = problem or error
        assert problem is not None
        raise problem

    return SchemaSource(schema, decode)


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def _is_untagged(kind: Any) -> bool:
    origin = typing.get_origin(kind) or kind
    tagged = isinstance(origin, type) and issubclass(origin, msgspec.Struct)
    return _is_object(kind) and not (tagged and origin.__struct_config__.tag is not None)


def _types_in(kind: Any) -> Iterator[Any]:
    yield kind
    for each in typing.get_args(kind):
        yield from _types_in(each)


# ── msgspec and pydantic ─────────────────────────────────────────────────────────────────────────


def _from_msgspec(kind: Any) -> SchemaSource:
    try:
        schema = msgspec.json.schema(kind)
        add_time_formats(kind, schema, schema.get("$defs", {}))
        decoder = msgspec.json.Decoder(kind)
    except (TypeError, ValueError, KeyError, NameError) as error:
        reason = (str(error).splitlines() or [""])[-1]
        raise InvalidRequest(f"has no JSON form: {reason}", path="output") from None

    def decode(text: str) -> Any:
        try:
            return decode_whole_numbers(decoder.decode, text)
        except msgspec.ValidationError as error:
            raise _msgspec_error(error) from None

    return SchemaSource(schema, decode)


def _msgspec_error(error: msgspec.ValidationError) -> Parse:
    message = str(error)
    location = _LOCATION.search(message)
    reason = message[: location.start()] if location else message
    # Errors of the type's own code, and some of msgspec's, may quote the reply.
    if error.__cause__ is not None:
        reason = f"validation code of the type raised {type(error.__cause__).__name__}"
    elif _QUOTES_THE_VALUE.match(reason):
        reason = "not an allowed value"
    return Parse(reason, path=location[1] if location else "$")


def _is_pydantic(source: Any) -> bool:
    return (
        "pydantic" in sys.modules
        and isinstance(source, type)
        and hasattr(source, "__pydantic_validator__")
    )


def _from_pydantic(kind: Any) -> SchemaSource:
    pydantic = sys.modules["pydantic"]
    adapter = pydantic.TypeAdapter(kind)
    try:
        schema = adapter.json_schema()
    except pydantic.errors.PydanticUserError as error:
        raise InvalidRequest(f"has no JSON form: {error.message}", path="output") from None
    names = field_names(schema)

    def decode(text: str) -> Any:
        try:
            return adapter.validate_json(text)
        except pydantic.ValidationError as error:
            # Its messages quote the reply; the error type does not.
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            known = itertools.takewhile(
                lambda step: not isinstance(step, str) or step in names, first["loc"]
            )
            reason = f"pydantic validation failed: {first['type']}"
            raise Parse(reason, path=json_path(known, names)) from None

    return SchemaSource(schema, decode)


def provider_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A type's schema in the subset of JSON Schema that providers enforce."""
    result: dict[str, Any] = inline_root(loads(canonical.dumps(schema)))
    definitions = result.get("$defs", {})
    for each in subschemas(result):
        each.pop("title", None)
        if "description" in each:
            each["description"] = inspect.cleandoc(each["description"])
        if "discriminator" in each:
            # The tag is different in each, so at most one of them matches.
            del each["discriminator"]
            if "oneOf" in each:
                each["anyOf"] = each.pop("oneOf")
        _flatten_tuple(each)
        _close(each, definitions)
        _describe_bounds(each)
        _isolate_reference(each)
    return result


def takes_strict(schema: dict[str, Any]) -> bool:
    """Whether OpenAI's strict mode accepts the schema; it responds 400 otherwise."""
    return schema.get("type") == "object" and all(map(_is_strict, subschemas(schema)))


def _close(schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Allow no additional fields, and require every field that can be empty."""
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


def _flatten_tuple(schema: dict[str, Any]) -> None:
    """An array that holds any of a tuple's types; their order is described."""
    members = schema.pop("prefixItems", None)
    if members:
        order = f"prefixItems {canonical.dumps(members).decode()}"
        described = schema.get("description")
        schema["description"] = order if described is None else f"{described}\n{order}"
        kinds = [member for index, member in enumerate(members) if member not in members[:index]]
        schema["items"] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def _may_be_empty(schema: dict[str, Any], definitions: dict[str, Any]) -> bool:
    if "$ref" in schema:
        schema = definitions.get(schema["$ref"].removeprefix("#/$defs/"), {})
    kind = schema.get("type")
    if kind == "null" or (isinstance(kind, list) and "null" in kind):
        return True
    if kind == "array":
        return not schema.get("minItems")
    return any(branch.get("type") == "null" for branch in schema.get("anyOf", ()))


def _describe_bounds(schema: dict[str, Any]) -> None:
    bounds = [
        f"{keyword} {canonical.dumps(schema.pop(keyword)).decode()}"
        for keyword in _BOUNDS
        if keyword in schema
    ]
    if schema.get("format", "date") not in _FORMATS:
        bounds.append(f"format {schema.pop('format')}")
    if bounds:
        lines = [schema["description"]] if "description" in schema else []
        schema["description"] = "\n".join([*lines, f"({', '.join(bounds)})"])


def _isolate_reference(schema: dict[str, Any]) -> None:
    """Strict mode refuses a `$ref` with other keywords beside it."""
    if "$ref" in schema and not schema.keys() <= {"$ref", "$defs"}:
        schema["anyOf"] = [{"$ref": schema.pop("$ref")}]


def _is_strict(schema: dict[str, Any]) -> bool:
    if not schema.keys() <= _ENFORCED or schema.get("format", "date") not in _FORMATS:
        return False
    if "$ref" in schema:
        return len(schema) == 1
    properties = schema.get("properties")
    if properties is None:
        # Strict mode refuses objects with free fields, and schemas that constrain nothing.
        return schema.get("type") != "object" and bool(schema.keys() - {"description"})
    return (
        schema.get("additionalProperties") is False
        and isinstance(properties, dict)
        and properties.keys() == set(schema.get("required", ()))
    )
