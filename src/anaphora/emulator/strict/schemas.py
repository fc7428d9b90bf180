"""Strict schemas as OpenAI takes them: every object requires all of its properties, and forbids
others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anaphora.emulator.exchange import nested
from anaphora.errors import Upstream

from . import Object, objects, rejected, text

#: Keywords whose values are schemas by name, one schema, and a list of schemas.
_NAMED, _SINGLE, _LISTED = ("properties", "$defs", "definitions"), ("items",), ("anyOf",)
_CLOSED = "'additionalProperties' is required to be supplied and to be false."
_COMPLETE = (
    "'required' is required to be supplied and to be an array including every key in properties."
)


def schema_problem(schema: Any) -> str:
    """What is wrong with a strict schema, and where; empty if nothing is.

    The wording is the service's: dottxt-ai/outlines#844, moeru-ai/xsai#202."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), schema)]
    while waiting:
        context, found = waiting.pop()
        if not isinstance(found, dict):
            continue
        if (problem := _object_problem(found)) != "":
            return f"In context={context!r}, {problem}"
        children = [((*context, *path), child) for path, child in _children(found)]
        waiting += reversed(children)
    return ""


def _object_problem(schema: Object) -> str:
    kinds = schema.get("type")
    properties = schema.get("properties")
    is_object = kinds == "object" or (isinstance(kinds, list) and "object" in kinds)
    if not is_object and not isinstance(properties, dict):
        return ""
    if schema.get("additionalProperties") is not False:
        return _CLOSED
    required = schema.get("required")
    names = set(map(text, required)) if isinstance(required, list) else set()
    given = properties if isinstance(properties, dict) else {}
    missing = next((name for name in given if name not in names), None)
    return "" if missing is None else f"{_COMPLETE} Missing '{missing}'."


def _children(schema: Object) -> Iterator[tuple[tuple[str, ...], Any]]:
    for keyword in _NAMED:
        value = schema.get(keyword)
        if isinstance(value, dict):
            yield from (((keyword, name), child) for name, child in value.items())
    for keyword in _SINGLE:
        yield (keyword,), schema.get(keyword)
    for keyword in _LISTED:
        value = schema.get(keyword)
        if isinstance(value, list):
            yield from (((keyword, str(at)), child) for at, child in enumerate(value))


def check_tools(tools: Any, path: str = "tools") -> None:
    """The parameters of strict functions: inside `function` on Chat, in the tool on Responses,
    whose namespaces hold tools."""
    for index, tool in objects(tools):
        place = f"{path}[{index}]"
        inner = tool.get("function")
        if isinstance(inner, dict):
            _check_function(inner, f"{place}.function.parameters")
        elif tool.get("type") == "function":
            _check_function(tool, f"{place}.parameters")
        check_tools(tool.get("tools"), f"{place}.tools")


def _check_function(function: Object, path: str) -> None:
    if function.get("strict") is not True or function.get("parameters") is None:
        return
    if problem := schema_problem(function["parameters"]):
        name = text(function.get("name"))
        message = f"Invalid schema for function '{name}': {problem}"
        raise rejected(message, param=path, code="invalid_function_parameters")


def check_output(output: Any, param: str, *, code: str | None) -> None:
    """A strict output format: an object with `name`, `schema` and `strict`."""
    if nested(output, "strict") is not True:
        return
    if problem := schema_problem(nested(output, "schema")):
        raise _output_error(text(nested(output, "name")), problem, param, code)


def _output_error(name: str, problem: str, param: str, code: str | None) -> Upstream:
    message = f"Invalid schema for response_format '{name}': {problem}"
    return rejected(message, param=param, code=code)
