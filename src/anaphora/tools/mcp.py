"""Tools and results of MCP servers, as plain JSON, without an MCP package.

Objects of the official package (anything with `model_dump`) are accepted as well.
"""

from __future__ import annotations

import base64
import binascii
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from anaphora import canonical
from anaphora.errors import InvalidJson, InvalidRequest, InvalidTool
from anaphora.values import (
    Audio,
    Bytes,
    Document,
    Extras,
    Image,
    Opaque,
    ResultPart,
    Text,
    Tool,
    ToolResult,
)
from anaphora.values.codec import loads

from .functions import is_async
from .schema import tool_schema, wire_name

#: `call(name, arguments)` calls a tool by its name on the server.
McpCall: TypeAlias = Callable[[str, dict[str, Any]], Any]


class McpTool(msgspec.Struct, frozen=True):
    """A listed tool: its name on the server, its name here, and the tool as the model sees it."""

    listed: str
    name: str
    tool: Tool


def mcp_tools(
    listing: object, *, prefix: str = "", sort_properties: bool = False
) -> tuple[McpTool, ...]:
    """The tools of a `tools/list` result, or of the bare list in it.

    `prefix` is added to every name, to distinguish servers. `sort_properties` is for servers that
    list a schema's properties in a different order each time. Title, annotations and output schema,
    which models do not see, are kept in `Tool.extras["mcp"]`.
    """
    listing = _data(listing)
    entries = listing.get("tools") if isinstance(listing, dict) else listing
    if not isinstance(entries, list | tuple):
        raise InvalidTool("expected a tools/list result or a list of tools", path="tools")
    return tuple(
        _listed_tool(_data(entry), f"tools[{index}]", prefix, sort_properties)
        for index, entry in enumerate(entries)
    )


def mcp_result(result: object) -> ToolResult:
    """A `tools/call` result as a tool result without a call id.

    Nothing is lost: text, images, audio and PDFs become parts; links and text resources become JSON
    text, which every model can read; anything else becomes `Opaque`. Structured content is added as
    JSON text unless the parts already contain it. Servers wrap strings and lists in an object with
    one field, `result`.
    """
    result = _data(result)
    if not isinstance(result, dict) or not result.keys() & {"content", "structuredContent"}:
        raise InvalidRequest("expected an MCP result: an object with `content`", path="result")
    blocks = result.get("content") or []
    if not isinstance(blocks, list | tuple):
        raise InvalidRequest("expected a list of content blocks", path="result.content")
    blocks = [_data(block) for block in blocks]
    parts = [_part(block, f"result.content[{i}]") for i, block in enumerate(blocks)]
    structured = result.get("structuredContent")
    repeated = _without_none(structured) == {"result": _without_none(blocks)}
    if structured is not None and not repeated and not _is_included(parts, structured):
        parts.append(Text(_json(structured, "result.structuredContent")))
    return ToolResult(
        call_id="",
        content=tuple(parts) or "",
        error=result.get("isError") is True,
        extras=_extras(result, "content", "structuredContent", "isError", path="result"),
    )


def mcp_handler(call: McpCall, name: str) -> Callable[[dict[str, Any]], Any]:
    """A handler that calls this tool on the server and converts the result."""

    async def converted(result: Awaitable[object]) -> ToolResult:
        return mcp_result(await result)

    async def run_async(arguments: dict[str, Any]) -> ToolResult:
        return mcp_result(await call(name, arguments))

    def run(arguments: dict[str, Any]) -> Any:
        result = call(name, arguments)
        return converted(result) if inspect.isawaitable(result) else mcp_result(result)

    return run_async if is_async(call) else run


def _listed_tool(entry: Any, path: str, prefix: str, sort_properties: bool) -> McpTool:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
        raise InvalidTool("expected an object with a `name`", path=path)
    listed: str = entry["name"]
    name = prefix + listed
    schema = tool_schema(
        entry.get("inputSchema") or {},
        sort_properties=sort_properties,
        path=f"tools.{name}.schema",
    )
    description = entry.get("description") or entry.get("title") or ""
    if not isinstance(description, str):
        raise InvalidTool("must be text", path=f"tools.{name}.description")
    tool = Tool(
        name=wire_name(name),
        description=description,
        schema=schema,
        # `_meta` may contain times and cursors, which would make equal listings unequal.
        extras=_extras(entry, "name", "description", "inputSchema", "_meta", path=path),
    )
    return McpTool(listed=listed, name=name, tool=tool)


def _part(block: Any, path: str) -> ResultPart:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        raise InvalidRequest("expected an object with a `type`", path=path)
    part: ResultPart | None
    match block:
        case {"type": "text", "text": str(text)}:
            part = Text(text, extras=_extras(block, "type", "text", path=path))
        case {"type": "image" | "audio", "data": str(data), "mimeType": str(media_type)}:
            extras = _extras(block, "type", "data", "mimeType", path=path)
            part = _media(kind, data, media_type, extras)
        case {"type": "resource_link"} | {"type": "resource", "resource": {"text": str()}}:
            part = Text(_json(block, path))
        case {"type": "resource", "resource": {"blob": str(data), "mimeType": str(media_type)}}:
            resource = {k: v for k, v in block["resource"].items() if k not in ("blob", "mimeType")}
            rest = {**{k: v for k, v in block.items() if k != "type"}, "resource": resource}
            extras = {"mcp": _json(rest, path)}
            part = _media(media_type, data, media_type, extras, resource.get("uri"))
        case _:
            part = None
    return part or Opaque("mcp", kind, _json(block, path))


def _media(
    kind: str, data: str, media_type: str, extras: Extras | None, title: str | None = None
) -> ResultPart | None:
    """An image, audio or PDF; None for other kinds, and for data that is not base64."""
    try:
        source = Bytes(base64.b64decode(data, validate=True), media_type)
    except (binascii.Error, ValueError):
        return None
    if kind.startswith("image"):
        return Image(source, extras=extras)
    if kind.startswith("audio"):
        return Audio(source, extras=extras)
    if kind == "application/pdf":
        return Document(source, title=title, extras=extras)
    return None


def _is_included(parts: list[ResultPart], structured: object) -> bool:
    """Whether the text parts contain the structured content, wrapped or not."""
    texts = [part.text for part in parts if isinstance(part, Text)]
    values = [structured]
    if isinstance(structured, dict) and structured.keys() == {"result"}:
        values.append(structured["result"])
    if any(_equals(text, value) for text in texts for value in values):
        return True
    if len(values) == 1 or not isinstance(values[1], list) or not texts:
        return False
    # A text for each item; the official package also writes one for each item of nested lists.
    return any(
        len(items) == len(texts) and all(map(_equals, texts, items))
        for items in (values[1], _flat(values[1]))
    )


def _equals(text: str, value: object) -> bool:
    """Whether a text is the value: a string itself, anything else as JSON."""
    if isinstance(value, str):
        return text == value
    try:
        decoded = loads(text)
    except InvalidJson:
        return False
    return type(decoded) is type(value) and decoded == value


def _without_none(value: Any) -> Any:
    """Servers write content blocks that they repeat as structured content with all fields."""
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list) else value


def _flat(items: list[Any]) -> list[Any]:
    return [one for item in items for one in (_flat(item) if isinstance(item, list) else [item])]


def _extras(block: dict[str, Any], *named: str, path: str) -> Extras | None:
    rest = {key: value for key, value in block.items() if key not in named and value is not None}
    return {"mcp": _json(rest, path)} if rest else None


def _json(value: object, path: str) -> str:
    return canonical.dumps(value, path=path).decode()


def _data(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return value
