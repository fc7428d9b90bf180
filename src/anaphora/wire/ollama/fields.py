"""The fields of requests to Ollama, and of its messages, which are one block each."""

from __future__ import annotations

from anaphora.rendered import Kind
from anaphora.wire.tables import BlockType, Effect, RequestTable, names, request_fields

from .types import WIRE, ChatMessage

TABLE = RequestTable(
    wire=WIRE,
    limit="options.num_predict",
    unlimited_below=True,
    streams_by_default=True,
    fields=request_fields(
        {
            Effect.TEXT: "format messages",
            Effect.CACHE: "think",
            Effect.MONEY: "model options",
            Effect.TOOL: "tools",
            Effect.ANSWER: "keep_alive logprobs stream top_logprobs",
        },
        members={
            "options": """frequency_penalty min_p num_ctx num_keep num_predict presence_penalty
            repeat_last_n repeat_penalty seed stop temperature top_k top_p typical_p""",
        },
        unread="model",
        prose="options.stop",
    ),
    content=names("content images thinking tool_call_id tool_calls"),
    message=BlockType(chunk=Kind.TEXT, medium="images", data=("images",)),
    blocks={},
    rename=str.casefold,
    usual=names("content images role thinking tool_call_id tool_calls tool_name"),
    function="function",
    plain=ChatMessage,
    is_plain=lambda message: message.images is None,
)
