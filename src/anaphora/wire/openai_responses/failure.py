"""OpenAI's errors, both ways."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

import msgspec

from anaphora import errors
from anaphora.canonical import dumps
from anaphora.errors import Upstream
from anaphora.wire.failures import kind_of, retry_after

#: By the error's code, and by its type where the code says nothing.
_BY_CODE: dict[str, type[Upstream]] = {
    "insufficient_quota": errors.QuotaExhausted,
    "billing_hard_limit_reached": errors.QuotaExhausted,
    "billing_not_active": errors.QuotaExhausted,
    "rate_limit_exceeded": errors.RateLimited,
    "requests": errors.RateLimited,
    "tokens": errors.RateLimited,
    "rate_limit_error": errors.RateLimited,
    "invalid_api_key": errors.Unauthenticated,
    "invalid_authentication": errors.Unauthenticated,
    "authentication_error": errors.Unauthenticated,
    "permission_error": errors.Forbidden,
    "permission_denied": errors.Forbidden,
    "unsupported_country_region_territory": errors.Forbidden,
    "model_not_found": errors.NotFound,
    "previous_response_not_found": errors.NotFound,
    "not_found_error": errors.NotFound,
    "image_file_not_found": errors.NotFound,
    "context_length_exceeded": errors.ContextOverflow,
    "string_above_max_length": errors.TooLarge,
    "request_too_large": errors.TooLarge,
    "image_file_too_large": errors.TooLarge,
    "content_filter": errors.ContentRefused,
    "content_policy_violation": errors.ContentRefused,
    "image_content_policy_violation": errors.ContentRefused,
    "invalid_prompt": errors.ContentRefused,
    "bio_policy": errors.ContentRefused,
    "misalignment_policy_violation": errors.ContentRefused,
    "server_error": errors.Overloaded,
    "internal_error": errors.Overloaded,
    "overloaded_error": errors.Overloaded,
    "server_is_overloaded": errors.Overloaded,
    "slow_down": errors.Overloaded,
    "vector_store_timeout": errors.Overloaded,
    "invalid_request_error": errors.RequestRejected,
}
#: Types too general to decide against the status.
_GENERAL = ("invalid_request_error",)
_SAID: dict[type[Upstream], tuple[int, str, str | None]] = {
    errors.RequestRejected: (400, "invalid_request_error", None),
    errors.ContentRefused: (400, "invalid_request_error", "content_policy_violation"),
    errors.ContextOverflow: (400, "invalid_request_error", "context_length_exceeded"),
    errors.Unauthenticated: (401, "invalid_request_error", "invalid_api_key"),
    errors.Forbidden: (403, "permission_error", "permission_denied"),
    errors.NotFound: (404, "invalid_request_error", "not_found_error"),
    errors.TooLarge: (413, "invalid_request_error", "request_too_large"),
    errors.RateLimited: (429, "rate_limit_error", "rate_limit_exceeded"),
    errors.QuotaExhausted: (429, "insufficient_quota", "insufficient_quota"),
    errors.Overloaded: (503, "server_error", "server_error"),
}


class ErrorObject(msgspec.Struct, frozen=True):
    message: str | None = None
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class _Body(msgspec.Struct, frozen=True):
    error: ErrorObject | str


def read_error(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    now: datetime.datetime | None = None,
) -> Upstream:
    """The error an answer is. Header names are lowercase; `now` is for dates in them."""
    request_id, wait = headers.get("x-request-id"), retry_after(headers, now)
    try:
        told = msgspec.json.decode(body, type=_Body).error
    except (msgspec.DecodeError, UnicodeError):
        # A proxy's page, or nothing at all: the status is all there is.
        told = f"HTTP {status} without an error object"
    if isinstance(told, str):
        told = ErrorObject(told)
    return from_object(told, status, request_id, wait)


def from_object(
    told: ErrorObject, status: int, request_id: str | None = None, wait: float | None = None
) -> Upstream:
    """The error an error object is; streams and failed answers carry the same object."""
    code = str(told.code) if told.code is not None else None
    known = next((c for c in (code, told.type) if c in _BY_CODE and c not in _GENERAL), None)
    if known is None and status < 400:
        known = told.type
    kind = kind_of(status if status >= 400 else 500, known, _BY_CODE)
    return kind(
        told.message or code or told.type or f"HTTP {status}",
        status=status,
        code=code or told.type,
        param=told.param,
        request_id=request_id,
        retry_after=wait,
    )


def write_error(error: Upstream) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body as OpenAI would send them."""
    status, kind, code = _SAID.get(type(error), (500, "server_error", "server_error"))
    said = {
        "message": str(error),
        "type": kind,
        "param": error.param,
        "code": error.code if error.code is not None and error.code != kind else code,
    }
    headers = {"content-type": "application/json"}
    if error.retry_after is not None:
        headers["retry-after"] = f"{error.retry_after:g}"
    if error.request_id is not None:
        headers["x-request-id"] = error.request_id
    return error.status or status, headers, dumps({"error": said})
