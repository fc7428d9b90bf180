"""Ollama's errors: the class comes from the status, the text is for people."""

from __future__ import annotations

import datetime
import json

from support.tables import each_row

from anaphora import errors
from anaphora.wire import ollama

NOW = datetime.datetime(2026, 11, 15, 12, 0, 0, tzinfo=datetime.UTC)


@each_row(
    "status, expected, retryable",
    [
        (400, errors.RequestRejected, False),
        (401, errors.Unauthenticated, False),
        (402, errors.QuotaExhausted, False),
        (403, errors.Forbidden, False),
        (404, errors.NotFound, False),
        (413, errors.TooLarge, False),
        (429, errors.RateLimited, True),
        (499, errors.RequestRejected, False),
        (500, errors.Overloaded, True),
        (502, errors.Overloaded, True),
        (503, errors.Overloaded, True),
    ],
)
# The text does not matter: a server may put anything there.
@each_row("text", ["model 'm' not found", "rate limit", "context length", ""])
def test_an_error_by_its_status(status: int, expected: type, retryable: bool, text: str) -> None:
    body = json.dumps({"error": text}).encode()
    read = ollama.read_error(status, {"x-request-id": "r"}, body)
    assert type(read) is expected
    assert read.retryable is retryable
    assert (read.status, read.code, read.request_id) == (status, None, "r")
    assert str(read) == (text or "an error without a message")


@each_row(
    "body, message",
    [
        (b'{"error":"unauthorized","signin_url":"https://x.test"}', "unauthorized"),
        (b'{"StatusCode":404,"Status":"404 Not Found","error":"gone"}', "gone"),
        (b'{"error":{"message":"in an object","type":"x"}}', "in an object"),
        (b'{"error":7}', "an error without a message"),
        (b'{"error":null}', "an error without a message"),
        (b"", "HTTP 503 without an error object"),
        (b"<html>", "HTTP 503 without an error object"),
        (b"{}", "HTTP 503 without an error object"),
        (b"[]", "HTTP 503 without an error object"),
        (b"\xff", "HTTP 503 without an error object"),
    ],
)
def test_the_forms_of_an_error_body(body: bytes, message: str) -> None:
    read = ollama.read_error(503, {"retry-after": "2"}, body)
    assert (str(read), read.retry_after) == (message, 2)


@each_row(
    "error, status",
    [
        (errors.RequestRejected("m", status=422), 422),
        (errors.Unauthenticated("m"), 401),
        (errors.Forbidden("m"), 403),
        (errors.NotFound("m"), 404),
        (errors.TooLarge("m"), 413),
        (errors.RateLimited("m", retry_after=1.5), 429),
        (errors.QuotaExhausted("m", status=429, code="insufficient_quota"), 402),
        (errors.Overloaded("m", status=529), 529),
        (errors.Overloaded("m", status=200), 503),
    ],
)
def test_the_class_of_an_error_survives(error: errors.Upstream, status: int) -> None:
    """There is no code here, so a status of another class is not passed on."""
    error.request_id = "r"
    written_status, headers, body = ollama.write_error(error)
    assert (written_status, json.loads(body)) == (status, {"error": "m"})
    read = ollama.read_error(written_status, headers, body)
    assert type(read) is type(error)
    assert (read.retry_after, read.request_id) == (error.retry_after, "r")


def test_an_unknown_error_is_a_server_error() -> None:
    assert ollama.write_error(errors.Upstream("m"))[0] == 500
