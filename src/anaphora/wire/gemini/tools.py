"""Tools, said and read. Functions that stand together share one tool object on the wire; each of
the provider's own tools is an object by itself."""

from __future__ import annotations

import msgspec

from anaphora.canonical import check_object, string
from anaphora.errors import InvalidRequest
from anaphora.rendered import ChunkLog, Kind, LogAppend
from anaphora.values import AnyTool, Notice, ProviderTool, Tool
from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS, request_error

from .naming import FORM, WIRE, camel, elements, named
from .parts import closing
from .schemas import json_schema

FUNCTIONS = b'{"functionDeclarations":['
END_FUNCTIONS = b"]}"

_NO_PARAMETERS = '{"properties":{},"type":"object"}'


def tools_log(tools: tuple[AnyTool, ...]) -> ChunkLog:
    """A chunk for each tool, whatever object it stands in."""
    out = LogAppend()
    before: AnyTool | None = None
    for index, tool in enumerate(tools):
        try:
            data = tool_definition(tool)
        except InvalidRequest as problem:
            raise problem.within(f"tools[{index}]") from None
        out.chunk(
            Kind.TOOL, glue(before is None, is_function(before), is_function(tool)) + data, None
        )
        before = tool
    return ChunkLog.of(out, [f"tool {tool.name}" for tool in tools], [t.cache for t in tools])


def glue(first: bool, after_function: bool, function: bool) -> bytes:
    """What stands before a tool in the list."""
    if function:
        return b"," if after_function else (b"" if first else b",") + FUNCTIONS
    return END_FUNCTIONS + b"," if after_function else b"" if first else b","


def close(last_is_function: bool) -> bytes:
    """What ends the list of tools."""
    return (END_FUNCTIONS if last_is_function else b"") + b"],"


def paths(functions: list[bool], begun: tuple[int, ...] = ()) -> tuple[str, ...]:
    """Where each tool stands. Functions that follow each other share an object, except those at
    the positions `begun`."""
    found: list[str] = []
    at, inner = -1, 0
    for index, function in enumerate(functions):
        joins = function and index > 0 and functions[index - 1] and index not in begun
        at, inner = (at, inner + 1) if joins else (at + 1, 0)
        found.append(f"tools[{at}].functionDeclarations[{inner}]" if function else f"tools[{at}]")
    return tuple(found)


def is_function(tool: AnyTool | None) -> bool:
    return isinstance(tool, Tool)


def tool_definition(tool: AnyTool) -> bytes:
    """A function's declaration, or one of the provider's own tools as it came."""
    if isinstance(tool, ProviderTool):
        return check_object(tool.json, path="json").encode()
    description = b',"description":' + string(tool.description) if tool.description else b""
    return b'{"name":' + string(tool.name) + description + _parameters(tool) + closing(tool.extras)


def strict_left_out(tools: tuple[AnyTool, ...]) -> list[Notice]:
    """Gemini holds no function to its schema more than another."""
    return [
        Notice(
            "param_left_out", "Gemini has no strict functions; left out", f"tools[{index}].strict"
        )
        for index, tool in enumerate(tools)
        if isinstance(tool, Tool) and tool.strict is not None
    ]


def _parameters(tool: Tool) -> bytes:
    """The schema, in the form that it came in."""
    schema = check_object(tool.schema, path="schema").encode()
    if tool.extras is not None and FORM in tool.extras:
        form = Fields(tool.extras[FORM], f"extras.{FORM}", request_error)
        came = form.raw("parameters")
        if came is not None and json_schema(came, f"extras.{FORM}") == tool.schema:
            return b',"parameters":' + came
    return b',"parametersJsonSchema":' + schema


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────


class _Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A declaration with all its usual fields and no others."""

    name: str
    parametersJsonSchema: msgspec.Raw
    description: str = ""


class _Functions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    functionDeclarations: list[_Function]


_usual = msgspec.json.Decoder(_Functions).decode


def read_tools(raws: list[msgspec.Raw]) -> tuple[AnyTool, ...]:
    """Every tool in the order it stood."""
    tools: list[AnyTool] = []
    for index, raw in enumerate(raws):
        tools += _read_tool(raw, f"$.tools[{index}]")
    return tuple(tools)


def _read_tool(raw: msgspec.Raw, path: str) -> list[AnyTool]:
    try:
        usual = _usual(raw).functionDeclarations
    except DECODE_ERRORS:
        return _read_fields(raw, path)
    if any(bytes(said.parametersJsonSchema) == b"null" for said in usual):
        return _read_fields(raw, path)
    return [
        Tool(said.name, said.description, bytes(said.parametersJsonSchema).decode())
        for said in usual
    ]


def _read_fields(raw: msgspec.Raw, path: str) -> list[AnyTool]:
    """The same, field by field. One object may bring functions and several tools of Gemini's."""
    fields = Fields(raw, path, request_error)
    fields.drop_nulls()
    for name in ("functionDeclarations", "function_declarations"):
        if name in fields:
            break
    functions = [
        read_function(said, f"{path}.functionDeclarations[{index}]")
        for index, said in enumerate(elements(fields, name))
    ]
    rest = msgspec.json.decode(fields.whole(), type=dict[str, msgspec.Raw])
    return functions + [
        ProviderTool(WIRE, camel(kind), (b"{" + string(kind) + b":" + bytes(said) + b"}").decode())
        for kind, said in rest.items()
    ]


def read_function(raw: msgspec.Raw, path: str) -> AnyTool:
    """A declaration with its schema as it was given, in either form."""
    fields = named(raw, path, request_error)
    fields.drop_nulls()
    name = fields.take("name", str)
    description = fields.maybe("description", str) or ""
    schema = fields.raw("parametersJsonSchema")
    came = fields.raw("parameters") if schema is None else None
    extras = fields.rest_for(WIRE)
    if came is not None:
        form = {FORM: '{"parameters":' + came.decode() + "}"}
        read = json_schema(came, f"{path}.parameters")
        return Tool(name, description, read, extras={**(extras or {}), **form})
    # No parameters at all: our schema for that is an empty object, which says the same.
    said = _NO_PARAMETERS if schema is None else schema.decode()
    return Tool(name, description, said, extras=extras)
