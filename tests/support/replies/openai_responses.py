"""The Responses wire's replies, streams and errors."""

from __future__ import annotations

import json
from typing import Any

from support.replies.case import ReplyCase

from anaphora import errors


def minimal(**changes: Any) -> bytes:
    """A small reply with some fields changed; `...` removes one."""
    whole = {
        "id": "resp_1",
        "object": "response",
        "model": "gpt-5.6",
        "status": "completed",
        "output": [],
        **changes,
    }
    return json.dumps({k: v for k, v in whole.items() if v is not ...}).encode()


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


RESPONSE = {"id": "resp_1", "object": "response", "model": "gpt-5.6", "output": []}
CREATED = {"type": "response.created", "response": {**RESPONSE, "status": "in_progress"}}
ITEM_ADDED = {
    "type": "response.output_item.added",
    "output_index": 0,
    "item": {"type": "message", "id": "msg_1", "role": "assistant", "content": []},
}
PART = {
    "type": "response.content_part.added",
    "output_index": 0,
    "content_index": 0,
    "part": {"type": "output_text", "text": ""},
}
DELTA = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hi"}
ENCODED = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Hi"}],
}
ITEM_DONE = {"type": "response.output_item.done", "output_index": 0, "item": ENCODED}
END = {
    "type": "response.completed",
    "response": {
        **RESPONSE,
        "status": "completed",
        "output": [ENCODED],
        "usage": {"input_tokens": 5, "output_tokens": 9},
    },
}
ERROR = {"type": "error", "code": "server_error", "message": "busy", "param": None}
QUOTA = {"type": "error", "error": {"code": "insufficient_quota", "message": "x"}}
WHOLE = (CREATED, ITEM_ADDED, PART, DELTA, ITEM_DONE, END)
NO_OUTPUT = {"type": "response.completed", "response": {**END["response"], "output": []}}  # type: ignore[dict-item]


def error_body(**fields: Any) -> bytes:
    known = {"message": "why", "type": "invalid_request_error", "param": None, "code": None}
    return json.dumps({"error": {**known, **fields}}).encode()


CASE = ReplyCase(
    name="openai_responses",
    stop_reasons=[
        (minimal(**changes), stop, raw)
        for changes, stop, raw in (
            ({}, "end", "completed"),
            (
                {"incomplete_details": {"reason": "max_output_tokens"}},
                "length",
                "max_output_tokens",
            ),
            (
                {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
                "refusal",
                "content_filter",
            ),
            (
                {"status": "incomplete", "incomplete_details": {"reason": "steered"}},
                "other",
                "steered",
            ),
            ({"status": "failed", "error": None}, "other", "failed"),
            ({"status": "queued"}, "other", "queued"),
            ({"status": "in_progress"}, "other", "in_progress"),
            ({"status": "cancelled"}, "other", "cancelled"),
            ({"status": ...}, "other", None),
        )
    ],
    malformed=[
        (b"nothing", "$"),
        (minimal(output=...), "$.output"),
        (minimal(output=[{"type": "message", "role": "assistant"}]), "$.output[0].content"),
        (minimal(object="chat.completion"), "$.object"),
    ],
    unreadable_usage=((minimal(usage={"input_tokens": "many"}), "$.usage"),),
    error_reply=(
        minimal(status="failed", error={"code": "server_error", "message": "why"}),
        errors.Overloaded,
    ),
    text=sse(*WHOLE[:4]),
    whole=sse(*WHOLE),
    unusual={
        "a second start": sse(CREATED, *WHOLE),
        "events after the end": sse(*WHOLE, ERROR, DELTA),
        "unknown events": sse(CREATED, {"type": "keepalive"}, {"x": 1}, *WHOLE[1:]),
        "an item that is never ended": sse(CREATED, ITEM_ADDED, PART, DELTA, END),
        "a part without a start": sse(CREATED, ITEM_ADDED, DELTA, ITEM_DONE, END),
        "an item without a start": sse(CREATED, DELTA, ITEM_DONE, END),
        "an end without the output": sse(*WHOLE[:-1], NO_OUTPUT),
        "no start": sse(*WHOLE[1:]),
        "[DONE] at the end": sse(*WHOLE) + b"data: [DONE]\n\n",
    },
    broken=[
        (b"", "Transport"),
        (sse(*WHOLE[:4]), "Transport"),
        (sse(*WHOLE[:4], ERROR, *WHOLE[4:]), "Overloaded"),
        (sse(*WHOLE[:4], QUOTA), "QuotaExhausted"),
        (sse(CREATED, {**DELTA, "delta": 7}), "Parse"),
        (sse(CREATED, {"type": "response.completed"}), "Parse"),
    ],
    endless=[
        (
            sse(CREATED, {**ITEM_ADDED, "item": item}),
            sse({"type": delta, "output_index": 0, "content_index": 0, "delta": "x" * 2**20}),
        )
        for item, delta in (
            ({"type": "message"}, "response.output_text.delta"),
            ({"type": "function_call"}, "response.function_call_arguments.delta"),
            ({"type": "reasoning"}, "response.reasoning_text.delta"),
        )
    ],
    errors=[
        (status, error_body(**fields), kind)
        for status, fields, kind in (
            (
                429,
                {"code": "insufficient_quota", "type": "insufficient_quota"},
                errors.QuotaExhausted,
            ),
            (429, {"code": "rate_limit_exceeded", "type": "tokens"}, errors.RateLimited),
            (429, {"type": "requests"}, errors.RateLimited),
            (400, {"code": "context_length_exceeded"}, errors.ContextOverflow),
            (400, {"code": "previous_response_not_found"}, errors.NotFound),
            (404, {"code": "model_not_found"}, errors.NotFound),
            (400, {"code": "content_policy_violation"}, errors.ContentRefused),
            (400, {"code": "content_filter"}, errors.ContentRefused),
            (400, {"code": "invalid_prompt"}, errors.ContentRefused),
            (401, {"code": "invalid_api_key"}, errors.Unauthenticated),
            (401, {}, errors.Unauthenticated),
            (403, {"code": "unsupported_country_region_territory"}, errors.Forbidden),
            (403, {}, errors.Forbidden),
            (404, {}, errors.NotFound),
            (413, {}, errors.TooLarge),
            (400, {"code": "unknown_parameter", "param": "x"}, errors.RequestRejected),
            (422, {}, errors.RequestRejected),
            (500, {"type": "server_error"}, errors.Overloaded),
            (503, {"code": "server_is_overloaded"}, errors.Overloaded),
        )
    ],
    bare_errors=[b"", b"<html>", b"[]", b'{"error":null}', b'{"detail":"x"}', b"\xff"],
)
