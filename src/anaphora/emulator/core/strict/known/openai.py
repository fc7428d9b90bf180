"""Fields of OpenAI's requests. Source: the openai SDK 3.49.0, types/**/*_param(s).py, seen
2026-11-14. What is sent besides answers with the code `unknown_parameter`."""

from __future__ import annotations

from . import typed, words

#: chat.CompletionCreateParams.
CHAT = words(
    "audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens "
    "max_tokens messages metadata modalities model moderation n parallel_tool_calls prediction "
    "presence_penalty prompt_cache_key prompt_cache_options prompt_cache_retention "
    "reasoning_effort response_format safety_identifier seed service_tier stop store stream "
    "stream_options temperature tool_choice tools top_logprobs top_p user verbosity "
    "web_search_options"
)
#: A message's, by its role: ChatCompletionMessageParam. An answer's message may come back as it
#: was (ChatCompletionMessage), so with its annotations.
MESSAGES: dict[str, frozenset[str]] = {
    "developer": words("content name role"),
    "system": words("content name role"),
    "user": words("content name role"),
    "assistant": words("annotations audio content function_call name refusal role tool_calls"),
    "tool": words("content role tool_call_id"),
    "function": words("content name role"),
}
#: A content part's, by its type: ChatCompletionContentPartParam, and what
#: an assistant's message may have.
PARTS: dict[str, frozenset[str]] = typed(
    {
        "text": words("prompt_cache_breakpoint text"),
        "image_url": words("image_url prompt_cache_breakpoint"),
        "input_audio": words("input_audio prompt_cache_breakpoint"),
        "file": words("file prompt_cache_breakpoint"),
        "refusal": words("refusal"),
    }
)

#: responses.ResponseCreateParams.
RESPONSES = words(
    "access_programs background context_management conversation image include input instructions "
    "max_output_tokens max_tool_calls metadata model moderation parallel_tool_calls "
    "previous_response_id prompt prompt_cache_key prompt_cache_options prompt_cache_retention "
    "reasoning safety_identifier service_tier store stream stream_options temperature text "
    "tool_choice tools top_logprobs top_p truncation user"
)
#: responses.InputTokenCountParams.
INPUT_TOKENS = words(
    "conversation input instructions model parallel_tool_calls personality previous_response_id "
    "reasoning text tool_choice tools truncation"
)
#: An input item's, by its type: ResponseInputItemParam.
ITEMS: dict[str, frozenset[str]] = typed(
    {
        "message": words("content id phase role status"),
        "file_search_call": words("id queries results status"),
        "computer_call": words("action actions call_id id pending_safety_checks status"),
        "computer_call_output": words("acknowledged_safety_checks call_id id output status"),
        "web_search_call": words("action id status"),
        "function_call": words("arguments async call_id caller id name namespace status"),
        "function_call_output": words("call_id caller id name namespace output status"),
        "tool_search_call": words("arguments call_id execution id status"),
        "tool_search_output": words("call_id execution id status tools"),
        "additional_tools": words("id role tools"),
        "configuration_update": words("id reasoning text"),
        "reasoning": words("content encrypted_content id status summary"),
        "compaction": words("encrypted_content id"),
        "image_generation_call": words(
            "action background error id output_format quality result revised_prompt size status "
            "svg_usage"
        ),
        "code_interpreter_call": words("code container_id id outputs status"),
        "local_shell_call": words("action call_id id status"),
        "local_shell_call_output": words("id output status"),
        "shell_call": words("action call_id caller environment id status"),
        "shell_call_output": words("call_id caller id max_output_length output status"),
        "apply_patch_call": words("call_id caller id operation status"),
        "apply_patch_call_output": words("call_id caller id output status"),
        "mcp_list_tools": words("error id server_label tools"),
        "mcp_approval_request": words("arguments id name server_label"),
        "mcp_approval_response": words("approval_request_id approve id reason"),
        "mcp_call": words("approval_request_id arguments error id name output server_label status"),
        "custom_tool_call_output": words("call_id caller id output"),
        "custom_tool_call": words("async call_id caller id input name namespace"),
        "compaction_trigger": words("id"),
        "item_reference": words("id"),
        "program": words("call_id code fingerprint id"),
        "program_output": words("call_id id result status"),
    }
)
