"""Tools: from functions, schemas and MCP servers to one stable set of definitions."""

from __future__ import annotations

from .mcp import McpCall, McpTool, mcp_handler, mcp_result, mcp_tools
from .names import wire_name
from .registry import Bound, ToolRegistry
from .schema import canonical_schema, tool_schema

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
