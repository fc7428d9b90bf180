"""Entries of the registry: a tool with its handler, checked."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import msgspec

from anaphora import canonical
from anaphora.errors import InvalidTool
from anaphora.values import CachePolicy, Tool

from .arguments import SchemaArguments
from .functions import function_tool, is_async
from .schema import tool_schema, wire_name


class ToolEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A tool and how to run it: `prepare` binds the arguments in a JSON text."""

    name: str
    tool: Tool
    prepare: Callable[[str], Callable[[], Any]] | None = None
    is_async: bool = False
    timeout: float | None = None


def finished_entry(
    tool: Tool,
    name: str | None,
    description: str | None,
    cache: CachePolicy,
    strict: bool | None,
    timeout: float | None,
) -> ToolEntry:
    """The entry of a finished tool, without a handler."""
    tool_name = name or tool.name
    return ToolEntry(
        name=tool_name,
        timeout=timeout,
        tool=msgspec.structs.replace(
            tool,
            name=wire_name(tool_name),
            description=tool.description if description is None else description,
            schema=tool_schema(tool.schema, path=f"tools.{tool_name}.schema"),
            cache=cache if cache.is_cached else tool.cache,
            strict=tool.strict if strict is None else strict,
        ),
    )


def function_entry(
    function: Callable[..., Any],
    name: str | None,
    description: str | None,
    cache: CachePolicy,
    strict: bool | None,
    timeout: float | None,
) -> ToolEntry:
    """The entry of a function."""
    spec = function_tool(function, name=name, description=description)
    arguments = spec.arguments
    return ToolEntry(
        name=spec.name,
        prepare=lambda text: functools.partial(function, **arguments.read(text)),
        is_async=is_async(function),
        timeout=timeout,
        tool=Tool(
            name=wire_name(spec.name),
            description=spec.description,
            schema=spec.schema,
            strict=strict,
            cache=cache,
        ),
    )


def schema_entry(
    name: str, tool: Tool, handler: Callable[[dict[str, Any]], Any], timeout: float | None
) -> ToolEntry:
    arguments = SchemaArguments(tool.schema, path=f"tools.{name}.schema")
    return ToolEntry(
        name=name,
        tool=tool,
        prepare=lambda text: functools.partial(handler, arguments.read(text)),
        is_async=is_async(handler),
        timeout=timeout,
    )


def check_clash(entry: ToolEntry, taken: ToolEntry, replace: bool) -> None:
    if entry.name != taken.name:
        raise InvalidTool(
            f"`{entry.name}` and `{taken.name}` would both be called `{taken.tool.name}`; "
            "rename one of them",
            path=f"tools.{entry.name}",
        )
    if not replace:
        raise InvalidTool(
            f"there is already a tool `{entry.name}`; pass replace=True to replace it",
            path=f"tools.{entry.name}",
        )


def check_entry(entry: ToolEntry) -> None:
    place = f"tools.{entry.name}"
    if not isinstance(entry.tool.description, str):
        raise InvalidTool("must be text", path=f"{place}.description")
    canonical.dumps(entry.tool.description, path=f"{place}.description")
    if entry.timeout is not None and not (entry.timeout > 0 and math.isfinite(entry.timeout)):
        raise InvalidTool("must be a positive number of seconds, or None", path=f"{place}.timeout")
