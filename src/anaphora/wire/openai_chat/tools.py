"""Tool definitions, said and read."""

from __future__ import annotations

from typing import Literal

import msgspec

from anaphora.canonical import check_object, dumps, string
from anaphora.values import AnyTool, ProviderTool, Tool
from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS, request_error

from .assistant import function_extras
from .parts import WIRE


def tool_definition(tool: AnyTool) -> bytes:
    """A function, or one of the provider's own tools as it came."""
    if isinstance(tool, ProviderTool):
        return check_object(tool.json, path="json").encode()
    inner, outer = function_extras(tool.extras)
    description = b',"description":' + string(tool.description) if tool.description else b""
    schema = check_object(tool.schema, path="schema").encode()
    strict = b"" if tool.strict is None else b',"strict":' + dumps(tool.strict)
    return (
        b'{"type":"function","function":{"name":'
        + string(tool.name)
        + description
        + b',"parameters":'
        + schema
        + strict
        + inner
        + b"}"
        + outer
        + b"}"
    )


class _Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    parameters: msgspec.Raw
    description: str = ""
    strict: bool | None = None


class _Usual(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function with all its usual fields and no others."""

    type: Literal["function"]
    function: _Function


_usual = msgspec.json.Decoder(_Usual).decode


def read_tool(raw: msgspec.Raw, path: str) -> AnyTool:
    """A function with its schema as it was given; any other tool whole."""
    try:
        said = _usual(raw).function
    except DECODE_ERRORS:
        return _read_fields(raw, path)
    schema = bytes(said.parameters)
    if schema == b"null":
        return _read_fields(raw, path)
    return Tool(said.name, said.description, schema.decode(), said.strict)


def _read_fields(raw: msgspec.Raw, path: str) -> AnyTool:
    """The same, field by field."""
    fields = Fields(raw, path, request_error)
    kind = fields.maybe("type", str) or "function"
    inside = fields.nested("function") if kind == "function" else None
    if inside is None:
        return ProviderTool(WIRE, kind, bytes(raw).decode())
    name = inside.take("name", str)
    description = inside.maybe("description", str) or ""
    schema = inside.raw("parameters")
    strict = inside.maybe("strict", bool)
    if schema is None or schema == b"null":
        # No parameters at all: our schema for that is an empty object, which says the same.
        schema = b'{"properties":{},"type":"object"}'
    inside.drop_nulls()
    fields.drop_nulls()
    inner, outer = inside.rest(), fields.rest()
    if inner:
        outer = outer + (b"," if outer else b"") + b'"function":{' + inner + b"}"
    extras = {WIRE: (b"{" + outer + b"}").decode()} if outer else None
    return Tool(name, description, schema.decode(), strict, extras=extras)
