"""The fields of Responses requests, and the types of items and content parts.

Names are those of the openai SDK 3.49.0, types/**/*_param(s).py, seen 2026-11-14; a test compares
them with it. Names that the SDK lacks are sent by OpenAI's own Codex CLI 0.166, seen 2026-11-16.
"""

from __future__ import annotations

from anaphora.rendered import Kind
from anaphora.wire.tables import BlockType, Effect, Medium, RequestTable, names, request_fields

from .types import WIRE

#: Further fields that Codex sends, in the body and in each item.
CODEX = names("client_metadata")
CODEX_ITEM = names("internal_chat_message_metadata_passthrough")


_SHOWN = names("computer_screenshot input_audio input_file input_image")


def _item(
    members: str,
    *,
    chunk: Kind = Kind.OTHER,
    inside: str = "",
    opaque: str = "",
    by_app: bool = False,
    changes_tools: bool = False,
) -> BlockType:
    return BlockType(
        chunk=chunk,
        inside=tuple(inside.split()),
        shows=_SHOWN if inside else frozenset(),
        opaque=names(opaque) | CODEX_ITEM,
        members=names(members) | {"type"},
        by_app=by_app,
        changes_tools=changes_tools,
    )


def _input(chunk: Kind, medium: Medium | None = None, *data: str) -> BlockType:
    return BlockType(chunk=chunk, markable=True, medium=medium, data=data)


#: The types of items: ResponseInputItemParam.
ITEMS = {
    "message": _item("content id phase role status", inside="content"),
    "file_search_call": _item("id queries results status", opaque="results"),
    "computer_call": _item("action actions call_id id pending_safety_checks status"),
    "computer_call_output": _item(
        "acknowledged_safety_checks call_id id output status", inside="output", by_app=True
    ),
    "web_search_call": _item("action id status"),
    "function_call": _item(
        "arguments async call_id caller id name namespace status",
        chunk=Kind.TOOL_CALL,
        opaque="arguments",
    ),
    "function_call_output": _item(
        "call_id caller id name namespace output status",
        chunk=Kind.TOOL_RESULT,
        inside="output",
        by_app=True,
    ),
    "tool_search_call": _item("arguments call_id execution id status"),
    "tool_search_output": _item("call_id execution id status tools"),
    "additional_tools": _item("id role tools", by_app=True, changes_tools=True),
    "configuration_update": _item("id reasoning text", by_app=True),
    "reasoning": _item("content encrypted_content id status summary", chunk=Kind.THINKING),
    "compaction": _item("encrypted_content id"),
    "image_generation_call": BlockType(
        data=("result",),
        members=names(
            """action background error id output_format quality result revised_prompt size status
            svg_usage type"""
        ),
    ),
    "code_interpreter_call": _item("code container_id id outputs status"),
    "local_shell_call": _item("action call_id id status"),
    "local_shell_call_output": _item("id output status", by_app=True),
    "shell_call": _item("action call_id caller environment id status"),
    "shell_call_output": _item("call_id caller id max_output_length output status", by_app=True),
    "apply_patch_call": _item("call_id caller id operation status"),
    "apply_patch_call_output": _item("call_id caller id output status", by_app=True),
    "mcp_list_tools": _item("error id server_label tools"),
    "mcp_approval_request": _item("arguments id name server_label"),
    "mcp_approval_response": _item("approval_request_id approve id reason", by_app=True),
    "mcp_call": _item("approval_request_id arguments error id name output server_label status"),
    "custom_tool_call_output": _item("call_id caller id output", inside="output", by_app=True),
    "custom_tool_call": _item("async call_id caller id input name namespace", opaque="input"),
    "compaction_trigger": _item("id", by_app=True),
    "item_reference": _item("id", by_app=True),
    "program": _item("call_id code fingerprint id"),
    "program_output": _item("call_id id result status"),
}


#: Items that instruct the model, or are not known to be turns.
_INSTRUCTING = names(
    """additional_tools compaction_trigger configuration_update mcp_list_tools message program
    program_output tool_search_output"""
)
#: Items that the app makes. Any other item that is kept whole is the model's.
APP_ITEMS = frozenset(kind for kind, row in ITEMS.items() if row.by_app) - {"function_call_output"}

TABLE = RequestTable(
    wire=WIRE,
    limit="max_output_tokens",
    fields=request_fields(
        {
            Effect.TEXT: "input instructions text",
            Effect.CACHE: """parallel_tool_calls prompt_cache_key prompt_cache_options
            prompt_cache_retention tool_choice""",
            Effect.MONEY: """background max_output_tokens max_tool_calls model reasoning
            service_tier""",
            Effect.TOOL: "tools",
            Effect.STORED: "conversation previous_response_id prompt store",
            Effect.ANSWER: """client_metadata include logprobs metadata safety_identifier stream
            stream_options temperature top_logprobs top_p truncation user""",
            Effect.ASK: "access_programs context_management image moderation",
        },
        members={
            "stream_options": "include_usage include_obfuscation",
            "prompt_cache_options": "comparison_response_id mode prewarm ttl",
            "reasoning": "effort summary generate_summary context mode",
            "text": "format verbosity",
        },
        counted="""conversation input instructions model parallel_tool_calls previous_response_id
        reasoning text tool_choice tools truncation""",
        unread="client_metadata metadata model prompt_cache_key safety_identifier user",
        prose="conversation prompt text.format",
    ),
    content=names("content id phase status type"),
    turns=frozenset(ITEMS) - _INSTRUCTING,
    params=names(
        """frequency_penalty function_call logit_bias max_completion_tokens max_tokens modalities n
        presence_penalty reasoning_effort seed top_k verbosity"""
    ),
    messages="input",
    system="instructions",
    items=frozenset(ITEMS),
    marker="prompt_cache_breakpoint",
    unmarked_roles=names("assistant"),
    text="input_text",
    nested_tools=True,
    blocks={
        **ITEMS,
        "input_text": _input(Kind.TEXT),
        "output_text": BlockType(
            chunk=Kind.TEXT,
            opaque=names("annotations logprobs"),
            members=names("annotations logprobs text type"),
        ),
        "refusal": BlockType(chunk=Kind.TEXT, members=names("refusal type")),
        "reasoning_text": BlockType(),
        "summary_text": BlockType(),
        "input_image": _input(Kind.IMAGE, "images", "image_url"),
        "input_file": _input(Kind.DOCUMENT, "documents", "file_data"),
        "input_audio": _input(Kind.AUDIO, "audio", "input_audio.data"),
        "input_video": _input(Kind.OTHER, "documents"),
        "computer_screenshot": BlockType(medium="images", data=("image_url",)),
        "screenshot": BlockType(medium="images"),
    },
)
