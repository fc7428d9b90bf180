"""Anthropic's errors by status and code, and the waits they ask for."""

from __future__ import annotations

import datetime
import json

import pytest

from anaphora import errors
from anaphora.wire import anthropic
from anaphora.wire.errors import retry_after

NOW = datetime.datetime(2026, 11, 15, 12, 0, 0, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    "status, kind, code, expected, retryable",
    [
        (400, "invalid_request_error", None, errors.RequestRejected, False),
        (401, "authentication_error", None, errors.Unauthenticated, False),
        (402, "billing_error", None, errors.QuotaExhausted, False),
        (403, "permission_error", None, errors.Forbidden, False),
        (404, "not_found_error", None, errors.NotFound, False),
        (409, "conflict_error", None, errors.Overloaded, True),
        (413, "request_too_large", None, errors.TooLarge, False),
        (429, "rate_limit_error", None, errors.RateLimited, True),
        (429, "rate_limit_error", "enforced_spend_limit_reached", errors.QuotaExhausted, False),
        (429, "rate_limit_error", "ramp_limit_exceeded", errors.RateLimited, True),
        (500, "api_error", None, errors.Overloaded, True),
        (504, "timeout_error", None, errors.Overloaded, True),
        (529, "overloaded_error", None, errors.Overloaded, True),
        (418, "something_new", None, errors.RequestRejected, False),
        (599, "something_new", None, errors.Overloaded, True),
    ],
)
def test_an_error_by_status_and_code(
    status: int, kind: str, code: str | None, expected: type, retryable: bool
) -> None:
    error: dict[str, object] = {"type": kind, "message": "why"}
    if code is not None:
        error["details"] = {"error_code": code}
    body = json.dumps({"type": "error", "error": error, "request_id": "req_body"}).encode()
    read = anthropic.read_error(status, {"request-id": "req_1"}, body)
    assert type(read) is expected
    assert read.retryable is retryable
    assert (read.status, read.code, read.request_id) == (status, code or kind, "req_1")
    assert str(read) == "why"
    assert anthropic.read_error(status, {}, body).request_id == "req_body"


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b"\xff", b'{"error":"text"}'])
def test_html_page_instead_of_error_object(body: bytes) -> None:
    read = anthropic.read_error(503, {"retry-after": "2"}, body)
    assert isinstance(read, errors.Overloaded)
    assert read.retry_after == 2


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Sun, 15 Nov 2026 12:00:30 GMT"}, 30),
        ({"retry-after": "Sun, 15 Nov 2026 11:00:00 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
    ],
)
def test_retry_after_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds
