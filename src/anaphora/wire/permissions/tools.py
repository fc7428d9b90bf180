"""The tools of a request: functions of the app, tools of the provider, remote MCP servers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec

from anaphora.wire.gemini.types import camel, raw_elements
from anaphora.wire.reading import Members, decode_members, decode_value, known_text, request_error
from anaphora.wire.tables import RequestTable, request_table

from .facts import HandleRef, Named, ServerTool
from .stored import stored_objects


class FoundTools:
    """The tools of one request."""

    __slots__ = ("functions", "handles", "remote_mcp", "server")

    def __init__(self) -> None:
        self.functions: list[Named] = []
        self.server: list[ServerTool] = []
        self.remote_mcp: list[str] = []
        self.handles: list[HandleRef] = []

    def add(self, other: FoundTools) -> None:
        self.functions += other.functions
        self.server += other.server
        self.remote_mcp += other.remote_mcp
        self.handles += other.handles


class _Function(msgspec.Struct):
    name: str | None = None


class _ToolHead(msgspec.Struct):
    """The members of a tool that identify it, and those that cost money."""

    type: str | None = None
    name: str | None = None
    function: _Function | None = None
    custom: _Function | None = None
    tools: list[msgspec.Raw] | None = None
    max_uses: int | None = None
    model: str | None = None
    parameters: msgspec.Raw = msgspec.Raw(b"null")
    input_schema: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def names(self) -> list[str]:
        """All names under which a tool may be read."""
        named = [each.name for each in (self.function, self.custom) if each is not None]
        return [name for name in dict.fromkeys((*named, self.name)) if name]


class _Limited(msgspec.Struct):
    max_uses: int | None = None


#: Members that hold a function, and all that name or define tools, in lowercase.
_FUNCTIONS = frozenset({"function", "custom"})
_NAMING = _FUNCTIONS | {"functiondeclarations", "functions", "name", "tools", "type"}
#: Those that a tool and a function have.
_IN_TOOL = _FUNCTIONS | {"name", "type"}
_IN_FUNCTION = frozenset({"name", "type"})
#: Largest list of tools, in bytes, whose findings are memoized.
_MOST_KEPT = 65_536


def read_tools(wire: str, path: str, raw: msgspec.Raw, found: FoundTools) -> None:
    """Adds the tools of a request's list."""
    data = bytes(raw)
    found.add((_known_list if len(data) <= _MOST_KEPT else _read_list)(wire, path, data))


def read_tool(table: RequestTable, path: str, tool: Any, found: FoundTools) -> None:
    """Adds a decoded tool that a message defines."""
    _Reader(table, found).tool(path, msgspec.Raw(msgspec.json.encode(tool)))


def _read_list(wire: str, path: str, raw: bytes) -> FoundTools:
    found, table = FoundTools(), request_table(wire)
    reader = _Reader(table, found)
    read: Callable[[str, msgspec.Raw], None] = reader.tool
    if table.function == "functionDeclarations":
        read = reader.gemini
    elif table.one_member:
        read = reader.converse
    elif path == "functions":
        read = functools.partial(reader.tool, legacy=True)
    single = table.single and raw[:1] == b"{"
    listed = (
        [msgspec.Raw(raw)]
        if single
        else decode_value(raw, list[msgspec.Raw], f"$.{path}", request_error)
    )
    for index, each in enumerate(listed):
        read(f"{path}[{index}]", each)
    for one in stored_objects(msgspec.json.decode(raw), path):
        if one.problem:
            raise request_error(one.problem, f"$.{one.path}")
        if one.id:
            found.handles.append(HandleRef(one.path, one.kind, one.id))
    return found


#: Memoized: many conversations have the same tools.
_known_list = functools.lru_cache(maxsize=64)(_read_list)


class _Reader:
    """Reads tools in the form of one wire."""

    def __init__(self, table: RequestTable, found: FoundTools) -> None:
        self._found = found
        self._allowed = _IN_TOOL | {"tools"} if table.nested_tools else _IN_TOOL

    def _function(self, path: str, name: str) -> None:
        self._found.functions.append(Named(path, name))

    def tool(self, path: str, raw: msgspec.Raw, *, legacy: bool = False) -> None:
        found = self._found
        head = decode_value(raw, _ToolHead, f"$.{path}", request_error)
        _check_members(decode_members(raw), path, self._allowed)
        kind, names = head.type, head.names
        if kind in (None, "function", "custom") or legacy:
            if not names:
                raise request_error("a function needs a name", f"$.{path}")
        elif kind in ("mcp", "mcp_toolset"):
            names = []
            found.remote_mcp.append(path)
        elif kind == "namespace":
            names = []
        # A listed tool has its name in `tool_name`; with a `name` it may be read as a tool.
        elif kind != "tool_reference":
            may_be_function = head.function or head.custom or bytes(head.input_schema) != b"null"
            names = names if may_be_function else []
            found.server.append(_server_tool(path, kind or "", head))
        for name in names:
            self._function(path, name)
        for index, each in enumerate(head.tools or ()):
            self.tool(f"{path}.tools[{index}]", each)

    def converse(self, path: str, raw: msgspec.Raw) -> None:
        """An object with one member: a function, a tool of Bedrock's, a marker, or a newer kind."""
        members = _members(raw, path)
        if len(members) != 1:
            raise request_error("a tool has one member", f"$.{path}")
        ((kind, value),) = members.items()
        if kind == "cachePoint":
            return
        where = f"{path}.{kind}"
        inner = decode_members(value) if bytes(value)[:1] == b"{" else {}
        _check_members(inner, where, _IN_FUNCTION)
        name = known_text(inner, "name")
        if kind == "toolSpec" and not name:
            raise request_error("a function needs a name", f"$.{where}")
        if kind != "systemTool" and name:
            self._function(where, name)
        if kind != "toolSpec":
            self._found.server.append(ServerTool(param=where, type=name or kind))

    def gemini(self, path: str, raw: msgspec.Raw) -> None:
        """An object with one member for each kind of tool."""
        for name, value in _members(raw, path).items():
            own = camel(name)
            where = f"{path}.{own}"
            if own == "functionDeclarations":
                for index, each in enumerate(raw_elements(value, f"$.{where}")):
                    at = f"{where}[{index}]"
                    head = decode_value(each, _Function, f"$.{at}", request_error)
                    _check_members(decode_members(each), at, _IN_FUNCTION)
                    if not head.name:
                        raise request_error("a function needs a name", f"$.{at}")
                    self._function(at, head.name)
            elif own == "mcpServers":
                self._found.remote_mcp.append(where)
            else:
                self._found.server.append(ServerTool(param=where, type=own))
                self._stores(where, value)

    def _stores(self, path: str, value: msgspec.Raw) -> None:
        stores = decode_members(value) if bytes(value)[:1] == b"{" else {}
        for key, listed in stores.items():
            if camel(key) in ("fileSearchStoreNames", "ragResources"):
                where = f"{path}.{key}"
                names = decode_value(listed, list[Any], f"$.{where}", request_error)
                self._found.handles += [HandleRef(where, "file", str(each)) for each in names]


def _members(raw: msgspec.Raw, path: str) -> Members:
    members: Members = decode_value(raw, Members, f"$.{path}", request_error)
    return members


def _check_members(members: Members, path: str, allowed: frozenset[str]) -> None:
    """Refuses members in which a server might find another name or function: those that differ from
    a known one only in case, and definitions in places where no provider has them."""
    for name, raw in members.items():
        if name in allowed:
            if name in _FUNCTIONS and bytes(raw)[:1] == b"{":
                _check_members(decode_members(raw), f"{path}.{name}", _IN_FUNCTION)
        elif (own := name.casefold().replace("_", "")) in _NAMING:
            hint = f"is spelled {own}" if own in allowed else "no provider has it here"
            raise request_error(hint, f"$.{path}.{name}")


def _server_tool(path: str, kind: str, head: _ToolHead) -> ServerTool:
    limit = head.max_uses
    if limit is None and bytes(head.parameters)[:1] == b"{":
        limit = decode_value(head.parameters, _Limited, f"$.{path}.parameters", request_error)
        limit = limit.max_uses
    if limit is not None and limit < 0:
        raise request_error(f"must be at least 0, not {limit}", f"$.{path}.max_uses")
    return ServerTool(param=path, type=kind, max_calls=limit, model=head.model or "")
