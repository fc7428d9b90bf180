"""The tools of an application, in a deterministic order."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar, Unpack, overload

import msgspec

from anaphora import canonical
from anaphora.errors import InvalidRequest, InvalidTool
from anaphora.values import CachePolicy, Tool, ToolCall

from .functions import function_tool, is_async
from .mcp import McpCall, mcp_handler, mcp_tools
from .schema import SchemaArguments, tool_schema, wire_name

F = TypeVar("F", bound=Callable[..., Any])


class Bound(msgspec.Struct, frozen=True):
    """A validated tool call; calling it runs the tool.

    With `is_async` calling it returns a coroutine. `timeout` is the tool's, in seconds.
    """

    call: ToolCall
    tool: Tool
    run: Callable[[], Any]
    is_async: bool = False
    timeout: float | None = None

    def __call__(self) -> Any:
        return self.run()


class ToolEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A tool and how to run it: `prepare` binds the arguments in a JSON text."""

    name: str
    tool: Tool
    prepare: Callable[[str], Callable[[], Any]] | None = None
    is_async: bool = False
    timeout: float | None = None


class ToolOptions(TypedDict, total=False):
    name: str | None
    description: str | None
    cache: CachePolicy
    timeout: float | None
    strict: bool | None
    replace: bool


class ToolRegistry:
    """Tools by name. What the model sees does not depend on the order of registration.

    Names are looked up as given or as the model sees them (`wire_name`).
    """

    def __init__(self) -> None:
        # Both are replaced, never changed in place: other threads see one state.
        self._entries: dict[str, ToolEntry] = {}
        self.current: tuple[Tool, ...] = ()
        """The result of `tools()`."""

    def tools(self) -> tuple[Tool, ...]:
        """All tools in their order: the same tuple object until one of them changes."""
        return self.current

    def get(self, name: str) -> Tool | None:
        entry = self._entries.get(wire_name(name)) if name else None
        return entry.tool if entry else None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self,
        tool: Callable[..., Any] | Tool,
        *,
        name: str | None = None,
        description: str | None = None,
        cache: CachePolicy = CachePolicy.NONE,
        timeout: float | None = None,
        strict: bool | None = None,
        replace: bool = False,
    ) -> Tool:
        """Add a function, described by its signature and docstring, or a finished tool.

        A finished `Tool` has no handler: the application or the provider runs it. `timeout` is in
        seconds and overrides the dispatcher's. A name that is taken is refused unless `replace`.
        """
        if isinstance(tool, Tool):
            name = name or tool.name
            finished = msgspec.structs.replace(
                tool,
                name=wire_name(name),
                description=tool.description if description is None else description,
                schema=tool_schema(tool.schema, path=f"tools.{name}.schema"),
                cache=tool.cache if cache is CachePolicy.NONE else cache,
                strict=tool.strict if strict is None else strict,
            )
            return self._put([ToolEntry(name=name, tool=finished, timeout=timeout)], replace)[0]
        spec = function_tool(tool, name=name, description=description)
        entry = ToolEntry(
            name=spec.name,
            tool=Tool(
                name=wire_name(spec.name),
                description=spec.description,
                schema=spec.schema,
                strict=strict,
                cache=cache,
            ),
            prepare=lambda text: functools.partial(tool, **spec.arguments.read(text)),
            is_async=is_async(tool),
            timeout=timeout,
        )
        return self._put([entry], replace)[0]

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(
        self, function: None = None, /, **options: Unpack[ToolOptions]
    ) -> Callable[[F], F]: ...
    def tool(
        self, function: F | None = None, /, **options: Unpack[ToolOptions]
    ) -> F | Callable[[F], F]:
        """`@registry.tool` or `@registry.tool(timeout=5)`; returns the function unchanged."""

        def register(function: F) -> F:
            self.add(function, **options)
            return function

        return register if function is None else register(function)

    def add_schema(
        self,
        name: str,
        description: str,
        schema: dict[str, Any] | str,
        handler: Callable[[dict[str, Any]], Any],
        *,
        cache: CachePolicy = CachePolicy.NONE,
        timeout: float | None = None,
        strict: bool | None = None,
        sort_properties: bool = False,
        replace: bool = False,
    ) -> Tool:
        """Add a tool with a JSON schema; the handler gets one dictionary."""
        tool = Tool(
            name=wire_name(name),
            description=description,
            schema=tool_schema(
                schema, sort_properties=sort_properties, path=f"tools.{name}.schema"
            ),
            strict=strict,
            cache=cache,
        )
        return self._put([schema_entry(name, tool, handler, timeout)], replace)[0]

    def add_mcp(
        self,
        listing: object,
        call: McpCall,
        *,
        prefix: str = "",
        cache: CachePolicy = CachePolicy.NONE,
        timeout: float | None = None,
        sort_properties: bool = False,
        replace: bool = False,
    ) -> tuple[Tool, ...]:
        """Add all tools of an MCP server's listing, or none; `call(name, arguments)` runs one.

        After a reconnect, add the new listing with `replace=True`: if it is equal, `tools()` is
        still the same object. Tools that are no longer listed stay until `remove`.
        """
        entries = []
        for item in mcp_tools(listing, prefix=prefix, sort_properties=sort_properties):
            tool = msgspec.structs.replace(item.tool, cache=cache)
            handler = mcp_handler(call, item.listed)
            entries.append(schema_entry(item.name, tool, handler, timeout))
        return self._put(entries, replace)

    def add_all(self, other: ToolRegistry) -> tuple[Tool, ...]:
        """Add all tools that another registry has now, or none."""
        return self._put(list(other._entries.values()), False)

    def remove(self, name: str) -> None:
        """Remove a tool; `KeyError` if there is none of that name."""
        entries = dict(self._entries)
        if not name or entries.pop(wire_name(name), None) is None:
            raise KeyError(name)
        self._update(entries)

    def bind(self, call: ToolCall) -> Bound:
        """The validated call, ready to run; `InvalidRequest` names a mismatch. Runs nothing."""
        entry = self._entries.get(wire_name(call.name)) if call.name else None
        if entry is None:
            known = ", ".join(tool.name for tool in self.current) or "none"
            raise InvalidRequest(f"there is no tool `{call.name}`; known tools: {known}")
        if entry.prepare is None:
            raise InvalidRequest(f"tool `{call.name}` has no handler in this registry")
        return Bound(
            call=call,
            tool=entry.tool,
            run=entry.prepare(call.arguments),
            is_async=entry.is_async,
            timeout=entry.timeout,
        )

    def _put(self, added: list[ToolEntry], replace: bool) -> tuple[Tool, ...]:
        entries = dict(self._entries)
        new: dict[str, ToolEntry] = {}
        for entry in added:
            key = entry.tool.name
            path = f"tools.{entry.name}"
            canonical.dumps(entry.tool.description, path=f"{path}.description")
            seconds = entry.timeout
            if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
                reason = "must be a positive number of seconds, or None"
                raise InvalidTool(reason, path=f"{path}.timeout")
            taken = new.get(key) or entries.get(key)
            if taken is not None:
                if entry.name != taken.name:
                    clash = f"`{entry.name}` and `{taken.name}` would both be called `{key}`"
                    raise InvalidTool(f"{clash}; rename one of them", path=path)
                # Twice in one listing is an error even with `replace`.
                if not replace or key in new:
                    reason = f"there is already a tool `{entry.name}`"
                    raise InvalidTool(f"{reason}; pass replace=True to replace it", path=path)
                if taken.tool == entry.tool:
                    entry = msgspec.structs.replace(entry, tool=taken.tool)
            new[key] = entry
        self._update(entries | new)
        return tuple(entry.tool for entry in new.values())

    def _update(self, entries: dict[str, ToolEntry]) -> None:
        tools = tuple(entries[name].tool for name in sorted(entries))
        self._entries = entries
        if tools != self.current:
            self.current = tools


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
