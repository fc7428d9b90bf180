"""The fields of Chat Completions requests, and the types of content parts.

Names are those of the openai SDK 3.49.0, types/**/*_param(s).py, seen 2026-11-14; a test compares
them with it.
"""

from __future__ import annotations

from anaphora.rendered import Kind
from anaphora.wire.tables import BlockType, Effect, RequestTable, names, request_fields

from .types import WIRE

_MARKER = "prompt_cache_breakpoint"

TABLE = RequestTable(
    wire=WIRE,
    limit="max_completion_tokens",
    fields=request_fields(
        {
            Effect.TEXT: "messages response_format",
            Effect.CACHE: """prompt_cache_key prompt_cache_options prompt_cache_retention
            function_call parallel_tool_calls reasoning_effort tool_choice verbosity""",
            Effect.MONEY: """max_completion_tokens max_tokens modalities model n prediction
            service_tier""",
            Effect.TOOL: "functions tools web_search_options",
            Effect.STORED: "store",
            Effect.ANSWER: """frequency_penalty logit_bias logprobs metadata presence_penalty
            safety_identifier seed stop stream stream_options temperature top_logprobs top_p
            user""",
            Effect.ASK: "audio moderation",
        },
        members={
            "stream_options": "include_usage include_obfuscation",
            "prompt_cache_options": "mode ttl",
            "prediction": "type content",
        },
        unread="metadata model prompt_cache_key safety_identifier user",
        prose="prediction stop",
    ),
    content=names(
        """annotations audio content function_call reasoning reasoning_content reasoning_details
        refusal thinking tool_call_id tool_calls"""
    ),
    params=names(
        """background include max_output_tokens max_tool_calls previous_response_id reasoning top_k
        truncation"""
    ),
    marker=_MARKER,
    function="function",
    unmarked_roles=names("assistant"),
    media_roles=names("user tool"),
    # A reply's message may be sent back unchanged (ChatCompletionMessage): with its annotations.
    message_fields={
        "developer": names("content name role"),
        "system": names("content name role"),
        "user": names("content name role"),
        "assistant": names("annotations audio content function_call name refusal role tool_calls"),
        "tool": names("content role tool_call_id"),
        "function": names("content name role"),
    },
    message=BlockType(
        inside=("content",),
        shows=None,
        members=names(
            """content function_call name reasoning reasoning_content refusal role tool_call_id
            tool_calls"""
        ),
    ),
    blocks={
        "text": BlockType(chunk=Kind.TEXT, markable=True, members=names(f"{_MARKER} text type")),
        "image_url": BlockType(
            chunk=Kind.IMAGE,
            markable=True,
            medium="images",
            data=("image_url.url", "image_url"),
            members=names(f"image_url {_MARKER} type"),
        ),
        "input_audio": BlockType(
            chunk=Kind.AUDIO,
            markable=True,
            medium="audio",
            data=("input_audio.data",),
            members=names(f"input_audio {_MARKER} type"),
        ),
        "file": BlockType(
            chunk=Kind.DOCUMENT,
            markable=True,
            medium="documents",
            data=("file.file_data",),
            members=names(f"file {_MARKER} type"),
        ),
        "refusal": BlockType(members=names("refusal type")),
        # Of other providers with this wire.
        "thinking": BlockType(),
        "video_url": BlockType(medium="documents", data=("video_url.url", "video_url")),
        "video": BlockType(medium="documents"),
        "audio": BlockType(medium="audio"),
        "audio_url": BlockType(medium="audio"),
    },
)
