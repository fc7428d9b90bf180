"""Shapes in messages that may define tools, or open files that the operator's account can read.

Where the facts read the tools of a request is known. In another place or spelling, a provider
may read a tool that they do not show: such a member or type is unknown, and needs an entry in the
grant.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from anaphora.wire.tables import RequestTable

DEFINING = frozenset({"tool_addition", "tool_removal", "additional_tools", "tool_search_output"})
"""Blocks and items that define tools."""
LISTINGS = frozenset({"mcp_list_tools", "mcp_tool_listing", "mcp_toolset"})
"""Blocks and items with the tools of a remote server."""
TOOLS = ("tools", "tool")
"""The members of both that hold tools."""
CHANGED_TOOL = frozenset({"type", "name", "serverName"})
"""The members of a tool that messages of Bedrock add or remove."""
SENT_SOURCE = frozenset({"bytes", "text", "content"})
"""The members of a source that is in the request, on Bedrock."""
#: In lowercase, without underscores.
_TOOL_MEMBERS = frozenset(
    """additionaltools functiondeclarations functions inputschema mcpservers systemtool tool
    tooladdition toolconfig tooldefinitions toolremoval tools toolspec""".split()
)
_TOOL_TYPES = frozenset(
    """additionaltools custom function mcp mcplisttools mcptoollisting mcptoolset namespace
    tooladdition toolremoval toolsearchoutput""".split()
)
_FILES = frozenset({"filedata", "fileuri", "s3location", "s3uri"})
_READ_FILES = ("fileData", "fileUri")


@lru_cache(maxsize=512)
def _folded(name: str) -> str:
    return name.replace("_", "").casefold()


def may_define_tools(kind: str) -> bool:
    """Whether a type of block is not known, but may define tools."""
    return kind not in DEFINING and kind not in LISTINGS and _folded(kind) in _TOOL_TYPES


def may_open_file(name: str) -> bool:
    return _folded(name) in _FILES


def read_members(
    table: RequestTable, kind: str, members: dict[str, Any], unknown: list[str]
) -> set[str]:
    """The members of a block of some type with the tools that it defines. Others that may define
    tools or open files are added to `unknown`."""
    if table.rename is not None:
        unknown += [name for name in members if may_open_file(name) and name not in _READ_FILES]
    defining = [name for name in members if _folded(name) in _TOOL_MEMBERS]
    if not defining:
        return set()
    read: tuple[str, ...] = TOOLS if kind in DEFINING or kind in LISTINGS else ()
    if table.one_member and kind in table.blocks:
        read = (kind,)
    unknown += [name for name in defining if name not in read and members[name]]
    # The tool that is removed is looked at: it has a name alone.
    return set() if kind == "tool_removal" else {name for name in defining if name in read}
