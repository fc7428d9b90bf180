"""Google's errors: by status, reason and details, never by prose."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

from anaphora import errors
from anaphora.values import ReplyFail
from anaphora.wire import gemini

RPC = "type.googleapis.com/google.rpc."


def body(status: str, *details: Any, code: int = 400, message: str = "no") -> bytes:
    error = {"code": code, "message": message, "status": status, "details": list(details)}
    return json.dumps({"error": error}).encode()


def detail(kind: str, **fields: Any) -> Any:
    return {"@type": f"{RPC}{kind}", **fields}


def quota(*ids: str) -> Any:
    return detail("QuotaFailure", violations=[{"quotaId": quota_id} for quota_id in ids])


KINDS: dict[str, tuple[int, bytes, type[errors.Upstream]]] = {
    "invalid": (400, body("INVALID_ARGUMENT"), errors.RequestRejected),
    "a key that is none": (
        400,
        body("INVALID_ARGUMENT", detail("ErrorInfo", reason="API_KEY_INVALID")),
        errors.Unauthenticated,
    ),
    "not here": (400, body("FAILED_PRECONDITION"), errors.RequestRejected),
    "no key": (401, body("UNAUTHENTICATED"), errors.Unauthenticated),
    "not allowed": (403, body("PERMISSION_DENIED"), errors.Forbidden),
    "billing is off": (
        403,
        body("PERMISSION_DENIED", detail("ErrorInfo", reason="BILLING_DISABLED")),
        errors.QuotaExhausted,
    ),
    "no such model": (404, body("NOT_FOUND"), errors.NotFound),
    "too large": (413, body("INVALID_ARGUMENT"), errors.TooLarge),
    "too fast": (429, body("RESOURCE_EXHAUSTED"), errors.RateLimited),
    "too fast for a minute": (
        429,
        body("RESOURCE_EXHAUSTED", quota("GenerateRequestsPerMinutePerProjectPerModel")),
        errors.RateLimited,
    ),
    "too much for a day": (
        429,
        body(
            "RESOURCE_EXHAUSTED",
            quota(
                "GenerateRequestsPerMinutePerProjectPerModel",
                "GenerateRequestsPerDayPerProjectPerModel-FreeTier",
            ),
            detail("RetryInfo", retryDelay="3s"),
        ),
        errors.QuotaExhausted,
    ),
    "cancelled": (499, body("CANCELLED"), errors.Overloaded),
    "their fault": (500, body("INTERNAL"), errors.Overloaded),
    "busy": (503, body("UNAVAILABLE"), errors.Overloaded),
    "too slow": (504, body("DEADLINE_EXCEEDED"), errors.Overloaded),
    "a list of one": (429, b"[" + body("RESOURCE_EXHAUSTED") + b"]", errors.RateLimited),
    "an empty list": (429, b"[]", errors.RateLimited),
    "a status of tomorrow": (403, body("NEVER_HEARD_OF"), errors.Forbidden),
    "a proxy's page": (502, b"<html>", errors.Overloaded),
    "nothing": (404, b"", errors.NotFound),
    "odd details": (
        400,
        b'{"error":{"details":[5,{"@type":5},{}],"status":5}}',
        errors.RequestRejected,
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_error_classes(name: str) -> None:
    status, encoded, kind = KINDS[name]
    error = gemini.read_error(status, {}, encoded)
    assert type(error) is kind
    assert error.status == status


def test_daily_quotas_are_not_retried() -> None:
    assert not errors.QuotaExhausted.retryable
    status, encoded, _ = KINDS["too much for a day"]
    assert gemini.read_error(status, {}, encoded).retryable is False


@pytest.mark.parametrize(
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
    encoded = body("RESOURCE_EXHAUSTED", *details)
    assert gemini.read_error(429, headers, encoded, now).retry_after == wait


def test_error_details() -> None:
    encoded = body(
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


EVERY = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.Upstream) and kind is not errors.Upstream
]
#: Google has no word of its own for these.
REJECTED = (errors.ContentRefused, errors.ContextOverflow)


@pytest.mark.parametrize("kind", EVERY)
def test_an_error_written_is_read_again(kind: type[errors.Upstream]) -> None:
    error = kind("m", param="p", request_id="i", retry_after=2.5)
    status, headers, encoded = gemini.write_error(error)
    again = gemini.read_error(status, headers, encoded)
    assert type(again) is (errors.RequestRejected if kind in REJECTED else kind)
    assert (str(again), again.param, again.request_id, again.retry_after) == ("m", "p", "i", 2.5)


@pytest.mark.parametrize("name", [name for name in KINDS if KINDS[name][1][:2] == b'{"'])
def test_an_error_read_is_written_again(name: str) -> None:
    status, encoded, kind = KINDS[name]
    error = gemini.read_error(status, {}, encoded)
    again = gemini.read_error(status, {}, gemini.write_error(error)[2])
    assert type(again) is kind
    assert (again.code or error.code, again.status) == (error.code or again.code, status)


@pytest.mark.parametrize("kind", EVERY)
def test_a_failure_in_a_stream_is_read_again(kind: type[errors.Upstream]) -> None:
    reader = gemini.reader()
    body = gemini.writer().write(ReplyFail(kind.__name__, "m"))
    last = (reader.feed(body) + reader.close())[-1]
    assert isinstance(last, ReplyFail)
    expected = errors.RequestRejected if kind in REJECTED else kind
    assert (last.error, last.message) == (expected.__name__, "m")
