"""Ollama's errors, both ways: a status and a text. Of the text only an overflow is read."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec

from anaphora import errors
from anaphora.canonical import dumps
from anaphora.errors import Upstream
from anaphora.wire.errors import error_class, overflow_class, retry_after, with_retry_hints
from anaphora.wire.reading import DECODE_ERRORS

#: The status each class is told with: there is nothing else to tell it by.
_SAID: dict[type[Upstream], int] = {
    errors.RequestRejected: 400,
    errors.ContentRefused: 400,
    errors.ContextOverflow: 400,
    errors.Unauthenticated: 401,
    errors.QuotaExhausted: 402,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.TooLarge: 413,
    errors.RateLimited: 429,
    errors.Overloaded: 503,
}


class _Body(msgspec.Struct, frozen=True):
    error: Any


_decode = msgspec.json.Decoder(_Body).decode


def read_error(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    now: datetime.datetime | None = None,
) -> Upstream:
    """The error an answer is. Header names are lowercase; `now` is for dates in them."""
    try:
        message = told(_decode(body).error)
    except DECODE_ERRORS:
        # A proxy's page, or nothing at all: the status is all there is.
        message = f"HTTP {status} without an error object"
    error = overflow_class(error_class(status, None, {}), message)(
        message,
        status=status,
        request_id=headers.get("x-request-id"),
        retry_after=retry_after(headers, now),
    )
    return with_retry_hints(error, headers, now)


def failure(error: Any) -> Upstream:
    """The error that came with a good status: the request was taken, and then it went wrong."""
    message = told(error)
    return overflow_class(errors.Overloaded, message)(message, status=200)


def told(error: Any) -> str:
    """The text of an error; hosts in front of Ollama may put it in an object."""
    if isinstance(error, dict):
        error = error.get("message")
    return error if isinstance(error, str) and error else "an error without a message"


def write_error(error: Upstream) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body as Ollama would send them."""
    status = _SAID.get(type(error), 500)
    # Another provider's status stands only where it means the same class here.
    given = error.status
    if given is not None and given >= 400 and error_class(given, None, {}) is type(error):
        status = given
    headers = {"content-type": "application/json"}
    if error.retry_after is not None:
        headers["retry-after"] = f"{error.retry_after:g}"
    if error.request_id is not None:
        headers["x-request-id"] = error.request_id
    return status, headers, write_failure(str(error))


def write_failure(message: str) -> bytes:
    """The object itself; a stream ends with it, too."""
    return dumps({"error": message})
