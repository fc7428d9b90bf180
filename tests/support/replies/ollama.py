"""Ollama's replies, streams and errors."""

from __future__ import annotations

import json
from typing import Any

from support.replies.case import ReplyCase

from anaphora import errors

DATE = "2026-01-02T03:04:05.678Z"


def answer(message: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    full = {"role": "assistant", "content": "", **(message or {})}
    return {"model": "m", "created_at": DATE, "message": full, "done": True, **more}


def called(name: str, **more: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": {"a": 1}}, **more}


def line(message: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return answer(message, **{"done": False, **more})


HI = line({"content": "Hi"})
END = answer(done_reason="stop")
MEGABYTE = "x" * 2**20


def lines(*values: Any) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def stop(body: dict[str, Any], calls: bool) -> bytes:
    message = {"tool_calls": [called("f", id="c")]} if calls else {}
    return json.dumps(answer(message, **body)).encode()


CASE = ReplyCase(
    name="ollama",
    stop_reasons=[
        (stop(body, calls), reason, raw)
        for body, calls, reason, raw in (
            ({"done_reason": "stop"}, False, "end", "stop"),
            ({"done_reason": "stop"}, True, "tool_calls", "stop"),
            ({}, False, "end", None),
            ({}, True, "tool_calls", None),
            ({"done_reason": "length"}, False, "length", "length"),
            ({"done_reason": "length"}, True, "length", "length"),
            ({"done_reason": "load"}, False, "other", "load"),
            ({"done_reason": "unload"}, False, "other", "unload"),
            ({"done_reason": "something new"}, True, "other", "something new"),
            ({"done": False}, False, "other", None),
        )
    ],
    malformed=[
        (b"{}", "$.message"),
        (b'{"message":7}', "$.message"),
        (b'{"message":{"role":"user","content":"x"}}', "$.message.role"),
        (b'{"message":{"content":7}}', "$.message.content"),
        (b'{"message":{"tool_calls":[{}]}}', "$.message.tool_calls[0].function"),
        (
            b'{"message":{"tool_calls":[{"function":{"name":"f","arguments":[]}}]}}',
            "$.message.tool_calls[0].function.arguments",
        ),
        (b"\xff", "$"),
    ],
    unreadable_usage=((b'{"message":{},"eval_count":"many"}', "$.eval_count"),),
    error_reply=(b'{"error":"why"}', errors.Overloaded),
    text=lines(HI),
    whole=lines(HI, END),
    unusual={
        "lines after the end": lines(HI, END, HI, END, {"error": "late"}) + b"garbage",
        "no line break at the end": lines(HI) + json.dumps(END).encode(),
        "unknown lines": lines(HI, {"status": "success"}, {}, {"message": None}, END) + b"\n\n",
        "an end without a message": lines(HI, {"model": "m", "done": True}),
    },
    broken=[
        (b"", "Transport"),
        (b"\n", "Transport"),
        (b'{"error":"no"}\n', "Overloaded"),
        (b"{}\n", "Transport"),
        (lines(HI), "Transport"),
        (lines(HI) + b'{"model":"m","mess', "Transport"),
        (lines(HI, {"error": "the model failed"}), "Overloaded"),
        (lines(HI, {"error": {"message": "the model failed"}}), "Overloaded"),
        (lines(HI) + b"garbage\n", "Parse"),
        (lines(HI) + b"[1]\n", "Parse"),
        (lines(HI) + b'{"message":7}\n', "Parse"),
        (lines(HI) + b'{"message":{"content":"\xff"}}\n', "Parse"),
        (
            lines(HI, line({"tool_calls": [{"function": {"name": "f", "arguments": 7}}]})),
            "Parse",
        ),
    ],
    endless=[
        (b"", lines(line(message)))
        for message in (
            {"content": MEGABYTE},
            {"thinking": MEGABYTE},
            {"images": [MEGABYTE]},
            {"tool_calls": [{"function": {"name": "f", "arguments": {"x": MEGABYTE * 5}}}]},
        )
    ],
    errors=[
        (status, b'{"error":"why"}', expected)
        for status, expected in (
            (400, errors.RequestRejected),
            (401, errors.Unauthenticated),
            (402, errors.QuotaExhausted),
            (403, errors.Forbidden),
            (404, errors.NotFound),
            (413, errors.TooLarge),
            (429, errors.RateLimited),
            (499, errors.RequestRejected),
            (500, errors.Overloaded),
            (502, errors.Overloaded),
            (503, errors.Overloaded),
        )
    ],
    bare_errors=[b"", b"<html>", b"{}", b"[]", b"\xff"],
    unnamed=(errors.ContentRefused, errors.ContextOverflow),
)
