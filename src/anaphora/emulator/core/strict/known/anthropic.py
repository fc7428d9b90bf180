"""Fields of an Anthropic request. Source: the anthropic SDK 2.8.0, types/*_param(s).py, seen
2026-11-14. What is refused besides answers with "Extra inputs are not permitted"."""

from __future__ import annotations

from . import typed, words

#: MessageCreateParams.
TOP = words(
    "cache_control container diagnostics inference_geo max_tokens messages metadata model "
    "output_config service_tier speed stop_sequences stream system thinking tool_choice tools "
    "user_profile_id workspace_id"
)
#: No longer among the types, yet taken on version 2023-06-01 (PROVIDERS.md, section 0).
SAMPLING = ("temperature", "top_p", "top_k")
#: beta.MessageCreateParams has these besides; they need the header `anthropic-beta`.
BETA_TOP = words(
    "betas compaction context_management fallback_credit_token fallbacks mcp_servers thread"
)

#: A message's; a system message may have the beta ones besides.
#: MessageCountTokensParams, and what the beta's has besides.
COUNT = words(
    "cache_control messages model output_config speed system thinking tool_choice tools "
    "user_profile_id workspace_id"
)
BETA_COUNT = words("betas compaction context_management mcp_servers")
MESSAGE = words("content role")
BETA_MESSAGE = words("clear_at output_config")

#: A tool's without a type, or of the type `custom`.
CUSTOM_TOOL = words(
    "allowed_callers cache_control defer_loading description eager_input_streaming "
    "input_examples input_schema name strict type"
)

#: A block's, by its type: ContentBlockParam.
BLOCKS: dict[str, frozenset[str]] = typed(
    {
        "text": words("cache_control citations text"),
        "image": words("cache_control source transformations"),
        "document": words("cache_control citations context source title"),
        "search_result": words("cache_control citations content source title"),
        "thinking": words("signature thinking"),
        "redacted_thinking": words("data"),
        "tool_use": words("cache_control caller id input name toolset_name"),
        "tool_result": words("cache_control content is_error tool_use_id toolset_name"),
        "server_tool_use": words("cache_control caller id input name"),
        "web_search_tool_result": words("cache_control caller content tool_use_id"),
        "web_fetch_tool_result": words("cache_control caller content tool_use_id"),
        "code_execution_tool_result": words("cache_control content tool_use_id"),
        "bash_code_execution_tool_result": words("cache_control content tool_use_id"),
        "text_editor_code_execution_tool_result": words("cache_control content tool_use_id"),
        "tool_search_tool_result": words("cache_control content tool_use_id"),
        "container_upload": words("cache_control file_id"),
    }
)
#: Blocks that only BetaContentBlockParam has.
BETA_BLOCKS = words(
    "advisor_tool_result compaction fallback mcp_tool_listing mcp_tool_result mcp_tool_use "
    "tool_addition tool_removal"
)
