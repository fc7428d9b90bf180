"""Tool definitions, said and read. Their form is OpenAI's."""

from __future__ import annotations

import msgspec

from anaphora.canonical import check_object, string
from anaphora.values import AnyTool, Notice, ProviderTool, Tool
from anaphora.wire.fields import Fields
from anaphora.wire.reading import request_error

from .carried import WIRE, Put, carried, inner_and_outer, joined_members

#: What a function without parameters takes.
_NOTHING = b'{"properties":{},"type":"object"}'


def tool_definition(tool: AnyTool) -> bytes:
    """A function; or a tool of another type, as it came."""
    if isinstance(tool, ProviderTool):
        return check_object(tool.json, path="json").encode()
    inner, outer = inner_and_outer(tool.extras)
    description = b',"description":' + string(tool.description) if tool.description else b""
    return (
        b'{"type":"function","function":{"name":'
        + string(tool.name)
        + description
        + b',"parameters":'
        + check_object(tool.schema, path="schema").encode()
        + inner
        + b"}"
        + outer
        + b"}"
    )


def unsaid(tools: tuple[AnyTool, ...]) -> list[Notice]:
    """What tools ask for and cannot have here."""
    return [
        Notice("strict_left_out", "Ollama holds no call to its schema", f"tools[{index}].strict")
        for index, tool in enumerate(tools)
        if isinstance(tool, Tool) and tool.strict
    ]


def read_tool(raw: msgspec.Raw, path: str) -> AnyTool:
    """A function with its schema as it was given; any other tool whole."""
    fields = Fields(raw, path, request_error)
    kind = fields.maybe("type", str) or "function"
    inside = fields.nested("function") if kind == "function" else None
    if inside is None:
        return ProviderTool(WIRE, kind, bytes(raw).decode())
    name = inside.take("name", str)
    description = inside.maybe("description", str) or ""
    schema = inside.raw("parameters")
    if schema is None or schema == b"null":
        schema = _NOTHING
    inside.drop_nulls()
    fields.drop_nulls()
    extras = carried(joined_members(fields.rest(), inside.rest()), Put())
    return Tool(name, description, schema.decode(), extras=extras)
