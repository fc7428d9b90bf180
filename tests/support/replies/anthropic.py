"""The Anthropic wire's replies, streams and errors."""

from __future__ import annotations

import json
from typing import Any

from support.replies.case import ReplyCase

from anaphora import errors


def minimal(**changes: Any) -> bytes:
    """A small answer with some fields changed; `...` takes one away."""
    whole = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 2},
        **changes,
    }
    return json.dumps({k: v for k, v in whole.items() if v is not ...}).encode()


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode())
        for event in events
    )


START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [],
        "usage": {"input_tokens": 5, "output_tokens": 1},
    },
}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
DELTA = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}}
STOP = {"type": "content_block_stop", "index": 0}
LAST = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn"},
    "usage": {"output_tokens": 9},
}
END = {"type": "message_stop"}
ERROR = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
WHOLE = (START, BLOCK, DELTA, STOP, LAST, END)


def error_body(kind: str, code: str | None = None) -> bytes:
    error: dict[str, Any] = {"type": kind, "message": "why"}
    if code is not None:
        error["details"] = {"error_code": code}
    return json.dumps({"type": "error", "error": error}).encode()


CASE = ReplyCase(
    name="anthropic",
    stop_reasons=[
        (minimal(stop_reason=raw), stop, raw)
        for raw, stop in (
            ("end_turn", "end"),
            ("max_tokens", "length"),
            ("stop_sequence", "stop_sequence"),
            ("tool_use", "tool_calls"),
            ("pause_turn", "pause"),
            ("refusal", "refusal"),
            ("model_context_window_exceeded", "context_overflow"),
            ("compaction", "other"),
            ("invented_tomorrow", "other"),
            (None, "other"),
        )
    ],
    malformed=[
        (b"", "$"),
        (b"<html>", "$"),
        (b"[]", "$"),
        (b"null", "$"),
        (b'{"type":"message"', "$"),
        (b"\xff", "$"),
        (minimal(type="error"), "$.type"),
        (minimal(id=7), "$.id"),
        (minimal(role="user"), "$.role"),
        (minimal(content=...), "$.content"),
        (minimal(content="hi"), "$.content"),
        (minimal(content=["hi"]), "$.content[0]"),
        (minimal(content=[{"text": "hi"}]), "$.content[0].type"),
        (minimal(content=[{"type": 3}]), "$.content[0].type"),
        (minimal(content=[{"type": "text", "text": "a"}, {"type": "text"}]), "$.content[1].text"),
        (minimal(content=[{"type": "text", "text": None}]), "$.content[0].text"),
        (minimal(content=[{"type": "tool_use", "id": "c", "name": "f"}]), "$.content[0].input"),
        (minimal(content=[{"type": "thinking", "signature": "s"}]), "$.content[0].thinking"),
        (minimal(content=[{"type": "redacted_thinking"}]), "$.content[0].data"),
        (minimal(stop_reason=5), "$.stop_reason"),
        (minimal(stop_sequence=5), "$.stop_sequence"),
    ],
    unreadable_usage=(
        (minimal(usage=[]), "$.usage"),
        (minimal(usage={"input_tokens": "many"}), "$.usage"),
        (minimal(usage={"note": "?"}).replace(b"?", b"\xff"), "$.usage"),
    ),
    error_reply=None,
    text=sse(START, BLOCK, DELTA),
    whole=sse(*WHOLE),
    unusual={
        "a second start": sse(START, START, BLOCK, DELTA, STOP, LAST, END),
        "events after the end": sse(*WHOLE, ERROR, DELTA),
        "unknown events": sse(START, {"type": "ping"}, {"type": "novel"}, *WHOLE[1:]),
        "a part that is never ended": sse(START, BLOCK, DELTA, LAST, END),
        "no start": sse(*WHOLE[1:]),
        "no end after a stop reason": sse(*WHOLE[:-1]),
        "[DONE] in place of the end": sse(*WHOLE[:-1]) + b"data: [DONE]\n\n",
    },
    broken=[
        (b"", "Transport"),
        (sse(*WHOLE[:3]), "Transport"),
        (sse(*WHOLE[:3], ERROR, *WHOLE[3:]), "Overloaded"),
        (sse(START, DELTA), "Parse"),
    ],
    endless=[
        (
            sse(START, {"type": "content_block_start", "index": 0, "content_block": block}),
            sse({"type": "content_block_delta", "index": 0, "delta": delta}),
        )
        for block, delta in (
            ({"type": "text", "text": ""}, {"type": "text_delta", "text": "x" * 2**20}),
            (
                {"type": "tool_use", "id": "1", "name": "f", "input": {}},
                {"type": "input_json_delta", "partial_json": "x" * 2**20},
            ),
        )
    ],
    errors=[
        (status, error_body(kind, code), expected)
        for status, kind, code, expected in (
            (400, "invalid_request_error", None, errors.RequestRejected),
            (401, "authentication_error", None, errors.Unauthenticated),
            (402, "billing_error", None, errors.QuotaExhausted),
            (403, "permission_error", None, errors.Forbidden),
            (404, "not_found_error", None, errors.NotFound),
            (409, "conflict_error", None, errors.Overloaded),
            (413, "request_too_large", None, errors.TooLarge),
            (429, "rate_limit_error", None, errors.RateLimited),
            (429, "rate_limit_error", "enforced_spend_limit_reached", errors.QuotaExhausted),
            (429, "rate_limit_error", "ramp_limit_exceeded", errors.RateLimited),
            (500, "api_error", None, errors.Overloaded),
            (504, "timeout_error", None, errors.Overloaded),
            (529, "overloaded_error", None, errors.Overloaded),
            (418, "something_new", None, errors.RequestRejected),
            (599, "something_new", None, errors.Overloaded),
        )
    ],
    unnamed=(errors.ContentRefused, errors.ContextOverflow),
    bare_errors=[b"", b"<html>", b"{}", b"\xff", b'{"error":"text"}'],
)
