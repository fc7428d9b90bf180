"""The tools of an application, in a deterministic order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypedDict, TypeVar, Unpack, overload

import msgspec

from anaphora.errors import InvalidRequest
from anaphora.values import CachePolicy, Tool, ToolCall

from .entries import (
    ToolEntry,
    check_clash,
    check_entry,
    finished_entry,
    function_entry,
    schema_entry,
)
from .mcp import McpCall, mcp_handler, mcp_tools
from .schema import tool_schema, wire_name

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


class ToolOptions(TypedDict, total=False):
    """The options of `ToolRegistry.add`."""

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
        self._tools: tuple[Tool, ...] = ()

    def tools(self) -> tuple[Tool, ...]:
        """All tools, sorted by name: the same tuple object until one of them changes."""
        return self._tools

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
            entry = finished_entry(tool, name, description, cache, strict, timeout)
        else:
            entry = function_entry(tool, name, description, cache, strict, timeout)
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
        path = f"tools.{name}.schema"
        tool = Tool(
            name=wire_name(name),
            description=description,
            schema=tool_schema(schema, sort_properties=sort_properties, path=path),
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
        return self._put(
            [
                schema_entry(
                    item.name,
                    msgspec.structs.replace(item.tool, cache=cache),
                    mcp_handler(call, item.listed),
                    timeout,
                )
                for item in mcp_tools(listing, prefix=prefix, sort_properties=sort_properties)
            ],
            replace,
        )

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
            known = ", ".join(tool.name for tool in self._tools) or "none"
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

    def _put(self, added: Iterable[ToolEntry], replace: bool) -> tuple[Tool, ...]:
        entries = dict(self._entries)
        new: dict[str, ToolEntry] = {}
        for entry in added:
            key = entry.tool.name
            check_entry(entry)
            # Twice in one listing is an error even with `replace`.
            taken = new.get(key) or entries.get(key)
            if taken is not None:
                check_clash(entry, taken, replace and key not in new)
                if taken.tool == entry.tool:
                    entry = msgspec.structs.replace(entry, tool=taken.tool)
            new[key] = entry
        self._update(entries | new)
        return tuple(entry.tool for entry in new.values())

    def _update(self, entries: dict[str, ToolEntry]) -> None:
        tools = tuple(entries[name].tool for name in sorted(entries))
        self._entries = entries
        if tools != self._tools:
            self._tools = tools
