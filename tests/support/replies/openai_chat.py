"""Chat Completions' replies, streams and errors."""

from __future__ import annotations

import json
from typing import Any

from support.replies.case import ReplyCase

from anaphora import errors


def minimal(message: Any = None, **changes: Any) -> bytes:
    """A small reply with some fields changed; `...` removes one."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "hi", **(message or {})},
        "finish_reason": changes.pop("finish_reason", "stop"),
    }
    whole = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-5",
        "choices": [choice],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
        **changes,
    }
    return json.dumps({k: v for k, v in whole.items() if v is not ...}).encode()


# ── Single answers ───────────────────────────────────────────────────────────────────────────────


def chunk(delta: Any = None, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    choices = (
        [{"index": index, "delta": delta, "finish_reason": finish}] if delta is not None else []
    )
    body = {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": choices, **more}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def error_body(**fields: Any) -> bytes:
    return json.dumps(
        {"error": {"message": "why", "type": None, "param": None, "code": None, **fields}}
    ).encode()


TEXT = chunk({"content": "Hi"})
WHOLE = TEXT + chunk({}, "stop") + DONE
NOISE = b': ping\n\ndata: {"type":"ping"}\n\nevent: x\ndata: {}\n\ndata:\n\n'
LONG_CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "x" * 2**20}}

CASE = ReplyCase(
    name="openai_chat",
    stop_reasons=[
        (minimal(finish_reason=raw), stop, raw)
        for raw, stop in (
            ("stop", "end"),
            ("length", "length"),
            ("tool_calls", "tool_calls"),
            ("function_call", "tool_calls"),
            ("content_filter", "refusal"),
            ("eos", "end"),
            ("invented_tomorrow", "other"),
            ("", "other"),
            (None, "other"),
        )
    ],
    malformed=[
        (b"", "$"),
        (b"<html>", "$"),
        (b"[]", "$"),
        (minimal(choices=...), "$.choices"),
        (minimal(choices=[]), "$.choices"),
        (minimal(choices=[{"index": 0}]), "$.choices[0].message"),
        (minimal(choices=[{"message": {"role": "user"}}]), "$.choices[0].message.role"),
        (minimal({"content": 5}), "$.choices[0].message.content"),
        (minimal({"tool_calls": [5]}), "$.choices[0].message.tool_calls[0]"),
    ],
    unreadable_usage=(
        (minimal(usage=[]), "$.usage"),
        (minimal(usage={"prompt_tokens": "many"}), "$.usage"),
        (minimal(usage={"note": "?"}).replace(b"?", b"\xff"), "$.usage"),
    ),
    error_reply=(b'{"error":{"message":"why","code":429}}', errors.RateLimited),
    text=TEXT,
    whole=WHOLE,
    unusual={
        "no end after a finish reason": TEXT + chunk({}, "stop"),
        "unknown events": NOISE + TEXT + NOISE + chunk({}, "stop") + DONE,
        "events after the end": WHOLE + chunk({"content": "b"}),
        "a space after the end": TEXT + chunk({}, "stop") + b"data: [DONE] \n\n",
    },
    broken=[
        (b"", "Transport"),
        (TEXT, "Transport"),
        (DONE, "Parse"),
        (b"data: {\n\n", "Parse"),
        (b"data: []\n\n", "Parse"),
        (chunk({"content": 7}), "Parse"),
        (b'data: {"error":{"message":"m","type":"server_error"}}\n\n', "Overloaded"),
        (b'data: {"error":{"message":"m","code":"rate_limit_exceeded"}}\n\n', "RateLimited"),
        (b'data: {"error":{"message":"m","code":400}}\n\n', "RequestRejected"),
        (b'data: {"error":"m"}\n\n', "Overloaded"),
        (b'event: error\ndata: {"error":{"message":"m"}}\n\n', "Overloaded"),
        (TEXT + b'data: {"error":{"message":"m"}}\n\n', "Overloaded"),
    ],
    endless=[(b"", chunk({"content": "x" * 2**20})), (b"", chunk({"tool_calls": [LONG_CALL]}))],
    errors=[
        (status, error_body(**fields), kind)
        for status, fields, kind in (
            (400, {"type": "invalid_request_error"}, errors.RequestRejected),
            (400, {"code": "context_length_exceeded"}, errors.ContextOverflow),
            (400, {"code": "content_policy_violation"}, errors.ContentRefused),
            (400, {"code": "content_filter"}, errors.ContentRefused),
            (
                401,
                {"type": "invalid_request_error", "code": "invalid_api_key"},
                errors.Unauthenticated,
            ),
            (401, {"type": "invalid_request_error"}, errors.Unauthenticated),
            (402, {}, errors.QuotaExhausted),
            (403, {"code": "unsupported_country_region_territory"}, errors.Forbidden),
            (404, {"type": "invalid_request_error", "code": "model_not_found"}, errors.NotFound),
            (413, {}, errors.TooLarge),
            (422, {}, errors.RequestRejected),
            (
                429,
                {"type": "insufficient_quota", "code": "insufficient_quota"},
                errors.QuotaExhausted,
            ),
            (429, {"type": "tokens", "code": "rate_limit_exceeded"}, errors.RateLimited),
            (429, {}, errors.RateLimited),
            (500, {"type": "server_error"}, errors.Overloaded),
            (503, {}, errors.Overloaded),
            (400, {"code": 400, "param": ["a"]}, errors.RequestRejected),
        )
    ],
    names_failures=True,
    bare_errors=[b"", b"<html>", b"[]", b"null", b"{}", b'{"error":7}', b'{"error":null}'],
)
