"""Retry-after and rate-limit headers and bodies in every form, on every wire."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from support.tables import each_row

from anaphora import errors, wire
from anaphora.wire.response_headers import RemainingLimit, read_limits, reset_after, seconds_until

NOW = datetime.datetime(2026, 11, 15, 12, 0, 0, tzinfo=datetime.UTC)
AT = NOW.timestamp()
WIRES = ("anthropic", "openai_chat", "openai_responses", "gemini", "deepseek")
BODIES: dict[str, Any] = {
    "anthropic": {"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}},
    "openai_chat": {
        "error": {"message": "slow", "type": "requests", "code": "rate_limit_exceeded"}
    },
    "gemini": {"error": {"code": 429, "message": "slow", "status": "RESOURCE_EXHAUSTED"}},
}


def limits(form: str, *kinds: tuple[str, str, str, str]) -> dict[str, str]:
    """Headers of these limits: kind, remaining, limit and reset."""
    return {
        form.format(of=of, kind=kind): value
        for kind, *values in kinds
        for of, value in zip(("remaining", "limit", "reset"), values, strict=True)
    }


ANTHROPIC, OPENAI = "anthropic-ratelimit-{kind}-{of}", "x-ratelimit-{of}-{kind}"

#: The headers of a 429, and the wait that they mean.
FORMS: dict[str, tuple[dict[str, str], float | None]] = {
    "nothing": ({}, None),
    "seconds": ({"retry-after": "7"}, 7.0),
    "parts of seconds": ({"retry-after": "0.5"}, 0.5),
    "milliseconds": ({"retry-after-ms": "250"}, 0.25),
    "milliseconds are finer": ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
    "a date": ({"retry-after": "Sun, 15 Nov 2026 12:00:30 GMT"}, 30.0),
    "a date that is over": ({"retry-after": "Sun, 15 Nov 2026 11:00:00 GMT"}, 0.0),
    "longer than an SDK would wait": ({"retry-after": "600"}, 600.0),
    "not to be read": ({"retry-after": "soon"}, None),
    "Anthropic's reset": (limits(ANTHROPIC, ("requests", "0", "50", "2026-11-15T12:00:12Z")), 12.0),
    "of several used up the longest": (
        limits(
            ANTHROPIC,
            ("requests", "0", "50", "2026-11-15T12:00:12Z"),
            ("input-tokens", "0", "9000", "2026-11-15T12:00:40+00:00"),
            ("output-tokens", "9", "9000", "2026-11-15T12:00:59Z"),
        ),
        40.0,
    ),
    "OpenAI's reset": (limits(OPENAI, ("tokens", "0", "90000", "6m0s")), 360.0),
    "OpenAI's short reset": (limits(OPENAI, ("requests", "0", "500", "120ms")), 0.12),
    "a limit not used up gives no wait": (limits(OPENAI, ("tokens", "12", "90000", "6m0s")), None),
    "the plain word wins over resets": (
        {"retry-after": "2", **limits(OPENAI, ("tokens", "0", "90000", "6m0s"))},
        2.0,
    ),
    "Azure does not know": (limits(OPENAI, ("tokens", "-1", "-1", "0")), None),
    "seconds until a reset": (
        {"ratelimit-limit": "10", "ratelimit-remaining": "0", "ratelimit-reset": "17"},
        17.0,
    ),
    "one field": (
        {"ratelimit": '"default";r=0;t=30', "ratelimit-policy": '"default";q=9;w=60'},
        30,
    ),
    "an earlier draft's field": ({"ratelimit": "limit=100, remaining=0, reset=5"}, 5.0),
    "milliseconds since 1970": (
        {"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{(AT + 8) * 1000:.0f}"},
        8.0,
    ),
}


@each_row("name", WIRES)
@each_row("form", FORMS)
def test_wait_of_a_rate_limit(form: str, name: str) -> None:
    headers, wait = FORMS[form]
    home = {"openai_responses": "openai_chat", "deepseek": "openai_chat"}.get(name, name)
    for body in (json.dumps(BODIES[home]).encode(), b"<html>a proxy's page</html>"):
        error = wire.get(name).read_error(429, headers, body, NOW)
        assert isinstance(error, errors.RateLimited)
        assert error.retry_after == pytest.approx(wait)


def test_headers_take_precedence_over_the_google_body() -> None:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "45.8379s"}
    body = json.dumps({"error": {**BODIES["gemini"]["error"], "details": [info]}}).encode()
    used_up = limits(OPENAI, ("requests", "0", "5", "9s"))
    read = wire.get("gemini").read_error
    assert read(429, {}, body, NOW).retry_after == 45.8379
    assert read(429, {"retry-after": "3"}, body, NOW).retry_after == 3.0
    assert read(429, used_up, body, NOW).retry_after == 45.8379


@each_row("name", WIRES)
def test_resets_apply_to_rate_limits_only(name: str) -> None:
    used_up = limits(OPENAI, ("requests", "0", "5", "9s"))
    assert wire.get(name).read_error(500, used_up, b"", NOW).retry_after is None


@each_row("name", WIRES)
@each_row(
    "status, value, retryable",
    [
        (429, None, True),
        (429, "false", False),
        (429, "true", True),
        (503, "false", False),
        (400, None, False),
        (400, "true", True),
        (400, "perhaps", False),
    ],
)
def test_x_should_retry_decides(name: str, status: int, value: str | None, retryable: bool) -> None:
    headers = {} if value is None else {"x-should-retry": value}
    for body in (b"", b'{"error":{"type":"something_new","message":"m","code":null}}'):
        assert wire.get(name).read_error(status, headers, body).retryable is retryable
    assert errors.RateLimited.retryable  # no other error has the header


@each_row(
    "value, seconds",
    [
        ("", None),
        ("0", 0.0),
        ("59.7", 59.7),
        ("12ms", 0.012),
        ("120ms", 0.12),
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("2m59.56s", 179.56),
        ("1h2m3.5s", 3723.5),
        ("1d", 86400.0),
        ("250us", 0.00025),
        ("2026-11-15T12:01:00Z", 60.0),
        ("2026-11-15T13:01:00+01:00", 60.0),
        ("2026-11-15T12:00:01.500Z", 1.5),
        ("2026-11-15T12:01:00", 60.0),
        ("2026-11-15T11:59:00Z", 0.0),
        (f"{AT + 5:.0f}", 5.0),
        (f"{(AT + 5) * 1000:.0f}", 5.0),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("m", None),
        ("5 parsecs", None),
        ("yesterday", None),
    ],
)
def test_reset_in_every_form(value: str, seconds: float | None) -> None:
    assert seconds_until(value, AT) == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["2026-11-15T12:01:00Z", f"{AT:.0f}"])
def test_reset_time_is_ignored_without_a_clock(value: str) -> None:
    assert seconds_until(value) is None


@each_row(
    "headers, found",
    [
        ({}, []),
        (
            limits(OPENAI, ("requests", "4999", "5000", "12ms"), ("tokens", "7", "90", "9s")),
            [
                RemainingLimit("requests", 4999, 5000, "12ms", True),
                RemainingLimit("tokens", 7, 90, "9s", True),
            ],
        ),
        (
            limits(
                OPENAI, ("requests-day", "3", "100", "33011.38"), ("tokens-minute", "4", "9", "5")
            ),
            [
                RemainingLimit("requests", 3, 100, "33011.38", True),
                RemainingLimit("tokens", 4, 9, "5", True),
            ],
        ),
        (
            limits(ANTHROPIC, ("requests", "1", "2", "2026-11-15T12:00:03Z")),
            [RemainingLimit("requests", 1, 2, "2026-11-15T12:00:03Z", True)],
        ),
        (
            {
                "ratelimit-limit": "100, 100;w=60",
                "ratelimit-remaining": "9",
                "ratelimit-reset": "5",
            },
            [RemainingLimit("requests", 9, 100, "5", False)],
        ),
        (
            {"ratelimit": '"day";r=900;t=9000, "minute";r=2;t=30'},
            [RemainingLimit("requests", 2, None, "30", False)],
        ),
        (
            {"x-ratelimit-remaining-requests": "5"},
            [RemainingLimit("requests", 5, None, None, True)],
        ),
        ({"x-ratelimit-remaining-requests": "some"}, []),
        ({"ratelimit": "nothing of the kind"}, []),
    ],
)
def test_limits_in_every_form(headers: dict[str, str], found: list[RemainingLimit]) -> None:
    assert read_limits(headers) == found


def test_only_scarce_limits_on_request() -> None:
    headers = limits(OPENAI, ("requests", "40", "100", "6s"), ("tokens", "60", "100", "6s"))
    assert [left.unit for left in read_limits(headers, at_most=0.5)] == ["requests"]
    assert reset_after(headers, AT) is None
