"""Tools from functions, JSON schemas and MCP servers."""

from __future__ import annotations

from .mcp import McpCall, McpTool, mcp_handler, mcp_result, mcp_tools
from .registry import Bound, ToolRegistry
from .schema import canonical_schema, tool_schema, wire_name

__all__ = [
    "Bound",
    "McpCall",
    "McpTool",
    "ToolRegistry",
    "canonical_schema",
    "mcp_handler",
    "mcp_result",
    "mcp_tools",
    "tool_schema",
    "wire_name",
]
