"""Gemini's replies, streams and errors."""

from __future__ import annotations

import json
from typing import Any

from support.replies.case import ReplyCase

from anaphora import errors

RPC = "type.googleapis.com/google.rpc."


def error_body(status: str, *details: Any, code: int = 400, message: str = "why") -> bytes:
    error = {"code": code, "message": message, "status": status, "details": list(details)}
    return json.dumps({"error": error}).encode()


def detail(kind: str, **fields: Any) -> Any:
    return {"@type": f"{RPC}{kind}", **fields}


def quota(*ids: str) -> Any:
    return detail("QuotaFailure", violations=[{"quotaId": quota_id} for quota_id in ids])


KINDS: dict[str, tuple[int, bytes, type[errors.Upstream]]] = {
    "invalid": (400, error_body("INVALID_ARGUMENT"), errors.RequestRejected),
    "a key that is none": (
        400,
        error_body("INVALID_ARGUMENT", detail("ErrorInfo", reason="API_KEY_INVALID")),
        errors.Unauthenticated,
    ),
    "not here": (400, error_body("FAILED_PRECONDITION"), errors.RequestRejected),
    "no key": (401, error_body("UNAUTHENTICATED"), errors.Unauthenticated),
    "not allowed": (403, error_body("PERMISSION_DENIED"), errors.Forbidden),
    "billing is off": (
        403,
        error_body("PERMISSION_DENIED", detail("ErrorInfo", reason="BILLING_DISABLED")),
        errors.QuotaExhausted,
    ),
    "no such model": (404, error_body("NOT_FOUND"), errors.NotFound),
    "too large": (413, error_body("INVALID_ARGUMENT"), errors.TooLarge),
    "too fast": (429, error_body("RESOURCE_EXHAUSTED"), errors.RateLimited),
    "too fast for a minute": (
        429,
        error_body("RESOURCE_EXHAUSTED", quota("GenerateRequestsPerMinutePerProjectPerModel")),
        errors.RateLimited,
    ),
    "too much for a day": (
        429,
        error_body(
            "RESOURCE_EXHAUSTED",
            quota(
                "GenerateRequestsPerMinutePerProjectPerModel",
                "GenerateRequestsPerDayPerProjectPerModel-FreeTier",
            ),
            detail("RetryInfo", retryDelay="3s"),
        ),
        errors.QuotaExhausted,
    ),
    "cancelled": (499, error_body("CANCELLED"), errors.Overloaded),
    "their fault": (500, error_body("INTERNAL"), errors.Overloaded),
    "busy": (503, error_body("UNAVAILABLE"), errors.Overloaded),
    "too slow": (504, error_body("DEADLINE_EXCEEDED"), errors.Overloaded),
    "a list of one": (429, b"[" + error_body("RESOURCE_EXHAUSTED") + b"]", errors.RateLimited),
    "an empty list": (429, b"[]", errors.RateLimited),
    "a status of tomorrow": (403, error_body("NEVER_HEARD_OF"), errors.Forbidden),
    "a proxy's page": (502, b"<html>", errors.Overloaded),
    "nothing": (404, b"", errors.NotFound),
    "odd details": (
        400,
        b'{"error":{"details":[5,{"@type":5},{}],"status":5}}',
        errors.RequestRejected,
    ),
}


def answer(*parts: Any, stop: str | int | None = "STOP", **more: Any) -> Any:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if stop is not None:
        candidate["finishReason"] = stop
    return {"candidates": [{**candidate, **more}], "modelVersion": "g", "responseId": "r"}


def sse(*chunks: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n" for chunk in chunks)


def chunk(*parts: Any, **more: Any) -> Any:
    return answer(*parts, **{"stop": None, **more})


TEXT = sse(chunk({"text": "Hi"}))
WHOLE = TEXT + sse(chunk(stop="STOP"))
CALL = {"functionCall": {"id": "c", "name": "f", "args": {}}}
MEGABYTE = "x" * 2**20


def encoded(body: Any) -> bytes:
    return json.dumps(body).encode()


CASE = ReplyCase(
    name="gemini",
    stop_reasons=[
        (encoded(answer(*([CALL] if calls else []), stop=reason)), stop, reason)
        for reason, calls, stop in (
            ("STOP", False, "end"),
            ("STOP", True, "tool_calls"),
            ("MAX_TOKENS", False, "length"),
            ("MAX_TOKENS", True, "length"),
            ("SAFETY", False, "refusal"),
            ("RECITATION", False, "refusal"),
            ("PROHIBITED_CONTENT", False, "refusal"),
            ("CONTINUATION", False, "pause"),
            ("MALFORMED_FUNCTION_CALL", False, "other"),
            ("SOMETHING_NEW", False, "other"),
            (None, False, "other"),
        )
    ]
    + [
        # Enums as integers, which clients may ask for.
        (encoded(answer(stop=number)), stop, str(number))
        for number, stop in ((1, "end"), (2, "length"), (3, "refusal"), (5, "other"))
    ],
    malformed=[
        (encoded(body), path)
        for body, path in (
            ({}, "$.candidates"),
            ({"candidates": []}, "$.candidates"),
            ({"candidates": 5}, "$.candidates"),
            ({"candidates": [{"content": {"parts": [5]}}]}, "$.candidates[0].content.parts[0]"),
            ({"candidates": [{"finishReason": {}}]}, "$.candidates[0].finishReason"),
            ({"promptFeedback": {}}, "$.candidates"),
            ([], "$"),
        )
    ],
    unreadable_usage=[
        (b'{"candidates":[{}],"usageMetadata":%s}' % usage, "$.usageMetadata")
        for usage in (b"[]", b'{"promptTokenCount":"x"}', b'{"note":"\xff"}')
    ],
    error_reply=(
        b'{"error":{"code":503,"status":"UNAVAILABLE","message":"why"}}',
        errors.Overloaded,
    ),
    text=TEXT,
    whole=WHOLE,
    unusual={
        "unknown events": b": hello\n\n" + sse({"x": 1}) + TEXT + sse({}, chunk(stop="STOP")),
        "one JSON list": encoded([chunk({"text": "Hi"}), chunk(stop="STOP")]),
        "[DONE] at the end": TEXT + sse(chunk(stop="STOP")) + b"data: [DONE]\n\n",
    },
    broken=[
        (b"", "Transport"),
        (TEXT, "Transport"),
        (b"data: {", "Transport"),
        (b"data: nonsense\n\n", "Parse"),
        (b"data: []\n\n", "Parse"),
        (sse({"x": 1}), "Transport"),
        (sse({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}), "RateLimited"),
        (sse({"error": {"status": "UNAVAILABLE"}}), "Overloaded"),
        (sse({"error": 5}), "Overloaded"),
        (b'{"error":{"code":403,"status":"PERMISSION_DENIED"}}', "Forbidden"),
        (b'[{"error":{"code":404,"status":"NOT_FOUND"}}]', "NotFound"),
        (b"[{", "Transport"),
        (TEXT + sse({"error": {"code": 500, "message": "sorry"}}), "Overloaded"),
    ],
    endless=[
        (b"", sse(chunk({"text": MEGABYTE}))),
        (b"", sse(chunk({"inlineData": {"mimeType": "image/png", "data": MEGABYTE}}))),
        (b"", sse(chunk({"functionCall": {"name": "f", "args": {"a": MEGABYTE * 5}}}))),
    ],
    errors=list(KINDS.values()),
    names_failures=True,
    bare_errors=[b"", b"<html>", b"[]", b"{}", b"\xff"],
    unnamed=(errors.ContentRefused, errors.ContextOverflow),
)
