"""Anthropic's errors, both ways."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

import msgspec

from anaphora import errors
from anaphora.canonical import dumps
from anaphora.errors import Upstream
from anaphora.wire.errors import error_class, overflow_class, retry_after, with_retry_hints
from anaphora.wire.reading import DECODE_ERRORS

#: By the error's type, and by the finer code in its details.
_BY_CODE: dict[str, type[Upstream]] = {
    "invalid_request_error": errors.RequestRejected,
    "authentication_error": errors.Unauthenticated,
    "billing_error": errors.QuotaExhausted,
    "permission_error": errors.Forbidden,
    "not_found_error": errors.NotFound,
    "conflict_error": errors.Overloaded,
    "request_too_large": errors.TooLarge,
    "rate_limit_error": errors.RateLimited,
    "api_error": errors.Overloaded,
    "timeout_error": errors.Overloaded,
    "overloaded_error": errors.Overloaded,
    "enforced_spend_limit_reached": errors.QuotaExhausted,
    "exceed_context_size_error": errors.ContextOverflow,  # llama.cpp
}
_SAID: dict[type[Upstream], tuple[int, str]] = {
    errors.RequestRejected: (400, "invalid_request_error"),
    errors.ContentRefused: (400, "invalid_request_error"),
    errors.ContextOverflow: (400, "invalid_request_error"),
    errors.Unauthenticated: (401, "authentication_error"),
    errors.QuotaExhausted: (402, "billing_error"),
    errors.Forbidden: (403, "permission_error"),
    errors.NotFound: (404, "not_found_error"),
    errors.TooLarge: (413, "request_too_large"),
    errors.RateLimited: (429, "rate_limit_error"),
    errors.Overloaded: (529, "overloaded_error"),
}


class _Details(msgspec.Struct, frozen=True):
    error_code: str | None = None


class ErrorObject(msgspec.Struct, frozen=True):
    type: str
    message: str = ""
    details: _Details | None = None


class _Body(msgspec.Struct, frozen=True):
    error: ErrorObject
    request_id: str | None = None


def read_error(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    now: datetime.datetime | None = None,
) -> Upstream:
    """The error an answer is. Header names are lowercase; `now` is for dates in them."""
    request_id = headers.get("request-id")
    try:
        told = msgspec.json.decode(body, type=_Body)
    except DECODE_ERRORS:
        # A proxy's page, or nothing at all: the status is all there is.
        kind = error_class(status, None, _BY_CODE)
        error = kind(
            f"HTTP {status} without an error object",
            status=status,
            request_id=request_id,
            retry_after=retry_after(headers, now),
        )
        return with_retry_hints(error, headers, now)
    wait = retry_after(headers, now)
    error = from_object(told.error, status, request_id or told.request_id, wait)
    return with_retry_hints(error, headers, now)


def from_object(
    told: ErrorObject, status: int, request_id: str | None = None, wait: float | None = None
) -> Upstream:
    """The error an error object is; streams carry the same object."""
    code = told.details.error_code if told.details is not None else None
    kind = error_class(status, code if code in _BY_CODE else told.type, _BY_CODE)
    return overflow_class(kind, told.message)(
        told.message or told.type,
        status=status,
        code=code or told.type,
        request_id=request_id,
        retry_after=wait,
    )


def write_error(error: Upstream) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body as Anthropic would send them."""
    status, kind = _SAID.get(type(error), (500, "api_error"))
    said: dict[str, object] = {"type": kind, "message": str(error)}
    if error.code is not None and error.code != kind:
        said["details"] = {"error_code": error.code}
    headers = {"content-type": "application/json"}
    if error.retry_after is not None:
        headers["retry-after"] = f"{error.retry_after:g}"
    if error.request_id is not None:
        headers["request-id"] = error.request_id
    body = {"type": "error", "error": said, "request_id": error.request_id}
    return error.status or status, headers, dumps(body)
