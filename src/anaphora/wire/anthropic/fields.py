"""The fields of Anthropic's requests, and the types of blocks.

Names are those of the anthropic SDK 2.8.0, types/*_param(s).py, seen 2026-11-14; a test compares
them with it.
"""

from __future__ import annotations

from anaphora.rendered import Kind
from anaphora.wire.tables import BlockType, Effect, RequestTable, names, request_fields

from .types import WIRE

#: Members of the result blocks of Anthropic's server tools.
_RESULT = "cache_control content tool_use_id type"


def _result(members: str = _RESULT, shows: str = "") -> BlockType:
    return BlockType(markable=True, inside=("content",), shows=names(shows), members=names(members))


def _call(members: str | None, *, beta: bool = False) -> BlockType:
    return BlockType(
        markable=not beta,
        opaque=names("input"),
        members=None if members is None else names(members),
        beta=beta,
    )


TABLE = RequestTable(
    wire=WIRE,
    smallest_limit=0,  # writes the cache and answers nothing
    limits_thinking=True,
    fields=request_fields(
        {
            Effect.TEXT: "messages system output_config output_format",
            Effect.CACHE: "cache_control thinking tool_choice",
            Effect.MONEY: """context_management fallbacks inference_geo max_tokens model
            service_tier speed""",
            Effect.TOOL: "mcp_servers tools",
            Effect.STORED: "container diagnostics thread",
            Effect.ANSWER: "metadata stop_sequences stream temperature top_k top_p",
            Effect.ASK: "betas compaction fallback_credit_token user_profile_id workspace_id",
        },
        members={
            "thinking": "type budget_tokens display",
            "output_config": "effort format task_budget",
            "output_format": "schema type",
            "metadata": "user_id",
            "cache_control": "type ttl",
            "container": "id",
            "diagnostics": "previous_message_id",
            "context_management": "edits",
            "thread": "type previous_message_id",
        },
        beta="""betas compaction context_management fallback_credit_token fallbacks mcp_servers
        output_format thread""",
        counted="""betas cache_control compaction context_management mcp_servers messages model
        output_config output_format speed system thinking tool_choice tools user_profile_id
        workspace_id""",
        unread="metadata model",
        prose="""container.skills context_management fallbacks output_config.format output_format
        stop_sequences""",
    ),
    params=names("frequency_penalty presence_penalty seed"),
    system="system",
    marker="cache_control",
    message_fields={"": names("content role"), "beta": names("clear_at output_config")},
    tool=names(
        """allowed_callers cache_control defer_loading description eager_input_streaming
        input_examples input_schema name strict type"""
    ),
    blocks={
        "text": BlockType(
            chunk=Kind.TEXT,
            markable=True,
            opaque=names("citations"),
            members=names("cache_control citations text type"),
        ),
        "image": BlockType(
            chunk=Kind.IMAGE,
            markable=True,
            medium="images",
            data=("source.data",),
            members=names("cache_control source transformations type"),
        ),
        "document": BlockType(
            chunk=Kind.DOCUMENT,
            markable=True,
            medium="documents",
            inside=("source.content",),
            shows=names("image"),
            data=("source.data",),
            members=names("cache_control citations context source title type"),
        ),
        "search_result": BlockType(
            markable=True,
            inside=("content",),
            members=names("cache_control citations content source title type"),
        ),
        "thinking": BlockType(chunk=Kind.THINKING, members=names("signature thinking type")),
        "redacted_thinking": BlockType(chunk=Kind.THINKING, members=names("data type")),
        "tool_use": BlockType(
            chunk=Kind.TOOL_CALL,
            markable=True,
            opaque=names("input"),
            members=names("cache_control caller id input name toolset_name type"),
        ),
        "tool_result": BlockType(
            chunk=Kind.TOOL_RESULT,
            markable=True,
            inside=("content",),
            shows=names("document image"),
            members=names("cache_control content is_error tool_use_id toolset_name type"),
        ),
        "server_tool_use": _call("cache_control caller id input name type"),
        "web_search_tool_result": _result(f"caller {_RESULT}"),
        "web_fetch_tool_result": _result(f"caller {_RESULT}", "web_fetch_result"),
        "code_execution_tool_result": _result(),
        "bash_code_execution_tool_result": _result(),
        "text_editor_code_execution_tool_result": _result(),
        "tool_search_tool_result": _result(),
        "container_upload": BlockType(markable=True, members=names("cache_control file_id type")),
        "advisor_tool_result": BlockType(inside=("content",), beta=True),
        "compaction": BlockType(markable=True, inside=("content",), beta=True),
        "fallback": BlockType(beta=True),
        "mcp_tool_listing": BlockType(inside=("content",), beta=True),
        "mcp_tool_result": BlockType(markable=True, inside=("content",), beta=True),
        "mcp_tool_use": _call(None, beta=True),
        "web_search_result": BlockType(),
        "web_fetch_result": BlockType(inside=("content",), shows=names("document image")),
        "code_execution_output": BlockType(),
        "bash_code_execution_output": BlockType(),
        "tool_reference": BlockType(markable=True),
        "browser_state": BlockType(markable=True),
        "mcp_toolset": BlockType(markable=True),
        "tool_addition": BlockType(markable=True, beta=True, changes_tools=True),
        "tool_removal": BlockType(markable=True, beta=True, changes_tools=True),
    },
)
