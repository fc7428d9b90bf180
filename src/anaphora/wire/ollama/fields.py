"""What requests to Ollama contain: the fields, and its messages, which are one block each."""

from __future__ import annotations

import msgspec

from anaphora.rendered import Kind
from anaphora.wire.walking import BlockType, Does, RequestTable, request_fields

from .types import NULL, WIRE


class _PlainFunction(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str | None = None
    index: int | None = None
    arguments: msgspec.Raw = NULL


class _PlainCall(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    function: _PlainFunction | None = None
    id: str | None = None
    type: str | None = None


class _PlainMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: str | None = None
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[_PlainCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: None = None


TABLE = RequestTable(
    wire=WIRE,
    limit="options.num_predict",
    unlimited_below=True,
    streams_by_default=True,
    fields=request_fields(
        {
            Does.TEXT: "format messages think",
            Does.MONEY: "model options",
            Does.TOOL: "tools",
            Does.ANSWER: "keep_alive logprobs stream top_logprobs",
        },
        members={
            "options": """frequency_penalty min_p num_ctx num_keep num_predict presence_penalty
            repeat_last_n repeat_penalty seed stop temperature top_k top_p typical_p""",
        },
    ),
    message=BlockType(chunk=Kind.TEXT, medium="images", data=("images",)),
    blocks={},
    rename=str.casefold,
    plain=_PlainMessage,
)
