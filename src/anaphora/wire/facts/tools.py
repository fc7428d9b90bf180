"""The tools of a request: functions of the app, tools of the provider, remote MCP servers."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from anaphora.wire.gemini.types import camel, raw_elements
from anaphora.wire.reading import Members, decode_members, decode_value, known_text, request_error
from anaphora.wire.tables import RequestTable, request_table
from anaphora.wire.walking import Walk

from .stored import StoredKind, owned_objects


class ServerTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the provider defines or runs: web search, code execution, computer use."""

    param: str
    type: str
    max_calls: int | None = None
    """The tool's own limit in this request."""
    model: str = ""
    """The model that it calls."""


class FoundTools:
    """The tools of one request."""

    __slots__ = ("functions", "handles", "remote_mcp", "server")

    def __init__(self) -> None:
        self.functions: list[tuple[str, str]] = []
        """Fields and names."""
        self.server: list[ServerTool] = []
        self.remote_mcp: list[str] = []
        self.handles: list[tuple[str, StoredKind, str]] = []
        """Fields, kinds and ids."""

    def add_stored(self, raw: bytes, path: str) -> None:
        """Adds the stored objects named in a list of tools to the known ones."""
        known = {(kind, id) for _, kind, id in self.handles}
        named = owned_objects(msgspec.json.decode(raw), path)
        self.handles += [one for one in named if one[1:] not in known]

    def add(self, other: FoundTools) -> None:
        self.functions += other.functions
        self.server += other.server
        self.remote_mcp += other.remote_mcp
        self.handles += other.handles


class _Function(msgspec.Struct):
    name: str | None = None


class _ToolHead(msgspec.Struct):
    """The members of a tool that identify it."""

    type: str | None = None
    name: str | None = None
    function: _Function | None = None
    custom: _Function | None = None
    tools: list[msgspec.Raw] | None = None
    max_uses: int | None = None
    model: str | None = None
    parameters: msgspec.Raw = msgspec.Raw(b"null")
    input_schema: msgspec.Raw = msgspec.Raw(b"null")
    container: Any = None
    file_ids: list[str] | None = None
    vector_store_ids: list[str] | None = None


#: Members that hold a function, and all that name or define tools, in lowercase.
_FUNCTIONS = frozenset({"function", "custom"})
_NAMING = _FUNCTIONS | {"functiondeclarations", "functions", "name", "tools", "type"}
#: Those that a tool and a function have.
_IN_TOOL = _FUNCTIONS | {"name", "type"}
_IN_FUNCTION = frozenset({"name", "type"})


#: Largest list of tools, in bytes, whose findings are memoized.
_MOST_KEPT = 65_536


class _Limited(msgspec.Struct):
    max_uses: int | None = None


def read_tools(wire: str, path: str, raw: msgspec.Raw, found: FoundTools) -> None:
    """Adds the tools of a request's list."""
    data = bytes(raw)
    read = _known_list if len(data) <= _MOST_KEPT else _read_list
    found.add(read(wire, path, data))


def _in_tool(table: RequestTable) -> frozenset[str]:
    """The members of a tool that may name or define functions."""
    return _IN_TOOL | {"tools"} if table.nested_tools else _IN_TOOL


def _read_list(wire: str, path: str, raw: bytes) -> FoundTools:
    found, table = FoundTools(), request_table(wire)
    if table.function == "functionDeclarations":
        for tool in Walk(table).tools(raw, f"$.{path}"):
            _read_gemini(tool.path.removeprefix("$."), tool.members, found)
        found.add_stored(raw, path)
        return found
    if table.one_member:
        for tool in Walk(table).tools(raw, f"$.{path}"):
            _read_converse(tool.path.removeprefix("$."), tool.members, found)
        found.add_stored(raw, path)
        return found
    heads = decode_value(raw, list[_ToolHead], f"$.{path}", request_error)
    allowed = _in_tool(table)
    for head, tool in zip(heads, Walk(table).tools(raw, f"$.{path}"), strict=True):
        where = tool.path.removeprefix("$.")
        _check_members(tool.members, where, allowed)
        _read_tool(where, head, found, allowed, legacy=path == "functions")
    found.add_stored(raw, path)
    return found


#: Memoized: many conversations have the same tools.
_known_list = functools.lru_cache(maxsize=64)(_read_list)


def read_tool(table: RequestTable, path: str, tool: Any, found: FoundTools) -> None:
    """Adds a decoded tool that a message defines."""
    raw, allowed = msgspec.json.encode(tool), _in_tool(table)
    head = decode_value(raw, _ToolHead, f"$.{path}", request_error)
    _check_members(decode_members(raw), path, allowed)
    _read_tool(path, head, found, allowed)


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


def _read_tool(
    path: str,
    head: _ToolHead,
    found: FoundTools,
    allowed: frozenset[str],
    *,
    legacy: bool = False,
) -> None:
    kind = head.type
    if kind in (None, "function", "custom") or legacy:
        names = _names(head)
        if not names:
            raise request_error("a function needs a name", f"$.{path}")
        found.functions += [(path, name) for name in names]
    elif kind == "tool_reference":
        # A listed tool has its name in `tool_name`; with a `name` it may be read as a tool.
        found.functions += [(path, name) for name in _names(head)]
    elif kind in ("mcp", "mcp_toolset"):
        found.remote_mcp.append(path)
    elif kind != "namespace":
        if head.function or head.custom or bytes(head.input_schema) != b"null":
            # A tool of unknown type may be read as a function.
            found.functions += [(path, name) for name in _names(head)]
        _read_server_tool(path, kind or "", head, found)
    for index, each in enumerate(head.tools or ()):
        inner_path = f"{path}.tools[{index}]"
        nested = decode_value(each, _ToolHead, f"$.{inner_path}", request_error)
        _check_members(decode_members(each), inner_path, allowed)
        _read_tool(inner_path, nested, found, allowed)


def _names(head: _ToolHead) -> list[str]:
    """All names under which a tool may be read."""
    named = [each.name for each in (head.function, head.custom) if each is not None]
    return [name for name in dict.fromkeys((*named, head.name)) if name]


def _read_server_tool(path: str, kind: str, head: _ToolHead, found: FoundTools) -> None:
    limit = head.max_uses
    if limit is None and bytes(head.parameters)[:1] == b"{":
        limit = decode_value(head.parameters, _Limited, f"$.{path}.parameters", request_error)
        limit = limit.max_uses
    if limit is not None and limit < 0:
        raise request_error(f"must be at least 0, not {limit}", f"$.{path}.max_uses")
    found.server.append(ServerTool(param=path, type=kind, max_calls=limit, model=head.model or ""))
    container = head.container
    files = list(head.file_ids or ())
    if isinstance(container, str):
        found.handles.append((f"{path}.container", "container", container))
    elif isinstance(container, dict):
        files += [each for each in container.get("file_ids") or () if isinstance(each, str)]
    found.handles += [(f"{path}.file_ids", "file", each) for each in files]
    found.handles += [
        (f"{path}.vector_store_ids", "file", each) for each in head.vector_store_ids or ()
    ]


def _read_converse(path: str, members: Members, found: FoundTools) -> None:
    """An object with one member: a function, a tool of Bedrock's, a marker, or a newer kind."""
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
        found.functions.append((where, name))
    if kind != "toolSpec":
        found.server.append(ServerTool(param=where, type=name or kind))


def _read_gemini(path: str, members: Members, found: FoundTools) -> None:
    """An object with one member for each kind of tool."""
    for name, value in members.items():
        own = camel(name)
        where = f"{path}.{own}"
        if own == "functionDeclarations":
            for index, each in enumerate(raw_elements(value, f"$.{where}")):
                head = decode_value(each, _Function, f"$.{where}[{index}]", request_error)
                _check_members(decode_members(each), f"{where}[{index}]", _IN_FUNCTION)
                if not head.name:
                    raise request_error("a function needs a name", f"$.{where}[{index}]")
                found.functions.append((f"{where}[{index}]", head.name))
        elif own == "mcpServers":
            found.remote_mcp.append(where)
        else:
            found.server.append(ServerTool(param=where, type=own))
            stores = decode_members(value) if bytes(value)[:1] == b"{" else {}
            for key, listed in stores.items():
                if camel(key) in ("fileSearchStoreNames", "ragResources"):
                    names = decode_value(listed, list[Any], f"$.{where}.{key}", request_error)
                    found.handles += [(f"{where}.{key}", "file", str(each)) for each in names]
