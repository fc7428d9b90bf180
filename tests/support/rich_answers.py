"""An answer of every wire with all that is usual in one, whole and as the events of a stream."""

from __future__ import annotations

from typing import Any

from anaphora.wire import sse

from .rich import Json, encoded

_ANTHROPIC_USAGE = {
    "input_tokens": 5,
    "cache_read_input_tokens": 3,
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
    "output_tokens": 4,
}
_CITATION = {"type": "char_location", "cited_text": "A", "document_index": 0}

ANTHROPIC: Json = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-5-5",
    "container": {"id": "c1"},
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "text", "text": "A picture.", "citations": [_CITATION]},
        {
            "type": "tool_use",
            "id": "t1",
            "name": "look",
            "input": {"where": "here"},
            "caller": {"type": "direct"},
        },
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"q": "x"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": _ANTHROPIC_USAGE,
}
ANTHROPIC_EVENTS: list[Json] = [
    {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-opus-5-5",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _ANTHROPIC_USAGE,
        },
    },
    {"type": "ping"},
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "thinking", "thinking": "", "signature": ""},
    },
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "thinking_delta", "thinking": "Hm."},
    },
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "signature_delta", "signature": "c2ln"},
    },
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {
        "type": "content_block_delta",
        "index": 1,
        "delta": {"type": "text_delta", "text": "A picture."},
    },
    {
        "type": "content_block_delta",
        "index": 1,
        "delta": {"type": "citations_delta", "citation": _CITATION},
    },
    {"type": "content_block_stop", "index": 1},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {
            "type": "tool_use",
            "id": "t1",
            "name": "look",
            "input": {},
            "caller": {"type": "direct"},
        },
    },
    {
        "type": "content_block_delta",
        "index": 2,
        "delta": {"type": "input_json_delta", "partial_json": '{"where":"here"}'},
    },
    {"type": "content_block_stop", "index": 2},
    {
        "type": "content_block_start",
        "index": 3,
        "content_block": {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
    },
    {
        "type": "content_block_delta",
        "index": 3,
        "delta": {"type": "input_json_delta", "partial_json": '{"q":"x"}'},
    },
    {"type": "content_block_stop", "index": 3},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None, "container": {"id": "c1"}},
        "usage": {"output_tokens": 4},
        "context_management": {"applied_edits": [{"type": "clear_thinking_20251015"}]},
    },
    {"type": "message_stop"},
]

_CHAT_USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 4,
    "total_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
CHAT: Json = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-5.6",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "A picture.",
                "annotations": [{"type": "url_citation", "url_citation": {"url": "u"}}],
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "look", "arguments": '{"where":"here"}'},
                    }
                ],
            },
            "logprobs": {"content": [{"token": "A", "logprob": -1}]},
            "finish_reason": "tool_calls",
        }
    ],
    "usage": _CHAT_USAGE,
    "service_tier": "default",
}


def _chunk(*choices: Json, **more: Any) -> Json:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5.6"}
    return head | {"choices": list(choices)} | more


def _choice(delta: Json, finish: str | None = None, **more: Any) -> Json:
    return {"index": 0, "delta": delta, "finish_reason": finish} | more


CHAT_EVENTS: list[Json] = [
    _chunk(_choice({"role": "assistant", "content": ""})),
    _chunk(_choice({"content": "A "}, logprobs={"content": [{"token": "A", "logprob": -1}]})),
    _chunk(_choice({"content": "picture"})),
    _chunk(_choice({"content": "."})),
    _chunk(
        _choice(
            {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "look", "arguments": ""},
                    }
                ]
            }
        )
    ),
    _chunk(_choice({"tool_calls": [{"index": 0, "function": {"arguments": '{"where":"here"}'}}]})),
    _chunk(_choice({}, "tool_calls")),
    _chunk(usage=_CHAT_USAGE),
    _chunk(moderation={"input": {"flagged": False}}),
]

_RESPONSES_USAGE = {
    "input_tokens": 5,
    "input_tokens_details": {"cached_tokens": 3},
    "output_tokens": 4,
    "output_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 9,
}
_REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Hm."}],
}
_TEXT = {
    "type": "output_text",
    "text": "A picture.",
    "annotations": [{"type": "file_citation", "file_id": "f", "index": 0}],
}
_MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [_TEXT],
}
_CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "c1",
    "name": "look",
    "arguments": '{"where":"here"}',
    "status": "completed",
}
_SEARCH = {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "x"}}
RESPONSES: Json = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "gpt-5.6",
    "output": [_REASONING, _MESSAGE, _CALL, _SEARCH],
    "reasoning": {"effort": "low"},
    "usage": _RESPONSES_USAGE,
}
_BEGUN = {**RESPONSES, "status": "in_progress", "output": [], "usage": None}
RESPONSES_EVENTS: list[Json] = [
    {"type": "response.created", "response": _BEGUN},
    {"type": "response.in_progress", "response": _BEGUN},
    {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {"type": "reasoning", "id": "rs_1", "summary": []},
    },
    {
        "type": "response.reasoning_summary_part.added",
        "output_index": 0,
        "item_id": "rs_1",
        "summary_index": 0,
        "part": {"type": "summary_text", "text": ""},
    },
    {
        "type": "response.reasoning_summary_text.delta",
        "output_index": 0,
        "item_id": "rs_1",
        "summary_index": 0,
        "delta": "Hm.",
    },
    {"type": "response.output_item.done", "output_index": 0, "item": _REASONING},
    {
        "type": "response.output_item.added",
        "output_index": 1,
        "item": {**_MESSAGE, "status": "in_progress", "content": []},
    },
    {
        "type": "response.content_part.added",
        "output_index": 1,
        "content_index": 0,
        "item_id": "msg_1",
        "part": {"type": "output_text", "text": "", "annotations": []},
    },
    {
        "type": "response.output_text.delta",
        "output_index": 1,
        "content_index": 0,
        "item_id": "msg_1",
        "delta": "A picture.",
        "logprobs": [],
    },
    {
        "type": "response.output_text.done",
        "output_index": 1,
        "content_index": 0,
        "item_id": "msg_1",
        "text": "A picture.",
    },
    {
        "type": "response.content_part.done",
        "output_index": 1,
        "content_index": 0,
        "item_id": "msg_1",
        "part": _TEXT,
    },
    {"type": "response.output_item.done", "output_index": 1, "item": _MESSAGE},
    {
        "type": "response.output_item.added",
        "output_index": 2,
        "item": {**_CALL, "arguments": "", "status": "in_progress"},
    },
    {
        "type": "response.function_call_arguments.delta",
        "output_index": 2,
        "item_id": "fc_1",
        "delta": '{"where":"here"}',
    },
    {
        "type": "response.function_call_arguments.done",
        "output_index": 2,
        "item_id": "fc_1",
        "arguments": '{"where":"here"}',
    },
    {"type": "response.output_item.done", "output_index": 2, "item": _CALL},
    {"type": "response.output_item.added", "output_index": 3, "item": _SEARCH},
    {"type": "response.output_item.done", "output_index": 3, "item": _SEARCH},
    {"type": "response.completed", "response": RESPONSES},
]

_GEMINI_USAGE = {
    "promptTokenCount": 5,
    "cachedContentTokenCount": 3,
    "candidatesTokenCount": 4,
    "totalTokenCount": 9,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 5}],
}
GEMINI: Json = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [
                    {"text": "Hm.", "thought": True},
                    {"text": "A picture.", "thoughtSignature": "c2ln"},
                    {"functionCall": {"id": "c1", "name": "look", "args": {"where": {"a": 1}}}},
                    {"executableCode": {"language": "PYTHON", "code": "1"}},
                ],
            },
            "finishReason": "STOP",
            "index": 0,
            "safetyRatings": [{"category": "HARM_CATEGORY_HARASSMENT"}],
            "groundingMetadata": {"webSearchQueries": ["x"]},
        }
    ],
    "usageMetadata": _GEMINI_USAGE,
    "modelVersion": "gemini-2.5-flash",
    "responseId": "r1",
}


def _said(*parts: Json, **more: Any) -> Json:
    candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0, **more}
    return {
        "candidates": [candidate],
        "usageMetadata": _GEMINI_USAGE,
        "modelVersion": "gemini-2.5-flash",
        "responseId": "r1",
    }


GEMINI_EVENTS: list[Json] = [
    _said({"text": "Hm.", "thought": True}),
    _said({"text": "A "}),
    _said({"text": "picture"}),
    _said({"text": "."}),
    _said({"functionCall": {"id": "c1", "name": "look", "args": {"where": {"a": 1}}}}),
    _said({"executableCode": {"language": "PYTHON", "code": "1"}}),
    _said(
        {"text": ""}, finishReason="STOP", safetyRatings=[{"category": "HARM_CATEGORY_HARASSMENT"}]
    ),
]


REPLIES: dict[str, Json] = {
    "anthropic": ANTHROPIC,
    "openai_chat": CHAT,
    "openai_responses": RESPONSES,
    "gemini": GEMINI,
}
STREAMS: dict[str, list[Json]] = {
    "anthropic": ANTHROPIC_EVENTS,
    "openai_chat": CHAT_EVENTS,
    "openai_responses": RESPONSES_EVENTS,
    "gemini": GEMINI_EVENTS,
}


def stream(name: str, events: list[Json]) -> bytes:
    """The bytes of these events."""
    named = name in ("anthropic", "openai_responses")
    chunks = [sse.encode_event(str(e["type"]) if named else "", encoded(e)) for e in events]
    return b"".join([*chunks, sse.encode_event("", b"[DONE]")] if name == "openai_chat" else chunks)
