"""Ollama's errors in both directions: a status and a text."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec

from anaphora import errors
from anaphora.canonical import dumps
from anaphora.errors import Upstream
from anaphora.wire.errors import error_class, error_headers, overflow_class, read_response

#: The status that each class is written with; an error body has no code.
_STATUS_OF: dict[type[Upstream], int] = {
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
    status: int, headers: Mapping[str, str], body: bytes, now: datetime.datetime | None = None
) -> Upstream:
    """The error of a response. Header names are lowercase; `now` is for dates in them."""
    return read_response(status, headers, body, now, _read, {})


def _read(body: bytes, status: int) -> Upstream:
    message = _message(_decode(body).error)
    return overflow_class(error_class(status, None, {}), message)(message, status=status)


def from_success(error: Any) -> Upstream:
    """The error in a body that came with status 200: generation failed after it had begun."""
    message = _message(error)
    return overflow_class(errors.Overloaded, message)(message, status=200)


def _message(error: Any) -> str:
    """The text of an error; hosts in front of Ollama may put it in an object."""
    if isinstance(error, dict):
        error = error.get("message")
    return error if isinstance(error, str) and error else "an error without a message"


def write_error(error: Upstream) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body as Ollama would send them."""
    status = _STATUS_OF.get(type(error), 500)
    # Another provider's status is kept only where it means the same class here.
    original = error.status
    if original is not None and original >= 400 and error_class(original, None, {}) is type(error):
        status = original
    return status, error_headers(error), write_failure(str(error))


def write_failure(message: str) -> bytes:
    """The error object; a stream ends with it, too."""
    return dumps({"error": message})
