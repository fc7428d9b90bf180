"""Google's errors: by status, reason and details, never by prose."""

from __future__ import annotations

import datetime
from typing import Any

from support.replies.gemini import KINDS, detail, error_body
from support.tables import each_row

from anaphora import errors
from anaphora.wire import gemini


def test_daily_quotas_are_not_retried() -> None:
    assert not errors.QuotaExhausted.retryable
    status, encoded, _ = KINDS["too much for a day"]
    assert gemini.read_error(status, {}, encoded).retryable is False


@each_row(
    "headers, details, wait",
    [
        ({}, [], None),
        ({}, [detail("RetryInfo", retryDelay="45.8379s")], 45.8379),
        ({}, [detail("RetryInfo", retryDelay="30s")], 30.0),
        ({}, [detail("RetryInfo", retryDelay="-1s")], None),
        ({}, [detail("RetryInfo", retryDelay="nans")], None),
        ({}, [detail("RetryInfo", retryDelay="soon")], None),
        ({}, [detail("RetryInfo", retryDelay=5)], None),
        ({"retry-after": "7"}, [detail("RetryInfo", retryDelay="30s")], 7.0),
        ({"retry-after-ms": "250"}, [], 0.25),
        ({"retry-after": "Sun, 15 Nov 2026 05:00:10 GMT"}, [], 10.0),
    ],
)
def test_retry_after(headers: dict[str, str], details: list[Any], wait: float | None) -> None:
    now = datetime.datetime(2026, 11, 15, 5, 0, tzinfo=datetime.UTC)
    encoded = error_body("RESOURCE_EXHAUSTED", *details)
    assert gemini.read_error(429, headers, encoded, now).retry_after == wait


def test_error_details() -> None:
    encoded = error_body(
        "INVALID_ARGUMENT",
        detail("BadRequest", fieldViolations=[{"field": "contents[0].role", "description": "x"}]),
        detail("RequestInfo", requestId="req-1"),
        message="bad role",
    )
    error = gemini.read_error(400, {}, encoded)
    assert (str(error), error.code, error.param, error.request_id) == (
        "bad role",
        "INVALID_ARGUMENT",
        "contents[0].role",
        "req-1",
    )
    assert gemini.read_error(400, {"x-request-id": "h"}, encoded).request_id == "h"
